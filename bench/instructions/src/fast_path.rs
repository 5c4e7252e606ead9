//! One flow, one peer made of prepared frames, joined by the in-memory port: a 64-byte request in, its reply out.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use towpath_ports::memory::{self, MemoryPort};
use towpath_ports::{Port, RxFrame, TxOffload};
use towpath_tcp::buffers::{Rings, RxBatch, TxPorts};
use towpath_tcp::fast::{FastConfig, FastPath, FlowTable};
use towpath_tcp::flow::{Ecn, FlowId, FlowSetup, FourTuple, Link, Owner, PortId, Window};
use towpath_tcp::messages::{AppUpdate, ToFast};
use towpath_tcp::seq::Seq;
use towpath_tcp::time::Micros;
use towpath_wire::emit::{Header, emit, partial_checksum};
use towpath_wire::offload::RxChecksum;
use towpath_wire::segment::{Options, Timestamps, flags};

const REQUEST_BYTES: usize = 64;
const RING_BYTES: u32 = 131_072;
const FLOW: FlowId = FlowId(0);
const PORT: PortId = PortId(0);

/// The application's memory: two rings.
struct Memory {
    receive: Vec<u8>,
    send: Vec<u8>,
}

impl Rings for Memory {
    fn deliver(&mut self, _: FlowId, position: u32, bytes: &[u8]) {
        let start = (position % RING_BYTES) as usize;
        let first = bytes.len().min(RING_BYTES as usize - start);
        self.receive[start..start + first].copy_from_slice(&bytes[..first]);
        self.receive[..bytes.len() - first].copy_from_slice(&bytes[first..]);
    }
    fn fetch(&self, _: FlowId, position: u32, out: &mut [u8]) {
        let start = (position % RING_BYTES) as usize;
        let first = out.len().min(RING_BYTES as usize - start);
        let rest = out.len() - first;
        out[..first].copy_from_slice(&self.send[start..start + first]);
        out[first..].copy_from_slice(&self.send[..rest]);
    }
}

struct Received<'a> {
    port: &'a MemoryPort,
    frames: &'a [RxFrame],
}

impl RxBatch for Received<'_> {
    fn len(&self) -> usize {
        self.frames.len()
    }
    fn bytes(&self, i: usize) -> &[u8] {
        self.port.bytes(&self.frames[i])
    }
    fn checksum(&self, _: usize) -> RxChecksum {
        RxChecksum::Valid
    }
}

struct Out<'a>(&'a mut MemoryPort);

impl TxPorts for Out<'_> {
    fn reserve(&mut self, _: PortId) -> Option<&mut [u8]> {
        self.0.reserve()
    }
    fn commit(&mut self, _: PortId, len: usize, offload: TxOffload) {
        self.0.commit(len, offload);
    }
    fn tx_checksum(&self, _: PortId) -> bool {
        true
    }
}

struct Stack {
    fast: FastPath,
    port: MemoryPort,
    memory: Memory,
    frames: Vec<RxFrame>,
    now: Micros,
    position: u32,
}

/// Echoes `requests` requests; returns how many were counted.
pub fn run(requests: u64) -> io::Result<u64> {
    let (port, mut peer) = memory::pair(1500);
    let config = FastConfig { seed: 1, ..FastConfig::default() };
    let mut stack = Stack {
        fast: FastPath::new(0, config, Arc::new(FlowTable::new(64))),
        port,
        memory: Memory { receive: vec![0; RING_BYTES as usize], send: vec![b'y'; RING_BYTES as usize] },
        frames: Vec::with_capacity(64),
        now: Micros(1_000_000),
        position: 0,
    };
    stack.fast.message(stack.now, ToFast::Install(Box::new(setup())), &mut stack.memory);
    let mut replies = Vec::new();
    for _ in 0..requests {
        stack.now = stack.now.after(20);
        ask(&mut peer, &stack)?;
        fast_path_turn(&mut stack);
        replies.clear();
        peer.receive(&mut replies, 8);
        if replies.len() != 1 {
            return Err(io::Error::other(format!("{} frames for one request", replies.len())));
        }
        peer.release(&replies);
    }
    Ok(requests)
}

/// The counted function: the turn in which a request arrives, the application answers at once, and the reply leaves.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn fast_path_turn(stack: &mut Stack) {
    let Stack { fast, port, memory, frames, now, position } = stack;
    frames.clear();
    port.receive(frames, 64);
    fast.receive(*now, PORT, &Received { port, frames }, memory);
    port.release(frames);
    let told = fast.events().count();
    *position = position.wrapping_add(REQUEST_BYTES as u32);
    let update = AppUpdate { tx_tail: *position, rx_head: *position, nodelay: true, ..AppUpdate::default() };
    let honest = fast.app_update(*now, FLOW, update).is_ok();
    let sent = fast.transmit(*now, 64, memory, &mut Out(port));
    port.flush();
    debug_assert!(told == 1 && honest && sent == 1);
}

const LOCAL: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 7000);
const REMOTE: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 40_000);
const SEND_START: u32 = 1000;
const RECEIVE_START: u32 = 5000;

fn setup() -> FlowSetup {
    FlowSetup {
        flow: FLOW,
        owner: Owner(0),
        tuple: FourTuple { local: LOCAL.0, local_port: LOCAL.1, remote: REMOTE.0, remote_port: REMOTE.1 },
        link: Link { port: PORT, source: [2, 0, 0, 0, 0, 1], destination: [2, 0, 0, 0, 0, 2], vlan: None },
        snd_start: Seq(SEND_START),
        rcv_start: Seq(RECEIVE_START),
        snd_wnd: 65_535,
        snd_wscale: 7,
        rcv_wscale: 2,
        window_scaling: true,
        mss: 1448,
        timestamps: true,
        sack: true,
        ts_recent: 1,
        ts_offset: 0,
        rcv_wnd: RING_BYTES,
        tx_bytes: RING_BYTES,
        rx_bytes: RING_BYTES,
        window: Window { cwnd: 14_480, ssthresh: u32::MAX, growth: 256, beta: 128, pacing: 0 },
        srtt_us: 20,
        nodelay: true,
        ecn: Ecn::Off,
        class: 0,
        tos: 0,
        ttl: 64,
    }
}

/// The peer's next request, which acknowledges the reply before.
fn ask(peer: &mut MemoryPort, stack: &Stack) -> io::Result<()> {
    let time = (stack.now.0 / 1000) as u32;
    let header = Header {
        vlan: None,
        source_mac: [2, 0, 0, 0, 0, 2],
        destination_mac: [2, 0, 0, 0, 0, 1],
        source: REMOTE.0,
        destination: LOCAL.0,
        source_port: REMOTE.1,
        destination_port: LOCAL.1,
        seq: RECEIVE_START.wrapping_add(stack.position),
        ack: SEND_START.wrapping_add(stack.position),
        flags: flags::ACK | flags::PSH,
        window: 512,
        ident: 0,
        tos: 0,
        ttl: towpath_wire::TTL,
        urgent: 0,
        options: Options { timestamps: Some(Timestamps { value: time, echo: time }), ..Options::default() },
    };
    let buffer = peer.reserve().ok_or_else(|| io::Error::other("no buffer"))?;
    let payload = emit(&header, REQUEST_BYTES, buffer).ok_or_else(|| io::Error::other("the frame does not fit"))?;
    let end = payload + REQUEST_BYTES;
    buffer[payload..end].fill(b'x');
    let offload = partial_checksum(&mut buffer[..end]);
    peer.commit(end, offload);
    peer.flush();
    Ok(())
}
