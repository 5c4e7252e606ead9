//! Descriptor passing: sockets that are inherited over `exec`, or passed in messages.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::{Program, Scratch, Service, bin, require_program, require_root};

const PYTHON: &str = "/usr/bin/python3 -c";

/// Runs the script on the kernel, over the stack (which must have carried so many segments), and over direct
/// connections. All print the same.
fn as_the_kernel(script: &str, segments_min: u64) {
    let script = format!("{BEGIN}{script}");
    let kernel = Program::line(PYTHON).arg(&script).run(60).ok();
    println!("{kernel}");
    let service = Service::embedded();
    let ours = service.accelerated(PYTHON).arg(&script).run(60).ok();
    assert_eq!(ours, kernel, "Towpath on the left, the kernel on the right");
    let moved = service.segments();
    assert!(moved >= segments_min, "the stack carried only {moved} segments, expected {segments_min}:\n{ours}");
    let direct = Service::direct().accelerated(PYTHON).arg(&script).run(60).ok();
    assert_eq!(direct, kernel, "a direct connection on the left, the kernel on the right");
    let run = Program::new(&[bin("towpath")]).arg("run").arg("--require").arg("--hook").arg("inject");
    let run = run.arg("--socket").arg(&service.socket).arg("--");
    let injected = PYTHON.split(' ').fold(run, Program::arg).arg(&script).run(60).ok();
    assert_eq!(injected, kernel, "injected programs on the left, the kernel on the right");
}

const BEGIN: &str = r#"
import os, select, signal, socket, subprocess, sys, time
signal.alarm(80)
PYTHON = "/usr/bin/python3"
def listening():
    listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen(50); listener.settimeout(60)
    return listener
def client(listener):
    s = socket.create_connection(listener.getsockname()); s.settimeout(60)
    return s
def pair(listener):
    c = client(listener); s = listener.accept()[0]; s.settimeout(60)
    return c, s
def all(s):
    got = b""
    while part := s.recv(65536): got += part
    return got
listener = listening()
"#;

#[test]
fn a_program_like_inetds_serves_the_connection_as_its_standard_input() {
    let script = r#"
c, s = pair(listener)
s.setblocking(True)
if os.fork() == 0:
    os.dup2(s.fileno(), 0); os.dup2(s.fileno(), 1)
    os.execv("/bin/cat", ["cat"])
s.close()
data = os.urandom(50000)
c.sendall(data); c.shutdown(socket.SHUT_WR)
print(all(c) == data, os.wait()[1])
"#;
    as_the_kernel(script, 4);
}

#[test]
fn a_socket_that_is_not_connected_works_in_another_users_program() {
    require_root();
    let script = r#"
import threading
child = '''
import os, socket, sys
u = socket.socket(fileno=int(sys.argv[1])); port = int(sys.argv[2])
data, fds, _, _ = socket.recv_fds(u, 1, 2)
for s in [socket.socket(fileno=fd) for fd in fds + [int(sys.argv[3]), int(sys.argv[4])]]:
    s.connect(("127.0.0.1", port)); s.sendall(b"from %d" % os.getuid())
    print(s.getsockname()[0], s.recv(100))
'''
def fresh(bound):
    s = socket.socket()
    if bound: s.bind(("127.0.0.1", 0))
    return s
passed, inherited = [[fresh(bound) for bound in (False, True)] for _ in range(2)]
ours, theirs = socket.socketpair()
def serve():
    for _ in range(4):
        s = listener.accept()[0]; s.settimeout(60); s.sendall(b"for " + s.recv(100)[5:]); s.close()
thread = threading.Thread(target=serve); thread.start()
socket.send_fds(ours, [b"x"], [s.fileno() for s in passed])
user = ["setpriv", "--reuid=23461", "--regid=23461", "--clear-groups"]
numbers = [s.fileno() for s in (theirs, *inherited)]
line = [*user, PYTHON, "-c", child, str(numbers[0]), str(listener.getsockname()[1]), *map(str, numbers[1:])]
print(subprocess.run(line, pass_fds=numbers, stdout=subprocess.PIPE).stdout)
thread.join()
"#;
    as_the_kernel(script, 0);
    // The other user is admitted, too.
    let service = Service::start(|program| program.arg("--admit").arg("all"));
    let out = service.accelerated(PYTHON).arg(format!("{BEGIN}{script}")).run(60).ok();
    assert_eq!(out.matches("127.0.0.1 b'for 23461'").count(), 4, "{out}");
}

