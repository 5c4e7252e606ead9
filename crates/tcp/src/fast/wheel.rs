//! The deadlines of a fast path: a hierarchical timing wheel (Varghese and Lauck 1987, scheme 7).
//!
//! Each [`Timer`] is armed at most once. [`Wheel::set`] arms or moves it, [`Wheel::cancel`] disarms it.
//! [`Wheel::pop_due`] takes those that are due: earliest slot first, and in the order of arming within a µs. All of
//! that takes constant time and no allocation. The links are in a vector indexed by the timer, which [`Wheel::reserve`]
//! sizes when a flow is installed. Use:
//!
//! - `wheel.set(Timer::Recovery(flow), now.after(us))` to wait. `timers::expire`, at the start of every
//!   `FastPath::transmit`, handles what is due.
//! - Leave a deadline armed that moves with every packet. When it comes due too early, set it again.
//! - `control::remove` cancels a removed flow's timers.
//!
//! Level `n` has a slot per 1024^n µs and reaches to the end of the current 1024^(n+1) µs. When the time of a slot of a
//! higher level begins, its timers move to lower levels. So at any time all timers of a level are before all of the
//! next, whatever the clock does.

use crate::flow::FlowId;
use crate::time::Micros;

/// Bits of the clock that a level resolves.
const BITS: u32 = 10;
/// Slots per level.
const SLOTS: usize = 1 << BITS;
/// Enough for all of a 64-bit clock.
const LEVELS: usize = 7;
/// Words of a level's map of slots in use.
const WORDS: usize = SLOTS / 64;
/// No timer.
const NONE: u32 = u32::MAX;
/// Kinds of timers.
const KINDS: u32 = 3;

/// The purpose of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The flow's pacing lets it send again.
    Pace(FlowId),
    /// Loss recovery of the flow: reordering and probe time-outs (RFC 8985 §6.2, §7.2).
    Recovery(FlowId),
    /// The rate limit of the class lets it send again.
    Class(u16),
}

impl Timer {
    #[inline]
    fn key(self) -> u32 {
        match self {
            Self::Pace(flow) => flow.0 * KINDS,
            Self::Recovery(flow) => flow.0 * KINDS + 1,
            Self::Class(class) => u32::from(class) * KINDS + 2,
        }
    }
    #[inline]
    fn of(key: u32) -> Self {
        let index = key / KINDS;
        match key % KINDS {
            0 => Self::Pace(FlowId(index)),
            1 => Self::Recovery(FlowId(index)),
            _ => Self::Class(index as u16),
        }
    }
}

/// A timer's links: a ring per slot, so that the first one's predecessor is the last.
#[derive(Clone, Copy, Debug)]
struct Node {
    at: u64,
    next: u32,
    previous: u32,
}

/// The slot of a timer.
#[derive(Clone, Copy)]
struct Slot {
    level: usize,
    number: usize,
}

impl Slot {
    #[inline]
    fn index(self) -> usize {
        self.level * SLOTS + self.number
    }
}

/// Which slots are in use, in two steps per level.
#[derive(Debug, Default)]
struct Used {
    summaries: [u32; LEVELS],
    words: [[u64; WORDS]; LEVELS],
}

impl Used {
    fn set(&mut self, Slot { level, number }: Slot) {
        self.words[level][number / 64] |= 1 << (number % 64);
        self.summaries[level] |= 1 << (number / 64);
    }
    fn clear(&mut self, Slot { level, number }: Slot) {
        let word = &mut self.words[level][number / 64];
        *word &= !(1 << (number % 64));
        if *word == 0 {
            self.summaries[level] &= !(1 << (number / 64));
        }
    }
    /// The first slot of the lowest level that has one.
    fn first(&self) -> Option<Slot> {
        let level = self.summaries.iter().position(|summary| *summary != 0)?;
        let word = self.summaries[level].trailing_zeros() as usize;
        Some(Slot { level, number: word * 64 + self.words[level][word].trailing_zeros() as usize })
    }
}

/// The timers of one fast path.
#[derive(Debug)]
pub(super) struct Wheel {
    /// Time up to which all slots have been emptied, µs. No slot in use begins before it, but that of `current` itself
    /// at level 0.
    current: u64,
    armed: usize,
    /// First timer of each slot, level after level.
    heads: Box<[u32]>,
    used: Used,
    nodes: Vec<Node>,
}

impl Default for Wheel {
    fn default() -> Self {
        let heads = vec![NONE; SLOTS * LEVELS].into_boxed_slice();
        Self { current: 0, armed: 0, heads, used: Used::default(), nodes: Vec::new() }
    }
}

