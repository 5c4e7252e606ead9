//! Dirty sets and their wake-ups under every interleaving and every reordering that the memory model allows. Each model
//! also runs without each fence or order that it depends on, and must then fail.

mod model;

use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::sync::{Arc, Mutex};
use loom::thread;
use model::*;
use towpath_ring::dirty::{DirtySet, Fence, Word, acknowledge, acknowledge_all, is_queued};
use towpath_ring::wake::{has_changed, must_wake};
use towpath_ring::{Geometry, Layout, Slot};

/// One dirty set of two slots, with the slots' words and one word of state each.
struct Shared<const WITHOUT: u8> {
    entries: [ModelWord<WITHOUT>; 2],
    tail: ModelWord<WITHOUT>,
    head: ModelWord<WITHOUT>,
    armed: ModelWord<WITHOUT>,
    seq: [ModelWord<WITHOUT>; 2],
    ack: [ModelWord<WITHOUT>; 2],
    state: [ModelWord<WITHOUT>; 2],
    sleepers: ModelWord<WITHOUT>,
}

impl<const WITHOUT: u8> Shared<WITHOUT> {
    fn new() -> Arc<Self> {
        let two = || [ModelWord::new(), ModelWord::new()];
        let [tail, head, armed, sleepers] = [(); 4].map(|()| ModelWord::new());
        Arc::new(Self { entries: two(), tail, head, armed, seq: two(), ack: two(), state: two(), sleepers })
    }

    fn set(&self) -> DirtySet<'_, ModelWord<WITHOUT>> {
        DirtySet::over(&self.entries, &self.tail, &self.head, &self.armed).expect("two entries")
    }

    /// Writer: changes a slot's state and queues the slot. True if the reader is to be notified.
    fn change(&self, tail: &mut u32, slot: Slot, value: u32) -> bool {
        let i = slot.index();
        self.state[i].store(value, Relaxed);
        self.set().push(tail, slot, &self.seq[i], &self.ack[i]);
        self.set().must_notify()
    }

    /// [`Self::change`] as a stack raises an event: the fence before it asks for sleepers is the set's, too.
    fn raise(&self, tail: &mut u32, slot: Slot, value: u32) -> bool {
        let i = slot.index();
        self.state[i].store(value, Relaxed);
        let wakes = must_wake(&self.sleepers);
        self.set().push_fenced(tail, slot, &self.seq[i], &self.ack[i]);
        wakes
    }

    /// Writer: changes both slots' states, fences once, and queues both.
    fn raise_both(&self, tail: &mut u32, value: u32) {
        self.state.iter().for_each(|state| state.store(value, Relaxed));
        has_changed::<ModelWord<WITHOUT>>();
        for (i, slot) in slots().into_iter().enumerate() {
            self.set().push_fenced(tail, slot, &self.seq[i], &self.ack[i]);
        }
    }

    /// Reader: all that is queued, with one fence. False if there was nothing.
    fn take_all(&self, head: &mut u32, seen: &mut [u32; 2]) -> bool {
        let mut numbers = [0; 2];
        let count = self.set().pop_some(head, &mut numbers);
        let slots = || numbers[..count].iter().map(|number| *number as usize);
        acknowledge_all(slots().map(|i| (&self.seq[i], &self.ack[i])));
        slots().for_each(|i| seen[i] = self.state[i].load(Relaxed));
        count != 0
    }

    /// Reader: one turn. False if there was nothing.
    fn take(&self, head: &mut u32, seen: &mut [u32; 2]) -> bool {
        let Some(raw) = self.set().pop(head) else { return false };
        let i = raw as usize;
        acknowledge(&self.seq[i], &self.ack[i]);
        seen[i] = self.state[i].load(Relaxed);
        true
    }
}

fn slots() -> [Slot; 2] {
    let geometry =
        Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, contexts: 1, ..Geometry::DEFAULT };
    let layout = Layout::new(geometry).expect("a good geometry");
    [0, 1].map(|raw| layout.slot(raw).expect("inside"))
}

/// Two changes of one slot and one of another. Some pushes are suppressed because the slot is queued. A reader that has
/// emptied the set has seen the last state of both all the same. No slot ever stands in the set twice.
fn nothing_is_lost<const WITHOUT: u8>(change: fn(&Shared<WITHOUT>, &mut u32, Slot, u32) -> bool) {
    let [a, b] = slots();
    loom::model(move || {
        let shared = Shared::<WITHOUT>::new();
        let writer = thread::spawn({
            let shared = shared.clone();
            move || {
                let mut tail = 0;
                change(&shared, &mut tail, a, 1);
                change(&shared, &mut tail, b, 1);
                change(&shared, &mut tail, a, 2);
            }
        });
        let (mut head, mut seen) = (0, [0; 2]);
        shared.take(&mut head, &mut seen);
        shared.take(&mut head, &mut seen);
        writer.join().expect("writer");
        let queued = shared.tail.load(Acquire).wrapping_sub(head);
        assert!(queued <= 2, "more entries than slots");
        if queued == 2 {
            assert_ne!(shared.entries[0].load(Relaxed), shared.entries[1].load(Relaxed), "a slot stands twice");
        }
        while shared.take(&mut head, &mut seen) {}
        assert_eq!(seen, [2, 1], "event lost");
    });
}

