//! Sleeping and waking with the real kernel.
#![allow(clippy::unwrap_used)]

use rustix::fd::AsFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};
use towpath_ring::wake::{
    Woken, asks_for_room, doorbell, doorbell_pipe, drain, futex_wait, futex_wake, futex_wake_one, must_wake, notify,
    spin_until, try_notify,
};
use towpath_ring::{Geometry, Region};

#[test]
fn a_futex_word_of_another_mapping_wakes() {
    let geometry =
        Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, contexts: 1, ..Geometry::DEFAULT };
    let (stack, memfd) = Region::create(geometry).unwrap();
    let app = Region::map(memfd.as_fd(), geometry).unwrap();
    let slot = app.slot(2).unwrap();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let word = &app.stack(slot).event_seq;
            while word.load(Relaxed) == 0 {
                assert_ne!(futex_wait(word, 0, Some(Duration::from_secs(20))).unwrap(), Woken::TimedOut);
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        stack.stack(slot).event_seq.store(1, Release);
        futex_wake(&stack.stack(slot).event_seq);
        sleeper.join().unwrap();
    });
}

#[test]
fn a_futex_wait_ends_at_once_or_in_time() {
    let word = AtomicU32::new(5);
    assert_eq!(futex_wait(&word, 4, None).unwrap(), Woken::Changed);
    let start = Instant::now();
    assert_eq!(futex_wait(&word, 5, Some(Duration::from_millis(30))).unwrap(), Woken::TimedOut);
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert_eq!(futex_wait(&word, 5, Some(Duration::ZERO)).unwrap(), Woken::TimedOut);
}

#[test]
fn one_sleeper_is_woken_or_all_are() {
    let word = AtomicU32::new(0);
    let woken = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let sleep = || {
            while futex_wait(&word, 0, None).unwrap() != Woken::Changed {}
            woken.fetch_add(1, Relaxed);
        };
        let sleepers: Vec<_> = (0..3).map(|_| scope.spawn(sleep)).collect();
        // Whoever does not sleep yet is not woken, and is asked again.
        while woken.load(Relaxed) == 0 {
            futex_wake_one(&word);
        }
        while woken.load(Relaxed) < 3 {
            futex_wake(&word);
        }
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    });
}

#[test]
fn a_sleeper_and_a_writer_that_asks_for_room_are_seen() {
    let word = AtomicU32::new(0);
    assert!(!must_wake(&word) && !asks_for_room(&word));
    word.store(2, Relaxed);
    assert!(must_wake(&word) && !asks_for_room(&word), "another bit asks for nothing");
    word.store(3, Relaxed);
    assert!(asks_for_room(&word));
}

/// One that waits would stop a stack, and one that a program inherits would outlive its owner.
#[test]
fn no_doorbell_waits_and_no_other_program_inherits_one() {
    let (waits, rings) = doorbell_pipe().unwrap();
    for end in [doorbell().unwrap(), waits, rings] {
        assert!(rustix::fs::fcntl_getfl(&end).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
        assert!(rustix::io::fcntl_getfd(&end).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }
}

#[test]
fn a_doorbell_pipe_is_rung_until_nobody_has_its_other_end() {
    let (waits, rings) = doorbell_pipe().unwrap();
    assert!(!drain(waits.as_fd()));
    assert!(try_notify(rings.as_fd()) && try_notify(rings.as_fd()));
    assert!(drain(waits.as_fd()) && !drain(waits.as_fd()));
    // Less than a notification is none.
    rustix::io::write(&rings, &[1; 7]).unwrap();
    assert!(!drain(waits.as_fd()));
    while rustix::io::write(&rings, &[0; 4096]).is_ok() {}
    assert!(try_notify(rings.as_fd()), "it is full, and so it is readable");
    drop(waits);
    assert!(!try_notify(rings.as_fd()));
}

#[test]
fn a_doorbell_is_sticky_until_drained() {
    let doorbell = doorbell().unwrap();
    assert!(!drain(doorbell.as_fd()));
    notify(doorbell.as_fd());
    notify(doorbell.as_fd());
    assert!(drain(doorbell.as_fd()));
    assert!(!drain(doorbell.as_fd()));
    // The eventfd is full: to notify must neither block nor fail.
    rustix::io::write(&doorbell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    notify(doorbell.as_fd());
    assert!(drain(doorbell.as_fd()));
}

#[test]
fn spinning_ends_with_the_condition_or_the_time() {
    let mut looks = 0;
    assert!(!spin_until(0, || {
        looks += 1;
        false
    }));
    assert_eq!(looks, 1);
    assert!(spin_until(1_000_000_000, || {
        looks += 1;
        looks == 1000
    }));
    let start = Instant::now();
    assert!(!spin_until(2000, || false));
    assert!(start.elapsed() >= Duration::from_micros(2000));
}
