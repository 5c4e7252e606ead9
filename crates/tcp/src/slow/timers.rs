//! Deadlines of connections: a hierarchical timing wheel (Varghese, Lauck 1987). The cost of arming and cancelling does
//! not depend on the number of timers, and a timer moves at most once per level.

use crate::flow::FlowId;
use crate::time::Micros;

/// A tick in µs. A timer fires at most one tick late, and never early.
const TICK_US: u64 = 1000;
/// Slots per level as a power of two. A word has one bit for each.
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Levels for 60 bits of ticks, which is enough for every time.
const LEVELS: usize = 10;
/// No node.
const NO_NODE: u32 = u32::MAX;

/// Identifies one arming of a connection's timer. If the connection's stamp differs, it has been re-armed since. 0 =
/// not armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp(u64);

impl Stamp {
    /// No timer.
    pub(super) const NONE: Self = Self(0);
}

/// The timer of one connection, a member of its slot's circular list.
#[derive(Clone, Copy, Debug)]
struct Node {
    tick: u64,
    stamp: Stamp,
    previous: u32,
    next: u32,
    /// Level and slot, if armed.
    place: Option<(u8, u8)>,
}

/// All timers, one per connection.
#[derive(Debug)]
pub(super) struct Timers {
    /// By flow number.
    nodes: Vec<Node>,
    /// The first node of each slot. Its `previous` is the last.
    heads: [[u32; SLOTS]; LEVELS],
    /// Bits of the slots that are not empty, by level.
    occupied: [u64; LEVELS],
    /// All timers before this tick have fired. A timer is on the level of the highest digit in which it differs from
    /// this.
    now: u64,
    last: u64,
    /// Nodes touched so far, for tests.
    #[cfg(test)]
    work: u64,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            heads: [[NO_NODE; SLOTS]; LEVELS],
            occupied: [0; LEVELS],
            now: 0,
            last: 0,
            #[cfg(test)]
            work: 0,
        }
    }
}

impl Timers {
    /// A new, unique stamp.
    pub(super) fn stamp(&mut self) -> Stamp {
        self.last += 1;
        Stamp(self.last)
    }

    /// Arms a connection's timer, or re-arms it. The caller keeps the stamp in the connection.
    pub(super) fn arm(&mut self, at: Micros, flow: FlowId) -> Stamp {
        let stamp = self.stamp();
        let none = Node { tick: 0, stamp: Stamp::NONE, previous: NO_NODE, next: NO_NODE, place: None };
        if self.nodes.len() <= flow.0 as usize {
            self.nodes.resize(flow.0 as usize + 1, none);
        }
        self.cancel(flow);
        let node = &mut self.nodes[flow.0 as usize];
        (node.tick, node.stamp) = (at.0.div_ceil(TICK_US), stamp);
        self.link(flow.0);
        stamp
    }

    /// Disarms a connection's timer.
    pub(super) fn cancel(&mut self, flow: FlowId) {
        if self.nodes.get(flow.0 as usize).is_some_and(|node| node.place.is_some()) {
            self.unlink(flow.0);
        }
    }

    /// When to call [`Timers::pop`]: not later than the earliest timer. A call that is too early only moves timers
    /// down.
    pub(super) fn next(&self) -> Option<Micros> {
        self.first().map(|(.., start)| Micros(start.saturating_mul(TICK_US)))
    }

    /// Takes a timer that is due.
    pub(super) fn pop(&mut self, now: Micros) -> Option<(FlowId, Stamp)> {
        let target = now.0 / TICK_US;
        loop {
            let Some((level, slot, start)) = self.first().filter(|(.., start)| *start <= target) else {
                // No slot begins before `target`, so no timer's level changes.
                self.now = self.now.max(target);
                return None;
            };
            self.now = self.now.max(start);
            let head = self.heads[level][slot];
            if level == 0 {
                self.unlink(head);
                return Some((FlowId(head), self.nodes[head as usize].stamp));
            }
            while self.occupied[level] >> slot & 1 != 0 {
                let head = self.heads[level][slot];
                self.unlink(head);
                self.link(head);
            }
        }
    }

    /// The first slot that is not empty, and its first tick. Lower levels are earlier, as they share more digits with
    /// `now`.
    fn first(&self) -> Option<(usize, usize, u64)> {
        let level = self.occupied.iter().position(|slots| *slots != 0)?;
        let slot = self.occupied[level].trailing_zeros() as usize;
        let shift = SLOT_BITS * level as u32;
        let upper = self.now.checked_shr(shift + SLOT_BITS).unwrap_or(0).checked_shl(shift + SLOT_BITS).unwrap_or(0);
        Some((level, slot, upper | (slot as u64) << shift))
    }

