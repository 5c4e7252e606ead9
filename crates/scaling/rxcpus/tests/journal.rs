//! After any failure, and after a kill at any moment, every file is as it was.
#![allow(clippy::unwrap_used)]

mod common;

use common::Files;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use towpath_rxcpus::{Journal, JournalError, Knob, Machine, Pool, Restored, SteeringWay, Tree, write_file};

fn journal_of(files: &Files) -> PathBuf {
    files.0.with_extension("journal")
}

/// The changes from none to two and then to three CPUs, in any way. It covers all settings.
fn growth(files: &Files) -> Vec<Vec<Knob>> {
    let tree = Tree::at(&files.0);
    let mut pool = Pool::find(&Machine::read(&tree), Some("eth1")).unwrap();
    pool.application = Some("/sys/fs/cgroup/app/cpuset.cpus".into());
    (pool.processes, pool.xps) = (vec![900], true);
    pool.refresh(&tree);
    let mut growth = Vec::new();
    for (before, cores) in [(0, 2), (2, 3)] {
        let rss = pool.plan(before, cores).unwrap();
        pool.way = Some(SteeringWay::Threads);
        let threads = pool.plan(before, cores).unwrap().knobs.into_iter().filter(|knob| knob.path.starts_with("napi"));
        pool.way = None;
        assert_eq!(rss.way, SteeringWay::Rss);
        growth.push(rss.knobs.into_iter().chain(threads).collect());
    }
    growth
}

/// A fault at one of the writes.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The kernel refuses.
    Refused(i32),
    /// The kernel accepts, and sets another value.
    Other,
    /// The process is killed before the write.
    KilledBefore,
    /// The process is killed after the write.
    KilledAfter,
}

struct Killed;

/// The `at`-th write has this fault.
fn faulty(files: &Files, at: usize, fault: Fault) -> Tree {
    let count = AtomicUsize::new(0);
    let writer = move |path: &Path, value: &str| {
        let now = count.fetch_add(1, Ordering::Relaxed);
        match fault {
            Fault::Refused(errno) if now == at => Err(io::Error::from_raw_os_error(errno)),
            Fault::Other if now == at => write_file(path, "5"),
            Fault::KilledBefore if now == at => std::panic::resume_unwind(Box::new(Killed)),
            Fault::KilledAfter if now == at => {
                write_file(path, value)?;
                std::panic::resume_unwind(Box::new(Killed))
            }
            _ => write_file(path, value),
        }
    };
    Tree::with_writer(&files.0, Arc::new(writer))
}

fn writes_of(growth: &[Vec<Knob>]) -> usize {
    growth.iter().map(Vec::len).sum()
}

#[test]
fn a_failure_at_any_write_takes_everything_of_that_step_back() {
    for fault in [Fault::Refused(5), Fault::Refused(28), Fault::Refused(16), Fault::Other] {
        let files = Files::complete();
        let (growth, before) = (growth(&files), files.snapshot());
        let mut failed = 0;
        for at in 0..writes_of(&growth) {
            let path = journal_of(&files);
            let tree = faulty(&files, at, fault);
            let mut journal = Journal::create(&path, "boot-1").unwrap();
            let first = journal.apply(&tree, &growth[0]);
            let between = files.snapshot();
            let second = if first.is_ok() { journal.apply(&tree, &growth[1]) } else { Ok(()) };
            match (&first, &second) {
                (Err(JournalError::Undone(_)), _) => assert_eq!(between, before, "{fault:?} at {at}"),
                (Ok(()), Err(JournalError::Undone(_))) => assert_eq!(files.snapshot(), between, "{fault:?} at {at}"),
                // A knob that already has its value is not written.
                (Ok(()), Ok(())) => {}
                other => panic!("{fault:?} at {at}: {other:?}"),
            }
            failed += usize::from(first.is_err() || second.is_err());
            drop(journal);
            Journal::restore(&path, &Tree::at(&files.0), "boot-1").unwrap().unwrap();
            assert_eq!(files.snapshot(), before, "{fault:?} at {at}");
            assert!(!path.exists());
        }
        assert!(failed >= 10, "{fault:?} was there only {failed} times");
    }
}

