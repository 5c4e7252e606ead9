//! Tests of the whole fast path: one flow group, rings that are vectors, a peer made of hand-written segments.
#![allow(clippy::unwrap_used)]

mod ack;
mod at_once;
mod close;
mod core;
mod ecn;
mod fairness;
mod hostile;
mod idle;
mod load;
mod loss;
mod marks;
mod messages;
mod pacing;
mod panics;
mod planning;
pub(in crate::fast) mod prediction;
mod receive;
mod recovery;
mod rules;
mod sack;
mod send;
mod splice;
mod stream;
mod super_segments;
mod trimmed;
mod urgent;
mod values;

use super::*;
use crate::counters::Drop;
use crate::flow::{Ecn, FlowSetup, FourTuple, Link, Owner, Window, flow_flags};
use crate::messages::event;
use crate::table::bits;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use towpath_wire::emit::{Header, emit, fill_checksum};
use towpath_wire::offload::{RxChecksum, TxOffload};
use towpath_wire::segment::{Options, SackBlocks, Segment, Timestamps, checksum_ok, flags, parse};

pub const FLOW: FlowId = FlowId(3);
pub const MSS: u32 = 1000;
pub const RING: u32 = 1 << 16;
pub const ACK: u8 = flags::ACK;
pub const FIN: u8 = flags::FIN;
pub const RST: u8 = flags::RST;
pub const SYN: u8 = flags::SYN;
pub const PSH: u8 = flags::PSH;

/// Both rings of the flows.
#[derive(Default)]
pub struct VecRings {
    pub tx: HashMap<FlowId, Vec<u8>>,
    pub rx: HashMap<FlowId, Vec<u8>>,
}

impl Rings for VecRings {
    fn deliver(&mut self, flow: FlowId, position: u32, bytes: &[u8]) {
        let ring = self.rx.get_mut(&flow).unwrap();
        assert!(bytes.len() <= ring.len());
        for (i, byte) in bytes.iter().enumerate() {
            let at = position.wrapping_add(i as u32) as usize % ring.len();
            ring[at] = *byte;
        }
    }
    fn fetch(&self, flow: FlowId, position: u32, out: &mut [u8]) {
        let ring = &self.tx[&flow];
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = ring[position.wrapping_add(i as u32) as usize % ring.len()];
        }
    }
}

/// A port that keeps what is sent.
pub struct Captured {
    pub sent: Vec<(PortId, Vec<u8>)>,
    pub room: usize,
    pub full: Option<PortId>,
    pub unsummed: bool,
    /// Largest frame that it cuts, bytes.
    pub gso_max_bytes: u32,
    /// The payload size into which each frame is to be cut.
    pub cut: Vec<u16>,
    buffer: Vec<u8>,
}

impl TxPorts for Captured {
    fn reserve(&mut self, port: PortId) -> Option<&mut [u8]> {
        (self.room > 0 && self.full != Some(port)).then_some(&mut self.buffer[..])
    }
    fn commit(&mut self, port: PortId, len: usize, offload: TxOffload) {
        assert_eq!(offload.checksum_needed, self.unsummed && offload.checksum_start != 0);
        self.room -= 1;
        self.sent.push((port, self.buffer[..len].to_vec()));
        self.cut.push(offload.gso_bytes);
    }
    fn tx_checksum(&self, _: PortId) -> bool {
        self.unsummed
    }
    fn gso_max_bytes(&self, _: PortId) -> u32 {
        self.gso_max_bytes
    }
}

/// Received frames.
pub struct Frames(pub Vec<Vec<u8>>);

impl RxBatch for Frames {
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

/// A segment of the tests. Its sequence numbers are relative to the start of each direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seg {
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub wnd: u16,
    pub data: Vec<u8>,
    pub ts: Option<(u32, u32)>,
    /// Urgent pointer.
    pub urgent: u16,
    pub sack: Vec<(u32, u32)>,
}

pub fn seg(seq: u32, ack: u32, data: &[u8]) -> Seg {
    Seg { seq, ack, flags: ACK, wnd: 60000, data: data.to_vec(), ts: None, urgent: 0, sack: vec![] }
}

impl Seg {
    pub fn with(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }
    pub fn wnd(mut self, wnd: u16) -> Self {
        self.wnd = wnd;
        self
    }
    pub fn ts(mut self, value: u32, echo: u32) -> Self {
        self.ts = Some((value, echo));
        self
    }
    pub fn sack(mut self, blocks: &[(u32, u32)]) -> Self {
        self.sack = blocks.to_vec();
        self
    }
}

/// A fast path with one flow, its application and its peer.
pub struct Harness {
    pub fast: FastPath,
    pub rings: VecRings,
    pub tx: Captured,
    pub now: Micros,
    pub setup: FlowSetup,
    pub app: AppUpdate,
    pub events: u32,
    pub slow: Vec<ToSlow>,
}

