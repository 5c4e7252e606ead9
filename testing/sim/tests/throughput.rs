//! The speed of the protocol in virtual time: transfers fill the wire, and a request takes one round trip.

mod common;
use common::*;
use std::net::{IpAddr, Ipv4Addr};
use towpath_sim::{Faults, LinkConfig, NodeConfig, Program, SocketId, World};
use towpath_tcp::time::Micros;

const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn config(n: u8, rings: u32) -> NodeConfig {
    NodeConfig { rings: (rings, rings), ..NodeConfig::numbered(n, u64::from(n)) }
}

/// The result of one bulk transfer.
#[derive(Debug)]
struct Bulk {
    /// Payload bits per second over the bits per second of the wire.
    share: f64,
    retransmits: u64,
    timeouts: u64,
}

fn bulk(link: LinkConfig, faults: Faults, rings: u32, bytes: u64) -> Bulk {
    let link = LinkConfig { print: std::env::var_os("TOWPATH_TRACE").is_some(), ..link };
    let (world, took) = bulk_transfer([config(1, rings), config(2, rings)], link, faults, 7, bytes);
    let counters = world.nodes[1].counters();
    Bulk {
        share: bytes as f64 * 8.0 / took / link.bits_per_s as f64,
        retransmits: counters[0].retransmits,
        timeouts: counters[0].timeouts,
    }
}

#[test]
fn a_clean_wire_is_filled_without_a_retransmission() {
    let link = LinkConfig { bits_per_s: 1_000_000_000, delay_us: 50, queue_bytes: 1 << 20, ..LinkConfig::default() };
    let done = bulk(link, Faults::default(), 256 << 10, 20_000_000);
    // 1448 bytes of payload in frames of 1514 bytes are 95.6 %.
    assert!(done.share > 0.93, "{done:?}");
    assert_eq!((done.retransmits, done.timeouts), (0, 0));
}

#[test]
fn a_long_fat_wire_is_filled_as_far_as_the_window_goes() {
    // 20 ms of round trip and a ring of 1 MiB allow 52 MB/s, which is 42 % of 1 Gbit/s.
    let link =
        LinkConfig { bits_per_s: 1_000_000_000, delay_us: 10_000, queue_bytes: 2 << 20, ..LinkConfig::default() };
    let done = bulk(link, Faults::default(), 1 << 20, 40_000_000);
    assert!(done.share > 0.33, "{done:?}");
    assert_eq!((done.retransmits, done.timeouts), (0, 0));
}

#[test]
fn a_full_queue_is_survived_without_waiting_for_timers() {
    // A queue of one bandwidth-delay product (2 ms): the textbook case for Reno.
    let link = LinkConfig { bits_per_s: 100_000_000, delay_us: 1_000, queue_bytes: 25_000, ..LinkConfig::default() };
    let done = bulk(link, Faults::default(), 256 << 10, 20_000_000);
    assert!(done.share > 0.75, "{done:?}");
    assert!(done.retransmits > 0, "the queue has overflowed: {done:?}");
    assert!(done.timeouts <= 3, "{done:?}");
}

#[test]
fn rare_losses_cost_little() {
    let link = LinkConfig { bits_per_s: 100_000_000, delay_us: 100, queue_bytes: 1 << 20, ..LinkConfig::default() };
    let done = bulk(link, Faults { loss_ppm: 1_000, ..Faults::default() }, 256 << 10, 20_000_000);
    assert!(done.share > 0.6, "{done:?}");
    assert!(done.retransmits < 100, "14,000 segments, 14 lost: {done:?}");
}

#[test]
fn reordering_within_a_few_segments_is_no_loss() {
    let link = LinkConfig { bits_per_s: 100_000_000, delay_us: 500, queue_bytes: 1 << 20, ..LinkConfig::default() };
    // Frames are delayed for up to the time of two segments.
    let faults = Faults { delay_ppm: 20_000, delay_us: 240, ..Faults::default() };
    let done = bulk(link, faults, 256 << 10, 10_000_000);
    assert!(done.share > 0.9, "{done:?}");
    assert!(done.retransmits <= 5, "{done:?}");
}

/// Sends `bytes` back and forth, one at a time.
struct PingPong {
    client: SocketId,
    server: Option<SocketId>,
    listener: SocketId,
    bytes: usize,
    left: u32,
    waiting: bool,
    got: [usize; 2],
}

impl PingPong {
    fn drain(&mut self, world: &mut World, node: usize, id: SocketId) -> bool {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = world.nodes[node].recv(id, &mut buffer) {
            self.got[node] += n;
        }
        let whole = self.got[node] >= self.bytes;
        self.got[node] %= self.bytes;
        whole
    }
}

impl Program for PingPong {
    fn step(&mut self, world: &mut World) -> bool {
        self.server = self.server.or_else(|| world.nodes[1].accept(self.listener));
        if let Some(server) = self.server
            && self.drain(world, 1, server)
        {
            return world.nodes[1].send(server, &vec![2; self.bytes]).is_ok();
        }
        if self.waiting && self.drain(world, 0, self.client) {
            self.waiting = false;
            self.left -= 1;
        }
        if !self.waiting && self.left > 0 && world.nodes[0].send(self.client, &vec![1; self.bytes]).is_ok() {
            self.waiting = true;
            return true;
        }
        false
    }

    fn next_deadline(&self) -> Option<Micros> {
        None
    }
}

#[test]
fn a_request_and_its_reply_take_one_round_trip_each_time() {
    let link = LinkConfig { bits_per_s: 0, delay_us: 50, ..LinkConfig::default() };
    let path = Path { link, there: Faults::default(), back: Faults::default() };
    for bytes in [1, 64, 1448, 10_000] {
        let (mut world, link) = two_nodes([config(1, 64 << 10), config(2, 64 << 10)], path, 7);
        let listener = world.nodes[1].listen(80, 1).expect("listens");
        let client = world.nodes[0].connect(B, 80).expect("connects");
        let mut program = PingPong { client, server: None, listener, bytes, left: 1000, waiting: false, got: [0; 2] };
        while program.left > 0 {
            let until = world.now.after(100);
            world.run(until, &mut program);
            assert!(until < LONG, "{}", world.nodes[0].describe());
        }
        // Nagle delays the end of a large request and of a large reply by a round trip, as it should.
        let trips = if bytes > 1448 { 3 } else { 1 };
        let each = world.now.0 / 1000;
        assert!(each <= trips * 101, "{bytes} bytes: {each} µs each, {} frames", link.frames());
        if bytes <= 1448 {
            assert!(
                link.frames() < 2_010,
                "{bytes} bytes: replies carry the acknowledgements, {} frames",
                link.frames()
            );
        }
    }
}
