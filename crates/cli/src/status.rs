//! `towpath status`: the service at a glance.

mod auto;
mod files;

pub use self::files::short;

use crate::json;
use crate::locate::{NoService, Which};
use std::fmt::Write;
use std::time::Duration;
use towpath_scaling::counted;
use towpath_service::api::{self, Command, InterfaceStatus, NamedCounts, NamedPort, Sizing, Status, Tally};
use towpath_service::config::FirewallSetting;

/// The time over which busy shares are measured.
const WATCH: Duration = Duration::from_millis(250);

/// Shows version, workers, connections, clients, ports and counters.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath status
  towpath status --json | jq '.flow_groups[0].drops'

The human form shows only counters that are not zero and watches the workers for 250 ms for their busy share; the JSON
form has every counter since the start.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Shows the status.
pub fn run(arguments: &Arguments) -> Result<String, NoService> {
    let socket = arguments.which.find()?;
    let first: Status = api::ask(&socket, Command::Status)?;
    if arguments.json {
        return Ok(json::line(&first));
    }
    std::thread::sleep(WATCH);
    let second: Status = api::ask(&socket, Command::Status)?;
    let overlaps = crate::receive_cpus::overlaps(Some(second.pid));
    let overlaps = overlaps.iter().map(|text| format!("overlap: {text} by `towpath cores enforce`\n"));
    Ok(page(&first, &second) + &overlaps.collect::<String>())
}

/// The human form of the second reading; the first is for the busy share.
fn page(first: &Status, s: &Status) -> String {
    let mut out = String::new();
    let kernel = s.stack == "kernel";
    let names: Vec<&str> = s.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    let interface = match &names[..] {
        [] if kernel => "all of its network namespace".into(),
        [] => "none (inside this machine)".into(),
        names => names.join(", "),
    };
    let _ = writeln!(out, "towpath {}, {} stack, pid {}, up {}", s.version, s.stack, s.pid, age(s.uptime_us));
    let _ = writeln!(out, "socket {}, interface {interface}", s.socket.display());
    s.interfaces.iter().for_each(|interface| link(&mut out, interface));
    files::configuration(&mut out, s.configuration.as_ref());
    let _ = writeln!(out, "sandbox: {}", s.sandbox.line());
    sizing(&mut out, s);
    workers(&mut out, first, s);
    for group in &s.flow_groups {
        let before = first.flow_groups.get(group.flow_group).map_or((0, 0), |b| (b.status.busy_us, b.status.idle_us));
        let status = &group.status;
        let share = share(before, (status.busy_us, status.idle_us));
        let (connections, sleeps) = (counted(status.flows, "connection"), status.sleeps);
        let _ = writeln!(out, "flow group {}: {share} % busy, {connections}, {sleeps} sleeps", group.flow_group);
        tally(&mut out, &status.tally);
        for NamedPort { name, status: port } in &group.ports {
            let _ = write!(out, "  port {name}: {} in, {} out", port.rx_frames, port.tx_frames);
            if port.rx_dropped + port.tx_dropped > 0 {
                let _ = write!(out, ", dropped {} in, {} out", port.rx_dropped, port.tx_dropped);
            }
            out.push('\n');
        }
    }
    if !kernel {
        out.push_str("slow path:\n");
        tally(&mut out, &s.slow);
        flood(&mut out, first, s);
    }
    let elsewhere = |name: &str| name == "stack" || name == "join";
    let kernel = s.kernel.iter().filter(|(name, n)| *n > 0 && !elsewhere(name));
    let kernel: Vec<_> = kernel.map(|(name, n)| format!("{name} {n}")).collect();
    if !kernel.is_empty() {
        let _ = writeln!(out, "left to the kernel: {}", kernel.join(", "));
    }
    listeners(&mut out, s);
    if !s.stacks.is_empty() {
        let count = |which: &str| -> u64 { s.kernel.iter().filter(|(name, _)| *name == which).map(|(_, n)| n).sum() };
        let (given, asked) = (count("stack"), count("join"));
        let asked = if asked > 0 { format!("; asked to join: {asked}") } else { String::new() };
        let stacks =
            s.stacks.iter().map(|o| format!("{} ({}{})", o.name, o.kind, if o.running { ", runs" } else { "" }));
        let _ = writeln!(out, "other stacks: {}; given to them: {given}{asked}", stacks.collect::<Vec<_>>().join(", "));
    }
    files::policy(&mut out, s);
    auto::table(&mut out, &s.auto);
    let _ = writeln!(out, "{}:", counted(s.clients.len(), "client"));
    for c in &s.clients {
        let leaving = if c.leaving { ", leaving" } else { "" };
        let violations = match c.contract_violations {
            0 => String::new(),
            n => format!(", {n} contract violations"),
        };
        let _ = writeln!(
            out,
            "  {} (pid {}, uid {}): {}{violations}{leaving}",
            c.name,
            c.pid,
            c.uid,
            counted(c.slots, "socket")
        );
    }
    out
}

