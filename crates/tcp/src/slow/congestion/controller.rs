//! One flow's congestion control. It asks its algorithm, completes the decision with a pacing rate, and suppresses
//! repetitions.

use super::algorithm::Algorithm;
use super::control::{CongestionControl, initial_window};
use super::sample::Sample;
use crate::flow::{FlowSnapshot, Window};
use crate::seq::Seq;
use crate::slow::SlowConfig;
use crate::time::Micros;

/// The decision on a flow without outstanding data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::slow) enum Idle {
    /// Stay on the list, as its window will be reduced.
    Linger,
    /// Leave the list, with a new window if any.
    Leave(Option<Window>),
}

/// One flow's congestion control.
pub(in crate::slow) struct Controller {
    algorithm: Algorithm,
    control: Box<dyn CongestionControl>,
    /// The last sample.
    last: Sample,
    /// The last decision.
    said: Window,
    /// The algorithm has just replaced another one on an installed flow.
    adopt: bool,
    /// Limit of the pacing rate in bytes per second, 0 = none (`SO_MAX_PACING_RATE`).
    max_pacing: u64,
    /// SND.MAX of the idle flow, and the time since which it is idle.
    idle: Option<(Seq, Micros)>,
}

impl Controller {
    /// For a new flow.
    pub(in crate::slow) fn new(now: Micros, algorithm: Algorithm, mss: u32, syn_lost: bool) -> Self {
        let mut control = algorithm.start();
        let said = control.initial(mss, syn_lost);
        Self {
            algorithm,
            control,
            last: Sample { now, ..Sample::default() },
            said,
            adopt: false,
            max_pacing: 0,
            idle: None,
        }
    }

    /// The first window.
    pub(in crate::slow) fn initial(&mut self) -> Window {
        self.said.pacing = limited(self.said.pacing, self.max_pacing);
        self.said
    }

    /// Its algorithm.
    pub(in crate::slow) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Replaces the algorithm. The new one continues with the current window.
    pub(in crate::slow) fn replace(&mut self, algorithm: Algorithm) {
        if algorithm != self.algorithm {
            (self.algorithm, self.control, self.adopt) = (algorithm, algorithm.start(), true);
        }
    }

    /// Limits the pacing rate, in bytes per second; 0 = no limit.
    pub(in crate::slow) fn set_max_pacing(&mut self, bytes_per_s: u64) {
        self.max_pacing = bytes_per_s;
    }

    /// Interval in µs between decisions of an algorithm that decides once per round trip, within limits; `None` =
    /// another one.
    pub(in crate::slow) fn round_trip_us(&self, config: &SlowConfig) -> Option<u64> {
        let max = u64::from(config.control_interval_us);
        let min = u64::from(config.control_interval_min_us).min(max);
        self.control.per_round_trip().then(|| u64::from(self.last.srtt_us).clamp(min, max))
    }

    /// A control interval is over.
    pub(in crate::slow) fn interval(
        &mut self,
        now: Micros,
        flow: &FlowSnapshot,
        config: &SlowConfig,
    ) -> Option<Window> {
        self.idle = None;
        let sample = self.look(now, flow);
        let window = match std::mem::take(&mut self.adopt) {
            true => Some(self.control.adopt(&sample)),
            false => self.control.on_interval(&sample),
        };
        let limited = Sample::new(now, flow).app_limited;
        self.last = Sample { app_limited: limited, ..sample };
        self.complete(window, &sample, config)
    }

    /// The fast path repairs a loss.
    pub(in crate::slow) fn loss(&mut self, now: Micros, flow: &FlowSnapshot, config: &SlowConfig) -> Option<Window> {
        let sample = self.look(now, flow);
        let window = self.control.on_loss(&sample);
        self.complete(window, &sample, config)
    }

    /// The last loss was spurious.
    pub(in crate::slow) fn undo(&mut self, now: Micros, flow: &FlowSnapshot, config: &SlowConfig) -> Option<Window> {
        let sample = self.look(now, flow);
        let window = self.control.on_undo(&sample);
        self.complete(window, &sample, config)
    }

    /// The `timeouts`-th time-out in a row.
    pub(in crate::slow) fn timeout(
        &mut self,
        now: Micros,
        flow: &FlowSnapshot,
        timeouts: u32,
        config: &SlowConfig,
    ) -> Window {
        let sample = Sample { timeouts, ..self.look(now, flow) };
        let mut window = self.control.on_timeout(&sample);
        window.pacing = self.pacing(&window, &sample, config);
        self.said = window;
        window
    }

    /// Nothing is outstanding. `timeout_us`: the retransmission time-out.
    pub(in crate::slow) fn idle(
        &mut self,
        now: Micros,
        flow: &FlowSnapshot,
        timeout_us: u64,
        config: &SlowConfig,
    ) -> Idle {
        if flow.cwnd <= initial_window(u32::from(flow.mss)) {
            return Idle::Leave(None);
        }
        match self.idle {
            Some((at, since)) if at == flow.snd_max => {
                if now.since(since) < timeout_us {
                    return Idle::Linger;
                }
            }
            _ => {
                self.idle = Some((flow.snd_max, now));
                return Idle::Linger;
            }
        }
        self.idle = None;
        let sample = self.look(now, flow);
        let window = self.control.on_idle(&sample);
        Idle::Leave(self.complete(window, &sample, config))
    }

