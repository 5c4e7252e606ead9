//! Ports made of memory: a loopback, and two ends joined to each other.

use crate::{Capabilities, Port, PortCounters, RxChecksum, RxFrame, TxOffload};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_wire::ETHERNET_BYTES;

/// The largest IPv4 packet: the loopback's default, so that a bulk transfer takes few and large segments.
pub const MAX_MTU_BYTES: u32 = 65_535;
/// Buffers of a port. 1,024 of 64 KiB are more than the windows of many connections, and memory is touched only as needed.
const BUFFERS: u32 = 1024;

/// Where a buffer of the loopback is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Free,
    Reserved,
    Queued,
    Held,
}

/// A port that receives what it has sent, in order and without loss.
///
/// All buffers belong to it from the start. When none is free [`Port::reserve`] returns `None`: back-pressure, never loss.
/// The buffer used last is used again first, while it is still in the cache.
pub struct Loopback {
    memory: Vec<u8>,
    frame_bytes: usize,
    stride: usize,
    free: Vec<u32>,
    places: Vec<Place>,
    reserved: Option<u32>,
    queue: VecDeque<(u32, u32)>,
    mtu_bytes: u32,
    counters: PortCounters,
}

impl Default for Loopback {
    fn default() -> Self {
        Self::new()
    }
}

impl Loopback {
    /// With an MTU of [`MAX_MTU_BYTES`].
    pub fn new() -> Self {
        Self::with_mtu(MAX_MTU_BYTES)
    }

    /// With an MTU of `mtu` bytes, at most [`MAX_MTU_BYTES`].
    pub fn with_mtu(mtu: u32) -> Self {
        Self::with_buffers(mtu, BUFFERS)
    }

    /// With an MTU of `mtu` bytes and a number of buffers.
    pub fn with_buffers(mtu: u32, buffers: u32) -> Self {
        let mtu_bytes = mtu.min(MAX_MTU_BYTES);
        let frame_bytes = mtu_bytes as usize + ETHERNET_BYTES;
        // Whole cache lines, and an odd number of them: else the headers of all buffers would fall into the same few sets
        // of the cache.
        let stride = (frame_bytes.div_ceil(64) | 1) * 64;
        Self {
            // Zeroed memory of this size comes from mmap: pages exist when they are first touched.
            memory: vec![0; stride * buffers as usize],
            frame_bytes,
            stride,
            free: (0..buffers).rev().collect(),
            places: vec![Place::Free; buffers as usize],
            reserved: None,
            queue: VecDeque::with_capacity(buffers as usize),
            mtu_bytes,
            counters: PortCounters::default(),
        }
    }

    fn start(&self, buffer: u32) -> usize {
        buffer as usize * self.stride
    }
}