#[test]
fn no_event_is_lost() {
    nothing_is_lost::<WHOLE>(Shared::change);
}
#[test]
#[should_panic(expected = "event lost")]
fn without_the_fence_in_push_events_are_lost() {
    nothing_is_lost::<NO_PUSH_FENCE>(Shared::change);
}
#[test]
#[should_panic(expected = "event lost")]
fn without_the_fence_in_acknowledge_events_are_lost() {
    nothing_is_lost::<NO_ACKNOWLEDGE_FENCE>(Shared::change);
}
#[test]
fn no_event_that_is_raised_is_lost() {
    nothing_is_lost::<WHOLE>(Shared::raise);
}
#[test]
#[should_panic(expected = "event lost")]
fn without_the_fence_before_sleepers_are_asked_for_raised_events_are_lost() {
    nothing_is_lost::<NO_RING_FENCE>(Shared::raise);
}
#[test]
#[should_panic(expected = "event lost")]
fn without_release_stores_entries_are_garbled() {
    nothing_is_lost::<NO_RELEASE>(Shared::change);
}

/// One fence is enough for the events of a writer's turn, and one for the acknowledgements of a reader's.
fn nothing_of_a_turn_is_lost<const WITHOUT: u8>() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let shared = Shared::<WITHOUT>::new();
        let writer = thread::spawn({
            let shared = shared.clone();
            move || {
                let mut tail = 0;
                shared.raise_both(&mut tail, 1);
                shared.raise_both(&mut tail, 2);
            }
        });
        let (mut head, mut seen) = (0, [0; 2]);
        shared.take_all(&mut head, &mut seen);
        shared.take_all(&mut head, &mut seen);
        writer.join().expect("writer");
        assert!(shared.tail.load(Acquire).wrapping_sub(head) <= 2, "more entries than slots");
        while shared.take_all(&mut head, &mut seen) {}
        assert_eq!(seen, [2, 2], "event lost");
    });
}

#[test]
fn no_event_of_a_turn_is_lost() {
    nothing_of_a_turn_is_lost::<WHOLE>();
}
#[test]
#[should_panic(expected = "event lost")]
fn without_the_fence_of_the_writers_turn_events_are_lost() {
    nothing_of_a_turn_is_lost::<NO_RING_FENCE>();
}
#[test]
#[should_panic(expected = "event lost")]
fn without_the_fence_of_the_readers_turn_events_are_lost() {
    nothing_of_a_turn_is_lost::<NO_ACKNOWLEDGE_FENCE>();
}

/// A reader that goes to sleep with nobody to wake it has seen everything.
fn sleepers_have_seen_everything<const WITHOUT: u8>() {
    let [a, b] = slots();
    loom::model(move || {
        let shared = Shared::<WITHOUT>::new();
        let writer = thread::spawn({
            let shared = shared.clone();
            move || {
                let mut tail = 0;
                let first = shared.change(&mut tail, a, 1);
                shared.change(&mut tail, b, 1) || first
            }
        });
        let (mut head, mut seen) = (0, [0; 2]);
        let mut asleep = false;
        for _ in 0..2 {
            while shared.take(&mut head, &mut seen) {}
            shared.set().arm();
            if shared.set().is_empty(head) {
                asleep = true;
                break;
            }
            shared.set().disarm();
        }
        let notified = writer.join().expect("writer");
        if asleep && !notified {
            assert_eq!(seen, [1, 1], "wake-up lost");
        }
    });
}

#[test]
fn no_wake_up_is_lost() {
    sleepers_have_seen_everything::<WHOLE>();
}
#[test]
#[should_panic(expected = "wake-up lost")]
fn without_the_fence_in_arm_wake_ups_are_lost() {
    sleepers_have_seen_everything::<NO_ARM_FENCE>();
}
#[test]
#[should_panic(expected = "wake-up lost")]
fn without_the_fence_before_ringing_wake_ups_are_lost() {
    sleepers_have_seen_everything::<NO_RING_FENCE>();
}

