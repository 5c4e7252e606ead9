//! Two namespaces, a control group for the server, and the runs of all arms in them.

use super::arm::Arm;
use super::irq_suspend::suspend;
use super::{Options, Server, other_programs};
use crate::cpu_layout::CpuLayout;
use crate::process::{Process, wait};
use crate::programs::{json_report, rpc, towpath};
use crate::veth_pair::{SERVER, Side, VethPair};
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use towpath_rxcpus::CpuSet;

/// Most queues of the device. The kernel makes no more for a veth than there are CPUs.
const QUEUES: usize = 16;
/// How long an event loop polls before it sleeps.
const BUSY_POLL_US: u32 = 64;
/// How long packets may wait for a program to poll, ns.
const FLUSH_NS: u32 = 200_000;
/// How long interrupts stay suspended while polling finds work, ns. It is longer than any turn of an event loop.
const SUSPEND_NS: u32 = 20_000_000;
/// Where control groups that confine CPUs are, of version 2 or 1.
const GROUPS: [&str; 3] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpuset"];

/// A change that the scaling policy made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Decisions (seconds) since its start.
    pub s: u64,
    /// CPUs reserved from then on.
    pub cores: u64,
    /// Why.
    pub reason: String,
}

/// One run of an arm.
#[derive(Default)]
pub struct Run {
    /// The client's report of each load.
    pub steps: Vec<Value>,
    /// CPUs that other programs used.
    pub foreign: f64,
    /// True if that was too much.
    pub marked: bool,
    /// The numbers that the scaling policy chose.
    pub chosen: Vec<Change>,
    /// Decisions (seconds) until the end of the loads, and those in which the server had been heard.
    pub decided: u64,
    /// See `decided`.
    pub heard: u64,
    /// Packets that were received by polling.
    pub polled: Option<u64>,
    /// Why there is nothing.
    pub why: Option<String>,
}

/// Everything that the runs share.
pub struct Testbed {
    pair: VethPair,
    rpc: PathBuf,
    layout: CpuLayout,
    group: Option<CpuGroup>,
    queues: usize,
}

impl Testbed {
    /// Makes it; needs root.
    pub fn new(options: &Options) -> io::Result<Self> {
        let rpc = rpc()?;
        let layout = CpuLayout::read(options.most)?;
        let queues = layout.server.0.len().min(QUEUES);
        let pair = VethPair::with_queues(queues)?;
        let group = CpuGroup::new(&layout.all);
        Ok(Self { pair, rpc, layout, group, queues })
    }
    /// Most CPUs that an arm may reserve.
    pub fn most(&self) -> u32 {
        self.layout.most
    }
    /// Event loops of the server.
    fn loops(&self, options: &Options) -> usize {
        options.loops.unwrap_or(self.layout.server.0.len().max(4))
    }
    /// Connections.
    pub fn connections(&self, options: &Options) -> usize {
        options.connections.unwrap_or(16 * self.loops(options))
    }
    /// CPUs of the machine.
    pub fn cpus(&self) -> usize {
        self.layout.cpus()
    }
    /// The set-up in a sentence, for people.
    pub fn sentence(&self) -> String {
        let mut text = self.layout.sentence();
        if self.group.is_none() {
            text += "; there is no control group with a cpuset (version 2: echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control), so the server is not kept off reserved CPUs";
        }
        text + "; a veth has no hardware interrupts: `busy poll` suspends its notices instead"
    }

    /// The arm under the loads, one after the other.
    pub fn run(&self, options: &Options, server: Server, arm: Arm, loads: &[String]) -> io::Result<Run> {
        let run = self.spread(arm).and_then(|()| self.attempt(options, server, arm, loads));
        let settled = self.settle(arm);
        match run {
            // A feature that this kernel or device lacks is an answer, not a failure.
            Err(error) if arm == Arm::BusyPoll => Ok(Run { why: Some(first_line(&error)), ..Run::default() }),
            run => settled.and(run),
        }
    }

