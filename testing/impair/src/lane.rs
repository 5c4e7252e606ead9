//! One direction of a relay in virtual time. A seed decides which frames are delayed, changed, duplicated or lost.

use crate::frame;
use crate::impairments::Impairments;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use towpath_rng::Rng;
use towpath_wire::ip;

/// Most bytes that a lane holds, whatever the delay. Frames beyond it count as dropped by the queue.
pub const HOLD_MAX_BYTES: u64 = 64 << 20;

/// Counters of one direction, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Received.
    pub frames_in: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Sent.
    pub frames_out: u64,
    /// Lost by `loss`.
    pub lost: u64,
    /// Lost by `burst`.
    pub lost_in_bursts: u64,
    /// Bursts that began.
    pub bursts: u64,
    /// Dropped because the queue was full.
    pub queue_full: u64,
    /// Marked CE.
    pub marked: u64,
    /// Duplicated.
    pub duplicated: u64,
    /// Corrupted.
    pub corrupted: u64,
    /// Delayed so that later frames overtake.
    pub reordered: u64,
}

/// One stream of random numbers per cause, so that the losses of a seed do not depend on the other impairments.
struct Streams {
    loss: Rng,
    burst: Rng,
    duplicate: Rng,
    corrupt: Rng,
    bits: Rng,
    jitter: Rng,
    reorder: Rng,
}

/// One direction of a relay.
pub struct Lane {
    impairments: Impairments,
    streams: Streams,
    counters: Counters,
    in_burst: bool,
    /// When the bottleneck will have sent all queued frames.
    free_ns: u64,
    /// When the newest frame that was not reordered is due.
    newest_ns: u64,
    /// Due time, order of arrival, slot in `held`.
    waiting: BinaryHeap<Reverse<(u64, u64, usize)>>,
    held: Vec<Vec<u8>>,
    held_bytes: u64,
    free: Vec<usize>,
    arrivals: u64,
}

impl Lane {
    /// A lane. The same seed, frames and times give the same result.
    pub fn new(impairments: Impairments, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut stream = || rng.fork();
        let streams = Streams {
            loss: stream(),
            burst: stream(),
            duplicate: stream(),
            corrupt: stream(),
            bits: stream(),
            jitter: stream(),
            reorder: stream(),
        };
        Self {
            impairments,
            streams,
            counters: Counters::default(),
            in_burst: false,
            free_ns: 0,
            newest_ns: 0,
            waiting: BinaryHeap::new(),
            held: Vec::new(),
            held_bytes: 0,
            free: Vec::new(),
            arrivals: 0,
        }
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes in the lane, queued or being delayed.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Adds a frame, Ethernet header first. Times are in ns from any start, and never decrease.
    pub fn put(&mut self, now_ns: u64, frame: &[u8]) {
        self.counters.frames_in += 1;
        self.counters.bytes_in += frame.len() as u64;
        if self.loses() {
            return;
        }
        let twice = self.streams.duplicate.chance(self.impairments.duplicate_ppm);
        self.counters.duplicated += u64::from(twice);
        for _ in 0..1 + u32::from(twice) {
            self.enqueue(now_ns, frame);
        }
    }

    /// Takes the next frame that is due.
    pub fn pop(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        if self.next_due()? > now_ns {
            return None;
        }
        let Reverse((_, _, slot)) = self.waiting.pop()?;
        let frame = std::mem::take(&mut self.held[slot]);
        self.free.push(slot);
        self.held_bytes -= frame.len() as u64;
        self.counters.frames_out += 1;
        Some(frame)
    }

    /// When the next frame is due, in ns.
    pub fn next_due(&self) -> Option<u64> {
        self.waiting.peek().map(|Reverse((due, _, _))| *due)
    }

    fn loses(&mut self) -> bool {
        let lost_alone = self.streams.loss.chance(self.impairments.loss_ppm);
        let lost_in_burst = self.burst();
        if lost_in_burst {
            self.counters.lost_in_bursts += 1;
        } else if lost_alone {
            self.counters.lost += 1;
        }
        lost_alone || lost_in_burst
    }

    /// One step of the two-state model. A burst ends with probability 1 / mean length, so lengths are geometric.
    fn burst(&mut self) -> bool {
        let Some(burst) = self.impairments.burst else { return false };
        let turn = if self.in_burst { 1_000_000 / burst.frames } else { burst.enter_ppm };
        if self.streams.burst.chance(turn) {
            self.in_burst = !self.in_burst;
            self.counters.bursts += u64::from(self.in_burst);
        }
        let lost = self.streams.burst.chance(burst.loss_ppm);
        self.in_burst && lost
    }

    fn enqueue(&mut self, now_ns: u64, frame: &[u8]) {
        let len = frame.len() as u64;
        let queued = self.queued_bytes(now_ns);
        let limit = self.impairments.rate_bits_per_s.map_or(u64::MAX, |_| self.impairments.queue_bytes);
        if queued + len > limit || self.held_bytes + len > HOLD_MAX_BYTES {
            self.counters.queue_full += 1;
            return;
        }
        let mut frame = frame.to_vec();
        if self.impairments.mark_bytes.is_some_and(|threshold| queued > threshold) && ip::mark_ce(&mut frame) {
            self.counters.marked += 1;
        }
        if self.streams.corrupt.chance(self.impairments.corrupt_ppm)
            && frame::flip_bits(&mut frame, &mut self.streams.bits)
        {
            self.counters.corrupted += 1;
        }
        let sent_ns = match self.impairments.rate_bits_per_s {
            Some(rate) => {
                self.free_ns = self.free_ns.max(now_ns) + len * 8 * 1_000_000_000 / rate;
                self.free_ns
            }
            None => now_ns,
        };
        let due_ns = self.due(sent_ns);
        self.hold(due_ns, frame);
    }

    /// Bytes queued at the bottleneck, the frame being sent included.
    fn queued_bytes(&self, now_ns: u64) -> u64 {
        let rate = self.impairments.rate_bits_per_s.unwrap_or(0);
        (u128::from(self.free_ns.saturating_sub(now_ns)) * u128::from(rate) / 8_000_000_000) as u64
    }

    fn due(&mut self, sent_ns: u64) -> u64 {
        let jitter = self.streams.jitter.below(self.impairments.jitter_ns.saturating_add(1));
        let in_order = (sent_ns + self.impairments.delay_ns + jitter).max(self.newest_ns);
        if let Some(reorder) = self.impairments.reorder
            && self.streams.reorder.chance(reorder.share_ppm)
        {
            self.counters.reordered += 1;
            return in_order + reorder.extra_ns;
        }
        self.newest_ns = in_order;
        in_order
    }

    fn hold(&mut self, due_ns: u64, frame: Vec<u8>) {
        self.held_bytes += frame.len() as u64;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.held.push(Vec::new());
            self.held.len() - 1
        });
        self.held[slot] = frame;
        self.arrivals += 1;
        self.waiting.push(Reverse((due_ns, self.arrivals, slot)));
    }
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
