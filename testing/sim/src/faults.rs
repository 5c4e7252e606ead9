//! A device that adds faults to any port, decided by a seed.

use crate::cut::cut;
use crate::{TimedPort, earlier, room};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::BorrowedFd;
use towpath_ports::{Capabilities, Port, PortCounters, RxChecksum, RxFrame, TxOffload};
use towpath_rng::Rng;
use towpath_tcp::time::Micros;
use towpath_wire::emit;

/// The faults of one direction. Rates are in millionths of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Frames lost.
    pub loss_ppm: u32,
    /// Frames duplicated. The copy is delayed independently.
    pub duplicate_ppm: u32,
    /// Frames corrupted: one to three bits of a 16-bit word flip, headers included, which a checksum always detects.
    pub corrupt_ppm: u32,
    /// Frames delayed, so that later ones overtake them.
    pub delay_ppm: u32,
    /// Their delay is 1 to this many µs.
    pub delay_us: u64,
}

/// Counters of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Lost.
    pub lost: u64,
    /// Duplicated.
    pub duplicated: u64,
    /// Corrupted.
    pub corrupted: u64,
    /// Delayed.
    pub delayed: u64,
}

struct Held {
    frame: Vec<u8>,
    checksum: RxChecksum,
    offload: TxOffload,
}

/// One direction, with its faults and delayed frames.
struct Lane {
    faults: Faults,
    rng: Rng,
    counters: FaultCounters,
    /// Due time, order of arrival, slot in `held`.
    waiting: BinaryHeap<Reverse<(Micros, u64, usize)>>,
    held: Vec<Option<Held>>,
    free: Vec<usize>,
    arrivals: u64,
}

impl Lane {
    fn new(faults: Faults, rng: Rng) -> Self {
        Self {
            faults,
            rng,
            counters: FaultCounters::default(),
            waiting: BinaryHeap::new(),
            held: Vec::new(),
            free: Vec::new(),
            arrivals: 0,
        }
    }

    fn put(&mut self, now: Micros, frame: Vec<u8>, checksum: RxChecksum, offload: TxOffload) {
        if self.rng.chance(self.faults.loss_ppm) {
            self.counters.lost += 1;
            return;
        }
        if self.rng.chance(self.faults.duplicate_ppm) {
            self.counters.duplicated += 1;
            self.enqueue(now, Held { frame: frame.clone(), checksum, offload });
        }
        self.enqueue(now, Held { frame, checksum, offload });
    }

    fn enqueue(&mut self, now: Micros, mut held: Held) {
        if self.rng.chance(self.faults.corrupt_ppm) {
            self.counters.corrupted += 1;
            if held.offload.checksum_needed {
                // The bits flip on the wire, after the device has computed the sum.
                emit::fill_checksum(&mut held.frame);
                held.offload.checksum_needed = false;
            }
            held.checksum = RxChecksum::Unknown;
            flip_bits(&mut held.frame, &mut self.rng);
        }
        let mut due = now;
        if self.faults.delay_us > 0 && self.rng.chance(self.faults.delay_ppm) {
            self.counters.delayed += 1;
            due = now.after(self.rng.between(1, self.faults.delay_us));
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() - 1
        });
        self.held[slot] = Some(held);
        self.arrivals += 1;
        self.waiting.push(Reverse((due, self.arrivals, slot)));
    }

    /// Takes the slot of the next frame that is due.
    fn pop(&mut self, now: Micros) -> Option<usize> {
        if self.next_deadline()? > now {
            return None;
        }
        self.waiting.pop().map(|Reverse((_, _, slot))| slot)
    }

    fn next_deadline(&self) -> Option<Micros> {
        self.waiting.peek().map(|Reverse((due, _, _))| *due)
    }

    fn free(&mut self, slot: usize) -> Option<Held> {
        self.free.push(slot);
        self.held[slot].take()
    }
}

