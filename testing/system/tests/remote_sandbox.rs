//! Each host of `towpath kernel-stack --listen` over TCP has a process of its own, in a sandbox from its first byte.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::Duration;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Program, Scratch, Service, bin, own_network, require_program, until};

/// `CAP_NET_BIND_SERVICE`, `CAP_NET_ADMIN` and `CAP_NET_RAW`.
const OF_SOCKETS: u64 = 1 << 10 | 1 << 12 | 1 << 13;

fn serve(scratch: &Scratch, complete: impl FnOnce(Program) -> Program) -> (Running, String) {
    own_network();
    let token = scratch.path("token");
    Program::new(&[bin("towpath")]).arg("kernel-stack").arg("--make-token").arg(&token).run(20).ok();
    let program = Program::new(&[bin("towpath")]).arg("kernel-stack").arg("--listen").arg("tcp:127.0.0.1:0");
    let mut running = complete(program.arg("--token").arg(&token)).start(scratch.path("server.log"));
    running.wait_for("serving", 20);
    let log = running.output();
    let port = log.split("address=tcp:127.0.0.1:").nth(1).expect("its port in the log");
    let port = port.chars().take_while(char::is_ascii_digit).collect();
    (running, port)
}

/// The processes that a process has started.
fn children(of: u32) -> Vec<u32> {
    let all = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    all.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// A line of a thread's status; empty if it has ended.
fn of_status(thread: &str, name: &str) -> String {
    let status = std::fs::read_to_string(format!("{thread}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// Is every thread of the process in a sandbox?
fn is_confined(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let threads: Vec<String> = threads.map(|entry| entry.path().display().to_string()).collect();
    !threads.is_empty()
        && threads.iter().all(|thread| {
            let capabilities =
                ["CapEff", "CapPrm", "CapInh", "CapAmb"].map(|name| u64::from_str_radix(&of_status(thread, name), 16));
            of_status(thread, "Seccomp") == "2"
                && of_status(thread, "NoNewPrivs") == "1"
                && capabilities.iter().all(|set| set.as_ref().is_ok_and(|set| set & !OF_SOCKETS == 0))
        })
}

fn kill(process: u32) {
    let process = rustix::process::Pid::from_raw(process.cast_signed()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}

const CONVERSATION: &str = "import socket
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen()
pairs = []
for n in range(12):
    c = socket.create_connection(l.getsockname()); pairs.append((c, l.accept()[0]))
for n in range(50):
    for a, c in pairs: a.sendall(b'much' * 1000)
    for a, c in pairs:
        got = 0
        while got < 4000: got += len(c.recv(4000))
print('whole')";

#[test]
fn the_process_of_a_strange_host_is_confined_and_that_of_a_known_one_serves() {
    require_program("python3", "python3");
    let scratch = Scratch::new("remote-sandbox");
    let (server, port) = serve(&scratch, |program| program);
    let process = server.pid().cast_unsigned();
    assert!(children(process).is_empty(), "nobody has connected");
    let mut silent = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    until(
        "a stranger's process is confined",
        20,
        || matches!(children(process)[..], [stranger] if is_confined(stranger)),
    );
    let strangers = children(process);
    let address = format!("tcp:127.0.0.1:{port}");
    let service = Service::start(|program| {
        let program = program.arg("--stack").arg("remote").arg("--remote").arg(&address);
        program.arg("--token").arg(scratch.path("token"))
    });
    let out = service.accelerated("/usr/bin/python3 -c").arg(CONVERSATION).run(60).ok();
    assert_eq!(out.trim(), "whole");
    let known: Vec<u32> = children(process).into_iter().filter(|pid| !strangers.contains(pid)).collect();
    assert!(matches!(known[..], [known] if is_confined(known)), "{known:?}");
    // Its rings were made before: none is made in the sandbox, and nothing else is refused.
    let rings = std::fs::read_dir(format!("/proc/{}/fd", known[0])).unwrap().flatten();
    let rings = rings.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.ends_with("anon_inode:[io_uring]")));
    assert_eq!(rings.count(), 1, "a worker has one");
    let log = server.output();
    assert!(log.contains("a service has connected") && log.contains("seccomp on"), "{log}");
    assert!(!log.contains("the sandbox has refused"), "{log}");
    // The end of one host's process ends no other's.
    kill(known[0]);
    until("the log says so", 20, || server.output().contains("the process of a service has died"));
    until("it is gone, and the stranger's is not", 20, || children(process) == strangers);
    drop(service);
    server.signal(libc::SIGKILL);
    // It ends with its server, and its connection with it.
    silent.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(!silent.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    until("it is gone", 20, || !std::path::Path::new(&format!("/proc/{}/fd/0", strangers[0])).exists());
}

#[test]
fn a_server_without_a_sandbox_says_so() {
    let scratch = Scratch::new("remote-sandbox-off");
    let (server, port) = serve(&scratch, |program| program.arg("--sandbox").arg("off"));
    assert!(server.output().contains("no sandbox: the configuration says"), "{}", server.output());
    let _silent = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    until("it has a process", 20, || children(server.pid().cast_unsigned()).len() == 1);
    let address = format!("unix:{}", scratch.path("server.sock").display());
    let program = Program::new(&[bin("towpath")]).arg("kernel-stack").arg("--listen").arg(address);
    let mut near = program.start(scratch.path("near.log"));
    near.wait_for("no sandbox: root and this user may run programs here", 20);
}
