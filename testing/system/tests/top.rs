//! `towpath top` on a terminal.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::{Program, Service, bin};

/// Runs a command on a terminal of 100 x 20, presses keys once these words have been shown, and prints all that came.
const TERMINAL: &str = "import fcntl, os, pty, select, struct, sys, termios, time
end = time.time() + 60
pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', 20, 100, 0, 0))
    os.execv(sys.argv[1], sys.argv[1:])
steps = [(b'echo-server', b'\\t'), (b'LOCAL', b'/program none\\r'), (b'none]', b'q')]
shown = last = b''
while True:
    if not select.select([fd], [], [], 20)[0]: sys.exit('nothing more: %r' % shown)
    if time.time() > end: sys.exit('not within a minute: %r %r' % (steps, shown))
    try: new = os.read(fd, 65536)
    except OSError: break
    if not new: break
    shown += new; last += new
    # What a cell keeps is not written again, so that words come in pieces.
    if steps and steps[0][0] in last:
        os.write(fd, steps.pop(0)[1]); last = b''
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(len(steps), code, repr(shown))";

#[test]
fn top_shows_programs_and_connections_and_ends_as_it_should() {
    let service = Service::embedded();
    let server = "import socket, ctypes
ctypes.CDLL(None).prctl(15, b'echo-server')
l = socket.socket(); l.bind(('127.0.0.1', 7302)); l.listen(); print('up', flush=True)
c, _ = l.accept()
while c.recv(1): pass";
    let mut server = service.accelerated("python3 -c").arg(server).start(service.scratch.path("server.log"));
    server.wait_for("up", 20);
    let client = "import socket, time
c = socket.create_connection(('127.0.0.1', 7302)); print('up', flush=True)
while True: c.sendall(b'x'); time.sleep(.01)";
    let mut client = service.accelerated("python3 -c").arg(client).start(service.scratch.path("client.log"));
    client.wait_for("up", 20);
    let on_terminal = Program::line("python3 -c").arg(TERMINAL).arg(bin("towpath")).arg("top");
    let out = on_terminal.arg("--socket").arg(&service.socket).env("TERM", "xterm").run(120).ok();
    assert!(out.starts_with("0 0 "), "{out}");
    // It leaves the terminal as it was.
    assert!(out.contains("\\x1b[?1049l"), "{out}");

    let top = |socket: &std::path::Path| Program::new(&[bin("towpath")]).arg("top").arg("--socket").arg(socket).run(30);
    let piped = top(&service.socket);
    assert!(piped.code == 1 && piped.err.contains("top needs a terminal"), "{}", piped.err);
}
