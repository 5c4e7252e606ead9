//! CUBIC (RFC 9438) with HyStart++ (RFC 9406): the window follows a cubic function of the time since the last loss.
//!
//! The curve is computed here once per control interval. The fast path gets the number of segments per window that
//! follow the curve until the next decision. So the window grows on acknowledgements, as in the RFC.

use super::control::{CongestionControl, initial_window, timeout_threshold};
use super::sample::Sample;
use crate::flow::Window;
use crate::time::Micros;

/// RFC 9438 §5.1: C in segments per second cubed.
const C: f64 = 0.4;
/// RFC 9438 §4.6: beta_cubic = 0.7, in 1/1024 (as Linux).
const BETA: u16 = 717;
const BETA_CUBIC: f64 = 0.7;
/// RFC 9438 §4.3: growth of the Reno-friendly estimate in segments per window, until it reaches the window before the
/// loss.
const ALPHA_CUBIC: f64 = 3.0 * (1.0 - BETA_CUBIC) / (1.0 + BETA_CUBIC);
/// RFC 5681 §3.1: slow start, a byte per byte.
const SLOW_START: u16 = 256;
/// Shortest time in µs from one decision to the next.
const MIN_HORIZON_US: u64 = 10_000;

/// The curve of one congestion avoidance stage; windows in segments, times in seconds.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Micros,
    /// W_max, the plateau.
    plateau: f64,
    /// K: from the start to the plateau.
    k: f64,
    /// W_est (§4.3).
    estimate: f64,
}

impl Epoch {
    /// RFC 9438 §4.2, equation 1.
    fn curve(&self, t: f64) -> f64 {
        C * (t - self.k).powi(3) + self.plateau
    }
}

/// The state that a loss changes and an undo restores (RFC 9438 §4.9).
#[derive(Clone, Copy, Debug, Default)]
struct CurveState {
    epoch: Option<Epoch>,
    /// W_max for the next epoch, 0 = it begins on its plateau (§4.8, §4.10).
    w_max: f64,
    /// cwnd_prior: the window before the last reduction.
    prior: f64,
}

/// CUBIC's state for one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cubic {
    state: CurveState,
    before: CurveState,
    growth: u16,
}

impl Cubic {
    fn keep(&self) -> Window {
        Window { cwnd: Window::KEEP, ssthresh: Window::KEEP, growth: self.growth, beta: BETA, pacing: 0 }
    }

    /// Changes the growth; `None` if the change is small.
    fn set_growth(&mut self, growth: u16) -> Option<Window> {
        let (old, new) = (self.growth, growth);
        if new.abs_diff(old) <= old / 16 && (new == 0) == (old == 0) {
            return None;
        }
        self.growth = growth;
        Some(self.keep())
    }

    fn slow_start(&mut self) -> Option<Window> {
        self.state.epoch = None;
        self.set_growth(SLOW_START)
    }

    /// RFC 9438 §4.2: a congestion avoidance stage begins.
    fn begin(&mut self, sample: &Sample) -> Epoch {
        let cwnd = segments(sample.cwnd, sample);
        let plateau = self.state.w_max.max(cwnd);
        Epoch { start: sample.now, plateau, k: ((plateau - cwnd) / C).cbrt(), estimate: cwnd }
    }

    /// Segments per window that follow the curve until the next decision.
    fn avoidance(&mut self, sample: &Sample) -> u16 {
        let cwnd = segments(sample.cwnd, sample);
        let mut epoch = self.state.epoch.unwrap_or_else(|| self.begin(sample));
        // §4.3: the estimate grows with acknowledged data, as Reno does.
        let alpha = if epoch.estimate >= self.state.prior { 1.0 } else { ALPHA_CUBIC };
        if !sample.app_limited {
            epoch.estimate += alpha * sample.interval.acked as f64 / f64::from(sample.cwnd.max(1));
        }
        self.state.epoch = Some(epoch);
        let rtt = f64::from(sample.srtt_us.max(1)) / 1e6;
        let horizon = rtt.max(sample.interval.us.max(MIN_HORIZON_US) as f64 / 1e6);
        let windows = horizon / rtt;
        let t = sample.now.since(epoch.start) as f64 / 1e6;
        let friendly = epoch.estimate + alpha * windows;
        let target = if epoch.curve(t) < epoch.estimate {
            friendly
        } else {
            // §4.2: at most 1.5 times the window per round trip.
            epoch.curve(t + horizon).clamp(cwnd, cwnd * 1.5).max(friendly.min(cwnd * 1.5))
        };
        ((target - cwnd).max(0.0) / windows * 256.0) as u16
    }