/// A served interface.
fn link(out: &mut String, link: &InterfaceStatus) {
    let state = match (link.up, link.carrier) {
        (true, true) => "up",
        (true, false) => "up without carrier",
        (false, _) => "down",
    };
    let program = match link.program {
        Some(id) if link.steering => format!("{} (program {id}; {})", link.mode, link.reason),
        Some(id) => format!("foreign XDP program {id}"),
        None => "no program".into(),
    };
    let (name, queues, sockets) = (link.title(), counted(link.queues, "receive queue"), link.sockets);
    let _ = write!(out, "{name}: {state}, {program}, {queues}, {} served", sockets.min(link.queues));
    if link.firewall == FirewallSetting::Own {
        out.push_str(", the policy alone judges");
    }
    if link.strays > 0 {
        let _ = write!(out, ", {} by the slower way", counted(link.strays, "frame"));
    }
    out.push('\n');
    if let Some(trouble) = &link.trouble {
        let _ = writeln!(out, "  {trouble}");
    }
}

/// A backlog that is full now.
fn flood(out: &mut String, first: &Status, s: &Status) {
    let answered = s.slow.syn_cookies_sent.saturating_sub(first.slow.syn_cookies_sent);
    let opened = s.slow.syn_cookies_accepted.saturating_sub(first.slow.syn_cookies_accepted);
    let between_us = s.uptime_us.saturating_sub(first.uptime_us);
    if answered > 0 {
        let _ = writeln!(
            out,
            "  possible SYN flood: {answered} SYNs answered with cookies within {} ms, {opened} came back; if they are \
             clients of yours, the server's listen() needs a larger backlog",
            between_us / 1000
        );
    }
}

/// The halves of listeners that the kernel has, too.
fn listeners(out: &mut String, s: &Status) {
    let count = |name| s.listeners.get(name).unwrap_or_default();
    let accepted = count("accepted_by_kernel");
    if accepted > 0 {
        let _ = writeln!(
            out,
            "accepted by the kernel's half of listeners: {} (from programs without Towpath, or by other interfaces)",
            counted(accepted, "connection")
        );
    }
    let lost = [
        ("passed_stale", "left to the kernel while the service was stuck"),
        ("passed_full", "left to the kernel because too many waited"),
        ("limited", "dropped because the listener is flooded"),
        ("unknown_listener", "dropped because the listener had ended"),
    ];
    if count("refused") > 0 {
        let _ = writeln!(out, "SYNs that the policy refused to the kernel's half of listeners: {}", count("refused"));
    }
    let lost: Vec<_> = lost.iter().filter(|(name, _)| count(name) > 0).collect();
    if !lost.is_empty() {
        let lost: Vec<_> = lost.iter().map(|(name, why)| format!("{} {why}", count(name))).collect();
        let _ = writeln!(out, "SYNs for listeners: {} taken, {}", count("taken"), lost.join(", "));
    }
}

/// The number of workers, if it can change.
fn sizing(out: &mut String, s: &Status) {
    let Sizing { workers, most, configured, why, since_us, .. } = &s.sizing;
    if *most > 1 {
        let since = age(s.uptime_us.saturating_sub(*since_us));
        let _ = writeln!(out, "{workers} of {most} workers run, cores = {configured}, for {since}: {why}");
    }
}

