//! DCTCP (RFC 8257): the window shrinks in proportion to the marked part of the traffic.

use super::control::{CongestionControl, initial_window, timeout_threshold};
use super::sample::Sample;
use crate::flow::Window;

/// RFC 8257 §4.2: g = 1/16.
pub(super) const G: f64 = 1.0 / 16.0;
/// RFC 8257 §3.3: the estimate begins at 1, so that the first mark has its full effect.
const ALPHA_FIRST: f64 = 1.0;
/// RFC 8257 §3.3: additive increase as in Reno.
const GROWTH: u16 = 256;
/// Reduction of the additive increase if all traffic is marked for long. This is ours, not RFC 8257's. Simulated with
/// 50 to 2,000 flows into one 40 Gbit/s port. With less, 2,000 flows overflow its queue. With more, 200 flows share it
/// less evenly.
const STEP_CUT: f64 = 0.85;
/// Weight of the newest window in the average that decides on the step. Its memory is longer than alpha's. A burst of
/// many senders lasts a few windows, and its last ones need the whole step. Flows that share a port for long are marked
/// for hundreds.
const STEP_G: f64 = 1.0 / 128.0;
/// RFC 8257 §3.5: half the window is left after a loss.
const BETA: u16 = 512;

/// The marked part of the traffic, over observation windows of about a round trip.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    /// DCTCP.Alpha.
    pub alpha: f64,
    acked: u64,
    marked: u64,
    /// The observation window ends when this many bytes have been acknowledged in all.
    end: u64,
}

impl Default for Marks {
    fn default() -> Self {
        Self { alpha: ALPHA_FIRST, acked: 0, marked: 0, end: 0 }
    }
}

impl Marks {
    /// RFC 8257 §3.3, steps 5 to 8. `Some` = an observation window is over: was anything in it marked?
    pub(super) fn look(&mut self, sample: &Sample) -> Option<bool> {
        self.acked = self.acked.saturating_add(sample.interval.acked);
        self.marked = self.marked.saturating_add(sample.interval.marked);
        if self.acked == 0 || sample.bytes_acked < self.end {
            return None;
        }
        let marked = self.marked > 0;
        let part = (self.marked as f64 / self.acked as f64).min(1.0);
        self.alpha = self.alpha * (1.0 - G) + G * part;
        (self.acked, self.marked) = (0, 0);
        self.end = sample.bytes_acked.saturating_add(u64::from(sample.flight));
        Some(marked)
    }
}

/// DCTCP's state for one flow.
#[derive(Clone, Copy, Debug)]
pub struct Dctcp {
    marks: Marks,
    /// Alpha over a longer time. A new flow starts with the smallest step, as it may be one of thousands. After a pause
    /// it starts with a whole step, as its data comes in bursts then.
    crowded: f64,
}

impl Default for Dctcp {
    fn default() -> Self {
        Self { marks: Marks::default(), crowded: ALPHA_FIRST }
    }
}

const KEEP: Window = Window { cwnd: Window::KEEP, ssthresh: Window::KEEP, growth: GROWTH, beta: BETA, pacing: 0 };

impl CongestionControl for Dctcp {
    fn initial(&mut self, mss: u32, syn_lost: bool) -> Window {
        Window { cwnd: if syn_lost { mss } else { initial_window(mss) }, ssthresh: u32::MAX, ..KEEP }
    }

    fn adopt(&mut self, sample: &Sample) -> Window {
        self.marks.end = sample.bytes_acked.saturating_add(u64::from(sample.flight));
        KEEP
    }

    fn on_interval(&mut self, sample: &Sample) -> Option<Window> {
        if sample.flight == 0 {
            self.crowded = 0.0;
            return Some(KEEP);
        }
        let marked = self.marks.look(sample)?;
        self.crowded += STEP_G * (self.marks.alpha - self.crowded);
        if sample.recovering {
            return None;
        }
        if !marked {
            return Some(KEEP);
        }
        // RFC 8257 §3.3, equation 8, down to one segment: with two each, a thousand flows overflow their shared port.
        // The receiver does not delay the acknowledgement of a lone segment, as that carries CWR.
        let cwnd = f64::from(sample.cwnd) * (1.0 - self.marks.alpha / 2.0);
        let cwnd = (cwnd as u32).max(sample.mss).min(sample.cwnd.max(sample.mss));
        // A flow is in equilibrium when the gain per round trip equals the cut of a mark: at 2/alpha steps. If alpha
        // stays high, the step shrinks for all flows alike. So if everything is marked, the equilibrium is one segment
        // and not two.
        let growth = (f64::from(GROWTH) * (1.0 - STEP_CUT * self.crowded)) as u16;
        Some(Window { cwnd, ssthresh: cwnd, growth, ..KEEP })
    }

    fn on_loss(&mut self, _: &Sample) -> Option<Window> {
        None
    }

