//! The owner of each CPU, and why.

use super::decider_status::DeciderStatus;
use super::show::{now_ms, plain};
use serde::Serialize;
use std::collections::BTreeMap;
use towpath_rxcpus::{CpuSet, Machine, StackThread, Tree};

/// The use of each CPU since boot, in ticks of the kernel's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times(BTreeMap<u32, [u64; 3]>);

impl Times {
    /// Reads `/proc/stat`: busy time, its part in interrupts and softirqs, and all time.
    pub fn read(tree: &Tree) -> Self {
        let text = tree.text("/proc/stat").unwrap_or_default();
        let lines = text.lines().filter_map(|line| {
            let (name, fields) = line.split_once(' ')?;
            let cpu = name.strip_prefix("cpu")?.parse().ok()?;
            // user nice system idle iowait irq softirq steal. The fields after these are counted in user.
            let fields: Vec<u64> = fields.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
            let field = |place: usize| fields.get(place).copied().unwrap_or(0);
            let sum = |places: &[usize]| places.iter().fold(0u64, |sum, place| sum.saturating_add(field(*place)));
            Some((cpu, [sum(&[0, 1, 2, 5, 6, 7]), sum(&[5, 6]), sum(&[0, 1, 2, 3, 4, 5, 6, 7])]))
        });
        Self(lines.collect())
    }
    /// The busy and interrupted parts of a CPU's time since `before`.
    fn shares(&self, before: &Self, cpu: u32) -> Option<(f64, f64)> {
        let (now, then) = (self.0.get(&cpu)?, before.0.get(&cpu)?);
        let [busy, interrupted, all] = [0, 1, 2].map(|place| now[place].saturating_sub(then[place]) as f64);
        (all > 0.0).then(|| ((busy / all).min(1.0), (interrupted / all).min(1.0)))
    }
}

/// The owner of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// The receive path: the CPU is reserved for a network device.
    Receive,
    /// A thread of a stack is pinned to it.
    Stack,
    /// It does the machine's housekeeping, and is never reserved.
    Housekeeping,
    /// Any program.
    Applications,
}

impl Owner {
    fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Stack => "stack",
            Self::Housekeeping => "housekeeping",
            Self::Applications => "applications",
        }
    }
}

/// One CPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OwnedCpu {
    /// Its number.
    pub cpu: u32,
    /// Its NUMA node.
    pub node: u32,
    /// Its core. The core's hardware threads have the same number.
    pub core: u32,
    /// Its owner.
    pub owner: Owner,
    /// Why.
    pub why: String,
    /// The part of its time for which it works.
    pub busy: Option<f64>,
    /// The part of its time for interrupts and their work.
    pub interrupted: Option<f64>,
}

/// A condition that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alarm {
    /// One word.
    pub kind: &'static str,
    /// A sentence.
    pub text: String,
}

/// The owners of all CPUs, and the alarms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OwnerTable {
    /// Each CPU that is online.
    pub cpus: Vec<OwnedCpu>,
    /// Threads of stacks.
    pub threads: Vec<StackThread>,
    /// The alarms.
    pub alarms: Vec<Alarm>,
    /// The process that decides.
    pub allocator: Option<DeciderStatus>,
}

/// Inputs besides the tree.
pub struct Known<'a> {
    /// The status of the process that decides, if it is alive.
    pub status: Option<&'a DeciderStatus>,
    /// True if there is a journal.
    pub journal: bool,
    /// The times of the sample before.
    pub before: &'a Times,
}

impl OwnerTable {
    /// Reads it.
    pub fn read(tree: &Tree, known: &Known) -> Self {
        let machine = Machine::read(tree);
        let now = Times::read(tree);
        let threads = StackThread::find(tree, &machine.online(), &reserved(known.status));
        let owner = |cpu| owner(&machine, &threads, known.status, cpu);
        let cpus = machine.cpus.iter().map(|cpu| {
            let (owner, why) = owner(cpu.number);
            let shares = now.shares(known.before, cpu.number);
            let (busy, interrupted) = (shares.map(|(busy, _)| busy), shares.map(|(_, interrupted)| interrupted));
            OwnedCpu { cpu: cpu.number, node: cpu.node, core: cpu.core, owner, why: plain(&why), busy, interrupted }
        });
        let cpus = cpus.collect();
        let alarms = alarms(known, &threads);
        Self { cpus, threads, alarms, allocator: known.status.cloned() }
    }
}

/// The CPUs that an `enforce` has reserved.
fn reserved(status: Option<&DeciderStatus>) -> CpuSet {
    let enforced = status.filter(|status| status.mode == "enforce");
    enforced.and_then(|status| CpuSet::of_list(&status.reserved)).unwrap_or_default()
}