    /// RFC 9438 §4.6 and §4.7, for a window of `prior` segments before the reduction.
    fn reduce(&mut self, prior: f64) {
        self.before = self.state;
        let converge = prior < self.state.w_max;
        self.state = CurveState {
            epoch: None,
            // Fast convergence: give way to new flows.
            w_max: if converge { prior * (1.0 + BETA_CUBIC) / 2.0 } else { prior },
            prior,
        };
    }
}

fn segments(bytes: u32, sample: &Sample) -> f64 {
    f64::from(bytes) / f64::from(sample.mss.max(1))
}

impl CongestionControl for Cubic {
    fn initial(&mut self, mss: u32, syn_lost: bool) -> Window {
        self.growth = SLOW_START;
        let cwnd = if syn_lost { mss } else { initial_window(mss) };
        // The fast path ends slow start, as it sees every acknowledgement. RFC 9406 §4.3: only the first slow start is
        // searched.
        Window { cwnd, ssthresh: Window::SEARCH, ..self.keep() }
    }

    fn adopt(&mut self, sample: &Sample) -> Window {
        self.growth = SLOW_START;
        let window = self.on_interval(sample).unwrap_or(self.keep());
        if sample.ssthresh == u32::MAX { Window { ssthresh: Window::SEARCH, ..window } } else { window }
    }

    fn on_interval(&mut self, sample: &Sample) -> Option<Window> {
        if sample.recovering {
            return None;
        }
        if sample.slow_start() {
            return self.slow_start();
        }
        if sample.app_limited {
            // §4.2, §5.8: time does not count while the window is not used.
            if let Some(epoch) = &mut self.state.epoch {
                epoch.start = epoch.start.after(sample.interval.us).min(sample.now);
            }
        }
        let growth = self.avoidance(sample);
        self.set_growth(growth)
    }

    fn on_loss(&mut self, sample: &Sample) -> Option<Window> {
        // The fast path has set the threshold to beta times the flight (§4.6).
        let prior = u64::from(sample.ssthresh) * 1024 / u64::from(BETA);
        self.reduce((prior as f64 / f64::from(sample.mss.max(1))).min(segments(u32::MAX, sample)));
        None
    }

    /// RFC 9438 §4.8: as Reno but for beta, and the next epoch begins on its plateau.
    fn on_timeout(&mut self, sample: &Sample) -> Window {
        if sample.timeouts <= 1 {
            self.reduce(segments(sample.flight, sample));
            self.state.w_max = 0.0;
        }
        self.growth = SLOW_START;
        Window { cwnd: sample.mss, ssthresh: timeout_threshold(sample, BETA), ..self.keep() }
    }

    fn on_undo(&mut self, _: &Sample) -> Option<Window> {
        self.state = self.before;
        None
    }

    fn on_idle(&mut self, sample: &Sample) -> Option<Window> {
        self.state.epoch = None;
        self.growth = SLOW_START;
        super::control::restart(sample).map(|window| Window { beta: BETA, ..window })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]
    use super::*;
    use crate::slow::congestion::Interval;

    const MSS: u32 = 1000;

    /// A flow that follows CUBIC's decisions every 10 ms.
    struct Flow {
        cubic: Cubic,
        sample: Sample,
        cwnd: f64,
    }

    impl Flow {
        /// In congestion avoidance at `cwnd` segments, after a loss at `prior`.
        fn after_loss(prior: u32, rtt_ms: u32) -> Self {
            let mut cubic = Cubic::default();
            cubic.initial(MSS, false);
            let ssthresh = prior * MSS / 1024 * u32::from(BETA);
            let mut sample = Sample { mss: MSS, cwnd: ssthresh, ssthresh, srtt_us: rtt_ms * 1000, ..Sample::default() };
            sample.recovering = true;
            assert_eq!(cubic.on_loss(&sample), None, "the fast path has done it");
            sample.recovering = false;
            Self { cubic, sample, cwnd: f64::from(ssthresh) }
        }

