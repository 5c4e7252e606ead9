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

    /// Growth in 256ths of a segment per window, computed from the RFC's equations by another program.
    #[test]
    fn the_growth_leads_to_where_the_curve_or_reno_is_at_the_next_decision() {
        let epoch = |start, plateau, k, estimate| Some(Epoch { start: Micros(start), plateau, k, estimate });
        let middle = epoch(0, 100.0, 4.2, 60.0);
        for (cwnd, w_max, prior, epoch, srtt_us, us, acked, now, expected, why) in [
            (
                70,
                100.0,
                100.0,
                None,
                100_000,
                10_000,
                7000,
                5_000_000,
                149,
                "§4.3: 0.53 segments and what was acknowledged",
            ),
            (70, 0.0, 50.0, None, 100_000, 10_000, 7000, 5_000_000, 281, "§4.3: one segment beyond the old window"),
            (95, 100.0, 100.0, middle, 100_000, 10_000, 9500, 2_000_000, 331, "§4.4: concave"),
            (95, 100.0, 100.0, middle, 5_000, 20_000, 380_000, 2_000_000, 54, "four windows to the next decision"),
            (95, 100.0, 100.0, middle, 1_000, 1_000, 9500, 2_000_000, 20, "ten windows at least"),
            (50, 100.0, 100.0, middle, 100_000, 300_000, 9500, 9_000_000, 2133, "§4.2: half the window, in three"),
            (99, 100.0, 100.0, middle, 100_000, 10_000, 9500, 4_200_000, 256, "the plateau"),
            (120, 100.0, 100.0, middle, 100_000, 10_000, 9500, 4_200_000, 0, "above it"),
            (101, 100.0, 100.0, epoch(0, 100.0, 4.2, 100.5), 100_000, 10_000, 10_100, 4_000_000, 153, "Reno is ahead"),
            (101, 100.0, 100.0, epoch(0, 102.0, 4.2, 101.5), 100_000, 10_000, 10_100, 4_100_000, 409, "Reno will be"),
            (
                10,
                12.0,
                11.0,
                epoch(0, 12.0, 1.0, 12.0),
                100_000,
                10_000,
                20_000,
                1_500_000,
                1280,
                "much was acknowledged",
            ),
            (4, 100.0, 4.0, epoch(0, 5.5, 1.0, 5.0), 1_000, 1_000, 0, 1_000_000, 51, "Reno, too, gets half the window"),
        ] {
            let state = CurveState { epoch, w_max, prior };
            let mut cubic = Cubic { state, ..Cubic::default() };
            let interval = Interval { us, acked, ..Interval::default() };
            let cwnd = cwnd * MSS;
            let sample = Sample { now: Micros(now), mss: MSS, cwnd, srtt_us, interval, ..Sample::default() };
            assert_eq!(cubic.avoidance(&sample), expected, "{why}");
        }
        // What is acknowledged while the application limits the flow raises no estimate.
        let state = CurveState { epoch: epoch(5_000_000, 100.0, 4.2, 72.0), w_max: 100.0, prior: 100.0 };
        let interval = Interval { us: 10_000, acked: 7000, ..Interval::default() };
        let mut sample = Sample {
            now: Micros(5_000_000),
            mss: MSS,
            cwnd: 70 * MSS,
            srtt_us: 100_000,
            interval,
            ..Sample::default()
        };
        let growth = |sample: &Sample| Cubic { state, ..Cubic::default() }.avoidance(sample);
        // 72 and 0.5294 segments, less 70; and 0.0529 more.
        assert_eq!(growth(&sample), 661);
        sample.app_limited = true;
        assert_eq!(growth(&sample), 647);
    }

    #[test]
    fn a_growth_that_differs_by_a_sixteenth_is_no_news() {
        for (old, new, news) in [
            (160, 160, false),
            (160, 170, false),
            (160, 150, false),
            (160, 171, true),
            (160, 149, true),
            (160, 0, true),
            (10, 0, true),
            (0, 1, true),
            (0, 0, false),
        ] {
            let mut cubic = Cubic { growth: old, ..Cubic::default() };
            let window = Window { cwnd: Window::KEEP, ssthresh: Window::KEEP, growth: new, beta: 717, pacing: 0 };
            assert_eq!(cubic.set_growth(new), news.then_some(window), "{old}, then {new}");
            assert_eq!(cubic.growth, if news { new } else { old });
        }
    }

    /// RFC 9438 §4.7: only a window below the last plateau gives way.
    #[test]
    fn a_loss_at_the_plateau_leaves_it_and_one_below_it_lowers_it_by_fifteen_percent() {
        for (w_max, prior, expected) in
            [(100.0, 100.0, 100.0), (100.0, 120.0, 120.0), (100.0, 80.0, 68.0), (0.0, 5.0, 5.0)]
        {
            let state = CurveState { epoch: None, w_max, prior: w_max };
            let mut cubic = Cubic { state, ..Cubic::default() };
            cubic.reduce(prior);
            assert!((cubic.state.w_max - expected).abs() < 1e-9, "{prior} after {w_max}: {:?}", cubic.state);
            assert_eq!((cubic.state.prior, cubic.before.w_max), (prior, w_max));
        }
    }

    /// RFC 9438 §4.6: the threshold is 0.7 of the window before, which is 717/1024 here.
    #[test]
    fn the_window_before_a_loss_follows_from_the_threshold() {
        for (ssthresh, mss, prior) in
            [(71_700, 1000, 102.4), (717, 100, 10.24), (7170, 0, 10_240.0), (u32::MAX, 1, 4_294_967_295.0)]
        {
            let mut cubic = Cubic::default();
            assert_eq!(cubic.on_loss(&Sample { ssthresh, mss, ..Sample::default() }), None);
            assert_eq!(cubic.state.prior, prior);
        }
    }

    /// RFC 9438 §4.8; RFC 5681 §3.1: a second time-out of the same segment changes neither threshold nor curve.
    #[test]
    fn time_outs_in_a_row_reduce_once() {
        let mut cubic = Cubic::default();
        let first = Sample { mss: MSS, flight: 100 * MSS, ssthresh: 1, timeouts: 1, ..Sample::default() };
        assert_eq!(cubic.on_timeout(&first).ssthresh, 70_019, "717/1024 of the flight");
        assert_eq!((cubic.state.prior, cubic.state.w_max), (100.0, 0.0));
        let second = Sample { flight: MSS, ssthresh: 70_019, timeouts: 2, ..first };
        let window = Window { cwnd: MSS, ssthresh: 70_019, growth: 256, beta: 717, pacing: 0 };
        assert_eq!(cubic.on_timeout(&second), window);
        assert_eq!(cubic.state.prior, 100.0);
    }

    /// RFC 5681 §4.1, RFC 7661 §4.4.1: the initial window, and three quarters of the old one as the threshold.
    #[test]
    fn after_a_pause_the_window_restarts_with_another_curve() {
        let mut flow = Flow::after_loss(200, 100);
        flow.run(1.0);
        assert!(flow.cubic.state.epoch.is_some() && flow.cubic.growth != 256);
        let sample = Sample { mss: MSS, cwnd: 100_000, ssthresh: 50_000, ..Sample::default() };
        let window = Window { cwnd: 10_000, ssthresh: 75_000, growth: 256, beta: 717, pacing: 0 };
        assert_eq!(flow.cubic.on_idle(&sample), Some(window));
        assert!(flow.cubic.state.epoch.is_none() && flow.cubic.growth == 256);
        assert_eq!(flow.cubic.on_idle(&Sample { cwnd: 10_000, ..sample }), None, "it is no larger");
    }

    #[test]
    fn slow_start_grows_a_byte_per_byte_and_a_repair_changes_nothing() {
        let mut flow = Flow::after_loss(200, 100);
        flow.run(1.0);
        let below = Sample { cwnd: 5 * MSS, ssthresh: 6 * MSS, ..flow.sample };
        assert_eq!(flow.cubic.on_interval(&Sample { recovering: true, ..below }), None);
        assert!(flow.cubic.state.epoch.is_some());
        assert_eq!(flow.cubic.on_interval(&below).map(|window| window.growth), Some(256));
        assert!(flow.cubic.state.epoch.is_none());
        assert_eq!(flow.cubic.on_interval(&below), None, "no news");
    }

    /// RFC 9438 §4.2: the curve stands still while the window is not used, and never begins later than now.
    #[test]
    fn an_interval_without_data_moves_the_curve_by_its_length() {
        for (us, start) in [(400, 1400), (4000, 2000)] {
            let mut flow = Flow::after_loss(200, 100);
            flow.cubic.state.epoch = Some(Epoch { start: Micros(1000), plateau: 200.0, k: 5.0, estimate: 140.0 });
            let interval = Interval { us, ..Interval::default() };
            flow.cubic.on_interval(&Sample { now: Micros(2000), app_limited: true, interval, ..flow.sample });
            assert_eq!(flow.cubic.state.epoch.map(|epoch| epoch.start), Some(Micros(start)));
        }
    }

    /// RFC 9406 §4.3: only the first slow start is searched.
    #[test]
    fn a_flow_taken_over_goes_on_from_its_window() {
        let adopt = |cwnd, ssthresh| {
            let sample = Sample { mss: MSS, cwnd, ssthresh, srtt_us: 100_000, ..Sample::default() };
            let window = Cubic::default().adopt(&sample);
            (window.cwnd, window.ssthresh, window.growth, window.beta)
        };
        assert_eq!(adopt(5000, u32::MAX), (Window::KEEP, Window::SEARCH, 256, 717));
        assert_eq!(adopt(5000, 6000), (Window::KEEP, Window::KEEP, 256, 717));
        // Congestion avoidance on the plateau: Reno's segment per window.
        assert_eq!(adopt(50_000, 50_000), (Window::KEEP, Window::KEEP, 256, 717));
        let begin = |syn_lost| Cubic::default().initial(MSS, syn_lost);
        assert_eq!((begin(false).cwnd, begin(true).cwnd), (10_000, 1000));
        assert_eq!((begin(true).ssthresh, begin(true).growth), (Window::SEARCH, 256));
    }
}