fn owner(machine: &Machine, threads: &[StackThread], status: Option<&DeciderStatus>, cpu: u32) -> (Owner, String) {
    if let Some(status) = status.filter(|_| reserved(status).0.contains(&cpu)) {
        return (Owner::Receive, format!("receives for {} ({}), pid {}", status.interface, status.way, status.pid));
    }
    let pinned = threads.iter().filter(|thread| thread.pinned && thread.cpus.0.contains(&cpu));
    let pinned: Vec<String> = pinned.map(|of| format!("{} of {} {}", of.name, of.program, of.pid)).collect();
    if !pinned.is_empty() {
        return (Owner::Stack, format!("{} pinned", pinned.join(", ")));
    }
    if machine.cpus.iter().map(|cpu| cpu.number).min() == Some(cpu) {
        return (Owner::Housekeeping, "the first CPU is never reserved".into());
    }
    let confined = status.filter(|status| status.mode == "enforce" && status.cores > 0);
    match confined.and_then(|status| status.cgroup.as_ref()) {
        Some(file) => {
            let group = file.trim_start_matches("/sys/fs/cgroup").trim_end_matches("/cpuset.cpus");
            (Owner::Applications, format!("{group} and all others"))
        }
        None => (Owner::Applications, "whatever runs".into()),
    }
}

/// Stack threads that are pinned to reserved CPUs, each with a report.
fn overlapping<'a>(status: &DeciderStatus, threads: &'a [StackThread]) -> Vec<(&'a StackThread, String)> {
    let reserved = reserved(Some(status));
    let both = |thread: &StackThread| CpuSet(thread.cpus.0.intersection(&reserved.0).copied().collect());
    let pinned = threads.iter().filter(|thread| thread.pinned && !both(thread).is_empty());
    let said = |thread: &'a StackThread| {
        let StackThread { name, program, pid, .. } = thread;
        let both = both(thread);
        let are = if both.0.len() == 1 { "is" } else { "are" };
        let (both, interface) = (both.named(), &status.interface);
        let text = format!("{name} of {program} {pid} is pinned to {both}, which {are} reserved for {interface}");
        (thread, plain(&text))
    };
    pinned.map(said).collect()
}

/// Reports of threads that are pinned to reserved CPUs, of this process or of all. Empty if no CPU is reserved.
pub fn overlaps(pid: Option<u32>) -> Vec<String> {
    let tree = Tree::default();
    let Ok(Some(status)) = DeciderStatus::find(None) else { return Vec::new() };
    let threads = StackThread::find(&tree, &Machine::read(&tree).online(), &reserved(Some(&status)));
    let said = overlapping(&status, &threads).into_iter();
    said.filter(|(thread, _)| pid.is_none_or(|pid| thread.pid == pid)).map(|(_, text)| text).collect()
}

fn alarms(known: &Known, threads: &[StackThread]) -> Vec<Alarm> {
    let mut alarms = Vec::new();
    let mut add = |kind, text: String| alarms.push(Alarm { kind, text: plain(&text) });
    if known.journal && known.status.is_none_or(|status| status.mode != "enforce") {
        add("abandoned", "an `enforce` was killed and has left its settings: sudo towpath cores restore".into());
    }
    let Some(status) = known.status else { return alarms };
    if status.is_stalled() {
        let seconds = now_ms().saturating_sub(status.time_ms) / 1000;
        add("stalled", format!("pid {} has decided nothing for {seconds} s", status.pid));
    }
    match status.last() {
        Some(last) if last.reason == "saturated" => add("saturated", last.why.clone()),
        Some(last) if last.reason == "fused" => add("fused", last.why.clone()),
        _ => {}
    }
    for path in &status.drifted {
        add("drift", format!("{path} was changed by somebody else (irqbalance, TuneD?)"));
    }
    for (_, text) in overlapping(status, threads) {
        add("overlap", text);
    }
    alarms
}

impl OwnerTable {
    /// For people.
    pub fn text(&self) -> String {
        self.table() + &self.foot()
    }
    /// The table of CPUs.
    pub fn table(&self) -> String {
        let mut text = String::from("CPU  node  busy                   of it irq  owner         why\n");
        for cpu in &self.cpus {
            let percent =
                |share: Option<f64>| share.map_or_else(|| "-".into(), |share| format!("{:.0} %", 100.0 * share));
            text.push_str(&format!(
                "{:>3}  {:>4}  {:<16} {:>5}  {:>9}  {:<12}  {}\n",
                cpu.cpu,
                cpu.node,
                bar(cpu.busy.unwrap_or(0.0)),
                percent(cpu.busy),
                percent(cpu.interrupted),
                cpu.owner.name(),
                cpu.why
            ));
        }
        for thread in self.threads.iter().filter(|thread| !thread.pinned) {
            let all = thread.cpus.0.len() == self.cpus.len();
            let place = if all { "any CPU".to_owned() } else { thread.cpus.named() };
            let line = format!("{} of {} {}: on {place}", thread.name, thread.program, thread.pid);
            text.push_str(&(plain(&line) + "\n"));
        }
        text
    }
    /// The process that decides, and the alarms.
    pub fn foot(&self) -> String {
        let mut text = String::new();
        match &self.allocator {
            Some(status) => text.push_str(&(status.headline() + "\n")),
            None => text.push_str("nobody decides (`towpath cores enforce`)\n"),
        }
        for alarm in &self.alarms {
            text.push_str(&format!("ALARM {}: {}\n", alarm.kind, alarm.text));
        }
        text
    }
}

