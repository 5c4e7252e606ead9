//! Calls on sockets end to end, as python3 sees them under Towpath. Where it matters, the kernel must answer the same.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::{Program, Service};

/// Runs the script under Towpath. At least `segments_min` segments must have gone through the stack.
fn carried(service: &Service, script: &str, segments_min: u64) -> String {
    let before = service.segments();
    let out = service.accelerated("python3 -c").arg(script).run(60).ok();
    let moved = service.segments() - before;
    assert!(moved >= segments_min, "the stack carried only {moved} segments, expected {segments_min}:\n{out}");
    out
}

/// [`carried`], and on the kernel too, which must print the same.
fn as_the_kernel(script: &str, segments_min: u64) {
    let service = Service::embedded();
    let kernel = Program::line("python3 -c").arg(script).run(60).ok();
    let ours = carried(&service, script, segments_min);
    assert_eq!(ours, kernel, "Towpath on the left, the kernel on the right");
    let direct = Service::direct();
    let ours = direct.accelerated("python3 -c").arg(script).run(60).ok();
    assert_eq!(ours, kernel, "a direct connection on the left, the kernel on the right");
}

const PAIR: &str = r#"
import socket, select, struct, fcntl, termios, time, os, signal
def pair(family=socket.AF_INET, address="127.0.0.1", prepare=lambda s: None):
    listener = socket.socket(family)
    prepare(listener)
    listener.bind((address, 0)); listener.listen(5)
    ours = socket.create_connection(listener.getsockname()[:2])
    theirs, peer = listener.accept()
    assert peer == ours.getsockname() == theirs.getpeername(), (peer, ours.getsockname())
    return listener, ours, theirs
def arrived(s):
    # All that was sent is acknowledged.
    end = time.monotonic() + 60
    while struct.unpack("i", fcntl.ioctl(s, termios.TIOCOUTQ, bytes(4)))[0]: assert time.monotonic() < end; time.sleep(0.01)
    time.sleep(0.01)
"#;

#[test]
fn ipv6_client_and_server() {
    let script = r#"
listener, ours, theirs = pair(socket.AF_INET6, "::1")
for s in (listener, ours, theirs):
    s.settimeout(60)
    print(s.family.name, s.getsockname()[0], s.getsockname()[2:])
assert ours.getpeername() == listener.getsockname()
data = os.urandom(100000)
ours.sendall(data[:50000]); theirs.sendall(data[50000:])
def all(s):
    got = b""
    while len(got) < 50000: got += s.recv(65536)
    return got
print(all(theirs) == data[:50000], all(ours) == data[50000:])
ours.close(); print(theirs.recv(1))
"#;
    as_the_kernel(&format!("{PAIR}{script}"), 5);
}

#[test]
fn a_listener_of_both_families_and_one_of_ipv6_alone() {
    let script = r#"
listener = socket.socket(socket.AF_INET6); listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
listener.bind(("::", 0)); listener.listen(5); port = listener.getsockname()[1]
for family, address in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::ffff:127.0.0.1"), (socket.AF_INET6, "::"):
    c = socket.socket(family); c.settimeout(60); c.connect((address, port))
    a, peer = listener.accept(); a.settimeout(60)
    print(peer[0], a.getsockname()[0], c.getpeername()[0], c.getsockname()[0], peer[1] == c.getsockname()[1])
    c.sendall(b"ping"); print(a.recv(10)); a.sendall(b"pong"); print(c.recv(10))
    c.close(); a.close()
listener.close()
only = socket.socket(socket.AF_INET6); only.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
only.bind(("::", 0)); only.listen(5); port = only.getsockname()[1]
for family, address in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"):
    c = socket.socket(family); c.settimeout(60)
    try: c.connect((address, port)); print("connected", c.getpeername()[0])
    except OSError as e: print(e.errno)
"#;
    as_the_kernel(&format!("{PAIR}{script}"), 20);
}

