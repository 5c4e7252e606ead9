//! BBRv3 (draft-ietf-ccwg-bbr): a model of the path's bandwidth and round-trip time, instead of a reaction to losses.
//!
//! The draft works per acknowledgement. Here deliveries are measured per round trip, in decisions about once per round
//! trip. The estimate of acknowledgement aggregation is missing (§5.5.9). The round's deliveries replace exact numbers
//! of data in flight when a lost packet was sent (§5.5.10). `docs/reference/rfcs.md` has the whole list.

mod measure;
#[cfg(test)]
mod tests;

use super::control::{CongestionControl, initial_window};
use super::sample::Sample;
use crate::flow::Window;
use crate::time::Micros;
use measure::{MaxBandwidth, MinRtt, Round, Rounds};

/// §5.6.2: StartupPacingGain = 4 ln 2.
const STARTUP_PACING: f64 = 2.77;
/// §2.4: DrainPacingGain.
const DRAIN_PACING: f64 = 0.5;
/// §5.3.3: gains of ProbeBW_DOWN and ProbeBW_UP; those of CRUISE and REFILL are 1.
const DOWN_PACING: f64 = 0.9;
const UP_PACING: f64 = 1.25;
/// §5.6.3: DefaultCwndGain, and that of ProbeBW_UP.
const CWND_GAIN: f64 = 2.0;
const UP_CWND_GAIN: f64 = 2.25;
/// §5.3.4: ProbeRTTCwndGain.
const PROBE_RTT_CWND_GAIN: f64 = 0.5;
/// §2.4: PacingMarginPercent = 1.
const PACING_MARGIN: f64 = 0.99;
/// §2.5: LossThresh = 2 %.
const LOSS_THRESHOLD: f64 = 0.02;
/// §2.5: Beta.
const BETA: f64 = 0.7;
/// §2.5: Headroom = 0.15.
const HEADROOM: f64 = 0.15;
/// §2.6: MinPipeCwnd in segments.
const MIN_PIPE: u32 = 4;
/// §5.3.1.2: growth below which a round counts as a plateau, and how many of them make one.
const FULL_BW_GROWTH: f64 = 1.25;
const FULL_BW_ROUNDS: u32 = 3;
/// §5.3.1.3: StartupFullLossCount.
const STARTUP_LOSSES: u64 = 6;
/// §2.7: ProbeRTTInterval and ProbeRTTDuration.
const PROBE_RTT_INTERVAL_US: u64 = 5_000_000;
const PROBE_RTT_US: u64 = 200_000;
/// §5.3.3.5: time between bandwidth probes: 2 to 3 s, or the number of rounds that Reno would need, at most 63.
const PROBE_WAIT_US: u64 = 2_000_000;
const PROBE_WAIT_SPREAD_US: u64 = 1_000_000;
const PROBE_ROUNDS: u64 = 63;
/// The fast path does not cut the window after a loss, as BBR decides on it.
const FAST_BETA: u16 = 1024;

/// §3.3: the state machine's states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TcpState {
    #[default]
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

impl TcpState {
    /// §5.5.10.3: does this state accelerate, so that it may have caused a loss?
    fn probes(self) -> bool {
        matches!(self, Self::Startup | Self::Refill | Self::Up)
    }
    fn pacing_gain(self) -> f64 {
        match self {
            Self::Startup => STARTUP_PACING,
            Self::Drain => DRAIN_PACING,
            Self::Down => DOWN_PACING,
            Self::Up => UP_PACING,
            Self::Cruise | Self::Refill | Self::ProbeRtt => 1.0,
        }
    }
    fn cwnd_gain(self) -> f64 {
        match self {
            Self::Up => UP_CWND_GAIN,
            Self::ProbeRtt => PROBE_RTT_CWND_GAIN,
            _ => CWND_GAIN,
        }
    }
}

/// Upper limits in bytes and bytes per second; infinite = none.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// BBR.inflight_longterm (inflight_hi).
    inflight_high: f64,
    /// BBR.inflight_shortterm (inflight_lo).
    inflight_low: f64,
    /// BBR.bw_shortterm (bw_lo).
    bandwidth_low: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { inflight_high: f64::INFINITY, inflight_low: f64::INFINITY, bandwidth_low: f64::INFINITY }
    }
}

impl Limits {
    /// BBRResetShortTermModel.
    fn forget_low(&mut self) {
        (self.bandwidth_low, self.inflight_low) = (f64::INFINITY, f64::INFINITY);
    }
}

/// §5.3.1.2: has the bandwidth stopped growing?
#[derive(Clone, Copy, Debug, Default)]
struct FullPipe {
    bandwidth: f64,
    rounds: u32,
}

