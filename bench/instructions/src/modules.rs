//! A module before a port, step by step in one thread: in each turn 64 frames are received, or sent. The port is a flat
//! array, so that its own work hides nothing. Without a module the same turns are taken with the port alone.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use towpath_fast::module_port::Filter;
use towpath_modules::code::Code;
use towpath_modules::{Attached, Budget, Chains, Counts, Module, Object};
use towpath_ports::{Capabilities, Port, PortCounters, RxChecksum, RxFrame, TxOffload};

/// Frames of a turn.
const TURN: usize = 64;
/// An Ethernet header, IPv4, TCP with timestamps, and 64 bytes.
const FRAME_BYTES: usize = 14 + 20 + 32 + 64;

/// Where the module stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Ingress,
    Egress,
}

/// What a run took.
pub struct Cost {
    /// Frames that were counted.
    pub frames: u64,
    /// The time of all turns.
    pub nanoseconds: u128,
}

/// The port: what it receives is always the same, and what is sent is counted.
struct Flat {
    received: Vec<[u8; FRAME_BYTES]>,
    out: [u8; FRAME_BYTES],
    sent: u64,
}

impl Flat {
    fn new(frame: [u8; FRAME_BYTES]) -> Self {
        Self { received: vec![frame; TURN], out: frame, sent: 0 }
    }
}

impl Port for Flat {
    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu_bytes: 1500, ..Capabilities::default() }
    }
    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        let frame = |handle| RxFrame { handle, len: FRAME_BYTES as u32, checksum: RxChecksum::Valid, gso_bytes: 0 };
        frames.extend((0..max.min(TURN) as u64).map(frame));
    }
    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        self.received.get(frame.handle as usize).map_or(&[], |bytes| &bytes[..])
    }
    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        self.received.get_mut(frame.handle as usize).map(|bytes| &mut bytes[..])
    }
    fn release(&mut self, _: &[RxFrame]) {}
    fn reserve(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.out)
    }
    fn commit(&mut self, _: usize, _: TxOffload) {
        self.sent += 1;
    }
    fn flush(&mut self) {}
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn pending(&mut self) -> bool {
        true
    }
    fn counters(&self) -> PortCounters {
        PortCounters { tx_frames: self.sent, ..PortCounters::default() }
    }
}

/// The module of an object file (`null`: of [`Object::null`]) and of the code that was made of its only function: where that
/// begins, where the loop around it does, and the bytes of both.
fn module(object: &str, code: &Path) -> io::Result<Attached> {
    let object = match object {
        "null" => Object::null(),
        file => Object::parse(&std::fs::read(file)?).map_err(io::Error::other)?,
    };
    let bytes = std::fs::read(code)?;
    let (functions, code) = bytes.split_at_checked(8).ok_or_else(|| io::Error::other("the code is cut off"))?;
    let functions: Vec<_> = functions.as_chunks().0.iter().map(|offset| u32::from_le_bytes(*offset)).collect();
    let code = Code::new(code)?;
    // SAFETY: `towpath bench` has had the kernel's verifier judge the object (the null program loads and stores nothing),
    // and has compiled the code of it. Whoever passes other files runs them by his own rights.
    let module = unsafe { Module::new(&object, 0, 1, Some((code, &functions))) }.map_err(io::Error::other)?;
    let budget = Arc::new(Budget::new("counted", 100));
    Ok(Attached { module: Arc::new(module), counts: Counts::new(1), budget, selector: None, direct: None })
}

/// Takes turns until at least `frames` frames have come or gone, each as in the file `frame`. `object` is `none`, `null` or
/// an object file.
pub fn run(side: Side, object: &str, code: &Path, frame: &Path, frames: u64) -> io::Result<Cost> {
    let frame = std::fs::read(frame)?;
    let frame = frame.try_into().map_err(|_| io::Error::other(format!("a frame has {FRAME_BYTES} bytes")))?;
    let mut port: Box<dyn Port> = Box::new(Flat::new(frame));
    if object != "none" {
        let mut chains = Chains::default();
        let chain = if side == Side::Ingress { &mut chains.ingress } else { &mut chains.egress };
        chain.push(module(object, code)?);
        port = Filter::new(&chains, 0, 0).before(port);
    }
    let (turns, mut received) = (frames.div_ceil(TURN as u64), Vec::with_capacity(TURN));
    let begin = Instant::now();
    for _ in 0..turns {
        modules_turn(&mut *port, &mut received, side);
    }
    let nanoseconds = begin.elapsed().as_nanos();
    let frames = turns * TURN as u64;
    if side == Side::Egress && port.counters().tx_frames != frames {
        return Err(io::Error::other(format!("{} of {frames} frames were sent", port.counters().tx_frames)));
    }
    Ok(Cost { frames, nanoseconds })
}

/// The counted function: 64 frames are received and read, or sent.
#[inline(never)]
#[unsafe(no_mangle)]
extern "Rust" fn modules_turn(port: &mut dyn Port, received: &mut Vec<RxFrame>, side: Side) {
    if side == Side::Egress {
        for _ in 0..TURN {
            let frame = port.reserve().map_or(0, |frame| frame.len());
            port.commit(frame, TxOffload::default());
        }
        return port.flush();
    }
    port.receive(received, TURN);
    for frame in &*received {
        std::hint::black_box(port.bytes(frame).first());
    }
    port.release(received);
    received.clear();
}
