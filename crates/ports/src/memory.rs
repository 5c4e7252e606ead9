//! Ports in memory: a loopback, and a pair of ports connected to each other.

use crate::outgoing::is_next;
use crate::{Capabilities, Outgoing, Port, PortCounters, RxChecksum, RxFrame, TxOffload};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_wire::{ETHERNET_BYTES, VLAN_BYTES};

/// The largest IPv4 packet. It is the loopback's default, so that bulk transfers take few large segments.
pub const MAX_MTU_BYTES: u32 = 65_535;
/// Buffers of a port. 1,024 of 64 KiB exceed the windows of many connections. Memory is touched only as needed.
const BUFFERS: u32 = 1024;

/// The state of one of the loopback's buffers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BufferState {
    Free,
    Reserved,
    Queued,
    Held,
}

/// A port that receives what it has sent, in order and without loss.
///
/// All buffers are allocated at the start. When none is free [`Port::reserve`] returns `None`: back-pressure, never
/// loss. The buffer used last is reused first, while it is still in the cache.
pub struct Loopback {
    memory: Vec<u8>,
    frame_bytes: usize,
    stride: usize,
    free: Vec<u32>,
    states: Vec<BufferState>,
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
    /// A loopback with an MTU of [`MAX_MTU_BYTES`].
    pub fn new() -> Self {
        Self::with_mtu(MAX_MTU_BYTES)
    }

    /// A loopback with an MTU of `mtu` bytes, at most [`MAX_MTU_BYTES`].
    pub fn with_mtu(mtu: u32) -> Self {
        Self::with_buffers(mtu, BUFFERS)
    }

    /// A loopback with an MTU of `mtu` bytes and this number of buffers.
    pub fn with_buffers(mtu: u32, buffers: u32) -> Self {
        let mtu_bytes = mtu.min(MAX_MTU_BYTES);
        // A module may put a tag on the largest frame.
        let frame_bytes = mtu_bytes as usize + ETHERNET_BYTES + VLAN_BYTES;
        // An odd number of cache lines. With an even one the headers of all buffers would share a few sets of the
        // cache.
        let stride = (frame_bytes.div_ceil(64) | 1) * 64;
        Self {
            // Zeroed memory of this size comes from mmap, so pages are allocated at their first use.
            memory: vec![0; stride * buffers as usize],
            frame_bytes,
            stride,
            free: (0..buffers).rev().collect(),
            states: vec![BufferState::Free; buffers as usize],
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
            self.states[buffer as usize] = BufferState::Held;
            frames.push(RxFrame { handle: u64::from(buffer), len, checksum: RxChecksum::Valid, gso_bytes: 0 });
        }
        self.counters.rx_frames += count as u64;
    }

    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        let held = self.states.get(frame.handle as usize) == Some(&BufferState::Held);
        debug_assert!(held, "a frame that was not received or is released");
        if !held {
            return &[];
        }
        let start = self.start(frame.handle as u32);
        &self.memory[start..start + (frame.len as usize).min(self.frame_bytes)]
    }

    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        if self.states.get(frame.handle as usize) != Some(&BufferState::Held) {
            return None;
        }
        let start = self.start(frame.handle as u32);
        Some(&mut self.memory[start..start + (frame.len as usize).min(self.frame_bytes)])
    }

    fn release(&mut self, frames: &[RxFrame]) {
        for frame in frames {
            let state = self.states.get_mut(frame.handle as usize).filter(|state| **state == BufferState::Held);
            debug_assert!(state.is_some(), "a frame that was not received or is released");
            if let Some(state) = state {
                *state = BufferState::Free;
                self.free.push(frame.handle as u32);
            }
        }
    }

    fn reserve(&mut self) -> Option<&mut [u8]> {
        if self.reserved.is_none() {
            self.reserved = self.free.pop();
        }
        let buffer = self.reserved?;
        self.states[buffer as usize] = BufferState::Reserved;
        let start = self.start(buffer);
        Some(&mut self.memory[start..start + self.frame_bytes])
    }

    fn commit(&mut self, len: usize, _offload: TxOffload) {
        debug_assert!(len <= self.frame_bytes, "a frame longer than its buffer");
        let Some(buffer) = self.reserved.take() else { return };
        self.states[buffer as usize] = BufferState::Queued;
        self.queue.push_back((buffer, len.min(self.frame_bytes) as u32));
        self.counters.tx_frames += 1;
    }

    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        Some(self)
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

impl Outgoing for Loopback {
    fn committed(&self) -> u32 {
        self.counters.tx_frames as u32
    }

    fn waiting(&self, since: u32) -> Range<usize> {
        let all = self.queue.len();
        all - (self.committed().wrapping_sub(since) as usize).min(all)..all
    }