#[test]
fn urgent_data() {
    let script = r#"
MARK = 0x8905
def look(s, what):
    bits = 0
    p = select.poll(); p.register(s, select.POLLIN | select.POLLPRI)
    for _, bits in p.poll(0): pass
    unread = struct.unpack("i", fcntl.ioctl(s, termios.FIONREAD, b"\0\0\0\0"))[0]
    mark = struct.unpack("i", fcntl.ioctl(s, MARK, b"\0\0\0\0"))[0]
    print(what, bits, unread, mark)
def recv(s, n, flags=0):
    try: print(s.recv(n, flags | socket.MSG_DONTWAIT))
    except OSError as e: print(e.errno)
    look(s, "then")
for inline in 0, 1:
    for step in range(50):
        listener, ours, theirs = pair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, inline)
        ours.sendall(b"abc"); ours.send(b"de!", socket.MSG_OOB)
        p = select.poll(); p.register(theirs, select.POLLPRI)
        if inline == 0: assert p.poll(60000), "no POLLPRI"
        ours.sendall(b"fgh")
        end = time.monotonic() + 60
        while len(theirs.recv(100, socket.MSG_PEEK)) < 5 and time.monotonic() < end: pass
        arrived(ours)
        if step: ours.close(); theirs.close(); continue
        look(theirs, "before")
        recv(theirs, 2); recv(theirs, 100)
        recv(theirs, 1, socket.MSG_OOB | socket.MSG_PEEK); recv(theirs, 1, socket.MSG_OOB); recv(theirs, 1, socket.MSG_OOB)
        recv(theirs, 100); recv(theirs, 1)
        theirs.send(b"?", socket.MSG_OOB)
        p = select.poll(); p.register(ours, select.POLLPRI); assert p.poll(60000)
        recv(ours, 1, socket.MSG_OOB); recv(ours, 10)
"#;
    as_the_kernel(&format!("{PAIR}{script}"), 200);
}

#[test]
fn options_before_and_after_connecting() {
    let script = r#"
T = socket.IPPROTO_TCP
SYNCNT, LINGER2, DEFER, USER, QUICK = 7, 8, 9, 18, 12
values = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (T, socket.TCP_KEEPIDLE, 11), (T, socket.TCP_KEEPINTVL, 3), (T, socket.TCP_KEEPCNT, 4),
          (T, USER, 7000), (T, SYNCNT, 3), (T, LINGER2, 5), (T, DEFER, 2), (socket.IPPROTO_IP, socket.IP_TOS, 0x28), (socket.IPPROTO_IP, socket.IP_TTL, 33)]
def prepare(s):
    for level, name, value in values: s.setsockopt(level, name, value)
    s.setsockopt(T, DEFER, 0)
listener, ours, theirs = pair(prepare=prepare)
show = lambda s: [s.getsockopt(level, name) for level, name, _ in values if name != DEFER]
print(show(listener)); print(show(theirs))
prepare(ours); print(show(ours))
for level, name, value in values:
    for wrong in -7, 0, 100000:
        try: ours.setsockopt(level, name, wrong); print(name, ours.getsockopt(level, name))
        except OSError as e: print(name, e.errno)
ours.setsockopt(T, socket.TCP_CONGESTION, b"reno"); print(ours.getsockopt(T, socket.TCP_CONGESTION, 16).rstrip(b"\0"))
try: ours.setsockopt(T, socket.TCP_CONGESTION, b"nosuch")
except OSError as e: print(e.errno)
ours.sendall(b"x" * 1000); print(len(theirs.recv(1000, socket.MSG_WAITALL)))
"#;
    as_the_kernel(&format!("{PAIR}{script}"), 3);
}

