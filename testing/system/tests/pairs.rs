//! Pair regions, which two clients share for direct connections: the policy for them, hostile peers in them, their
//! number, and their memory.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::direct::{PEER, as_the_kernel, run_direct};
use towpath_system_tests::{Program, Service, bin, require_program};

#[test]
fn what_the_policy_forbids_is_not_joined_and_what_it_limits_the_stack_carries() {
    let service = Service::direct();
    let policy = |rule: &str| {
        let program = Program::new(&[bin("towpath")]).arg("policy").arg("--socket").arg(&service.socket).arg("add");
        rule.split_whitespace().fold(program, |program, word| program.arg(word)).run(20).ok();
    };
    policy("deny connect port 7311");
    policy("deny accept port 7312 with reset");
    policy("limit rate 100mbit");
    let script = format!(
        "{PEER}
for port in 7311, 7312:
    l = socket.create_server(('127.0.0.1', port)); c = socket.socket(); print(outcome(c.connect, ('127.0.0.1', port)))
s, p = peer('s.sendall(bytes(1000000))'); print(len(everything(s)))"
    );
    let out = run_direct(&service, &script);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[2], "1000000", "{out}");
    assert!(lines[..2].iter().all(|line| ["EACCES", "EPERM", "ECONNREFUSED"].contains(line)), "{out}");
    assert!(service.segments() > 10, "only the stack can keep a limit of bytes per second");
}