        fn run(&mut self, seconds: f64) -> f64 {
            for _ in 0..(seconds * 100.0) as u32 {
                let windows = 10_000.0 / f64::from(self.sample.srtt_us);
                self.sample.interval =
                    Interval { us: 10_000, acked: (self.cwnd * windows) as u64, ..Interval::default() };
                self.cubic.on_interval(&self.sample);
                self.sample.now = self.sample.now.after(10_000);
                if !self.sample.app_limited {
                    self.cwnd += f64::from(self.cubic.growth) / 256.0 * f64::from(MSS) * windows;
                }
                self.sample.cwnd = self.cwnd as u32;
            }
            self.cwnd / f64::from(MSS)
        }
    }

    #[test]
    fn the_window_follows_the_cubic_function_of_the_rfc() {
        let mut flow = Flow::after_loss(200, 100);
        let w_max = 200.0;
        let k = (w_max * (1.0 - BETA_CUBIC) / C).cbrt();
        for tenths in 1..100 {
            let t = f64::from(tenths) / 10.0;
            let (cwnd, curve) = (flow.run(0.1), C * (t - k).powi(3) + w_max);
            assert!((cwnd / curve - 1.0).abs() < 0.03, "after {t} s: {cwnd} instead of {curve}");
        }
    }

    #[test]
    fn where_reno_would_be_faster_it_grows_as_reno_would() {
        // 40 segments, 5 ms: the plateau is 3.1 s away, Reno's way of 12 segments takes 0.53 per round trip.
        let mut flow = Flow::after_loss(40, 5);
        let start = flow.cwnd / f64::from(MSS);
        let cwnd = flow.run(0.1);
        let expected = start + 20.0 * ALPHA_CUBIC;
        assert!((cwnd - expected).abs() < 1.5, "{cwnd} instead of {expected}");
        // Beyond the old window one segment per round trip (§4.3).
        flow.run(0.1);
        let (there, later) = (flow.run(0.1), flow.run(0.1));
        assert!((later - there - 20.0).abs() < 1.0, "{there}, then {later}");
    }

    #[test]
    fn time_without_data_to_send_does_not_count() {
        let (mut busy, mut lazy) = (Flow::after_loss(200, 100), Flow::after_loss(200, 100));
        busy.run(1.0);
        lazy.run(1.0);
        lazy.sample.app_limited = true;
        lazy.run(30.0);
        lazy.sample.app_limited = false;
        let (busy, lazy) = (busy.run(1.0), lazy.run(1.0));
        assert!((busy - lazy).abs() < 4.0, "{busy}, and {lazy} after a pause");
    }

    #[test]
    fn a_loss_below_the_last_plateau_lowers_the_next_one() {
        let mut cubic = Cubic::default();
        let loss =
            |prior: u32| Sample { mss: MSS, ssthresh: prior * MSS / 1024 * u32::from(BETA), ..Sample::default() };
        cubic.on_loss(&loss(1000));
        assert!((cubic.state.w_max - 1000.0).abs() < 5.0);
        cubic.on_loss(&loss(800));
        assert!((cubic.state.w_max - 680.0).abs() < 5.0, "800 * (1 + 0.7) / 2");
        cubic.on_undo(&loss(800));
        assert!((cubic.state.w_max - 1000.0).abs() < 5.0, "it was none");
    }

    #[test]
    fn after_a_time_out_the_next_stage_begins_on_its_plateau() {
        let mut cubic = Cubic::default();
        let sample = Sample { mss: MSS, flight: 100 * MSS, cwnd: 100 * MSS, timeouts: 1, ..Sample::default() };
        let window = cubic.on_timeout(&sample);
        assert_eq!((window.cwnd, window.ssthresh / MSS, window.growth), (MSS, 70, 256));
        cubic.on_interval(&Sample { cwnd: 70 * MSS, ssthresh: 70 * MSS, srtt_us: 100_000, ..sample });
        let epoch = cubic.state.epoch.expect("in congestion avoidance");
        assert_eq!((epoch.k, epoch.plateau), (0.0, 70.0));
    }
}
