//! A core's whole turn, step by step in one thread: stages, flow group, rings in shared memory, and a port in memory. In
//! one turn every flow receives a 64-byte request. Its application answers between two turns, which is not counted. In
//! the next turn the replies leave.

use crate::stages::{FRAME_BYTES, MOST, REQUEST_BYTES, RING_BYTES, request, setup};
use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use towpath_fast::by_hand::ByHand;
use towpath_ports::{Capabilities, Port, PortCounters, RxChecksum, RxFrame, TxOffload};
use towpath_tcp::flow::FlowSetup;
use towpath_tcp::time::Micros;

/// Between two turns.
const TURN_US: u64 = 20;
const MTU: usize = 1500;

/// A frame with its length.
type Frame = ([u8; FRAME_BYTES], usize);

/// What the port shares with the peers. It is touched once in a turn, so that the lock hides nothing.
#[derive(Default)]
struct Wire {
    arriving: Mutex<Vec<Frame>>,
    left: AtomicUsize,
}

/// A port whose frames stand in an array. It computes checksums, as an offloading one does.
struct FlatPort {
    wire: Arc<Wire>,
    received: Vec<Frame>,
    out: Vec<[u8; MTU + 14]>,
    count: usize,
}

impl Port for FlatPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu_bytes: MTU as u32, tx_checksum: true, gso_max_bytes: 0 }
    }
    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        debug_assert!(max >= MOST);
        self.received.clear();
        mem::swap(&mut self.received, &mut *self.wire.arriving.lock().unwrap_or_else(PoisonError::into_inner));
        frames.extend(self.received.iter().enumerate().map(|(handle, (_, len))| RxFrame {
            handle: handle as u64,
            len: *len as u32,
            checksum: RxChecksum::Valid,
            gso_bytes: 0,
        }));
    }
    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        self.received.get(frame.handle as usize).map_or(&[], |(bytes, len)| &bytes[..*len])
    }
    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        self.received.get_mut(frame.handle as usize).map(|(bytes, len)| &mut bytes[..*len])
    }
    fn release(&mut self, _: &[RxFrame]) {}
    fn reserve(&mut self) -> Option<&mut [u8]> {
        self.out.get_mut(self.count).map(|frame| &mut frame[..])
    }
    fn commit(&mut self, _: usize, _: TxOffload) {
        self.count += 1;
    }
    fn flush(&mut self) {
        self.wire.left.fetch_add(mem::take(&mut self.count), Ordering::Relaxed);
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn pending(&mut self) -> bool {
        false
    }
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

/// Echoes at least `requests` requests, `batch` of them per turn; returns how many were counted.
pub fn run(batch: usize, requests: u64) -> io::Result<u64> {
    if !(1..=MOST).contains(&batch) {
        return Err(io::Error::other(format!("a turn has 1 to {MOST} flows")));
    }
    let wire = Arc::new(Wire::default());
    let port = FlatPort {
        wire: Arc::clone(&wire),
        received: Vec::with_capacity(MOST),
        out: vec![[0; MTU + 14]; 2 * MOST],
        count: 0,
    };
    let mut core = ByHand::new(batch as u32, RING_BYTES as u32, Box::new(port))?;
    let (mut now, mut position) = (Micros(1_000_000), 0_u32);
    let setups: Vec<FlowSetup> = (0..batch as u32).map(setup).collect();
    for (number, setup) in (0..).zip(&setups) {
        core.install(number, setup.clone(), now)?;
    }
    let rounds = requests.div_ceil(batch as u64);
    for _ in 0..rounds {
        now = now.after(TURN_US);
        let mut arriving = Vec::with_capacity(MOST);
        for setup in &setups {
            let mut frame = ([0; FRAME_BYTES], 0);
            frame.1 = request(setup, position, now, &mut frame.0)?;
            arriving.push(frame);
        }
        *wire.arriving.lock().unwrap_or_else(PoisonError::into_inner) = arriving;
        position = position.wrapping_add(REQUEST_BYTES as u32);
        engine_turn(&mut core, now.0);
        let mut told = 0;
        while let Some(number) = core.event() {
            core.answer(number, position, position)?;
            told += 1;
        }
        let before = wire.left.swap(0, Ordering::Relaxed);
        now = now.after(TURN_US);
        engine_turn(&mut core, now.0);
        let left = wire.left.swap(0, Ordering::Relaxed);
        if (told, before, left) != (batch, 0, batch) {
            return Err(io::Error::other(format!("{told} events, {before} and {left} frames for {batch} requests")));
        }
        core.forget_messages();
    }
    Ok(rounds * batch as u64)
}

/// The counted function: a turn of the core.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn engine_turn(core: &mut ByHand, now_us: u64) {
    core.turn(Micros(now_us));
}