pub fn tuple() -> FourTuple {
    FourTuple {
        local: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        local_port: 80,
        remote: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
        remote_port: 4000,
    }
}

pub fn setup() -> FlowSetup {
    FlowSetup {
        flow: FLOW,
        owner: Owner(1),
        tuple: tuple(),
        link: Link { port: PortId(1), source: [2; 6], destination: [4; 6], vlan: None },
        snd_start: Seq(u32::MAX - 700),
        rcv_start: Seq(u32::MAX - 1500),
        snd_wnd: 60000,
        snd_wscale: 0,
        rcv_wscale: 0,
        window_scaling: false,
        mss: MSS as u16,
        timestamps: false,
        sack: false,
        ts_recent: 0,
        ts_offset: 77,
        rcv_wnd: RING - 1,
        tx_bytes: RING,
        rx_bytes: RING,
        window: Window { cwnd: 10 * MSS, ssthresh: u32::MAX, growth: 256, beta: 512, pacing: 0 },
        srtt_us: 0,
        nodelay: true,
        ecn: Ecn::Off,
        class: 0,
        tos: 0,
        ttl: 64,
    }
}

/// Byte `i` of the stream in either direction.
pub fn byte(i: u32) -> u8 {
    (i % 251) as u8
}

pub fn bytes(from: u32, len: u32) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

/// The scoreboard of a flow that has one.
pub(super) fn scoreboard_of<'a>(turn: &'a mut FlowTurn<'_>) -> &'a mut scoreboard::Scoreboard {
    turn.state.scoreboards.by(STAGES.loss).get(turn.lines.recovery.scoreboard.get()).unwrap()
}

impl Harness {
    pub fn new() -> Self {
        Self::of(setup())
    }

    pub fn of(setup: FlowSetup) -> Self {
        Self::configured(setup, FastConfig { seed: 1, ..FastConfig::default() })
    }

    pub fn configured(setup: FlowSetup, config: FastConfig) -> Self {
        let table = Arc::new(FlowTable::new(16));
        let mut h = Self {
            fast: FastPath::new(0, config, table),
            rings: VecRings::default(),
            tx: Captured {
                sent: vec![],
                room: usize::MAX,
                full: None,
                unsummed: false,
                gso_max_bytes: 0,
                cut: vec![],
                buffer: vec![0; 1 << 16],
            },
            now: Micros(1_000_000),
            app: AppUpdate { nodelay: setup.nodelay, ..AppUpdate::default() },
            setup: setup.clone(),
            events: 0,
            slow: vec![],
        };
        h.rings.tx.insert(setup.flow, vec![0; setup.tx_bytes as usize]);
        h.rings.rx.insert(setup.flow, vec![0; setup.rx_bytes as usize]);
        h.message(ToFast::Install(Box::new(setup)));
        h
    }

    pub fn frame(&self, s: &Seg) -> Vec<u8> {
        let t = self.setup.tuple;
        let mut sack = SackBlocks::default();
        let seq = |n| self.setup.snd_start.add(n).0;
        s.sack.iter().for_each(|&(start, end)| sack.push(seq(start), seq(end)));
        let options =
            Options { sack, timestamps: s.ts.map(|(value, echo)| Timestamps { value, echo }), ..Options::default() };
        let header = Header {
            vlan: None,
            source_mac: [4; 6],
            destination_mac: [2; 6],
            source: t.remote,
            destination: t.local,
            source_port: t.remote_port,
            destination_port: t.local_port,
            seq: self.setup.rcv_start.add(s.seq).0,
            ack: self.setup.snd_start.add(s.ack).0,
            flags: s.flags,
            window: s.wnd,
            ident: 0,
            tos: 0,
            ttl: towpath_wire::TTL,
            urgent: s.urgent,
            options,
        };
        let mut frame = vec![0; 100 + s.data.len()];
        let start = emit(&header, s.data.len(), &mut frame).unwrap();
        frame.truncate(start + s.data.len());
        frame[start..].copy_from_slice(&s.data);
        fill_checksum(&mut frame);
        frame
    }

    /// One batch of segments from the peer, nothing sent yet.
    pub fn batch(&mut self, segments: &[Seg]) {
        let frames = Frames(segments.iter().map(|s| self.frame(s)).collect());
        self.fast.receive(self.now, PortId(1), &frames, &mut self.rings);
        self.collect();
    }

    /// One segment from the peer; returns what is sent at once in reply.
    pub fn rx(&mut self, s: Seg) -> Vec<Seg> {
        self.batch(&[s]);
        self.flush()
    }

    /// Sends what can go out now.
    pub fn flush(&mut self) -> Vec<Seg> {
        self.fast.transmit(self.now, 10_000, &self.rings, &mut self.tx);
        self.collect();
        self.taken()
    }

    pub fn taken(&mut self) -> Vec<Seg> {
        let sent = std::mem::take(&mut self.tx.sent);
        sent.iter().map(|(_, frame)| self.seen(frame)).collect()
    }

