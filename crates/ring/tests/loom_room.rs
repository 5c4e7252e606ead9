//! A writer that waits for room, and a reader that frees it, under every interleaving. Without either fence the model
//! must fail.

mod model;

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{Relaxed, Release};
use loom::thread;
use model::*;
use towpath_ring::dirty::Word;
use towpath_ring::lines::want;
use towpath_ring::wake::{asks_for_room, has_asked_for_room};

/// The writer stores its request and looks at the head again; the reader stores the head and looks at the request.
fn room_is_seen_or_told<const WITHOUT: u8>() {
    loom::model(|| {
        let shared = Arc::new([(); 2].map(|()| ModelWord::<WITHOUT>::new()));
        let reader = thread::spawn({
            let shared = shared.clone();
            move || {
                let [head, wanted] = &*shared;
                head.store(1, Release);
                asks_for_room(wanted)
            }
        });
        let [head, wanted] = &*shared;
        wanted.store(want::WRITABLE, Relaxed);
        has_asked_for_room::<ModelWord<WITHOUT>>();
        let asleep = head.load(Relaxed) == 0;
        let notified = reader.join().expect("reader");
        assert!(!asleep || notified, "room is neither seen nor told");
    });
}

#[test]
fn a_writer_that_waits_for_room_is_told() {
    room_is_seen_or_told::<WHOLE>();
}
#[test]
#[should_panic(expected = "neither seen nor told")]
fn without_the_fence_before_asking_who_waits_for_room_writers_hang() {
    room_is_seen_or_told::<NO_RING_FENCE>();
}
#[test]
#[should_panic(expected = "neither seen nor told")]
fn without_the_fence_after_asking_for_room_writers_hang() {
    room_is_seen_or_told::<NO_ARM_FENCE>();
}