#[test]
fn a_child_gets_the_connection_whatever_starts_it() {
    let script = r#"
child = "import socket; s = socket.socket(fileno=0); s.sendall(s.recv(100) + b', said ' + str(s.getpeername()[0]).encode())"
# By vfork, and by posix_spawn.
for close_fds in True, False:
    c, s = pair(listener)
    s.setblocking(True)
    c.sendall(b"this")
    done = subprocess.run([PYTHON, "-c", child], stdin=s, close_fds=close_fds)
    s.close()
    print(all(c), done.returncode)
c, s = pair(listener)
s.setblocking(True)
c.sendall(b"that")
actions = [(os.POSIX_SPAWN_DUP2, s.fileno(), 0)]
child = os.posix_spawn(PYTHON, [PYTHON, "-c", child], os.environ, file_actions=actions)
s.close()
print(all(c), os.waitpid(child, 0)[1])
"#;
    as_the_kernel(script, 12);
}

#[test]
fn a_child_of_a_shell_or_of_any_system_call_gets_the_connection() {
    let script = r#"
import ctypes, shlex
libc = ctypes.CDLL(None)
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
says = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.sendall(s.recv(100) + b', said the child')"
def strings(*texts): return (ctypes.c_char_p * (len(texts) + 1))(*[text.encode() for text in texts], None)
environment = strings(*[f"{name}={value}" for name, value in os.environ.items()])
def over(start, number):
    c, s = pair(listener)
    s.setblocking(True)
    os.dup2(s.fileno(), number, inheritable=True)
    s.close(); c.sendall(b"this")
    start(number); os.close(number)
    print(all(c))
def forked(execute):
    def start(number):
        if (child := os.fork()) == 0: execute(number); os._exit(9)
        print(os.waitpid(child, 0)[1])
    return start
def popen(command):
    libc.popen.restype = ctypes.c_void_p
    print(libc.pclose(ctypes.c_void_p(libc.popen(command.encode(), b"w"))))
python = lambda number: [PYTHON, "-c", says, str(number)]
arguments = lambda number: strings(*python(number))
directory, name = os.path.split(os.path.realpath(PYTHON))
folder = os.open(directory, os.O_RDONLY)
file = os.open(PYTHON, os.O_RDONLY)
unnamed = os.memfd_create("program", 0)
os.write(unnamed, open(PYTHON, "rb").read())
for number in 9, 300:
    over(lambda number: print(os.system(shlex.join(python(number)))), number)
    over(lambda number: popen(shlex.join(python(number))), number)
    over(lambda number: print(os.waitpid(os.posix_spawn(PYTHON, python(number), os.environ), 0)[1]), number)
    over(forked(lambda number: libc.execveat(AT_FDCWD, PYTHON.encode(), arguments(number), environment, 0)), number)
    over(forked(lambda number: libc.execveat(folder, name.encode(), arguments(number), environment, 0)), number)
    over(forked(lambda number: libc.execveat(file, b"", arguments(number), environment, AT_EMPTY_PATH)), number)
    over(forked(lambda number: libc.execveat(unnamed, b"", arguments(number), environment, AT_EMPTY_PATH)), number)
    over(forked(lambda number: libc.syscall(59, PYTHON.encode(), arguments(number), environment)), number)
    over(forked(lambda number: libc.syscall(322, folder, name.encode(), arguments(number), environment, 0)), number)
# A shell writes by itself.
over(lambda number: print(os.system(f"head -c 4 <&{number} >/dev/null; echo shell >&{number}")), 9)
over(lambda number: popen(f"head -c 4 <&{number} >&{number}"), 9)
print(libc.execveat(-5, b"nosuch", None, None, 0), libc.syscall(59, b"/nosuch", None, None), os.system("exit 3"))
"#;
    as_the_kernel(script, 40);
}

