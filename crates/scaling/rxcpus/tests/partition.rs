//! The reserved CPUs as a partition of control groups. A stand-in for the kernel answers each write, in any order.
#![allow(clippy::unwrap_used)]

mod common;

use common::Files;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use towpath_rxcpus::{
    CpuSet, Journal, JournalError, Knob, Machine, Partition, PartitionKind, Pool, Restored, SteeringWay, Tree, Writer,
    write_file,
};

const GROUPS: &str = "/sys/fs/cgroup";
const GROUP: &str = "/sys/fs/cgroup/towpath-rxcpus";
const KIND: &str = "/sys/fs/cgroup/towpath-rxcpus/cpuset.cpus.partition";
const APP: &str = "/sys/fs/cgroup/app/cpuset.cpus";

/// A machine with control groups of version 2, of a kernel that knows of exclusive CPUs or does not.
fn machine(exclusive: bool) -> Files {
    let files = Files::complete();
    files.put(&format!("{GROUPS}/cgroup.controllers"), "cpuset cpu io");
    files.put(&format!("{GROUPS}/cgroup.subtree_control"), "cpu cpuset");
    if exclusive {
        files.put(&format!("{APP}.exclusive"), "");
    }
    (516..520).for_each(|id| files.put(&format!("/kernel/napi-cgroup:eth1:{id}"), GROUPS));
    files
}

/// The kernel's answer to a write. It is stricter than Linux: a group that is a partition cannot be removed.
fn kernel(root: PathBuf, exclusive: bool) -> impl Fn(&Path, &str) -> io::Result<()> + Send + Sync {
    let place = move |path: &str| root.join(path.trim_start_matches('/'));
    let text = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    move |path, value| {
        let (group, kind) = (place(GROUP), place(KIND));
        if path == group {
            if value == "present" {
                std::fs::create_dir(&group)?;
                let names: &[&str] =
                    if exclusive { &["cpuset.cpus", "cpuset.cpus.exclusive"] } else { &["cpuset.cpus"] };
                names.iter().try_for_each(|name| std::fs::write(group.join(name), "\n"))?;
                return std::fs::write(kind, "member\n");
            }
            let inside = (516..520).any(|id| text(place(&format!("/kernel/napi-cgroup:eth1:{id}"))) == GROUP);
            let busy = inside || text(kind) != "member";
            return if busy { Err(io::Error::from_raw_os_error(16)) } else { std::fs::remove_dir_all(group) };
        }
        let now = text(kind.clone());
        // The kernel ignores a value that is already there, also an invalid one.
        if path != kind || !now.starts_with(&format!("{value} invalid")) {
            write_file(path, value)?;
        }
        let now = text(kind.clone());
        let cpus = |path| CpuSet::of_list(&text(path)).unwrap_or_default();
        let (own, apps) = (cpus(group.join("cpuset.cpus")), cpus(place(APP)));
        let whole = own.0.is_empty() || own.0.intersection(&apps.0).next().is_some();
        if whole && ["root", "isolated"].contains(&now.as_str()) {
            write_file(&kind, &format!("{now} invalid (Cpu list in cpuset.cpus not exclusive)"))?;
        }
        Ok(())
    }
}

fn tree(files: &Files, exclusive: bool) -> Tree {
    Tree::with_writer(&files.0, Arc::new(kernel(files.0.clone(), exclusive)))
}

/// From none to two, to three, and back to one. Two threads poll the device: every write waits for the disk, so more
/// would take long.
fn steps(files: &Files, kind: PartitionKind) -> Vec<Vec<Knob>> {
    let tree = Tree::at(&files.0);
    let mut pool = Pool::find(&Machine::read(&tree), Some("eth1")).unwrap();
    (pool.application, pool.way) = (Some(APP.into()), Some(SteeringWay::Threads));
    pool.partition = Some(Partition::find(&tree, kind).unwrap());
    pool.refresh(&tree);
    pool.interface.napis.truncate(2);
    let short = |knob: &Knob| !knob.path.contains("/queues/");
    let knobs = |(before, cores)| pool.plan(before, cores).unwrap().knobs.into_iter().filter(short).collect();
    [(0, 2), (2, 3), (3, 1)].map(knobs).into()
}

fn journal_of(files: &Files) -> PathBuf {
    files.0.with_extension("journal")
}

fn restore(files: &Files, exclusive: bool) -> Vec<Restored> {
    Journal::restore(&journal_of(files), &tree(files, exclusive), "boot-1").unwrap().unwrap()
}