    fn attempt(&self, options: &Options, server: Server, arm: Arm, loads: &[String]) -> io::Result<Run> {
        let feedback = self.pair.dir().join("feedback");
        let log = self.pair.dir().join("enforce.log");
        let enforcing = match arm {
            Arm::Reserved(cpus) => Some(self.enforce(&["--cpus", &cpus.to_string()], &log, Some(cpus))?),
            Arm::Chosen => {
                let most = self.layout.most.to_string();
                let feedback = format!("unix:{}", feedback.display());
                Some(self.enforce(&["--most", &most, "--feedback", &feedback], &log, None)?)
            }
            Arm::Symmetric | Arm::BusyPoll => None,
        };
        let serving = self.serve(options, server, arm, &feedback)?;
        let warm_up = if arm == Arm::Chosen { options.settle } else { 0.0 } + options.warm_up;
        let (own, begun) = (std::process::id(), Instant::now());
        let (before, polled) = (other_programs::seconds(own), self.polled()?);
        let report = self.load(options, loads, warm_up)?;
        let foreign = (other_programs::seconds(own) - before) / begun.elapsed().as_secs_f64();
        let polled = (arm == Arm::BusyPoll).then_some(self.polled()?.saturating_sub(polled));
        drop((serving, enforcing));
        if report["bad"].as_u64() != Some(0) {
            return Err(io::Error::other(format!("{} replies were wrong", report["bad"])));
        }
        if polled == Some(0) {
            return Err(io::Error::other("no packet was received by polling"));
        }
        let steps = report["steps"].as_array().cloned().unwrap_or_default();
        let run = Run { steps, foreign: foreign.max(0.0), polled, ..Run::default() };
        if arm != Arm::Chosen {
            return Ok(run);
        }
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        let decided = decisions(&said).last().and_then(|decision| decision["tick"].as_u64()).unwrap_or(0);
        let heard = decisions(&said).filter(|decision| decision["throughput"].is_number()).count() as u64;
        Ok(Run { chosen: changes(&said), decided, heard, ..run })
    }

    /// Spreads receive work over all CPUs of its side, as a device with a queue for each would. For busy polling the
    /// server's own choice decides.
    fn spread(&self, arm: Arm) -> io::Result<()> {
        let polled = arm == Arm::BusyPoll;
        let server = if polled { CpuSet::default() } else { self.layout.server.clone() };
        self.pair.receive_by(Side::Server, self.queues, &server.mask())?;
        self.pair.receive_by(Side::Client, self.queues, &self.layout.client().mask())?;
        if !polled {
            return Ok(());
        }
        // A veth uses NAPI, which can be polled, only for packets of a sender without segmentation offload.
        self.offload(Side::Server, "gro", "on")?;
        self.offload(Side::Client, "tso", "off")?;
        self.pair.write(Side::Server, "/sys/class/net/eth1/napi_defer_hard_irqs", "100")?;
        self.pair.write(Side::Server, "/sys/class/net/eth1/gro_flush_timeout", &FLUSH_NS.to_string())?;
        let failed = |e: io::Error| io::Error::new(e.kind(), format!("irq-suspend-timeout (Linux 6.13): {e}"));
        suspend(&self.pair.namespace(Side::Server), "eth1", SUSPEND_NS).map_err(failed)
    }
    /// Packets of the server's side that programs have received by polling the device.
    fn polled(&self) -> io::Result<u64> {
        Ok(polled(&self.pair.read(Side::Server, "/proc/net/netstat")?))
    }
    /// Takes back the changes that busy polling needed.
    fn settle(&self, arm: Arm) -> io::Result<()> {
        if arm != Arm::BusyPoll {
            return Ok(());
        }
        self.pair.write(Side::Server, "/sys/class/net/eth1/gro_flush_timeout", "0")?;
        self.pair.write(Side::Server, "/sys/class/net/eth1/napi_defer_hard_irqs", "0")?;
        self.offload(Side::Client, "tso", "on")?;
        self.offload(Side::Server, "gro", "off")
    }
    fn offload(&self, side: Side, what: &str, value: &str) -> io::Result<()> {
        let output = self.pair.command_on(side, None, &["ethtool", "-K", "eth1", what, value]).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!("ethtool -K eth1 {what} {value}: {}", String::from_utf8_lossy(&output.stderr))))
    }

    /// `towpath cores enforce` on the server's side, once it has come to `cpus`.
    fn enforce(&self, arguments: &[&str], log: &Path, cpus: Option<u32>) -> io::Result<Process> {
        let exe = towpath()?;
        let words = [exe.as_os_str(), "cores".as_ref(), "enforce".as_ref(), "--interface".as_ref(), "eth1".as_ref()];
        let mut command = self.pair.with_groups(Side::Server, &words);
        command
            .args(["--force", "--json"])
            .args(arguments)
            .env("TOWPATH_CORES_JOURNAL", self.pair.dir().join("journal"));
        if let Some(group) = &self.group {
            command.args(["--cgroup", &group.name]);
        }
        // A new one must not find the last one's decisions in its log.
        let _ = std::fs::remove_file(log);
        let mut process = Process::start(command, log, |_| true)?;
        wait(log, &mut process, || {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let last = decisions(&text).last().and_then(|decision| decision["cores"].as_u64());
            last.is_some_and(|now| cpus.is_none_or(|cpus| now == u64::from(cpus)))
        })?;
        Ok(process)
    }

    fn serve(&self, options: &Options, server: Server, arm: Arm, feedback: &Path) -> io::Result<Process> {
        let mut words: Vec<OsString> = vec![self.rpc.clone().into(), "values-server".into(), address().into()];
        words.extend(["--architecture".into(), server.name().into()]);
        words.extend(["--loops".into(), self.loops(options).to_string().into()]);
        words.extend(["--bytes".into(), options.bytes.to_string().into()]);
        words.extend(["--feedback".into(), feedback.into()]);
        if arm == Arm::BusyPoll {
            words.extend(["--busy-poll-us".into(), BUSY_POLL_US.to_string().into()]);
        }
        let command = self.pair.command_among(Side::Server, &self.layout.server.list(), &words);
        let command = match &self.group {
            Some(group) => group.inside(&command),
            None => command,
        };
        self.pair.start(command, "server.log", "ready")
    }

    fn load(&self, options: &Options, loads: &[String], warm_up: f64) -> io::Result<Value> {
        let seconds = warm_up + options.seconds;
        let steps: Vec<String> = loads.iter().map(|load| format!("{load}@{seconds}")).collect();
        let connections = self.connections(options);
        let threads = self.layout.client_threads(connections);
        let words = [self.rpc.as_os_str(), "values-client".as_ref(), address().as_ref()].map(OsString::from);
        let mut command = self.pair.command_among(Side::Client, &self.layout.client().list(), &words);
        command.args(["--connections", &connections.to_string(), "--threads", &threads.to_string()]);
        command.args(["--bytes", &options.bytes.to_string(), "--warm-up", &warm_up.to_string()]);
        json_report(&command.args(["--steps", &steps.join(",")]).output()?, "the client")
    }
}

