//! Corner cases of opening, closing and stalling on a good wire, as an application sees them.

mod common;
use common::*;
use std::net::{IpAddr, Ipv4Addr};
use towpath_sim::errno::{EAGAIN, EPIPE};
use towpath_sim::{Faults, Faulty, Link, LinkConfig, Node, NodeConfig, Phase, Program, SocketId, World};
use towpath_tcp::time::Micros;

const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const ECONNRESET: i32 = 104;
const ECONNREFUSED: i32 = 111;
const ETIMEDOUT: i32 = 110;
const ENETUNREACH: i32 = 101;
const EHOSTUNREACH: i32 = 113;

struct Nobody;
impl Program for Nobody {
    fn step(&mut self, _: &mut World) -> bool {
        false
    }
    fn next_deadline(&self) -> Option<Micros> {
        None
    }
}

fn good_path() -> Path {
    let link = LinkConfig { print: std::env::var_os("TOWPATH_TRACE").is_some(), ..LinkConfig::default() };
    Path { link, there: Faults::default(), back: Faults::default() }
}

fn good_world() -> (World, Link) {
    two_nodes([NodeConfig::numbered(1, 1), NodeConfig::numbered(2, 2)], good_path(), 3)
}

fn run(world: &mut World, us: u64) {
    let until = world.now.after(us);
    world.run(until, &mut Nobody);
    world.now = until;
}

fn seconds(s: u64) -> u64 {
    s * 1_000_000
}

/// An established connection: the world, the client's socket on node 0 and the server's on node 1.
fn connected() -> (World, Link, SocketId, SocketId) {
    let (mut world, link) = good_world();
    let listener = world.nodes[1].listen(80, 4).expect("listens");
    let client = world.nodes[0].connect(B, 80).expect("connects");
    run(&mut world, 10_000);
    let server = world.nodes[1].accept(listener).expect("a connection");
    assert_eq!(world.nodes[0].phase(client), Phase::Open);
    (world, link, client, server)
}

fn read_all(node: &mut Node, id: SocketId) -> Vec<u8> {
    let mut buffer = [0; 4096];
    let mut all = Vec::new();
    while let Ok(n @ 1..) = node.recv(id, &mut buffer) {
        all.extend_from_slice(&buffer[..n]);
    }
    all
}

#[test]
fn a_refused_connect_says_so_after_one_round_trip() {
    let (mut world, _) = good_world();
    let id = world.nodes[0].connect(B, 81).expect("starts");
    run(&mut world, 1_000);
    assert_eq!(world.nodes[0].phase(id), Phase::Failed(ECONNREFUSED));
    run(&mut world, seconds(100));
    assert_eq!((world.nodes[0].flows(), world.nodes[0].connections(), world.nodes[0].steered()), (0, 0, 0));
}

#[test]
fn an_unanswered_connect_times_out_after_about_four_minutes() {
    let path = good_path();
    let (_, a, _b) = Link::new(path.link);
    let all = Faults { loss_ppm: 1_000_000, ..Faults::default() };
    let mut node = Node::new(NodeConfig::numbered(1, 1), Box::new(Faulty::new(a, 1, all, all)));
    node.add_route(B, [2, 0, 0, 0, 0, 2], 1500);
    let mut world = World { nodes: vec![node], ..World::default() };
    let id = world.nodes[0].connect(B, 80).expect("starts");
    run(&mut world, seconds(240));
    assert_eq!(world.nodes[0].phase(id), Phase::Connecting);
    run(&mut world, seconds(20));
    assert_eq!(world.nodes[0].phase(id), Phase::Failed(ETIMEDOUT), "after 247 s");
    assert_eq!((world.nodes[0].connections(), world.nodes[0].steered()), (0, 0));
}

#[test]
fn no_route_fails_at_once_and_a_late_neighbour_connects() {
    let (mut world, _) = good_world();
    assert_eq!(world.nodes[0].connect(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)), 80), Err(ENETUNREACH));

    world.nodes[1].listen(80, 4).expect("listens");
    world.nodes[0].add_unresolved(B);
    let id = world.nodes[0].connect(B, 80).expect("starts");
    run(&mut world, 500_000);
    assert_eq!(world.nodes[0].phase(id), Phase::Connecting);
    world.nodes[0].add_route(B, [2, 0, 0, 0, 0, 2], 1500);
    run(&mut world, 10_000);
    assert_eq!(world.nodes[0].phase(id), Phase::Open);

    world.nodes[0].add_unresolved(B);
    let id = world.nodes[0].connect(B, 80).expect("starts");
    run(&mut world, seconds(4));
    assert_eq!(world.nodes[0].phase(id), Phase::Failed(EHOSTUNREACH), "nobody answers ARP");
}

