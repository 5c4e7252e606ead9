//! Byte rings and dirty sets against simple models of them, and against hostile peers.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use towpath_ring::dirty::{DirtySet, acknowledge, acknowledge_all, is_queued};
use towpath_ring::{ByteRing, Geometry, Layout, Slot};

/// A ring in ordinary memory, between two guards that must stay as they are.
struct Guarded(Vec<u8>);

const GUARD: usize = 64;

impl Guarded {
    fn new(capacity: usize) -> Self {
        Self(vec![0xEE; capacity + 2 * GUARD])
    }
    fn ring(&mut self) -> ByteRing<'_> {
        let capacity = self.0.len() - 2 * GUARD;
        // SAFETY: `capacity` bytes follow the first guard, and the result borrows the memory.
        unsafe { ByteRing::over(self.0.as_mut_ptr().add(GUARD), capacity as u32) }
    }
    fn guards_hold(&self) -> bool {
        let end = self.0.len() - GUARD;
        self.0[..GUARD].iter().chain(&self.0[end..]).all(|&b| b == 0xEE)
    }
}

proptest! {
    /// Bytes written at a position are read there, however the ring wraps. Nothing outside is touched.
    #[test]
    fn bytes_come_out_as_they_went_in(bits in 4u32..10, at: u32, bytes in prop::collection::vec(any::<u8>(), 0..1200)) {
        let capacity = 1usize << bits;
        let mut memory = Guarded::new(capacity);
        let ring = memory.ring();
        ring.write(at, &bytes);
        let kept = bytes.len().min(capacity);
        let mut got = vec![0x55; bytes.len()];
        ring.read(at, &mut got);
        prop_assert_eq!(&got[..kept], &bytes[..kept]);
        prop_assert!(got[kept..].iter().all(|&b| b == 0), "more than the ring holds was read, or is still what it was");
        let [(first, first_len), (second, second_len), (_, none)] = ring.spans(at, bytes.len() as u32);
        prop_assert_eq!((first_len + second_len, none), (kept, 0));
        let base = ring.spans(0, 1)[0].0 as usize;
        prop_assert!(second_len == 0 || second as usize == base);
        prop_assert_eq!(first as usize - base, at as usize % capacity);
        prop_assert!(memory.guards_hold());
    }

    /// A ring in two parts is the same ring as in one.
    #[test]
    fn a_ring_in_two_parts_is_one(first in 2u32..6, doublings in 0u32..4, at: u32, bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let (first, capacity) = (1u32 << first, 1u32 << (first + doublings));
        let (mut one, mut two) = (Guarded::new(capacity as usize), [Guarded::new(first as usize), Guarded::new((capacity - first) as usize)]);
        let plain = one.ring();
        let [base, more] = &mut two;
        // SAFETY: so many bytes follow each first guard, and live until the end of the test.
        let parted = unsafe { ByteRing::over_two(base.0.as_mut_ptr().add(GUARD), first, more.0.as_mut_ptr().add(GUARD), capacity) };
        for ring in [plain, parted] {
            ring.write(at, &bytes);
        }
        prop_assert_eq!(plain.capacity(), parted.capacity());
        for place in 0..plain.capacity() {
            let mut found = [[0], [0]];
            plain.read(place, &mut found[0]);
            parted.read(place, &mut found[1]);
            prop_assert_eq!(found[0], found[1], "at {}", place);
        }
        let mut found = vec![0; bytes.len()];
        parted.read(at, &mut found);
        prop_assert_eq!(&found[..bytes.len().min(plain.capacity() as usize)], &bytes[..bytes.len().min(plain.capacity() as usize)]);
        let mut spanned = 0;
        for (begin, len) in parted.spans(at, bytes.len() as u32) {
            prop_assert!(len == 0 || parted.span(at.wrapping_add(spanned), len) == Some(begin));
            spanned += len as u32;
        }
        prop_assert_eq!(spanned, plain.capacity().min(bytes.len() as u32));
        prop_assert!(one.guards_hold() && two.iter().all(Guarded::guards_hold));
    }

    /// A stream through a ring with free-running positions that pass 2^32.
    #[test]
    fn a_stream_survives_the_end_of_the_numbers(start in (u32::MAX - 5000)..=u32::MAX, chunks in prop::collection::vec((1usize..300, 1usize..300), 1..60)) {
        let mut memory = Guarded::new(256);
        let ring = memory.ring();
        let (mut head, mut tail) = (start, start);
        let mut expected = VecDeque::new();
        let mut next = 0u8;
        for (want_in, want_out) in chunks {
            let room = 256 - tail.wrapping_sub(head) as usize;
            let bytes: Vec<u8> = (0..want_in.min(room)).map(|_| { next = next.wrapping_add(1); next }).collect();
            ring.write(tail, &bytes);
            tail = tail.wrapping_add(bytes.len() as u32);
            expected.extend(bytes);
            let mut out = vec![0; want_out.min(tail.wrapping_sub(head) as usize)];
            ring.read(head, &mut out);
            head = head.wrapping_add(out.len() as u32);
            let want: Vec<u8> = expected.drain(..out.len()).collect();
            prop_assert_eq!(out, want);
        }
        prop_assert!(memory.guards_hold());
    }
}

