//! One side writes garbage into every word and byte that it can reach, at any time. The other side goes on working: no
//! panic, no span outside its ring, no endless work. The attacker moves no private position.
#![allow(clippy::unwrap_used)]

use bolero::{TypeGenerator, check};
use rustix::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use towpath_ring::dirty::{DirtySet, acknowledge};
use towpath_ring::{Geometry, Region, Slot};
use towpath_rng::Rng;

const GEOMETRY: Geometry = Geometry {
    slots: 16,
    app_slots: 8,
    tx_bytes: 4096,
    rx_bytes: 4096,
    contexts: 2,
    flow_groups: 2,
    ..Geometry::DEFAULT
};

/// One step. Offsets and numbers are taken modulo their limits, except those that stand in shared memory.
#[derive(Debug, Clone, Copy, TypeGenerator)]
enum Step {
    /// Garbage into a word of the lines, queues or private area.
    Word { at: u32, value: u32 },
    /// The same value into every word that is not a ring.
    Everywhere { value: u32 },
    /// The victim as stack: takes a slot from a dirty set and serves the slot.
    ServeQueue { queue: u8 },
    /// The victim as stack: raises an event.
    Raise { context: u8, thread: u8, slot: u8 },
    /// The victim as application: takes an event and looks at the slot.
    TakeEvent { context: u8, thread: u8 },
    /// The victim as application: sends, and queues the slot with the flow group that the stack's word names.
    Send { slot: u8, bytes: u8 },
}

/// The private positions of a victim that is application and stack at once.
#[derive(Default)]
struct Positions {
    queue_tail: [u32; 3],
    data_head: [u32; 3],
    event_tail: [u32; 6],
    event_head: [u32; 6],
}

struct World {
    victim: Region,
    attacker: Region,
    positions: Positions,
    /// The attacker does nothing during a step.
    in_turns: bool,
}

impl World {
    fn new() -> Self {
        let (victim, memfd) = Region::create(GEOMETRY).unwrap();
        let attacker = Region::map(memfd.as_fd(), GEOMETRY).unwrap();
        Self { victim, attacker, positions: Positions::default(), in_turns: true }
    }

