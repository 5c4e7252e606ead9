//! The fast path allocates nothing per packet. A counting allocator watches every call of the data path, after a
//! warm-up in which queues reach their final size.
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use towpath_tcp::buffers::{Rings, RxBatch, TxPorts};
use towpath_tcp::fast::pipeline::{Abilities, Output, Parts, Shape};
use towpath_tcp::fast::{FastConfig, FastPath, FlowTable};
use towpath_tcp::flow::{Ecn, FlowId, FlowSetup, FourTuple, Link, Owner, PortId, Window};
use towpath_tcp::messages::{AppUpdate, ToFast};
use towpath_tcp::seq::Seq;
use towpath_tcp::time::Micros;
use towpath_wire::emit::{Header, emit, fill_checksum};
use towpath_wire::offload::{RxChecksum, TxOffload};
use towpath_wire::segment::{Options, Timestamps, flags, parse};

thread_local! {
    /// Allocations of this thread.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the count is a plain word of the thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's contract is ours.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract: the block is one of `System`'s, with this layout.
        unsafe { System.dealloc(block, layout) }
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's contract: the block is one of `System`'s, with this layout, and the size is valid.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs `what`, adds its allocations to `count`.
fn watched<R>(count: &mut u64, what: impl FnOnce() -> R) -> R {
    let before = ALLOCATIONS.get();
    let result = what();
    *count += ALLOCATIONS.get() - before;
    result
}

const FLOWS: u32 = 32;
const PORT: PortId = PortId(0);
const LOCAL: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 80);
const REMOTE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const RING: u32 = 1 << 16;
const SIZE: u32 = 500;
const PACING: u64 = 100_000_000;
const SND_START: Seq = Seq(u32::MAX - 20_000);
const RCV_START: Seq = Seq(u32::MAX - 10_000);

/// Rings whose contents do not matter here.
struct Sink;

impl Rings for Sink {
    fn deliver(&mut self, _: FlowId, _: u32, _: &[u8]) {}
    fn fetch(&self, _: FlowId, _: u32, out: &mut [u8]) {
        out.fill(b'y');
    }
}

struct Frames<'a>(&'a [Vec<u8>]);

impl RxBatch for Frames<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn bytes(&self, i: usize) -> &[u8] {
        &self.0[i]
    }
    fn checksum(&self, _: usize) -> RxChecksum {
        RxChecksum::Unknown
    }
}

/// Records for each flow how far the sent segments go. Keeps nothing else, so that it allocates nothing itself.
struct Out {
    buffer: Vec<u8>,
    end: Vec<u32>,
    segments: u64,
}

impl TxPorts for Out {
    fn reserve(&mut self, _: PortId) -> Option<&mut [u8]> {
        Some(&mut self.buffer)
    }
    fn commit(&mut self, _: PortId, len: usize, _: TxOffload) {
        let (end, segments) = (&mut self.end, &mut self.segments);
        sent(&self.buffer[..len], end, segments);
    }
    fn tx_checksum(&self, _: PortId) -> bool {
        false
    }
}

fn sent(frame: &[u8], ends: &mut [u32], segments: &mut u64) {
    let segment = parse(frame).unwrap();
    let flow = usize::from(segment.destination_port - 4000);
    let end = Seq(segment.seq).bytes_since(SND_START) + segment.payload_len;
    ends[flow] = ends[flow].max(end);
    *segments += 1;
}

fn setup(flow: u32) -> FlowSetup {
    FlowSetup {
        flow: FlowId(flow),
        owner: Owner(flow.into()),
        tuple: FourTuple { local: LOCAL.0, local_port: LOCAL.1, remote: REMOTE, remote_port: 4000 + flow as u16 },
        link: Link { port: PORT, source: [2; 6], destination: [4; 6], vlan: None },
        snd_start: SND_START,
        rcv_start: RCV_START,
        snd_wnd: 60_000,
        snd_wscale: 0,
        rcv_wscale: 0,
        window_scaling: false,
        mss: 1000,
        timestamps: true,
        sack: true,
        ts_recent: 0,
        ts_offset: 0,
        rcv_wnd: RING - 1,
        tx_bytes: RING,
        rx_bytes: RING,
        // Every other flow is paced, at a rate that makes it wait in every round but lets it send what the round
        // brings.
        window: Window {
            cwnd: 10_000,
            ssthresh: u32::MAX,
            growth: 256,
            beta: 512,
            pacing: PACING * u64::from(flow % 2),
        },
        srtt_us: 0,
        nodelay: true,
        ecn: Ecn::Off,
        class: 0,
        tos: 0,
        ttl: 64,
    }
}

