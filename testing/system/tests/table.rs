//! A program's sockets are on several stacks, as the policy says.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Program, Scratch, Service, bin, require_root};

/// An address that both namespaces have: only the policy tells them apart.
const FAR: &str = "10.98.0.1";

/// Sends its word on each connection, and echoes until the peer closes.
const ECHO: &str = "
import socket, sys, threading
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2]))); l.listen(64)
print('listening', flush=True)
def serve(c):
    while True:
        data = c.recv(65536)
        if not data: break
        c.sendall(sys.argv[3].encode() + b':' + data)
    c.close()
while True:
    c, _ = l.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
";

/// A network namespace with [`FAR`] on its loopback device. It is deleted with its guard.
struct Namespace(String);

impl Namespace {
    fn new(what: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let namespace = Self(format!("table-{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        Program::line(&format!("ip netns add {}", namespace.0)).run(10).ok();
        Program::line(&format!("ip -n {} link set lo up", namespace.0)).run(10).ok();
        Program::line(&format!("ip -n {} addr add {FAR}/32 dev lo", namespace.0)).run(10).ok();
        namespace
    }
    fn inside(&self, program: Program) -> Program {
        program.under(&["ip", "netns", "exec", &self.0])
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        Program::line(&format!("ip netns del {}", self.0)).run(10);
    }
}

fn python(script: &str) -> Program {
    Program::new(&["/usr/bin/python3", "-c", script])
}

/// Two namespaces whose stacks are `blue` and `red`, and a service with the fast stack that names them.
struct Table {
    service: Service,
    _file: Scratch,
    blue: Namespace,
    red: Namespace,
}

impl Table {
    fn new(rules: &[&str]) -> Self {
        require_root();
        let (blue, red) = (Namespace::new("blue"), Namespace::new("red"));
        let rules: Vec<String> = rules.iter().map(|rule| format!("{rule:?}")).collect();
        let text = format!(
            "direct = false\npolicy = [{}]\n[stacks.blue]\nstack = \"kernel\"\nnetns = \"{}\"\n\
             [stacks.red]\nstack = \"kernel\"\nnetns = \"{}\"\n",
            rules.join(", "),
            blue.0,
            red.0
        );
        let (service, _file) = with_file(&text);
        Self { service, _file, blue, red }
    }

    /// Starts a server on the namespace's own kernel.
    fn server(&self, namespace: &Namespace, port: u16, word: &str) -> Running {
        let program = namespace.inside(python(ECHO).arg(FAR).arg(port.to_string()).arg(word));
        let mut server = program.start(self.service.scratch.path(&format!("{word}-{port}.log")));
        server.wait_for("listening", 30);
        server
    }

    fn accelerated(&self, script: &str) -> Program {
        on(&self.service, script)
    }

    fn ask(&self, command: &[&str]) -> Program {
        let mut program = Program::new(&[bin("towpath")]).env("TOWPATH_SOCKET", &self.service.socket);
        for word in command {
            program = program.arg(word);
        }
        program
    }

    /// The bytes that a kernel stack has sent; 0 if it does not run yet.
    fn sent(&self, stack: &str) -> u64 {
        let status = self.ask(&["status", "--json", "--stack", stack]).run(20);
        if status.err.contains("no Towpath service at") {
            return 0;
        }
        let status: Value = serde_json::from_str(&status.ok()).expect("JSON");
        status["flow_groups"][0]["stages"]["sent_bytes"].as_u64().expect("bytes")
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for stack in ["blue", "red"] {
            self.ask(&["stop", "--stack", stack]).run(20);
        }
    }
}

/// A service with a configuration file of its own.
fn with_file(text: &str) -> (Service, Scratch) {
    let scratch = Scratch::new("table");
    let file = scratch.path("towpath.toml");
    std::fs::write(&file, text).expect("configuration");
    (Service::start(|program| program.arg("--config").arg(file)), scratch)
}

/// A Python program that the service must accelerate.
fn on(service: &Service, script: &str) -> Program {
    let socket = service.socket.as_os_str();
    let (towpath, run) = (bin("towpath"), ["run", "--require", "--socket"].map(OsStr::new));
    let words: Vec<&OsStr> = [&[towpath.as_os_str()], &run[..], &[socket, OsStr::new("--")]].concat();
    python(script).under(&words)
}

#[test]
fn one_program_has_sockets_of_three_stacks_in_one_epoll() {
    let ports = [7701, 7702, 7703];
    let table =
        Table::new(&["stack blue connect to 10.98.0.0/16 port 7701", "stack red connect to 10.98.0.1 port 7702"]);
    let _servers = [table.server(&table.blue, ports[0], "blue"), table.server(&table.red, ports[1], "red")];
    // A decoy: the other namespace has a server at the same address and port.
    let _decoy = table.server(&table.red, ports[0], "decoy");
    let mut home = table
        .accelerated(ECHO)
        .arg("127.0.0.1")
        .arg(ports[2].to_string())
        .arg("home")
        .start(table.service.scratch.path("home.log"));
    home.wait_for("listening", 30);
    let (before, segments) = ([table.sent("blue"), table.sent("red")], table.service.segments());
    let script = format!(
        "
import select, socket
at = {{'blue': ('{FAR}', 7701), 'red': ('{FAR}', 7702), 'home': ('127.0.0.1', 7703)}}
socks = {{name: socket.create_connection(where) for name, where in at.items()}}
ep = select.epoll(); po = select.poll()
names = {{}}
for name, s in socks.items():
    s.setblocking(False); names[s.fileno()] = name
    ep.register(s, select.EPOLLIN); po.register(s, select.POLLIN)
def gather(wait, rounds):
    for round in range(rounds):
        left = {{name: (name + ':' + name * 200).encode() for name in socks}}
        for name, s in socks.items(): s.send((name * 200).encode())
        while left:
            ready = wait()
            assert ready, left
            for fd, _ in ready:
                name = names[fd]
                got = socks[name].recv(65536)
                assert left[name].startswith(got) and got, (name, got)
                left[name] = left[name][len(got):]
                if not left[name]: del left[name]
gather(lambda: ep.poll(60), 30)
gather(lambda: po.poll(60000), 10)
gather(lambda: [(fd, 0) for fd in select.select(list(names), [], [], 60)[0]], 10)
for s in socks.values(): s.shutdown(socket.SHUT_WR)
ended = set()
while len(ended) < 3:
    for fd, events in ep.poll(60):
        if socks[names[fd]].recv(10) == b'': ended.add(fd); ep.unregister(fd)
print('all three')
"
    );
    assert_eq!(table.accelerated(&script).run(60).ok().trim(), "all three");
    let after = [table.sent("blue"), table.sent("red")];
    assert!(after[0] - before[0] >= 50 * 800, "blue has sent {}", after[0] - before[0]);
    assert!(after[1] - before[1] >= 50 * 600, "red has sent {}", after[1] - before[1]);
    assert!(table.service.segments() - segments >= 50, "the home stack has carried its own");
    assert_eq!(table.service.status()["kernel"]["stack"], 2, "{}", table.service.status());
}

#[test]
fn a_listener_goes_where_its_rule_says_and_loopback_stays() {
    // A program's name is the path that its links lead to.
    let python3 = std::fs::canonicalize("/usr/bin/python3").expect("python3");
    let table = Table::new(&["stack blue listen port 7705", &format!("stack red all program {}", python3.display())]);
    let mut server = table
        .accelerated(ECHO)
        .arg("0.0.0.0")
        .arg("7705")
        .arg("served")
        .start(table.service.scratch.path("served.log"));
    server.wait_for("listening", 30);
    let script =
        format!("import socket; c = socket.create_connection(('{FAR}', 7705)); c.sendall(b'x'); print(c.recv(99))");
    assert_eq!(table.blue.inside(python(&script)).run(30).ok().trim(), "b'served:x'", "a program of blue's kernel");
    assert_ne!(table.red.inside(python(&script)).run(30).code, 0, "nobody listens in red");
    // A rule for all connections of the program does not apply to its loopback connections.
    let listen = "import socket; l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(); \
                  c = socket.create_connection(l.getsockname()); print(c.getpeername()[0])";
    let red = table.sent("red");
    let before = table.service.status()["kernel"]["stack"].as_u64();
    assert_eq!(table.accelerated(listen).run(30).ok().trim(), "127.0.0.1");
    assert_eq!((table.service.status()["kernel"]["stack"].as_u64(), table.sent("red")), (before, red));
    // The program's other connections go to red.
    let _server = table.server(&table.red, 7716, "red");
    let script =
        format!("import socket; c = socket.create_connection(('{FAR}', 7716)); c.sendall(b'x'); print(c.recv(99))");
    assert_eq!(table.accelerated(&script).run(30).ok().trim(), "b'red:x'");
    assert!(table.sent("red") > red);
}

#[test]
fn a_stack_asks_for_itself_whom_it_admits() {
    require_root();
    let text = "direct = false\nadmit = [\"uid:65534\"]\n\
                policy = [\"stack open connect to 127.0.0.2\", \"stack closed connect to 127.0.0.3\"]\n\
                [stacks.open]\nstack = \"kernel\"\n[stacks.closed]\nstack = \"kernel\"\nadmit = [\"uid:4242\"]\n";
    let (service, _file) = with_file(text);
    let mut server = python(ECHO).arg("0.0.0.0").arg("7717").arg("kernel").start(service.scratch.path("echo.log"));
    server.wait_for("listening", 30);
    let script = "
import errno, os, socket
for address in ('127.0.0.2', '127.0.0.3'):
    try:
        c = socket.create_connection((address, 7717)); c.sendall(b'x'); print(c.recv(99).decode())
    except OSError as e: print(errno.errorcode[e.errno])
";
    let said = |program: Program| program.run(60).ok().lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(said(on(&service, script).user(65_534)), ["kernel:x", "ENETUNREACH"]);
    assert_eq!(said(on(&service, script)), ["kernel:x", "kernel:x"], "root is always admitted");
    for stack in ["open", "closed"] {
        let towpath = Program::new(&[bin("towpath")]).env("TOWPATH_SOCKET", &service.socket);
        towpath.arg("stop").arg("--stack").arg(stack).run(30).ok();
    }
}

#[test]
fn children_and_executed_programs_go_on_with_the_sockets_of_another_stack() {
    let table = Table::new(&["stack blue connect to 10.98.0.0/16"]);
    let _server = table.server(&table.blue, 7706, "blue");
    let child = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.sendall(b'exec'); print(s.recv(99).decode())";
    let script = format!(
        "
import os, socket, subprocess, sys
s = socket.create_connection(('{FAR}', 7706))
if os.fork() == 0:
    s.sendall(b'fork'); print(s.recv(99).decode(), flush=True); os._exit(0)
os.wait()
s.set_inheritable(True)
print(subprocess.run([sys.executable, '-c', {child:?}, str(s.fileno())], close_fds=False, capture_output=True, text=True).stdout.strip())
a, b = socket.socketpair()
if os.fork() == 0:
    a.close(); s.close()
    _, fds, _, _ = socket.recv_fds(b, 10, 1)
    t = socket.socket(fileno=fds[0]); t.sendall(b'passed'); print(t.recv(99).decode(), flush=True); os._exit(0)
socket.send_fds(a, [b'x'], [s.fileno()])
os.wait()
s.sendall(b'again'); print(s.recv(99).decode())
"
    );
    let before = table.sent("blue");
    let said = table.accelerated(&script).run(60).ok();
    assert_eq!(said.lines().collect::<Vec<_>>(), ["blue:fork", "blue:exec", "blue:passed", "blue:again"]);
    assert!(table.sent("blue") - before >= 19);
}

#[test]
fn a_program_sleeps_until_a_socket_of_another_stack_has_something() {
    let table = Table::new(&["stack blue connect to 10.98.0.0/16 port 7711"]);
    let _servers = [table.server(&table.blue, 7711, "blue")];
    let script = format!(
        "
import os, select, socket, threading, time
def switches():
    text = open('/proc/thread-self/status').read()
    return int(text.split('voluntary_ctxt_switches:')[1].split()[0])
many = [socket.create_connection(('{FAR}', 7711)) for _ in range(100)]
ep = select.epoll(); po = select.poll(); edge = select.epoll(); copy = os.dup(many[7].fileno())
for s in many:
    ep.register(s, select.EPOLLIN); po.register(s, select.POLLIN); edge.register(s, select.EPOLLIN | select.EPOLLET)
ep.register(copy, select.EPOLLIN)
waits = {{'epoll': lambda t: ep.poll(t), 'edge': lambda t: edge.poll(t), 'poll': lambda t: po.poll(t * 1000),
          'select': lambda t: [(fd, 0) for fd in select.select([s.fileno() for s in many], [], [], t)[0]]}}
def check(who):
    for name, wait in waits.items():
        before = switches()
        assert wait(2) == [], name
        assert switches() - before < 500, (who, name, switches() - before)
        threading.Thread(target=lambda: (time.sleep(0.3), many[7].sendall(b'x'))).start()
        before, got = switches(), sorted(fd for fd, _ in wait(30))
        assert got == sorted({{many[7].fileno(), copy}} if name == 'epoll' else {{many[7].fileno()}}), (who, name, got)
        assert switches() - before < 250, (who, name, switches() - before)
        assert many[7].recv(99) == b'blue:x'
    print(who, flush=True)
check('parent')
if os.fork() == 0:
    check('child'); os._exit(0)
_, status = os.wait()
assert status == 0
ep.unregister(copy); os.close(copy)
for s in many[50:]: s.close()
more = [socket.create_connection(('{FAR}', 7711)) for _ in range(50)]
for s in more: ep.register(s, select.EPOLLIN); s.sendall(b'y')
left = {{s.fileno(): s for s in more}}
while left:
    for fd, _ in ep.poll(60): assert left.pop(fd).recv(99) == b'blue:y'
print('again')
"
    );
    let said = table.accelerated(&script).run(120).ok();
    assert_eq!(said.lines().collect::<Vec<_>>(), ["parent", "child", "again"]);
}

#[test]
fn a_stack_that_dies_ends_its_own_sockets_only_and_is_started_anew() {
    let table =
        Table::new(&["stack blue connect to 10.98.0.0/16 port 7712", "stack red connect to 10.98.0.0/16 port 7713"]);
    let _servers = [table.server(&table.blue, 7712, "blue"), table.server(&table.red, 7713, "red")];
    let script = format!(
        "
import errno, json, os, select, signal, socket, subprocess, sys, time
blue, red = socket.create_connection(('{FAR}', 7712)), socket.create_connection(('{FAR}', 7713))
ep = select.epoll(); ep.register(blue, select.EPOLLIN); ep.register(red, select.EPOLLIN)
assert ep.poll(0.2) == []
def kill():
    status = subprocess.run([sys.argv[1], 'status', '--json', '--stack', 'blue'], capture_output=True).stdout
    os.kill(json.loads(status)['pid'], signal.SIGKILL)
kill()
(fd, events), = ep.poll(60)
assert fd == blue.fileno() and events & (select.EPOLLHUP | select.EPOLLERR), (fd, events)
try: blue.recv(1); print('read')
except OSError as e: print('error')
red.sendall(b'x'); print(red.recv(99).decode())
ep.register(blue := socket.create_connection(('{FAR}', 7712)), select.EPOLLIN); blue.sendall(b'x')
(fd, _), = ep.poll(60); assert fd == blue.fileno(); print(blue.recv(99).decode())
# More often than a process may have stacks. Two seconds after its end a stack counts no more.
def opened():
    end = time.monotonic() + 60
    while True:
        try: return socket.create_connection(('{FAR}', 7712))
        except OSError as e:
            if e.errno != errno.ENETUNREACH or time.monotonic() > end: raise
            time.sleep(0.05)
for n in range(20):
    kill()
    assert ep.poll(60)[0][0] == blue.fileno()
    blue.close()
    ep.register(blue := opened(), select.EPOLLIN); blue.sendall(b'%d' % n)
    assert ep.poll(60) and blue.recv(99) == b'blue:%d' % n
print('all')
"
    );
    let said =
        table.accelerated(&script).arg(bin("towpath")).env("TOWPATH_SOCKET", &table.service.socket).run(120).ok();
    assert_eq!(said.lines().collect::<Vec<_>>(), ["error", "red:x", "blue:x", "all"]);
}

#[test]
fn a_second_kernel_has_what_its_rules_give_it_and_the_host_the_rest() {
    let text = "direct = false\npolicy = [\"stack guest listen on 127.0.0.2\", \"stack guest connect to 127.0.0.2\"]\n\
                [stacks.guest]\nstack = \"uml\"\n";
    let (service, _file) = with_file(text);
    let script = "
import select, socket
def pair(address):
    l = socket.socket(); l.bind((address, 0)); l.listen()
    c = socket.create_connection(l.getsockname()); a, _ = l.accept(); l.close()
    return c, a
ends = [pair('127.0.0.2'), pair('127.0.0.1')]
ep = select.epoll()
for c, _ in ends: ep.register(c, select.EPOLLIN)
for n in range(20):
    for _, a in ends: a.sendall(b'x' * 5000)
    left = {c.fileno(): (c, 5000) for c, _ in ends}
    while left:
        for fd, _ in ep.poll(60):
            c, count = left.pop(fd)
            count -= len(c.recv(count))
            if count: left[fd] = c, count
print('both')
";
    assert_eq!(on(&service, script).run(120).ok().trim(), "both");
    let towpath = || Program::new(&[bin("towpath")]).env("TOWPATH_SOCKET", &service.socket);
    let status = towpath().arg("status").arg("--json").arg("--stack").arg("guest").run(30).ok();
    let status: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["stack"], "uml");
    assert!(status["flow_groups"][0]["stages"]["sent_bytes"].as_u64().expect("bytes") >= 100_000, "{status}");
    assert!(service.segments() >= 20, "the service's own stack has carried the other program");
    assert_eq!(service.status()["kernel"]["stack"], 2);
    towpath().arg("stop").arg("--stack").arg("guest").run(30).ok();
}

#[test]
fn programs_run_on_a_stack_by_the_name_that_the_configuration_gives_it() {
    let table = Table::new(&[]);
    let _server = table.server(&table.red, 7707, "red");
    let script =
        format!("import socket; c = socket.create_connection(('{FAR}', 7707)); c.sendall(b'x'); print(c.recv(99))");
    let run =
        |stack: &str| table.ask(&["run", "--require", "--stack", stack, "--", "/usr/bin/python3", "-c"]).arg(&script);
    // Nobody has started the stack.
    assert_eq!(run("red").run(60).ok().trim(), "b'red:x'");
    let status = table.ask(&["status", "--stack", "red", "--json"]).run(20).ok();
    assert!(status.contains("\"stack\":\"kernel\"") && table.sent("red") > 0, "{status}");
    let unknown = run("green").run(20);
    assert!(unknown.err.contains("names blue, red"), "{}", unknown.err);
    let rule = table.ask(&["policy", "add", "stack green all"]).run(20);
    assert!(rule.err.contains("there is no stack \"green\""), "{}", rule.err);
    let tested = table.ask(&["policy", "add", "stack red connect port 99"]).run(20);
    assert_eq!(tested.code, 0, "{}", tested.err);
    let tested = table.ask(&["policy", "test", "connect user 0 to 10.9.9.9 port 99", "--json"]).run(20).ok();
    assert!(tested.contains("\"stack red\""), "{tested}");
}

#[test]
fn a_stack_that_cannot_be_had_ends_the_command_with_its_reason_and_no_other_network() {
    let text = "[stacks.lost]\nstack = \"kernel\"\nnetns = \"/nonexistent/netns\"\n\
                [stacks.elsewhere]\ninterface = \"absent7\"\n";
    let (service, _file) = with_file(text);
    let run = |stack: &str| {
        let run = Program::new(&[bin("towpath")]).arg("run").arg("--stack").arg(stack).arg("--").arg("echo").arg("ran");
        // Far below the two minutes that a kernel may take to boot.
        run.env("TOWPATH_SOCKET", &service.socket).run(30)
    };
    let cases = [
        ("lost", "/nonexistent/netns"),
        ("elsewhere", "there is no such interface"),
        ("none", "names elsewhere, lost"),
        ("kernel=none-of-this-name", "no Towpath service at"),
    ];
    for (stack, why) in cases {
        let ended = run(stack);
        assert_eq!((ended.code, ended.out.as_str()), (125, ""), "{stack}: {}", ended.err);
        assert!(ended.err.contains(why), "{stack}: {}", ended.err);
        assert!(!ended.err.contains("the kernel's TCP"), "{stack}: {}", ended.err);
    }
}

/// A server on the socket of another user's stack, which would admit anybody.
const IMPOSTOR: &str = "
import os, socket, sys
os.setuid(1)
l = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); l.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o777); l.listen()
c = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM); c.bind(sys.argv[1].replace('.sock', '.control.sock')); c.listen()
print('listening', flush=True)
while True:
    s, _ = l.accept()
    print('said', len(s.recv(99)), flush=True)