impl Port for Loopback {
    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu_bytes: self.mtu_bytes, tx_checksum: true, gso_max_bytes: 0 }
    }

    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        let count = self.queue.len().min(max);
        for (buffer, len) in self.queue.drain(..count) {
            self.places[buffer as usize] = Place::Held;
            frames.push(RxFrame { handle: u64::from(buffer), len, checksum: RxChecksum::Valid });
        }
        self.counters.rx_frames += count as u64;
    }

    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        let held = self.places.get(frame.handle as usize) == Some(&Place::Held);
        debug_assert!(held, "a frame that was not received or is released");
        if !held {
            return &[];
        }
        let start = self.start(frame.handle as u32);
        &self.memory[start..start + (frame.len as usize).min(self.frame_bytes)]
    }

    fn release(&mut self, frames: &[RxFrame]) {
        for frame in frames {
            let place = self.places.get_mut(frame.handle as usize).filter(|place| **place == Place::Held);
            debug_assert!(place.is_some(), "a frame that was not received or is released");
            if let Some(place) = place {
                *place = Place::Free;
                self.free.push(frame.handle as u32);
            }
        }
    }

    fn reserve(&mut self) -> Option<&mut [u8]> {
        if self.reserved.is_none() {
            self.reserved = self.free.pop();
        }
        let buffer = self.reserved?;
        self.places[buffer as usize] = Place::Reserved;
        let start = self.start(buffer);
        Some(&mut self.memory[start..start + self.frame_bytes])
    }

    fn commit(&mut self, len: usize, _offload: TxOffload) {
        debug_assert!(len <= self.frame_bytes, "a frame longer than its buffer");
        let Some(buffer) = self.reserved.take() else { return };
        self.places[buffer as usize] = Place::Queued;
        self.queue.push_back((buffer, len.min(self.frame_bytes) as u32));
        self.counters.tx_frames += 1;
    }

    fn flush(&mut self) {}

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn pending(&mut self) -> bool {
        !self.queue.is_empty()
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

/// One direction of a pair: frames under way, and buffers to be used again.
#[derive(Default)]
struct Cable {
    under_way: VecDeque<(Box<[u8]>, u32)>,
    empty: Vec<Box<[u8]>>,
}

/// One of two ends that receive what the other sends, like two NICs without offloads on one cable. See [`pair`].
///
/// For tests and benchmarks: each hand-over takes a lock.
pub struct MemoryPort {
    out: Arc<Mutex<Cable>>,
    inward: Arc<Mutex<Cable>>,
    /// Buffers of the outgoing direction that exist.
    made: u32,
    reserved: Option<Box<[u8]>>,
    committed: Vec<(Box<[u8]>, u32)>,
    held: Vec<Option<Box<[u8]>>>,
    vacant: Vec<u32>,
    mtu_bytes: u32,
    counters: PortCounters,
}

/// Two joined ports with an MTU of `mtu` bytes. A frame passes over on [`Port::flush`]; nothing is lost.
pub fn pair(mtu: u32) -> (MemoryPort, MemoryPort) {
    let one = Arc::new(Mutex::new(Cable::default()));
    let other = Arc::new(Mutex::new(Cable::default()));
    (MemoryPort::new(mtu, one.clone(), other.clone()), MemoryPort::new(mtu, other, one))
}

/// A panic of the other end leaves no half-made state in a `Cable`: go on.
fn lock(cable: &Mutex<Cable>) -> std::sync::MutexGuard<'_, Cable> {
    cable.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryPort {
    fn new(mtu: u32, out: Arc<Mutex<Cable>>, inward: Arc<Mutex<Cable>>) -> Self {
        Self {
            out,
            inward,
            made: 0,
            reserved: None,
            committed: Vec::new(),
            held: Vec::new(),
            vacant: Vec::new(),
            mtu_bytes: mtu.min(MAX_MTU_BYTES),
            counters: PortCounters::default(),
        }
    }

    fn empty_buffer(&mut self) -> Option<Box<[u8]>> {
        let used = lock(&self.out).empty.pop();
        if used.is_none() && self.made < BUFFERS {
            self.made += 1;
            return Some(vec![0; self.mtu_bytes as usize + ETHERNET_BYTES].into());
        }
        used
    }
}

impl Port for MemoryPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu_bytes: self.mtu_bytes, tx_checksum: false, gso_max_bytes: 0 }
    }

    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        let mut cable = lock(&self.inward);
        let count = cable.under_way.len().min(max);
        for (buffer, len) in cable.under_way.drain(..count) {
            let slot = self.vacant.pop().unwrap_or_else(|| {
                self.held.push(None);
                self.held.len() as u32 - 1
            });
            self.held[slot as usize] = Some(buffer);
            frames.push(RxFrame { handle: u64::from(slot), len, checksum: RxChecksum::Unknown });
        }
        self.counters.rx_frames += count as u64;
    }

    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        let buffer = self.held.get(frame.handle as usize).and_then(Option::as_deref);
        debug_assert!(buffer.is_some(), "a frame that was not received or is released");
        buffer.and_then(|bytes| bytes.get(..frame.len as usize)).unwrap_or(&[])
    }

    fn release(&mut self, frames: &[RxFrame]) {
        let mut cable = lock(&self.inward);
        for frame in frames {
            let buffer = self.held.get_mut(frame.handle as usize).and_then(Option::take);
            debug_assert!(buffer.is_some(), "a frame that was not received or is released");
            if let Some(buffer) = buffer {
                cable.empty.push(buffer);
                self.vacant.push(frame.handle as u32);
            }
        }
    }

    fn reserve(&mut self) -> Option<&mut [u8]> {
        if self.reserved.is_none() {
            self.reserved = self.empty_buffer();
        }
        self.reserved.as_deref_mut()
    }

    fn commit(&mut self, len: usize, offload: TxOffload) {
        debug_assert!(!offload.checksum_needed && offload.gso_bytes == 0, "this port has no offloads");
        let Some(buffer) = self.reserved.take() else { return };
        debug_assert!(len <= buffer.len(), "a frame longer than its buffer");
        let len = len.min(buffer.len()) as u32;
        self.committed.push((buffer, len));
    }

    fn flush(&mut self) {
        self.counters.tx_frames += self.committed.len() as u64;
        lock(&self.out).under_way.extend(self.committed.drain(..));
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn pending(&mut self) -> bool {
        !lock(&self.inward).under_way.is_empty()
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}
