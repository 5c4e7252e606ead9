//! How a connection uses its path: what `TCP_INFO` shows beyond counters. Measured whenever the flow is looked at, so times are known to a
//! control interval.

use super::SlowPath;
use super::connections::Phase;
use crate::flow::{FlowSnapshot, Owner};
use crate::seq::Seq;
use crate::time::Micros;

/// Of one flow; all 0 = nothing has been sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Payload that was acknowledged over the last round trip or control interval with data out, bytes per second.
    pub delivery_rate: u64,
    /// At some time in it the application had nothing more to send.
    pub app_limited: bool,
    /// How long there has been something to send or to be acknowledged, µs.
    pub busy_us: u64,
    /// How much of that the peer's window held data back, µs.
    pub window_limited_us: u64,
    /// How long nothing has been sent, µs.
    pub silent_us: u64,
}

/// What is kept to measure it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    usage: Usage,
    looked_at: Micros,
    sent_at: Micros,
    snd_max: Seq,
    retransmits: u64,
    /// When the present measurement of the rate began, with how many bytes acknowledged, and whether the application was slower so far.
    round: (Micros, u64, bool),
}

impl Meter {
    /// Of a flow that begins.
    pub(super) fn new(now: Micros, snd_max: Seq) -> Self {
        let usage = Usage::default();
        Self { usage, looked_at: now, sent_at: now, snd_max, retransmits: 0, round: (now, 0, false) }
    }

    /// After a pause something is to be sent again: the pause does not count.
    pub(super) fn resume(&mut self, now: Micros) {
        self.looked_at = now;
        self.round.0 = now;
    }

    /// A look at the flow, which has had something outstanding since the last one.
    pub(super) fn look(&mut self, now: Micros, s: &FlowSnapshot) {
        let us = now.since(self.looked_at);
        self.looked_at = now;
        if (s.snd_max, s.retransmits) != (self.snd_max, self.retransmits) {
            (self.snd_max, self.retransmits, self.sent_at) = (s.snd_max, s.retransmits, now);
        }
        let flight = s.snd_max.bytes_since(s.snd_una);
        let waiting = s.snd_queued.after(s.snd_max);
        self.usage.busy_us += us;
        if waiting && flight.saturating_add(u32::from(s.mss)) > s.snd_wnd {
            self.usage.window_limited_us += us;
        }
        let (since, before, limited) = self.round;
        let limited = limited || !waiting;
        self.round.2 = limited;
        let us = now.since(since);
        if us > 0 && us >= u64::from(s.srtt_us) && s.bytes_acked != before {
            let bytes = s.bytes_acked.wrapping_sub(before);
            self.usage.delivery_rate = (u128::from(bytes) * 1_000_000 / u128::from(us)) as u64;
            self.usage.app_limited = limited;
            self.round = (now, s.bytes_acked, false);
        }
    }
}

impl SlowPath {
    /// How an owner's connection uses its path, now; nothing if it is not installed.
    pub fn usage(&self, now: Micros, owner: Owner) -> Usage {
        let connection = self.table.by_owner(owner).and_then(|id| self.table.get(id));
        let Some(Phase::Live(live)) = connection.map(|connection| &connection.phase) else { return Usage::default() };
        let meter = &live.activity.meter;
        Usage { silent_us: now.since(meter.sent_at), ..meter.usage }
    }
}