/// Flips one to three different bits of one 16-bit word, so that the one's complement sum always changes.
fn flip_bits(frame: &mut [u8], rng: &mut Rng) {
    let words = frame.len() / 2;
    if words == 0 {
        return;
    }
    let at = rng.below(words as u64) as usize * 2;
    let mut mask = 0u16;
    for _ in 0..rng.between(1, 3) {
        mask |= 1 << rng.below(16);
    }
    frame[at] ^= (mask >> 8) as u8;
    frame[at + 1] ^= mask as u8;
}

/// `inner` with faults on receiving, sending or both, driven by [`Faulty::advance`].
pub struct Faulty<P> {
    inner: P,
    now: Micros,
    rx: Lane,
    tx: Lane,
    out: Vec<u8>,
    scratch: Vec<RxFrame>,
    /// Frames for which `inner` had no room, in order.
    stuck: VecDeque<Held>,
}

impl<P: Port> Faulty<P> {
    /// `inner` with these faults. The same seed and frames give the same faults.
    pub fn new(inner: P, seed: u64, on_receive: Faults, on_transmit: Faults) -> Self {
        let mut rng = Rng::new(seed);
        let capabilities = inner.capabilities();
        let room = room(capabilities.mtu_bytes, capabilities.gso_max_bytes);
        Self {
            inner,
            now: Micros(0),
            rx: Lane::new(on_receive, rng.fork()),
            tx: Lane::new(on_transmit, rng.fork()),
            out: vec![0; room],
            scratch: Vec::new(),
            stuck: VecDeque::new(),
        }
    }

    /// Sets the clock to `now`. Frames due by then can be received, or leave with the next [`Port::flush`].
    pub fn advance(&mut self, now: Micros) {
        self.now = self.now.max(now);
    }

    /// When the next delayed frame is due.
    pub fn next_held(&self) -> Option<Micros> {
        earlier(self.rx.next_deadline(), self.tx.next_deadline())
    }

    /// Changes the faults from now on.
    pub fn set(&mut self, on_receive: Faults, on_transmit: Faults) {
        self.rx.faults = on_receive;
        self.tx.faults = on_transmit;
    }

    /// Counters of receiving and of sending.
    pub fn faults(&self) -> (FaultCounters, FaultCounters) {
        (self.rx.counters, self.tx.counters)
    }

    /// The wrapped port.
    pub fn inner(&mut self) -> &mut P {
        &mut self.inner
    }

    fn pull(&mut self, max: usize) {
        self.scratch.clear();
        self.inner.receive(&mut self.scratch, max);
        for frame in &self.scratch {
            self.rx.put(self.now, self.inner.bytes(frame).to_vec(), frame.checksum, TxOffload::default());
        }
        self.inner.release(&self.scratch);
    }

    fn push(&mut self) {
        while let Some(slot) = self.tx.pop(self.now) {
            self.stuck.extend(self.tx.free(slot));
        }
        while let Some(held) = self.stuck.front() {
            let Some(buffer) = self.inner.reserve() else { break };
            buffer[..held.frame.len()].copy_from_slice(&held.frame);
            self.inner.commit(held.frame.len(), held.offload);
            self.stuck.pop_front();
        }
    }
}