#[test]
fn reserved_cpus_are_a_valid_partition_after_every_change_and_the_group_is_gone_at_the_end() {
    for (exclusive, kind) in [(false, PartitionKind::Root), (true, PartitionKind::Isolated)] {
        let files = machine(exclusive);
        let (before, steps, tree) = (files.snapshot(), steps(&files, kind), tree(&files, exclusive));
        let paths: Vec<&str> = steps[0].iter().map(|knob| knob.path.as_str()).collect();
        assert_eq!(paths[..2], [APP, &format!("cgroup:{GROUP}")], "applications leave first");
        assert_eq!(paths.last(), Some(&KIND), "nobody is driven away before all is there");
        let mut journal = Journal::create(&journal_of(&files), "boot-1").unwrap();
        for (step, cpus) in steps.iter().zip(["2,6", "2-3,6", "2"]) {
            journal.apply(&tree, step).unwrap();
            assert_eq!(tree.read(KIND).unwrap(), kind.name());
            assert_eq!(tree.read(&format!("{GROUP}/cpuset.cpus")).unwrap(), cpus);
            let also = tree.text(&format!("{GROUP}/cpuset.cpus.exclusive"));
            assert_eq!(also.as_deref(), exclusive.then_some(cpus));
            assert_eq!(tree.read("napi-cgroup:eth1:516").unwrap(), GROUP, "who polls is there as well");
            assert_eq!(journal.drifted(&tree), []);
        }
        drop(journal);
        let restored = restore(&files, exclusive);
        assert!(restored.iter().all(|result| matches!(result, Restored::Back { .. })), "{restored:?}");
        assert_eq!(files.snapshot(), before);
    }
}

/// A fault at one of the writes.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Refused,
    Ignored,
    KilledBefore,
    KilledAfter,
}

fn faulty(files: &Files, at: usize, fault: Fault) -> Tree {
    let (count, kernel) = (AtomicUsize::new(0), kernel(files.0.clone(), true));
    let writer: Arc<Writer> = Arc::new(move |path: &Path, value: &str| {
        let hit = count.fetch_add(1, Ordering::Relaxed) == at;
        match fault {
            Fault::Refused if hit => return Err(io::Error::from_raw_os_error(16)),
            Fault::Ignored if hit => return Ok(()),
            Fault::KilledBefore if hit => std::panic::resume_unwind(Box::new(())),
            _ => kernel(path, value)?,
        }
        if hit && matches!(fault, Fault::KilledAfter) {
            std::panic::resume_unwind(Box::new(()));
        }
        Ok(())
    });
    Tree::with_writer(&files.0, writer)
}

#[test]
fn whatever_fails_and_whoever_is_killed_at_any_write_leaves_no_partition_and_no_group() {
    for fault in [Fault::Refused, Fault::Ignored, Fault::KilledBefore, Fault::KilledAfter] {
        let files = machine(true);
        let (before, steps) = (files.snapshot(), steps(&files, PartitionKind::Root));
        let mut hit = 0;
        for at in 0..steps.iter().map(Vec::len).sum() {
            let tree = faulty(&files, at, fault);
            let mut journal = Journal::create(&journal_of(&files), "boot-1").unwrap();
            let mut whole = before.clone();
            let run = catch_unwind(AssertUnwindSafe(|| {
                steps.iter().try_for_each(|step| {
                    whole = files.snapshot();
                    journal.apply(&tree, step)
                })
            }));
            if let Ok(Err(error)) = &run {
                assert!(matches!(error, JournalError::Undone(_)), "{fault:?} at {at}: {error}");
                assert_eq!(files.snapshot(), whole, "{fault:?} at {at}: that step is taken back");
            }
            hit += usize::from(!matches!(run, Ok(Ok(()))));
            drop(journal);
            let restored = restore(&files, true);
            let bad = |result: &&Restored| matches!(result, Restored::Failed { .. } | Restored::Others { .. });
            assert_eq!(restored.iter().find(bad), None, "{fault:?} at {at}");
            assert_eq!(files.snapshot(), before, "{fault:?} at {at}");
        }
        assert!(hit >= 15, "{fault:?} was there only {hit} times");
    }
}

