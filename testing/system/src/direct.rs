//! Scripts with two processes and a direct connection between them.

use crate::{Program, Service};

/// Two processes and a connection between them. `peer(code)` runs code with the socket `s`, and gives our end and the
/// process.
pub const PEER: &str = r#"
import socket, subprocess, sys, os, struct, time, select, signal, hashlib, errno
IMPORTS = "import socket,sys,os,struct,time,select,signal,hashlib\n"
def peer(code, listener=None):
    own = listener or socket.create_server(("127.0.0.1", 0))
    connect = "s=socket.create_connection(('127.0.0.1',int(sys.argv[1])))\n"
    p = subprocess.Popen([sys.executable, "-c", IMPORTS + connect + code, str(own.getsockname()[1])],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    conn, _ = own.accept()
    if not listener: own.close()
    return conn, p
def outcome(call, *arguments):
    try: return call(*arguments)
    except OSError as e: return errno.errorcode.get(e.errno, str(e))
def events(s, time=5000):
    p = select.poll(); p.register(s, select.POLLIN | select.POLLOUT | select.POLLRDHUP | select.POLLPRI)
    return [e for _, e in p.poll(time)]
def awaited(s, wanted):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = events(s)
        if found and found[0] & wanted: return found
        time.sleep(0.001)
    return "never"
def everything(s):
    got = b""
    while True:
        more = s.recv(65536)
        if not more: return got
        got += more
"#;

/// Runs the script over direct connections and returns its output.
pub fn run_direct(service: &Service, script: &str) -> String {
    service.accelerated("python3 -c").arg(script).run(120).ok()
}

/// The script prints over direct connections what it prints on the kernel, and the stack has carried nothing.
pub fn as_the_kernel(script: &str) -> String {
    let script = format!("{PEER}{script}");
    let service = Service::direct();
    let ours = run_direct(&service, &script);
    assert_eq!(service.segments(), 0, "the stack carried something");
    let kernel = Program::line("python3 -c").arg(&script).run(120).ok();
    assert_eq!(ours, kernel, "a direct connection on the left, the kernel on the right");
    ours
}