fn frame(flow: u32, position: u32, ack: u32, len: u32, now: Micros) -> Vec<u8> {
    let time = (now.0 / 1000) as u32;
    let header = Header {
        vlan: None,
        source_mac: [4; 6],
        destination_mac: [2; 6],
        source: REMOTE,
        destination: LOCAL.0,
        source_port: 4000 + flow as u16,
        destination_port: LOCAL.1,
        seq: RCV_START.add(position).0,
        ack: SND_START.add(ack).0,
        flags: flags::ACK,
        window: 60_000,
        ident: 0,
        tos: 0,
        ttl: towpath_wire::TTL,
        urgent: 0,
        options: Options { timestamps: Some(Timestamps { value: time, echo: time }), ..Options::default() },
    };
    let mut frame = vec![0; 100 + len as usize];
    let start = emit(&header, len as usize, &mut frame).unwrap();
    frame.truncate(start + len as usize);
    frame[start..].fill(b'x');
    fill_checksum(&mut frame);
    frame
}

/// A fast path with all its flows.
fn fast_path() -> FastPath {
    let config = FastConfig { seed: 1, ..FastConfig::default() };
    let mut fast = FastPath::new(0, config, Arc::new(FlowTable::new(64)));
    for flow in 0..FLOWS {
        fast.message(Micros(1_000_000), ToFast::Install(Box::new(setup(flow))), &mut Sink);
    }
    fast
}

/// What comes in a round: of each flow two segments ahead of a hole, the one that fills it, one of them again, and a damaged one.
fn batch(received: u32, ends: &[u32], now: Micros) -> Vec<Vec<u8>> {
    let mut batch = Vec::new();
    for flow in 0..FLOWS {
        for step in [1, 2, 0, 1] {
            batch.push(frame(flow, received + step * SIZE, ends[flow as usize], SIZE, now));
        }
        let mut damaged = batch[batch.len() - 1].clone();
        damaged[60] ^= 1;
        batch.push(damaged);
    }
    batch
}

/// A fast path. Each flow receives three segments and sends two in every round.
struct World {
    fast: FastPath,
    out: Out,
    now: Micros,
    received: u32,
    sent: u32,
}

impl World {
    fn new() -> Self {
        let out = Out { buffer: vec![0; 2000], end: vec![0; FLOWS as usize], segments: 0 };
        Self { fast: fast_path(), out, now: Micros(1_000_000), received: 0, sent: 0 }
    }

    /// Returns the allocations of the fast path.
    fn round(&mut self) -> u64 {
        let mut allocations = 0;
        self.now = self.now.after(50);
        let batch = batch(self.received, &self.out.end, self.now);
        let Self { fast, out, now, .. } = self;
        for frames in batch.chunks(64) {
            watched(&mut allocations, || {
                fast.receive(*now, PORT, &Frames(frames), &mut Sink);
                fast.events().for_each(drop);
            });
        }
        self.received += 3 * SIZE;
        self.sent += 1300;
        let update = AppUpdate { tx_tail: self.sent, rx_head: self.received, nodelay: true, ..AppUpdate::default() };
        watched(&mut allocations, || {
            for flow in 0..FLOWS {
                fast.app_update(*now, FlowId(flow), update).unwrap();
            }
            while fast.has_work() && fast.transmit(*now, 64, &Sink, out) > 0 {}
            let (mut due, end) = (fast.next_deadline(), now.after(40));
            while let Some(at) = due.filter(|at| *at < end) {
                while fast.transmit(at, 64, &Sink, out) > 0 {}
                due = fast.next_deadline();
            }
            fast.events().for_each(drop);
            while fast.pop_to_slow().is_some() {}
            fast.next_deadline();
        });
        allocations
    }
}

