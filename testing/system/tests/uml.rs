//! The kernel stack in a second kernel: user-mode Linux, which the service boots. Its programs' sockets are in that
//! kernel.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use towpath_guest::machine::MachineKind;
use towpath_system_tests::guest::{
    CONVERSATION, Outside, boots_if_there_is_none, ends_with_its_service, group, kernel_of, nearer_than_a_message,
    resets_in_time, speak_with_others,
};
use towpath_system_tests::{Program, Scratch, Service, bin, require_program, require_root, until};

/// A service with a guest.
fn guest(complete: impl FnOnce(Program) -> Program) -> Service {
    require_program("ip", "iproute2");
    Service::uml(complete)
}

#[test]
fn a_program_has_its_sockets_in_a_second_kernel() {
    let service = guest(|program| program);
    let out = service.accelerated("/usr/bin/python3 -c").arg(CONVERSATION).run(60).ok();
    // This kernel's table has one line with the port: the socket that reserves it and does not listen.
    assert_eq!(out.trim(), "whole 0", "this kernel has sockets of that port");
    assert_eq!(service.status()["stack"], "uml");
    assert!(service.stage("sent_bytes") >= 2_000_000 && service.stage("accepts") == 1, "{}", service.status());
    let kernel = kernel_of(&service);
    drop(service);
    until("the guest's processes are gone", 20, || group(kernel).is_empty());
}

#[test]
fn a_part_of_a_process_s_registers_is_written_from_a_small_stack() {
    require_program("gcc", "gcc");
    let scratch = Scratch::new("registers");
    let program = scratch.path("registers");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/guest/registers.c");
    Program::line("gcc -pthread -o").arg(&program).arg(source).run(60).ok();
    let run = || Program::new(&[&program]);
    // UML up to 6.12 fails like this where a processor has more registers than it knows.
    assert_eq!(run().run(10).ok(), "0 576 -1\n");
    assert_eq!(run().env("LD_PRELOAD", bin("libtowpath_uml.so")).run(10).ok(), "0 576 0\n");
}

#[test]
fn a_guest_needs_no_privileges() {
    let service = guest(|program| if rustix::process::geteuid().is_root() { program.user(65_534) } else { program });
    assert!(service.running.output().contains("serving"), "{}", service.running.output());
}

#[test]
fn a_guest_that_is_killed_resets_its_sockets_within_a_tenth_of_a_second() {
    resets_in_time(|| guest(|program| program));
}

#[test]
fn without_its_kernel_a_guest_says_what_to_install() {
    let program = Program::new(&[bin("towpath")]).arg("kernel-stack").arg("--uml").env("PATH", "/nowhere");
    let ended = program.arg("--name").arg(format!("none-{}", std::process::id())).run(30);
    assert_eq!(ended.code, 1, "{}", ended.err);
    assert!(ended.err.contains("apt-get install user-mode-linux"), "{}", ended.err);
}

