//! Sleeping and waking with the real kernel.
#![allow(clippy::unwrap_used)]

use rustix::fd::AsFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};
use towpath_ring::wake::{Woken, doorbell, drain, futex_wait, futex_wake, notify, spin_until};
use towpath_ring::{Geometry, Region};

#[test]
fn a_futex_word_of_another_mapping_wakes() {
    let geometry = Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, contexts: 1, flow_groups: 1 };
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
