//! The device: it keeps the stack's frames for comparison, and delivers the script's.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_ports::{Capabilities, Port, PortCounters, RxFrame, TxOffload};
use towpath_sim::TimedPort;
use towpath_tcp::time::Micros;

/// Both ends of the wire.
#[derive(Debug, Default)]
struct Frames {
    inbound: VecDeque<Vec<u8>>,
    outbound: Vec<Vec<u8>>,
}

/// The script's end of the wire.
#[derive(Clone, Debug, Default)]
pub struct Wire(Arc<Mutex<Frames>>);

impl Wire {
    fn lock(&self) -> MutexGuard<'_, Frames> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers a frame to the stack.
    pub fn send(&self, frame: Vec<u8>) {
        self.lock().inbound.push_back(frame);
    }

    /// Takes the frames that the stack has sent since the last call.
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.lock().outbound)
    }
}

/// The stack's end.
pub struct ScriptPort {
    wire: Wire,
    mtu: u16,
    buffer: Vec<u8>,
    received: HashMap<u64, Vec<u8>>,
    next: u64,
    counters: PortCounters,
}

impl ScriptPort {
    /// A port with this MTU in bytes.
    pub fn new(wire: Wire, mtu: u16) -> Self {
        let buffer = vec![0; usize::from(mtu) + 14];
        Self { wire, mtu, buffer, received: HashMap::new(), next: 0, counters: PortCounters::default() }
    }
}

impl Port for ScriptPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu_bytes: u32::from(self.mtu), ..Capabilities::default() }
    }
    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        for _ in 0..max {
            let Some(bytes) = self.wire.lock().inbound.pop_front() else { return };
            self.counters.rx_frames += 1;
            frames.push(RxFrame { handle: self.next, len: bytes.len() as u32, ..RxFrame::default() });
            self.received.insert(self.next, bytes);
            self.next += 1;
        }
    }
    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        self.received.get(&frame.handle).map_or(&[], Vec::as_slice)
    }
    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        self.received.get_mut(&frame.handle).map(Vec::as_mut_slice)
    }
    fn release(&mut self, frames: &[RxFrame]) {
        for frame in frames {
            self.received.remove(&frame.handle);
        }
    }
    fn reserve(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.buffer)
    }
    fn commit(&mut self, len: usize, _: TxOffload) {
        self.counters.tx_frames += 1;
        self.wire.lock().outbound.push(self.buffer[..len].to_vec());
    }
    fn flush(&mut self) {}
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn pending(&mut self) -> bool {
        !self.wire.lock().inbound.is_empty()
    }
    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl TimedPort for ScriptPort {
    fn advance(&mut self, _: Micros) {}
    fn next_deadline(&self) -> Option<Micros> {
        None
    }
}