/// `BusyPollRxPackets` of `/proc/net/netstat`.
fn polled(netstat: &str) -> u64 {
    let mut lines = netstat.lines().filter(|line| line.starts_with("TcpExt:")).map(str::split_whitespace);
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let found = names.zip(values).find(|(name, _)| *name == "BusyPollRxPackets");
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// The first line of the error: a row has room for no more.
fn first_line(error: &io::Error) -> String {
    error.to_string().lines().filter(|line| !line.starts_with("a program did not start")).take(1).collect()
}

fn address() -> String {
    format!("{SERVER}:9020")
}

/// The decisions that `towpath cores enforce --json` has printed.
fn decisions(text: &str) -> impl DoubleEndedIterator<Item = Value> {
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    lines.into_iter().filter(|line| line["cores"].is_u64() && line["tick"].is_u64())
}

/// Those that changed something.
fn changes(text: &str) -> Vec<Change> {
    let mut before = 0;
    let changed = |decision: Value| {
        let (cores, s) = (decision["cores"].as_u64()?, decision["tick"].as_u64()?);
        let changed = std::mem::replace(&mut before, cores) != cores;
        changed.then(|| Change { s, cores, reason: decision["reason"].as_str().unwrap_or_default().to_owned() })
    };
    decisions(text).filter_map(changed).collect()
}

/// A control group that confines CPUs, for the server.
struct CpuGroup {
    name: String,
    folder: PathBuf,
}

impl CpuGroup {
    /// `None`: this machine has no hierarchy that can do it.
    fn new(cpus: &CpuSet) -> Option<Self> {
        let name = format!("towpath-bench-{}", std::process::id());
        for place in GROUPS {
            let group = Self { name: name.clone(), folder: Path::new(place).join(&name) };
            if std::fs::create_dir(&group.folder).is_err() || !group.folder.join("cpuset.cpus").exists() {
                continue;
            }
            // In version 1 no process may enter before the group's memory nodes are set.
            let nodes = std::fs::read_to_string(Path::new(place).join("cpuset.mems")).unwrap_or_default();
            if std::fs::write(group.folder.join("cpuset.cpus"), cpus.list()).is_ok()
                && (nodes.is_empty() || std::fs::write(group.folder.join("cpuset.mems"), nodes).is_ok())
            {
                return Some(group);
            }
        }
        None
    }
    /// The command, in the group from its first instruction on.
    fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        let procs = self.folder.join("cgroup.procs");
        inside.args(["-c", r#"echo $$ > "$0" && exec "$@""#]).arg(procs).arg(command.get_program());
        inside.args(command.get_args()).stdin(std::process::Stdio::null());
        if let Some(dir) = command.get_current_dir() {
            inside.current_dir(dir);
        }
        inside
    }
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn polled_packets_are_counted_by_the_kernel() {
        let text = "TcpExt: A BusyPollRxPackets B\nTcpExt: 1 42 3\nIpExt: BusyPollRxPackets\nIpExt: 7\n";
        assert_eq!((polled(text), polled(""), polled("TcpExt: A\nTcpExt: 1\n")), (42, 0, 0));
    }

    #[test]
    fn only_decisions_that_change_something_are_kept() {
        let line =
            |tick: u64, cores: u64, reason: &str| format!(r#"{{"tick":{tick},"cores":{cores},"reason":"{reason}"}}"#);
        let text = [line(1, 0, "calm"), line(2, 1, "busy"), line(3, 1, "calm"), "nothing".into(), line(4, 0, "worse")];
        let change = |s, cores, reason: &str| Change { s, cores, reason: reason.into() };
        assert_eq!(changes(&text.join("\n")), [change(2, 1, "busy"), change(4, 0, "worse")]);
    }
}