/// A bar of 16 places.
fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * 16.0).round() as usize;
    "#".repeat(full) + &".".repeat(16 - full)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::receive_cpus::decider_status::RecentDecision;
    use crate::receive_cpus::show::Entry;
    use std::fs;
    use std::path::PathBuf;

    /// Four CPUs. A service's core is pinned to the last.
    struct Fake(PathBuf);
    impl Fake {
        fn new(name: &str) -> Self {
            let fake = Self(std::env::temp_dir().join(format!("towpath-owners-{}-{name}", std::process::id())));
            fake.put("sys/devices/system/cpu/online", "0-3");
            fake.put("proc/stat", &Self::stat(100, 100));
            fake.put("proc/7/comm", "towpathd");
            for (tid, name, cpus) in [(8, "fast-0", "3"), (9, "slow", "0-3")] {
                fake.put(&format!("proc/7/task/{tid}/comm"), name);
                fake.put(
                    &format!("proc/7/task/{tid}/status"),
                    &format!("Uid:\t0\t0\t0\t0\nCpus_allowed_list:\t{cpus}"),
                );
            }
            fake
        }
        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        /// All CPUs have worked and idled for this long. A quarter of the work was softirqs.
        fn stat(busy: u64, idle: u64) -> String {
            let line = |cpu: u32| format!("cpu{cpu} {} 0 0 {idle} 0 0 {} 0 0 0", busy - busy / 4, busy / 4);
            (0..4).map(line).fold("cpu  1 2 3".to_owned(), |all, line| all + "\n" + &line)
        }
        fn picture(&self, status: Option<&DeciderStatus>, journal: bool, before: &Times) -> OwnerTable {
            OwnerTable::read(&Tree::at(&self.0), &Known { status, journal, before })
        }
    }
    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
    fn status(reserved: &str, reason: &str) -> DeciderStatus {
        let entry = Entry { reason: reason.into(), why: "because".into(), ..Entry::default() };
        DeciderStatus {
            mode: "enforce".into(),
            interface: "eth1\x1b[2J".into(),
            way: "rss".into(),
            pid: 77,
            time_ms: now_ms(),
            cores: 1,
            reserved: reserved.into(),
            cgroup: Some("/sys/fs/cgroup/web/cpuset.cpus".into()),
            decisions: vec![RecentDecision { ticks: 1, entry }],
            ..DeciderStatus::default()
        }
    }
    fn kinds(picture: &OwnerTable) -> Vec<&str> {
        picture.alarms.iter().map(|alarm| alarm.kind).collect()
    }

    #[test]
    fn each_cpu_has_an_owner_and_a_share() {
        let fake = Fake::new("owners");
        let before = Times::read(&Tree::at(&fake.0));
        fake.put("proc/stat", &Fake::stat(180, 120));
        let status = status("1", "steady");
        let picture = fake.picture(Some(&status), true, &before);
        let owners: Vec<Owner> = picture.cpus.iter().map(|cpu| cpu.owner).collect();
        assert_eq!(owners, [Owner::Housekeeping, Owner::Receive, Owner::Applications, Owner::Stack]);
        assert_eq!((picture.cpus[1].busy, picture.cpus[1].interrupted), (Some(0.8), Some(0.2)));
        assert_eq!(picture.cpus[2].why, "/web and all others");
        assert_eq!(kinds(&picture), Vec::<&str>::new());
        let text = picture.text();
        assert!(!text.contains('\x1b'), "what a name has in it does not move the cursor: {text:?}");
        assert!(text.contains("slow of towpathd 7: on any CPU"), "{text}");
        // A process that only observes owns nothing.
        let observed = DeciderStatus { mode: "observe".into(), ..status };
        assert_eq!(fake.picture(Some(&observed), false, &before).cpus[1].owner, Owner::Applications);
    }

    #[test]
    fn what_somebody_should_look_at_is_an_alarm() {
        let fake = Fake::new("alarms");
        let of = |status: &DeciderStatus| kinds(&fake.picture(Some(status), true, &Times::default())).join(" ");
        assert_eq!(of(&status("1", "saturated")), "saturated");
        assert_eq!(of(&status("1", "fused")), "fused");
        assert_eq!(of(&status("2-3", "steady")), "overlap");
        assert_eq!(of(&DeciderStatus { drifted: vec!["/sys/x".into()], ..status("1", "steady") }), "drift");
        assert_eq!(of(&DeciderStatus { time_ms: now_ms() - 60_000, ..status("1", "steady") }), "stalled");
        assert_eq!(kinds(&fake.picture(None, true, &Times::default())), ["abandoned"]);
        assert_eq!(kinds(&fake.picture(None, false, &Times::default())), Vec::<&str>::new());
    }
}