#[test]
fn a_kernel_that_dies_as_it_boots_is_said_to_have_ended_though_a_process_of_it_is_left() {
    let scratch = Scratch::new("guest-dies");
    let kernel = scratch.path("linux.uml");
    std::fs::write(&kernel, "#!/bin/sh\nsleep 600 &\necho Kernel panic\nexit 1\n").expect("a kernel");
    std::fs::set_permissions(&kernel, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let path = format!("{}:/usr/bin:/bin", scratch.0.display());
    let program = Program::new(&[bin("towpath")]).arg("kernel-stack").arg("--uml").env("PATH", path);
    let ended = program.arg("--name").arg(format!("dies-{}", std::process::id())).run(30);
    assert_eq!(ended.code, 1, "{}", ended.err);
    assert!(ended.err.contains("it has ended") && ended.err.contains("Kernel panic"), "{}", ended.err);
}

#[test]
fn a_guest_has_as_many_sockets_as_are_asked_for_or_says_that_they_do_not_fit() {
    let scratch = Scratch::new("guest-sockets");
    let written = |lines: &str| {
        let path = scratch.path("towpath.toml");
        std::fs::write(&path, lines).expect("a configuration file");
        path
    };
    let many = written("sockets_per_client = 4096\n");
    let service = guest(|program| program.arg("--config").arg(many));
    let script = "import signal, socket\nkept = [socket.create_server(('0.0.0.0', 0)) for _ in range(700)]\nprint('all are there', flush=True); signal.pause()";
    let log = service.scratch.path("many.log");
    let mut many = service.accelerated("/usr/bin/python3 -u -c").arg(script).start(log);
    many.wait_for("all are there", 60);
    until("all of them listen there", 60, || {
        let all = service.sockets();
        all["sockets"].as_array().expect("sockets").iter().filter(|socket| socket["state"] == "LISTEN").count() == 700
    });
    drop(many);
    drop(service);
    let large = "sockets_per_client = 128\nsend_buffer = \"16MiB\"\nreceive_buffer = \"16MiB\"\n";
    let program = Program::new(&[bin("towpath")]).arg("kernel-stack").arg("--uml");
    let program = program.arg("--config").arg(written(large));
    let ended = program.arg("--name").arg(format!("large-{}", std::process::id())).run(60);
    assert_eq!(ended.code, 1, "{}", ended.err);
    assert!(ended.err.contains("128 sockets") && ended.err.contains("write fewer"), "{}", ended.err);
}

#[test]
fn programs_speak_with_others_through_a_second_kernels_tcp() {
    for (program, package) in [("curl", "curl"), ("redis-server", "redis-server"), ("ss", "iproute2")] {
        require_program(program, package);
    }
    let outside = Outside::new("uml");
    let service = guest(|program| outside.wire(program));
    speak_with_others(&outside, &service, 800, 2000);
}

const LISTENER: &str = "import socket
l = socket.socket(); l.bind(('0.0.0.0', 7632)); l.listen(5)
print('listening', flush=True)
while True:
    a, peer = l.accept()
    a.sendall(b'from ' + peer[0].encode()); a.close()";

#[test]
fn a_guest_that_is_killed_is_started_again_and_its_listeners_listen_again() {
    require_program("redis-server", "redis-server");
    let outside = Outside::new("uml");
    let service = guest(|program| outside.wire(program));
    // One program waits in epoll, the other in accept.
    let line = "redis-server --port 7631 --bind 0.0.0.0 --protected-mode no --save";
    let mut redis = service.accelerated(line).arg("").dir(&service.scratch.0).start(service.scratch.path("redis.log"));
    redis.wait_for("Ready to accept connections", 30);
    let mut python = service.accelerated("/usr/bin/python3 -u -c").arg(LISTENER).start(service.scratch.path("py.log"));
    python.wait_for("listening", 30);
    assert_eq!(outside.run("redis-cli -h 10.97.7.2 -p 7631 set colour green").trim(), "OK");
    for restarts in 1..=2 {
        // The newest guest is the last one in the log.
        let log = service.running.output();
        let pid = log.rsplit("pid=").next().expect("the kernel's process");
        let pid: i32 = pid.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().expect("a number");
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL)
            .unwrap();
        until("the guest serves again", 90, || {
            service.running.output().matches("the guest serves").count() == restarts + 1
        });
        until("the service logs it", 20, || service.status()["slow"]["stages"]["guest_restarts"] == restarts);
        assert_eq!(outside.run("redis-cli -h 10.97.7.2 -p 7631 get colour").trim(), "green");
        let ask = "import socket; c = socket.create_connection(('10.97.7.2', 7632), 60); print(c.recv(99), c.recv(9))";
        let out = Program::line("/usr/bin/python3 -c").arg(ask).under(&outside.within()).run(60).ok();
        assert_eq!(out.trim(), "b'from 10.97.7.1' b''");
    }
    assert!(redis.alive() && python.alive());
}

#[test]
fn only_the_services_own_user_runs_programs_in_its_kernel() {
    require_root();
    let service = guest(|program| program.arg("--admit").arg("all"));
    let exec =
        || Program::new(&[bin("towpath")]).arg("exec").arg("--socket").arg(&service.socket).arg("--").arg("false");
    assert_eq!(exec().run(20).code, 1, "its exit code");
    let other = exec().user(65_534).run(20);
    assert_eq!(other.code, 125);
    assert!(other.err.contains("only the service's own user and root"), "{}", other.err);
}

#[test]
fn programs_of_a_second_user_do_not_get_the_memory_of_the_first() {
    require_root();
    let service = guest(|program| program.arg("--admit").arg("uid:65534"));
    let run = || service.accelerated("/usr/bin/python3 -c").arg(CONVERSATION);
    let refused = run().run(60);
    assert_eq!(refused.code, 125, "root's own: {refused:?}");
    assert!(refused.err.contains("share one memory") && refused.err.contains("--admit uid:0"), "{}", refused.err);
    assert_eq!(run().user(65_534).run(60).ok().trim(), "whole 0");
}

#[test]
fn shared_memory_is_nearer_than_a_message_and_a_socketpair_is_a_wire() {
    require_program("linux.uml", "user-mode-linux");
    nearer_than_a_message(MachineKind::Uml);
}

#[test]
fn a_second_kernel_does_not_outlive_its_service() {
    ends_with_its_service(guest(|program| program));
}

const RINGER: &str = "import os, signal, socket, sys, time
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(100)
pairs = []
for _ in range(20):
    c = socket.create_connection(l.getsockname()); pairs.append((c, l.accept()[0]))
time.sleep(0.5)
os.kill(int(sys.argv[1]), signal.SIGSTOP)
for n in range(4000): pairs[n % 20][0].send(b'x')
os.kill(int(sys.argv[1]), signal.SIGCONT)
for _, a in pairs:
    a.settimeout(60); got = 0
    while got < 200: got += len(a.recv(200))
socket.create_connection(l.getsockname(), 60); print('heard')";

#[test]
fn a_guest_that_does_not_run_for_a_while_hears_its_programs_afterwards() {
    let service = guest(|program| program);
    let kernel = kernel_of(&service);
    let said = service.accelerated("/usr/bin/python3 -c").arg(RINGER).arg(kernel.to_string()).run(90).ok();
    assert_eq!(said.trim(), "heard");
}

#[test]
fn run_boots_a_second_kernel_if_there_is_none() {
    require_program("linux.uml", "user-mode-linux");
    boots_if_there_is_none("kernel=uml");
}