#[test]
fn a_partition_that_the_kernel_takes_and_calls_invalid_is_a_failure_with_its_reason() {
    let files = machine(true);
    let (tree, mut steps) = (tree(&files, true), steps(&files, PartitionKind::Root));
    // Another group has the reserved CPUs as well.
    steps[0].remove(0);
    files.put(APP, "0-7");
    let before = files.snapshot();
    let mut journal = Journal::create(&journal_of(&files), "boot-1").unwrap();
    let error = journal.apply(&tree, &steps[0]).unwrap_err().to_string();
    let reason =
        r#"was given "root" and says "root invalid (Cpu list in cpuset.cpus not exclusive)"; everything is as it was"#;
    assert!(error.ends_with(reason), "{error}");
    assert_eq!(files.snapshot(), before);
}

#[test]
fn a_partition_that_becomes_invalid_is_seen_made_valid_again_and_put_back_in_either_state() {
    for again in [true, false] {
        let files = machine(true);
        let (before, steps, tree) = (files.snapshot(), steps(&files, PartitionKind::Isolated), tree(&files, true));
        let mut journal = Journal::create(&journal_of(&files), "boot-1").unwrap();
        journal.apply(&tree, &steps[0]).unwrap();
        tree.write(APP, "0-7").unwrap();
        let drifted = journal.drifted(&tree);
        let names: Vec<&str> = drifted.iter().map(|(path, ..)| path.as_str()).collect();
        assert_eq!(names, [APP, KIND], "{drifted:?}");
        // It does not help while the other group has them.
        let error = journal.apply(&tree, &[Knob::new(KIND.into(), "isolated".into(), "")]).unwrap_err();
        assert!(matches!(error, JournalError::Undone(_)), "{error}");
        if again {
            for (path, ours, _) in drifted {
                journal.apply(&tree, &[Knob::new(path, ours, "")]).unwrap();
            }
            assert_eq!(tree.read(KIND).unwrap(), "isolated");
        }
        drop(journal);
        restore(&files, true);
        // The other group keeps its own value.
        files.put(APP, "");
        assert_eq!(files.snapshot(), before);
    }
}

#[test]
fn where_groups_have_no_cpusets_nothing_can_be_a_partition_and_it_is_said_why() {
    let files = machine(false);
    let find = || Partition::find(&Tree::at(&files.0), PartitionKind::Root).map_err(|error| error.to_string());
    assert_eq!(find().unwrap().folder(), GROUP);
    files.put(&format!("{GROUPS}/cgroup.subtree_control"), "cpu");
    let enable =
        "groups have no cpusets yet, so none can be a partition: echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control";
    assert_eq!(find(), Err(enable.into()));
    files.put(&format!("{GROUPS}/cgroup.controllers"), "cpu io");
    assert!(find().unwrap_err().contains("version 2 have no cpusets"), "{:?}", find());
    files.put(&format!("{GROUPS}/unified/cgroup.controllers"), "cpuset");
    files.put(&format!("{GROUPS}/unified/cgroup.subtree_control"), "cpuset");
    assert_eq!(find().unwrap().folder(), "/sys/fs/cgroup/unified/towpath-rxcpus", "beside version 1");
}

#[test]
fn processes_with_pinned_threads_are_named_where_the_kernel_would_forget_that() {
    let files = machine(false);
    let tree = Tree::at(&files.0);
    files.put(&format!("{GROUPS}/cpuset.cpus.effective"), "0-7");
    files.put(&format!("{GROUPS}/app/cpuset.cpus.effective"), "0-3");
    let process = |pid: u32, group: &str, threads: &[&str]| {
        files.put(&format!("/proc/{pid}/cgroup"), &format!("1:cpuset:/\n0::{group}"));
        for (tid, cpus) in threads.iter().enumerate() {
            let status = format!("Name:\tx\nVmSize:\t  4 kB\nCpus_allowed_list:\t{cpus}");
            files.put(&format!("/proc/{pid}/task/{}/status", pid + tid as u32), &status);
        }
    };
    process(10, "/", &["0-127"]);
    process(20, "/app", &["0-3", "0-3"]);
    process(30, "/app/inner", &["0-3", "2"]);
    process(40, "/", &["5"]);
    files.put("/proc/50/cgroup", "0::/");
    files.put("/proc/50/task/50/status", "Name:\tkthread\nCpus_allowed_list:\t3");
    let forgets = |release: &str| {
        files.put("/proc/sys/kernel/osrelease", release);
        Vec::from_iter(Partition::find(&tree, PartitionKind::Root).unwrap().forgets(&tree))
    };
    assert_eq!(forgets("6.1.0-56-amd64"), [30, 40]);
    assert_eq!(forgets("6.2.0"), [0u32; 0]);
    assert_eq!(forgets("6.12.1-x"), [0u32; 0]);
}
