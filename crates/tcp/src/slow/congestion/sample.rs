//! The input of congestion control: measurements of one flow.

use crate::flow::{FlowSnapshot, flow_flags};
use crate::time::Micros;

/// Events between two samples of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Its length in µs.
    pub us: u64,
    /// Payload bytes acknowledged.
    pub acked: u64,
    /// Of those, with ECN echo.
    pub marked: u64,
    /// Payload bytes judged lost.
    pub lost: u64,
    /// Segments retransmitted.
    pub retransmits: u64,
}

/// Measurements of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The time of the sample.
    pub now: Micros,
    /// Payload bytes per packet.
    pub mss: u32,
    /// Bytes sent and not acknowledged (FlightSize).
    pub flight: u32,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow-start threshold in bytes.
    pub ssthresh: u32,
    /// Payload bytes acknowledged since the connection began.
    pub bytes_acked: u64,
    /// Payload bytes acknowledged with ECN echo since then.
    pub bytes_marked: u64,
    /// Payload bytes judged lost since then.
    pub bytes_lost: u64,
    /// Segments retransmitted since then.
    pub retransmits: u64,
    /// Smoothed round-trip time in µs, 0 = no sample.
    pub srtt_us: u32,
    /// Newest round-trip time in µs, else the smoothed one, 0 = no sample.
    pub rtt_us: u32,
    /// Smallest recent round-trip time in µs, 0 = not known.
    pub min_rtt_us: u32,
    /// Current pacing rate in bytes per second, 0 = not paced.
    pub pacing: u64,
    /// The application or the peer's window, not the congestion window, limited the sender, now or at the last sample.
    pub app_limited: bool,
    /// The fast path is repairing a loss.
    pub recovering: bool,
    /// The number of time-outs in a row, from 1 (`on_timeout` only).
    pub timeouts: u32,
    /// Events since the last `on_interval`.
    pub interval: Interval,
}

impl Sample {
    /// A sample from a snapshot.
    pub fn new(now: Micros, snapshot: &FlowSnapshot) -> Self {
        let mut sample = Self {
            now,
            mss: u32::from(snapshot.mss).max(1),
            flight: snapshot.snd_max.bytes_since(snapshot.snd_una),
            cwnd: snapshot.cwnd,
            ssthresh: snapshot.ssthresh,
            bytes_acked: snapshot.bytes_acked,
            bytes_marked: snapshot.bytes_marked,
            bytes_lost: snapshot.bytes_lost,
            retransmits: snapshot.retransmits,
            srtt_us: snapshot.srtt_us,
            rtt_us: if snapshot.rtt_us == 0 { snapshot.srtt_us } else { snapshot.rtt_us },
            min_rtt_us: snapshot.min_rtt_us,
            pacing: snapshot.pacing,
            recovering: snapshot.flags & flow_flags::RECOVERY != 0,
            ..Self::default()
        };
        let room = sample.cwnd.saturating_sub(sample.flight) >= sample.mss;
        let waits = snapshot.snd_queued.after(snapshot.snd_nxt);
        let shut = sample.flight.saturating_add(sample.mss) > snapshot.snd_wnd;
        sample.app_limited = room && (!waits || shut);
        sample
    }

    /// Adds the differences to an earlier sample. A counter that has decreased counts from zero, as the number has a
    /// new flow.
    pub fn since(mut self, earlier: &Self) -> Self {
        let more = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
        self.interval = Interval {
            us: self.now.since(earlier.now),
            acked: more(self.bytes_acked, earlier.bytes_acked),
            marked: more(self.bytes_marked, earlier.bytes_marked),
            lost: more(self.bytes_lost, earlier.bytes_lost),
            retransmits: more(self.retransmits, earlier.retransmits),
        };
        self
    }

    /// Is the window below the slow-start threshold (RFC 5681 §3.1)?
    pub fn slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seq::Seq;

    /// 2000 bytes are out, 3000 are queued, and a window of either kind has room for more.
    fn snapshot() -> FlowSnapshot {
        FlowSnapshot {
            mss: 1000,
            snd_una: Seq(u32::MAX),
            snd_max: Seq(1999),
            snd_nxt: Seq(1999),
            snd_queued: Seq(2999),
            cwnd: 4000,
            ssthresh: 5000,
            snd_wnd: 9000,
            ..FlowSnapshot::default()
        }
    }

    fn limited(change: impl FnOnce(&mut FlowSnapshot)) -> bool {
        let mut of = snapshot();
        change(&mut of);
        Sample::new(Micros(1), &of).app_limited
    }

    #[test]
    fn the_application_limits_a_flow_that_might_send_more_and_has_nothing_or_a_peer_that_takes_none() {
        assert!(!limited(|_| {}));
        assert!(limited(|s| s.snd_queued = s.snd_nxt), "nothing waits");
        assert!(!limited(|s| (s.snd_queued, s.cwnd) = (s.snd_nxt, 2999)), "no room for a segment");
        assert!(limited(|s| (s.snd_queued, s.cwnd) = (s.snd_nxt, 3000)));
        assert!(!limited(|s| s.snd_wnd = 3000) && limited(|s| s.snd_wnd = 2999), "the peer's window");
    }

    #[test]
    fn a_sample_is_what_the_flow_shows() {
        let sample = Sample::new(Micros(7), &FlowSnapshot { srtt_us: 90, ..snapshot() });
        assert_eq!((sample.now, sample.mss, sample.flight), (Micros(7), 1000, 2000));
        assert_eq!((sample.rtt_us, sample.recovering, sample.slow_start()), (90, false, true));
        let flags = flow_flags::RECOVERY;
        let sample = Sample::new(Micros(7), &FlowSnapshot { mss: 0, srtt_us: 90, rtt_us: 80, flags, ..snapshot() });
        assert_eq!((sample.mss, sample.rtt_us, sample.srtt_us, sample.recovering), (1, 80, 90, true));
        assert!(!Sample { cwnd: 5000, ssthresh: 5000, ..sample }.slow_start());
        assert!(!Sample::new(Micros(7), &FlowSnapshot { flags: !flags, ..snapshot() }).recovering);
    }

    #[test]
    fn an_interval_has_the_differences_and_a_new_flow_counts_from_zero() {
        let at = |us, n: u64| Sample {
            now: Micros(us),
            bytes_acked: 10 * n,
            bytes_marked: 20 * n,
            bytes_lost: 30 * n,
            retransmits: 40 * n,
            ..Sample::default()
        };
        let of = |us, n: u64| Interval { us, acked: 10 * n, marked: 20 * n, lost: 30 * n, retransmits: 40 * n };
        assert_eq!(at(9, 5).since(&at(2, 3)).interval, of(7, 2));
        assert_eq!(at(9, 5).since(&at(2, 5)).interval, of(7, 0));
        assert_eq!(at(9, 2).since(&at(2, 3)).interval, of(7, 2), "the number has another flow");
    }
}