    /// Every 32-bit word of the attacker's mapping before the byte rings, header included.
    fn words(&self) -> &[AtomicU32] {
        let layout = self.attacker.layout();
        let private = self.attacker.private().0;
        let first = layout.tx(layout.slot(0).unwrap());
        // SAFETY: everything is mapped from the start of the attacker's mapping (the private area's address less its
        // offset) to the send rings. The victim uses it through another mapping.
        unsafe { std::slice::from_raw_parts(private.sub(layout.private()).cast(), first / 4) }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Word { at, value } => {
                let words = self.words();
                words[at as usize % words.len()].store(value, Relaxed);
            }
            Step::Everywhere { value } => self.words().iter().for_each(|word| word.store(value, Relaxed)),
            Step::ServeQueue { queue } => self.serve_queue(queue as usize % 3),
            Step::Raise { context, thread, slot } => self.raise(context as usize % 2, thread as usize % 3, slot),
            Step::TakeEvent { context, thread } => self.take_event(context as usize % 2, thread as usize % 3),
            Step::Send { slot, bytes } => self.send(self.victim.slot(u32::from(slot) % 16).unwrap(), bytes as usize),
        }
    }

    fn serve_queue(&mut self, queue: usize) {
        let region = &self.victim;
        let set = if queue == 2 { region.commands() } else { region.data_queue(queue) };
        let popped = drained(set, &mut self.positions.data_head[queue], self.in_turns);
        for slot in popped.into_iter().filter_map(|raw| region.slot(raw)) {
            let (app, stack) = (region.app(slot), region.stack(slot));
            if queue == 2 {
                acknowledge(&app.ctl_seq, &stack.ctl_ack);
                let (seq, command) = region.command(slot).read();
                stack.command_result.store(-((command.op & 63) as i32), Relaxed);
                stack.command_done.store(seq, Relaxed);
            } else {
                acknowledge(&app.data_seq, &stack.data_ack);
                let mut out = [0; 100];
                region.tx(slot).read(app.tx_tail.load(Relaxed), &mut out);
                region.rx(slot).write(app.rx_head.load(Relaxed), &out);
            }
        }
        set.arm();
        let _ = set.is_empty(self.positions.data_head[queue]);
        set.disarm();
    }

    fn raise(&mut self, context: usize, thread: usize, slot: u8) {
        let slot = self.victim.slot(u32::from(slot) % 16).unwrap();
        let set = self.victim.events(context, thread);
        let (seq, ack) = self.victim.event_words(context, thread, slot);
        let tail = &mut self.positions.event_tail[context * 3 + thread];
        let before = *tail;
        let queued = set.push(tail, slot, seq, ack);
        assert_eq!(tail.wrapping_sub(before), u32::from(queued), "the private position moves by pushes alone");
        let _ = set.must_notify();
    }

    fn take_event(&mut self, context: usize, thread: usize) {
        let region = &self.victim;
        let set = region.events(context, thread);
        let popped = drained(set, &mut self.positions.event_head[context * 3 + thread], self.in_turns);
        for slot in popped.into_iter().filter_map(|raw| region.slot(raw)) {
            let (seq, ack) = region.event_words(context, thread, slot);
            acknowledge(seq, ack);
            let stack = region.stack(slot);
            let len = stack.rx_tail.load(Relaxed).wrapping_sub(region.app(slot).rx_head.load(Relaxed));
            let spans = region.rx(slot).spans(region.app(slot).rx_head.load(Relaxed), len);
            let layout = region.layout();
            let ring = region.private().0 as usize - layout.private() + layout.rx(slot);
            for (start, bytes) in spans {
                let inside = start as usize >= ring && start as usize + bytes <= ring + 4096;
                assert!(inside, "a span outside its ring");
            }
        }
    }

    fn send(&mut self, slot: Slot, bytes: usize) {
        let region = &self.victim;
        let (app, stack) = (region.app(slot), region.stack(slot));
        let at = app.tx_tail.load(Relaxed);
        region.tx(slot).write(at, &[7; 256][..bytes]);
        app.tx_tail.store(at.wrapping_add(bytes as u32), Relaxed);
        // The attacker chooses the queue's number. The victim keeps its own position for that queue, and touches no
        // other queue's words.
        let queue = stack.flow_group.load(Relaxed) as usize;
        let set = region.data_queue(queue);
        set.push(&mut self.positions.queue_tail[queue.min(1)], slot, &app.data_seq, &stack.data_ack);
        let _ = set.must_notify();
    }
}

/// Takes one turn's entries: no more than the set has, because a hostile writer can go on for ever. After a writer has
/// stopped, the set must be empty by then.
fn drained(set: DirtySet<'_>, head: &mut u32, in_turns: bool) -> Vec<u32> {
    let popped: Vec<u32> = std::iter::from_fn(|| set.pop(head)).take(GEOMETRY.slots as usize).collect();
    assert!(!in_turns || set.is_empty(*head), "more entries than slots");
    popped
}

#[test]
fn fuzz_garbage_in_every_word_harms_nobody() {
    check!().with_iterations(3000).with_type::<Vec<Step>>().for_each(|steps| {
        let mut world = World::new();
        for &step in steps {
            world.step(step);
        }
    });
}

/// The same with the attacker writing at the very same time.
#[test]
fn garbage_while_working_harms_nobody() {
    let mut world = World::new();
    world.in_turns = false;
    let working = AtomicBool::new(true);
    let (first, count) = (world.words().as_ptr() as usize, world.words().len());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the words that `World::words` gave; the mapping outlives the scope.
            let words: &[AtomicU32] = unsafe { std::slice::from_raw_parts(first as *const AtomicU32, count) };
            let mut rng = Rng::new(0x9e37_79b9);
            while working.load(Relaxed) {
                let random = rng.next_u64() as u32;
                let value = if random & 1 == 0 { random } else { random >> 27 };
                words[random as usize % count].store(value, Relaxed);
            }
        });
        for round in 0..20_000u32 {
            let [a, b, ..] = round.wrapping_mul(0x85eb_ca6b).to_le_bytes();
            world.step(Step::ServeQueue { queue: a });
            world.step(Step::Raise { context: a, thread: b, slot: b });
            world.step(Step::TakeEvent { context: a, thread: b });
            world.step(Step::Send { slot: a, bytes: b });
        }
        working.store(false, Relaxed);
    });
}