#[test]
fn a_new_image_serves_on_with_its_listener_and_its_connections() {
    let script = r#"
c, s = pair(listener)
c.sendall(b"before ")
waiting = client(listener)
waiting.sendall(b"waiting")
new = r'''
import os, select, socket, sys
listener, s = (socket.socket(fileno=int(fd)) for fd in sys.argv[1:])
s.settimeout(60); listener.settimeout(60)
print(s.recv(100), listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN), flush=True)
poll = select.epoll(); poll.register(listener, select.EPOLLIN)
print([event for fd, event in poll.poll(60)])
a, peer = listener.accept()
print(a.recv(100), peer[0]); a.sendall(b"welcome"); a.close()
s.sendall(b"after"); s.close()
b = listener.accept()[0]
b.sendall(b"again"); b.close()
'''
if (child := os.fork()) == 0:
    c.close(); waiting.close()
    for one in listener, s: one.set_inheritable(True)
    # A server may empty its environment.
    os.execve(PYTHON, [PYTHON, "-c", new, str(listener.fileno()), str(s.fileno())], {})
s.close()
print(all(waiting), all(c))
late = client(listener)
listener.close()
print(all(late), os.waitpid(child, 0)[1])
"#;
    as_the_kernel(script, 10);
}

#[test]
fn a_program_executes_itself_anew_in_its_place() {
    let script = r#"
late = r"""
import signal, socket, sys
signal.alarm(80)
listener, c, s, bound = (socket.socket(fileno=int(fd)) for fd in sys.argv[1:])
for one in listener, c, s, bound: one.settimeout(60)
s.sendall(b"after"); print(c.recv(10), s.getpeername() == c.getsockname())
c.close(); print(s.recv(10))
d = socket.create_connection(listener.getsockname()); print(listener.accept()[1] == d.getsockname())
# It was bound, and nothing else.
bound.listen(5); d = socket.create_connection(bound.getsockname()); print(bound.accept()[1] == d.getsockname())
"""
c, s = pair(listener)
bound = socket.socket(); bound.bind(("127.0.0.1", 0))
kept = [listener, c, s, bound]
for one in kept: one.set_inheritable(True)
sys.stdout.flush()
os.execv(PYTHON, [PYTHON, "-c", late] + [str(one.fileno()) for one in kept])
"#;
    as_the_kernel(script, 6);
}

#[test]
fn a_static_program_is_given_a_connection() {
    require_program("gcc", "gcc");
    let scratch = Scratch::new("static");
    let (source, program) = (scratch.path("upper.c"), scratch.path("upper"));
    let text = "#include <ctype.h>\n#include <unistd.h>\nint main(void) {\n    char c;\n    while (read(0, &c, 1) == 1) {\n\
        c = toupper(c);\n        if (write(0, &c, 1) != 1) return 1;\n    }\n    return 0;\n}\n";
    std::fs::write(&source, text).unwrap();
    Program::line("gcc -static -o").arg(&program).arg(&source).run(60).ok();
    let script = r#"
c, s = pair(listener)
s.setblocking(True)
child = subprocess.Popen([PROGRAM], stdin=s)
s.close()
c.sendall(b"text"); c.shutdown(socket.SHUT_WR)
print(all(c), child.wait())
"#;
    as_the_kernel(&format!("PROGRAM = {:?}\n{script}", program.display().to_string()), 4);
}

