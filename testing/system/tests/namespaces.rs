//! Network namespaces are boundaries: a socket belongs to the namespace in which it was made, and the service serves one.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc::channel;
use towpath_ring::command::{Command, NOT_OURS, not_ours, op};
use towpath_system_tests::namespace::SERVER;
use towpath_system_tests::{Attacker, Lab, Program, RawClient, Service, bin, require_root};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The service serves another namespace.
const ANOTHER: i32 = NOT_OURS + not_ours::NAMESPACE as i32;

/// `towpath run` and the way to hook, as words.
fn run_on(service: &Service, hook: &str) -> String {
    let (towpath, socket) = (bin("towpath"), service.socket.display());
    format!("{} run --require --hook {hook} --socket {socket} --", towpath.display())
}

/// Runs the script, which starts programs under the words of `RUN`: without them, and under `towpath run`, whose service
/// has `eth1` of the first namespace. All print the same.
fn as_the_kernel(script: &str) -> (Lab, Service) {
    let lab = Lab::new();
    let driver = |run: &str| {
        let program = Program::line("/usr/bin/python3 -c").arg(format!("{BEGIN}{script}"));
        program.arg(&lab.server).arg(&lab.client).arg(run).run(90).ok()
    };
    let kernel = driver("");
    println!("{kernel}");
    let service = Service::on_interface(&lab);
    for hook in ["preload", "inject"] {
        assert_eq!(driver(&run_on(&service, hook)), kernel, "{hook} on the left, the kernel on the right");
    }
    (lab, service)
}

const BEGIN: &str = r#"
import subprocess, sys
SERVED, OTHER, RUN = sys.argv[1], sys.argv[2], sys.argv[3].split()
PROGRAM = '''
import array, ctypes, errno, os, signal, socket, struct, sys, threading
signal.alarm(60)
libc, NEWNET = ctypes.CDLL(None, use_errno=True), 0x40000000
def enter(name):
    with open("/run/netns/" + name) as f: assert libc.setns(f.fileno(), NEWNET) == 0
def connected(s, address, port):
    s.settimeout(50)
    try: s.connect((address, port))
    except OSError as e: return errno.errorcode.get(e.errno, str(e))
    return s.getsockname()[0] + " " + s.recv(100).decode()
def to(address, port): return connected(socket.socket(), address, port)
def greets(listener, text, times):
    def body():
        for _ in range(times):
            s, peer = listener.accept()
            s.sendall(text.encode() + b" sees " + peer[0].encode()); s.close()
    thread = threading.Thread(target=body); thread.start()
    return thread
def say(*words): print(*words, flush=True)
def wait(): return sys.stdin.readline()
'''
def start(namespace, script, *arguments, under=()):
    line = ["ip", "netns", "exec", namespace, *under, *RUN, "/usr/bin/python3", "-c", PROGRAM + script, *arguments]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def ended(program):
    out = program.communicate("\n")[0]
    assert program.returncode == 0, (program.returncode, out)
    return out.strip()
def run(namespace, script, *arguments, under=()): return ended(start(namespace, script, *arguments, under=under))
"#;

#[test]
fn each_namespace_has_its_own_loopback_ports_and_addresses() {
    let script = r#"
SERVER = '''
here, everywhere = socket.create_server(("127.0.0.1", 7001)), socket.create_server(("0.0.0.0", 7002))
six = socket.create_server(("::1", 7002), family=socket.AF_INET6)
threads = [greets(here, sys.argv[1], 1), greets(everywhere, sys.argv[1], 3), greets(six, sys.argv[1], 1)]
say("ready")
[thread.join() for thread in threads]
'''
served, other = start(SERVED, SERVER, "served"), start(OTHER, SERVER, "other")
assert served.stdout.readline() == other.stdout.readline() == "ready\n"
CLIENT = '''
for address, port in ("127.0.0.1", 7001), ("127.0.0.1", 7002), ("10.77.0.1", 7002), ("10.77.0.2", 7002):
    say(address, port, to(address, port))
six = socket.socket(socket.AF_INET6); say(connected(six, "::1", 7002))
say(to("10.77.0.1", 7001), to("10.77.0.2", 7001))
'''
print(run(SERVED, CLIENT)); print(run(OTHER, CLIENT))
print(ended(served), ended(other))
"#;
    let (lab, service) = as_the_kernel(script);
    let status = service.status();
    assert!(service.segments() > 0, "what leaves the served namespace is accelerated: {status}");
    drop(lab);
}

