//! A module or a capture's filter at a port, step by step in one thread: in each turn 64 frames are received, or sent. The port is
//! a flat array, so that its own work hides nothing. Without a module the same turns are taken with the port alone.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use towpath_capture::memory::LEAST_RING;
use towpath_capture::{Memory, Reader, Sheet, Tap, Wish, pcapng};
use towpath_fast::filter::Filter;
use towpath_fast::portset::PortSet;
use towpath_modules::code::Code;
use towpath_modules::{Attached, Chains, Counts, Module, Object, Tenant};
use towpath_ports::{Capabilities, Outgoing, Port, PortCounters, RxChecksum, RxFrame, TxOffload};
use towpath_tcp::buffers::TxPorts;
use towpath_tcp::flow::PortId;

/// Frames of a turn.
const TURN: usize = 64;
/// An Ethernet header, IPv4, TCP with timestamps, and 64 bytes.
const FRAME_BYTES: usize = 14 + 20 + 32 + 64;

/// The port that is used. Port 0 would be the loopback, of whose frames a capture shows the received ones only.
const USED: PortId = PortId(1);

/// Where the module stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Ingress,
    Egress,
}

/// What it is there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Module,
    /// The filter of a capture. Without one (`all`) the capture keeps all frames.
    Capture,
}

/// A capture of all frames.
const ALL: &str = "all";
/// Bytes of a frame that it keeps.
const SNAP: u32 = 96;

/// What a run took.
pub struct Cost {
    /// Frames that were counted.
    pub frames: u64,
    /// The time of all turns.
    pub nanoseconds: u128,
}

/// The distance of buffers: that of AF_XDP's.
const SLOT_BYTES: usize = 2048;

/// The port: what it receives is always the same, and what is sent is counted.
struct Flat {
    received: Vec<[u8; SLOT_BYTES]>,
    out: Vec<[u8; SLOT_BYTES]>,
    waiting: usize,
    sent: u64,
}

impl Flat {
    fn new(frame: [u8; FRAME_BYTES]) -> Self {
        let mut slot = [0; SLOT_BYTES];
        slot[..FRAME_BYTES].copy_from_slice(&frame);
        Self { received: vec![slot; TURN], out: vec![slot; TURN], waiting: 0, sent: 0 }
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
        self.received.get(frame.handle as usize).map_or(&[], |bytes| &bytes[..FRAME_BYTES])
    }
    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        self.received.get_mut(frame.handle as usize).map(|bytes| &mut bytes[..FRAME_BYTES])
    }
    fn release(&mut self, _: &[RxFrame]) {}
    fn reserve(&mut self) -> Option<&mut [u8]> {
        self.out.get_mut(self.waiting).map(|bytes| &mut bytes[..FRAME_BYTES])
    }
    fn commit(&mut self, _: usize, _: TxOffload) {
        self.waiting += 1;
    }
    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        Some(self)
    }
    fn flush(&mut self) {
        self.sent += std::mem::take(&mut self.waiting) as u64;
    }
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

impl Outgoing for Flat {
    fn committed(&self) -> u32 {
        self.sent as u32 + self.waiting as u32
    }
    fn waiting(&self, _: u32) -> Range<usize> {
        0..self.waiting
    }
    fn waiting_mut(&mut self, place: usize) -> Option<&mut [u8]> {
        self.out.get_mut(place).map(|bytes| &mut bytes[..FRAME_BYTES])
    }
    fn take_back(&mut self, _: u32, numbers: &mut dyn Iterator<Item = usize>) {
        self.waiting -= numbers.count();
    }
}

/// Bytes before the code: where its function begins, and the two loops around it.
const FUNCTIONS: usize = 12;

/// A module that is removed before the first turn.
const REMOVED: &str = "removed";

/// The module of an object file (`null` and [`REMOVED`]: of [`Object::null`]) and of the code that was made of its only function.
fn module(object: &str, code: &Path) -> io::Result<Arc<Module>> {
    let object = match object {
        "null" | REMOVED => Object::null(),
        file => Object::parse(&std::fs::read(file)?).map_err(io::Error::other)?,
    };
    let bytes = std::fs::read(code)?;
    let (functions, code) = bytes.split_at_checked(FUNCTIONS).ok_or_else(|| io::Error::other("the code is cut off"))?;
    let functions: Vec<_> = functions.as_chunks().0.iter().map(|offset| u32::from_le_bytes(*offset)).collect();
    let code = Code::new(code)?;
    // SAFETY: `towpath bench` has had the kernel's verifier judge the object (the null program loads and stores nothing),
    // and has compiled the code of it. Whoever passes other files runs them by his own rights.
    let module = unsafe { Module::new(&object, 0, 1, Some((code, &functions))) }.map_err(io::Error::other)?;
    Ok(Arc::new(module))
}

/// The module where it stands.
fn chains(module: Arc<Module>, side: Side) -> Chains {
    let tenant = Arc::new(Tenant::new("counted", 100, 1));
    let attached = Attached { module, counts: Counts::new(1), tenant, selector: None, direct: None };
    match side {
        Side::Ingress => Chains { ingress: vec![attached], ..Chains::default() },
        Side::Egress => Chains { egress: vec![attached], ..Chains::default() },
    }
}