const SLOTS: usize = 16;

/// The words of one dirty set in ordinary memory, and the private positions of its two honest sides.
struct Set {
    entries: [AtomicU32; SLOTS],
    words: [AtomicU32; 3],
    seq: [AtomicU32; SLOTS],
    ack: [AtomicU32; SLOTS],
    tail: u32,
    head: u32,
}

impl Set {
    fn starting_at(position: u32) -> Self {
        let words = [position, position, 0].map(AtomicU32::new);
        let zeros = || [const { AtomicU32::new(0) }; SLOTS];
        Self { entries: zeros(), words, seq: zeros(), ack: zeros(), tail: position, head: position }
    }
    fn set(&self) -> DirtySet<'_> {
        let [tail, head, armed] = &self.words;
        DirtySet::over(&self.entries, tail, head, armed).unwrap()
    }
    fn push(&mut self, slot: Slot) -> bool {
        let mut tail = self.tail;
        let queued = self.set().push(&mut tail, slot, &self.seq[slot.index()], &self.ack[slot.index()]);
        self.tail = tail;
        queued
    }
    fn pop(&mut self) -> Option<u32> {
        let mut head = self.head;
        let popped = self.set().pop(&mut head);
        self.head = head;
        popped
    }
    fn acknowledge(&self, slot: usize) {
        acknowledge(&self.seq[slot], &self.ack[slot]);
    }
}

fn slots() -> Vec<Slot> {
    let geometry =
        Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, contexts: 1, ..Geometry::DEFAULT };
    let layout = Layout::new(geometry).unwrap();
    layout.app_slots().chain(layout.stack_slots()).collect()
}

#[test]
fn a_set_needs_a_power_of_two() {
    let words = [const { AtomicU32::new(0) }; 7];
    let [a, b, c, ..] = &words;
    assert!(DirtySet::over(&words[3..6], a, b, c).is_none());
    assert!(DirtySet::over(&words[..0], a, b, c).is_none());
    assert!(DirtySet::over(&words[3..7], a, b, c).is_some());
}

#[test]
fn a_reader_that_is_awake_again_is_not_notified() {
    let mut set = Set::starting_at(0);
    set.set().arm();
    assert!(set.push(slots()[0]) && set.set().must_notify());
    set.set().disarm();
    assert!(!set.set().must_notify());
}

#[test]
fn several_entries_are_taken_in_their_order_and_make_room_before_they_are_acknowledged() {
    let (slots, mut set) = (slots(), Set::starting_at(u32::MAX - 9));
    assert!(slots.iter().all(|slot| set.push(*slot)));
    let (mut head, mut numbers) = (set.head, [99; 10]);
    assert_eq!(set.set().pop_some(&mut head, &mut numbers), 10);
    assert_eq!(numbers[..], (0..10).collect::<Vec<u32>>());
    // A writer that sees the first acknowledgement finds room.
    set.acknowledge(0);
    assert!(set.push(slots[0]));
    acknowledge_all((1..10).map(|slot| (&set.seq[slot], &set.ack[slot])));
    assert!(set.push(slots[1]) && !set.push(slots[10]));
    let (mut all, mut rest) = ([99; 20], Vec::new());
    while let count @ 1.. = set.set().pop_some(&mut head, &mut all) {
        rest.extend_from_slice(&all[..count]);
    }
    assert_eq!(rest, [10, 11, 12, 13, 14, 15, 0, 1]);
    // A tail that is impossible: all up to it is skipped.
    set.words[0].store(head.wrapping_add(SLOTS as u32 + 1), Relaxed);
    assert_eq!(set.set().pop_some(&mut head, &mut all), 0);
    assert!(set.set().is_empty(head));
}