    fn waiting_mut(&mut self, place: usize) -> Option<&mut [u8]> {
        let (buffer, len) = *self.queue.get(place)?;
        let start = self.start(buffer);
        self.memory.get_mut(start..start + len as usize)
    }

    fn take_back(&mut self, since: u32, numbers: &mut dyn Iterator<Item = usize>) {
        let (mut place, first, mut numbers) = (0, self.waiting(since).start, numbers.peekable());
        let Self { queue, states, free, counters, .. } = self;
        queue.retain(|(buffer, _)| {
            let goes = place >= first && is_next(&mut numbers, place - first);
            place += 1;
            if goes {
                states[*buffer as usize] = BufferState::Free;
                free.push(*buffer);
                counters.tx_frames -= 1;
            }
            !goes
        });
    }
}

/// One direction of a pair: frames in flight, and buffers to be reused.
#[derive(Default)]
struct Cable {
    in_flight: VecDeque<(Box<[u8]>, u32)>,
    empty: Vec<Box<[u8]>>,
}

/// One port of a [`pair`]. The two are like NICs without offloads on one cable.
///
/// Each transfer takes a lock, so this is for tests and benchmarks.
pub struct MemoryPort {
    out: Arc<Mutex<Cable>>,
    inward: Arc<Mutex<Cable>>,
    /// Number of buffers allocated for the outgoing direction.
    made: u32,
    reserved: Option<Box<[u8]>>,
    committed: Vec<(Box<[u8]>, u32)>,
    held: Vec<Option<Box<[u8]>>>,
    vacant: Vec<u32>,
    mtu_bytes: u32,
    interface: u32,
    counters: PortCounters,
}

/// Two connected ports with an MTU of `mtu` bytes. Frames are transferred by [`Port::flush`], and none is lost.
pub fn pair(mtu: u32) -> (MemoryPort, MemoryPort) {
    let one = Arc::new(Mutex::new(Cable::default()));
    let other = Arc::new(Mutex::new(Cable::default()));
    (MemoryPort::new(mtu, one.clone(), other.clone()), MemoryPort::new(mtu, other, one))
}

/// Locks a cable. A poisoned lock is ignored, as a panic at the other end leaves a `Cable` in a valid state.
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
            interface: 0,
            counters: PortCounters::default(),
        }
    }

    /// The same, as a port of the interface of this number.
    pub fn of_interface(self, interface: u32) -> Self {
        Self { interface, ..self }
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

    fn interface(&self) -> u32 {
        self.interface
    }

    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        let mut cable = lock(&self.inward);
        let count = cable.in_flight.len().min(max);
        for (buffer, len) in cable.in_flight.drain(..count) {
            let slot = self.vacant.pop().unwrap_or_else(|| {
                self.held.push(None);
                self.held.len() as u32 - 1
            });
            self.held[slot as usize] = Some(buffer);
            frames.push(RxFrame { handle: u64::from(slot), len, checksum: RxChecksum::Unknown, gso_bytes: 0 });
        }
        self.counters.rx_frames += count as u64;
    }

    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        let buffer = self.held.get(frame.handle as usize).and_then(Option::as_deref);
        debug_assert!(buffer.is_some(), "a frame that was not received or is released");
        buffer.and_then(|bytes| bytes.get(..frame.len as usize)).unwrap_or(&[])
    }

    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        let buffer = self.held.get_mut(frame.handle as usize).and_then(Option::as_deref_mut);
        buffer.and_then(|bytes| bytes.get_mut(..frame.len as usize))
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

    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        Some(self)
    }

    fn flush(&mut self) {
        self.counters.tx_frames += self.committed.len() as u64;
        lock(&self.out).in_flight.extend(self.committed.drain(..));
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn pending(&mut self) -> bool {
        !lock(&self.inward).in_flight.is_empty()
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl Outgoing for MemoryPort {
    fn committed(&self) -> u32 {
        (self.counters.tx_frames as u32).wrapping_add(self.committed.len() as u32)
    }

    fn waiting(&self, since: u32) -> Range<usize> {
        let all = self.committed.len();
        all - (Outgoing::committed(self).wrapping_sub(since) as usize).min(all)..all
    }

    fn waiting_mut(&mut self, place: usize) -> Option<&mut [u8]> {
        let (buffer, len) = self.committed.get_mut(place)?;
        buffer.get_mut(..*len as usize)
    }

    fn take_back(&mut self, since: u32, numbers: &mut dyn Iterator<Item = usize>) {
        let (mut number, first, mut numbers) = (0, self.waiting(since).start, numbers.peekable());
        let goes = self.committed.extract_if(first.., |_| {
            number += 1;
            is_next(&mut numbers, number - 1)
        });
        lock(&self.out).empty.extend(goes.map(|(buffer, _)| buffer));
    }
}
