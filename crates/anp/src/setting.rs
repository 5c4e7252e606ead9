//! What can be set: files of the kernel's, and what it takes by other ways. Each has a name, by which the journal knows it.

use crate::cpulist::CpuSet;
use crate::partition;
use crate::table::Table;
use std::fmt;

/// Longest name of an interface and one (`IFNAMSIZ`).
const NAME_SIZE: usize = 16;
/// More queues than any card has.
const MOST_QUEUES: u32 = 1 << 16;

/// One thing that can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// A file below `/proc` or `/sys`, by its path.
    File(String),
    /// `rss:eth1`: the card's indirection table. `default` (spread over all queues, also after their number changes), or each bucket's queue.
    Table(String),
    /// `napi-threaded:eth1:516`: is a NAPI instance polled by a thread of its own? `0` or `1`.
    NapiThreaded(String, u32),
    /// `napi-cpus:eth1:516`: where the thread of a NAPI instance may run, a list.
    NapiCpus(String, u32),
    /// `napi-cgroup:eth1:516`: the control group (version 2) in which the thread of a NAPI instance is, its folder.
    NapiGroup(String, u32),
    /// `cgroup:/sys/fs/cgroup/towpath-card`: is there this control group? [`Setting::PRESENT`] or [`Setting::ABSENT`].
    Group(String),
    /// `task:900:901:77`: where a thread may run, a list.
    Task(Task),
}

/// A thread, and nobody else who gets its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its process.
    pub process: u32,
    /// Its own number.
    pub thread: u32,
    /// When it started, in clock ticks since boot (proc_pid_stat(5), *starttime*).
    pub started: u64,
}

/// Files that the kernel writes as lists of CPUs.
const LISTS: [&str; 3] = ["_list", "cpuset.cpus", "cpuset.cpus.exclusive"];
/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";

impl Setting {
    /// There is such a control group.
    pub const PRESENT: &str = "present";
    /// There is none.
    pub const ABSENT: &str = "absent";

    /// Of a name. `None`: nothing that is ever set here has it.
    pub fn parse(name: &str) -> Option<Self> {
        if name.starts_with('/') {
            let below = name.starts_with("/proc/") || name.starts_with("/sys/");
            return (below && !name.split('/').any(|part| part == "..")).then(|| Self::File(name.to_owned()));
        }
        if let Some(folder) = name.strip_prefix("cgroup:") {
            return group(folder).filter(|folder| folder != GROUPS).map(Self::Group);
        }
        let parts: Vec<&str> = name.split(':').collect();
        match parts.as_slice() {
            ["rss", of] => Some(Self::Table(interface(of)?)),
            ["napi-threaded", of, id] => Some(Self::NapiThreaded(interface(of)?, id.parse().ok()?)),
            ["napi-cpus", of, id] => Some(Self::NapiCpus(interface(of)?, id.parse().ok()?)),
            ["napi-cgroup", of, id] => Some(Self::NapiGroup(interface(of)?, id.parse().ok()?)),
            ["task", process, thread, started] => {
                let (process, thread) = (process.parse().ok()?, thread.parse().ok()?);
                Some(Self::Task(Task { process, thread, started: started.parse().ok()? }))
            }
            _ => None,
        }
    }