impl FullPipe {
    fn reached(&mut self, round: &Round) -> bool {
        if round.bandwidth >= self.bandwidth * FULL_BW_GROWTH {
            *self = Self { bandwidth: round.bandwidth, rounds: 0 };
        } else if !round.app_limited {
            self.rounds += 1;
        }
        self.rounds >= FULL_BW_ROUNDS
    }
}

/// BBR's state for one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bbr {
    state: TcpState,
    rounds: Rounds,
    max_bandwidth: MaxBandwidth,
    min_rtt: MinRtt,
    limits: Limits,
    before: Limits,
    full: FullPipe,
    /// BBR.full_bw_reached.
    filled: bool,
    /// The time and round in which this state began.
    since: Micros,
    since_round: u64,
    /// The time and round in which the last bandwidth probe ended, and the time to wait for the next.
    probed: Micros,
    probed_round: u64,
    wait_us: u64,
    /// Rounds in which this probe has raised `inflight_high`.
    raised: u32,
    /// When the round-trip time was last probed or confirmed.
    rtt_probed: Option<Micros>,
    /// When ProbeRTT had drained the path.
    drained: Option<Micros>,
    /// After a time-out the window follows acknowledgements until this many bytes have been acknowledged in all.
    conserve_until: u64,
    /// What was in flight at a time-out is still being repaired. Rounds until then measure nothing: the wait is a part of
    /// them, and a jump of the cumulative acknowledgement has what arrived before.
    after_timeout: bool,
    pacing: u64,
}

impl Bbr {
    /// BBR.bw.
    fn bandwidth(&self) -> f64 {
        self.max_bandwidth.get().min(self.limits.bandwidth_low)
    }

    /// §5.6.4.2: BBR.bdp for this bandwidth.
    fn product(&self, bandwidth: f64) -> f64 {
        bandwidth * f64::from(self.min_rtt.us) / 1e6
    }

    /// BBRInflightWithHeadroom: leaves room in the path for others.
    fn with_headroom(&self, sample: &Sample) -> f64 {
        let high = self.limits.inflight_high;
        if high.is_infinite() {
            // Infinite less a part of it is no number.
            return high;
        }
        (high - (HEADROOM * high).max(f64::from(sample.mss))).max(least(sample))
    }

