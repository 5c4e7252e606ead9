//! A process is killed after the stack's answer to `connect`, before the service has its socketpair, or after the answer to
//! `listen`. Its connection or listener ends with it, even if other processes of the client live on.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::{Service, require_program};

/// `die_at_socketpair`: the library calls it just after the stack's answer to `connect`.
const PROGRAM: &str = r#"
import ctypes, os, signal, socket, struct, time

def die_at_socketpair():
    libc = ctypes.CDLL(None, use_errno=True)
    statements = [(0x20, 0, 0, 0), (0x15, 0, 1, 53), (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *s) for s in statements))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(statements), ctypes.addressof(code)))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, program) == 0

def killed_in(call, by):
    child = os.fork()
    if child == 0:
        call()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == by, status

def connect():
    die_at_socketpair()
    socket.socket().connect(("127.0.0.1", PORT))

listener = socket.create_server(("127.0.0.1", PORT))
listener.settimeout(3)
killed_in(connect, signal.SIGSYS)
try:
    server, _ = listener.accept()
    server.settimeout(60)
    assert server.recv(1) == b""
    server.close()
except (ConnectionResetError, TimeoutError) as why:
    # It may have ended before it was established.
    assert isinstance(why, ConnectionResetError) or "server" not in globals(), "the connection goes on"

def listen():
    s = socket.socket()
    s.bind(("127.0.0.1", PORT + 1))
    s.listen()
    os.kill(os.getpid(), signal.SIGKILL)
killed_in(listen, signal.SIGKILL)
end = time.monotonic() + 60
while True:
    try:
        again = socket.create_server(("127.0.0.1", PORT + 1))
        break
    except OSError:
        assert time.monotonic() < end, "the port stays taken"
        time.sleep(0.01)
client = socket.create_connection(("127.0.0.1", PORT + 1))
again.accept()[0].sendall(b"on")
assert client.recv(2) == b"on"
"#;

fn ends_with_its_process(service: &Service, port: u16) {
    require_program("/usr/bin/python3", "python3");
    let program = service.accelerated("/usr/bin/python3 -c").arg(format!("PORT = {port}\n{PROGRAM}"));
    program.run(60).ok();
}

#[test]
fn a_socket_that_was_not_handed_over_ends_with_its_process() {
    ends_with_its_process(&Service::embedded(), 7601);
}

#[test]
fn a_direct_socket_that_was_not_handed_over_ends_with_its_process() {
    ends_with_its_process(&Service::direct(), 7603);
}