#[test]
fn whoever_is_killed_at_any_write_has_left_a_journal_that_puts_everything_back() {
    for fault in [Fault::KilledBefore, Fault::KilledAfter] {
        let files = Files::complete();
        let (growth, before) = (growth(&files), files.snapshot());
        let mut killed = 0;
        for at in 0..writes_of(&growth) {
            let path = journal_of(&files);
            let tree = faulty(&files, at, fault);
            let mut journal = Journal::create(&path, "boot-1").unwrap();
            let run =
                catch_unwind(AssertUnwindSafe(|| growth.iter().try_for_each(|knobs| journal.apply(&tree, knobs))));
            killed += usize::from(run.is_err());
            drop(journal);
            let restored = Journal::restore(&path, &Tree::at(&files.0), "boot-1").unwrap().unwrap();
            assert!(restored.iter().all(|result| matches!(result, Restored::Back { .. })), "{restored:?}");
            assert_eq!(files.snapshot(), before, "{fault:?} at {at}");
        }
        assert!(killed >= 10, "{fault:?} was there only {killed} times");
    }
}

#[test]
fn a_journal_that_was_cut_off_anywhere_still_puts_everything_back() {
    let files = Files::complete();
    let (growth, before, path) = (growth(&files), files.snapshot(), journal_of(&files));
    let tree = Tree::at(&files.0);
    let mut journal = Journal::create(&path, "boot-1").unwrap();
    journal.apply(&tree, &growth[0]).unwrap();
    let (whole, changed) = (std::fs::read(&path).unwrap(), files.snapshot());
    // If its line is not whole on the disk, the last change was not made.
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let knob = growth[0].last().unwrap();
    for cut in last..=whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        if cut < whole.len() {
            let old = before.iter().find(|(path, _)| path.ends_with(knob.path.trim_start_matches('/'))).unwrap();
            write_file(old.0, old.1).unwrap();
        }
        Journal::restore(&path, &tree, "boot-1").unwrap().unwrap();
        assert_eq!(files.snapshot(), before, "cut at {cut}");
        changed.iter().for_each(|(path, text)| write_file(path, text).unwrap());
    }
}

#[test]
fn what_others_have_changed_since_stays_and_is_named() {
    let files = Files::complete();
    let (growth, path, tree) = (growth(&files), journal_of(&files), Tree::at(&files.0));
    let mut journal = Journal::create(&path, "boot-1").unwrap();
    journal.apply(&tree, &growth[0]).unwrap();
    assert_eq!(journal.drifted(&tree), []);
    files.put("/proc/irq/41/smp_affinity_list", "5");
    assert_eq!(journal.drifted(&tree), [("/proc/irq/41/smp_affinity_list".into(), "2".into(), "5".into())]);
    std::fs::remove_file(files.0.join("proc/irq/42/smp_affinity_list")).unwrap();
    drop(journal);
    assert!(
        matches!(Journal::create(&path, "boot-1"), Err(JournalError::Stale(_))),
        "nobody starts over what is not put back"
    );
    let restored = Journal::restore(&path, &tree, "boot-1").unwrap().unwrap();
    let others = Restored::Others { path: "/proc/irq/41/smp_affinity_list".into(), value: "5".into() };
    assert!(restored.contains(&others), "{restored:?}");
    assert!(restored.contains(&Restored::Gone { path: "/proc/irq/42/smp_affinity_list".into() }), "{restored:?}");
    assert_eq!(tree.read("/proc/irq/40/smp_affinity_list").unwrap(), "0-7");
    assert_eq!(Journal::restore(&path, &tree, "boot-1").unwrap(), None, "once is enough");
}

#[test]
fn a_group_that_cannot_follow_its_parent_again_gets_all_that_the_parent_has() {
    let files = Files::complete();
    files.put("/sys/fs/cgroup/cpuset.cpus.effective", "0-6");
    let (growth, path) = (growth(&files), journal_of(&files));
    // The kernel does so while there are processes in it.
    let writer = |path: &Path, value: &str| {
        let empties = path.ends_with("cpuset.cpus") && value.is_empty();
        if empties { Err(io::Error::from_raw_os_error(28)) } else { write_file(path, value) }
    };
    let tree = Tree::with_writer(&files.0, Arc::new(writer));
    let mut journal = Journal::create(&path, "boot-1").unwrap();
    journal.apply(&tree, &growth[0]).unwrap();
    let restored = Journal::restore(&path, &tree, "boot-1").unwrap().unwrap();
    let group = Restored::Back { path: "/sys/fs/cgroup/app/cpuset.cpus".into(), value: "0-6".into() };
    assert!(restored.contains(&group), "{restored:?}");
    assert!(!path.exists());
}

#[test]
fn threads_born_while_their_process_is_confined_are_freed_with_it() {
    let files = Files::complete();
    let (growth, path, tree) = (growth(&files), journal_of(&files), Tree::at(&files.0));
    let mut journal = Journal::create(&path, "boot-1").unwrap();
    journal.apply(&tree, &growth[0]).unwrap();
    let confined = tree.read("task:900:900:19").unwrap();
    files.born(902, &confined);
    files.born(903, "4");
    Journal::restore(&path, &tree, "boot-1").unwrap().unwrap();
    let has = |thread| tree.read(&format!("task:900:{thread}:19")).unwrap();
    assert_eq!([900, 901, 902, 903].map(has), ["0-7", "0-7", "0-7", "4"], "one has chosen its CPU itself since");
}