#[test]
fn half_closed_still_carries_the_other_direction() {
    let (mut world, _, client, server) = connected();
    world.nodes[0].send(client, b"request").expect("room");
    world.nodes[0].shutdown(client);
    run(&mut world, seconds(5));
    assert_eq!(read_all(&mut world.nodes[1], server), b"request");
    assert_eq!(world.nodes[1].recv(server, &mut [0; 9]), Ok(0), "end of stream");
    for _ in 0..10 {
        world.nodes[1].send(server, b"reply").expect("room");
        run(&mut world, seconds(30));
        assert_eq!(read_all(&mut world.nodes[0], client), b"reply", "the client never called close");
    }
    world.nodes[1].close(server, false);
    run(&mut world, 10_000);
    assert_eq!(world.nodes[0].recv(client, &mut [0; 9]), Ok(0));
    world.nodes[0].close(client, false);
    run(&mut world, seconds(100));
    for node in &world.nodes {
        assert_eq!((node.flows(), node.steered() - node.listeners()), (0, 0));
    }
}

#[test]
fn close_with_unread_data_and_abort_reset_the_other_end() {
    for abort in [false, true] {
        let (mut world, _, client, server) = connected();
        world.nodes[0].send(client, b"never read").expect("room");
        run(&mut world, 10_000);
        world.nodes[1].close(server, abort);
        run(&mut world, 10_000);
        assert_eq!(world.nodes[0].recv(client, &mut [0; 9]), Err(ECONNRESET), "abort: {abort}");
        assert_eq!(world.nodes[1].flows(), 0, "abort: {abort}");
        world.nodes[0].close(client, false);
        run(&mut world, 1_000_000);
        assert_eq!((world.nodes[0].flows(), world.nodes[0].connections()), (0, 0), "no TIME-WAIT after a reset");
    }
}

#[test]
fn data_for_a_closed_socket_is_answered_with_reset() {
    let (mut world, _, client, server) = connected();
    world.nodes[1].close(server, false);
    run(&mut world, 10_000);
    assert_eq!(world.nodes[0].recv(client, &mut [0; 9]), Ok(0));
    world.nodes[0].send(client, b"to nobody").expect("room");
    run(&mut world, seconds(1));
    assert_eq!(world.nodes[0].send(client, b"more"), Err(EPIPE), "as Linux: the reset came in CLOSE-WAIT");
}

/// RFC 9293 MAY-8, MUST-37.
#[test]
fn a_reader_that_stops_for_an_hour_loses_nothing() {
    let (mut world, _, client, server) = connected();
    let data: Vec<u8> = (0..200_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let mut at = 0;
    loop {
        match world.nodes[0].send(client, &data[at..]) {
            Ok(n) => at += n,
            Err(errno) => {
                assert_eq!(errno, EAGAIN);
                break;
            }
        }
        run(&mut world, 10_000);
    }
    assert!(at < data.len(), "both rings are full after {at} bytes");
    run(&mut world, seconds(3600));
    assert_eq!(world.nodes[0].phase(client), Phase::Open, "window probes are answered, so the connection lives");
    let mut got = Vec::new();
    for _ in 0..2_000 {
        got.extend(read_all(&mut world.nodes[1], server));
        run(&mut world, 5_000);
        if at < data.len()
            && let Ok(n) = world.nodes[0].send(client, &data[at..])
        {
            at += n;
        }
        if got.len() == data.len() {
            break;
        }
    }
    assert!(got == data, "{} of {} bytes", got.len(), data.len());
}

#[test]
fn a_peer_that_vanishes_costs_etimedout_and_no_flow() {
    let (mut world, _, client, _) = connected();
    world.nodes[0].send(client, b"hello?").expect("room");
    world.nodes.truncate(1);
    run(&mut world, seconds(600));
    assert_eq!(world.nodes[0].recv(client, &mut [0; 9]), Err(EAGAIN), "15 retransmissions take more than 10 minutes");
    run(&mut world, seconds(1200));
    assert_eq!(world.nodes[0].recv(client, &mut [0; 9]), Err(ETIMEDOUT));
    world.nodes[0].close(client, false);
    run(&mut world, seconds(1));
    assert_eq!((world.nodes[0].flows(), world.nodes[0].connections(), world.nodes[0].steered()), (0, 0, 0));
}

#[test]
fn a_small_request_and_reply_take_one_round_trip() {
    let (mut world, _, client, server) = connected();
    let start = world.now;
    world.nodes[0].send(client, &[7; 64]).expect("room");
    run(&mut world, 60);
    assert_eq!(read_all(&mut world.nodes[1], server).len(), 64, "50 µs of delay and 1 µs on the wire");
    world.nodes[1].send(server, &[8; 64]).expect("room");
    run(&mut world, 60);
    assert_eq!(read_all(&mut world.nodes[0], client).len(), 64);
    assert!(world.now.since(start) <= 120);
}

#[test]
fn the_first_ten_kilobytes_take_one_round_trip() {
    let link = LinkConfig { delay_us: 10_000, ..good_path().link };
    let (mut world, _) =
        two_nodes([NodeConfig::numbered(1, 1), NodeConfig::numbered(2, 2)], Path { link, ..good_path() }, 3);
    let listener = world.nodes[1].listen(80, 4).expect("listens");
    let client = world.nodes[0].connect(B, 80).expect("connects");
    run(&mut world, 50_000);
    let server = world.nodes[1].accept(listener).expect("a connection");
    world.nodes[1].set_nodelay(server);
    world.nodes[1].send(server, &[1; 10_000]).expect("room");
    run(&mut world, 10_500);
    assert_eq!(read_all(&mut world.nodes[0], client).len(), 10_000);
}
