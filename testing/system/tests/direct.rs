//! Direct connections: programs of one host joined ring to ring. They behave as on the kernel, and the stack carries
//! nothing.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::direct::{PEER, as_the_kernel, run_direct};
use towpath_system_tests::{Program, Service, require_program, until};

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
print([m for _, m in e.poll(60)])
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
poll = select.poll(); poll.register(s, select.POLLOUT); print(len(poll.poll(60000)) == 1, flush=True)
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
    // More connections wait than the backlog has room for. All are accepted when the server begins to accept.
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
    for fd, m in e.poll(60):
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
    ready = e.poll(60)
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
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 60); f = s.makefile('rwb')
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
    e = select.epoll(); e.register(c, select.EPOLLIN); e.poll(60); print(c.recv(9)); c.sendall(b"child")
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
    // The client waits for ever, so the listing always finds it.
    let mut client = service.accelerated("redis-cli -p 7301 blpop nothing 0").start(service.scratch.path("cli.log"));
    until("the listing shows it", 60, || {
        assert!(client.alive(), "{}", client.output());
        let listed = service.sockets();
        let all = listed["sockets"].as_array().expect("sockets");
        let direct = all.iter().filter(|s| s["direct"] == true && s["state"] == "ESTAB" && s["flow_group"].is_null());
        direct.count() == 2
    });
    client.stop();
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
