//! Super-segments lose and repair what segments lose and repair, and make no bursts.

mod common;
use common::*;
use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use towpath_ports::{Capabilities, Port, PortCounters, RxFrame, TxOffload};
use towpath_rng::Rng;
use towpath_sim::cut::cut;
use towpath_sim::{
    Endpoint, Faults, Link, LinkConfig, LinkPort, Node, NodeConfig, TimedPort, TransferEnd, TransferPlan, Transfers,
    World,
};
use towpath_tcp::time::Micros;
use towpath_wire::segment;

const BYTES: u64 = 3_000_000;
/// Payload of a full segment with timestamps.
const MSS: u32 = 1448;

fn wire(gso: bool) -> LinkConfig {
    LinkConfig {
        bits_per_s: 1_000_000_000,
        delay_us: 500,
        queue_bytes: 1 << 20,
        checksum_offload: true,
        gso_max_bytes: if gso { GSO_MAX_BYTES } else { 0 },
        ..LinkConfig::default()
    }
}

/// A port that loses the first transmission of certain segments of the stream.
struct Losing {
    inner: LinkPort,
    out: Vec<u8>,
    /// Sequence number of the first byte.
    start: Option<u32>,
    /// Numbers of the segments that are still to be lost.
    lost: HashSet<u32>,
}

impl Losing {
    fn new(inner: LinkPort, lost: HashSet<u32>) -> Self {
        Self { inner, out: vec![0; GSO_MAX_BYTES as usize], start: None, lost }
    }

    fn loses(&mut self, frame: &[u8]) -> bool {
        let Ok(s) = segment::parse(frame) else { return false };
        if s.payload_len == 0 {
            return false;
        }
        let start = *self.start.get_or_insert(s.seq);
        self.lost.remove(&(s.seq.wrapping_sub(start) / MSS))
    }
}

impl Port for Losing {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        self.inner.receive(frames, max);
    }
    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        self.inner.bytes(frame)
    }
    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        self.inner.bytes_mut(frame)
    }
    fn release(&mut self, frames: &[RxFrame]) {
        self.inner.release(frames);
    }
    fn reserve(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.out)
    }
    fn commit(&mut self, len: usize, offload: TxOffload) {
        for frame in cut(&self.out[..len], offload) {
            if !self.loses(&frame) {
                self.inner.send(frame);
            }
        }
    }
    fn flush(&mut self) {}
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn pending(&mut self) -> bool {
        self.inner.pending()
    }
    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

impl TimedPort for Losing {
    fn advance(&mut self, now: Micros) {
        self.inner.advance(now);
    }
    fn next_deadline(&self) -> Option<Micros> {
        self.inner.next_deadline()
    }
}

/// Retransmissions and time-outs of a transfer that loses these segments once. All bytes have arrived.
fn lossy(gso: bool, lost: &HashSet<u32>) -> (u64, u64) {
    let (_, left, right) = Link::new(wire(gso));
    let [a, b] = [1, 2].map(|n| NodeConfig { rings: (512 << 10, 512 << 10), ..NodeConfig::numbered(n, u64::from(n)) });
    let (a_at, b_at) = ((a.address, a.mac), (b.address, b.mac));
    let (mut sender, mut receiver) =
        (Node::new(a, Box::new(Losing::new(left, lost.clone()))), Node::new(b, Box::new(right)));
    sender.add_route(b_at.0, b_at.1, 1500);
    receiver.add_route(a_at.0, a_at.1, 1500);
    let mut world = World { nodes: vec![sender, receiver], ..World::default() };
    let listener = world.nodes[1].listen(80, 1).expect("listens");
    let client = world.nodes[0].connect(b_at.0, 80).expect("connects");
    let plan = |bytes| TransferPlan { seed: 3, bytes, chunk: 64 << 10, pause_ppm: 0, pause_us: 1 };
    let mut transfers = Transfers(vec![
        TransferEnd::new(Endpoint::Node(0, client), plan(BYTES)),
        TransferEnd::new(Endpoint::Accept(1, listener), plan(0)),
    ]);
    run_to_the_end(&mut world, &mut transfers).expect("all bytes arrive");
    let counters = world.nodes[0].counters()[0];
    (counters.retransmits, counters.timeouts)
}

#[test]
fn each_loss_is_repaired_by_one_segment() {
    let mut rng = Rng::new(7);
    for _ in 0..20 {
        let lost: HashSet<u32> = (0..rng.between(1, 40)).map(|_| rng.below(BYTES / u64::from(MSS)) as u32).collect();
        let (plain, large) = (lossy(false, &lost), lossy(true, &lost));
        // A tail probe or two are for nothing.
        let most = lost.len() as u64 + 3;
        assert!(plain.0 <= most && large.0 <= most, "{} lost: {plain:?}, with super-segments {large:?}", lost.len());
        assert_eq!((plain.1, large.1), (0, 0), "time-outs, {} lost", lost.len());
    }
}

/// Most frames sent at one instant, frames, and the seconds of a transfer over this wire.
fn bulk(link: LinkConfig) -> (u64, u64, f64) {
    let nodes = [1, 2].map(|n| NodeConfig { rings: (1 << 20, 1 << 20), ..NodeConfig::numbered(n, u64::from(n)) });
    let path = Path { link, there: Faults::default(), back: Faults::default() };
    let (mut world, wire) = two_nodes(nodes, path, 5);
    let listener = world.nodes[1].listen(80, 1).expect("listens");
    let address = world.nodes[1].address();
    let client = world.nodes[0].connect(address, 80).expect("connects");
    let plan = |bytes| TransferPlan { seed: 3, bytes, chunk: 64 << 10, pause_ppm: 0, pause_us: 1 };
    let mut transfers = Transfers(vec![
        TransferEnd::new(Endpoint::Node(0, client), plan(20 * BYTES)),
        TransferEnd::new(Endpoint::Accept(1, listener), plan(0)),
    ]);
    while transfers.0[1].got.len < 20 * BYTES {
        let until = world.now.after(1000);
        world.run(until, &mut transfers);
    }
    let took = world.now.0 as f64 / 1e6;
    run_to_the_end(&mut world, &mut transfers).expect("ends well");
    (wire.queue(0).longest_burst, wire.queue(0).frames, took)
}

#[test]
fn bulk_is_as_fast_and_no_more_bursty_than_a_millisecond() {
    // 100 Mbit/s, 20 ms: a millisecond is worth 9 segments.
    let far = |gso| LinkConfig { bits_per_s: 100_000_000, delay_us: 10_000, ..wire(gso) };
    let (plain, large) = (bulk(far(false)), bulk(far(true)));
    assert!(large.0 <= plain.0 + 20, "bursts: {plain:?}, with super-segments {large:?}");
    assert!(large.2 <= plain.2 * 1.02 && large.1 <= plain.1 * 102 / 100, "{plain:?}, with super-segments {large:?}");
}