/// Takes turns until at least `frames` frames have come or gone, each as in the file `frame`. `object` is `none`, `null`,
/// [`REMOVED`], [`ALL`] or an object file.
pub fn run(role: Role, side: Side, object: &str, code: &Path, frame: &Path, frames: u64) -> io::Result<Cost> {
    let frame = std::fs::read(frame)?;
    let frame = frame.try_into().map_err(|_| io::Error::other(format!("a frame has {FRAME_BYTES} bytes")))?;
    let port = || -> Box<dyn Port> { Box::new(Flat::new(frame)) };
    let mut ports = PortSet::new(vec![port(), port()]);
    let mut reader = None;
    if object != "none" {
        match role {
            Role::Module => {
                let chains = chains(module(object, code)?, side);
                ports.filter(Some((0..2).map(|port| Filter::new(&chains, 0, port)).collect()));
                if object == REMOVED {
                    ports.filter(None);
                }
            }
            Role::Capture => {
                let (memory, writers) = Memory::new(2, 0)?;
                reader = Some(Reader::new(memory.as_fd())?);
                let filter = if object == ALL { None } else { Some(module(object, code)?) };
                let wish = Wish { filter: filter.map(towpath_capture::Filter::Module), snap: SNAP, bytes: 0 };
                ports.tap(Some(writers.into_iter().map(|writer| Tap::new(writer, &wish)).collect()));
            }
        }
    }
    let (turns, mut received) = (frames.div_ceil(TURN as u64), Vec::with_capacity(TURN));
    let (mut read, mut to) = (0, vec![0; LEAST_RING as usize]);
    let begin = Instant::now();
    for turn in 0..turns {
        modules_turn(&mut ports, &mut received, side);
        if turn % READ == 0 {
            read += reader.as_mut().map_or(0, |reader| taken(reader, &mut to));
        }
    }
    let nanoseconds = begin.elapsed().as_nanos();
    let frames = turns * TURN as u64;
    let sent: u64 = ports.iter_mut().map(|port| port.counters().tx_frames).sum();
    if side == Side::Egress && sent != frames {
        return Err(io::Error::other(format!("{sent} of {frames} frames were sent")));
    }
    let (kept, dropped) = reader.as_ref().map_or((0, 0), Reader::counts);
    read += reader.as_mut().map_or(0, |reader| taken(reader, &mut to));
    let expected = if object == ALL { frames } else { 0 };
    if (kept, dropped, read) != (expected, 0, expected) {
        return Err(io::Error::other(format!(
            "the filter has found {kept} frames, {dropped} were dropped, {read} read"
        )));
    }
    Ok(Cost { frames, nanoseconds })
}

/// A capture is read after so many turns.
const READ: u64 = 16;

/// Takes what a capture has left.
fn taken(reader: &mut Reader, to: &mut [u8]) -> u64 {
    let mut frames = 0;
    for ring in 0..reader.rings() {
        while reader.take(ring, to, |_, _, _| frames += 1) > 0 {}
    }
    frames
}

/// Connections whose frames are written.
const CONNECTIONS: u64 = 64;

/// The command's part of a capture: it takes so many frames out of the memory, and writes them. A turn's frames are those of all
/// connections, and go both ways.
pub fn write(frame: &Path, frames: u64) -> io::Result<Cost> {
    let frame = std::fs::read(frame)?;
    let (memory, mut writers) = Memory::new(2, 1 << 20)?;
    let mut reader = Reader::new(memory.as_fd())?;
    let mut file = pcapng::Writer::new(io::empty(), "counted")?;
    file.interface(&pcapng::Interface::default())?;
    let mut sheet = Sheet::new(file, 2, None);
    let wish = Wish { filter: None, snap: SNAP, bytes: 0 };
    let mut tap = Tap::new(writers.remove(0), &wish);
    let turns = frames.div_ceil(2 * CONNECTIONS);
    let begin = Instant::now();
    for turn in 0..turns {
        for number in 0..2 * CONNECTIONS {
            let (mut frame, outgoing) = (frame.clone(), number % 2 == 1);
            frame[35] = number as u8 / 2;
            if outgoing {
                frame.splice(26..38, [10, 0, 0, 1, 10, 0, 0, 2, 27, 88, 156, number as u8 / 2]);
            }
            tap.frame(USED.0.into(), outgoing, turn, &frame);
        }
        writer_turn(&mut sheet, &mut reader)?;
    }
    let nanoseconds = begin.elapsed().as_nanos();
    let frames = turns * 2 * CONNECTIONS;
    if sheet.written().0 != frames {
        return Err(io::Error::other(format!("{} of {frames} frames were written", sheet.written().0)));
    }
    Ok(Cost { frames, nanoseconds })
}

/// The counted function: the command looks once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "Rust" fn writer_turn(sheet: &mut Sheet<io::Empty>, reader: &mut Reader) -> io::Result<()> {
    sheet.take(reader);
    sheet.write(u64::MAX)
}

/// The counted function: 64 frames are received and read, or sent.
#[inline(never)]
#[unsafe(no_mangle)]
extern "Rust" fn modules_turn(ports: &mut PortSet, received: &mut Vec<RxFrame>, side: Side) {
    if side == Side::Egress {
        for _ in 0..TURN {
            let frame = TxPorts::reserve(ports, USED).map_or(0, |frame| frame.len());
            TxPorts::commit(ports, USED, frame, TxOffload::default());
        }
        return ports.flush();
    }
    let Some(port) = ports.receive(usize::from(USED.0), received, TURN) else { return };
    for frame in &*received {
        std::hint::black_box(port.bytes(frame).first());
    }
    port.release(received);
    received.clear();
}