/// The same for a reader that goes on until it has seen the last state, through several sleeps. The doorbell works like
/// an eventfd: a notification stays until it is drained. A sleep without one lasts until the writer has ended. If there
/// is none then, it lasts for ever. (The model checker could report a deadlock itself, but only by aborting.)
fn reader_comes_to_its_end<const WITHOUT: u8>() {
    let [a, _] = slots();
    let mut model = loom::model::Builder::new();
    // Without this bound it takes two minutes (and holds, too).
    model.preemption_bound = Some(3);
    model.check(move || {
        let shared = Shared::<WITHOUT>::new();
        let doorbell = Arc::new(Mutex::new(false));
        let writer = thread::spawn({
            let (shared, doorbell) = (shared.clone(), doorbell.clone());
            move || {
                let mut tail = 0;
                for value in 1..=2 {
                    if shared.change(&mut tail, a, value) {
                        *doorbell.lock().expect("doorbell") = true;
                    }
                }
            }
        });
        let mut writer = Some(writer);
        let (mut head, mut seen) = (0, [0; 2]);
        while seen[0] != 2 {
            if shared.take(&mut head, &mut seen) {
                continue;
            }
            shared.set().arm();
            if shared.set().is_empty(head) {
                if !*doorbell.lock().expect("doorbell") {
                    writer.take().expect("asleep for ever").join().expect("writer");
                    assert!(*doorbell.lock().expect("doorbell"), "asleep for ever");
                }
                shared.set().disarm();
                *doorbell.lock().expect("doorbell") = false;
            } else {
                shared.set().disarm();
            }
        }
    });
}

#[test]
fn a_reader_never_sleeps_for_ever() {
    reader_comes_to_its_end::<WHOLE>();
}
#[test]
#[should_panic(expected = "asleep for ever")]
fn without_the_fence_in_arm_a_reader_sleeps_for_ever() {
    reader_comes_to_its_end::<NO_ARM_FENCE>();
}
#[test]
#[should_panic(expected = "asleep for ever")]
fn without_the_fence_before_ringing_a_reader_sleeps_for_ever() {
    reader_comes_to_its_end::<NO_RING_FENCE>();
}
#[test]
#[should_panic(expected = "asleep for ever")]
fn without_the_fence_in_acknowledge_a_reader_sleeps_for_ever() {
    reader_comes_to_its_end::<NO_ACKNOWLEDGE_FENCE>();
}

/// Two writers of one slot, each with a word of state of its own, take the writer's lock only if the slot is not
/// queued.
fn who_finds_it_queued_is_seen<const WITHOUT: u8>() {
    let [a, _] = slots();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let shared = Shared::<WITHOUT>::new();
        let tail = Arc::new(Mutex::new(0));
        let write = |word: usize| {
            let (shared, tail) = (shared.clone(), tail.clone());
            move || {
                shared.state[word].store(1, Relaxed);
                ModelWord::<WITHOUT>::fence(Fence::Push);
                if is_queued(&shared.seq[0], &shared.ack[0]) {
                    return false;
                }
                let mut tail = tail.lock().expect("writers");
                shared.set().push(&mut tail, a, &shared.seq[0], &shared.ack[0]);
                shared.set().must_notify()
            }
        };
        let writers = [write(0), write(1)].map(thread::spawn);
        let (mut head, mut seen, mut asleep) = (0, [0; 2], false);
        for _ in 0..2 {
            while shared.set().pop(&mut head).is_some() {
                acknowledge(&shared.seq[0], &shared.ack[0]);
                seen = [0, 1].map(|word| shared.state[word].load(Relaxed));
            }
            shared.set().arm();
            if shared.set().is_empty(head) {
                asleep = true;
                break;
            }
            shared.set().disarm();
        }
        let notified = writers.map(|writer| writer.join().expect("writer"));
        if asleep && notified == [false; 2] {
            assert_eq!(seen, [1, 1], "event lost");
        }
    });
}

#[test]
fn what_is_not_queued_again_is_seen() {
    who_finds_it_queued_is_seen::<WHOLE>();
}
#[test]
#[should_panic(expected = "event lost")]
fn without_the_fence_before_looking_what_is_not_queued_again_is_missed() {
    who_finds_it_queued_is_seen::<NO_PUSH_FENCE>();
}
#[test]
#[should_panic(expected = "event lost")]
fn without_the_fence_in_acknowledge_what_is_not_queued_again_is_missed() {
    who_finds_it_queued_is_seen::<NO_ACKNOWLEDGE_FENCE>();
}

/// A writer notes the slot that it is queueing, and may be killed anywhere. So whoever finds the slot marked as queued looks at the
/// note (`client/src/doorbell.rs`). Without a note the entry is there, and the tail is no older.
fn what_counts_as_queued_is_there<const WITHOUT: u8>() {
    let [a, _] = slots();
    loom::model(move || {
        let shared = Shared::<WITHOUT>::new();
        let observer = thread::spawn({
            let shared = shared.clone();
            move || {
                if is_queued(&shared.seq[0], &shared.ack[0]) && shared.state[0].load(Acquire) == 0 {
                    assert_eq!(shared.set().written(), 1, "entry lost");
                }
            }
        });
        let pushing = &shared.state[0];
        pushing.store(1, Relaxed);
        shared.set().push_fenced(&mut 0, a, &shared.seq[0], &shared.ack[0]);
        pushing.store(0, Release);
        observer.join().expect("observer");
    });
}

#[test]
fn what_counts_as_queued_is_there_or_somebody_is_known_to_queue_it() {
    what_counts_as_queued_is_there::<WHOLE>();
}
#[test]
#[should_panic(expected = "entry lost")]
fn without_release_stores_what_counts_as_queued_may_never_come() {
    what_counts_as_queued_is_there::<NO_RELEASE>();
}