    /// A command that gives it this value, or, where there is none for exactly that, the nearest to it.
    pub fn command(&self, value: &str) -> String {
        match self {
            Self::File(path) => format!("echo {value} > {path}"),
            Self::Table(interface) => format!("ethtool -X {interface} {}", shares(value)),
            Self::NapiThreaded(_, id) => {
                let threaded = if value == "0" { "disabled" } else { "enabled" };
                format!(r#"ynl --family netdev --do napi-set --json '{{"id": {id}, "threaded": "{threaded}"}}'"#)
            }
            Self::NapiCpus(interface, id) => format!("taskset -pc {value} $(pgrep -x napi/{interface}-{id})"),
            Self::NapiGroup(interface, id) => format!("pgrep -x napi/{interface}-{id} > {value}/cgroup.procs"),
            // It may be there already: of a plan for another number of CPUs.
            Self::Group(folder) => format!("{} {folder}", if value == Self::PRESENT { "mkdir -p" } else { "rmdir" }),
            Self::Task(task) => format!("taskset -pc {value} {}", task.thread),
        }
    }

    /// Do the two say the same of it? The kernel writes sets of CPUs with more zeros, or as lists, than it was given.
    pub fn same(&self, a: &str, b: &str) -> bool {
        let set = |text: &str| match self {
            Self::File(path) if LISTS.iter().any(|end| path.ends_with(end)) => CpuSet::of_list(text),
            Self::File(path) if partition::is_kind(path) => None,
            Self::File(_) => CpuSet::of_mask(text),
            Self::NapiCpus(..) | Self::Task(_) => CpuSet::of_list(text),
            Self::Table(_) | Self::NapiThreaded(..) | Self::NapiGroup(..) | Self::Group(_) => None,
        };
        a.trim() == b.trim() || matches!((set(a), set(b)), (Some(a), Some(b)) if a == b)
    }
}

/// The arguments of `ethtool -X` for these shares of the buckets.
fn shares(table: &str) -> String {
    let queues = Table::parse(table).unwrap_or_default();
    let Some(last) = queues.iter().max().filter(|last| **last < MOST_QUEUES) else { return "default".into() };
    if (0..).zip(&queues).all(|(bucket, queue): (u32, _)| bucket % (last + 1) == *queue) {
        return format!("equal {}", last + 1);
    }
    let mut weights = vec![0u32; *last as usize + 1];
    queues.iter().for_each(|queue| weights[*queue as usize] += 1);
    let weights: Vec<String> = weights.iter().map(ToString::to_string).collect();
    format!("weight {}", weights.join(" "))
}

/// The folder, if a control group can be there.
pub(crate) fn group(folder: &str) -> Option<String> {
    let below = folder.strip_prefix(GROUPS).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    (below && !folder.split('/').any(|part| part == "..")).then(|| folder.to_owned())
}

/// The name, if an interface can have it (`dev_valid_name`).
fn interface(name: &str) -> Option<String> {
    let fits = !name.is_empty() && name.len() < NAME_SIZE && name != "." && name != "..";
    let valid = fits && !name.bytes().any(|byte| byte == b'/' || byte == b':' || byte.is_ascii_whitespace());
    valid.then(|| name.to_owned())
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.write_str(path),
            Self::Table(interface) => write!(f, "rss:{interface}"),
            Self::NapiThreaded(interface, id) => write!(f, "napi-threaded:{interface}:{id}"),
            Self::NapiCpus(interface, id) => write!(f, "napi-cpus:{interface}:{id}"),
            Self::NapiGroup(interface, id) => write!(f, "napi-cgroup:{interface}:{id}"),
            Self::Group(folder) => write!(f, "cgroup:{folder}"),
            Self::Task(Task { process, thread, started }) => write!(f, "task:{process}:{thread}:{started}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        for name in [
            "/proc/irq/4/smp_affinity_list",
            "rss:eth1",
            "napi-threaded:eth1:516",
            "napi-cpus:eth1:516",
            "task:900:901:77",
        ] {
            assert_eq!(Setting::parse(name).unwrap().to_string(), name);
        }
    }

    #[test]
    fn what_is_nothing_to_be_set_has_no_name() {
        for name in [
            "",
            "x",
            "/etc/passwd",
            "/sys/../etc/passwd",
            "rss:",
            "rss:a/b",
            "rss:..",
            "rss:a:b",
            "napi-cpus:eth1:x",
            "napi-threaded:eth1",
            "task:1:2",
            "rss:a-name-longer-than-it-can-be",
        ] {
            assert_eq!(Setting::parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_table_is_told_by_its_shares() {
        let command = |value| Setting::parse("rss:eth1").unwrap().command(value);
        assert_eq!(command("default"), "ethtool -X eth1 default");
        assert_eq!(command("0 1 0 1"), "ethtool -X eth1 equal 2");
        assert_eq!(command("0 1 0 0"), "ethtool -X eth1 weight 3 1");
        assert_eq!(command("0 4294967295"), "ethtool -X eth1 default", "that is no queue");
    }

    proptest! {
        #[test]
        fn no_name_makes_it_panic(name in ".{0,40}") {
            let _ = Setting::parse(&name);
        }
    }
}
