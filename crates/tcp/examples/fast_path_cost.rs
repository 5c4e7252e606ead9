//! The cost of one request and its answer on the fast path, without ports and rings: nanoseconds per turn.
//!
//! `cargo run --release -p towpath-tcp --example fast_path_cost -- [flows]`

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;
use towpath_tcp::buffers::{Rings, RxBatch, TxPorts};
use towpath_tcp::fast::{FastConfig, FastPath, FlowTable};
use towpath_tcp::flow::{Ecn, FlowId, FlowSetup, FourTuple, Link, Owner, PortId, Window};
use towpath_tcp::messages::{AppUpdate, ToFast};
use towpath_tcp::seq::Seq;
use towpath_tcp::time::Micros;
use towpath_wire::emit::{Header, emit};
use towpath_wire::offload::{RxChecksum, TxOffload};
use towpath_wire::segment::{Options, Timestamps, flags};

const BATCH: u32 = 32;
const BYTES: u32 = 64;

/// One small ring for all flows: its cost is the application's.
struct Scratch([u8; 64]);

impl Rings for Scratch {
    fn deliver(&mut self, _: FlowId, _: u32, bytes: &[u8]) {
        self.0[..bytes.len()].copy_from_slice(bytes);
    }
    fn fetch(&self, _: FlowId, _: u32, out: &mut [u8]) {
        let len = out.len();
        out.copy_from_slice(&self.0[..len]);
    }
}

/// Frames whose checksums the port has verified.
struct Frames(Vec<Vec<u8>>);

impl RxBatch for Frames {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn bytes(&self, i: usize) -> &[u8] {
        &self.0[i]
    }
    fn checksum(&self, _: usize) -> RxChecksum {
        RxChecksum::Valid
    }
}

/// A port that drops frames.
struct Sink {
    buffer: [u8; 2048],
    frames: u64,
}

impl TxPorts for Sink {
    fn reserve(&mut self, _: PortId) -> Option<&mut [u8]> {
        Some(&mut self.buffer)
    }
    fn commit(&mut self, _: PortId, _: usize, _: TxOffload) {
        self.frames += 1;
    }
    fn tx_checksum(&self, _: PortId) -> bool {
        true
    }
}

fn setup(n: u32) -> FlowSetup {
    FlowSetup {
        flow: FlowId(n),
        owner: Owner(0),
        tuple: FourTuple {
            local: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
            local_port: 80,
            remote: IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0002 + n / 50_000)),
            remote_port: (n % 50_000) as u16 + 1024,
        },
        link: Link { port: PortId(0), source: [2; 6], destination: [4; 6], vlan: None },
        snd_start: Seq(n),
        rcv_start: Seq(n * 7),
        snd_wnd: 1 << 20,
        snd_wscale: 7,
        rcv_wscale: 7,
        window_scaling: true,
        mss: 1448,
        timestamps: true,
        sack: true,
        ts_recent: 0,
        ts_offset: 0,
        rcv_wnd: 65_536,
        tx_bytes: 65_536,
        rx_bytes: 65_536,
        window: Window { cwnd: 14_480, ssthresh: u32::MAX, growth: 256, beta: 512, pacing: 0 },
        srtt_us: 0,
        nodelay: true,
        ecn: Ecn::Off,
        class: 0,
        tos: 0,
        ttl: 64,
    }
}

fn request(setup: &FlowSetup, position: u32) -> Vec<u8> {
    let (t, l) = (setup.tuple, setup.link);
    let header = Header {
        source_mac: l.destination,
        destination_mac: l.source,
        vlan: None,
        source: t.remote,
        destination: t.local,
        source_port: t.remote_port,
        destination_port: t.local_port,
        seq: setup.rcv_start.add(position).0,
        ack: setup.snd_start.add(position).0,
        flags: flags::ACK | flags::PSH,
        window: 8192,
        ident: 0,
        tos: 0,
        ttl: towpath_wire::TTL,
        urgent: 0,
        options: Options { timestamps: Some(Timestamps { value: 1, echo: 1 }), ..Options::default() },
    };
    let mut frame = vec![0; 200];
    let start = emit(&header, BYTES as usize, &mut frame).unwrap_or(0);
    frame.truncate(start + BYTES as usize);
    frame
}

fn main() {
    let flows: u32 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(64);
    let table = Arc::new(FlowTable::new(flows));
    let mut fast = FastPath::new(0, FastConfig::default(), table);
    let (mut rings, mut sink) = (Scratch([0; 64]), Sink { buffer: [0; 2048], frames: 0 });
    let setups: Vec<_> = (0..flows).map(setup).collect();
    for s in &setups {
        fast.message(Micros(0), ToFast::Install(Box::new(s.clone())), &mut rings);
    }
    let (mut spent, mut turns, mut now) = ([0u128; 3], 0u64, 1_000_000);
    let rounds = (4_000_000 / flows).max(3);
    for round in 0..rounds {
        for first in (0..flows).step_by(BATCH as usize) {
            let batch = first..(first + BATCH).min(flows);
            let frames = Frames(batch.clone().map(|n| request(&setups[n as usize], round * BYTES)).collect());
            now += 10;
            let start = Instant::now();
            fast.receive(Micros(now), PortId(0), &frames, &mut rings);
            fast.events().for_each(drop);
            let received = Instant::now();
            for n in batch.clone() {
                let at = (round + 1) * BYTES;
                let update = AppUpdate { tx_tail: at, rx_head: at, nodelay: true, ..AppUpdate::default() };
                assert!(fast.app_update_at_once(Micros(now), FlowId(n), update, &rings, &mut sink).is_ok());
            }
            let updated = Instant::now();
            fast.transmit(Micros(now), 10_000, &rings, &mut sink);
            let sent = Instant::now();
            while fast.pop_to_slow().is_some() {}
            turns += u64::from(batch.end - batch.start);
            let steps = [received - start, updated - received, sent - updated];
            spent.iter_mut().zip(steps).for_each(|(sum, step)| *sum += step.as_nanos());
        }
    }
    assert_eq!(sink.frames, turns, "one answer per request, no empty acknowledgements");
    let [receive, update, transmit] = spent.map(|ns| ns as f64 / turns as f64);
    println!(
        "{flows} flows, {turns} turns: receive {receive:.1} ns, app_update {update:.1} ns, transmit {transmit:.1} ns"
    );
}
