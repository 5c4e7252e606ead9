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
}