impl Wheel {
    /// Makes room for the timers of a flow or class of this number.
    pub fn reserve(&mut self, index: u32) {
        let nodes = (index as usize + 1) * KINDS as usize;
        if nodes > self.nodes.len() {
            self.nodes.resize(nodes, Node { at: 0, next: NONE, previous: NONE });
        }
    }

    /// Arms the timer, or moves it. A deadline that has passed is due at once.
    #[inline]
    pub fn set(&mut self, timer: Timer, at: Micros) {
        let key = timer.key();
        if key as usize >= self.nodes.len() {
            self.reserve(key / KINDS);
        }
        if self.nodes[key as usize].next != NONE {
            self.unlink(key);
        }
        self.link(key, at.0);
    }

    /// Disarms the timer, if it is armed.
    #[inline]
    pub fn cancel(&mut self, timer: Timer) {
        let key = timer.key();
        if self.nodes.get(key as usize).is_some_and(|node| node.next != NONE) {
            self.unlink(key);
        }
    }

    /// No timer is armed.
    #[inline(always)]
    pub fn idle(&mut self, now: Micros) -> bool {
        if self.armed == 0 {
            self.current = self.current.max(now.0);
        }
        self.armed == 0
    }

    /// The next timer that is due; it is disarmed.
    pub fn pop_due(&mut self, now: Micros) -> Option<Timer> {
        if self.idle(now) { None } else { self.pop(now.0) }
    }

    fn pop(&mut self, now: u64) -> Option<Timer> {
        while let Some((at, slot)) = self.first().filter(|(start, _)| *start <= now) {
            // A late timer moves as of its own time, so that the order stays.
            self.current = self.current.max(at);
            if slot.level == 0 {
                let key = self.heads[slot.number];
                self.unlink(key);
                return Some(Timer::of(key));
            }
            self.cascade(slot);
        }
        self.current = self.current.max(now);
        None
    }

    /// When to look again: a deadline, or an earlier time at which timers move to a lower level.
    pub fn next_deadline(&self) -> Option<Micros> {
        if self.armed == 0 {
            return None;
        }
        self.first().map(|(start, _)| Micros(start))
    }

    /// The first slot in use, and when it begins.
    fn first(&self) -> Option<(u64, Slot)> {
        let slot = self.used.first()?;
        let shift = slot.level as u32 * BITS;
        let above = shift + BITS;
        let block = if above < u64::BITS { self.current >> above << above } else { 0 };
        Some((block | (slot.number as u64) << shift, slot))
    }

    /// Moves the timers of a slot whose time has begun to lower levels.
    fn cascade(&mut self, slot: Slot) {
        let first = std::mem::replace(&mut self.heads[slot.index()], NONE);
        self.used.clear(slot);
        let mut key = first;
        while key != NONE {
            let Node { next, at, .. } = self.nodes[key as usize];
            self.armed -= 1;
            self.link(key, at);
            key = if next == first { NONE } else { next };
        }
    }

    /// The slot of a deadline. Its level is that of the highest digit in which deadline and clock differ.
    #[inline]
    fn slot_of(&self, at: u64) -> Slot {
        let level = (63 - ((at ^ self.current) | 1).leading_zeros()) / BITS;
        Slot { level: level as usize, number: (at >> (level * BITS)) as usize % SLOTS }
    }

    #[inline]
    fn link(&mut self, key: u32, at: u64) {
        let at = at.max(self.current);
        let slot = self.slot_of(at);
        let head = &mut self.heads[slot.index()];
        let (first, last) = if *head == NONE {
            *head = key;
            self.used.set(slot);
            (key, key)
        } else {
            (*head, self.nodes[*head as usize].previous)
        };
        self.nodes[key as usize] = Node { at, next: first, previous: last };
        self.nodes[last as usize].next = key;
        self.nodes[first as usize].previous = key;
        self.armed += 1;
    }

