//! Connections that are opened, used and closed many times leave nothing behind in client, server and service: no
//! descriptor, memory, slot or flow.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Program, Scratch, Service, require_program, until};

/// The allocator's share: a process may have grown by so much since the settled state.
const SLACK_KIB: u64 = 2048;
/// The most growth for each connection since then: less than the smallest object that could leak. (Tables grow in
/// steps, and the allocator fragments. Over 640,000 connections it was 3 bytes each.)
const SLACK_BYTES_EACH: u64 = 32;
/// The number of descriptors is settled when it has not changed for so long.
const SETTLED: Duration = Duration::from_millis(300);
/// After so much steady work, as many connections leave TIME-WAIT as enter it.
const TIME_WAIT_FULL: Duration = Duration::from_secs(75);
/// The most memory that a connection in TIME-WAIT takes.
const TIME_WAIT_KIB: u64 = 2;
/// The most connections that a client makes of its own under the usual limit on open files.
const MOST_OF_A_CLIENT: u32 = 5_000;

#[test]
fn connections_over_the_stack_leave_nothing_behind() {
    churn(&Service::embedded(), 1_000, 5);
}

#[test]
fn direct_connections_leave_nothing_behind() {
    churn(&Service::direct(), 1_000, 5);
}

/// 10,000 connections at a time, 20 times, by both ways.
#[test]
#[ignore = "takes minutes"]
fn many_connections_leave_nothing_behind() {
    churn(&Service::embedded(), 10_000, 20);
    churn(&Service::direct(), 10_000, 20);
}

/// A program of the churn, and its resources half-way.
struct Process {
    running: Running,
    memory_kib: u64,
}

impl Process {
    fn start(program: &Program, log: PathBuf) -> Self {
        Self { running: program.start(log), memory_kib: 0 }
    }

    fn pid(&self) -> i32 {
        self.running.pid()
    }
}

/// Open descriptors of a process, in all tables: threads of the service have tables of their own.
fn descriptors(pid: i32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let of = |task: std::fs::DirEntry| std::fs::read_dir(task.path().join("fd")).map_or(0, Iterator::count);
    tasks.flatten().map(of).sum()
}

/// The private memory of a process, in KiB.
fn memory_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("RssAnon");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

/// The number of connections outside TIME-WAIT, without listeners, and of those in TIME-WAIT.
fn connections(service: &Service) -> (usize, usize) {
    let sockets = service.sockets();
    let all = sockets["sockets"].as_array().expect("sockets");
    let of = |state: &str| all.iter().filter(|socket| socket["state"] == state).count();
    (all.len() - of("LISTEN") - of("TIME-WAIT"), of("TIME-WAIT"))
}

fn slots(service: &Service) -> u64 {
    let status = service.status();
    status["clients"].as_array().expect("clients").iter().map(|client| client["slots"].as_u64().expect("slots")).sum()
}

fn churn(service: &Service, connections_at_once: u32, rounds: u32) {
    require_program("gcc", "gcc");
    let scratch = Scratch::new("leaks");
    let program = scratch.path("churn");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("leaks/churn.c");
    Program::line("gcc -O1 -Wall -Wextra -Werror -o").arg(&program).arg(source).run(60).ok();
    let program = program.to_str().expect("a path");
    let pairs = connections_at_once.div_ceil(MOST_OF_A_CLIENT);
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        let mut server =
            Process::start(&service.accelerated(&format!("{program} serve")), scratch.path(&format!("server{pair}")));
        server.running.wait_for("port ", 20);
        let output = server.running.output();
        let port = output.split("port ").nth(1).and_then(|rest| rest.split('.').next()).expect("a port").to_owned();
        let line = format!("{program} connect {port} {}", connections_at_once / pairs);
        clients.push(Process::start(&service.accelerated(&line), scratch.path(&format!("client{pair}"))));
        servers.push(server);
    }
    let (mut open, mut service_kib, mut lasting) = (Vec::new(), 0, 0);
    let started = Instant::now();
    let (mut round, mut last) = (0, None);
    while last != Some(round) {
        round += 1;
        for client in &mut clients {
            client.running.wait_for(&format!("round {round}."), 300);
        }
        until("every connection is gone", 60, || connections(service).0 == 0);
        until("every slot but the listeners' is free", 60, || slots(service) == u64::from(pairs));
        let programs = || servers.iter().chain(&clients);
        let count =
            || programs().map(Process::pid).chain([service.running.worker()]).map(descriptors).collect::<Vec<_>>();
        if round == 1 {
            // The service closes its ends a moment later.
            until("descriptors of the service go with their sockets", 60, || {
                let before = std::mem::replace(&mut open, count());
                std::thread::sleep(SETTLED);
                open == before && open.iter().sum::<usize>() < connections_at_once as usize
            });
        }
        until("as many descriptors are open as after the first round", 60, || count() == open);
        // With many connections, TIME-WAIT (60 s) must first be as full as it gets: as many enter as leave.
        let settled = connections_at_once < MOST_OF_A_CLIENT || started.elapsed() > TIME_WAIT_FULL;
        if last.is_none() && round >= rounds / 2 && settled {
            servers.iter_mut().chain(&mut clients).for_each(|process| process.memory_kib = memory_kib(process.pid()));
            service_kib = memory_kib(service.running.worker());
            lasting = connections(service).1 as u64;
            last = Some(round + rounds.div_ceil(2));
        }
        if last != Some(round) {
            clients.iter().for_each(|client| client.running.signal(libc::SIGUSR1));
        }
    }
    for process in servers.iter().chain(&clients) {
        let now = memory_kib(process.pid());
        assert!(now <= process.memory_kib + SLACK_KIB, "{now} KiB instead of {}", process.memory_kib);
    }
    let now = memory_kib(service.running.worker());
    let since = u64::from(connections_at_once) * u64::from(rounds.div_ceil(2));
    let more_in_time_wait = (connections(service).1 as u64).saturating_sub(lasting) * TIME_WAIT_KIB;
    let may_have = service_kib + SLACK_KIB + since * SLACK_BYTES_EACH / 1024 + more_in_time_wait;
    assert!(now <= may_have, "the service has {now} KiB instead of {service_kib}, {may_have} at most");
}
