//! A model of a bottleneck in slots of one packet each. It has a queue with tail drop and ECN marks, a propagation
//! delay, and senders that handle a `Window` like the fast path.

use crate::flow::Window;
use crate::slow::congestion::{Algorithm, CongestionControl, Sample};
use crate::time::Micros;
use std::collections::VecDeque;

/// Payload per packet, which is also a packet's length here.
pub const MSS: u32 = 1448;

/// The bottleneck.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub bytes_per_s: u64,
    /// Round trip without a queue.
    pub rtt_us: u64,
    /// Size of the queue in packets.
    pub buffer: usize,
    /// Packets in the queue from which on arriving ones are marked.
    pub mark_at: usize,
}

#[derive(Clone, Copy)]
struct Packet {
    flow: usize,
    sent: Micros,
    marked: bool,
}

/// A sender that always has data to send.
pub struct Sender {
    pub control: Box<dyn CongestionControl>,
    pub state: Sample,
    pub window: Window,
    pub start: Micros,
    last: Sample,
    grown: u32,
    credit: f64,
    recovery_from: Option<Micros>,
    next_look: Micros,
    /// Number of reductions after losses.
    pub losses: u32,
    /// The window at each decision.
    pub trace: Vec<(Micros, u32)>,
}

impl Sender {
    pub fn new(algorithm: Algorithm, start_us: u64) -> Self {
        let mut control = algorithm.start();
        let window = control.initial(MSS, false);
        let start = Micros(start_us);
        Self {
            control,
            state: Sample {
                mss: MSS,
                cwnd: window.cwnd,
                ssthresh: window.ssthresh,
                pacing: window.pacing,
                ..Sample::default()
            },
            window,
            start,
            last: Sample { now: start, ..Sample::default() },
            grown: 0,
            credit: 0.0,
            recovery_from: None,
            next_look: start,
            losses: 0,
            trace: Vec::new(),
        }
    }

    fn sample(&mut self, now: Micros) -> Sample {
        self.state.now = now;
        self.state.recovering = self.recovery_from.is_some();
        self.state.since(&self.last)
    }

    fn apply(&mut self, window: Option<Window>) {
        let Some(window) = window else { return };
        let recovering = self.recovery_from.is_some();
        if window.cwnd != Window::KEEP && !recovering {
            self.state.cwnd = window.cwnd.max(MSS);
        }
        if window.ssthresh != Window::KEEP {
            self.state.ssthresh = if recovering { window.ssthresh.min(self.state.ssthresh) } else { window.ssthresh };
            if recovering {
                self.state.cwnd = self.state.cwnd.min(self.state.ssthresh);
            }
        }
        self.state.pacing = window.pacing;
        self.window = window;
    }

    fn look(&mut self, now: Micros) {
        if now < self.next_look {
            return;
        }
        let sample = self.sample(now);
        let window = self.control.on_interval(&sample);
        self.apply(window);
        self.last = sample;
        let us = if self.control.per_round_trip() { u64::from(sample.srtt_us).clamp(500, 10_000) } else { 10_000 };
        self.next_look = now.after(us);
        self.trace.push((now, self.state.cwnd));
    }

    fn acked(&mut self, now: Micros, packet: Packet) {
        let flight = self.state.flight;
        let s = &mut self.state;
        s.flight -= MSS;
        s.bytes_acked += u64::from(MSS);
        s.bytes_marked += if packet.marked { u64::from(MSS) } else { 0 };
        s.rtt_us = now.since(packet.sent) as u32;
        s.srtt_us = if s.srtt_us == 0 { s.rtt_us } else { s.srtt_us - s.srtt_us / 8 + s.rtt_us / 8 };
        s.min_rtt_us = if s.min_rtt_us == 0 { s.rtt_us } else { s.min_rtt_us.min(s.rtt_us) };
        if let Some(from) = self.recovery_from {
            if packet.sent < from {
                return;
            }
            self.recovery_from = None;
        }
        let growth = u32::from(self.window.growth);
        if s.cwnd < s.ssthresh {
            if flight * 2 > s.cwnd {
                s.cwnd += (MSS * growth) >> 8;
            }
        } else if flight + MSS > s.cwnd {
            self.grown += (MSS * growth) >> 8;
            while self.grown >= s.cwnd {
                self.grown -= s.cwnd;
                s.cwnd += MSS;
            }
        }
    }