#[test]
fn no_allocation_per_packet() {
    let mut world = World::new();
    for _ in 0..50 {
        world.round();
    }
    let (segments, sent) = (world.out.segments, world.sent);
    let mut allocations = 0;
    for _ in 0..500 {
        allocations += world.round();
    }
    assert_eq!(allocations, 0);
    // The rounds have exercised what they are meant to.
    for flow in 0..FLOWS {
        assert_eq!(world.fast.view(FlowId(flow)).rx_tail, world.received, "all was received");
        assert_eq!(world.out.end[flow as usize], world.sent, "all was sent");
    }
    assert_eq!(world.sent - sent, 500 * 1300);
    assert!(world.out.segments - segments >= u64::from(FLOWS) * 500 * 2);
    let counters = world.fast.counters();
    assert!(counters.drops.iter().sum::<u64>() >= u64::from(FLOWS) * 550, "the damaged ones were counted");
}

/// The pipeline's stages, one after the other. Returns their allocations in a round.
fn pipelined_round(parts: &mut Parts<Vec<u8>>, (ends, segments): (&mut [u32], &mut u64), round: u32) -> u64 {
    let now = Micros(1_000_000 + u64::from(round) * 50);
    let (mut allocations, received) = (0, (round - 1) * 3 * SIZE);
    let mut frames = batch(received, ends, now);
    while !frames.is_empty() {
        let some: Vec<_> = frames.drain(..frames.len().min(64)).map(|frame| (frame, RxChecksum::Unknown)).collect();
        watched(&mut allocations, || {
            assert!(parts.sequencer.receive(PORT, some.into_iter()).is_ok());
            while parts.pre.iter_mut().any(|stage| stage.step()) {}
            while parts.group.receive(now) {}
            while parts.deliver.iter_mut().any(|stage| stage.step(&mut Sink)) {}
            assert!(parts.commit.next_output().is_none() && parts.group.is_quiet());
            while parts.sequencer.spent().is_some() {}
        });
    }
    let update =
        AppUpdate { tx_tail: round * 1300, rx_head: received + 3 * SIZE, nodelay: true, ..AppUpdate::default() };
    watched(&mut allocations, || {
        for flow in 0..FLOWS {
            parts.group.app_update(now, FlowId(flow), update).unwrap();
        }
        for at in [now, Micros(now.0 + 20), Micros(now.0 + 40)] {
            while parts.group.transmit(at, 64) > 0 || !parts.group.publish() || !parts.group.report() {
                while parts.build.iter_mut().any(|stage| stage.step(&Sink)) {}
                while let Some(output) = parts.commit.next_output() {
                    if let Output::Frame { frame, len, .. } = output {
                        sent(&frame[..len], ends, segments);
                        parts.commit.give_back(frame);
                    }
                }
            }
        }
    });
    allocations
}

#[test]
fn no_allocation_per_packet_in_the_pipeline() {
    let shape = Shape { pre: 2, deliver: 2, build: 2, run: 4, frames: 256, events: 16 };
    let frames = vec![vec![0; 2000]; 256];
    let mut parts = Parts::new(fast_path(), shape, Abilities::default(), frames).unwrap();
    let (mut ends, mut segments, mut allocations) = (vec![0; FLOWS as usize], 0, 0);
    for round in 1..=300 {
        let some = pipelined_round(&mut parts, (&mut ends, &mut segments), round);
        allocations += if round > 50 { some } else { 0 };
    }
    assert_eq!(allocations, 0);
    assert!(segments >= u64::from(FLOWS) * 300 * 2);
    for flow in 0..FLOWS {
        let now = parts.group.measures(FlowId(flow));
        assert_eq!(now.rcv_nxt.bytes_since(RCV_START), 300 * 3 * SIZE, "all was received");
        assert_eq!(ends[flow as usize], 300 * 1300, "all was sent");
    }
}

#[test]
fn the_allocator_does_count() {
    let mut count = 0;
    watched(&mut count, || std::hint::black_box(Vec::<u8>::with_capacity(100)));
    assert_eq!(count, 1);
}