#[test]
fn a_reader_that_naps_is_notified_of_all_but_what_can_wait() {
    let set = Set::starting_at(0);
    let notified = || (set.set().must_notify(), set.set().must_notify_unless_napping_fenced());
    assert!(!set.set().is_napping());
    set.set().arm_for_a_nap();
    assert!(set.set().is_napping());
    assert_eq!(notified(), (true, false));
    set.set().arm();
    assert!(!set.set().is_napping(), "it sleeps deeper");
    assert_eq!(notified(), (true, true));
    set.set().disarm();
    assert_eq!(notified(), (false, false));
}

proptest! {
    /// Against a plain queue with a membership flag: same order, each slot once, never full.
    #[test]
    fn a_dirty_set_is_a_queue_without_repetition(start: u32, steps in prop::collection::vec((any::<bool>(), 0..SLOTS), 0..400)) {
        let slots = slots();
        let mut set = Set::starting_at(start);
        let mut model = VecDeque::new();
        for (push, slot) in steps {
            if push {
                prop_assert_eq!(set.push(slots[slot]), !model.contains(&(slot as u32)));
                if !model.contains(&(slot as u32)) {
                    model.push_back(slot as u32);
                }
            } else {
                prop_assert_eq!(set.set().is_empty(set.head), model.is_empty());
                let popped = set.pop();
                prop_assert_eq!(popped, model.pop_front());
                if let Some(raw) = popped {
                    set.acknowledge(raw as usize);
                }
            }
        }
    }

    /// A hostile reader acknowledges and counts as it likes. It can never make the writer overwrite an entry that, by
    /// the reader's own word, has not been popped.
    #[test]
    fn a_lying_reader_makes_nothing_overflow(lies in prop::collection::vec((0..SLOTS, any::<u32>(), any::<bool>()), 0..300)) {
        let slots = slots();
        let mut set = Set::starting_at(0);
        for (slot, lie, honest_ack) in lies {
            if honest_ack {
                set.acknowledge(slot);
            } else {
                set.ack[slot].store(lie, Relaxed);
            }
            let before = set.tail;
            let room = before.wrapping_sub(set.words[1].load(Relaxed)) < SLOTS as u32;
            let queued = set.push(slots[slot]);
            prop_assert!(!queued || room);
            prop_assert_eq!(set.tail.wrapping_sub(before), u32::from(queued));
        }
        prop_assert!(set.tail <= SLOTS as u32, "the reader has not moved its head");
    }

    /// A writer with a wrong tail costs the reader at most one set's worth of entries, and never its sleep.
    #[test]
    fn a_lying_writer_costs_little(tails in prop::collection::vec(prop_oneof![any::<u32>(), 0..40u32], 1..100), entries in prop::collection::vec(any::<u32>(), SLOTS)) {
        let mut set = Set::starting_at(0);
        for (word, &raw) in set.entries.iter().zip(&entries) {
            word.store(raw, Relaxed);
        }
        for tail in tails {
            set.words[0].store(tail, Relaxed);
            let lie = tail.wrapping_sub(set.head) > SLOTS as u32;
            prop_assert!(!lie || set.set().is_empty(set.head), "a lie keeps the reader awake");
            let mut popped = 0;
            while set.pop().is_some() {
                popped += 1;
                prop_assert!(!lie && popped <= SLOTS);
            }
            prop_assert!(set.set().is_empty(set.head));
            prop_assert_eq!(set.head, tail);
        }
    }
}

/// Two threads and the real fences: every last state arrives.
#[test]
fn two_threads_lose_nothing() {
    const ROUNDS: u32 = 200_000;
    let slots = slots();
    let set = Set::starting_at(u32::MAX - 1000);
    let state = [const { AtomicU32::new(0) }; SLOTS];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut tail = set.tail;
            for round in 1..=ROUNDS {
                let slot = slots[round as usize % SLOTS];
                state[slot.index()].store(round, Relaxed);
                set.set().push(&mut tail, slot, &set.seq[slot.index()], &set.ack[slot.index()]);
            }
        });
        let mut head = set.head;
        let mut seen = [0; SLOTS];
        while seen.iter().max() != Some(&ROUNDS) || seen.iter().any(|&value| value + SLOTS as u32 <= ROUNDS) {
            let Some(raw) = set.set().pop(&mut head) else {
                std::thread::yield_now();
                continue;
            };
            set.acknowledge(raw as usize);
            let value = state[raw as usize].load(Relaxed);
            assert!(value >= seen[raw as usize], "went back in time");
            seen[raw as usize] = value;
        }
    });
}

