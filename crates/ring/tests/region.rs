//! Regions as their two sides see them.
#![allow(clippy::unwrap_used)]

use rustix::fd::AsFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use towpath_ring::{Geometry, Region, dirty};

/// Small enough that a test may touch all of it.
fn small() -> Geometry {
    Geometry { slots: 32, app_slots: 16, tx_bytes: 4096, rx_bytes: 8192, contexts: 3, cores: 2 }
}

#[test]
fn both_sides_see_the_same_words_and_bytes() {
    let (stack, memfd) = Region::create(small()).unwrap();
    let app = Region::map(memfd.as_fd(), small()).unwrap();
    assert_ne!(app.token(), 0);
    assert_eq!(app.token(), stack.token());
    stack.beat();
    assert_eq!(app.heartbeat().load(Relaxed), 1);

    let slot = app.slot(7).unwrap();
    assert!(app.slot(32).is_none());
    app.tx(slot).write(4090, b"hello across the seam");
    app.app(slot).tx_tail.store(4111, Release);
    assert_eq!(stack.app(slot).tx_tail.load(Acquire), 4111);
    let mut got = [0; 21];
    stack.tx(slot).read(4090, &mut got);
    assert_eq!(&got, b"hello across the seam");
}

#[test]
fn a_door_is_queued_once_until_acknowledged() {
    let (stack, memfd) = Region::create(small()).unwrap();
    let app = Region::map(memfd.as_fd(), small()).unwrap();
    let slot = app.slot(3).unwrap();
    let (mut tail, mut head) = (0, 0);
    let push = |tail: &mut u32| app.doors(1).push(tail, slot, &app.app(slot).door_seq, &app.stack(slot).door_ack);
    assert!(push(&mut tail));
    assert!(!push(&mut tail));
    assert!(stack.doors(0).is_empty(0));
    assert_eq!(stack.doors(1).pop(&mut head), Some(3));
    assert!(!push(&mut tail), "popped, but not acknowledged");
    dirty::acknowledge(&stack.app(slot).door_seq, &stack.stack(slot).door_ack);
    assert!(push(&mut tail));
    assert!(!app.doors(1).must_ring());
    stack.doors(1).arm();
    assert!(app.doors(1).must_ring());
}