#[test]
fn a_program_of_another_namespace_does_not_reach_what_only_the_served_one_has() {
    let script = r#"
listener = start(SERVED, '''
here = socket.create_server(("127.0.0.1", 7003)); say("ready"); wait()
''')
assert listener.stdout.readline() == "ready\n"
TRY = '''
say(to("127.0.0.1", 7003), to("10.77.0.1", 7003), to("10.77.0.9", 7003))
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try: s.bind(("10.77.0.1", 7003)); say("bound")
except OSError as e: say(errno.errorcode[e.errno])
s.bind(("127.0.0.1", 7003)); s.listen(); say("listens")
'''
print(run(OTHER, TRY))
# A container without an interface, and one that an ordinary user makes.
print(run(OTHER, TRY.replace("say(to", "os.system('ip link set lo up'); say(to", 1), under=("unshare", "--net")))
user = ("setpriv", "--reuid=23461", "--regid=23461", "--clear-groups", "unshare", "--user", "--map-root-user", "--net")
print(run(SERVED, TRY.replace("say(to", "os.system('ip link set lo up'); say(to", 1), under=user))
print(run(SERVED, "say(to('127.0.0.1', 7003), to('10.77.0.1', 7003))", under=("unshare", "--net")))
ended(listener)
"#;
    as_the_kernel(script);
}

#[test]
fn a_socket_belongs_to_the_namespace_in_which_it_was_made() {
    let script = r#"
SERVER = '''
l = socket.create_server(("0.0.0.0", 7004)); thread = greets(l, sys.argv[1], int(sys.argv[2])); say("ready"); thread.join()
'''
served, other = start(SERVED, SERVER, "served", "6"), start(OTHER, SERVER, "other", "6")
assert served.stdout.readline() == other.stdout.readline() == "ready\n"
MOVES = '''
home, away, begins = sys.argv[1:]
if begins == "first": to("127.0.0.1", 9)
socks = [socket.socket() for _ in range(2)]
bound = socket.socket(); bound.bind(("0.0.0.0", 0))
enter(away)
late = [socket.socket() for _ in range(2)]
late_bound = socket.socket(); late_bound.bind(("0.0.0.0", 0))
for s in socks: say("before:", connected(s, "127.0.0.1", 7004))
say("bound:", connected(bound, "127.0.0.1", 7004))
for s in late: say("after:", connected(s, "127.0.0.1", 7004))
say("bound:", connected(late_bound, "127.0.0.1", 7004))
'''
for begins in "first", "later": print(run(SERVED, MOVES, SERVED, OTHER, begins))
print(ended(served), ended(other))
# Listeners, in threads and in forked children.
LISTENS = '''
home, away = sys.argv[1:]
l = socket.create_server(("127.0.0.1", 7006))
assert libc.unshare(NEWNET) == 0; os.system("ip link set lo up")
l2 = socket.create_server(("127.0.0.1", 7006))
threads = [greets(l, "home", 1), greets(l2, "unshared", 1)]
say("unshared:", to("127.0.0.1", 7006))
result = []
def thread(): enter(home); result.append(to("127.0.0.1", 7006))
t = threading.Thread(target=thread); t.start(); t.join()
say("home:", result[0])
[t.join() for t in threads]
if os.fork() == 0: enter(away); say("child:", to("127.0.0.1", 7006)); os._exit(0)
os.wait()
# By raw system calls: clone with CLONE_NEWNET and SIGCHLD, and setns.
l3 = socket.create_server(("127.0.0.1", 7010)); thread = greets(l3, "unshared", 1)
if libc.syscall(56, NEWNET | 17, 0, 0, 0, 0) == 0:
    os.system("ip link set lo up"); say("cloned:", to("127.0.0.1", 7010))
    with open("/run/netns/" + away) as f: assert libc.syscall(308, f.fileno(), NEWNET) == 0
    say("away:", to("127.0.0.1", 7010)); os._exit(0)
os.wait()
say("parent:", to("127.0.0.1", 7007), to("127.0.0.1", 7010)); thread.join()
'''
print(run(SERVED, LISTENS, SERVED, OTHER)); print(run(OTHER, LISTENS, OTHER, SERVED))
"#;
    as_the_kernel(script);
}

#[test]
fn the_doctor_names_sockets_of_another_namespace() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let doctor = Program::new(&[bin("towpath")]).arg("doctor").arg("--socket").arg(&service.socket);
    let script = "import socket; l = socket.create_server(('127.0.0.1', 0)); socket.create_connection(l.getsockname())";
    let doctor = doctor.arg("--").arg("/usr/bin/python3").arg("-c").arg(script);
    let says = "of another network namespace";
    let other = lab.on_client(doctor.clone()).run(60).err;
    assert!(other.contains(says) && other.contains("give the service a stack for it"), "{other}");
    let served = lab.on_server(doctor).run(60).err;
    assert!(served.contains("1 connected directly") && !served.contains(says), "{served}");
}

