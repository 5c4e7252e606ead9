//! Receive CPUs: whatever ends `towpath cores enforce`, every setting is put back.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Scratch, bin, until};

/// A veth with two queues in a namespace, and the directory of this test's journal.
struct Host {
    lab: Lab,
    scratch: Scratch,
}

impl Host {
    fn new(name: &str) -> Self {
        Self { lab: Lab::with_queues(2), scratch: Scratch::new(name) }
    }
    fn cores(&self, line: &str) -> Program {
        let journal = self.scratch.path("journal");
        let program = Program::new(&[bin("towpath")]).arg("cores").env("TOWPATH_CORES_JOURNAL", journal);
        self.lab.on_server(line.split(' ').fold(program, Program::arg))
    }
    /// The CPUs that each queue's packets go to.
    fn steering(&self) -> Vec<String> {
        let line = "cat /sys/class/net/eth1/queues/rx-0/rps_cpus /sys/class/net/eth1/queues/rx-1/rps_cpus";
        let text = self.lab.on_server(Program::line(line)).run(20).ok();
        text.lines().map(|line| line.trim_start_matches(['0', ',']).to_owned()).collect()
    }
    /// Runs `enforce` until one CPU receives.
    fn enforced(&self) -> Running {
        let log = self.scratch.path("enforce.log");
        let running = self.cores("enforce --interface eth1 --cpus 1 --force").start(log);
        until("one CPU receives", 30, || self.is_steered());
        running
    }
    fn is_steered(&self) -> bool {
        self.steering().iter().all(|cpus| !cpus.is_empty())
    }
    fn untouched(&self) -> bool {
        self.steering() == ["", ""] && !self.scratch.path("journal").exists()
    }
}

/// The two processes of `enforce`: the watcher, and the worker that does the work.
fn processes(running: &Running) -> (i32, i32) {
    let watching = running.pid();
    let children = std::fs::read_to_string(format!("/proc/{watching}/task/{watching}/children")).expect("children");
    (watching, children.trim().parse().expect("one child"))
}

fn kill(pid: i32) {
    Program::line(&format!("kill -9 {pid}")).run(20).ok();
}

#[test]
fn a_signal_ends_it_and_everything_is_as_it_was() {
    let host = Host::new("cores-signal");
    assert!(host.untouched());
    let mut running = host.enforced();
    assert!(host.scratch.path("journal").exists(), "what was there is written down");
    running.signal(libc::SIGTERM);
    running.wait_end(20);
    assert!(host.untouched(), "{:?}", host.steering());
}

#[test]
fn the_watcher_puts_back_what_a_killed_worker_has_left() {
    let host = Host::new("cores-killed");
    let mut running = host.enforced();
    kill(processes(&running).1);
    running.wait_end(20);
    assert!(host.untouched(), "{:?}", host.steering());
    assert!(running.output().contains("back"), "and logs that: {}", running.output());
}

#[test]
fn the_worker_puts_everything_back_if_the_watcher_is_killed() {
    let host = Host::new("cores-watcher");
    let mut running = host.enforced();
    kill(processes(&running).0);
    running.wait_end(20);
    until("everything is put back", 30, || host.untouched());
}

#[test]
fn if_both_are_killed_the_next_command_puts_everything_back() {
    let host = Host::new("cores-both");
    let mut running = host.enforced();
    let (watching, working) = processes(&running);
    Program::line(&format!("kill -STOP {watching}")).run(20).ok();
    kill(working);
    kill(watching);
    running.wait_end(20);
    assert!(host.is_steered(), "no process was left to put it back");
    let restored = host.cores("restore").run(20).ok();
    assert_eq!(restored.matches("back").count(), 2, "two queues; the rest was as it shall be: {restored}");
    assert!(host.untouched(), "{:?}", host.steering());
    assert_eq!(host.cores("restore").run(20).ok().trim(), "nothing to put back");
}

#[test]
fn a_plan_or_the_reason_why_there_is_none() {
    let host = Host::new("cores-plan");
    let plan = host.cores("plan --interface eth1 --cpus 1 --force --json").run(20).ok();
    let plan: serde_json::Value = serde_json::from_str(&plan).expect("JSON");
    assert_eq!(plan["way"], "rps", "{plan}");
    assert!(plan["reserved"].as_str().is_some_and(|cpus| cpus.parse::<u32>().is_ok_and(|cpu| cpu > 0)), "{plan}");
    let none = host.cores("plan --interface eth9 --force --json").run(20).ok();
    assert!(none.contains("there is no network interface eth9"), "{none}");
    let seen = host.cores("observe --interface eth1 --force --times 1 --json").run(30).ok();
    let seen: serde_json::Value = serde_json::from_str(&seen).expect("a JSON line");
    assert_eq!((seen["tick"].as_u64(), seen["cores"].as_u64()), (Some(1), Some(0)), "{seen}");
    assert!(host.untouched(), "nobody has changed anything");
}

#[test]
fn what_is_recorded_can_be_replayed() {
    let host = Host::new("cores-replay");
    let trace = host.scratch.path("trace.jsonl");
    let trace = trace.display();
    let observed =
        host.cores(&format!("observe --interface eth1 --force --times 3 --json --record {trace}")).run(60).ok();
    let replayed = host.cores(&format!("replay --json {trace}")).run(20).ok();
    let decisions = |text: &str| -> Vec<(u64, u64, String)> {
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a JSON line"));
        let decision = |line: serde_json::Value| {
            (line["tick"].as_u64().unwrap(), line["cores"].as_u64().unwrap(), line["reason"].to_string())
        };
        lines.map(decision).collect()
    };
    assert_eq!(decisions(&observed).len(), 3);
    assert_eq!(decisions(&observed), decisions(&replayed));
}
