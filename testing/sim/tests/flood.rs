//! A SYN flood of full length in virtual time. Connections go on, new clients can connect, and nothing accumulates.

mod common;
use common::*;
use std::net::{IpAddr, Ipv4Addr};
use towpath_rng::Rng;
use towpath_sim::errno::EAGAIN;
use towpath_sim::{Faults, LinkConfig, NodeConfig, Phase, Program, SocketId, World};
use towpath_tcp::counters::Drop;
use towpath_tcp::time::Micros;
use towpath_wire::emit::{Header, emit, fill_checksum};
use towpath_wire::segment::flags;
use towpath_wire::{Options, Timestamps};

const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const BACKLOG: u32 = 16;
const SYNS_PER_MS: u32 = 50;
const MS: u64 = 5_000;
/// Forged source addresses, from 10.0.1.0 on.
const SOURCES: u32 = 200;

fn source(i: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a00_0100 + i % SOURCES))
}

fn syn(rng: &mut Rng, i: u32) -> Vec<u8> {
    let timestamps = rng.chance(500_000).then(|| Timestamps { value: rng.next_u64() as u32, echo: 0 });
    let header = Header {
        source_mac: [2, 0, 0, 0, 9, 9],
        destination_mac: [2, 0, 0, 0, 0, 2],
        vlan: None,
        source: source(i),
        destination: B,
        source_port: rng.between(1024, 65_535) as u16,
        destination_port: 80,
        seq: rng.next_u64() as u32,
        ack: 0,
        flags: flags::SYN,
        window: 65_535,
        ident: 0,
        tos: 0,
        ttl: 64,
        urgent: 0,
        options: Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps,
            ..Options::default()
        },
    };
    let mut frame = vec![0; header.wire_bytes()];
    emit(&header, 0, &mut frame).expect("it fits");
    fill_checksum(&mut frame);
    frame
}

/// A bulk transfer to node 1, and short-lived clients of it.
struct Programs {
    bulk: SocketId,
    bulk_server: Option<SocketId>,
    listener: SocketId,
    received: u64,
    /// Waiting clients, and when they started.
    waiting: Vec<(SocketId, Micros)>,
    served: Vec<SocketId>,
    /// Time from SYN to the echoed byte of each client in µs.
    took: Vec<u64>,
}

impl Programs {
    fn call(&mut self, world: &mut World) {
        let id = world.nodes[0].connect(B, 80).expect("connects");
        self.waiting.push((id, world.now));
    }

    fn serve(&mut self, world: &mut World) -> bool {
        let mut busy = false;
        let mut buffer = [0; 16 << 10];
        while let Some(id) = world.nodes[1].accept(self.listener) {
            busy = true;
            if self.bulk_server.is_none() { self.bulk_server = Some(id) } else { self.served.push(id) }
        }
        if let Some(id) = self.bulk_server {
            while let Ok(n) = world.nodes[1].recv(id, &mut buffer) {
                self.received += n as u64;
                busy = true;
            }
        }
        self.served.retain(|&id| match world.nodes[1].recv(id, &mut buffer) {
            Err(EAGAIN) => true,
            Ok(n) if n > 0 => {
                world.nodes[1].send(id, &buffer[..n]).expect("room");
                busy = true;
                true
            }
            other => {
                assert!(other.is_ok(), "a legal client's connection: {other:?}");
                world.nodes[1].close(id, false);
                busy = true;
                false
            }
        });
        busy
    }
}

impl Program for Programs {
    fn step(&mut self, world: &mut World) -> bool {
        let mut busy = self.serve(world);
        while world.nodes[0].send(self.bulk, &[7; 16 << 10]).is_ok() {
            busy = true;
        }
        let mut buffer = [0; 16];
        self.waiting.retain(|&(id, since)| match world.nodes[0].phase(id) {
            Phase::Connecting => true,
            Phase::Open => match world.nodes[0].recv(id, &mut buffer) {
                Err(EAGAIN) => {
                    // Written once: the byte waits in the ring.
                    if world.nodes[0].words(id).0.tx_tail == 0 {
                        world.nodes[0].send(id, b"x").expect("room");
                        busy = true;
                    }
                    true
                }
                other => {
                    assert_eq!(other, Ok(1));
                    self.took.push(world.now.0 - since.0);
                    world.nodes[0].close(id, false);
                    busy = true;
                    false
                }
            },
            phase => panic!("a legal client was turned away: {phase:?}"),
        });
        busy
    }

    fn next_deadline(&self) -> Option<Micros> {
        None
    }
}

#[test]
fn fifty_thousand_syns_per_second_keep_nobody_out_and_hold_nothing() {
    let configs = [1, 2].map(|n| {
        let mut config = NodeConfig::numbered(n, u64::from(n));
        (config.max_flows, config.slow.max_flows) = (128, 128);
        config
    });
    // The replies to the flood take 30 Mbit/s.
    let link = LinkConfig { bits_per_s: 100_000_000, hashed: false, ..LinkConfig::default() };
    let path = Path { link, there: Faults::default(), back: Faults::default() };
    let (mut world, wire) = two_nodes(configs, path, 3);
    for i in 0..SOURCES {
        world.nodes[1].add_route(source(i), [2, 0, 0, 0, 9, 9], 1500);
    }
    let listener = world.nodes[1].listen(80, BACKLOG).expect("listens");
    let bulk = world.nodes[0].connect(B, 80).expect("connects");
    let mut programs = Programs {
        bulk,
        bulk_server: None,
        listener,
        received: 0,
        waiting: Vec::new(),
        served: Vec::new(),
        took: Vec::new(),
    };
    let before = {
        world.run(Micros(1_000_000), &mut programs);
        let so_far = programs.received;
        world.run(Micros(2_000_000), &mut programs);
        programs.received - so_far
    };
    let start = programs.received;
    let mut rng = Rng::new(4);
    let (mut most_connections, mut most_sockets) = (0, 0);
    for ms in 0..MS {
        for i in 0..SYNS_PER_MS {
            wire.inject(0, world.now, syn(&mut rng, i));
        }
        if ms % 100 == 50 {
            programs.call(&mut world);
        }
        let until = world.now.after(1_000);
        world.run(until, &mut programs);
        most_connections = most_connections.max(world.nodes[1].connections());
        most_sockets = most_sockets.max(world.nodes[1].unreleased());
    }
    let during = (programs.received - start) / (MS / 1000);
    let drops = |reason| world.nodes[1].drops(reason);
    assert_eq!(programs.took.len() as u64, MS / 100, "{:?}", programs.waiting);
    // Less than 1 s, after which a SYN would have been retransmitted.
    assert!(programs.took.iter().all(|&us| us < 200_000), "{:?}", programs.took);
    assert!(during * 2 >= before, "{during} of {before} bytes per second");
    assert_eq!((drops(Drop::NoMemory), drops(Drop::BacklogFull), drops(Drop::SlowPathFull)), (0, 0, 0));
    // The listener, the transfer, half-open connections, and one or two clients that are closing.
    let most = BACKLOG as usize + 6;
    assert!(most_connections <= most && most_sockets <= most, "{most_connections} connections, {most_sockets} sockets");
    let cookies = world.nodes[1].counters()[1].cookies_sent;
    assert!(cookies > u64::from(SYNS_PER_MS) * MS * 9 / 10, "{cookies} cookies");
}