#[test]
fn what_is_not_wanted_any_more_is_given_back_before_the_end_and_not_watched_over() {
    let files = Files::complete();
    let (growth, path, tree) = (growth(&files), journal_of(&files), Tree::at(&files.0));
    let before = files.snapshot();
    let mut journal = Journal::create(&path, "boot-1").unwrap();
    journal.apply(&tree, &growth[0]).unwrap();
    files.put("/proc/irq/42/smp_affinity_list", "5");
    let wanted: Vec<Knob> = growth[0].iter().filter(|knob| knob.path.starts_with("rss:")).cloned().collect();
    journal.release(&tree, &wanted);
    assert_eq!(tree.read("/proc/irq/41/smp_affinity_list").unwrap(), "0-7", "ours is given back");
    assert_eq!(tree.read("/proc/irq/42/smp_affinity_list").unwrap(), "5", "what another has set stays");
    assert_ne!(tree.read("rss:eth1").unwrap(), "default", "what is wanted stays");
    files.put("/proc/irq/41/smp_affinity_list", "3");
    assert_eq!(journal.drifted(&tree), [], "it is others' again");
    files.put("/proc/irq/41/smp_affinity_list", "0-7");
    files.put("/proc/irq/42/smp_affinity_list", "0-7");
    Journal::restore(&path, &tree, "boot-1").unwrap().unwrap();
    assert_eq!(files.snapshot(), before);
}

#[test]
fn a_journal_of_the_version_before_is_put_back() {
    let files = Files::complete();
    let (path, tree) = (journal_of(&files), Tree::at(&files.0));
    let head = "{\"version\":1,\"boot_id\":\"boot-1\"}\n";
    let line = "{\"path\":\"/proc/irq/41/smp_affinity_list\",\"before\":\"1\",\"value\":\"0-7\"}\n";
    std::fs::write(&path, format!("{head}{line}")).unwrap();
    Journal::restore(&path, &tree, "boot-1").unwrap().unwrap();
    assert_eq!(tree.read("/proc/irq/41/smp_affinity_list").unwrap(), "1");
}

#[test]
fn after_a_boot_there_is_nothing_to_put_back_and_what_is_no_journal_is_said_to_be_none() {
    let files = Files::complete();
    let (growth, path, tree) = (growth(&files), journal_of(&files), Tree::at(&files.0));
    let mut journal = Journal::create(&path, "boot-1").unwrap();
    journal.apply(&tree, &growth[0]).unwrap();
    let changed = files.snapshot();
    assert_eq!(Journal::restore(&path, &tree, "boot-2").unwrap().unwrap(), []);
    assert_eq!(files.snapshot(), changed, "other hands have set these since");
    for text in [
        "x\n",
        "{\"version\":9,\"boot_id\":\"boot-1\"}\n",
        "{\"version\":1,\"boot_id\":\"boot-1\"}\n{\"path\":\"/sys/a\",\"value\":\"1\"}\n",
    ] {
        std::fs::write(&path, text).unwrap();
        assert!(matches!(Journal::restore(&path, &tree, "boot-1"), Err(JournalError::Version(_))), "{text}");
        assert!(path.exists(), "and it is left where it is");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_journal_that_another_could_have_written_is_not_believed() {
    use std::os::unix::fs::PermissionsExt;
    let (files, elsewhere) = (Files::complete(), Files::new());
    let (path, tree) = (journal_of(&files), Tree::at(&files.0));
    let refused = |why: &str| {
        assert!(matches!(Journal::restore(&path, &tree, "boot-1"), Err(JournalError::Foreign(_))), "{why}");
        std::fs::remove_file(&path).unwrap();
    };
    let head = "{\"version\":1,\"boot_id\":\"boot-1\"}\n";
    for target in ["/etc/passwd", "/sys/../etc/passwd", "proc/x", "rss:../x", "task:1:1"] {
        std::fs::write(&path, format!("{head}{{\"path\":\"{target}\",\"before\":\"x\",\"value\":\"y\"}}\n")).unwrap();
        refused(target);
    }
    std::fs::write(&path, head).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    refused("anybody can write it");
    elsewhere.put("journal", head);
    std::os::unix::fs::symlink(elsewhere.0.join("journal"), &path).unwrap();
    refused("a link");
}
