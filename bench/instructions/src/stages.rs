//! The stages alone, step by step in one thread. In each turn every flow receives a 64-byte request, its application
//! answers at once, and the reply leaves. The port is a flat array, so that its own work hides nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use towpath_tcp::buffers::{Rings, RxBatch, TxPorts};
use towpath_tcp::fast::{FastConfig, FastPath, FlowTable};
use towpath_tcp::flow::{Ecn, FlowId, FlowSetup, FourTuple, Link, Owner, PortId, Window};
use towpath_tcp::messages::{AppUpdate, ToFast};
use towpath_tcp::seq::Seq;
use towpath_tcp::time::Micros;
use towpath_wire::emit::{Header, emit};
use towpath_wire::offload::{RxChecksum, TxOffload};
use towpath_wire::segment::{Options, Timestamps, flags};

/// Most flows per turn.
pub const MOST: usize = 64;
pub const REQUEST_BYTES: usize = 64;
pub const RING_BYTES: usize = 8192;
/// Room for the largest frame of an echo.
pub const FRAME_BYTES: usize = 256;
pub const PORT: PortId = PortId(0);

/// The applications' memory: two rings for each flow.
pub struct Memory {
    pub receive: Vec<[u8; RING_BYTES]>,
    pub send: Vec<[u8; RING_BYTES]>,
}

impl Rings for Memory {
    #[inline]
    fn deliver(&mut self, flow: FlowId, position: u32, bytes: &[u8]) {
        let ring = &mut self.receive[flow.0 as usize];
        let start = position as usize % RING_BYTES;
        let (first, rest) = bytes.split_at(bytes.len().min(RING_BYTES - start));
        ring[start..start + first.len()].copy_from_slice(first);
        if !rest.is_empty() {
            ring[..rest.len()].copy_from_slice(rest);
        }
    }
    #[inline]
    fn fetch(&self, flow: FlowId, position: u32, out: &mut [u8]) {
        let ring = &self.send[flow.0 as usize];
        let start = position as usize % RING_BYTES;
        let whole = out.len().min(RING_BYTES - start);
        let (first, rest) = out.split_at_mut(whole);
        first.copy_from_slice(&ring[start..start + first.len()]);
        if !rest.is_empty() {
            rest.copy_from_slice(&ring[..rest.len()]);
        }
    }
}

/// The frames of one turn. The port has checked their checksums, as an offloading one does.
struct Received {
    frames: [[u8; FRAME_BYTES]; MOST],
    lengths: [usize; MOST],
    count: usize,
}

impl RxBatch for Received {
    #[inline]
    fn len(&self) -> usize {
        self.count
    }
    #[inline]
    fn bytes(&self, i: usize) -> &[u8] {
        &self.frames[i][..self.lengths[i]]
    }
    #[inline]
    fn checksum(&self, _: usize) -> RxChecksum {
        RxChecksum::Valid
    }
}

/// The replies of one turn. The port computes TCP checksums.
pub struct Out {
    pub frames: [[u8; FRAME_BYTES]; MOST],
    pub count: usize,
}

impl TxPorts for Out {
    #[inline]
    fn reserve(&mut self, _: PortId) -> Option<&mut [u8]> {
        self.frames.get_mut(self.count).map(|frame| &mut frame[..])
    }
    #[inline]
    fn commit(&mut self, _: PortId, _: usize, _: TxOffload) {
        self.count += 1;
    }
    #[inline]
    fn tx_checksum(&self, _: PortId) -> bool {
        true
    }
}

struct Stack {
    fast: FastPath,
    received: Received,
    out: Out,
    memory: Memory,
    now: Micros,
    /// Bytes that each flow has received and sent, this turn's included.
    position: u32,
}

