//! The retransmission timer (RFC 6298), on snapshots of the flow instead of single segments.

use super::SlowConfig;
use crate::flow::{FlowSnapshot, flow_flags};
use crate::seq::Seq;
use crate::time::Micros;

/// Clock granularity G in µs: timestamps tick in milliseconds.
const GRANULARITY_US: u64 = 1000;

/// RFC 6298 §2: the time-out in µs before any backoff (RFC 9293 §3.8.1 MUST-18).
pub(super) fn timeout_us(config: &SlowConfig, snapshot: &FlowSnapshot) -> u64 {
    let (min, max) = (u64::from(config.rto_min_ms) * 1000, u64::from(config.rto_max_ms) * 1000);
    let rto = match u64::from(snapshot.srtt_us) {
        0 => u64::from(config.rto_initial_ms) * 1000,
        srtt => srtt + GRANULARITY_US.max(4 * u64::from(snapshot.rttvar_us)),
    };
    rto.clamp(min.min(max), max)
}

/// WCDelAckT in µs: the longest delay of a peer's acknowledgement of a lone segment (RFC 8985 §7.2).
const DELAYED_ACK_US: u64 = 200_000;

/// Time in µs after which a lone segment is probed (RFC 8985 §7.2). `None` = no probe, as the time-out after
/// `timeout_us` is sooner, or another rule applies.
pub(super) fn lone_probe_us(snapshot: &FlowSnapshot, timeout_us: u64) -> Option<u64> {
    let flight = snapshot.snd_max.bytes_since(snapshot.snd_una);
    let lone = flight <= u32::from(snapshot.mss) && snapshot.snd_nxt == snapshot.snd_max;
    let sack = snapshot.flags & (flow_flags::SACK | flow_flags::RECOVERY) == flow_flags::SACK;
    let probe_us = 2 * u64::from(snapshot.srtt_us) + DELAYED_ACK_US;
    (lone && sack && snapshot.srtt_us != 0 && probe_us < timeout_us).then_some(probe_us)
}

/// The result of a timer's check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing yet.
    No,
    /// Retransmit or probe. The number of such events since the last progress, from 1.
    Fire(u32),
    /// Give up.
    Expired,
}

/// The limits of a timer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// Most time-outs without progress.
    pub retries: u8,
    /// Most µs without progress; replaces `retries` if not 0 (RFC 5482; MUST-21).
    pub user_timeout_us: u64,
    /// Longest time-out in µs.
    pub max_us: u64,
}

/// State of one flow's retransmission timer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retransmit {
    una: Seq,
    /// The time of the last progress.
    began: Micros,
    since: Micros,
    running: bool,
    backoffs: u32,
    /// Has the tail been probed since the last progress?
    probed: bool,
}

impl Retransmit {
    /// A timer that runs from `now`, when data has been sent.
    pub(super) fn start(now: Micros, una: Seq) -> Self {
        Self { una, began: now, since: now, running: true, backoffs: 0, probed: false }
    }
    /// SND.UNA at the last check.
    pub(super) fn una(&self) -> Seq {
        self.una
    }
    /// Time-outs since the last progress.
    pub(super) fn timeouts(&self) -> u32 {
        self.backoffs
    }
    /// Starts over: data was sent after a pause, or the window has opened.
    pub(super) fn restart(&mut self, now: Micros) {
        *self = Self::start(now, self.una);
    }
    /// Restarts the running interval, as the retransmission itself still waits to be sent.
    pub(super) fn hold(&mut self, now: Micros) -> Due {
        self.since = now;
        Due::No
    }
    /// Is the one probe of a lone segment due, `probe_us` after it was sent? If so, the time-out starts over (RFC 8985
    /// §7.3).
    pub(super) fn probe(&mut self, now: Micros, una: Seq, probe_us: u64) -> bool {
        let due =
            self.running && una == self.una && self.backoffs == 0 && !self.probed && now.since(self.since) >= probe_us;
        if due {
            (self.probed, self.since) = (true, now);
        }
        due
    }
    /// Checks the timer. `flight`: bytes sent and not acknowledged.
    pub(super) fn check(&mut self, now: Micros, una: Seq, flight: u32, timeout_us: u64, limit: Limit) -> Due {
        if una != self.una || flight == 0 || !self.running {
            *self = Self { running: flight > 0, ..Self::start(now, una) };
            return Due::No;
        }
        let timed = limit.user_timeout_us != 0;
        if timed && self.backoffs > 0 && now.since(self.began) >= limit.user_timeout_us {
            return Due::Expired;
        }
        if now.since(self.since) < backed_off(timeout_us, self.backoffs, limit.max_us) {
            return Due::No;
        }
        if !timed && self.backoffs >= u32::from(limit.retries) {
            return Due::Expired;
        }
        self.backoffs = self.backoffs.saturating_add(1);
        self.since = now;
        Due::Fire(self.backoffs)
    }
}