/// On Linux the socket would connect in its own namespace. Here a fresh one has to take its place, which this thread cannot
/// make there.
#[test]
fn a_socket_whose_connect_has_failed_does_not_cross() {
    let lab = Lab::new();
    let script = r#"
other = start(OTHER, '''
l = socket.create_server(("127.0.0.1", 7009)); thread = greets(l, "other", 1); say("ready"); thread.join()
''')
assert other.stdout.readline() == "ready\n"
print(run(SERVED, '''
for far in range(2):
    s = socket.socket()
    say(connected(s, *(("127.0.0.1", 9), ("10.77.0.2", 9))[far]))
    say(connected(s, "127.0.0.1", 7009))
    enter(sys.argv[1])
    say(connected(s, "127.0.0.1", 7009))
    enter(sys.argv[2])
    say(connected(s, "127.0.0.1", 7009))
''', OTHER, SERVED))
print(run(OTHER, "say(to('127.0.0.1', 7009))"))
ended(other)
"#;
    let service = Service::on_interface(&lab);
    let program = Program::line("/usr/bin/python3 -c").arg(format!("{BEGIN}{script}"));
    let out = program.arg(&lab.server).arg(&lab.client).arg(run_on(&service, "preload")).run(90).ok();
    let told: Vec<_> = out.lines().collect();
    // On Linux the next call after an error that a program has read fails, too. The first socket is the kernel's from the
    // beginning, as nobody listens there under Towpath.
    let (refused, aborted) = ("ECONNREFUSED", "ECONNABORTED");
    let expected = [refused, aborted, refused, aborted, refused, aborted, aborted, refused];
    assert_eq!(told, [&expected[..], &["127.0.0.1 other sees 127.0.0.1"]].concat());
}

#[test]
fn a_socket_that_was_passed_stays_in_its_namespace() {
    let script = r#"
import os
path = f"/tmp/towpath-{os.getpid()}.sock"
SENDER = '''
u = socket.socket(socket.AF_UNIX); u.bind(sys.argv[1]); u.listen(); say("ready")
c = u.accept()[0]
fresh, bound, listener = socket.socket(), socket.socket(), socket.create_server(("127.0.0.1", 7008))
bound.bind(("127.0.0.1", 0))
connection = socket.create_connection(listener.getsockname()); peer = listener.accept()[0]
socket.send_fds(c, [b"x"], [s.fileno() for s in (fresh, bound, listener, connection)])
[s.close() for s in (fresh, bound, listener, connection)]
c.recv(1)
peer.sendall(b"to the peer"); say(peer.recv(100).decode()); peer.close()
say(to("127.0.0.1", 7008))
c.sendall(b"x")
'''
RECEIVER = '''
u = socket.socket(socket.AF_UNIX); u.connect(sys.argv[1])
data, fds, _, _ = socket.recv_fds(u, 1, 4)
fresh, bound, listener, connection = [socket.socket(fileno=fd) for fd in fds]
threads = [greets(listener, "passed", 3)]
u.sendall(b"x")
say(connection.recv(100).decode()); connection.sendall(b"from afar"); say(connection.recv(1))
u.recv(1)
say(connected(fresh, "127.0.0.1", 7008), connected(bound, "127.0.0.1", 7008), bound.getsockname()[0])
say(to("127.0.0.1", 7008))
[t.join() for t in threads]
'''
for of, receiver in (SERVED, OTHER), (OTHER, SERVED):
    sender = start(of, SENDER, path)
    assert sender.stdout.readline() == "ready\n"
    print(run(receiver, RECEIVER, path))
    print(ended(sender)); os.unlink(path)
"#;
    as_the_kernel(script);
}

/// The programs of tests that run side by side may have the same ports.
#[test]
fn a_test_has_a_namespace_whatever_runs_beside_it() {
    require_root();
    let beside = TcpListener::bind((HERE, 0)).unwrap();
    let at = beside.local_addr().unwrap();
    let service = Service::embedded();
    let serve = format!(
        "import socket\nl = socket.create_server(('127.0.0.1', {}))\nprint('ready', flush=True)\nl.accept()[0].send(b'ours')",
        at.port()
    );
    let mut server = service.accelerated("/usr/bin/python3 -c").arg(&serve).start(service.scratch.path("server"));
    server.wait_for("ready", 60);
    // A second service of the test is in the same namespace, and so are threads.
    let other = Service::embedded();
    let asked = std::thread::scope(|scope| {
        let ask = format!("import socket; print(socket.create_connection(('127.0.0.1', {})).recv(9))", at.port());
        let ask = || other.accelerated("/usr/bin/python3 -c").arg(ask).run(60).ok();
        scope.spawn(ask).join().unwrap()
    });
    assert_eq!(asked.trim(), "b'ours'");
    drop(beside);
}

