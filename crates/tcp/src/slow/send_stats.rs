//! Statistics of a connection, for `TCP_INFO`. They are measured when the flow is checked, so times are exact to a
//! control interval.

use crate::flow::FlowSnapshot;
use crate::seq::Seq;
use crate::time::Micros;

/// Statistics of one flow; all 0 = nothing has been sent.
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
    /// Part of that in which the send ring was full and all of it in flight, µs.
    pub buffer_limited_us: u64,
    /// Time since data was last sent, µs.
    pub silent_us: u64,
    /// Time since data was last received, µs.
    pub data_silent_us: u64,
    /// Time since the peer was last heard, µs.
    pub heard_us: u64,
    /// Retransmission time-outs so far, of the handshake too.
    pub timeouts: u32,
    /// How often the first of a series of them has happened.
    pub timeout_series: u32,
    /// Time from the first time-out of a series to the next progress, of all series, µs.
    pub timeout_us: u64,
}

/// Measures the statistics of one flow.
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
    /// The bytes received at the last look, when that was, and when the newest of them came.
    received: (u64, Micros, Micros),
    /// When the present series of time-outs began.
    timed_out_at: Option<Micros>,
}

impl SendMeter {
    /// For a new flow, whose handshake had `timeouts` time-outs.
    pub(super) fn new(now: Micros, snd_max: Seq, timeouts: u32) -> Self {
        let stats = SendStats { timeouts, timeout_series: timeouts.min(1), ..SendStats::default() };
        Self {
            stats,
            looked_at: now,
            sent_at: now,
            snd_max,
            retransmits: 0,
            round: (now, 0, false),
            received: (0, now, now),
            timed_out_at: None,
        }
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
        self.hear(now, s);
        if (s.snd_max, s.retransmits) != (self.snd_max, self.retransmits) {
            (self.snd_max, self.retransmits, self.sent_at) = (s.snd_max, s.retransmits, now);
        }
        let flight = s.snd_max.bytes_since(s.snd_una);
        let waiting = s.snd_queued.after(s.snd_max);
        let more = flight.saturating_add(u32::from(s.mss));
        self.stats.busy_us += us;
        if waiting && more > s.snd_wnd {
            self.stats.window_limited_us += us;
        }
        if !waiting && more > s.tx_bytes {
            self.stats.buffer_limited_us += us;
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

    /// Looks for received data. The fast path notes their time only where their acknowledgement has been put off. So
    /// that is the time if it is newer than the last look, else now is.
    pub(super) fn hear(&mut self, now: Micros, s: &FlowSnapshot) {
        let (bytes, looked_at, at) = self.received;
        let owed_us = u64::from((now.0 as u32).wrapping_sub(s.owed_at));
        let at = match () {
            () if s.bytes_in == bytes => at,
            () if s.owed_at != 0 && owed_us <= now.since(looked_at) => Micros(now.0 - owed_us),
            () => now,
        };
        self.received = (s.bytes_in, now, at);
    }

    /// The `timeouts`-th time-out since the last progress.
    pub(super) fn timed_out(&mut self, now: Micros, timeouts: u32) {
        self.stats.timeouts += 1;
        if timeouts == 1 {
            self.stats.timeout_series += 1;
            self.timed_out_at = Some(now);
        }
    }

    /// Something has been acknowledged.
    pub(super) fn progress(&mut self, now: Micros) {
        if let Some(at) = self.timed_out_at.take() {
            self.stats.timeout_us += now.since(at);
        }
    }

    /// The statistics now. `heard_at`: when the peer was last heard.
    pub(super) fn read(&self, now: Micros, heard_at: Micros) -> SendStats {
        let (_, _, received_at) = self.received;
        SendStats {
            silent_us: now.since(self.sent_at),
            data_silent_us: now.since(received_at),
            heard_us: now.since(heard_at.max(received_at)),
            timeout_us: self.stats.timeout_us + self.timed_out_at.map_or(0, |at| now.since(at)),
            ..self.stats
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> FlowSnapshot {
        FlowSnapshot { mss: 1000, snd_wnd: 10_000, tx_bytes: 8000, ..FlowSnapshot::default() }
    }

    fn out(flight: u32, queued: u32) -> FlowSnapshot {
        FlowSnapshot { snd_max: Seq(flight), snd_queued: Seq(queued), ..flow() }
    }

    #[test]
    fn a_full_ring_that_is_all_in_flight_limits_the_sender() {
        let mut meter = SendMeter::new(Micros(0), Seq(0), 0);
        let mut now = 0;
        for (snapshot, limits) in [
            (out(8000, 8000), (0, 10)),
            (out(7001, 7001), (0, 20)),
            (out(7000, 7000), (0, 20)),
            (out(6000, 8000), (0, 20)),
            (FlowSnapshot { snd_wnd: 6000, ..out(6000, 8000) }, (10, 20)),
        ] {
            now += 10;
            meter.look(Micros(now), &snapshot);
            let stats = meter.stats;
            assert_eq!((stats.window_limited_us, stats.buffer_limited_us), limits, "at {now}");
        }
        assert_eq!(meter.stats.busy_us, 50);
    }

    #[test]
    fn the_rate_is_what_was_acknowledged_in_a_round_trip_at_least() {
        let mut meter = SendMeter::new(Micros(0), Seq(0), 0);
        let mut look = |now, bytes_acked, queued| {
            meter.look(Micros(now), &FlowSnapshot { bytes_acked, srtt_us: 100, ..out(2000, queued) });
            (meter.stats.delivery_rate, meter.stats.app_limited)
        };
        assert_eq!(look(99, 500, 4000), (0, false), "not a whole round trip");
        assert_eq!(look(100, 500, 4000), (5_000_000, false));
        assert_eq!(look(300, 500, 4000), (5_000_000, false), "nothing more has been acknowledged");
        assert_eq!(look(350, 1000, 2000), (2_000_000, true), "nothing waited");
        assert_eq!(look(400, 1000, 2000), (2_000_000, true));
        assert_eq!(look(450, 1100, 4000), (1_000_000, true), "at some time in it");
        assert_eq!(look(550, 1300, 4000), (2_000_000, false));
    }

    #[test]
    fn a_pause_is_no_time_of_sending_and_silence_lasts_since_the_last_segment() {
        let mut meter = SendMeter::new(Micros(0), Seq(0), 0);
        meter.look(Micros(10), &out(1000, 4000));
        meter.resume(Micros(100));
        meter.look(Micros(130), &FlowSnapshot { bytes_acked: 60, ..out(1000, 4000) });
        assert_eq!((meter.stats.busy_us, meter.stats.delivery_rate), (40, 2_000_000));
        assert_eq!(meter.read(Micros(150), Micros(120)).silent_us, 140);
        assert_eq!(meter.read(Micros(150), Micros(120)).heard_us, 30);
        meter.look(Micros(160), &FlowSnapshot { retransmits: 1, ..out(1000, 4000) });
        assert_eq!(meter.read(Micros(170), Micros(0)).silent_us, 10, "what is sent again is sent");
    }

    #[test]
    fn a_series_of_time_outs_lasts_until_progress() {
        let mut meter = SendMeter::new(Micros(0), Seq(0), 2);
        let seen = |meter: &SendMeter, now| {
            let stats = meter.read(Micros(now), Micros(0));
            (stats.timeouts, stats.timeout_series, stats.timeout_us)
        };
        assert_eq!(seen(&meter, 10), (2, 1, 0), "those of the handshake");
        meter.timed_out(Micros(100), 1);
        meter.timed_out(Micros(300), 2);
        assert_eq!(seen(&meter, 400), (4, 2, 300));
        meter.progress(Micros(500));
        meter.progress(Micros(600));
        assert_eq!(seen(&meter, 700), (4, 2, 400));
    }

    #[test]
    fn the_newest_data_came_when_their_acknowledgement_was_put_off() {
        let mut meter = SendMeter::new(Micros(1000), Seq(0), 0);
        let mut look = |now, bytes_in, owed_at| {
            meter.hear(Micros(now), &FlowSnapshot { bytes_in, owed_at, ..flow() });
            let stats = meter.read(Micros(now), Micros(0));
            assert_eq!(stats.data_silent_us, stats.heard_us);
            stats.data_silent_us
        };
        assert_eq!(look(2000, 0, 0), 1000, "nothing yet: since the connection began");
        assert_eq!(look(3000, 10, 2400), 600);
        assert_eq!(look(4000, 10, 2400), 1600);
        assert_eq!(look(5000, 20, 2400), 0, "acknowledged at once, at some time since the last look");
        let wrapped = (1 << 32) + 500;
        assert_eq!(look(wrapped, 20, 2400), wrapped - 5000);
        assert_eq!(look(wrapped + 1000, 30, 700), 800, "the clock of 32 bits has wrapped around");
    }
}
