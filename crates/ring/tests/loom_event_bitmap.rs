//! Event bitmaps under every interleaving and every reordering that the memory model allows, with two writers. Without
//! the fences that the wake-ups depend on, the model must fail.

mod model;

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use model::*;
use towpath_ring::dirty::Fence;
use towpath_ring::event_bitmap::{Bits, EventBitmap, Flag};

struct ModelBits<const WITHOUT: u8>(AtomicU64);

impl<const WITHOUT: u8> Bits for ModelBits<WITHOUT> {
    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
    fn set(&self, bits: u64) {
        self.0.fetch_or(bits, Ordering::AcqRel);
    }
    fn clear(&self) -> u64 {
        self.0.swap(0, Ordering::AcqRel)
    }
    fn fence(which: Fence) {
        let left_out = match which {
            Fence::Push => NO_PUSH_FENCE,
            Fence::Acknowledge => NO_ACKNOWLEDGE_FENCE,
            Fence::Arm => NO_ARM_FENCE,
            Fence::Notify => NO_RING_FENCE,
        };
        if WITHOUT & left_out == 0 {
            fence(Ordering::SeqCst);
        }
    }
}

struct ModelFlag(AtomicU32);

impl Flag for ModelFlag {
    fn raise(&self) {
        self.0.store(1, Ordering::Relaxed);
    }
    fn lower(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
    fn take(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
            && self.0.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// One event bitmap of one word, and the state of two slots of it.
struct Shared<const WITHOUT: u8> {
    summary: ModelBits<WITHOUT>,
    words: [ModelBits<WITHOUT>; 1],
    armed: ModelFlag,
    state: [AtomicU32; 2],
}

impl<const WITHOUT: u8> Shared<WITHOUT> {
    fn new() -> Arc<Self> {
        let bits = || ModelBits(AtomicU64::new(0));
        let (armed, state) = (ModelFlag(AtomicU32::new(0)), [AtomicU32::new(0), AtomicU32::new(0)]);
        Arc::new(Self { summary: bits(), words: [bits()], armed, state })
    }
    fn event_bitmap(&self) -> EventBitmap<'_, ModelBits<WITHOUT>, ModelFlag> {
        EventBitmap::over(&self.summary, &self.words, &self.armed)
    }
    /// Writer: changes a slot's state and posts the slot. True if the reader is to be notified.
    fn change(&self, slot: usize, value: u32) -> bool {
        self.state[slot].store(value, Ordering::Relaxed);
        self.event_bitmap().post(slot as u32);
        self.event_bitmap().must_notify()
    }
    /// Reader: takes all slots that are posted.
    fn take(&self, seen: &mut [u32; 2]) {
        self.event_bitmap().take(|slot| seen[slot as usize] = self.state[slot as usize].load(Ordering::Relaxed));
    }
}

/// One slot changes twice and another once: a reader that has emptied the bitmap has seen the last states.
fn nothing_is_lost<const WITHOUT: u8>() {
    loom::model(|| {
        let shared = Shared::<WITHOUT>::new();
        let writer = thread::spawn({
            let shared = shared.clone();
            move || [(0, 1), (1, 1), (0, 2)].map(|(slot, value)| shared.change(slot, value))
        });
        let mut seen = [0; 2];
        shared.take(&mut seen);
        writer.join().expect("writer");
        shared.take(&mut seen);
        assert_eq!(seen, [2, 1], "event lost");
    });
}

#[test]
fn no_event_is_lost() {
    nothing_is_lost::<WHOLE>();
}
/// A reader that sleeps without a notification, after all writers have ended, has seen everything.
fn sleepers_have_seen_everything<const WITHOUT: u8>() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Shared::<WITHOUT>::new();
        let doorbell = Arc::new(Mutex::new(false));
        let change = |slot| {
            let (shared, doorbell) = (shared.clone(), doorbell.clone());
            thread::spawn(move || {
                if shared.change(slot, 1) {
                    *doorbell.lock().expect("doorbell") = true;
                }
            })
        };
        let mut writers = vec![change(0), change(1)];
        let mut seen = [0; 2];
        while seen != [1, 1] {
            shared.take(&mut seen);
            if seen == [1, 1] {
                break;
            }
            shared.event_bitmap().arm();
            if shared.event_bitmap().is_empty() && !*doorbell.lock().expect("doorbell") {
                assert!(!writers.is_empty(), "asleep for ever");
                writers.drain(..).for_each(|writer| writer.join().expect("writer"));
                assert!(*doorbell.lock().expect("doorbell"), "asleep for ever");
            }
            shared.event_bitmap().disarm();
            *doorbell.lock().expect("doorbell") = false;
        }
    });
}

#[test]
fn no_wake_up_is_lost() {
    sleepers_have_seen_everything::<WHOLE>();
}
#[test]
#[should_panic(expected = "asleep for ever")]
fn without_the_fence_in_arm_a_reader_sleeps_for_ever() {
    sleepers_have_seen_everything::<NO_ARM_FENCE>();
}
#[test]
#[should_panic(expected = "asleep for ever")]
fn without_the_fence_before_ringing_a_reader_sleeps_for_ever() {
    sleepers_have_seen_everything::<NO_RING_FENCE>();
}