";

#[test]
fn what_a_stack_cannot_do_fails_and_no_other_stack_takes_it() {
    require_root();
    let place = std::env::temp_dir().join(format!("table-impostor-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("directory");
    std::os::unix::fs::chown(&place, Some(1), Some(1)).expect("chown");
    let (path, log) = (place.join("other.sock"), place.join("log"));
    let mut impostor = python(IMPOSTOR).arg(&path).start(&log);
    impostor.wait_for("listening", 30);
    let text = format!(
        "policy = [\"stack other connect to 127.0.0.1 port 7708\", \"stack absent connect to 127.0.0.1 port 7709\", \"stack other listen port 7719\"]\n\
         [stacks.other]\nsocket = {path:?}\n[stacks.absent]\nstack = \"kernel\"\nnetns = \"no-such-namespace\"\n"
    );
    let (service, _file) = with_file(&text);
    // The kernel could connect: a server listens there.
    let _kernels: Vec<Running> = [7708, 7709]
        .map(|port| {
            let mut server = python(ECHO)
                .arg("127.0.0.1")
                .arg(port.to_string())
                .arg("kernel")
                .start(service.scratch.path(&format!("kernel-{port}.log")));
            server.wait_for("listening", 30);
            server
        })
        .into();
    let script = "
import errno, socket
for port in (7708, 7709):
    try: socket.create_connection(('127.0.0.1', port), timeout=60); print('connected')
    except OSError as e: print(errno.errorcode[e.errno])
l = socket.socket(); l.bind(('0.0.0.0', 7719))
try: l.listen(); print('listens')
except OSError as e: print(errno.errorcode[e.errno])
";
    assert_eq!(
        on(&service, script).run(90).ok().lines().collect::<Vec<_>>(),
        ["ENETUNREACH", "ENETUNREACH", "EADDRNOTAVAIL"]
    );
    assert!(impostor.alive(), "the impostor listened all the time: {}", impostor.output());
    assert!(!impostor.output().contains("said 64"), "nobody has said Hello to it: {}", impostor.output());
    let report = service.scratch.path("report.json");
    let doctor = Program::new(&[bin("towpath")]).arg("doctor").arg("--socket").arg(&service.socket);
    let doctor = doctor.arg("--json").arg("-o").arg(&report).arg("--").arg("/usr/bin/python3").arg("-c").arg(script);
    doctor.run(90);
    let told = std::fs::read_to_string(&report).expect("the report");
    assert!(told.contains("{\"count\":3,\"hint\"") && told.contains("stack_unreachable"), "{told}");
    let _ = std::fs::remove_dir_all(&place);
}