    fn on_timeout(&mut self, sample: &Sample) -> Window {
        Window { cwnd: sample.mss, ssthresh: timeout_threshold(sample, BETA), ..KEEP }
    }

    fn per_round_trip(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::slow::congestion::Interval;

    const MSS: u32 = 1000;

    /// One window of 100 segments, `marked` of them marked.
    fn window(dctcp: &mut Dctcp, total: &mut u64, marked: u64) -> Option<Window> {
        *total += 100_000;
        let interval = Interval { us: 100, acked: 100_000, marked: marked * 1000, ..Interval::default() };
        let (flight, cwnd) = (100 * MSS, 100 * MSS);
        let bytes_acked = *total;
        dctcp.on_interval(&Sample {
            mss: MSS,
            flight,
            cwnd,
            ssthresh: cwnd,
            bytes_acked,
            interval,
            ..Sample::default()
        })
    }

    #[test]
    fn alpha_follows_the_marks_by_a_sixteenth_per_window() {
        let (mut dctcp, mut total) = (Dctcp::default(), 0);
        for n in 1..40 {
            assert_eq!(window(&mut dctcp, &mut total, 0).unwrap().cwnd, Window::KEEP);
            assert!((dctcp.marks.alpha - (15.0f64 / 16.0).powi(n)).abs() < 1e-12, "after {n} windows");
        }
        for _ in 0..200 {
            window(&mut dctcp, &mut total, 25);
        }
        assert!((dctcp.marks.alpha - 0.25).abs() < 1e-3);
        // A quarter marked: an eighth less.
        assert_eq!(window(&mut dctcp, &mut total, 25).unwrap().cwnd / MSS, 87);
    }

    #[test]
    fn the_first_mark_halves_the_window_and_ends_slow_start() {
        let mut total = 0;
        let cut = window(&mut Dctcp::default(), &mut total, 100).unwrap();
        assert_eq!((cut.cwnd, cut.ssthresh), (50 * MSS, 50 * MSS));
    }

    #[test]
    fn the_window_is_cut_once_per_round_trip_however_often_it_is_looked_at() {
        let mut dctcp = Dctcp::default();
        let mut sample = Sample { mss: MSS, flight: 100 * MSS, cwnd: 100 * MSS, ssthresh: MSS, ..Sample::default() };
        let mut cuts = 0;
        for _ in 0..50 {
            sample.interval = Interval { us: 10, acked: 10_000, marked: 10_000, ..Interval::default() };
            sample.bytes_acked += 10_000;
            let window = dctcp.on_interval(&sample);
            cuts += u32::from(window.is_some_and(|window| window.cwnd != Window::KEEP));
        }
        assert_eq!(cuts, 5);
    }

    #[test]
    fn where_all_is_marked_the_window_goes_down_to_one_segment_and_hardly_grows() {
        let (mut dctcp, mut sample) = (Dctcp::default(), Sample { mss: MSS, cwnd: 4 * MSS, ..Sample::default() });
        let mut look = |cwnd, marked, flight| {
            sample.interval = Interval { us: 500, acked: 1000, marked, ..Interval::default() };
            (sample.cwnd, sample.ssthresh, sample.flight, sample.bytes_acked) =
                (cwnd, cwnd, flight, sample.bytes_acked + 1000);
            let window = dctcp.on_interval(&sample).unwrap();
            (window.cwnd, window.growth)
        };
        assert_eq!(look(4 * MSS, 1000, 1), (2 * MSS, 38), "15 % of a step");
        assert_eq!(look(2 * MSS, 1000, 1), (MSS, 38));
        assert_eq!(look(MSS, 1000, 1), (MSS, 38), "never below one");
        assert_eq!(look(MSS, 0, 1), (Window::KEEP, GROWTH));
        // A pause; then a burst of four round trips in which everything is marked.
        assert_eq!(look(MSS, 0, 0), (Window::KEEP, GROWTH));
        let steps: Vec<u16> = (0..4).map(|_| look(MSS, 1000, 1).1).collect();
        assert!(steps.is_sorted_by(|a, b| a > b) && steps[3] > 240, "{steps:?} of {GROWTH}");
        for _ in 0..900 {
            look(MSS, 1000, 1);
        }
        assert!((38..42).contains(&look(MSS, 1000, 1).1), "many round trips are no burst");
    }

    #[test]
    fn a_loss_has_the_usual_effect() {
        let mut dctcp = Dctcp::default();
        let sample = Sample { mss: MSS, flight: 40 * MSS, timeouts: 1, ..Sample::default() };
        assert_eq!(dctcp.on_timeout(&sample), Window { cwnd: MSS, ssthresh: 20 * MSS, ..KEEP });
        assert_eq!(dctcp.initial(MSS, false).beta, 512);
    }
}
