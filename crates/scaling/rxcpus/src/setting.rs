//! The settings: files of the kernel, and values that it takes in other ways. The journal knows each by its name.

use crate::cgroup;
use crate::cpulist::CpuSet;
use crate::table::Table;
use std::fmt;

/// Size of an interface's name with its terminating zero (`IFNAMSIZ`).
const NAME_SIZE: usize = 16;
/// More queues than any device has.
const MOST_QUEUES: u32 = 1 << 16;

/// One thing that can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// A file below `/proc` or `/sys`, by its path.
    File(String),
    /// `rss:eth1`: the device's indirection table. Either each bucket's queue, or `default`: spread over all queues,
    /// also when their number changes.
    Table(String),
    /// `napi-threaded:eth1:516`: `1` if a thread of its own polls a NAPI instance, else `0`.
    NapiThreaded(String, u32),
    /// `napi-cpus:eth1:516`: the CPUs on which the thread of a NAPI instance may run, a list.
    NapiCpus(String, u32),
    /// `napi-cgroup:eth1:516`: the folder of the control group (version 2) of a NAPI instance's thread.
    NapiGroup(String, u32),
    /// `cgroup:/sys/fs/cgroup/towpath-rxcpus`: whether this control group exists, [`Setting::PRESENT`] or
    /// [`Setting::ABSENT`].
    Group(String),
    /// `task:900:901:77`: the CPUs on which a thread may run, a list.
    Task(Task),
}

/// A thread. The time of its start tells it from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its process.
    pub process: u32,
    /// Its own number.
    pub thread: u32,
    /// When it started, in clock ticks since boot (proc_pid_stat(5), *starttime*).
    pub started: u64,
}

/// The time of start in a thread's `stat`: the twentieth field after its name (proc_pid_stat(5)). The name may contain
/// spaces and brackets.
pub fn started(stat: &str) -> Option<u64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// Files that the kernel prints as lists of CPUs.
const LISTS: [&str; 3] = ["_list", "cpuset.cpus", "cpuset.cpus.exclusive"];

impl Setting {
    /// The control group exists.
    pub const PRESENT: &str = "present";
    /// It does not.
    pub const ABSENT: &str = "absent";

    /// The setting of this name. `None`: no setting has it.
    pub fn parse(name: &str) -> Option<Self> {
        if name.starts_with('/') {
            let below = name.starts_with("/proc/") || name.starts_with("/sys/");
            return (below && !name.split('/').any(|part| part == "..")).then(|| Self::File(name.to_owned()));
        }
        if let Some(folder) = name.strip_prefix("cgroup:") {
            return cgroup::folder(folder).filter(|folder| folder != cgroup::ROOT).map(Self::Group);
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

    /// A command that gives it this value, or the nearest to it.
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
            // It may exist already, from a plan for another number of CPUs.
            Self::Group(folder) => format!("{} {folder}", if value == Self::PRESENT { "mkdir -p" } else { "rmdir" }),
            Self::Task(task) => format!("taskset -pc {value} {}", task.thread),
        }
    }

    /// True if both values mean the same. The kernel may print a set of CPUs with more zeros, or as a list.
    pub fn same(&self, a: &str, b: &str) -> bool {
        let set = |text: &str| match self {
            Self::File(path) if LISTS.iter().any(|end| path.ends_with(end)) => CpuSet::of_list(text),
            Self::File(path) if cgroup::is_partition_file(path) => None,
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

    #[test]
    fn the_start_is_found_behind_any_name() {
        let rest = (0..30).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        for name in ["(a", "(a b", "(a) b", "("] {
            assert_eq!(started(&format!("7 {name}) {rest}")), Some(19), "{name}");
        }
        assert_eq!((started(""), started("1 (a) 1 2"), started("1 (a) ")), (None, None, None));
    }

    proptest! {
        #[test]
        fn no_name_makes_it_panic(name in ".{0,40}") {
            let _ = Setting::parse(&name);
        }
    }
}