    /// The slot is the one in which it was linked. The clock does not reach that slot before it cascades, so the same
    /// digit is still the highest to differ.
    #[inline]
    fn unlink(&mut self, key: u32) {
        let Node { at, next, previous } = self.nodes[key as usize];
        let slot = self.slot_of(at);
        let head = &mut self.heads[slot.index()];
        if next == key {
            *head = NONE;
            self.used.clear(slot);
        } else {
            if *head == key {
                *head = next;
            }
            self.nodes[previous as usize].next = next;
            self.nodes[next as usize].previous = previous;
        }
        self.nodes[key as usize].next = NONE;
        self.armed -= 1;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use towpath_rng::Rng;

    fn drain(wheel: &mut Wheel, now: u64) -> Vec<Timer> {
        std::iter::from_fn(|| wheel.pop_due(Micros(now))).collect()
    }

    #[test]
    fn comes_due_when_set_at_every_distance() {
        let mut wheel = Wheel::default();
        for start in [0, 1, 1023, 1 << 20, (1 << 40) - 3, u64::MAX / 2] {
            for exponent in 0..63 {
                let mut wheel = Wheel::default();
                drain(&mut wheel, start);
                let at = start.saturating_add(1 << exponent);
                wheel.set(Timer::Pace(FlowId(5)), Micros(at));
                assert_eq!(drain(&mut wheel, at - 1), [], "{start} + 2^{exponent}");
                assert_eq!(drain(&mut wheel, at), [Timer::Pace(FlowId(5))]);
                assert_eq!((wheel.next_deadline(), drain(&mut wheel, u64::MAX)), (None, vec![]));
            }
        }
        wheel.set(Timer::Class(9), Micros(3));
        assert_eq!(drain(&mut wheel, 2), []);
        assert_eq!(drain(&mut wheel, 1 << 50), [Timer::Class(9)], "however far the clock jumps");
        wheel.set(Timer::Recovery(FlowId(1)), Micros(7));
        assert_eq!(drain(&mut wheel, 0), [], "the clock has gone back");
        assert_eq!(drain(&mut wheel, 1 << 50), [Timer::Recovery(FlowId(1))], "and what is overdue comes at once");
    }

    #[test]
    fn next_deadline_leads_to_the_deadline_in_few_steps() {
        let mut wheel = Wheel::default();
        let mut now = 987_654;
        drain(&mut wheel, now);
        let at = now + 123_456_789;
        wheel.set(Timer::Pace(FlowId(0)), Micros(at));
        for step in 0..4 {
            let next = wheel.next_deadline().unwrap().0;
            assert!(next > now && next <= at, "step {step}");
            now = next;
            if drain(&mut wheel, now) == [Timer::Pace(FlowId(0))] {
                assert_eq!(now, at);
                return;
            }
        }
        panic!("one step per level is enough");
    }

    #[test]
    fn agrees_with_a_sorted_list_whatever_is_done() {
        let mut wheel = Wheel::default();
        let mut list: Vec<(u64, Timer)> = vec![];
        let (mut rng, mut now) = (Rng::new(1), 1_000_000_000u64);
        let mut random = move |n| rng.below(n);
        for _ in 0..100_000 {
            let n = random(40) as u32;
            let timer =
                [Timer::Pace(FlowId(n)), Timer::Recovery(FlowId(n)), Timer::Class(n as u16)][random(3) as usize];
            match random(4) {
                0 | 1 => {
                    let reach = random(30);
                    let at = (now + random(1 << reach)).saturating_sub(random(3));
                    list.retain(|(_, other)| *other != timer);
                    list.push((at, timer));
                    wheel.set(timer, Micros(at));
                }
                2 => {
                    list.retain(|(_, other)| *other != timer);
                    wheel.cancel(timer);
                }
                _ => {
                    let reach = random(28);
                    now += random(1 << reach);
                    let mut due: Vec<_> = list.extract_if(.., |(at, _)| *at <= now).map(|(_, timer)| timer).collect();
                    let mut got = drain(&mut wheel, now);
                    due.sort_by_key(|timer| timer.key());
                    got.sort_by_key(|timer| timer.key());
                    assert_eq!(got, due);
                    let next = list.iter().map(|(at, _)| *at).min();
                    assert_eq!(wheel.next_deadline().is_some(), next.is_some());
                    assert!(wheel.next_deadline().is_none_or(|at| Some(at.0) <= next && at.0 > now));
                }
            }
            assert_eq!(wheel.armed, list.len());
        }
    }

    #[test]
    fn a_wheel_has_links_for_the_timers_up_to_the_largest_number_and_no_more() {
        let mut wheel = Wheel::default();
        for (timer, nodes) in [
            (Timer::Pace(FlowId(0)), 3),
            (Timer::Recovery(FlowId(4)), 15),
            (Timer::Class(4), 15),
            (Timer::Class(2), 15),
            (Timer::Pace(FlowId(5)), 18),
        ] {
            wheel.set(timer, Micros(1000));
            assert_eq!(wheel.nodes.len(), nodes, "{timer:?}");
            assert_eq!(Timer::of(timer.key()), timer);
        }
        wheel.reserve(6);
        assert_eq!(wheel.nodes.len(), 21);
        wheel.reserve(1);
        assert_eq!(wheel.nodes.len(), 21);
        assert_eq!(drain(&mut wheel, 1000).len(), 5);
    }

    #[test]
    fn order_is_kept_within_a_slot_that_cascades() {
        let mut wheel = Wheel::default();
        for n in 0..10 {
            wheel.set(Timer::Pace(FlowId(n)), Micros(5_000_000));
        }
        let flows: Vec<_> = (0..10).map(|n| Timer::Pace(FlowId(n))).collect();
        assert_eq!(drain(&mut wheel, 5_000_000), flows);
    }
}