/// A peer that overwrites every word of the pair region again and again, while it also uses its connections.
const SCRIBBLER: &str = r#"
import ctypes, random, threading
line = [l for l in open('/proc/self/maps') if 'towpath-pair' in l][0]
base, end = (int(x, 16) for x in line.split()[0].split('-'))
words = (ctypes.c_uint32 * ((end - base) // 4)).from_address(base)
control = 2228224 // 4; r = random.Random(int(sys.argv[1])); stop = time.monotonic() + 3
nasty = [lambda: r.getrandbits(32), lambda: r.getrandbits(4), lambda: 0xffffffff - r.getrandbits(2), lambda: 0]
others = [socket.create_connection(s.getpeername()) for i in range(3)]
for c in others + [s]: c.setblocking(False)
while time.monotonic() < stop:
    for i in range(2000):
        at = r.randrange(1024, control) if i & 1 else r.choice([1024 + r.randrange(1024), 525312 + r.randrange(20480)])
        words[at] = nasty[r.randrange(4)]()
    for c in others + [s]:
        try: c.send(b'x' * 999); c.recv(5000)
        except OSError: pass
print('scribbled', flush=True); os._exit(0)
"#;

#[test]
fn a_peer_that_scribbles_over_the_pair_harms_only_what_it_shares() {
    let script = format!(
        "{PEER}
SCRIBBLER = {SCRIBBLER:?}
{}",
        r#"
import threading
honest, p = peer("""
while True:
    d = s.recv(70000)
    if not d: break
    s.sendall(d)
""")
l = socket.create_server(("127.0.0.1", 0), backlog=20)
bad, q = peer(SCRIBBLER, l)
conns = [bad] + [l.accept()[0] for i in range(3)]
e = select.epoll()
for c in conns: c.setblocking(False); e.register(c, select.EPOLLIN | select.EPOLLOUT)
e.register(honest, select.EPOLLIN)
def blocked():
    # A thread that sleeps on a connection with the scribbler comes back once that has ended.
    c = conns[3]; e.unregister(c); c.setblocking(True)
    while True:
        got = outcome(c.recv, 4096)
        if not isinstance(got, bytes) or not got: break
sleeper = threading.Thread(target=blocked); sleeper.start()
rounds = 0; begun = time.monotonic(); message = os.urandom(50_000); honest.sendall(message); got = b""
while time.monotonic() < begun + 4 or (rounds <= 20 and time.monotonic() < begun + 60):
    for fd, m in e.poll(0.5):
        if fd != honest.fileno():
            for c in conns[:3]:
                if c.fileno() == fd:
                    outcome(c.send, b"y" * 700); outcome(c.recv, 5000)
                    c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232); outcome(c.recv, 1, socket.MSG_OOB)
            continue
        got += honest.recv(65536)
        if len(got) == len(message):
            assert got == message, "garbled"
            rounds += 1; got = b""; message = os.urandom(50_000); honest.sendall(message)
print(rounds > 20, q.communicate()[0].strip()); sleeper.join(60); print(sleeper.is_alive())
for c in conns: c.close()
honest.close(); p.wait()
# Its place serves the next.
s, p = peer("s.sendall(b'after'); s.recv(1)"); print(s.recv(5)); s.close()
"#
    );
    let service = Service::direct();
    assert_eq!(run_direct(&service, &script).trim(), "True scribbled\nFalse\nb'after'");
    assert_eq!(service.segments(), 0, "the stack carried something");
    let log = service.running.output();
    assert!(!log.contains("panicked"), "{log}");
}

/// A peer that shows a position which cannot be, and says nothing.
const LIAR: &str = r#"
import ctypes, errno
line = [l for l in open('/proc/self/maps') if 'towpath-pair' in l][0]
words = (ctypes.c_uint32 * 2048).from_address(int(line.split('-')[0], 16))
s.sendall(b'hi'); s.recv(2)
# The tails of both sides; each side reads the other's.
words[1024] = words[1024 + 64] = 0x7fffffff
try: print(s.recv(1), flush=True)
except OSError as e: print(errno.errorcode[e.errno], flush=True)
"#;

#[test]
fn a_direct_peer_that_breaks_the_contract_ends_the_connection_for_both() {
    let script = format!(
        "{PEER}
s, p = peer({LIAR:?}); print(s.recv(2)); s.sendall(b'ok'); print(outcome(s.recv, 1)); print(p.communicate()[0].strip())
t, q = peer('s.sendall(bytes(5))'); print(len(everything(t)))"
    );
    let service = Service::direct();
    let out = run_direct(&service, &script);
    let lines: Vec<&str> = out.lines().collect();
    let [first, mut ends @ .., last] = lines.as_slice().try_into().map(|lines: [&str; 4]| lines).expect(&out);
    ends.sort_unstable();
    // The end that finds out first is told of an abort, the other of a reset.
    assert_eq!((first, ends, last), ("b'hi'", ["ECONNABORTED", "ECONNRESET"], "5"), "{out}");
}

#[test]
fn more_peers_than_there_are_places_for_pairs_are_served_all() {
    let script = r#"
code = "s.sendall(b'1')\nwhile s.recv(1): s.sendall(b'2')"
l = socket.create_server(("127.0.0.1", 0), backlog=20)
all = [peer(code, l) for i in range(70)]
for s, p in all: assert s.recv(1) == b"1"
for s, p in all: s.sendall(b"?")
for s, p in all: assert s.recv(1) == b"2"
for s, p in all[:10]: s.close(); p.wait()
# Places of those who have gone are used again.
new = [peer(code, l) for i in range(8)]
for s, p in new + all[10:]: s.sendall(b"?")
for s, p in new: assert s.recv(1) == b"1" and s.recv(1) == b"2"
for s, p in all[10:]: assert s.recv(1) == b"2"
for s, p in new + all[10:]: s.close(); p.wait()
print("served")
"#;
    let service = Service::direct();
    assert_eq!(run_direct(&service, &format!("{PEER}{script}")).trim(), "served");
    assert!(service.segments() > 0, "the stack carries the connections for which there was no pair");
}

#[test]
fn an_urgent_byte_signals_the_owner() {
    as_the_kernel(
        r#"
import fcntl
s, p = peer("sys.stdin.readline(); s.send(b'!', socket.MSG_OOB); s.recv(1); s.send(b'?', socket.MSG_OOB); s.recv(1)")
got = []
signal.signal(signal.SIGURG, lambda *_: got.append(outcome(s.recv, 1, socket.MSG_OOB)))
fcntl.fcntl(s, fcntl.F_SETOWN, os.getpid()); p.stdin.write("go\n"); p.stdin.flush()
def wait(n):
    end = time.monotonic() + 60
    while len(got) < n and time.monotonic() < end: time.sleep(0.01)
wait(1); s.send(b"x"); wait(2); print(got); s.send(b"x"); p.wait()
"#,
    );
}

#[test]
fn the_rings_of_an_idle_pair_give_their_memory_back() {
    let service = Service::direct();
    let script = r#"
l = socket.create_server(("127.0.0.1", 0), backlog=200)
s, p = peer("""
c = [s] + [socket.create_connection(s.getpeername()) for i in range(63)]
for s in c:
    s.setblocking(False)
    try:
        while True: s.send(bytes(100000))
    except BlockingIOError: pass
print('full', flush=True); sys.stdin.readline(); [s.close() for s in c]; print('closed', flush=True); sys.stdin.readline()
""", l)
conns = [s] + [l.accept()[0] for i in range(63)]
def used():
    of = lambda f: f"/proc/{SERVICE}/fd/{f}"
    return sum(os.stat(of(f)).st_blocks * 512 for f in os.listdir(of("")) if "towpath-pair" in outcome(os.readlink, of(f)))
p.stdout.readline(); print(used() >= 64 * 262144)
for c in conns: c.close()
p.stdin.write("go\n"); p.stdin.flush(); p.stdout.readline()
end = time.monotonic() + 60
while used() > 1 << 20 and time.monotonic() < end: time.sleep(0.05)
print(used() <= 1 << 20); c, q = peer("s.sendall(b'again')"); print(c.recv(9)); p.communicate("go\n")
"#;
    let script = format!("{PEER}SERVICE = {}\n{script}", service.running.worker());
    assert_eq!(run_direct(&service, &script).trim(), "True\nTrue\nb'again'");
}

#[test]
fn programs_of_two_users_are_joined() {
    towpath_system_tests::require_root();
    require_program("setpriv", "util-linux");
    let service = Service::start(|program| program.arg("--admit").arg("all"));
    let server = service.scratch.path("server.py");
    let echo = "import socket, select\nl = socket.create_server(('127.0.0.1', 7355)); print('up', flush=True)\n\
                c, _ = l.accept(); e = select.epoll(); e.register(c, select.EPOLLIN)\nwhile True:\n    e.poll()\n    \
                d = c.recv(100)\n    if not d: break\n    c.sendall(d)\n";
    std::fs::write(&server, echo).expect("script");
    let mut server = service.accelerated("/usr/bin/python3").arg(&server).start(service.scratch.path("server.log"));
    server.wait_for("up", 20);
    let client = service.scratch.path("client.py");
    let text = "import socket, select, os, time\ns = socket.create_connection(('127.0.0.1', 7355))\ne = select.epoll()\n\
                e.register(s, select.EPOLLIN)\nfor i in range(300):\n    s.sendall(b'x' * 64); assert e.poll(60)\n    \
                assert len(s.recv(100)) == 64\n    if i % 100 == 0: time.sleep(0.05)\nprint(os.getuid())\n";
    std::fs::write(&client, text).expect("script");
    let line = "setpriv --reuid 23451 --regid 23451 --clear-groups /usr/bin/python3";
    let out = service.accelerated(line).arg(&client).run(60).ok();
    assert_eq!((out.trim(), service.segments()), ("23451", 0));
}
