//! An attacker between two hosts: a box with a wire on each side that drops, delays, replays and forges frames.

use crate::frame::{framed, header_of};
use crate::link::LinkPort;
use crate::{TimedPort, earlier};
use std::collections::BTreeMap;
use std::net::IpAddr;
use towpath_rng::Rng;
use towpath_tcp::time::Micros;
use towpath_wire::emit::{Header, fill_checksum};
use towpath_wire::segment::{Segment, flags, parse};
use towpath_wire::{SackBlocks, checksum};

/// Frames kept for replay.
const KEPT: usize = 64;
/// Exceeds every window of the simulator's hosts, even if acknowledgements move it while a frame is in flight.
const FAR: u64 = 4 << 20;
/// The number of sequence numbers.
const SPACE: u64 = 1 << 32;

/// The adversary's actions. Rates are in millionths of the frames that pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Powers {
    /// Frames dropped.
    pub drop_ppm: u32,
    /// Frames delayed for 1 to `delay_us` µs.
    pub delay_ppm: u32,
    /// See `delay_ppm`.
    pub delay_us: u64,
    /// Old frames replayed.
    pub replay_ppm: u32,
    /// Forged frames with the connection's true numbers, but out of the window wherever only the window protects.
    pub forge_ppm: u32,
    /// Forged frames with true addresses and ports, and guessed numbers.
    pub guess_ppm: u32,
    /// May RSTs be exact and windows false, so that the connection can be ended, but not changed?
    pub kills: bool,
    /// Number of parts that each acknowledgement is divided into (RFC 3465 §2.3); 0 and 1 = no division.
    pub divide: u32,
    /// Data whose acknowledgement is forged when it passes, although it may be lost afterwards.
    pub optimistic_ppm: u32,
    /// Forged acknowledgements of unsent data, this many bytes ahead of each true one; 0 = none.
    pub ahead: u32,
    /// Most frames that it forges or replays in all.
    pub budget: u32,
}

/// Observations of one side.
#[derive(Clone, Default)]
struct Seen {
    /// The newest frame with a genuine acknowledgement.
    frame: Vec<u8>,
    /// End of the newest data.
    end: u32,
    /// The highest acknowledgement.
    ack: u32,
    synchronized: bool,
}

/// The attacker.
pub struct Adversary {
    ends: [LinkPort; 2],
    powers: Powers,
    rng: Rng,
    seen: [Seen; 2],
    old: Vec<(usize, Vec<u8>)>,
    /// Delayed frames and their destination, by due time and order.
    held: BTreeMap<(Micros, u64), (usize, Vec<u8>)>,
    order: u64,
    made: u32,
    now: Micros,
}