    fn enter(&mut self, state: TcpState, sample: &Sample) {
        (self.state, self.since, self.since_round) = (state, sample.now, self.rounds.count);
        match state {
            TcpState::Down => {
                (self.probed, self.probed_round, self.raised) = (sample.now, self.rounds.count, 0);
                // A spread, so that flows do not probe together. Any number that differs between flows is enough.
                let seed = (sample.bytes_acked ^ sample.now.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                self.wait_us = PROBE_WAIT_US + (seed >> 32) % PROBE_WAIT_SPREAD_US;
            }
            TcpState::Refill => {
                self.limits.forget_low();
                self.raised = 0;
            }
            TcpState::Up => self.full = FullPipe::default(),
            TcpState::ProbeRtt => self.drained = None,
            _ => {}
        }
    }

    /// Updates the model at the end of a round.
    fn learn(&mut self, round: &Round, sample: &Sample) {
        self.max_bandwidth.add(round);
        let too_much = round.loss_rate() > LOSS_THRESHOLD;
        if self.state.probes() {
            let many = round.lost >= STARTUP_LOSSES * u64::from(sample.mss);
            // §5.3.1.3: Startup ends after a whole round of fast recovery.
            let ends_startup = many && round.recovering && !self.after_timeout;
            if too_much && (self.state != TcpState::Startup || ends_startup) {
                self.too_high(round, sample);
            }
        } else if round.lost > 0 {
            self.lower(round, sample);
        }
        // Data that passed without much loss raises the limit (§5.5.10.4).
        if !too_much && self.limits.inflight_high.is_finite() {
            self.limits.inflight_high = self.limits.inflight_high.max(round.acked as f64);
        }
    }

    /// §5.5.10.2: the probe has reached the path's limit.
    fn too_high(&mut self, round: &Round, sample: &Sample) {
        self.before = self.limits;
        let product = self.product(self.max_bandwidth.get());
        // §5.3.1.3: the path that Startup has filled holds at least the product.
        let kept = if self.state == TcpState::Startup { product } else { product.min(f64::from(sample.cwnd)) * BETA };
        self.limits.inflight_high = (round.acked as f64).max(kept).max(least(sample));
        match self.state {
            TcpState::Startup => self.filled = true,
            TcpState::Up => self.enter(TcpState::Down, sample),
            _ => {}
        }
    }

    /// §5.5.10.3: a loss while cruising, caused by other traffic.
    fn lower(&mut self, round: &Round, sample: &Sample) {
        self.before = self.limits;
        let limits = &mut self.limits;
        let bandwidth = limits.bandwidth_low.min(self.max_bandwidth.get());
        // The sending rate is a margin below the estimate (§5.6.2), so a round that delivers it confirms the estimate.
        limits.bandwidth_low = (round.bandwidth / PACING_MARGIN).max(bandwidth * BETA).min(bandwidth);
        let inflight = limits.inflight_low.min(f64::from(sample.cwnd));
        limits.inflight_low = (round.acked as f64).max(inflight * BETA);
    }

    /// §5.3.3.6: in UP the limit is raised, faster with each round, while it limits the flow.
    fn raise(&mut self, sample: &Sample) {
        if f64::from(sample.cwnd) >= self.limits.inflight_high {
            self.limits.inflight_high += f64::from(sample.mss) * f64::from(1u32 << self.raised.min(30));
            self.raised += 1;
        }
    }

    /// §5.3.3.5.3: is it time for a bandwidth probe?
    fn probe_due(&self, sample: &Sample) -> bool {
        let reno_rounds = (self.product(self.bandwidth()) / f64::from(sample.mss.max(1))) as u64;
        sample.now.since(self.probed) >= self.wait_us
            || self.rounds.count.saturating_sub(self.probed_round) >= reno_rounds.clamp(1, PROBE_ROUNDS)
    }

    /// Advances the state machine. `round`: a round that has ended.
    fn advance(&mut self, round: Option<&Round>, sample: &Sample) {
        let flight = f64::from(sample.flight);
        let rounds_here = self.rounds.count - self.since_round;
        match self.state {
            TcpState::Startup => {
                self.filled |= round.is_some_and(|round| self.full.reached(round));
                if self.filled {
                    self.enter(TcpState::Drain, sample);
                }
            }
            TcpState::Drain if flight <= self.product(self.bandwidth()) => self.enter(TcpState::Down, sample),
            TcpState::Down => {
                if round.is_some() && rounds_here == 1 {
                    self.max_bandwidth.advance();
                }
                let low = flight <= self.with_headroom(sample) && flight <= self.product(self.max_bandwidth.get());
                if self.probe_due(sample) {
                    self.enter(TcpState::Refill, sample);
                } else if low && rounds_here > 0 {
                    self.enter(TcpState::Cruise, sample);
                }
            }
            TcpState::Cruise if self.probe_due(sample) => self.enter(TcpState::Refill, sample),
            TcpState::Refill if rounds_here > 0 => self.enter(TcpState::Up, sample),
            TcpState::Up => {
                if let Some(round) = round {
                    self.raise(sample);
                    if self.full.reached(round) {
                        self.enter(TcpState::Down, sample);
                    }
                }
            }
            TcpState::ProbeRtt => self.probe_rtt(rounds_here, sample),
            _ => {}
        }
    }

    /// §5.3.4.3: at times nearly empties the path, to measure its round-trip time without our own queue.
    fn check_probe_rtt(&mut self, confirmed: bool, sample: &Sample) {
        let last = *self.rtt_probed.get_or_insert(sample.now);
        if confirmed || sample.app_limited {
            // A flow that pauses by itself sees the empty path.
            self.rtt_probed = Some(sample.now);
        } else if self.state != TcpState::ProbeRtt && sample.now.since(last) > PROBE_RTT_INTERVAL_US {
            self.enter(TcpState::ProbeRtt, sample);
        }
    }

    fn probe_rtt(&mut self, rounds_here: u64, sample: &Sample) {
        if self.drained.is_none() && f64::from(sample.flight) <= self.cwnd(sample) {
            self.drained = Some(sample.now);
        }
        let done = self.drained.is_some_and(|at| sample.now.since(at) >= PROBE_RTT_US && rounds_here > 0);
        if done {
            self.rtt_probed = Some(sample.now);
            // §5.3.4.3, BBRExitProbeRTT: earlier losses say nothing about the current path.
            self.limits.forget_low();
            if self.filled {
                self.enter(TcpState::Down, sample);
                self.enter(TcpState::Cruise, sample);
            } else {
                self.enter(TcpState::Startup, sample);
            }
        }
    }

    /// §5.6.4: the window in bytes.
    fn cwnd(&self, sample: &Sample) -> f64 {
        let product = self.product(self.bandwidth());
        // §5.6.4.2: three bursts of a millisecond, at most 64 KiB and at least two segments each, must fit.
        let burst = (self.bandwidth() / 1000.0).min(65_536.0).max(2.0 * f64::from(sample.mss));
        let wanted = match self.state {
            TcpState::ProbeRtt => product * PROBE_RTT_CWND_GAIN,
            state => (product * state.cwnd_gain()).max(3.0 * burst),
        };
        let limit = match self.state {
            TcpState::Startup | TcpState::Drain => f64::INFINITY,
            TcpState::ProbeRtt | TcpState::Cruise => self.with_headroom(sample),
            TcpState::Down | TcpState::Refill | TcpState::Up => self.limits.inflight_high,
        };
        wanted.min(limit.min(self.limits.inflight_low)).max(least(sample))
    }

    fn window(&mut self, sample: &Sample) -> Window {
        let bandwidth = match self.bandwidth() {
            // §5.6.2: there is no measurement yet.
            0.0 => f64::from(sample.cwnd) * 1e6 / f64::from(sample.srtt_us.max(1)),
            bandwidth => bandwidth,
        };
        let pacing = (bandwidth * self.state.pacing_gain() * PACING_MARGIN) as u64;
        if self.filled || pacing > self.pacing {
            self.pacing = pacing.max(1);
        }
        let (ssthresh, pacing) = (u32::MAX, self.pacing);
        if sample.bytes_acked < self.conserve_until {
            return Window { cwnd: Window::KEEP, ssthresh, growth: 256, beta: FAST_BETA, pacing };
        }
        let cwnd = self.cwnd(sample) as u32;
        // The threshold is the fast path's target while it repairs a loss and accepts no window. Until the pipe is
        // full, the window grows by acknowledged data (§5.6.4.6).
        let growth = if self.filled || self.state == TcpState::ProbeRtt { 0 } else { 256 };
        let ssthresh = cwnd.max(initial_window(sample.mss));
        let cwnd = if growth == 0 { cwnd } else { Window::KEEP };
        Window { cwnd, ssthresh, growth, beta: FAST_BETA, pacing }
    }
}

/// MinPipeCwnd in bytes.
fn least(sample: &Sample) -> f64 {
    f64::from(MIN_PIPE) * f64::from(sample.mss)
}

impl CongestionControl for Bbr {
    fn initial(&mut self, mss: u32, syn_lost: bool) -> Window {
        let cwnd = if syn_lost { mss } else { initial_window(mss) };
        Window { cwnd, ssthresh: u32::MAX, growth: 256, beta: FAST_BETA, pacing: 0 }
    }