#[test]
fn both_the_old_and_the_new_program_accept() {
    let script = r#"
new = r'''
import socket, sys
listener = socket.socket(fileno=int(sys.argv[1])); listener.settimeout(60)
print("ready", flush=True)
sys.stdin.readline()
for n in range(5):
    a = listener.accept()[0]; a.sendall(b"new"); a.close()
'''
child = subprocess.Popen([PYTHON, "-c", new, str(listener.fileno())], pass_fds=[listener.fileno()],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(child.stdout.readline())
for n in range(5):
    c = client(listener); a = listener.accept()[0]; a.sendall(b"old"); a.close()
    print(all(c))
child.stdin.write("\n"); child.stdin.flush()
for n in range(5):
    print(all(client(listener)))
listener.close()
print(child.wait())
"#;
    as_the_kernel(script, 4);
}

#[test]
fn descriptors_in_messages_carry_on() {
    let script = r#"
a, b = socket.socketpair()
# To oneself.
c, s = pair(listener)
socket.send_fds(a, [b"x"], [c.fileno(), s.fileno()])
c.close(); s.close()
message, fds, flags, address = socket.recv_fds(b, 10, 5)
c, s = (socket.socket(fileno=fd) for fd in fds)
c.settimeout(60); s.settimeout(60)
c.sendall(b"to oneself"); print(s.recv(100), s.getpeername() == c.getsockname())
c.close(); print(s.recv(100)); s.close()
# To a child: a listener, and a connection that it has made; the child is gone before they are taken up.
if (child := os.fork()) == 0:
    other = listening()
    c, s = pair(other)
    socket.send_fds(a, [b"x"], [other.fileno(), c.fileno()])
    s.sendall(b"from the child")
    os._exit(0)
os.waitpid(child, 0)
time.sleep(0.2)
message, fds, flags, address = socket.recv_fds(b, 10, 5)
other, c = (socket.socket(fileno=fd) for fd in fds)
other.settimeout(60); c.settimeout(60)
print(all(c))
c, s = pair(other)
s.sendall(b"new"); print(c.recv(10))
# The last copy is in a message that nobody reads.
socket.send_fds(a, [b"x"], [s.fileno()])
s.close(); time.sleep(0.2)
c.setblocking(False)
try: print(c.recv(10))
except BlockingIOError: print("still open")
c.setblocking(True)
a.close(); b.close()
print(c.recv(10))
"#;
    as_the_kernel(script, 10);
}

#[test]
fn a_pool_of_processes_is_given_connections() {
    let script = r#"
worker = r'''
import array, os, select, socket, sys
channel = socket.socket(fileno=0)
while True:
    message, parts, flags, address = channel.recvmsg(10, socket.CMSG_SPACE(4))
    if not message: break
    fd = array.array("i", parts[0][2])[0]
    s = socket.socket(fileno=fd)
    poll = select.epoll(); poll.register(s, select.EPOLLIN); poll.poll(60)
    s.sendall(s.recv(100).upper()); s.close()
'''
workers = []
for n in range(2):
    ours, theirs = socket.socketpair()
    workers.append((ours, subprocess.Popen([PYTHON, "-c", worker], stdin=theirs)))
    theirs.close()
for n in range(10):
    c, s = pair(listener)
    socket.send_fds(workers[n % 2][0], [b"x"], [s.fileno()])
    s.close()
    c.sendall(b"text %d" % n)
    print(all(c))
for ours, process in workers:
    ours.close()
    print(process.wait())
"#;
    as_the_kernel(script, 4);
}

#[test]
fn programs_that_have_sockets_of_their_own_take_those_of_others() {
    let script = r#"
# The children are programs of their own: each has a region before anything is passed.
sender = r"""
import signal, socket, sys
signal.alarm(80)
channel = socket.socket(fileno=0)
listener = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(listener.getsockname()); s = listener.accept()[0]
c.sendall(b"hello ")
socket.send_fds(channel, [repr(listener.getsockname()).encode()], [listener.fileno(), s.fileno()])
listener.close(); s.close()
c.sendall(b"world")
answer = b""
while part := c.recv(100): answer += part
print("sender:", answer, flush=True)
"""
receiver = r"""
import os, select, signal, socket, sys, time
signal.alarm(80)
channel = socket.socket(fileno=0)
own = socket.create_server(("127.0.0.1", 0))
a = socket.create_connection(own.getsockname()); b = own.accept()[0]
poll = select.epoll(); poll.register(b, select.EPOLLIN)
address, fds, flags, peer = socket.recv_fds(channel, 100, 5)
listener, s = (socket.socket(fileno=fd) for fd in fds)
print(s.getsockname() == eval(address), listener.getsockname() == eval(address), b.getpeername() == a.getsockname())
got = s.recv(100)
while len(got) < 11: got += s.recv(100)
print(got)
def ready(timeout=60): return sorted(names[fd] for fd, event in poll.poll(timeout))
names = {b.fileno(): "own", s.fileno(): "other's", listener.fileno(): "other's listener"}
poll.register(s, select.EPOLLIN | select.EPOLLET); poll.register(listener, select.EPOLLIN)
print(ready(0.1))
a.sendall(b"x"); print(ready()); b.recv(1); print(ready(0.1))
c = socket.create_connection(eval(address))
print(ready())
d = listener.accept()[0]; print(ready(0.1), d.getpeername() == c.getsockname())
names[d.fileno()] = "accepted"; poll.register(d, select.EPOLLIN)
c.sendall(b"y"); print(ready(), [len(n) for n in select.select([a, b, d, s], [a, d], [], 20)])
print(d.recv(10)); c.close(); print(ready(), d.recv(10)); poll.unregister(d); d.close()
if os.fork() == 0:
    s.sendall(b"from the child, ")
    os._exit(0)
print(os.wait()[1])
s.sendall(b"from the receiver"); s.close(); poll.unregister(listener); listener.close()
# The last descriptor is gone; the stack may see that a moment later.
while True:
    try: socket.create_connection(eval(address)).close(); time.sleep(0.01)
    except ConnectionRefusedError as error: print(error); break
    except ConnectionResetError: pass
a.sendall(b"own"); print(ready(), b.recv(10))
"""
one, other = socket.socketpair()
first = subprocess.Popen([PYTHON, "-c", sender], stdin=one, stdout=subprocess.PIPE)
print(subprocess.run([PYTHON, "-c", receiver], stdin=other, stdout=subprocess.PIPE).stdout.decode())
print(first.communicate()[0].decode())
print(first.returncode)
"#;
    as_the_kernel(script, 10);
}

#[test]
fn pythons_multiprocessing_passes_sockets() {
    let script = r#"
import multiprocessing, runpy, tempfile
program = tempfile.NamedTemporaryFile("w", suffix=".py")
program.write("""
import multiprocessing, socket
def serve(connections):
    while s := connections.get():
        s.settimeout(60); s.sendall(s.recv(100).upper()); s.close()
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    connections = context.Queue()
    workers = [context.Process(target=serve, args=(connections,)) for n in range(2)]
    for worker in workers: worker.start()
    listener = socket.create_server(("127.0.0.1", 0))
    for n in range(4):
        c = socket.create_connection(listener.getsockname()); c.settimeout(60)
        s = listener.accept()[0]
        connections.put(s)
        c.sendall(b"text %d" % n)
        print(c.recv(100))
        s.close()
        print(c.recv(100))
    for worker in workers: connections.put(None)
    for worker in workers:
        worker.join()
        print(worker.exitcode)
""")
program.flush()
print(subprocess.run([PYTHON, program.name], stdout=subprocess.PIPE).stdout.decode())
"#;
    as_the_kernel(script, 4);
}

#[test]
fn a_socket_is_nothing_to_strangers_and_does_not_hang_them() {
    require_root();
    let script = r#"
child = r"""
import array, os, socket, sys
channel = socket.socket(fileno=0)
parts = channel.recvmsg(10, socket.CMSG_SPACE(4))[1]
s = socket.socket(fileno=array.array("i", parts[0][2])[0])
def outcome(call):
    try: return call()
    except OSError as error: return os.strerror(error.errno)
print(s.family.name, outcome(lambda: s.recv(100)), outcome(lambda: s.send(b"x")), flush=True)
s.close(); channel.recv(1)
"""
def pass_to(*command, **options):
    ours, theirs = socket.socketpair()
    c, s = pair(listener)
    c.sendall(b"secret")
    process = subprocess.Popen([*command, PYTHON, "-c", child], stdin=theirs, **options)
    socket.send_fds(ours, [b"x"], [s.fileno()])
    theirs.close()
    ours.close()
    print(process.wait(), s.recv(10), flush=True)
    s.sendall(b"still here"); print(c.recv(10), flush=True)
pass_to("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
pass_to(env={})
"#;
    let service = Service::start(|program| program.arg("--direct").arg("false").arg("--admit").arg("all"));
    let out = service.accelerated(PYTHON).arg(format!("{BEGIN}{script}")).run(60).ok();
    let lost = "AF_UNIX Resource temporarily unavailable Broken pipe\n0 b'secret'\nb'still here'\n";
    assert_eq!(out, [lost, lost].concat());
}