impl<P: Port> Port for Faulty<P> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        self.pull(max);
        for _ in 0..max {
            let Some(slot) = self.rx.pop(self.now) else { break };
            if let Some(held) = &self.rx.held[slot] {
                frames.push(RxFrame {
                    handle: slot as u64,
                    len: held.frame.len() as u32,
                    checksum: held.checksum,
                    gso_bytes: 0,
                });
            }
        }
    }

    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        self.rx.held[frame.handle as usize].as_ref().map_or(&[], |held| &held.frame)
    }

    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        self.rx.held[frame.handle as usize].as_mut().map(|held| &mut held.frame[..])
    }

    fn release(&mut self, frames: &[RxFrame]) {
        for frame in frames {
            self.rx.free(frame.handle as usize);
        }
    }

    fn reserve(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.out)
    }

    fn commit(&mut self, len: usize, offload: TxOffload) {
        if offload.gso_bytes == 0 {
            return self.tx.put(self.now, self.out[..len].to_vec(), RxChecksum::Unknown, offload);
        }
        // The faults are the wire's, behind the device that cuts.
        for frame in cut(&self.out[..len], offload) {
            self.tx.put(self.now, frame, RxChecksum::Unknown, TxOffload::default());
        }
    }

    fn flush(&mut self) {
        self.push();
        self.inner.flush();
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }

    fn pending(&mut self) -> bool {
        self.inner.pending() || self.next_held().is_some_and(|due| due <= self.now)
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

impl<P: TimedPort> TimedPort for Faulty<P> {
    fn advance(&mut self, now: Micros) {
        Faulty::advance(self, now);
        self.inner.advance(now);
    }

    fn next_deadline(&self) -> Option<Micros> {
        earlier(self.next_held(), self.inner.next_deadline())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::link::{Link, LinkConfig, LinkPort};

    fn ports(seed: u64, rx: Faults, tx: Faults) -> (LinkPort, Faulty<LinkPort>) {
        let config = LinkConfig { bits_per_s: 0, delay_us: 0, ..LinkConfig::default() };
        let (_, a, b) = Link::new(config);
        (a, Faulty::new(b, seed, rx, tx))
    }

    fn numbered(n: u32) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[..4].copy_from_slice(&n.to_le_bytes());
        frame
    }

    fn drain(port: &mut impl Port) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        port.receive(&mut frames, usize::MAX >> 1);
        let bytes = frames.iter().map(|f| port.bytes(f).to_vec()).collect();
        port.release(&frames);
        bytes
    }

    #[test]
    fn loss_keeps_its_rate_and_counts() {
        let (mut a, mut b) = ports(3, Faults { loss_ppm: 100_000, ..Faults::default() }, Faults::default());
        (0..2000).for_each(|n| {
            a.send(numbered(n));
        });
        let got = drain(&mut b).len() as u64;
        assert_eq!(got + b.faults().0.lost, 2000);
        assert!((150..250).contains(&b.faults().0.lost), "{:?}", b.faults().0);
    }

    #[test]
    fn delay_reorders_and_loses_nothing() {
        let faults = Faults { delay_ppm: 300_000, delay_us: 100, ..Faults::default() };
        let (mut a, mut b) = ports(4, Faults::default(), faults);
        for n in 0..500 {
            b.advance(Micros(u64::from(n)));
            b.reserve().unwrap()[..60].copy_from_slice(&numbered(n));
            b.commit(60, TxOffload::default());
            b.flush();
        }
        b.advance(Micros(1000));
        b.flush();
        let mut got: Vec<u32> = drain(&mut a).iter().map(|f| u32::from_le_bytes(f[..4].try_into().unwrap())).collect();
        assert!(!got.is_sorted(), "some were overtaken");
        got.sort_unstable();
        assert_eq!(got, (0..500).collect::<Vec<_>>());
        assert!(b.next_held().is_none());
    }

    #[test]
    fn duplicates_come_twice_and_corruption_changes_one_word() {
        let both = Faults { duplicate_ppm: 1_000_000, ..Faults::default() };
        let (mut a, mut b) = ports(5, both, Faults::default());
        a.send(numbered(9));
        assert_eq!(drain(&mut b), [numbered(9), numbered(9)]);

        let (mut a, mut b) = ports(6, Faults { corrupt_ppm: 1_000_000, ..Faults::default() }, Faults::default());
        for n in 0..200 {
            a.send(numbered(n));
            let got = drain(&mut b).remove(0);
            let words: Vec<u32> = numbered(n)
                .chunks(2)
                .zip(got.chunks(2))
                .map(|(x, y)| (x[0] ^ y[0]).count_ones() + (x[1] ^ y[1]).count_ones())
                .filter(|&bits| bits > 0)
                .collect();
            assert!(matches!(words[..], [1..=3]), "{words:?}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_faults() {
        let faults =
            Faults { loss_ppm: 50_000, duplicate_ppm: 50_000, corrupt_ppm: 50_000, delay_ppm: 50_000, delay_us: 9 };
        let run = |seed| {
            let (mut a, mut b) = ports(seed, faults, Faults::default());
            (0..300).for_each(|n| {
                a.send(numbered(n));
            });
            b.advance(Micros(100));
            drain(&mut b)
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