/// A writer that is killed in the middle of a push has counted the slot as queued, and perhaps queued it. The next
/// writer puts it in once more.
#[test]
fn a_slot_whose_writer_was_killed_while_it_queued_it_comes_out() {
    let word = || AtomicU32::new(0);
    let entries: Vec<AtomicU32> = (0..4).map(|_| word()).collect();
    let (tail, head, armed, seq, ack) = (word(), word(), word(), word(), word());
    let set = DirtySet::over(&entries, &tail, &head, &armed).unwrap();
    let slot = Layout::new(Geometry::DEFAULT).unwrap().slot(3).unwrap();
    seq.store(1, Relaxed);
    let (mut written, mut read) = (set.written(), set.position());
    assert!(is_queued(&seq, &ack) && !set.push(&mut written, slot, &seq, &ack), "it counts as queued");
    assert!(set.push_again(&mut written, slot));
    assert_eq!(set.pop(&mut read), Some(3));
    acknowledge(&seq, &ack);
    assert!(!is_queued(&seq, &ack));
    // The slot is queued, and queued again. It comes out twice, and then once for each push.
    assert!(set.push(&mut written, slot, &seq, &ack) && set.push_again(&mut written, slot));
    assert_eq!((set.pop(&mut read), set.pop(&mut read), set.pop(&mut read)), (Some(3), Some(3), None));
    acknowledge(&seq, &ack);
    assert!(set.push(&mut written, slot, &seq, &ack));
    assert_eq!(set.written(), written);
    // A full set takes no more, and gives all that it has.
    (0..3).for_each(|_| assert!(set.push_again(&mut written, slot)));
    assert!(!set.push_again(&mut written, slot));
    (0..4).for_each(|_| assert_eq!(set.pop(&mut read), Some(3)));
    assert_eq!((set.pop(&mut read), set.position(), set.written()), (None, read, read));
}

/// A push is interrupted before its last two stores by one that leaves its place out. Whatever the reader has seen before
/// them, both slots come out after the tail is repaired.
#[test]
fn a_push_that_was_interrupted_by_another_hides_neither() {
    for reader_is_between in [false, true] {
        let word = || AtomicU32::new(0);
        let entries: Vec<AtomicU32> = (0..4).map(|_| word()).collect();
        let (tail, head, armed, seq, ack) = (word(), word(), word(), word(), word());
        let set = DirtySet::over(&entries, &tail, &head, &armed).unwrap();
        let layout = Layout::new(Geometry::DEFAULT).unwrap();
        let (outer, inner) = (layout.slot(1).unwrap(), layout.slot(2).unwrap());
        let mut read = set.position();
        assert!(set.push(&mut set.written().wrapping_add(1), inner, &seq, &ack));
        let (nested, mut seen) = (set.written(), Vec::new());
        if reader_is_between {
            seen.extend(core::iter::from_fn(|| set.pop(&mut read)));
        }
        entries[0].store(outer.raw(), Relaxed);
        tail.store(1, Relaxed);
        if reader_is_between {
            seen.extend(core::iter::from_fn(|| set.pop(&mut read)));
        }
        set.go_on_from(nested);
        assert!(set.push_again(&mut set.written(), outer));
        seen.extend(core::iter::from_fn(|| set.pop(&mut read)));
        assert!(seen.contains(&1) && seen.contains(&2), "{seen:?}");
        set.go_on_from(nested);
        assert_eq!(set.written(), 3, "never back");
    }
}

/// The boundary of the memory that a caller may write: at every place, all bytes up to the ring's end and none behind.
#[test]
fn a_span_ends_with_its_ring() {
    const SIZE: u32 = 8;
    let mut memory = [0u8; SIZE as usize];
    // SAFETY: eight bytes, a power of two, that live until the end of the test.
    let ring = unsafe { ByteRing::over(memory.as_mut_ptr(), SIZE) };
    let base = ring.spans(0, 1)[0].0;
    for at in [0, 1, 7, 8, 11, u32::MAX, u32::MAX - 7] {
        let offset = at % SIZE;
        let left = (SIZE - offset) as usize;
        for len in 0..=left {
            assert_eq!(ring.span(at, len), Some(base.wrapping_add(offset as usize)), "{len} bytes at {at}");
        }
        for len in [left + 1, left + 2, SIZE as usize + 1, usize::MAX] {
            assert_eq!(ring.span(at, len), None, "{len} bytes at {at}");
        }
    }
}