    fn lost(&mut self, now: Micros, packet: Packet) {
        let s = &mut self.state;
        s.bytes_lost += u64::from(MSS);
        s.retransmits += 1;
        let flight = s.flight;
        s.flight -= MSS;
        if self.recovery_from.is_some_and(|from| packet.sent < from) {
            return;
        }
        s.ssthresh = ((u64::from(flight) * u64::from(self.window.beta)) >> 10).max(2 * u64::from(MSS)) as u32;
        s.cwnd = s.ssthresh;
        self.recovery_from = Some(now);
        self.grown = 0;
        self.losses += 1;
        let sample = self.sample(now);
        let window = self.control.on_loss(&sample);
        self.apply(window);
    }

    fn may_send(&mut self, slot_us: f64) -> u32 {
        let mut n = (self.state.cwnd.saturating_sub(self.state.flight)) / MSS;
        if self.state.pacing != 0 {
            self.credit += self.state.pacing as f64 * slot_us / 1e6;
            self.credit = self.credit.min(f64::from(2 * MSS).max(self.state.pacing as f64 / 1000.0));
            n = n.min((self.credit / f64::from(MSS)) as u32);
            self.credit -= f64::from(n * MSS);
        }
        n
    }
}

/// Senders at a bottleneck.
pub struct Model {
    pub path: Path,
    pub senders: Vec<Sender>,
    pub now: Micros,
    /// One packet of this many is lost on the wire; 0 = none.
    pub lose_every: u64,
    sent: u64,
    slot: u64,
    queue: VecDeque<Packet>,
    back: VecDeque<(Micros, Packet)>,
    drops: VecDeque<(Micros, Packet)>,
}

impl Model {
    pub fn new(path: Path, senders: Vec<Sender>) -> Self {
        let (queue, back, drops) = Default::default();
        Self { path, senders, now: Micros(0), lose_every: 0, sent: 0, slot: 0, queue, back, drops }
    }

    pub fn run(&mut self, seconds: f64) {
        let slot_us = f64::from(MSS) * 1e6 / self.path.bytes_per_s as f64;
        let end = self.now.after((seconds * 1e6) as u64);
        while self.now < end {
            self.slot += 1;
            self.now = Micros((self.slot as f64 * slot_us) as u64);
            while self.back.front().is_some_and(|(at, _)| *at <= self.now) {
                let Some((_, packet)) = self.back.pop_front() else { break };
                self.senders[packet.flow].acked(self.now, packet);
            }
            while self.drops.front().is_some_and(|(at, _)| *at <= self.now) {
                let Some((_, packet)) = self.drops.pop_front() else { break };
                self.senders[packet.flow].lost(self.now, packet);
            }
            let n = self.senders.len();
            for i in 0..n {
                self.send((i + self.slot as usize) % n, slot_us);
            }
            if let Some(packet) = self.queue.pop_front() {
                self.back.push_back((self.now.after(self.path.rtt_us), packet));
            }
        }
    }

    fn send(&mut self, flow: usize, slot_us: f64) {
        let (now, sender) = (self.now, &mut self.senders[flow]);
        if now < sender.start {
            return;
        }
        sender.look(now);
        for _ in 0..sender.may_send(slot_us) {
            sender.state.flight += MSS;
            let packet = Packet { flow, sent: now, marked: self.queue.len() >= self.path.mark_at };
            self.sent += 1;
            let wire_loss = self.lose_every != 0 && self.sent.is_multiple_of(self.lose_every);
            if self.queue.len() < self.path.buffer && !wire_loss {
                self.queue.push_back(packet);
            } else {
                let wait = (self.queue.len() as f64 * slot_us) as u64;
                self.drops.push_back((now.after(self.path.rtt_us + wait), packet));
            }
        }
    }

    /// Each sender's share of the bottleneck in the next `seconds`.
    pub fn shares(&mut self, seconds: f64) -> Vec<f64> {
        let before: Vec<u64> = self.senders.iter().map(|sender| sender.state.bytes_acked).collect();
        self.run(seconds);
        let most = self.path.bytes_per_s as f64 * seconds;
        self.senders.iter().zip(before).map(|(s, before)| (s.state.bytes_acked - before) as f64 / most).collect()
    }

    /// Packets in the queue now.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }
}