fn in_namespace<T: Send>(name: &str, make: impl FnOnce() -> T + Send) -> T {
    let namespace = std::fs::File::open(format!("/run/netns/{name}")).expect("namespace");
    let enter = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("setns");
        make()
    };
    std::thread::scope(|scope| scope.spawn(enter).join().unwrap())
}

fn connect_to(addr: IpAddr, port: u16) -> Command {
    let IpAddr::V4(addr) = addr else { panic!("IPv4") };
    let any = Ipv4Addr::UNSPECIFIED.to_ipv6_mapped();
    let remote_addr = addr.to_ipv6_mapped();
    Command { op: op::CONNECT, local_addr: any, remote_addr, remote_port: port.into(), ..Command::default() }
}

/// A program that speaks the protocol itself gets nothing of another namespace, whatever it names and shows.
#[test]
fn a_hostile_client_of_another_namespace_gets_nothing() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let (listener, bound) = in_namespace(&lab.server, || {
        let bound =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&bound, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        (TcpListener::bind((HERE, 0)).unwrap(), bound)
    });
    let port_of = |socket: &OwnedFd| SocketAddr::try_from(rustix::net::getsockname(socket).unwrap()).unwrap().port();
    let (port, bound_port) = (listener.local_addr().unwrap().port(), port_of(&bound));
    let targets = [(HERE, port), (SERVER.parse().unwrap(), port), ([10, 77, 0, 9].into(), 9), (HERE, bound_port)];
    let gets_nothing = |raw: &mut RawClient| {
        for (addr, port) in targets {
            assert_eq!(raw.command(0, &connect_to(addr, port)), ANOTHER, "{addr}:{port}");
            let from = Command { local_port: bound_port.into(), ..connect_to(addr, port) };
            let from = Command { local_addr: Ipv4Addr::LOCALHOST.to_ipv6_mapped(), ..from };
            raw.show(0, raw.next_seq(0), false, &bound);
            assert_eq!(raw.command(0, &from), ANOTHER, "a socket that was passed");
        }
    };
    gets_nothing(&mut RawClient::new(&service));
    in_namespace(&lab.client, || gets_nothing(&mut RawClient::new(&service)));
    // Its own listening socket is its kernel's.
    let mut raw = RawClient::new(&service);
    let own = TcpListener::bind((HERE, 0)).unwrap();
    let port = own.local_addr().unwrap().port();
    let (local_addr, local_port) = (Ipv4Addr::LOCALHOST.to_ipv6_mapped(), port.into());
    let listen = Command { op: op::LISTEN, local_addr, local_port, backlog: 8, ..Command::default() };
    raw.show(0, raw.next_seq(0), true, &own);
    assert_eq!(raw.command(0, &listen), ANOTHER);
    // The end of a connection that somebody of the served namespace has made, and given away.
    let given = in_namespace(&lab.server, || {
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    });
    rustix::net::connect(&given, &SocketAddrUnix::new(&service.socket).unwrap()).unwrap();
    gets_nothing(&mut RawClient::on(given));
}

/// All processes of a client can write its region. So one of another namespace takes the namespace from all.
#[test]
fn a_client_with_a_process_of_another_namespace_has_none() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let (to_test, token) = channel();
    let (joined, wait) = channel();
    let (lab, service) = (&lab, &service);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            in_namespace(&lab.server, move || {
                let mut raw = RawClient::new(service);
                let nobody = connect_to(HERE, 9);
                let no_listener = NOT_OURS + not_ours::NO_LISTENER as i32;
                assert_eq!(raw.command(0, &nobody), no_listener);
                let sibling = Attacker::joined(service, raw.region.token()).expect("a process of the same namespace");
                assert_eq!(raw.command(0, &nobody), no_listener);
                to_test.send(raw.region.token()).unwrap();
                wait.recv().unwrap();
                assert_eq!(raw.command(0, &nobody), ANOTHER);
                drop(sibling);
            });
        });
        let other = Attacker::joined(service, token.recv().unwrap()).expect("one of another namespace");
        joined.send(()).unwrap();
        drop(other);
    });
}
