//! Settings of `towpath cores enforce` other than interrupts and RPS, in a namespace with a veth: polling threads, send
//! queues, and where programs run. They stay set while links come and go, and values that others set are respected. A
//! kill at any moment leaves nothing behind.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use towpath_rng::Rng;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Scratch, bin, until};

/// `ip netns exec` gives the namespace a /sys without control groups. This mounts those of version 1 if they have
/// cpusets, else version 2.
const WITH_GROUPS: &str = "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/cpuset
    mount -t cgroup -o cpuset none /sys/fs/cgroup/cpuset 2>/dev/null || mount -t cgroup2 none /sys/fs/cgroup
    exec \"$@\"";

/// Makes or removes a control group with a cpuset, or prints which CPUs that allows.
const GROUP: &str = "cd /sys/fs/cgroup/cpuset 2>/dev/null && [ -e cpuset.cpus ] || cd /sys/fs/cgroup
    case $1 in
    make) [ -e cgroup.subtree_control ] && echo +cpuset > cgroup.subtree_control
        mkdir $2 && [ -e cgroup.controllers ] || { cat cpuset.cpus > $2/cpuset.cpus; cat cpuset.mems > $2/cpuset.mems; } ;;
    cpus) cat $2/cpuset.cpus ;;
    remove) rmdir $2 ;;
    esac";

/// Prints every setting of the interface, of its threads and of a process, one a line.
const SETTINGS: &str = "cd /sys/class/net/$1
    for file in threaded queues/*/rps_cpus queues/*/rps_flow_cnt queues/*/xps_cpus; do echo $file $(cat $file); done
    for thread in $(pgrep \"^napi/$1-\"); do echo thread $(taskset -pc $thread | sed 's/.*: //'); done
    for thread in /proc/$2/task/*; do echo $thread $(taskset -pc ${thread##*/} | sed 's/.*: //'); done";

/// A veth with two queues and polling threads, in a namespace, and a program that must stay off reserved CPUs.
struct Host {
    lab: Lab,
    scratch: Scratch,
    interface: String,
    program: Running,
    group: String,
}

impl Host {
    fn new(name: &str) -> Self {
        let (lab, scratch) = (Lab::with_queues(2), Scratch::new(name));
        // The kernel names polling threads after the interface, in all namespaces.
        let interface = format!("ts{}", lab.server.trim_start_matches("tps-"));
        let on_server = |line: &str| lab.on_server(Program::line(line)).run(20).ok();
        on_server("ip link set eth1 down");
        on_server(&format!("ip link set eth1 name {interface}"));
        on_server(&format!("ip link set {interface} up"));
        on_server(&format!("ethtool -K {interface} gro on"));
        let sleeper =
            "import threading, time; threading.Thread(target=time.sleep, args=[3600]).start(); time.sleep(3600)";
        let program = Program::new(&["/usr/bin/python3", "-c", sleeper]).start(scratch.path("program.log"));
        let group = format!("towpath-{}", lab.server);
        let host = Self { lab, scratch, interface, program, group };
        host.group("make").expect("a control group with a cpuset");
        until("the program has two threads", 30, || host.settings().matches("/task/").count() == 2);
        host
    }
    fn inside(&self, program: Program) -> Program {
        self.lab.on_server(program.under(&["sh", "-c", WITH_GROUPS, "sh"]))
    }
    fn group(&self, what: &str) -> Option<String> {
        let done = self.inside(Program::new(&["sh", "-c", GROUP, "sh", what, &self.group])).run(20);
        (done.code == 0).then_some(done.out)
    }
    fn cores(&self, line: &str) -> Program {
        let journal = self.scratch.path("journal");
        let program = Program::new(&[bin("towpath")]).arg("cores").env("TOWPATH_CORES_JOURNAL", journal);
        self.inside(line.split(' ').fold(program, Program::arg))
    }
    fn settings(&self) -> String {
        let pid = self.program.pid().to_string();
        self.lab.on_server(Program::new(&["sh", "-c", SETTINGS, "sh", &self.interface, &pid])).run(20).ok()
    }
    fn all(&self) -> String {
        self.settings() + &self.group("cpus").expect("the control group")
    }
    /// The same once it is as before, or after a while. A polling thread stays in the list of processes for a moment when its
    /// kernel has ended it.
    fn all_again(&self, before: &str) -> String {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let all = self.all();
            if all == before || Instant::now() >= end {
                return all;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    /// Runs `enforce` with these options until one CPU receives and nobody else may run on it.
    fn enforce(&self, more: &str) -> Running {
        let (interface, pid, group) = (&self.interface, self.program.pid(), &self.group);
        let line =
            format!("enforce --interface {interface} --cpus 1 --force --xps --pid {pid} --cgroup /{group}{more}");
        self.cores(&line).start(self.scratch.path("enforce.log"))
    }
    fn journal(&self) -> bool {
        self.scratch.path("journal").exists()
    }
    /// The CPU that is reserved.
    fn reserved(&self) -> String {
        let plan = self.cores(&format!("plan --interface {} --force --json", self.interface)).run(20).ok();
        let plan: serde_json::Value = serde_json::from_str(&plan).expect("JSON");
        plan["reserved"].as_str().expect("a CPU").to_owned()
    }
    fn run(&self, line: &str) -> String {
        self.lab.on_server(Program::line(line)).run(20).ok()
    }
    /// The CPUs on which the polling threads may run.
    fn pollers(&self) -> Vec<String> {
        self.settings().lines().filter_map(|line| line.strip_prefix("thread ")).map(str::to_owned).collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.group("remove");
    }
}

fn kill(pid: i32, signal: Signal) {
    // The process may have ended already.
    let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, signal));
}