    /// Puts a node at the end of its slot.
    fn link(&mut self, id: u32) {
        let tick = self.nodes[id as usize].tick.max(self.now);
        let level = (u64::BITS - (tick ^ self.now).leading_zeros()).saturating_sub(1) / SLOT_BITS;
        let slot = (tick >> (SLOT_BITS * level)) as usize & (SLOTS - 1);
        let level = level as usize;
        let head = self.heads[level][slot];
        let (previous, next) = if head == NO_NODE { (id, id) } else { (self.nodes[head as usize].previous, head) };
        if head == NO_NODE {
            self.heads[level][slot] = id;
            self.occupied[level] |= 1 << slot;
        } else {
            self.nodes[previous as usize].next = id;
            self.nodes[next as usize].previous = id;
        }
        let node = &mut self.nodes[id as usize];
        (node.previous, node.next, node.place) = (previous, next, Some((level as u8, slot as u8)));
        #[cfg(test)]
        {
            self.work += 1;
        }
    }

    /// Takes a node out of its slot.
    fn unlink(&mut self, id: u32) {
        let Node { previous, next, place, .. } = self.nodes[id as usize];
        let Some((level, slot)) = place else { return };
        let (level, slot) = (usize::from(level), usize::from(slot));
        if next == id {
            self.heads[level][slot] = NO_NODE;
            self.occupied[level] &= !(1 << slot);
        } else {
            self.nodes[previous as usize].next = next;
            self.nodes[next as usize].previous = previous;
            if self.heads[level][slot] == id {
                self.heads[level][slot] = next;
            }
        }
        self.nodes[id as usize].place = None;
        #[cfg(test)]
        {
            self.work += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use towpath_rng::Rng;

    #[test]
    fn timers_fire_in_time_and_once_whatever_is_armed_and_cancelled() {
        let (mut timers, mut model, mut rng) = (Timers::default(), BTreeMap::<u32, (u64, Stamp)>::new(), Rng::new(7));
        let mut now = 123_456_789u64;
        for _ in 0..20_000 {
            let flow = rng.below(300) as u32;
            match rng.below(8) {
                0..4 => {
                    let wait = rng.next_u64() % (1 << rng.below(44));
                    let stamp = timers.arm(Micros(now + wait), FlowId(flow));
                    model.insert(flow, (now + wait, stamp));
                }
                4 => {
                    timers.cancel(FlowId(flow));
                    model.remove(&flow);
                }
                _ => {
                    now += rng.next_u64() % (1 << rng.below(36));
                    while let Some((flow, stamp)) = timers.pop(Micros(now)) {
                        let (at, expected) = model.remove(&flow.0).expect("armed");
                        assert!(at <= now && stamp == expected, "not early, and the newest setting");
                    }
                    assert!(model.values().all(|(at, _)| at + TICK_US > now), "none is late by a tick");
                    let next = timers.next().map(|next| next.0);
                    let earliest = model.values().map(|(at, _)| at.div_ceil(TICK_US) * TICK_US).min();
                    assert_eq!(next.is_some(), earliest.is_some());
                    assert!(next <= earliest, "{next:?} {earliest:?}");
                }
            }
        }
    }

    #[test]
    fn timers_of_one_tick_fire_in_the_order_in_which_they_were_armed() {
        let mut timers = Timers::default();
        for flow in [5, 3, 9] {
            timers.arm(Micros(5000), FlowId(flow));
        }
        let fired: Vec<u32> = std::iter::from_fn(|| timers.pop(Micros(5000))).map(|(flow, _)| flow.0).collect();
        assert_eq!(fired, [5, 3, 9]);
    }

    #[test]
    fn a_million_timers_cost_each_what_one_costs() {
        const MANY: u32 = 1_000_000;
        let (mut timers, mut rng) = (Timers::default(), Rng::new(1));
        timers.pop(Micros(1_000_000_000));
        let mut at = || Micros(1_000_000_000 + rng.below(7_200_000_000));
        (0..MANY).for_each(|flow| _ = timers.arm(at(), FlowId(flow)));
        assert_eq!(timers.work, u64::from(MANY), "arming");
        (0..MANY).for_each(|flow| _ = timers.arm(at(), FlowId(flow)));
        assert_eq!(timers.work, 3 * u64::from(MANY), "arming anew");
        let mut fired = 0;
        while let Some(next) = timers.next() {
            while timers.pop(next).is_some() {
                fired += 1;
            }
        }
        assert_eq!(fired, MANY);
        // Two hours are four digits of 64. A timer moves down at most three times, out and in, and then fires.
        assert!(timers.work <= (3 + 2 * 4 + 1) * u64::from(MANY), "{}", timers.work);
    }
}