fn later(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

impl Adversary {
    /// An attacker between the hosts at these two ports.
    pub fn new(ends: [LinkPort; 2], powers: Powers, seed: u64) -> Self {
        Self {
            ends,
            powers,
            rng: Rng::new(seed),
            seen: Default::default(),
            old: Vec::new(),
            held: BTreeMap::new(),
            order: 0,
            made: 0,
            now: Micros(0),
        }
    }

    /// Number of frames forged or replayed.
    pub fn made(&self) -> u32 {
        self.made
    }

    /// Handles frames that have arrived by `now`. True = there were some.
    pub fn step(&mut self, now: Micros) -> bool {
        self.now = now;
        self.ends.iter_mut().for_each(|end| end.advance(now));
        let mut busy = false;
        for from in [0, 1] {
            while let Some(frame) = self.ends[from].take() {
                busy = true;
                self.pass(from, frame);
            }
        }
        while let Some(entry) = self.held.first_entry().filter(|entry| entry.key().0 <= now) {
            let (to, frame) = entry.remove();
            self.ends[to].send(frame);
            busy = true;
        }
        busy
    }

    /// When the next frame arrives or leaves.
    pub fn next_deadline(&self) -> Option<Micros> {
        let arrival = earlier(self.ends[0].next_deadline(), self.ends[1].next_deadline());
        earlier(arrival, self.held.keys().next().map(|key| key.0))
    }

    /// Handles a frame from the host at `from`.
    fn pass(&mut self, from: usize, frame: Vec<u8>) {
        let to = 1 - from;
        let Ok(segment) = parse(&frame) else {
            // A full queue drops the frame, and the port counts it.
            self.ends[to].send(frame);
            return;
        };
        let acked_before = self.seen[from].ack;
        self.learn(from, &segment, &frame);
        if self.rng.chance(self.powers.optimistic_ppm) && segment.payload_len > 0 && self.both_synchronized() {
            let ack = segment.seq.wrapping_add(segment.payload_len);
            self.make(to, from, |h, _| h.ack = ack);
        }
        let powers = self.powers;
        if self.rng.chance(powers.drop_ppm) {
            // The frame is dropped.
        } else if self.rng.chance(powers.delay_ppm) {
            self.order += 1;
            let at = self.now.after(self.rng.between(1, powers.delay_us.max(1)));
            self.held.insert((at, self.order), (to, frame));
        } else if segment.payload_len == 0 && segment.flags == flags::ACK && later(segment.ack, acked_before) {
            self.divided(from, &segment, acked_before, frame);
        } else {
            self.ends[to].send(frame);
        }
        if self.rng.chance(powers.replay_ppm) && !self.old.is_empty() && self.may_make() {
            let (to, frame) = self.old[self.rng.below(self.old.len() as u64) as usize].clone();
            self.ends[to].send(frame);
        }
        if self.rng.chance(powers.forge_ppm) && self.both_synchronized() {
            self.forge();
        }
        if self.rng.chance(powers.guess_ppm) {
            self.guess();
        }
    }

    fn learn(&mut self, from: usize, segment: &Segment, frame: &[u8]) {
        let seen = &mut self.seen[from];
        if segment.flags & flags::SYN != 0 {
            *seen = Seen::default();
        }
        let space = segment.payload_len + u32::from(segment.flags & flags::SYN != 0);
        let end = segment.seq.wrapping_add(space);
        if seen.frame.is_empty() || later(end, seen.end) {
            seen.end = end;
        }
        let fresh = segment.flags & flags::ACK != 0 && segment.flags & flags::RST == 0;
        if fresh && (!seen.synchronized || !later(seen.ack, segment.ack)) {
            (seen.ack, seen.synchronized) = (segment.ack, segment.flags & flags::SYN == 0);
        }
        if (fresh || seen.frame.is_empty()) && segment.flags & flags::RST == 0 {
            seen.frame = frame.to_vec();
        }
        if self.old.len() == KEPT {
            let at = self.rng.below(KEPT as u64) as usize;
            self.old.swap_remove(at);
        }
        self.old.push((1 - from, frame.to_vec()));
    }

    fn both_synchronized(&self) -> bool {
        self.seen.iter().all(|seen| seen.synchronized)
    }

    fn may_make(&mut self) -> bool {
        self.made += 1;
        self.made <= self.powers.budget
    }

    /// Divides one acknowledgement into several, or adds one that is ahead of it.
    fn divided(&mut self, from: usize, segment: &Segment, before: u32, frame: Vec<u8>) {
        let new = segment.ack.wrapping_sub(before);
        let parts = self.powers.divide.min(new);
        for part in 1..parts {
            let ack = before.wrapping_add((u64::from(new) * u64::from(part) / u64::from(parts)) as u32);
            self.make(from, 1 - from, |h, _| h.ack = ack);
        }
        self.ends[1 - from].send(frame);
        if self.powers.ahead > 0 {
            let ack = self.seen[1 - from].end.wrapping_add(self.powers.ahead);
            self.make(from, 1 - from, |h, _| h.ack = ack);
        }
    }

    /// Sends `to` an acknowledgement in the name of `from`, modified by `change`; the vector is its payload.
    fn make(&mut self, from: usize, to: usize, change: impl FnOnce(&mut Header, &mut Vec<u8>)) {
        if !self.may_make() {
            return;
        }
        let Ok(s) = parse(&self.seen[from].frame) else { return };
        let mut header = header_of(&s);
        header.seq = self.seen[from].end;
        header.flags = flags::ACK;
        header.options.sack = SackBlocks::default();
        (header.options.mss, header.options.window_scale, header.options.sack_permitted) = (None, None, false);
        let mut payload = Vec::new();
        change(&mut header, &mut payload);
        if let Some(frame) = framed(&header, &payload) {
            self.ends[to].send(frame);
        }
    }

    /// Sends one forged frame with true numbers.
    fn forge(&mut self) {
        let from = self.rng.below(2) as usize;
        let to = 1 - from;
        // The numbers that `to` expects next and has sent.
        let (expected, sent) = (self.seen[to].ack, self.seen[to].end);
        let acked = self.seen[from].ack;
        let mut rng = self.rng.fork();
        let kills = self.powers.kills;
        let outside = {
            let (past, future) = (rng.between(2_000, 1 << 24) as u32, rng.between(FAR, 1 << 30) as u32);
            if rng.chance(500_000) { expected.wrapping_sub(past) } else { expected.wrapping_add(future) }
        };
        match rng.below(10) {
            0 | 1 => self.make(from, to, |h, payload| {
                h.seq = outside;
                payload.resize(rng.between(1, 1000) as usize, 0xee);
                h.flags |= if rng.chance(200_000) { flags::FIN } else { flags::PSH };
            }),
            2 => self.make(from, to, |h, _| {
                // Within the window only if it may end the connection.
                let least = if kills { 0 } else { FAR };
                h.seq = expected.wrapping_add(rng.between(least, FAR + 60_000) as u32);
                h.flags = if rng.chance(500_000) { flags::RST } else { flags::RST | flags::ACK };
                if kills && rng.chance(100_000) {
                    h.seq = expected;
                }
            }),
            3 => self.make(from, to, |h, _| {
                h.seq = rng.next_u64() as u32;
                h.flags = if rng.chance(500_000) { flags::SYN } else { flags::SYN | flags::ACK };
                h.options.mss = Some(rng.below(3000) as u16);
                h.options.window_scale = Some(rng.below(256) as u8).filter(|&shift| shift <= 14);
            }),
            // Acknowledgements of unsent data, and of long acknowledged data.
            4 => self.make(from, to, |h, _| h.ack = sent.wrapping_add(rng.between(FAR, 1 << 30) as u32)),
            5 => self.make(from, to, |h, _| h.ack = acked.wrapping_sub(rng.below(1 << 30) as u32)),
            6 => self.make(from, to, |h, _| {
                h.ack = acked;
                // Nothing validates a window. After a forged large one, small true ones wait for the persist timer (RFC
                // 9293 §3.8.6.2.1). A closed connection waits no longer than its orphan's retries.
                if kills {
                    h.window = rng.next_u64() as u16;
                }
            }),
            7 => {
                for _ in 0..rng.between(1, 5) {
                    self.make(from, to, |h, _| {
                        h.ack = acked;
                        for _ in 0..rng.between(1, 3) {
                            let at = acked.wrapping_add(rng.below(100_000) as u32).wrapping_sub(20_000);
                            h.options.sack.push(at, at.wrapping_add(rng.below(5_000) as u32).wrapping_sub(500));
                        }
                    });
                }
            }
            8 => self.option_bomb(from, to, outside, &mut rng),
            _ => self.icmp(to, None, &mut rng),
        }
    }

    /// Sends a segment out of the window with forty random bytes as options.
    fn option_bomb(&mut self, from: usize, to: usize, seq: u32, rng: &mut Rng) {
        let Ok(s) = parse(&self.seen[from].frame) else { return };
        let mut header = header_of(&s);
        (header.seq, header.flags) = (seq, flags::ACK | flags::PSH);
        let Some(mut frame) = framed(&header, &[0; 44]).filter(|_| self.may_make()) else { return };
        let at = usize::from(s.tcp_offset);
        // A larger data offset turns the payload's first bytes into options.
        frame[at + 12] = 0xf0;
        let options = &mut frame[at + 20..at + 60];
        rng.fill(options);
        // Make most kinds and lengths valid.
        options.chunks_mut(4).for_each(|chunk| chunk[0] %= 10);
        options.chunks_mut(8).for_each(|chunk| chunk[1] %= 12);
        fill_checksum(&mut frame);
        self.ends[to].send(frame);
    }

    /// Sends an ICMP error about data that `to` has sent, or about sequence number `seq`.
    fn icmp(&mut self, to: usize, seq: Option<u32>, rng: &mut Rng) {
        let quoted = self.seen[to].frame.clone();
        let Ok(s) = parse(&quoted) else { return };
        let (IpAddr::V4(local), IpAddr::V4(remote)) = (s.source, s.destination) else { return };
        if !self.may_make() {
            return;
        }
        let (kind, code) = [(3, rng.below(16) as u8), (11, 0), (12, 0), (4, 0)][rng.below(4) as usize];
        let mut message = vec![kind, code, 0, 0, 0, 0];
        message.extend((rng.below(2000) as u16).to_be_bytes());
        let start = usize::from(s.tcp_offset) - 20;
        message.extend(&quoted[start..start + 28]);
        if let Some(seq) = seq {
            message[32..36].copy_from_slice(&seq.to_be_bytes());
        }
        let sum = checksum::finish(checksum::add(0, &message));
        message[2..4].copy_from_slice(&sum);
        let total = (20 + message.len() as u16).to_be_bytes();
        let mut ip = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 1, 0, 0];
        ip.extend(remote.octets());
        ip.extend(local.octets());
        let sum = checksum::finish(checksum::add(0, &ip));
        ip[10..12].copy_from_slice(&sum);
        let mut frame = s.source_mac.to_vec();
        frame.extend(s.destination_mac);
        frame.extend([8, 0]);
        frame.extend(ip);
        frame.extend(message);
        self.ends[to].send(frame);
    }

    /// Sends one forged frame of an off-path attacker: true addresses and ports, random numbers.
    fn guess(&mut self) {
        let from = self.rng.below(2) as usize;
        let mut rng = self.rng.fork();
        let guess = |rng: &mut Rng| rng.below(SPACE) as u32;
        if rng.chance(150_000) {
            let seq = guess(&mut rng);
            return self.icmp(1 - from, Some(seq), &mut rng);
        }
        self.make(from, 1 - from, |h, payload| {
            (h.seq, h.ack, h.window) = (guess(&mut rng), guess(&mut rng), rng.next_u64() as u16);
            h.flags = [
                flags::RST,
                flags::RST | flags::ACK,
                flags::SYN,
                flags::SYN | flags::ACK,
                flags::FIN | flags::ACK,
                flags::ACK,
                flags::ACK | flags::PSH | flags::URG,
            ][rng.below(7) as usize];
            if let Some(stamps) = &mut h.options.timestamps {
                (stamps.value, stamps.echo) = (guess(&mut rng), guess(&mut rng));
            }
            if rng.chance(200_000) {
                h.options.timestamps = None;
            }
            if h.flags & flags::ACK != 0 && h.flags & flags::RST == 0 {
                payload.resize(rng.below(500) as usize, 0xbb);
            }
        });
    }
}