/// The worker process of `enforce`, if it has begun.
fn worker(running: &Running) -> Option<i32> {
    let watching = running.pid();
    let children = fs::read_to_string(format!("/proc/{watching}/task/{watching}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

#[test]
fn threads_that_poll_are_kept_on_reserved_cpus_also_after_the_link_was_down() {
    let host = Host::new("cores-threads");
    let (before, reserved) = (host.all(), host.reserved());
    let on_it = [reserved.clone(), reserved.clone()];
    let mut running = host.enforce(" --way threads");
    until("both queues are polled on the reserved CPU", 60, || host.pollers() == on_it);
    let settings = host.settings();
    let elsewhere = |line: &str| line.contains("/task/") && !line.ends_with(&format!(" {reserved}"));
    assert_eq!(settings.lines().filter(|line| elsewhere(line)).count(), 2, "the program is elsewhere: {settings}");
    assert_ne!(host.all(), before);
    // The kernel makes new threads with the link, which may run anywhere.
    host.run(&format!("ip link set {} down", host.interface));
    host.run(&format!("ip link set {} up", host.interface));
    until("they are polled there again", 60, || host.pollers() == on_it);
    assert!(running.output().contains("has changed: everything is set again"), "{}", running.output());
    assert!(!running.output().contains("set again, once"), "nothing else was set again: {}", running.output());
    running.signal(libc::SIGTERM);
    running.wait_end(60);
    assert_eq!(host.all_again(&before), before);
    assert!(!host.journal());
}

#[test]
fn queues_that_are_made_anew_are_steered_again_and_anothers_value_is_left_after_one_time() {
    let host = Host::new("cores-queues");
    let before = host.all();
    let mut running = host.enforce("");
    let steered = || {
        let settings = host.settings();
        settings
            .lines()
            .filter(|line| line.contains("rps_cpus") && !line.trim_end_matches(['0', ',']).ends_with("cpus "))
            .count()
    };
    until("both queues are steered", 60, || steered() == 2);
    // One tick sees both changes at most: the number of queues is the same, and the queue is another one.
    host.run(&format!("ethtool -L {} rx 1", host.interface));
    host.run(&format!("ethtool -L {} rx 2", host.interface));
    until("and again", 60, || steered() == 2);
    let file = format!("/sys/class/net/{}/queues/tx-0/xps_cpus", host.interface);
    let write =
        |value: &str| host.lab.on_server(Program::new(&["sh", "-c", &format!("echo {value} > {file}")])).run(20).ok();
    let read = || host.run(&format!("cat {file}")).trim().trim_start_matches(['0', ',']).to_owned();
    until("the send queue has its CPUs", 60, || !read().is_empty());
    let ours = read();
    write("3");
    until("it is set again", 60, || read() == ours);
    assert!(running.output().contains("set again, once"), "{}", running.output());
    write("3");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(read(), "3", "but only once");
    running.signal(libc::SIGTERM);
    running.wait_end(60);
    assert_eq!(read(), "3", "and it stays at the end");
    write("0");
    assert_eq!(host.all_again(&before), before, "all else is as it was");
}

/// Runs `enforce`, and at a random moment kills its worker, its watcher, or both, or ends it in order.
fn cycle(host: &Host, dice: &mut Rng) -> &'static str {
    let mut running = host.enforce(if dice.below(2) == 0 { " --way threads" } else { "" });
    // The first decision comes after a second, so most moments are those of the first changes.
    std::thread::sleep(Duration::from_millis(match dice.below(4) {
        0 => dice.below(1000),
        1 => 1500 + dice.below(1000),
        _ => 1000 + dice.below(400),
    }));
    let (watching, what) = (running.pid(), dice.below(4));
    // A process that is stopped starts no child that would escape the kill.
    if what < 2 {
        kill(watching, Signal::STOP);
    }
    let working = worker(&running);
    let kill_worker = || working.into_iter().for_each(|pid| kill(pid, Signal::KILL));
    let killed = match what {
        0 => {
            kill_worker();
            kill(watching, Signal::KILL);
            "both"
        }
        1 => {
            kill(watching, Signal::KILL);
            "who watches"
        }
        2 if working.is_some() => {
            kill_worker();
            "who does the work"
        }
        _ => {
            kill(watching, Signal::TERM);
            "nobody"
        }
    };
    running.wait_end(60);
    let ended = |pid: &i32| !Path::new(&format!("/proc/{pid}")).exists();
    until("all of it has ended", 60, || working.iter().all(ended));
    killed
}

/// Ten cycles. `make cores-rollback` makes 200, or TOWPATH_ROLLBACK_CYCLES, with TOWPATH_ROLLBACK_SEED.
#[test]
fn whoever_is_killed_at_any_moment_leaves_every_setting_as_it_was() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let cycles = number("TOWPATH_ROLLBACK_CYCLES").unwrap_or(10);
    let seed = number("TOWPATH_ROLLBACK_SEED").unwrap_or(1);
    println!("seed {seed}, {cycles} cycles");
    let mut dice = Rng::new(seed);
    let host = Host::new("cores-rollback");
    let before = host.all();
    let mut left = 0;
    for number in 1..=cycles {
        let killed = cycle(&host, &mut dice);
        let journal = host.journal();
        if journal {
            left += 1;
            host.cores("restore").run(60).ok();
        }
        let log = fs::read_to_string(host.scratch.path("enforce.log")).unwrap_or_default();
        assert_eq!(host.all_again(&before), before, "cycle {number}, killed was {killed}:\n{log}");
        assert!(!host.journal(), "cycle {number}, killed was {killed}:\n{log}");
        println!("{number} of {cycles}: killed was {killed}{}", if journal { "; restored" } else { "" });
    }
    println!("{cycles} cycles, every setting as it was; `towpath cores restore` was needed after {left}");
}