    fn look(&self, now: Micros, flow: &FlowSnapshot) -> Sample {
        let mut sample = Sample::new(now, flow).since(&self.last);
        sample.app_limited |= self.last.app_limited;
        sample
    }

    /// Adds the pacing rate, and suppresses values that the fast path has already.
    fn complete(&mut self, window: Option<Window>, sample: &Sample, config: &SlowConfig) -> Option<Window> {
        let keep = Window { cwnd: Window::KEEP, ssthresh: Window::KEEP, ..self.said };
        let mut window = window.unwrap_or(keep);
        window.pacing = self.pacing(&window, sample, config);
        if window.cwnd == sample.cwnd {
            window.cwnd = Window::KEEP;
        }
        if window.ssthresh == sample.ssthresh {
            window.ssthresh = Window::KEEP;
        }
        let news = window != keep;
        self.said = window;
        news.then_some(window)
    }

    /// The pacing rate: the algorithm's own or, if windows are paced, one that spreads the window over most of a round
    /// trip. It is within the socket's limit.
    fn pacing(&self, window: &Window, sample: &Sample, config: &SlowConfig) -> u64 {
        let rate = if self.control.paced() || !(config.pace_windows || self.max_pacing != 0) {
            window.pacing
        } else {
            let old = self.said.pacing;
            let new = window_rate(window, sample);
            // A small change is not worth a message.
            if new.abs_diff(old) <= old / 16 { old } else { new }
        };
        limited(rate, self.max_pacing)
    }
}

/// A pacing rate within a limit; 0 = none, for both.
fn limited(rate: u64, limit: u64) -> u64 {
    match (rate, limit) {
        (0, limit) => limit,
        (rate, 0) => rate,
        (rate, limit) => rate.min(limit),
    }
}

