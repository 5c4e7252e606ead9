//! Workers that serve test groups.
#![allow(clippy::unwrap_used)]

use crate::mailbox::Doorbell;
use crate::thread::{epoll_with, wait};
use crate::workers::{Group, Idle, Workers, WorkersConfig};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use towpath_rng::Rng;

/// State that the test and a group share.
#[derive(Default)]
struct Shared {
    /// Requested turns, and turns made.
    asked: AtomicU64,
    made: AtomicU64,
    panics: AtomicU64,
    /// A thread is in a call of the group.
    inside: AtomicBool,
    /// The turn that is made now does not end.
    hangs: AtomicBool,
    /// Count of errors: two threads in one group, or a time that goes back.
    wrong: AtomicU64,
}

/// A group that makes the turns that the test requests. Every seventh turn panics.
struct Counter {
    shared: Arc<Shared>,
    doorbell: Arc<Doorbell>,
    set: OwnedFd,
    last_us: u64,
}

impl Counter {
    fn enter(&self) {
        if self.shared.inside.swap(true, Ordering::SeqCst) {
            self.shared.wrong.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn leave(&self) {
        self.shared.inside.store(false, Ordering::SeqCst);
    }
}

impl Group for Counter {
    fn turn(&mut self, now_us: u64) -> usize {
        self.enter();
        if now_us < self.last_us {
            self.shared.wrong.fetch_add(1, Ordering::Relaxed);
        }
        self.last_us = now_us;
        let made = self.shared.made.load(Ordering::SeqCst);
        let work = made < self.shared.asked.load(Ordering::SeqCst);
        if work {
            self.shared.made.store(made + 1, Ordering::SeqCst);
        }
        while work && self.shared.hangs.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        self.leave();
        assert!(!work || made % 7 != 6, "every seventh");
        usize::from(work)
    }
    fn turned(&mut self, now_us: u64, took_us: u64, _: bool) {
        if now_us - took_us < self.last_us {
            self.shared.wrong.fetch_add(1, Ordering::Relaxed);
        }
        self.last_us = now_us;
    }
    fn panicked(&mut self) {
        self.shared.panics.fetch_add(1, Ordering::Relaxed);
    }
    fn arm(&mut self, _: u64) -> Idle {
        self.enter();
        self.doorbell.arm();
        let pending = self.shared.made.load(Ordering::SeqCst) < self.shared.asked.load(Ordering::SeqCst);
        self.leave();
        if pending { Idle::No } else { Idle::For(None) }
    }
    fn disarm(&mut self, _: bool) {
        self.doorbell.disarm();
    }
    fn wait(&mut self, timeout_us: Option<u64>) {
        wait(&self.set, timeout_us);
    }
    fn set(&self) -> &OwnedFd {
        &self.set
    }
}

/// The test's handles of a group.
type Known = (Arc<Shared>, Arc<Doorbell>);

/// Workers of so many groups.
fn workers(most: usize, spin_us: u64) -> (Workers<Counter>, Vec<Known>) {
    let (workers, known, _) = workers_and_sets(most, spin_us);
    (workers, known)
}

/// The same, with duplicates of the descriptors of the groups' epoll sets.
fn workers_and_sets(most: usize, spin_us: u64) -> (Workers<Counter>, Vec<Known>, Vec<OwnedFd>) {
    let (mut groups, mut known, mut sets) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..most {
        let (shared, doorbell) = (Arc::new(Shared::default()), Doorbell::new().unwrap());
        let set = epoll_with(&doorbell).unwrap();
        sets.push(set.try_clone().unwrap());
        groups.push(Box::new(Counter {
            shared: Arc::clone(&shared),
            doorbell: Arc::clone(&doorbell),
            set,
            last_us: 0,
        }));
        known.push((shared, doorbell));
    }
    let config = WorkersConfig { name: "workers", spin_us, cpus: Vec::new() };
    (Workers::start(&config, groups).unwrap(), known, sets)
}

/// Lets each group make so many more turns, and waits until they are made.
fn work(known: &[Known], turns: u64) {
    for _ in 0..turns {
        for (shared, doorbell) in known {
            shared.asked.fetch_add(1, Ordering::SeqCst);
            doorbell.notify();
        }
    }
    let end = Instant::now() + Duration::from_secs(20);
    while known.iter().any(|(s, _)| s.made.load(Ordering::SeqCst) < s.asked.load(Ordering::SeqCst)) {
        assert!(Instant::now() < end, "a group was slept over");
        std::thread::yield_now();
    }
}

#[test]
fn a_group_is_in_one_thread_at_a_time_misses_no_doorbell_and_its_time_never_goes_back() {
    for spin_us in [0, 20] {
        let (workers, known) = workers(5, spin_us);
        let mut rng = Rng::new(1);
        for _ in 0..300 {
            workers.set_workers(1 + rng.below(5) as usize).unwrap();
            work(&known, 3);
        }
        assert_eq!(known.iter().map(|(s, _)| s.wrong.load(Ordering::Relaxed)).sum::<u64>(), 0);
        let served: Vec<_> = workers.status().iter().flat_map(|thread| thread.flow_groups.clone()).collect();
        assert_eq!(served.len(), 5);
    }
}

#[test]
fn a_panic_ends_one_turn_of_one_group() {
    let (workers, known) = workers(3, 0);
    workers.set_workers(1).unwrap();
    work(&known, 70);
    let panics: Vec<_> = known.iter().map(|(s, _)| s.panics.load(Ordering::Relaxed)).collect();
    // The last panic may not be counted yet.
    assert!(panics.iter().all(|n| (9..=10).contains(n)), "{panics:?}");
}

#[test]
fn groups_of_a_thread_are_all_served_while_others_have_work() {
    let (workers, known) = workers(4, 0);
    workers.set_workers(1).unwrap();
    // One group is always busy.
    known[0].0.asked.store(u64::MAX, Ordering::SeqCst);
    known[0].1.notify();
    work(&known[1..], 10);
    known[0].0.asked.store(0, Ordering::SeqCst);
}

/// How many descriptors an epoll set watches (proc(5)).
fn watched(set: &OwnedFd) -> usize {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", set.as_raw_fd())).unwrap();
    info.lines().filter(|line| line.starts_with("tfd:")).count()
}

#[test]
fn a_group_that_has_gone_is_not_woken_by_the_thread_that_had_it() {
    let (workers, known, sets) = workers_and_sets(3, 0);
    for running in [1, 3, 2, 1, 2, 3] {
        workers.set_workers(running).unwrap();
        work(&known, 1);
        let watched: Vec<_> = sets.iter().map(watched).collect();
        assert_eq!(watched, [2, 2, 2], "its own doorbell and that of the thread which has it, with {running} threads");
    }
}

#[test]
fn all_threads_answer_asleep_or_parked_but_none_in_a_turn_that_does_not_end() {
    let (workers, known) = workers(3, 20);
    workers.set_workers(2).unwrap();
    workers.wait_for_all();
    let (shared, doorbell) = &known[0];
    shared.hangs.store(true, Ordering::SeqCst);
    shared.asked.fetch_add(1, Ordering::SeqCst);
    doorbell.notify_always();
    while shared.made.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| workers.wait_for_all());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished());
        shared.hangs.store(false, Ordering::SeqCst);
    });
}
