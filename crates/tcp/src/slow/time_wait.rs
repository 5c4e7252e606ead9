//! TIME-WAIT, stored as a few words per tuple. Flow, slot and owner have been released.

use super::opening::timestamp;
use super::segments::{Arrival, Reply};
use crate::flow::FourTuple;
use crate::seq::Seq;
use crate::time::Micros;
use std::collections::{HashMap, VecDeque};
use towpath_wire::{Options, Timestamps, flags};

/// Age in µs at which an active open may reuse the tuple: a tick of the slowest timestamp clock (as Linux).
const REUSE_AFTER_US: u64 = 1_000_000;

/// The state of one tuple.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeWait {
    /// Our next sequence number.
    pub snd_nxt: Seq,
    /// The peer's next sequence number.
    pub rcv_nxt: Seq,
    /// TS.Recent, and the offset of our timestamps, if agreed.
    pub timestamps: Option<(u32, u32)>,
    /// When it began.
    pub since: Micros,
    /// When it ends.
    pub until: Micros,
    /// The window advertised last, as in the header (scaled).
    pub window: u16,
    /// When it was last answered with an ACK.
    pub answered_at: Option<Micros>,
}

/// The handling of a segment in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing.
    Drop(crate::counters::Drop),
    /// An acknowledgement. `restart`: the peer has repeated its FIN, so 2 MSL start over.
    Ack { restart: bool },
    /// A new connection, certainly later than the old one (RFC 6191, RFC 9293 §3.10.7.4 MAY-2).
    Reopen,
}

impl TimeWait {
    /// RFC 9293 §3.10.7.4 (MAY-2, SHLD-4) with RFC 1337 (RST is ignored) and RFC 6191 (a later SYN).
    pub(super) fn judge(&self, arrival: &Arrival) -> Answer {
        use crate::counters::Drop;
        let theirs = arrival.segment.options.timestamps.map(|t| t.value);
        if arrival.has(flags::RST) {
            return Answer::Drop(Drop::BadReset);
        }
        if arrival.has(flags::SYN) && !arrival.has(flags::ACK) {
            // SHLD-4: timestamps decide, if both have them.
            let later = match (self.timestamps, theirs) {
                (Some((recent, _)), Some(value)) if value != recent => Seq(value).after(Seq(recent)),
                _ => arrival.seq().after(self.rcv_nxt),
            };
            return if later { Answer::Reopen } else { Answer::Ack { restart: false } };
        }
        if arrival.seq_len() == 0 {
            // At RCV.NXT there is nothing to say: two ends in TIME-WAIT would answer each other for ever. Anywhere else,
            // or with an old timestamp, it is unacceptable and gets an ACK (as Linux). A keepalive probe is such a
            // segment.
            let old = self.timestamps.zip(theirs).is_some_and(|((recent, _), value)| Seq(value).before(Seq(recent)));
            return match arrival.seq() == self.rcv_nxt && !old {
                true => Answer::Drop(Drop::Duplicate),
                false => Answer::Ack { restart: false },
            };
        }
        let fin_again = arrival.has(flags::FIN) && arrival.seq().add(arrival.seq_len()) == self.rcv_nxt;
        Answer::Ack { restart: fin_again }
    }
    /// The acknowledgement.
    pub(super) fn acknowledgement(&self, now: Micros) -> Reply {
        let mut ack = Reply::bare(self.snd_nxt, self.rcv_nxt, flags::ACK);
        let stamp = self.timestamps.map(|(recent, offset)| Timestamps { value: timestamp(now, offset), echo: recent });
        ack.window = self.window;
        ack.options = Options { timestamps: stamp, ..Options::default() };
        ack
    }
}

/// All tuples in TIME-WAIT.
#[derive(Debug, Default)]
pub(super) struct TimeWaits {
    by_tuple: HashMap<FourTuple, TimeWait>,
    /// In the order of their ends. An entry is stale if its end differs from the table's.
    queue: VecDeque<(Micros, FourTuple)>,
}

impl TimeWaits {
    /// Adds a tuple. Its `until` must not be before that of any earlier one.
    pub(super) fn insert(&mut self, tuple: FourTuple, entry: TimeWait) {
        self.queue.push_back((entry.until, tuple));
        self.by_tuple.insert(tuple, entry);
    }
    /// The entry of a tuple.
    pub(super) fn get(&self, tuple: &FourTuple) -> Option<TimeWait> {
        self.by_tuple.get(tuple).copied()
    }
    /// Records that an acknowledgement is sent now.
    pub(super) fn answered(&mut self, now: Micros, tuple: &FourTuple) {
        if let Some(entry) = self.by_tuple.get_mut(tuple) {
            entry.answered_at = Some(now);
        }
    }
    /// Is it in TIME-WAIT?
    pub(super) fn has(&self, tuple: &FourTuple) -> bool {
        self.by_tuple.contains_key(tuple)
    }
    /// Removes it early, as a new incarnation replaces it.
    pub(super) fn take(&mut self, tuple: &FourTuple) -> Option<TimeWait> {
        self.by_tuple.remove(tuple)
    }
    /// May an active open use the tuple (RFC 6191; RFC 9293 §3.6.1 SHLD-4)?
    pub(super) fn may_take(&self, now: Micros, tuple: &FourTuple) -> bool {
        self.by_tuple.get(tuple).is_none_or(|old| old.timestamps.is_some() && now.since(old.since) >= REUSE_AFTER_US)
    }
    /// Takes an expired tuple, or the oldest if there are more than `max`.
    pub(super) fn pop(&mut self, now: Micros, max: usize) -> Option<FourTuple> {
        loop {
            let &(until, tuple) = self.queue.front()?;
            let current = self.by_tuple.get(&tuple).is_some_and(|entry| entry.until == until);
            if current && until > now && self.by_tuple.len() <= max {
                return None;
            }
            self.queue.pop_front();
            if current {
                self.by_tuple.remove(&tuple);
                return Some(tuple);
            }
        }
    }
    /// When the next tuple expires, or a stale entry is due.
    pub(super) fn next(&self) -> Option<Micros> {
        self.queue.front().map(|(until, _)| *until)
    }
    /// All tuples, in the order of their ends.
    pub(super) fn iter(&self) -> impl Iterator<Item = FourTuple> {
        let current =
            |(until, tuple): &&(Micros, FourTuple)| self.by_tuple.get(tuple).is_some_and(|e| e.until == *until);
        self.queue.iter().filter(current).map(|(_, tuple)| *tuple)
    }
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_tuple.len()
    }
}
