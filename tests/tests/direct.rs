//! Direct connections: programs of one host joined ring to ring. What they see is what the kernel would show them, and the stack
//! carries nothing of it.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::{Program, Service, bin, require_program, until};

/// Two processes and a connection between them: `peer(code)` runs code with the socket `s` and gives our end and the process.
const PEER: &str = r#"
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
    end = time.monotonic() + 10
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

fn run_direct(service: &Service, script: &str) -> String {
    service.accelerated("python3 -c").arg(script).run(120).ok()
}

/// The script's output over direct connections is the kernel's, and the stack has seen nothing.
fn as_the_kernel(script: &str) -> String {
    let script = format!("{PEER}{script}");
    let service = Service::direct();
    let ours = run_direct(&service, &script);
    assert_eq!(service.segments(), 0, "the stack carried something");
    let kernel = Program::line("python3 -c").arg(&script).run(120).ok();
    assert_eq!(ours, kernel, "what a direct connection does, and what the kernel does");
    ours
}

#[test]
fn everything_arrives_both_ways_at_once() {
    let script = r#"
size = 40_000_000
s, p = peer("""
import threading
sent = hashlib.sha256()
def send():
    block = os.urandom(1_000_000)
    for i in range(40):
        s.sendall(block); sent.update(block)
    s.shutdown(socket.SHUT_WR)
t = threading.Thread(target=send); t.start()
got = hashlib.sha256(); n = 0
while True:
    d = s.recv(100_000)
    if not d: break
    got.update(d); n += len(d)
t.join(); print(n, sent.hexdigest(), got.hexdigest())
""")
import threading
sent = hashlib.sha256(); block = os.urandom(size // 100)
def send():
    for i in range(100): s.sendall(block); sent.update(block)
    s.shutdown(socket.SHUT_WR)
t = threading.Thread(target=send); t.start()
got = hashlib.sha256(); n = 0
while True:
    d = s.recv(77_777)
    if not d: break
    got.update(d); n += len(d)
t.join()
theirs = p.communicate()[0].split()
print(n, theirs[0], got.hexdigest() == theirs[1], sent.hexdigest() == theirs[2])
"#;
    assert_eq!(as_the_kernel(script).trim(), "40000000 40000000 True True");
}

#[test]
fn a_half_closed_connection_goes_on_the_other_way() {
    as_the_kernel(
        r#"
s, p = peer("""
s.sendall(b'question'); s.shutdown(socket.SHUT_WR)
try: s.send(b'more')
except BrokenPipeError: print('broken')
print(s.recv(100)); print(s.recv(100)); s.close()
""")
print(everything(s)); print(events(s)); time.sleep(0.05)
s.sendall(b'answer'); s.close()
print(p.communicate()[0])
"#,
    );
}

#[test]
fn a_reset_is_seen_after_what_came_before_it() {
    as_the_kernel(
        r#"
RESET = "s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close(); print('gone')"
s, p = peer("s.sendall(b'last words')\nsys.stdin.readline()\n" + RESET)
print(s.recv(4)); p.communicate("go\n")
print(awaited(s, select.POLLERR)); print(outcome(s.recv, 100)); print(outcome(s.recv, 100)); print(outcome(s.recv, 100))
print(outcome(s.send, b"x"))
# What is left unread resets as well.
s, p = peer("s.recv(1)\ns.close(); print('closed')")
s.sendall(b"more than is read"); print(p.communicate()[0])
print(awaited(s, select.POLLERR)); print(outcome(s.recv, 100)); print(outcome(s.recv, 100))
# A blocked reader is woken by it.
s, p = peer("time.sleep(0.2)\n" + RESET)
print(outcome(s.recv, 100)); p.communicate()
"#,
    );
}

#[test]
fn sending_to_somebody_who_has_closed_ends_in_a_broken_pipe() {
    as_the_kernel(
        r#"
s, p = peer("s.sendall(b'bye'); s.close()")
p.wait(); print(events(s)); print(outcome(s.send, b"lost"))
print(awaited(s, select.POLLERR)); print(outcome(s.send, b"more")); print(outcome(s.recv, 10)); print(outcome(s.recv, 10))
"#,
    );
}

#[test]
fn a_peer_that_is_killed_is_seen_at_once() {
    as_the_kernel(
        r#"
def kill(p): p.kill(); p.wait()
# Asleep in recv, with and without something on the way, in the middle of sending, and in epoll.
s, p = peer("s.sendall(b'something'); time.sleep(100)")
print(s.recv(9)); kill(p); print(outcome(s.recv, 100)); print(events(s))
s, p = peer("s.sendall(b'something'); print('sent', flush=True); time.sleep(100)")
p.stdout.readline(); kill(p); print(everything(s))
s, p = peer("print('up', flush=True)\nwhile True: s.sendall(bytes(100000))")
p.stdout.readline(); s.recv(1_000_000); time.sleep(0.1); kill(p)
n = 0
while True:
    more = outcome(s.recv, 1_000_000)
    if not isinstance(more, bytes) or not more: break
    n += len(more)
print(more, n > 0)
# It had not read everything: a reset.
s, p = peer("print('up', flush=True); time.sleep(100)")
p.stdout.readline(); s.sendall(b"unread"); kill(p); print(outcome(s.recv, 1))
s, p = peer("print('up', flush=True); time.sleep(100)")
p.stdout.readline(); e = select.epoll(); e.register(s, select.EPOLLIN | select.EPOLLRDHUP)
import threading; threading.Timer(0.2, kill, [p]).start()
print([m for _, m in e.poll(20)])
"#,
    );
}

#[test]
fn a_sender_in_the_middle_of_it_is_told_that_the_reader_was_killed() {
    as_the_kernel(
        r#"
s, p = peer("print('up', flush=True); time.sleep(100)")
p.stdout.readline()
import threading; threading.Timer(0.3, p.kill).start()
def pump():
    while True: s.sendall(bytes(1_000_000))
print(outcome(pump)); p.wait(); print(outcome(s.send, b"x"), outcome(s.recv, 1))
"#,
    );
}

#[test]
fn urgent_bytes_keep_their_place() {
    as_the_kernel(
        r#"
s, p = peer("s.sendall(b'abc'); s.send(b'!', socket.MSG_OOB); s.sendall(b'def')\ns.recv(1)")
time.sleep(0.2); print(events(s)); print(s.recv(100)); print(s.sockatmark() if hasattr(s, "sockatmark") else "")
print(s.recv(1, socket.MSG_OOB)); print(outcome(s.recv, 1, socket.MSG_OOB)); print(s.recv(100)); s.close(); p.wait()
s, p = peer("sys.stdin.readline(); s.send(b'xy', socket.MSG_OOB)\ns.recv(1)")
s.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
print(events(s)); p.stdin.write("go\n"); p.stdin.flush(); print(awaited(s, select.POLLPRI)); print(s.recv(9)); print(s.recv(9)); s.close()
"#,
    );
}

#[test]
fn small_buffers_make_a_sender_wait_and_non_blocking_ones_say_so() {
    as_the_kernel(
        r#"
s, p = peer("""
s.setblocking(False); n = 0
while True:
    try: n += s.send(bytes(10000))
    except BlockingIOError: break
print('full', flush=True); sys.stdin.readline()
poll = select.poll(); poll.register(s, select.POLLOUT); print(len(poll.poll(20000)) == 1, flush=True)
s.setblocking(True); s.sendall(b'end'); s.shutdown(socket.SHUT_WR); sys.stdin.readline(); print(n)
""")
print(p.stdout.readline()); p.stdin.write("go\n"); p.stdin.flush(); time.sleep(0.2)
got = everything(s); print(got[-3:]); out = p.communicate("on\n")[0].split(); print(out[0], int(out[1]) + 3 == len(got))
"#,
    );
}

#[test]
fn what_a_socket_tells_of_itself_is_sensible() {
    let script = r#"
s, p = peer("s.sendall(b'12345'); s.recv(3)\nsys.stdin.readline(); s.shutdown(socket.SHUT_WR); sys.stdin.readline()")
s.sendall(b'abc'); s.recv(5, socket.MSG_WAITALL); time.sleep(0.1)
info = lambda: s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
i = info(); print(i[0], struct.unpack_from("I", i, 16)[0] > 500, struct.unpack_from("I", i, 68)[0] > 0)
print(struct.unpack_from("Q", i, 128)[0], struct.unpack_from("I", i, 24)[0])
import fcntl, termios
print(struct.unpack("i", fcntl.ioctl(s, termios.TIOCOUTQ, bytes(4)))[0])
p.stdin.write("go\n"); p.stdin.flush(); print(s.recv(1)); print(info()[0])
s.shutdown(socket.SHUT_WR); time.sleep(0.1); print(info()[0]); p.communicate("go\n")
"#;
    as_the_kernel(script);
}

#[test]
fn a_full_backlog_makes_connects_wait_until_there_is_room() {
    // More wait than there is room for, and all get through when the server begins to accept.
    let script = r#"
import threading
l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(2)
done = []
def connect(i):
    c = socket.create_connection(l.getsockname(), 60); c.sendall(b"%d" % i); done.append(c.recv(9))
threads = [threading.Thread(target=connect, args=[i]) for i in range(12)]
for t in threads: t.start()
time.sleep(0.5); print(len(done))
l.settimeout(60)
for t in threads:
    c, _ = l.accept(); c.sendall(c.recv(9)); c.close()
for t in threads: t.join()
print(sorted(map(int, done)))
l.close(); c = socket.socket(); print(outcome(c.connect, ("127.0.0.1", c.getsockname()[1] or 1)))
"#;
    let script = format!("{PEER}{script}");
    let out = run_direct(&Service::direct(), &script);
    assert_eq!(out, Program::line("python3 -c").arg(&script).run(120).ok());
}

#[test]
fn a_thousand_connections_in_one_epoll() {
    let script = r#"
import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
l = socket.create_server(("127.0.0.1", 0), backlog=2000)
code = """
import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
all = [s] + [socket.create_connection(s.getpeername()) for i in range(999)]
e = select.epoll(); by = {}
for i, c in enumerate(all):
    c.setblocking(False); e.register(c, select.EPOLLIN | (select.EPOLLET if i % 2 else 0)); by[c.fileno()] = c
seen = 0
while seen < 5000:
    for fd, m in e.poll(30):
        try:
            d = by[fd].recv(100)
        except BlockingIOError: continue
        by[fd].sendall(d); seen += len(d)
print('echoed', seen)
"""
first, p = peer(code, l)
conns = [first] + [l.accept()[0] for i in range(999)]
e = select.epoll()
for c in conns: e.register(c, select.EPOLLIN)
left = dict.fromkeys((c.fileno() for c in conns), 5); by = {c.fileno(): c for c in conns}
for c in conns: c.sendall(b".")
while any(left.values()):
    ready = e.poll(30)
    if not ready: print("stuck", sum(left.values())); break
    for fd, m in ready:
        by[fd].recv(100); left[fd] -= 1
        if left[fd]: by[fd].sendall(b".")
        else: e.unregister(fd)
print(p.communicate()[0], sum(left.values()))
"#;
    as_the_kernel(script);
}

#[test]
fn several_threads_wait_on_one_epoll() {
    as_the_kernel(
        r#"
import threading
s, p = peer("""
others = [socket.create_connection(s.getpeername()) for i in range(7)]
for n in range(200):
    for c in [s] + others: c.sendall(b'x')
    for c in [s] + others: assert c.recv(1) == b'y'
print('served')
""", l := socket.create_server(("127.0.0.1", 0)))
conns = [s] + [l.accept()[0] for i in range(7)]; by = {c.fileno(): c for c in conns}
e = select.epoll()
for c in conns: e.register(c, select.EPOLLIN | select.EPOLLONESHOT)
open_ = set(by); lock = threading.Lock()
def serve():
    while open_:
        for fd, m in e.poll(0.5, 1):
            d = by[fd].recv(1)
            if not d:
                with lock: open_.discard(fd)
                continue
            by[fd].sendall(b'y'); e.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)
threads = [threading.Thread(target=serve) for i in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(p.communicate()[0])
"#,
    );
}

#[test]
fn a_server_that_forks_for_each_connection() {
    as_the_kernel(
        r#"
import socketserver, threading
class Upper(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile: self.wfile.write(line.upper())
server = socketserver.ForkingTCPServer(("127.0.0.1", 0), Upper)
threading.Thread(target=server.serve_forever, daemon=True).start()
code = IMPORTS + """
for n in range(30):
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20); f = s.makefile('rwb')
    for i in range(5):
        f.write(b'line %d\\n' % i); f.flush(); assert f.readline() == b'LINE %d\\n' % i
    s.shutdown(socket.SHUT_WR); assert f.read() == b''; f.close(); s.close()
print('done')
"""
port = str(server.server_address[1])
clients = [subprocess.Popen([sys.executable, "-c", code, port], stdout=subprocess.PIPE, text=True) for i in range(3)]
for c in clients: print(c.communicate()[0], c.returncode)
server.shutdown()
"#,
    );
}

#[test]
fn a_forked_child_goes_on_with_its_parents_connection() {
    as_the_kernel(
        r#"
s, p = peer("s.sendall(b'1'); print(everything) if 0 else None\ngot=b''\nwhile True:\n d=s.recv(99)\n if not d: break\n got+=d\nprint(got)")
s.recv(1); sys.stdout.flush()
if (child := os.fork()) == 0:
    s.sendall(b"from the child"); os._exit(0)
os.waitpid(child, 0); s.sendall(b", then the parent"); s.close(); print(p.communicate()[0])
# A pair that comes into being after the fork, in the child.
l = socket.create_server(("127.0.0.1", 0)); sys.stdout.flush()
if (child := os.fork()) == 0:
    c, p = peer("s.sendall(b'hello'); print(s.recv(9))", l)
    e = select.epoll(); e.register(c, select.EPOLLIN); e.poll(20); print(c.recv(9)); c.sendall(b"child")
    print(p.communicate()[0]); sys.stdout.flush(); os._exit(0)
print(os.waitpid(child, 0)[1])
"#,
    );
}

#[test]
fn redis_and_its_benchmark_without_a_segment() {
    require_program("redis-server", "redis-server");
    let service = Service::direct();
    let mut server = service
        .accelerated("redis-server --port 7301 --save --appendonly no --daemonize no")
        .dir(&service.scratch.0)
        .start(service.scratch.path("redis.log"));
    server.wait_for("Ready to accept connections", 20);
    for line in ["-c 50", "-c 50 -P 16", "-c 5 -d 100000 -n 500"] {
        let line = format!("redis-benchmark -p 7301 -t get,set -n 10000 -q {line}");
        let out = service.accelerated(&line).run(60).ok();
        assert!(out.contains("GET:") && out.contains("SET:"), "{out}");
    }
    assert_eq!(service.segments(), 0, "the stack carried something");
    let mut client = service.accelerated("redis-cli -p 7301 blpop nothing 2").start(service.scratch.path("cli.log"));
    until("the listing shows it", 5, || {
        let listed = service.sockets();
        let all = listed["sockets"].as_array().expect("sockets");
        let direct = all.iter().filter(|s| s["direct"] == true && s["state"] == "ESTAB" && s["core"].is_null());
        direct.count() == 2
    });
    client.wait_end(10);
}

#[test]
fn with_direct_off_the_stack_carries_it() {
    let script = format!("{PEER}s, p = peer('s.sendall(bytes(1000000))'); print(len(everything(s)))");
    let (direct, stack) = (Service::direct(), Service::embedded());
    for service in [&direct, &stack] {
        assert_eq!(run_direct(service, &script).trim(), "1000000");
    }
    assert_eq!(direct.segments(), 0);
    assert!(stack.segments() > 10, "{}", stack.segments());
}

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
    assert!(service.segments() > 10, "a limit of bytes per second is kept by the stack");
}

/// A peer that writes over every word that it shares with us, again and again, while it also uses its connections.
const SCRIBBLER: &str = r#"
import ctypes, random, threading
line = [l for l in open('/proc/self/maps') if 'towpath-pair' in l][0]
base, end = (int(x, 16) for x in line.split()[0].split('-'))
words = (ctypes.c_uint32 * ((end - base) // 4)).from_address(base)
control = 2183168 // 4; r = random.Random(int(sys.argv[1])); stop = time.monotonic() + 3
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
rounds = 0; end = time.monotonic() + 4; message = os.urandom(50_000); honest.sendall(message); got = b""
while time.monotonic() < end:
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
print(rounds > 20, q.communicate()[0].strip()); sleeper.join(20); print(sleeper.is_alive())
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
    assert!(service.segments() > 0, "the stack has taken what there were no places for");
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
    end = time.monotonic() + 20
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
end = time.monotonic() + 20
while used() > 1 << 20 and time.monotonic() < end: time.sleep(0.05)
print(used() <= 1 << 20); c, q = peer("s.sendall(b'again')"); print(c.recv(9)); p.communicate("go\n")
"#;
    let script = format!("{PEER}SERVICE = {}\n{script}", service.running.pid());
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
                e.register(s, select.EPOLLIN); begin = time.monotonic()\nfor i in range(300):\n    s.sendall(b'x' * 64); e.poll(10)\n    \
                assert len(s.recv(100)) == 64\n    if i % 100 == 0: time.sleep(0.05)\nprint(os.getuid(), time.monotonic() - begin < 20)\n";
    std::fs::write(&client, text).expect("script");
    let line = "setpriv --reuid 23451 --regid 23451 --clear-groups /usr/bin/python3";
    let out = service.accelerated(line).arg(&client).run(60).ok();
    assert_eq!((out.trim(), service.segments()), ("23451 True", 0));
}