/// Pacing rate of a window in bytes per second. It is twice the window per round trip in slow start, and 1.2 times
/// after it. So pacing never limits the window's growth. Linux has the same values (`tcp_pacing_ss_ratio`,
/// `tcp_pacing_ca_ratio`).
fn window_rate(window: &Window, sample: &Sample) -> u64 {
    let or = |own: u32, present: u32| if own == Window::KEEP { present } else { own };
    let (cwnd, ssthresh) = (or(window.cwnd, sample.cwnd), or(window.ssthresh, sample.ssthresh));
    if sample.srtt_us == 0 {
        return 0;
    }
    let percent = if cwnd < ssthresh / 2 { 200 } else { 120 };
    // The window may grow until the next decision.
    let cwnd = u64::from(cwnd.max(sample.flight).max(sample.mss));
    (cwnd * percent * 10_000 / u64::from(sample.srtt_us)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_half_the_threshold_the_rate_is_twice_the_window_per_round_trip() {
        let sample = Sample { srtt_us: 10_000, ..Sample::default() };
        let rate = |cwnd| window_rate(&Window { cwnd, ssthresh: 10_000, growth: 256, beta: 512, pacing: 0 }, &sample);
        assert_eq!((rate(4000), rate(5000)), (800_000, 600_000));
    }

    /// Congestion control of a flow with this algorithm.
    fn controller(algorithm: Algorithm) -> Controller {
        Controller::new(Micros(0), algorithm, 1000, false)
    }

    /// A window full of data: 40,000 bytes, over 10 ms, with more to send.
    fn full() -> FlowSnapshot {
        FlowSnapshot {
            mss: 1000,
            cwnd: 40_000,
            ssthresh: 40_000,
            srtt_us: 10_000,
            snd_max: Seq(40_000),
            snd_nxt: Seq(40_000),
            snd_queued: Seq(90_000),
            snd_wnd: 1 << 20,
            ..FlowSnapshot::default()
        }
    }

    /// A sample is of an interval, which has two ends.
    #[test]
    fn an_interval_is_app_limited_if_one_of_its_ends_is() {
        let idle = FlowSnapshot { cwnd: 50_000, snd_queued: Seq(40_000), ..full() };
        for (before, now, limited) in
            [(full(), full(), false), (full(), idle, true), (idle, full(), true), (idle, idle, true)]
        {
            let mut control = controller(Algorithm::Reno);
            control.interval(Micros(10_000), &before, &SlowConfig::default());
            assert_eq!(control.look(Micros(20_000), &now).app_limited, limited);
            control.interval(Micros(20_000), &full(), &SlowConfig::default());
            assert!(!control.look(Micros(30_000), &full()).app_limited, "only one interval long");
        }
    }

    #[test]
    fn a_decision_per_round_trip_comes_within_its_limits() {
        let config = SlowConfig { control_interval_us: 10_000, control_interval_min_us: 500, ..SlowConfig::default() };
        let short = SlowConfig { control_interval_us: 300, ..config.clone() };
        for (srtt_us, expected) in [(0, 500), (499, 500), (501, 501), (9999, 9999), (10_001, 10_000)] {
            let mut control = controller(Algorithm::Dctcp);
            control.last.srtt_us = srtt_us;
            assert_eq!(control.round_trip_us(&config), Some(expected), "{srtt_us} µs");
            assert_eq!(control.round_trip_us(&short), Some(300), "the interval is shorter than the shortest");
        }
        assert_eq!(controller(Algorithm::Reno).round_trip_us(&config), None);
    }

    /// As Linux does: 1.2 times the window per round trip. A change by a sixteenth is not worth a message.
    #[test]
    fn a_paced_window_has_another_rate_when_it_differs_by_more_than_a_sixteenth() {
        let config = SlowConfig { pace_windows: true, ..SlowConfig::default() };
        let mut control = controller(Algorithm::Reno);
        let mut rate = |bytes: u32| {
            let flow =
                FlowSnapshot { cwnd: bytes, ssthresh: bytes, snd_max: Seq(bytes), snd_nxt: Seq(bytes), ..full() };
            control.interval(Micros(1), &flow, &config).map(|window| window.pacing)
        };
        assert_eq!(rate(40_000), Some(4_800_000));
        assert_eq!([rate(42_500), rate(37_500), rate(40_000)], [None; 3], "a sixteenth is 300,000");
        assert_eq!(rate(42_501), Some(5_100_120));
        assert_eq!(rate(39_800), Some(4_776_000));
        assert_eq!(rate(37_312), Some(4_477_440));
    }

    #[test]
    fn a_limit_of_the_socket_holds_for_every_rate() {
        for (rate, limit, expected) in [(0, 0, 0), (0, 7, 7), (5, 0, 5), (5, 7, 5), (7, 7, 7), (9, 7, 7)] {
            assert_eq!(limited(rate, limit), expected, "{rate} within {limit}");
        }
        let mut control = controller(Algorithm::Constant(1_000_000));
        control.set_max_pacing(30_000);
        assert_eq!(control.initial().pacing, 30_000);
        let window = control.timeout(Micros(1), &full(), 1, &SlowConfig::default());
        assert_eq!(window.pacing, 30_000);
    }

    /// Twice the window per round trip below half of the threshold, 1.2 times the largest of window, flight and segment
    /// else.
    #[test]
    fn a_windows_rate_spreads_it_over_most_of_a_round_trip() {
        const KEEP: u32 = Window::KEEP;
        for (cwnd, ssthresh, flight, srtt_us, expected) in [
            (10_000, 20_000, 0, 10_000, 1_200_000),
            (9_999, 20_000, 0, 10_000, 1_999_800),
            (KEEP, KEEP, 0, 10_000, 3_600_000),
            (KEEP, 80_000, 0, 10_000, 6_000_000),
            (10_000, KEEP, 0, 10_000, 2_000_000),
            (10_000, 10_000, 50_000, 10_000, 6_000_000),
            (500, 100, 0, 10_000, 120_000),
            (1000, 100, 0, u32::MAX, 1),
            (10_000, 10_000, 0, 0, 0),
        ] {
            let sample = Sample { mss: 1000, cwnd: 30_000, ssthresh: 60_000, flight, srtt_us, ..Sample::default() };
            let window = Window { cwnd, ssthresh, growth: 256, beta: 512, pacing: 0 };
            assert_eq!(window_rate(&window, &sample), expected, "{cwnd} and {ssthresh}");
        }
    }

    /// RFC 5681 §4.1: a time-out long, in which nothing was sent.
    #[test]
    fn an_idle_flow_lingers_until_a_time_out_has_passed_without_new_data() {
        let config = SlowConfig::default();
        let idle = |snd_max, cwnd| FlowSnapshot { snd_max: Seq(snd_max), snd_una: Seq(snd_max), cwnd, ..full() };
        let mut control = controller(Algorithm::Reno);
        let mut look = |us, flow: FlowSnapshot| control.idle(Micros(us), &flow, 200_000, &config);
        assert_eq!(look(0, idle(5, 10_000)), Idle::Leave(None), "the initial window is not reduced");
        assert_eq!(look(0, idle(5, 10_001)), Idle::Linger);
        assert_eq!(look(150_000, idle(5, 10_001)), Idle::Linger);
        assert_eq!(look(200_000, idle(6, 10_001)), Idle::Linger, "something was sent");
        assert_eq!(look(399_999, idle(6, 10_001)), Idle::Linger);
        let restarted = look(400_000, idle(6, 10_001));
        assert!(matches!(restarted, Idle::Leave(Some(window)) if window.cwnd == 10_000), "{restarted:?}");
        assert_eq!(look(400_001, idle(6, 10_001)), Idle::Linger, "the time begins anew");
    }
}
