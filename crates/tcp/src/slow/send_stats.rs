//! Send statistics of a connection, for `TCP_INFO`. They are measured when the flow is checked, so times are exact to a
//! control interval.

use crate::flow::FlowSnapshot;
use crate::seq::Seq;
use crate::time::Micros;

/// Send statistics of one flow; all 0 = nothing has been sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendStats {
    /// Rate of acknowledged payload in the last round trip or control interval with data in flight, bytes per second.
    pub delivery_rate: u64,
    /// Did the application limit that rate at some time?
    pub app_limited: bool,
    /// Time with data to send or in flight, µs.
    pub busy_us: u64,
    /// Part of that in which the peer's window limited sending, µs.
    pub window_limited_us: u64,
    /// Time since data was last sent, µs.
    pub silent_us: u64,
}

/// Measures the send statistics of one flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendMeter {
    pub stats: SendStats,
    looked_at: Micros,
    pub sent_at: Micros,
    snd_max: Seq,
    retransmits: u64,
    /// The current measurement of the rate: its start, the bytes acknowledged then, and whether the application limited
    /// it.
    round: (Micros, u64, bool),
}

impl SendMeter {
    /// For a new flow.
    pub(super) fn new(now: Micros, snd_max: Seq) -> Self {
        let stats = SendStats::default();
        Self { stats, looked_at: now, sent_at: now, snd_max, retransmits: 0, round: (now, 0, false) }
    }

    /// Resumes after a pause, which does not count.
    pub(super) fn resume(&mut self, now: Micros) {
        self.looked_at = now;
        self.round.0 = now;
    }

    /// Measures a flow that has had data to send or in flight since the last call.
    pub(super) fn look(&mut self, now: Micros, s: &FlowSnapshot) {
        let us = now.since(self.looked_at);
        self.looked_at = now;
        if (s.snd_max, s.retransmits) != (self.snd_max, self.retransmits) {
            (self.snd_max, self.retransmits, self.sent_at) = (s.snd_max, s.retransmits, now);
        }
        let flight = s.snd_max.bytes_since(s.snd_una);
        let waiting = s.snd_queued.after(s.snd_max);
        self.stats.busy_us += us;
        if waiting && flight.saturating_add(u32::from(s.mss)) > s.snd_wnd {
            self.stats.window_limited_us += us;
        }
        let (since, before, limited) = self.round;
        let limited = limited || !waiting;
        self.round.2 = limited;
        let us = now.since(since);
        if us > 0 && us >= u64::from(s.srtt_us) && s.bytes_acked != before {
            let bytes = s.bytes_acked.wrapping_sub(before);
            self.stats.delivery_rate = (u128::from(bytes) * 1_000_000 / u128::from(us)) as u64;
            self.stats.app_limited = limited;
            self.round = (now, s.bytes_acked, false);
        }
    }
}
