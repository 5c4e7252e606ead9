//! The stack threads of Towpath's services on this machine, and their CPUs.

use crate::cpulist::CpuSet;
use crate::tree::Tree;
use serde::Serialize;

/// Names of the programs that have such threads.
const PROGRAMS: [&str; 2] = ["towpath", "towpathd"];
/// Most processes and threads that are looked at.
const MOST: usize = 100_000;

/// A thread of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StackThread {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The process's effective user.
    pub uid: u32,
    /// The program.
    pub program: String,
    /// The thread's name: `fast-N` and `slow` of the fast stack, `kernel-N` of the kernel stack.
    pub name: String,
    /// The CPUs that it may run on.
    #[serde(serialize_with = "crate::cpulist::serialize_list")]
    pub cpus: CpuSet,
    /// True if it may not run on all CPUs that are not reserved, or not on those of its process's other threads.
    pub pinned: bool,
}

/// True if a stack's threads have such a name.
fn is_stack(name: &str) -> bool {
    let numbered = |prefix| name.strip_prefix(prefix).is_some_and(|number: &str| number.parse::<u32>().is_ok());
    name == "slow" || numbered("fast-") || numbered("kernel-")
}

/// The value of a field in a `status` file (proc_pid_status(5)).
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

impl StackThread {
    /// All stack threads, by process and thread, on a machine with these CPUs, some of them reserved.
    ///
    /// Any user can give a thread such a name, so check the user before a thread counts.
    pub fn find(tree: &Tree, online: &CpuSet, reserved: &CpuSet) -> Vec<Self> {
        let mut found = Vec::new();
        let pids = tree.names("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok()).take(MOST);
        for pid in pids {
            let program = tree.text(&format!("/proc/{pid}/comm")).filter(|name| PROGRAMS.contains(&name.as_str()));
            let Some(program) = program else { continue };
            let tids = tree.names(&format!("/proc/{pid}/task")).into_iter().filter_map(|tid| tid.parse::<u32>().ok());
            // A thread that has ended meanwhile is left out.
            found.extend(tids.take(MOST).filter_map(|tid| thread(tree, (pid, tid), &program, (online, reserved))));
        }
        found.sort_by_key(|thread| (thread.pid, thread.tid));
        found
    }
}

fn thread(
    tree: &Tree,
    (pid, tid): (u32, u32),
    program: &str,
    (online, reserved): (&CpuSet, &CpuSet),
) -> Option<StackThread> {
    let at = format!("/proc/{pid}/task/{tid}");
    let name = tree.text(&format!("{at}/comm")).filter(|name| is_stack(name))?;
    let status = tree.text(&format!("{at}/status"))?;
    let uid = field(&status, "Uid")?.split_whitespace().nth(1)?.parse().ok()?;
    let cpus = allowed(&status, online)?;
    // A service keeps all its threads off reserved CPUs, and so does a control group. That is no pinning. A thread that
    // is pinned to the only CPU that is not reserved differs from its process's main thread, which is never pinned.
    let first = tree.text(&format!("/proc/{pid}/task/{pid}/status")).and_then(|status| allowed(&status, online));
    let alone = first.is_some_and(|first| first != cpus);
    let pinned = alone || !online.without(reserved).without(&cpus).is_empty();
    Some(StackThread { pid, tid, uid, program: program.to_owned(), name, cpus, pinned })
}

/// The CPUs of `online` on which a thread may run, by its `status`.
fn allowed(status: &str, online: &CpuSet) -> Option<CpuSet> {
    let allowed = CpuSet::of_list(field(status, "Cpus_allowed_list")?)?;
    Some(CpuSet(allowed.0.intersection(&online.0).copied().collect()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    struct Fake(PathBuf);
    impl Fake {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("towpath-stacks-{}-{name}", std::process::id())))
        }
        fn process(&self, pid: u32, program: &str, threads: &[(u32, &str, &str)]) {
            for (tid, name, cpus) in threads {
                let at = self.0.join(format!("proc/{pid}/task/{tid}"));
                fs::create_dir_all(&at).unwrap();
                fs::write(self.0.join(format!("proc/{pid}/comm")), format!("{program}\n")).unwrap();
                fs::write(at.join("comm"), format!("{name}\n")).unwrap();
                let status = format!("Name:\t{name}\nUid:\t1000\t1001\t1000\t1000\nCpus_allowed_list:\t{cpus}\n");
                fs::write(at.join("status"), status).unwrap();
            }
        }
    }
    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_threads_of_stacks_are_found_and_nobody_elses() {
        let fake = Fake::new("found");
        fake.process(10, "towpathd", &[(10, "towpathd", "0-3"), (11, "slow", "0-3"), (12, "fast-0", "2")]);
        fake.process(20, "nginx", &[(20, "fast-0", "1")]);
        fake.process(9, "towpath", &[(9, "towpath", "0-3"), (30, "kernel-7", "0-7"), (31, "kernel-x", "1")]);
        let online = CpuSet::of_list("0-3").unwrap();
        let found = StackThread::find(&Tree::at(&fake.0), &online, &CpuSet::default());
        let seen: Vec<_> = found.iter().map(|t| (t.pid, t.tid, t.name.as_str(), t.cpus.list(), t.pinned)).collect();
        let all = || "0-3".to_owned();
        let expected =
            [(9, 30, "kernel-7", all(), false), (10, 11, "slow", all(), false), (10, 12, "fast-0", "2".into(), true)];
        assert_eq!(seen, expected);
        assert_eq!(found[0].uid, 1001, "the effective user");
    }

    #[test]
    fn who_keeps_off_reserved_cpus_is_not_pinned_to_the_others() {
        let fake = Fake::new("moved");
        fake.process(10, "towpathd", &[(11, "fast-0", "0,2-3"), (12, "fast-1", "2-3"), (13, "fast-2", "1")]);
        let pinned = |reserved: &str| {
            let (online, reserved) = (CpuSet::of_list("0-3").unwrap(), CpuSet::of_list(reserved).unwrap());
            let found = StackThread::find(&Tree::at(&fake.0), &online, &reserved);
            found.iter().map(|thread| thread.pinned).collect::<Vec<_>>()
        };
        assert_eq!(pinned(""), [true, true, true]);
        assert_eq!(pinned("1"), [false, true, true]);
        assert_eq!(pinned("0-1"), [false, false, true]);
        fake.process(10, "towpathd", &[(10, "towpathd", "0,2-3")]);
        assert_eq!(pinned("0-1"), [false, true, true], "it is not where its process is");
    }
}