#[test]
fn tcp_info_tells_what_has_happened() {
    let script = r#"
listener, ours, theirs = pair()
data = b"x" * 3000000
import threading
def read():
    got = 0
    while got < len(data): got += len(theirs.recv(1 << 20))
t = threading.Thread(target=read); t.start(); ours.sendall(data); t.join()
time.sleep(0.5)
info = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 300)
assert len(info) == 280, ("Linux 6.18", len(info))
word = lambda at: struct.unpack_from("I", info, at)[0]
long = lambda at: struct.unpack_from("Q", info, at)[0]
assert info[0] == 1, "established"
assert info[5] & 5 == 5, "timestamps and window scaling"
mss, unacked, pmtu, rtt, cwnd = word(16), word(24), word(60), word(68), word(80)
assert 500 < mss < 65536 and mss < pmtu <= 65575, (mss, pmtu)
assert unacked == 0 and 0 < rtt < 1000000 and 1 <= cwnd < 100000, (unacked, rtt, cwnd)
assert len(data) <= long(120) <= len(data) + 1, ("acknowledged, with the SYN", long(120))
assert info[6] & 15 == info[6] >> 4 > 0, "both have rings of the same size"
assert long(160) > 0 and 0 < long(168) < 10**7, ("delivery rate, busy time", long(160), long(168))
assert 400 < word(44) < 10000 and word(88) == 3, ("ms since the last segment, reordering", word(44), word(88))
assert word(136) >= len(data) // mss, ("segments out", word(136))
assert long(200) - long(208) == len(data), ("sent, and sent again", long(200), long(208))
assert len(data) // mss <= word(156) <= word(136) and word(192) <= word(156), ("segments of data", word(156), word(192))
other = theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
assert struct.unpack_from("Q", other, 128)[0] == len(data)
assert 400 < struct.unpack_from("I", other, 52)[0] < 10000, "ms since the last data"
assert struct.unpack_from("I", other, 20)[0] > 536, "the receive MSS is what has come"
print("true")
"#;
    let service = Service::embedded();
    assert_eq!(carried(&service, &format!("{PAIR}{script}"), 20).trim(), "true");
}

#[test]
fn sigurg_goes_to_the_owner() {
    let script = r#"
got = []
listener, ours, theirs = pair()
def urgent(*_):
    try: got.append(theirs.recv(1, socket.MSG_OOB))
    except OSError as e: pass
signal.signal(signal.SIGURG, urgent)
ours.sendall(b"quiet"); ours.send(b"a", socket.MSG_OOB); arrived(ours); time.sleep(0.1); print(got); theirs.recv(1, socket.MSG_OOB)
fcntl.fcntl(theirs, fcntl.F_SETOWN, os.getpid()); print(fcntl.fcntl(theirs, fcntl.F_GETOWN) == os.getpid())
ours.sendall(b"quiet"); arrived(ours); time.sleep(0.1); print(got)
for byte in b"b", b"c":
    n = len(got); ours.send(byte, socket.MSG_OOB); end = time.monotonic() + 60
    while len(got) == n and time.monotonic() < end: time.sleep(0.01)
    print(got)
# An owner that was named before the connection.
early = socket.socket(); fcntl.fcntl(early, fcntl.F_SETOWN, os.getpid())
early.connect(listener.getsockname()); theirs = early; peer, _ = listener.accept()
peer.send(b"d", socket.MSG_OOB); end = time.monotonic() + 60
while len(got) < 3 and time.monotonic() < end: time.sleep(0.01)
print(got)
"#;
    as_the_kernel(&format!("{PAIR}{script}"), 10);
}

#[test]
fn a_program_that_leaves_its_root_before_its_first_socket_is_carried() {
    let script = r#"
import tempfile
socket.getaddrinfo("127.0.0.1", 1)
with tempfile.TemporaryDirectory() as empty:
    root = os.open("/", os.O_RDONLY)
    os.chroot(empty); os.chdir("/")
    print(os.listdir("/"))
    listener, ours, theirs = pair()
    ours.sendall(b"ping"); print(theirs.recv(10)); theirs.sendall(b"pong"); print(ours.recv(10))
    if os.fork() == 0:
        poll = select.epoll(); poll.register(theirs, select.EPOLLIN)
        print(len(poll.poll(60)), theirs.recv(10), flush=True); os._exit(0)
    ours.sendall(b"child"); print(os.wait()[1])
    os.fchdir(root); os.chroot(".")
"#;
    as_the_kernel(&format!("{PAIR}{script}"), 3);
}
