//! The kernel stack in a second kernel: user-mode Linux, booted by the service. Its programs' sockets are that kernel's.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::time::Duration;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Program, Service, bin, require_program, until};

/// A service with a card. Two kernels on a busy machine take their time.
fn card(complete: impl FnOnce(Program) -> Program) -> Service {
    require_program("linux.uml", "user-mode-linux");
    require_program("ip", "iproute2");
    let mut service = Service::start(|program| complete(program.arg("--stack").arg("uml")));
    service.running.wait_for("stack=\"uml\"", 90);
    service
}

/// The process that is the card's kernel.
fn kernel_of(service: &Service) -> i32 {
    let log = service.running.output();
    let pid = log.split("pid=").nth(1).expect("the kernel's process in the log");
    pid.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().expect("a number")
}

/// Processes of the process group.
fn group(leader: i32) -> Vec<String> {
    let all = Program::line("ps -e -o pgid=,pid=,stat=,comm=").run(20).ok();
    all.lines().filter(|line| line.split_whitespace().next() == Some(&leader.to_string())).map(str::to_owned).collect()
}

const CONVERSATION: &str = "import socket, sys
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen()
c = socket.create_connection(l.getsockname()); a, _ = l.accept()
total = 0
for n in range(40):
    a.sendall(bytes([n]) * 50_000)
    got = b''
    while len(got) < 50_000: got += c.recv(65_536)
    assert got == bytes([n]) * 50_000
c.shutdown(socket.SHUT_WR); assert a.recv(1) == b''
a.close(); assert c.recv(1) == b''
print('whole', open('/proc/net/tcp').read().count('%04X' % l.getsockname()[1]))";

#[test]
fn a_program_has_its_sockets_in_a_second_kernel() {
    let service = card(|program| program);
    let out = service.accelerated("/usr/bin/python3 -c").arg(CONVERSATION).run(60).ok();
    // One line of this kernel's table has the number: the socket that reserves the port and does not listen has none.
    assert_eq!(out.trim(), "whole 0", "this kernel has sockets of that port");
    assert_eq!(service.status()["stack"], "uml");
    assert!(service.stage("sent_bytes") >= 2_000_000 && service.stage("accepts") == 1, "{}", service.status());
    let kernel = kernel_of(&service);
    drop(service);
    until("the card's processes are gone", 20, || group(kernel).is_empty());
}

#[test]
fn a_card_needs_no_privileges() {
    let service = card(|program| if rustix::process::geteuid().is_root() { program.user(65_534) } else { program });
    assert!(service.running.output().contains("serving"), "{}", service.running.output());
}

const WAITER: &str = "import socket, threading, time, sys
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen()
c = socket.create_connection(l.getsockname()); a, _ = l.accept()
errors = {}
def wait(name, call):
    try: call(); errors[name] = None
    except OSError as error: errors[name] = error.errno
    errors[name + ' at'] = time.monotonic_ns()
threads = [threading.Thread(target=wait, args=w) for w in [('recv', lambda: c.recv(1)), ('accept', l.accept)]]
for t in threads: t.start()
print('waiting', flush=True)
threads[0].join(30)
print('reset', errors.get('recv'), errors.get('recv at'), flush=True)
try: socket.create_connection(('127.0.0.1', 9), 5); print('connected')
except OSError as error: print('then', error.errno, flush=True)
sys.stdout.flush(); import os; os._exit(0)";

/// Kills a card under a program that waits; what the program says, and how long it took to learn of it.
fn kill_under(service: &Service, waiter: &mut Running) -> (String, Duration) {
    waiter.wait_for("waiting", 30);
    std::thread::sleep(Duration::from_millis(300));
    let kernel = rustix::process::Pid::from_raw(kernel_of(service)).unwrap();
    let at = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let at = at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64;
    rustix::process::kill_process(kernel, rustix::process::Signal::KILL).unwrap();
    waiter.wait_for("then", 30);
    let said = waiter.output();
    let seen = said.lines().find_map(|line| line.strip_prefix("reset 104 ")).unwrap_or_else(|| panic!("{said}"));
    (said.clone(), Duration::from_nanos(seen.parse::<u64>().unwrap() - at))
}

#[test]
fn a_card_that_is_killed_resets_its_sockets_within_a_tenth_of_a_second() {
    let mut best = Duration::MAX;
    // On a busy machine a wake-up alone may take as long.
    for _ in 0..3 {
        let service = card(|program| program);
        let log = service.scratch.path("waiter.log");
        let mut waiter = service.accelerated("/usr/bin/python3 -u -c").arg(WAITER).start(log);
        let (said, took) = kill_under(&service, &mut waiter);
        assert!(said.contains(&format!("then {}", libc::ENETDOWN)), "{said}");
        until("the service says so", 10, || service.running.output().contains("the card has died"));
        let kernel = kernel_of(&service);
        until("the card's processes are gone", 20, || group(kernel).is_empty());
        best = best.min(took);
        if best <= Duration::from_millis(100) {
            return;
        }
    }
    panic!("it took {best:?} at best");
}

#[test]
fn without_its_kernel_a_card_says_what_to_install() {
    let program = Program::new(&[bin("towpath")]).arg("kernel-stack").arg("--uml").env("PATH", "/nowhere");
    let ended = program.arg("--name").arg(format!("none-{}", std::process::id())).run(30);
    assert_eq!(ended.code, 1, "{}", ended.err);
    assert!(ended.err.contains("apt-get install user-mode-linux"), "{}", ended.err);
}