/// The workers, unless each serves its own flow group and no other.
fn workers(out: &mut String, first: &Status, s: &Status) {
    if s.workers.iter().enumerate().all(|(number, worker)| worker.flow_groups == [number]) {
        return;
    }
    for (number, worker) in s.workers.iter().enumerate() {
        if worker.flow_groups.is_empty() {
            let _ = writeln!(out, "worker {number}: parked");
            continue;
        }
        let before = first.workers.get(number).map_or((0, 0), |b| (b.busy_us, b.idle_us));
        let share = share(before, (worker.busy_us, worker.idle_us));
        let groups: Vec<_> = worker.flow_groups.iter().map(ToString::to_string).collect();
        let groups = groups.join(", ");
        let _ = writeln!(out, "worker {number}: {share} % busy, {} sleeps, flow groups {groups}", worker.sleeps);
    }
}

/// The busy part of the time between two readings, in percent of busy and idle time.
fn share(before: (u64, u64), now: (u64, u64)) -> u64 {
    let (busy, idle) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
    (100 * busy).checked_div(busy + idle).unwrap_or(0)
}

fn tally(out: &mut String, t: &Tally) {
    let named = |out: &mut String, title: &str, named: &NamedCounts| {
        let words: Vec<_> = named.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
        if !words.is_empty() {
            let _ = writeln!(out, "  {title}: {}", words.join(", "));
        }
    };
    named(out, "stages", &t.stages);
    let events = [
        ("opened", t.opened),
        ("failed", t.failed),
        ("resets", t.resets),
        ("retransmits", t.retransmits),
        ("timeouts", t.timeouts),
        ("contract violations", t.contract_violations),
        ("SYN cookies sent", t.syn_cookies_sent),
        ("SYN cookies accepted", t.syn_cookies_accepted),
        ("connects without a port", t.out_of_ports),
        ("segments handed on to another flow group", t.relayed_segments),
    ];
    named(out, "events", &events.into_iter().collect());
    named(out, "drops", &t.drops);
}

