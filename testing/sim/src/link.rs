//! A full-duplex wire between two ports, with bandwidth, propagation delay and a finite queue at each sender (tail
//! drop, ECN).

use crate::cut::cut;
use crate::pcap;
use crate::trace::{self, Hash};
use crate::{TimedPort, room};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_ports::{Capabilities, Port, PortCounters, RxChecksum, RxFrame, TxOffload};
use towpath_tcp::time::Micros;
use towpath_wire::{ip, segment};

/// The properties of one direction of a wire, set at the sending end.
#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    /// Bits per second; 0 = no limit.
    pub bits_per_s: u64,
    /// Propagation delay in µs.
    pub delay_us: u64,
    /// Size of the sender's queue in bytes. A frame that does not fit is dropped.
    pub queue_bytes: u64,
    /// An ECN-capable frame that finds more bytes than this in the queue is marked CE (RFC 3168 §5; K of RFC 8257).
    /// `None` = no marking.
    pub mark_bytes: Option<u64>,
    /// Largest IP packet in bytes.
    pub mtu_bytes: u32,
    /// Does the port compute checksums on sending and verify them on receiving?
    pub checksum_offload: bool,
    /// Largest frame that the port cuts into segments, bytes; 0 = it cuts none, nor without `checksum_offload`.
    pub gso_max_bytes: u32,
    /// Hash every frame for [`Link::hash`]? Off where millions of frames are sent.
    pub hashed: bool,
    /// Print every frame put on the wire to standard error?
    pub print: bool,
}

impl Default for LinkConfig {
    /// 1 Gbit/s, 50 µs, 256 KiB of queue, 1500-byte packets.
    fn default() -> Self {
        Self {
            bits_per_s: 1_000_000_000,
            delay_us: 50,
            queue_bytes: 256 << 10,
            mark_bytes: None,
            mtu_bytes: 1500,
            checksum_offload: false,
            gso_max_bytes: 0,
            hashed: true,
            print: false,
        }
    }
}

struct InFlight {
    at_ns: u64,
    frame: Vec<u8>,
}

#[derive(Default)]
struct Direction {
    frames: VecDeque<InFlight>,
    /// When the last bit of the queued frames leaves the sender.
    free_ns: u64,
    /// The newest instant at which the sender passed frames, and how many.
    burst: (u64, u64),
    counters: QueueCounters,
}

/// Counters of a sender's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Frames that the sender passed to it.
    pub frames: u64,
    /// Frames dropped because the queue was full.
    pub drops: u64,
    /// Frames marked CE.
    pub marks: u64,
    /// Most bytes in the queue at a time.
    pub longest_bytes: u64,
    /// Most frames that the sender passed to it at one instant.
    pub longest_burst: u64,
}

#[derive(Default)]
struct Shared {
    directions: [Direction; 2],
    hash: Hash,
    /// The newest frame sent by each end.
    newest: [Vec<u8>; 2],
    /// Every frame with its sending time, if [`Link::record`] was called.
    recorded: Option<Vec<(Micros, Vec<u8>)>>,
}

/// The observer's handle of a wire.
#[derive(Clone)]
pub struct Link {
    shared: Arc<Mutex<Shared>>,
}

impl Link {
    /// A wire and its two ends, which have the same properties.
    pub fn new(config: LinkConfig) -> (Self, LinkPort, LinkPort) {
        Self::between([config, config])
    }

    /// A wire whose directions have different properties.
    pub fn between(ends: [LinkConfig; 2]) -> (Self, LinkPort, LinkPort) {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let port = |end: usize, config: LinkConfig| LinkPort {
            shared: shared.clone(),
            config,
            end,
            now: Micros(0),
            out: vec![0; room(config.mtu_bytes, config.gso_max_bytes)],
            held: Vec::new(),
            free: Vec::new(),
            counters: PortCounters::default(),
        };
        let (a, b) = (port(0, ends[0]), port(1, ends[1]));
        (Self { shared }, a, b)
    }

    /// Hash of every frame put on the wire, with its time and direction.
    pub fn hash(&self) -> u64 {
        lock(&self.shared).hash.0
    }

    /// Frames put on the wire.
    pub fn frames(&self) -> u64 {
        self.queue(0).frames + self.queue(1).frames
    }

    /// Frames dropped because a sender's queue was full.
    pub fn drops(&self) -> u64 {
        self.queue(0).drops + self.queue(1).drops
    }

    /// Counters of the queue at end 0 or 1.
    pub fn queue(&self, end: usize) -> QueueCounters {
        lock(&self.shared).directions[end].counters
    }

    /// The newest frame that end 0 or 1 has put on the wire; empty if none.
    pub fn newest(&self, end: usize) -> Vec<u8> {
        lock(&self.shared).newest[end].clone()
    }

    /// Starts to record every frame put on the wire, including those that a full queue drops.
    pub fn record(&self) {
        lock(&self.shared).recorded.get_or_insert_default();
    }