    /// A sent frame, with relative sequence numbers.
    pub fn seen(&self, frame: &[u8]) -> Seg {
        let s: Segment = parse(frame).expect("we send well-formed frames");
        let sum = if self.tx.unsummed { RxChecksum::MaybePartial } else { RxChecksum::Unknown };
        assert!(checksum_ok(frame, &s, sum));
        let t = self.setup.tuple;
        assert_eq!((s.source, s.source_port), (t.local, t.local_port));
        assert_eq!((s.destination, s.destination_port), (t.remote, t.remote_port));
        assert_eq!((s.source_mac, s.destination_mac), (self.setup.link.source, self.setup.link.destination));
        let from = s.payload_offset as usize;
        let seq = |n| Seq(n).bytes_since(self.setup.rcv_start);
        Seg {
            seq: Seq(s.seq).bytes_since(self.setup.snd_start),
            ack: Seq(s.ack).bytes_since(self.setup.rcv_start),
            flags: s.flags,
            wnd: s.window,
            data: frame[from..from + s.payload_len as usize].to_vec(),
            ts: s.options.timestamps.map(|ts| (ts.value, ts.echo)),
            urgent: s.urgent,
            sack: s.options.sack.as_slice().iter().map(|&(start, end)| (seq(start), seq(end))).collect(),
        }
    }

    pub fn collect(&mut self) {
        let mut once = std::collections::HashSet::new();
        for e in self.fast.events() {
            assert!(once.insert(e.flow), "one event per flow and batch");
            if e.flow == self.setup.flow {
                self.events |= e.what;
            }
        }
        while let Some(message) = self.fast.pop_to_slow() {
            self.slow.push(message);
        }
    }

    pub fn message(&mut self, message: ToFast) {
        self.fast.message(self.now, message, &mut self.rings);
        self.collect();
    }

    /// Hands the application's words in `self.app` over.
    pub fn update(&mut self) -> Result<(), ContractViolation> {
        let result = self.fast.app_update(self.now, self.setup.flow, self.app);
        self.collect();
        result
    }

    /// The same, and the reply may go at once.
    pub fn update_at_once(&mut self) -> Result<(), ContractViolation> {
        let (now, flow, words) = (self.now, self.setup.flow, self.app);
        let result = self.fast.app_update_at_once(now, flow, words, &self.rings, &mut self.tx);
        self.collect();
        result
    }

    /// The application writes `len` more bytes of the stream; returns what goes out.
    pub fn write(&mut self, len: u32) -> Vec<Seg> {
        self.fill(len);
        self.update().unwrap();
        self.flush()
    }

    /// The same; returns what goes out at once.
    pub fn reply(&mut self, len: u32) -> Vec<Seg> {
        self.fill(len);
        self.update_at_once().unwrap();
        self.taken()
    }

    /// Bytes of the stream stand in the ring, and the fast path is not told yet.
    fn fill(&mut self, len: u32) {
        let ring = self.rings.tx.get_mut(&self.setup.flow).unwrap();
        for i in self.app.tx_tail..self.app.tx_tail + len {
            let at = i as usize % ring.len();
            ring[at] = byte(i);
        }
        self.app.tx_tail += len;
    }

    /// The application reads everything; asserts that it is the stream.
    pub fn read(&mut self) -> u32 {
        let tail = self.view().rx_tail;
        let ring = &self.rings.rx[&self.setup.flow];
        for i in self.app.rx_head..tail {
            assert_eq!(ring[i as usize % ring.len()], byte(i), "byte {i}");
        }
        let read = tail - self.app.rx_head;
        self.app.rx_head = tail;
        self.update().unwrap();
        read
    }

    pub fn view(&self) -> AppView {
        self.fast.view(self.setup.flow)
    }

    /// A turn of the flow, for a test that calls a stage's functions itself.
    pub(super) fn turn(&mut self) -> FlowTurn<'_> {
        FlowTurn::of(&self.fast.table, &mut self.fast.state, self.now, self.setup.flow).unwrap()
    }

    pub fn snapshot(&self) -> crate::flow::FlowSnapshot {
        self.fast.table.snapshot(self.setup.flow)
    }

    pub fn dropped(&self, reason: Drop) -> u64 {
        self.fast.counters().drops[reason as usize]
    }

    /// All drops, to show that nothing else was counted.
    pub fn drops(&self) -> u64 {
        self.fast.counters().drops.iter().sum()
    }

    /// Takes the events raised since the last call.
    pub fn take_events(&mut self) -> u32 {
        std::mem::take(&mut self.events)
    }

    pub fn slow_names(&mut self) -> Vec<String> {
        let name = |m: ToSlow| format!("{m:?}").split(['(', ' ']).next().unwrap().to_string();
        self.slow.drain(..).map(name).collect()
    }

    pub fn wait(&mut self, us: u64) -> Vec<Seg> {
        self.now = self.now.after(us);
        self.flush()
    }
}
