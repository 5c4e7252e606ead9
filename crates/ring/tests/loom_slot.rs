//! Commands and blocking calls, which pass through the lines of one slot, under every interleaving.

mod model;

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::thread;
use model::*;
use towpath_ring::command::{consume, publish};
use towpath_ring::dirty::Word;
use towpath_ring::wake::{about_to_sleep, must_wake};

/// The second command follows on the answer to the first; the stack never sees a mixture.
fn commands_are_whole<const WITHOUT: u8>() {
    loom::model(|| {
        let [seq, x, y, done] = [(); 4].map(|()| ModelWord::<WITHOUT>::new());
        let shared = Arc::new((seq, [x, y], done));
        let app = thread::spawn({
            let shared = shared.clone();
            move || {
                let (seq, [x, y], done) = &*shared;
                let first = publish(seq, [x, y], [10, 11]);
                if done.load(Acquire) == first {
                    publish(seq, [x, y], [20, 21]);
                }
            }
        });
        let (seq, [x, y], done) = &*shared;
        for _ in 0..2 {
            let (number, fields) = consume(seq, [x, y]);
            match number {
                0 => {}
                1 => assert_eq!(fields, [10, 11], "torn command"),
                _ => assert_eq!(fields, [20, 21], "torn command"),
            }
            done.store(number, Release);
        }
        app.join().expect("application");
    });
}

#[test]
fn no_command_is_torn() {
    commands_are_whole::<WHOLE>();
}
#[test]
#[should_panic(expected = "torn command")]
fn without_release_commands_are_torn() {
    commands_are_whole::<NO_RELEASE>();
}

/// A blocking call: `event_seq` is loaded before the slot is looked at, and is the futex word of the sleep. A thread
/// that sleeps and is not woken has missed nothing.
fn blocking_calls_are_woken<const WITHOUT: u8>() {
    loom::model(|| {
        let [state, event_seq, sleepers] = [(); 3].map(|()| ModelWord::<WITHOUT>::new());
        let shared = Arc::new((state, event_seq, sleepers));
        let stack = thread::spawn({
            let shared = shared.clone();
            move || {
                let (state, event_seq, sleepers) = &*shared;
                state.store(1, Relaxed);
                event_seq.store(1, Release);
                must_wake(sleepers)
            }
        });
        let (state, event_seq, sleepers) = &*shared;
        let expected = event_seq.load(Acquire);
        sleepers.store(1, Relaxed);
        about_to_sleep::<ModelWord<WITHOUT>>();
        let missed = state.load(Relaxed) == 0;
        // FUTEX_WAIT compares first.
        let asleep = missed && event_seq.load(Relaxed) == expected;
        let woken = stack.join().expect("stack");
        assert!(!asleep || woken, "wake-up lost");
    });
}

#[test]
fn no_blocking_call_is_left_asleep() {
    blocking_calls_are_woken::<WHOLE>();
}
#[test]
#[should_panic(expected = "wake-up lost")]
fn without_the_fence_before_sleeping_calls_hang() {
    blocking_calls_are_woken::<NO_ARM_FENCE>();
}
#[test]
#[should_panic(expected = "wake-up lost")]
fn without_the_fence_before_waking_calls_hang() {
    blocking_calls_are_woken::<NO_RING_FENCE>();
}

/// A slot gets a new use: the stack stores its generation before all other words (`runtime/src/slots.rs`). A thread that still has the
/// last use looks at the generation after them, and takes no word of the new use for one of its own.
fn uses_are_told_apart<const WITHOUT: u8>() {
    loom::model(|| {
        let [generation, pair] = [(); 2].map(|()| ModelWord::<WITHOUT>::new());
        let shared = Arc::new((generation, pair));
        let stack = thread::spawn({
            let shared = shared.clone();
            move || {
                let (generation, pair) = &*shared;
                generation.store(1, Relaxed);
                pair.store(7, Release);
            }
        });
        let (generation, pair) = &*shared;
        let seen = pair.load(Acquire);
        if generation.load(Acquire) == 0 {
            assert_eq!(seen, 0, "a word of the next use");
        }
        stack.join().expect("stack");
    });
}

#[test]
fn no_word_of_the_next_use_is_taken_for_one_of_this() {
    uses_are_told_apart::<WHOLE>();
}
#[test]
#[should_panic(expected = "a word of the next use")]
fn without_release_words_of_the_next_use_are_taken_for_those_of_this() {
    uses_are_told_apart::<NO_RELEASE>();
}
