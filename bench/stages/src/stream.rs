//! One connection whose peer sends without end: frames made of a template, and the application's memory.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use towpath_tcp::buffers::{Rings, RxBatch, TxPorts};
use towpath_tcp::fast::{FastConfig, FastPath, FlowTable};
use towpath_tcp::flow::{Ecn, FlowId, FlowSetup, FlowSnapshot, FourTuple, Link, Owner, PortId, Window};
use towpath_tcp::messages::{AppUpdate, ToFast};
use towpath_tcp::seq::Seq;
use towpath_tcp::time::Micros;
use towpath_wire::emit::{Header, emit};
use towpath_wire::offload::{RxChecksum, TxOffload};
use towpath_wire::segment::{Options, Timestamps, flags};

/// Room for the largest frame.
pub const FRAME_BYTES: usize = 1600;
pub const PORT: PortId = PortId(0);
/// The receive ring: more than the pipeline has under way.
const RING_BYTES: usize = 1 << 20;

/// A frame that is owned.
pub struct Frame {
    bytes: Box<[u8; FRAME_BYTES]>,
    len: usize,
}

impl Default for Frame {
    fn default() -> Self {
        Self { bytes: Box::new([0; FRAME_BYTES]), len: 0 }
    }
}

impl AsRef<[u8]> for Frame {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl AsMut<[u8]> for Frame {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..]
    }
}

/// The receive ring. Only the thread that copies has it; nobody looks at the bytes.
pub struct Memory(Vec<u8>);

impl Default for Memory {
    fn default() -> Self {
        Self(vec![0; RING_BYTES])
    }
}

impl Rings for Memory {
    #[inline]
    fn deliver(&mut self, _: FlowId, position: u32, bytes: &[u8]) {
        let start = position as usize % RING_BYTES;
        let (first, rest) = bytes.split_at(bytes.len().min(RING_BYTES - start));
        self.0[start..start + first.len()].copy_from_slice(first);
        self.0[..rest.len()].copy_from_slice(rest);
    }
    /// Nothing is sent but acknowledgements.
    fn fetch(&self, _: FlowId, _: u32, out: &mut [u8]) {
        out.fill(b'y');
    }
}

/// The peer, and what both ends know.
pub struct Stream {
    setup: FlowSetup,
    pub memory: Memory,
    template: Frame,
    payload: usize,
    /// Bytes that the peer has sent.
    sent: u32,
    /// The port of run-to-completion.
    out: Answers,
}

/// Where the numbers of a frame without VLAN stand.
const SEQ: usize = 14 + 20 + 4;
/// Of its timestamp option: after two NOPs, kind and length.
const STAMP: usize = 14 + 20 + 20 + 4;

impl Stream {
    pub fn new(payload: usize) -> Self {
        let setup = setup();
        let memory = Memory::default();
        let mut template = Frame::default();
        template.len = first_frame(&setup, payload, &mut template.bytes[..]).unwrap_or(0);
        let out = Answers { frame: Frame::default(), count: 0 };
        Self { setup, memory, template, payload, sent: 0, out }
    }

    pub fn flow(&self) -> FlowId {
        self.setup.flow
    }

    /// A fast path with the connection.
    pub fn fast_path(&self) -> FastPath {
        let config = FastConfig { seed: 1, ..FastConfig::default() };
        let mut fast = FastPath::new(0, config, Arc::new(FlowTable::new(64)));
        let install = ToFast::Install(Box::new(self.setup.clone()));
        fast.message(Micros(1_000_000), install, &mut Memory::default());
        fast
    }

    /// The peer's next frame, in this one's memory.
    #[inline]
    pub fn next(&mut self, mut frame: Frame, now: Micros) -> Frame {
        let Self { template, setup, sent, payload, .. } = self;
        if frame.len == 0 {
            frame.bytes.copy_from_slice(&template.bytes[..]);
            frame.len = template.len;
        }
        frame.bytes[SEQ..SEQ + 4].copy_from_slice(&setup.rcv_start.add(*sent).0.to_be_bytes());
        frame.bytes[STAMP..STAMP + 4].copy_from_slice(&now.ms().to_be_bytes());
        *sent = sent.wrapping_add(*payload as u32);
        frame
    }

    /// Bytes that the application has not been told of.
    pub fn out(&self, told: u32) -> u32 {
        self.sent.wrapping_sub(told)
    }

    pub fn window(&self) -> u32 {
        self.setup.rx_bytes
    }

    /// Bytes that have been received in order.
    pub fn taken(&self, now: &FlowSnapshot) -> u32 {
        now.rcv_nxt.bytes_since(self.setup.rcv_start)
    }

    /// Run-to-completion's turn with a batch. The application reads all of it.
    #[inline]
    pub fn whole_turn(&mut self, fast: &mut FastPath, batch: &[Frame], now: Micros) {
        fast.receive(now, PORT, &Batch(batch), &mut self.memory);
        while let Some(news) = fast.next_event() {
            let update = AppUpdate { rx_head: news.rx_tail, ..AppUpdate::default() };
            let honest = fast.app_update(now, news.event.flow, update).is_ok();
            debug_assert!(honest);
        }
        fast.transmit(now, batch.len(), &self.memory, &mut self.out);
        while fast.pop_to_slow().is_some() {}
    }
}

struct Batch<'a>(&'a [Frame]);

impl RxBatch for Batch<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }
    #[inline]
    fn bytes(&self, i: usize) -> &[u8] {
        self.0[i].as_ref()
    }
    #[inline]
    fn checksum(&self, _: usize) -> RxChecksum {
        RxChecksum::Valid
    }
}

struct Answers {
    frame: Frame,
    count: u64,
}

impl TxPorts for Answers {
    #[inline]
    fn reserve(&mut self, _: PortId) -> Option<&mut [u8]> {
        Some(self.frame.as_mut())
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

/// The connection.
fn setup() -> FlowSetup {
    let address = |n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n));
    FlowSetup {
        flow: FlowId(0),
        owner: Owner(0),
        tuple: FourTuple { local: address(1), local_port: 7000, remote: address(2), remote_port: 40_000 },
        link: Link { port: PORT, source: [2, 0, 0, 0, 0, 1], destination: [2, 0, 0, 0, 0, 2], vlan: None },
        snd_start: Seq(1000),
        rcv_start: Seq(5000),
        snd_wnd: 65_535,
        snd_wscale: 7,
        rcv_wscale: 7,
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

/// The template; returns its length.
fn first_frame(setup: &FlowSetup, payload: usize, frame: &mut [u8]) -> io::Result<usize> {
    let header = Header {
        vlan: None,
        source_mac: setup.link.destination,
        destination_mac: setup.link.source,
        source: setup.tuple.remote,
        destination: setup.tuple.local,
        source_port: setup.tuple.remote_port,
        destination_port: setup.tuple.local_port,
        seq: setup.rcv_start.0,
        ack: setup.snd_start.0,
        flags: flags::ACK | flags::PSH,
        window: 512,
        ident: 0,
        tos: 0,
        ttl: towpath_wire::TTL,
        urgent: 0,
        options: Options { timestamps: Some(Timestamps { value: 1, echo: 0 }), ..Options::default() },
    };
    let from = emit(&header, payload, frame).ok_or_else(|| io::Error::other("the frame does not fit"))?;
    frame[from..from + payload].fill(b'x');
    Ok(from + payload)
}