/// 3 s, 5 min 3 s, 2 h 5 min, 3 d 2 h.
pub fn age(us: u64) -> String {
    let s = us / 1_000_000;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_service::api::{ClientId, ClientStatus, FlowGroupStatus, NumberedFlowGroup};
    use towpath_service::api::{OtherStackStatus, PortStatus, WorkerStatus};
    use towpath_service::policy::request::PolicyTotals;
    use towpath_service::sandbox::SandboxStatus;

    fn named(entries: &[(&'static str, u64)]) -> NamedCounts {
        entries.iter().copied().collect()
    }

    #[test]
    fn the_page_leaves_zeros_out() {
        let status = FlowGroupStatus {
            flows: 1,
            busy_us: 1000,
            idle_us: 1000,
            turns: 9,
            sleeps: 3,
            tally: Tally {
                stages: named(&[("pre", 12), ("protocol", 0)]),
                drops: named(&[("paws", 0), ("no_socket", 2)]),
                opened: 4,
                ..Tally::default()
            },
            ..FlowGroupStatus::default()
        };
        let port = PortStatus { rx_frames: 6, tx_frames: 7, rx_dropped: 0, tx_dropped: 1 };
        let ports = vec![NamedPort { name: "memory".into(), status: port }];
        let group = NumberedFlowGroup { flow_group: 0, status, ports };
        let client = ClientStatus {
            id: ClientId(1),
            uid: 1000,
            pid: 42,
            name: "redis".into(),
            slots: 2,
            contract_violations: 0,
            leaving: true,
            busy_us: 0,
        };
        let first = Status {
            version: "0.1.0".into(),
            stack: "fast".into(),
            pid: 7,
            uptime_us: 3_600_000_000,
            socket: "/run/towpath/towpath.sock".into(),
            interfaces: Vec::new(),
            flow_groups: vec![group],
            workers: vec![WorkerStatus { flow_groups: vec![0], ..WorkerStatus::default() }],
            sizing: Sizing {
                workers: 2,
                most: 4,
                configured: "1-4".into(),
                why: "the stack's cores are busier than they should be".into(),
                since_us: 3_597_000_000,
                ..Sizing::default()
            },
            slow: Tally::default(),
            kernel: named(&[("no_listener", 3), ("policy", 0), ("elsewhere", 1), ("stack", 5), ("join", 2)]),
            listeners: named(&[
                ("accepted_by_kernel", 2),
                ("taken", 9),
                ("passed_stale", 0),
                ("passed_full", 3),
                ("refused", 4),
            ]),
            stacks: vec![
                OtherStackStatus {
                    name: "blue".into(),
                    kind: "kernel".into(),
                    socket: "/b".into(),
                    running: true,
                    failed: None,
                },
                OtherStackStatus {
                    name: "guest".into(),
                    kind: "uml".into(),
                    socket: "/c".into(),
                    running: false,
                    failed: None,
                },
            ],
            policy: PolicyTotals { rules: 1, denied: 2, limited: 0, generation: Some(5), hash: Some("ab".repeat(32)) },
            configuration: None,
            auto: Vec::new(),
            sandbox: SandboxStatus { in_force: vec!["seccomp on".into()], ..SandboxStatus::default() },
            clients: vec![client],
            ended: Vec::new(),
        };
        let mut second = first.clone();
        second.flow_groups[0].status.busy_us += 25;
        second.flow_groups[0].status.idle_us += 75;
        let expected = "\
towpath 0.1.0, fast stack, pid 7, up 1 h 0 min
socket /run/towpath/towpath.sock, interface none (inside this machine)
sandbox: seccomp on
2 of 4 workers run, cores = 1-4, for 3 s: the stack's cores are busier than they should be
flow group 0: 25 % busy, 1 connection, 3 sleeps
  stages: pre 12
  events: opened 4
  drops: no_socket 2
  port memory: 6 in, 7 out, dropped 0 in, 1 out
slow path:
left to the kernel: no_listener 3, elsewhere 1
accepted by the kernel's half of listeners: 2 connections (from programs without Towpath, or by other interfaces)
SYNs that the policy refused to the kernel's half of listeners: 4
SYNs for listeners: 9 taken, 3 left to the kernel because too many waited
other stacks: blue (kernel, runs), guest (uml); given to them: 5; asked to join: 2
policy: 1 rule, 2 attempts denied, 0 over a limit; generation 5, hash abababababab
1 client:
  redis (pid 42, uid 1000): 2 sockets, leaving
";
        assert_eq!(page(&first, &second), expected);
        second.interfaces = vec![InterfaceStatus {
            name: "eth1".into(),
            vlan: Some(7),
            up: true,
            carrier: true,
            steering: true,
            program: Some(7),
            mode: "xdp".into(),
            reason: "hardware".into(),
            firewall: FirewallSetting::Own,
            queues: 4,
            sockets: 1,
            strays: 9,
            trouble: Some("eth1 has 4 receive queues".into()),
        }];
        let lines = "\
eth1 (VLAN 7): up, xdp (program 7; hardware), 4 receive queues, 1 served, the policy alone judges, 9 frames by the slower way
  eth1 has 4 receive queues
sandbox";
        assert!(page(&first, &second).contains(lines), "{}", page(&first, &second));
        second.interfaces =
            ["eth1", "eth2"].map(|name| InterfaceStatus { name: name.into(), ..InterfaceStatus::default() }).into();
        let lines = "socket /run/towpath/towpath.sock, interface eth1, eth2\n\
            eth1: down, no program, 0 receive queues, 0 served\neth2: down, no program, 0 receive queues, 0 served\n";
        assert!(page(&first, &second).contains(lines), "{}", page(&first, &second));
        second.interfaces = Vec::new();
        second.workers = vec![
            WorkerStatus { flow_groups: vec![0, 2], busy_us: 60, idle_us: 40, sleeps: 5, turns: 7 },
            WorkerStatus { flow_groups: vec![1], ..WorkerStatus::default() },
            WorkerStatus::default(),
        ];
        let expected = expected.replace(
            "flow group 0: 25 %",
            "worker 0: 60 % busy, 5 sleeps, flow groups 0, 2\nworker 1: 0 % busy, 0 sleeps, flow groups 1\nworker 2: parked\n\
             flow group 0: 25 %",
        );
        assert_eq!(page(&first, &second), expected);
        second.slow.syn_cookies_sent += 500;
        second.uptime_us += 100_000;
        let flood = "possible SYN flood: 500 SYNs answered with cookies within 100 ms, 0 came back";
        assert!(page(&first, &second).contains(flood), "{}", page(&first, &second));
        assert!(!page(&second, &second).contains("flood"), "it is over");
    }

    #[test]
    fn ages() {
        for (s, text) in [(3, "3 s"), (303, "5 min 3 s"), (7500, "2 h 5 min"), (266_400, "3 d 2 h")] {
            assert_eq!(age(s * 1_000_000), text);
        }
    }
}