    /// The recorded frames as a pcap file.
    pub fn recording(&self) -> Vec<u8> {
        pcap::file(lock(&self.shared).recorded.iter().flatten())
    }

    /// Puts a forged frame on the wire, as if `end` had sent it. It arrives after the frames in flight.
    pub fn inject(&self, end: usize, now: Micros, frame: Vec<u8>) {
        let direction = &mut lock(&self.shared).directions[end];
        let at_ns = direction.frames.back().map_or(0, |last| last.at_ns).max(now.0 * 1000);
        direction.frames.push_back(InFlight { at_ns, frame });
    }

    /// Frames that are on the wire now.
    pub fn in_flight(&self) -> usize {
        lock(&self.shared).directions.iter().map(|d| d.frames.len()).sum()
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One end of a wire.
pub struct LinkPort {
    shared: Arc<Mutex<Shared>>,
    config: LinkConfig,
    end: usize,
    now: Micros,
    out: Vec<u8>,
    /// Received frames by handle; empty = free.
    held: Vec<Vec<u8>>,
    free: Vec<usize>,
    counters: PortCounters,
}

impl LinkPort {
    /// Puts a complete frame on the wire. False = the queue was full, and the frame is lost.
    pub fn send(&mut self, mut frame: Vec<u8>) -> bool {
        let config = &self.config;
        let mut shared = lock(&self.shared);
        if config.hashed {
            shared.hash.word(self.now.0 * 2 + self.end as u64);
            shared.hash.bytes(&frame);
        }
        shared.newest[self.end].clone_from(&frame);
        if let Some(recorded) = &mut shared.recorded {
            recorded.push((self.now, frame.clone()));
        }
        if config.print {
            eprintln!("{}", trace::line(self.now, if self.end == 0 { "->" } else { "<-" }, &frame));
        }
        let now_ns = self.now.0 * 1000;
        let bits = frame.len() as u64 * 8;
        let direction = &mut shared.directions[self.end];
        direction.counters.frames += 1;
        direction.burst = if direction.burst.0 == now_ns { (now_ns, direction.burst.1 + 1) } else { (now_ns, 1) };
        direction.counters.longest_burst = direction.counters.longest_burst.max(direction.burst.1);
        let mut done_ns = now_ns;
        if config.bits_per_s > 0 {
            let wait_ns = direction.free_ns.saturating_sub(now_ns);
            let waiting = u128::from(wait_ns) * u128::from(config.bits_per_s) / 8_000_000_000;
            if waiting + frame.len() as u128 > u128::from(config.queue_bytes) {
                direction.counters.drops += 1;
                self.counters.tx_dropped += 1;
                return false;
            }
            let waiting = waiting as u64;
            direction.counters.longest_bytes = direction.counters.longest_bytes.max(waiting + frame.len() as u64);
            if config.mark_bytes.is_some_and(|threshold| waiting > threshold) && ip::mark_ce(&mut frame) {
                direction.counters.marks += 1;
            }
            done_ns += wait_ns + bits * 1_000_000_000 / config.bits_per_s;
            direction.free_ns = done_ns;
        }
        direction.frames.push_back(InFlight { at_ns: done_ns + config.delay_us * 1000, frame });
        self.counters.tx_frames += 1;
        true
    }

    /// Takes the next frame that has arrived.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let mut shared = lock(&self.shared);
        let frames = &mut shared.directions[1 - self.end].frames;
        if frames.front().is_none_or(|f| f.at_ns > self.now.0 * 1000) {
            return None;
        }
        self.counters.rx_frames += 1;
        frames.pop_front().map(|f| f.frame)
    }
}

/// The verdict of a device with checksum offload on a frame.
fn verified(frame: &[u8]) -> RxChecksum {
    match segment::parse(frame) {
        Ok(s) if segment::checksum_ok(frame, &s, RxChecksum::Unknown) => RxChecksum::Valid,
        _ => RxChecksum::Unknown,
    }
}

impl Port for LinkPort {
    fn capabilities(&self) -> Capabilities {
        let LinkConfig { mtu_bytes, checksum_offload, gso_max_bytes, .. } = self.config;
        let gso_max_bytes = if checksum_offload { gso_max_bytes } else { 0 };
        Capabilities { mtu_bytes, tx_checksum: checksum_offload, gso_max_bytes }
    }

    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        for _ in 0..max {
            let Some(frame) = self.take() else { break };
            let handle = self.free.pop().unwrap_or_else(|| {
                self.held.push(Vec::new());
                self.held.len() - 1
            });
            let checksum = if self.config.checksum_offload { verified(&frame) } else { RxChecksum::Unknown };
            frames.push(RxFrame { handle: handle as u64, len: frame.len() as u32, checksum, gso_bytes: 0 });
            self.held[handle] = frame;
        }
    }

    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        &self.held[frame.handle as usize]
    }

    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        self.held.get_mut(frame.handle as usize).map(Vec::as_mut_slice)
    }

    fn release(&mut self, frames: &[RxFrame]) {
        for frame in frames {
            self.held[frame.handle as usize] = Vec::new();
            self.free.push(frame.handle as usize);
        }
    }

    fn reserve(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.out)
    }

    fn commit(&mut self, len: usize, offload: TxOffload) {
        assert!(len <= self.out.len(), "a frame of {len} bytes on a wire for {}", self.out.len());
        assert!(self.config.gso_max_bytes > 0 || offload.gso_bytes == 0, "super-segment on a wire that cuts none");
        assert!(self.config.checksum_offload || !offload.checksum_needed, "no checksum offload here");
        for frame in cut(&self.out[..len], offload) {
            self.send(frame);
        }
    }

    fn flush(&mut self) {}

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn pending(&mut self) -> bool {
        let shared = lock(&self.shared);
        shared.directions[1 - self.end].frames.front().is_some_and(|f| f.at_ns <= self.now.0 * 1000)
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl TimedPort for LinkPort {
    fn advance(&mut self, now: Micros) {
        self.now = self.now.max(now);
    }

    fn next_deadline(&self) -> Option<Micros> {
        let shared = lock(&self.shared);
        shared.directions[1 - self.end].frames.front().map(|f| Micros(f.at_ns.div_ceil(1000)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn wire(bits_per_s: u64, delay_us: u64, queue_bytes: u64) -> (Link, LinkPort, LinkPort) {
        Link::new(LinkConfig { bits_per_s, delay_us, queue_bytes, ..LinkConfig::default() })
    }

    #[test]
    fn a_frame_takes_its_transmission_and_propagation_time() {
        // 1000 bytes take 1 ms at 8 Mbit/s, and 250 µs to the other end.
        let (_, mut a, mut b) = wire(8_000_000, 250, 1 << 20);
        a.send(vec![1; 1000]);
        a.send(vec![2; 1000]);
        assert_eq!(b.next_deadline(), Some(Micros(1250)));
        b.advance(Micros(1249));
        assert!(b.take().is_none());
        b.advance(Micros(1250));
        assert_eq!(b.take().unwrap()[0], 1);
        assert!(b.take().is_none());
        b.advance(Micros(2250));
        assert_eq!(b.take().unwrap()[0], 2);
    }

    #[test]
    fn the_queue_drops_its_tail_and_drains_with_time() {
        let (link, mut a, mut b) = wire(8_000_000, 0, 3000);
        let sent: Vec<bool> = (0..4).map(|_| a.send(vec![0; 1000])).collect();
        assert_eq!(sent, [true, true, true, false]);
        assert_eq!(link.drops(), 1);
        a.advance(Micros(1000));
        assert!(a.send(vec![0; 1000]), "one frame has left");
        b.advance(Micros(10_000));
        assert_eq!(std::iter::from_fn(|| b.take()).count(), 4);
    }

    #[test]
    fn a_queue_beyond_its_threshold_marks_and_does_not_drop() {
        let ends = [Some(3000), None].map(|mark_bytes| LinkConfig {
            bits_per_s: 8_000_000,
            queue_bytes: 10_000,
            mark_bytes,
            ..LinkConfig::default()
        });
        let (link, mut a, mut b) = Link::between(ends);
        let mut frame = vec![0; 1000];
        frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0b10]);
        let deaf = vec![0; 1000];
        // The fifth frame finds 4000 bytes in the queue. One that is not ECN-capable is never marked. The last two are
        // dropped.
        for n in 0..12 {
            let (here, there) = if n == 5 { (deaf.clone(), deaf.clone()) } else { (frame.clone(), frame.clone()) };
            assert_eq!((a.send(here), b.send(there)), (n < 10, n < 10));
        }
        let expected = QueueCounters { frames: 12, drops: 2, marks: 5, longest_bytes: 10_000, longest_burst: 12 };
        assert_eq!(link.queue(0), expected);
        assert_eq!(link.queue(1), QueueCounters { marks: 0, ..expected }, "the other end has no threshold");
        b.advance(Micros(20_000));
        let marked: Vec<bool> = std::iter::from_fn(|| b.take()).map(|frame| frame[15] & 3 == 3).collect();
        assert_eq!(marked, [false, false, false, false, true, false, true, true, true, true]);
    }

    #[test]
    fn both_directions_are_separate_and_hashed() {
        let (link, mut a, mut b) = wire(0, 10, 0);
        let start = link.hash();
        a.send(vec![1; 60]);
        let one = link.hash();
        b.send(vec![1; 60]);
        assert_ne!(start, one);
        assert_ne!(one, link.hash());
        a.advance(Micros(10));
        b.advance(Micros(10));
        let mut frames = Vec::new();
        a.receive(&mut frames, 8);
        assert_eq!((frames.len(), a.bytes(&frames[0]).len()), (1, 60));
        a.release(&frames);
        assert!(a.take().is_none());
        assert!(b.take().is_some());
    }
}