    fn adopt(&mut self, _: &Sample) -> Window {
        Window { cwnd: Window::KEEP, ssthresh: u32::MAX, growth: 256, beta: FAST_BETA, pacing: 0 }
    }

    fn on_interval(&mut self, sample: &Sample) -> Option<Window> {
        let confirmed = self.min_rtt.look(sample);
        if self.min_rtt.us == 0 {
            return None;
        }
        let mut round = self.rounds.look(sample);
        if let Some(round) = &mut round {
            if self.after_timeout {
                (round.bandwidth, round.app_limited) = (0.0, true);
                self.rounds.forget_delivery();
            }
            self.learn(round, sample);
        }
        self.advance(round.as_ref(), sample);
        self.after_timeout &= round.is_none() || sample.bytes_acked < self.conserve_until;
        self.check_probe_rtt(confirmed, sample);
        Some(self.window(sample))
    }

    /// Losses are evaluated per round.
    fn on_loss(&mut self, _: &Sample) -> Option<Window> {
        None
    }

    /// §5.6.4.4: one segment, then as many as are acknowledged, until the data in flight has arrived.
    fn on_timeout(&mut self, sample: &Sample) -> Window {
        self.before = self.limits;
        self.conserve_until = sample.bytes_acked.saturating_add(u64::from(sample.flight));
        self.after_timeout = true;
        Window { cwnd: sample.mss, ssthresh: u32::MAX, growth: 256, beta: FAST_BETA, pacing: self.pacing }
    }

    /// §5.5.11.
    fn on_undo(&mut self, sample: &Sample) -> Option<Window> {
        self.limits = self.before;
        (self.conserve_until, self.after_timeout) = (0, false);
        self.rounds.undo();
        (self.min_rtt.us != 0).then(|| self.window(sample))
    }

    fn on_idle(&mut self, _: &Sample) -> Option<Window> {
        None
    }

    fn paced(&self) -> bool {
        true
    }

    fn per_round_trip(&self) -> bool {
        true
    }
}
