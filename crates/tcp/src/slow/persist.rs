//! Zero-window probing (RFC 9293 §3.8.6.1, MUST-36), and the override time-out of silly window avoidance (§3.8.6.2.1,
//! MUST-38).

use super::SlowConfig;
use super::rto::{Due, backed_off};
use crate::seq::Seq;
use crate::time::Micros;

/// RFC 9293 §3.8.6.2.1: the override time-out is "in the range 0.1-1.0 seconds". Here it is the retransmission
/// time-out, within these limits in µs.
const OVERRIDE_US: (u64, u64) = (100_000, 1_000_000);

/// The peer's state at a check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// SND.UNA.
    pub una: Seq,
    /// Segments received from it.
    pub segments_heard: u32,
    /// The window is open but unusable: it is silly, or the application holds back a partial segment.
    pub open: bool,
}

/// State of one flow's persist timer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Persist {
    running: bool,
    since: Micros,
    /// When the first probe was sent.
    began: Micros,
    probes: u32,
    unanswered: u32,
    segments_heard: u32,
    una: Seq,
}

impl Persist {
    /// Probes since the peer's last segment.
    pub(super) fn unanswered(&self) -> u32 {
        if self.running { self.unanswered } else { 0 }
    }
    /// Stops the timer, as the window is open.
    pub(super) fn stop(&mut self) {
        self.running = false;
    }
    /// Checks the timer while data waits and the window is zero or unusable. The first probe is sent one time-out after
    /// the window was seen closed (SHLD-29). Then the interval doubles (SHLD-30).
    ///
    /// A peer that answers is probed for ever (MUST-37). If the application has closed the socket, it gets at most
    /// `config.retries` probes, so that it cannot hold the memory of programs that have ended.
    pub(super) fn check(
        &mut self,
        now: Micros,
        peer: Peer,
        timeout_us: u64,
        orphan: bool,
        user_timeout_us: u64,
        config: &SlowConfig,
    ) -> Due {
        let Peer { una, segments_heard, open } = peer;
        // Data sent into a silly window has been acknowledged, so the next override is a new attempt.
        if !self.running || (open && una != self.una) {
            *self = Self { running: true, since: now, segments_heard, una, ..Self::default() };
            return Due::No;
        }
        if segments_heard != self.segments_heard {
            (self.segments_heard, self.unanswered) = (segments_heard, 0);
        }
        let max_us = u64::from(config.rto_max_ms) * 1000;
        let interval_us = match open {
            true => timeout_us.clamp(OVERRIDE_US.0, OVERRIDE_US.1),
            false => backed_off(timeout_us, self.probes, max_us),
        };
        if now.since(self.since) < interval_us {
            return Due::No;
        }
        // As in Linux, TCP_USER_TIMEOUT limits the wait even if the peer answers (RFC 5482 §3.1).
        if user_timeout_us != 0 && self.probes > 0 && now.since(self.began) >= user_timeout_us {
            return Due::Expired;
        }
        let limit = if orphan { config.orphan_retries } else { config.retries };
        let timed = user_timeout_us != 0;
        if (!timed && self.unanswered >= u32::from(limit)) || (orphan && self.probes >= u32::from(config.retries)) {
            return Due::Expired;
        }
        if self.probes == 0 {
            self.began = now;
        }
        self.probes = self.probes.saturating_add(1);
        self.unanswered += 1;
        self.since = now;
        Due::Fire(self.probes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times in ms at which probes are sent, with checks every 10 ms, until given up or `ms`.
    fn probes_until(answer: bool, orphan: bool, user_ms: u64, ms: u64) -> (Vec<u64>, bool) {
        let (config, mut persist, mut sent, mut heard) = (SlowConfig::default(), Persist::default(), Vec::new(), 1);
        for t in (0..ms).step_by(10) {
            let peer = Peer { una: Seq(1), segments_heard: heard, open: false };
            match persist.check(Micros(t * 1000), peer, 200_000, orphan, user_ms * 1000, &config) {
                Due::No => {}
                Due::Fire(_) => {
                    sent.push(t);
                    heard += u32::from(answer);
                }
                Due::Expired => return (sent, true),
            }
        }
        (sent, false)
    }

    fn probes(answer: bool, orphan: bool, ms: u64) -> (Vec<u64>, bool) {
        probes_until(answer, orphan, 0, ms)
    }

    #[test]
    fn the_user_timeout_ends_even_a_window_that_is_closed_and_answered() {
        assert_eq!(probes_until(true, false, 2000, 9_000), (vec![200, 600, 1400], true));
    }

    #[test]
    fn the_user_timeout_begins_with_the_first_probe_however_long_the_clock_has_run() {
        let (config, mut persist, begun) = (SlowConfig::default(), Persist::default(), Micros(1 << 40));
        let mut check = |us: u64| {
            let peer = Peer { una: Seq(1), segments_heard: 1, open: false };
            persist.check(begun.after(us), peer, 200_000, false, 1_000_000, &config)
        };
        assert_eq!(check(0), Due::No);
        assert!(matches!(check(200_000), Due::Fire(_)) && matches!(check(600_000), Due::Fire(_)));
        assert_eq!(check(1_400_000), Due::Expired);
    }

    #[test]
    fn interval_doubles() {
        assert_eq!(probes(true, false, 3200).0, [200, 600, 1400, 3000]);
    }

    #[test]
    fn a_silly_window_is_used_once_per_override_time_out_without_backing_off() {
        let (config, mut persist, mut sent) = (SlowConfig::default(), Persist::default(), Vec::new());
        for t in (0..2_000).step_by(10) {
            // Each is acknowledged at once.
            let peer = Peer { una: Seq(sent.len() as u32), segments_heard: 1, open: true };
            if persist.check(Micros(t * 1000), peer, 200_000, false, 0, &config) != Due::No {
                sent.push(t);
            }
        }
        assert_eq!(sent, [200, 410, 620, 830, 1040, 1250, 1460, 1670, 1880]);
        let mut persist = Persist::default();
        let peer = Peer { una: Seq(1), segments_heard: 1, open: true };
        let due = |ms: u64, persist: &mut Persist| persist.check(Micros(ms * 1000), peer, 9_000_000, false, 0, &config);
        assert_eq!(
            [0, 990, 1000].map(|ms| due(ms, &mut persist)),
            [Due::No, Due::No, Due::Fire(1)],
            "never later than 1 s"
        );
    }

    #[test]
    fn answered_probes_go_on_for_ever_but_not_for_an_orphan() {
        let (sent, given_up) = probes(true, false, 5_000_000);
        assert!(!given_up && sent.len() > 40, "{}", sent.len());
        let (sent, given_up) = probes(true, true, 5_000_000);
        assert!(given_up);
        assert_eq!(sent.len(), 15);
    }

    #[test]
    fn unanswered_probes_end() {
        assert_eq!(probes(false, false, 5_000_000).0.len(), 15);
        assert!(probes(false, false, 5_000_000).1);
        assert_eq!(probes(false, true, 5_000_000).0.len(), 8);
    }
}