/// RFC 6298 §5.5: the time-out doubled `backoffs` times, at most `max_us` (RFC 9293 §3.8.2 MUST-19).
pub(super) fn backed_off(timeout_us: u64, backoffs: u32, max_us: u64) -> u64 {
    timeout_us.saturating_mul(1 << backoffs.min(32)).min(max_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit { retries: 3, user_timeout_us: 0, max_us: 1_000_000 };

    /// RFC 9293 MUST-18.
    #[test]
    fn timeout_follows_rfc_6298_with_linux_bounds() {
        let config = SlowConfig::default();
        let rto = |srtt_us, rttvar_us| timeout_us(&config, &FlowSnapshot { srtt_us, rttvar_us, ..Default::default() });
        assert_eq!(rto(0, 0), 3_000_000, "no sample: RFC 6298 §5.7");
        assert_eq!(rto(50, 10), 200_000, "minimum");
        assert_eq!(rto(300_000, 0), 301_000, "granularity");
        assert_eq!(rto(300_000, 50_000), 500_000);
        assert_eq!(rto(100_000_000, 100_000_000), 120_000_000, "maximum");
    }

    #[test]
    fn a_tail_is_probed_once_while_its_timer_runs_and_nothing_else_has_happened() {
        const AFTER: u64 = 100_000;
        let mut timer = Retransmit::start(Micros(0), Seq(1));
        assert_eq!(timer.check(Micros(0), Seq(1), 0, 200_000, LIMIT), Due::No);
        assert!(!timer.probe(Micros(AFTER), Seq(1), AFTER), "nothing is out");
        assert_eq!(timer.check(Micros(0), Seq(1), 10, 200_000, LIMIT), Due::No);
        assert!(!timer.probe(Micros(AFTER - 1), Seq(1), AFTER), "too early");
        assert!(!timer.probe(Micros(AFTER), Seq(2), AFTER), "something was acknowledged");
        assert!(timer.probe(Micros(AFTER), Seq(1), AFTER));
        assert!(!timer.probe(Micros(3 * AFTER), Seq(1), AFTER), "once");
        let mut timer = Retransmit::start(Micros(0), Seq(1));
        assert_eq!(timer.check(Micros(200_000), Seq(1), 10, 200_000, LIMIT), Due::Fire(1));
        assert!(!timer.probe(Micros(900_000), Seq(1), AFTER), "all is sent again");
    }

    #[test]
    fn backs_off_resets_on_progress_and_gives_up() {
        let (mut timer, limit) = (Retransmit::start(Micros(0), Seq(1)), LIMIT);
        let mut check = |ms: u64, una, flight| timer.check(Micros(ms * 1000), Seq(una), flight, 200_000, limit);
        assert_eq!(check(199, 1, 10), Due::No);
        assert_eq!(check(200, 1, 10), Due::Fire(1));
        assert_eq!(check(599, 1, 10), Due::No);
        assert_eq!(check(600, 1, 10), Due::Fire(2));
        assert_eq!(check(700, 5, 6), Due::No, "progress");
        assert_eq!(check(899, 5, 6), Due::No);
        assert_eq!(check(900, 5, 6), Due::Fire(1));
        assert_eq!(check(1300, 5, 6), Due::Fire(2));
        assert_eq!(check(2100, 5, 6), Due::Fire(3));
        assert_eq!(check(3099, 5, 6), Due::No, "limited to the maximum");
        assert_eq!(check(3100, 5, 6), Due::Expired);
    }

    #[test]
    fn does_not_run_while_nothing_is_outstanding() {
        let mut timer = Retransmit::start(Micros(0), Seq(1));
        assert_eq!(timer.check(Micros(500_000), Seq(1), 0, 200_000, LIMIT), Due::No);
        assert_eq!(timer.check(Micros(900_000), Seq(1), 10, 200_000, LIMIT), Due::No, "starts now");
        assert_eq!(timer.check(Micros(1_000_000), Seq(1), 10, 200_000, LIMIT), Due::No);
        assert_eq!(timer.check(Micros(1_100_000), Seq(1), 10, 200_000, LIMIT), Due::Fire(1));
    }

    #[test]
    fn the_user_timeout_takes_the_place_of_the_number_of_retries() {
        let mut timer = Retransmit::start(Micros(0), Seq(1));
        let limit = Limit { user_timeout_us: 10_000_000, ..LIMIT };
        let ends = |timer: &mut Retransmit, ms: u64, una| timer.check(Micros(ms * 1000), Seq(una), 9, 200_000, limit);
        let fired = (1..1000).filter(|i| ends(&mut timer, i * 10, 1) != Due::No).count();
        assert!(fired > 3, "{fired}");
        assert_eq!(ends(&mut timer, 10_000, 1), Due::Expired);
        let mut timer = Retransmit::start(Micros(0), Seq(1));
        (1..1000).for_each(|i| assert_ne!(ends(&mut timer, i * 10, 1 + i as u32 / 100), Due::Expired, "progress"));
        let short = Limit { user_timeout_us: 100_000, ..LIMIT };
        let mut timer = Retransmit::start(Micros(0), Seq(1));
        let mut check = |ms: u64| timer.check(Micros(ms * 1000), Seq(1), 9, 200_000, short);
        assert_eq!([150, 200, 210].map(&mut check), [Due::No, Due::Fire(1), Due::Expired], "as Linux: once it tries");
    }

    /// RFC 8985 §7.2: two round trips and a delayed acknowledgement, if that is sooner than the time-out.
    #[test]
    fn a_lone_segment_is_probed_only_before_its_time_out() {
        let lone = FlowSnapshot {
            mss: 1000,
            srtt_us: 300_000,
            snd_max: Seq(1000),
            snd_nxt: Seq(1000),
            flags: flow_flags::SACK,
            ..FlowSnapshot::default()
        };
        for (snapshot, timeout_us, expected) in [
            (lone, 800_001, Some(800_000)),
            (lone, 800_000, None),
            (FlowSnapshot { snd_max: Seq(1001), snd_nxt: Seq(1001), ..lone }, 900_000, None),
            (FlowSnapshot { snd_nxt: Seq(0), ..lone }, 900_000, None),
            (FlowSnapshot { srtt_us: 0, ..lone }, 900_000, None),
            (FlowSnapshot { flags: 0, ..lone }, 900_000, None),
            (FlowSnapshot { flags: flow_flags::SACK | flow_flags::RECOVERY, ..lone }, 900_000, None),
        ] {
            assert_eq!(lone_probe_us(&snapshot, timeout_us), expected, "{snapshot:?}");
        }
    }
}