/// Echoes at least `requests` requests, `batch` of them per turn; returns how many were counted.
pub fn run(batch: usize, requests: u64) -> io::Result<u64> {
    if !(1..=MOST).contains(&batch) {
        return Err(io::Error::other(format!("a turn has 1 to {MOST} flows")));
    }
    let config = FastConfig { seed: 1, ..FastConfig::default() };
    let rings = || vec![[b'y'; RING_BYTES]; batch];
    let mut stack = Box::new(Stack {
        fast: FastPath::new(0, config, Arc::new(FlowTable::new(MOST as u32))),
        received: Received { frames: [[0; FRAME_BYTES]; MOST], lengths: [0; MOST], count: 0 },
        out: Out { frames: [[0; FRAME_BYTES]; MOST], count: 0 },
        memory: Memory { receive: rings(), send: rings() },
        now: Micros(1_000_000),
        position: 0,
    });
    let setups: Vec<FlowSetup> = (0..batch as u32).map(setup).collect();
    for setup in &setups {
        stack.fast.message(stack.now, ToFast::Install(Box::new(setup.clone())), &mut stack.memory);
    }
    let turns = requests.div_ceil(batch as u64);
    for _ in 0..turns {
        stack.now = stack.now.after(20);
        stack.received.count = 0;
        for setup in &setups {
            let received = &mut stack.received;
            let frame = &mut received.frames[received.count];
            received.lengths[received.count] = request(setup, stack.position, stack.now, frame)?;
            received.count += 1;
        }
        stack.out.count = 0;
        stack.position = stack.position.wrapping_add(REQUEST_BYTES as u32);
        stages_turn(&mut stack);
        if stack.out.count != batch {
            return Err(io::Error::other(format!("{} replies to {batch} requests", stack.out.count)));
        }
        // The slow path takes its messages, and has nothing to say.
        while stack.fast.pop_to_slow().is_some() {}
    }
    Ok(turns * batch as u64)
}

/// The counted function: the turn in which requests arrive, the applications answer at once, and the replies leave.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn stages_turn(stack: &mut Stack) {
    let Stack { fast, received, out, memory, now, position } = stack;
    fast.receive(*now, PORT, received, memory);
    let (mut told, mut count) = ([FlowId(0); MOST], 0);
    for event in fast.events() {
        told[count] = event.flow;
        count += 1;
    }
    let update = AppUpdate { tx_tail: *position, rx_head: *position, nodelay: true, ..AppUpdate::default() };
    for flow in &told[..count] {
        let honest = fast.app_update_at_once(*now, *flow, update, memory, out).is_ok();
        debug_assert!(honest);
    }
    fast.transmit(*now, MOST, memory, out);
}

pub const LOCAL: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 7000);
const REMOTE: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 40_000);

/// A flow that is established.
pub fn setup(number: u32) -> FlowSetup {
    FlowSetup {
        flow: FlowId(number),
        owner: Owner(0),
        tuple: FourTuple {
            local: LOCAL.0,
            local_port: LOCAL.1,
            remote: REMOTE.0,
            remote_port: REMOTE.1 + number as u16,
        },
        link: Link { port: PORT, source: [2, 0, 0, 0, 0, 1], destination: [2, 0, 0, 0, 0, 2], vlan: None },
        snd_start: Seq(1000),
        rcv_start: Seq(5000),
        snd_wnd: 65_535,
        snd_wscale: 7,
        rcv_wscale: 2,
        window_scaling: true,
        mss: 1448,
        timestamps: true,
        sack: true,
        ts_recent: 1,
        ts_offset: 0,
        rcv_wnd: RING_BYTES as u32,
        tx_bytes: RING_BYTES as u32,
        rx_bytes: RING_BYTES as u32,
        window: Window { cwnd: 14_480, ssthresh: u32::MAX, growth: 256, beta: 128, pacing: 0 },
        srtt_us: 20,
        nodelay: true,
        ecn: Ecn::Off,
        class: 0,
        tos: 0,
        ttl: 64,
    }
}

/// The next request of a flow's peer, which acknowledges the reply before. `position` is what has come in each direction
/// so far. It returns the length of the frame.
pub fn request(setup: &FlowSetup, position: u32, now: Micros, frame: &mut [u8]) -> io::Result<usize> {
    let time = (now.0 / 1000) as u32;
    let header = Header {
        vlan: None,
        source_mac: setup.link.destination,
        destination_mac: setup.link.source,
        source: setup.tuple.remote,
        destination: setup.tuple.local,
        source_port: setup.tuple.remote_port,
        destination_port: setup.tuple.local_port,
        seq: setup.rcv_start.add(position).0,
        ack: setup.snd_start.add(position).0,
        flags: flags::ACK | flags::PSH,
        window: 512,
        ident: 0,
        tos: 0,
        ttl: towpath_wire::TTL,
        urgent: 0,
        options: Options { timestamps: Some(Timestamps { value: time, echo: time }), ..Options::default() },
    };
    let payload = emit(&header, REQUEST_BYTES, frame).ok_or_else(|| io::Error::other("the frame does not fit"))?;
    let end = payload + REQUEST_BYTES;
    frame[payload..end].fill(b'x');
    Ok(end)
}
