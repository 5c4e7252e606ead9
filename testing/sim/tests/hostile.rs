//! Hostile frames: each is dropped and counted under its reason, and a concurrent transfer is unharmed.

mod common;
use common::*;
use std::net::{IpAddr, Ipv4Addr};
use towpath_rng::Rng;
use towpath_sim::frame::{framed, header_of};
use towpath_sim::{Endpoint, Link, NodeConfig, Program, TransferEnd, TransferPlan, Transfers, World};
use towpath_tcp::counters::Drop;
use towpath_tcp::time::Micros;
use towpath_wire::emit::{Header, fill_checksum};
use towpath_wire::segment::{Segment, flags, parse};

const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// Time in µs after which all frames in flight have arrived: a window of 64 KiB at 100 Mbit/s.
const ARRIVED: u64 = 8_000;

/// A transfer from node 0 to node 1 and back, stopped in the middle.
struct Scene {
    world: World,
    link: Link,
    transfers: Transfers,
}

impl Scene {
    fn new() -> Self {
        let path = Path {
            link: towpath_sim::LinkConfig {
                bits_per_s: 100_000_000,
                print: std::env::var_os("TOWPATH_TRACE").is_some(),
                ..Default::default()
            },
            there: Default::default(),
            back: Default::default(),
        };
        let configs = [NodeConfig::numbered(1, 1), NodeConfig::numbered(2, 2)];
        let (mut world, link) = two_nodes(configs, path, 3);
        let listener = world.nodes[1].listen(80, 4).expect("listens");
        let socket = world.nodes[0].connect(B, 80).expect("connects");
        let plan = |seed| TransferPlan { seed, bytes: 2_000_000, chunk: 4096, pause_ppm: 0, pause_us: 1 };
        let transfers = Transfers(vec![
            TransferEnd::new(Endpoint::Node(0, socket), plan(4)),
            TransferEnd::new(Endpoint::Accept(1, listener), plan(5)),
        ]);
        let mut scene = Self { world, link, transfers };
        scene.run_for(20_000);
        let so_far = scene.transfers.0[1].got.len;
        assert!((100_000..1_000_000).contains(&so_far), "in the middle of the transfer: {so_far}");
        scene
    }

    fn run_for(&mut self, us: u64) {
        let until = self.world.now.after(us);
        self.world.run(until, &mut self.transfers);
    }

    /// The newest frame with payload from node 0 to node 1.
    fn data_frame(&mut self) -> Vec<u8> {
        for _ in 0..10_000 {
            let frame = self.link.newest(0);
            if parse(&frame).is_ok_and(|s| s.payload_len > 100) {
                return frame;
            }
            self.run_for(10);
        }
        panic!("no data on the wire");
    }

    /// Sends these frames to node 1, after those in flight. Returns the increase of its counter of `reason`.
    fn inject(&mut self, frames: impl IntoIterator<Item = Vec<u8>>, reason: Drop) -> u64 {
        let before = self.world.nodes[1].drops(reason);
        for frame in frames {
            self.link.inject(0, self.world.now, frame);
        }
        self.run_for(ARRIVED);
        self.world.nodes[1].drops(reason) - before
    }

    /// Checks that the transfer completes normally.
    fn unharmed(mut self) {
        run_to_the_end(&mut self.world, &mut self.transfers).unwrap_or_else(|what| panic!("{what}"));
        assert_eq!(self.transfers.0[1].got.len, 2_000_000);
    }
}

/// One frame, one reason, and the transfer goes on.
fn refused(reason: Drop, make: impl FnOnce(&mut Scene) -> Vec<u8>) {
    let mut scene = Scene::new();
    let frame = make(&mut scene);
    let counted = scene.inject([frame], reason);
    assert_eq!(counted, 1, "{reason:?}: {:?}", scene.world.nodes[1].counters());
    scene.unharmed();
}

/// The segment that may follow `like`, changed by `change`, with right checksums.
fn forged(like: &[u8], payload: &[u8], change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let s: Segment = parse(like).expect("a good frame");
    let mut header = Header { vlan: None, ..header_of(&s) };
    // After the frame that it is made from, so that its number is exactly RCV.NXT.
    header.seq = header.seq.wrapping_add(s.payload_len);
    change(&mut header);
    framed(&header, payload).expect("a frame")
}

/// Corrects the IPv4 header checksum.
fn fix_ip_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let mut sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

#[test]
fn every_truncation_of_a_good_frame_is_dropped_as_truncated() {
    let mut scene = Scene::new();
    let frame = scene.data_frame();
    let cuts: Vec<Vec<u8>> = (1..frame.len()).map(|len| frame[..len].to_vec()).collect();
    let n = cuts.len() as u64;
    assert_eq!(scene.inject(cuts, Drop::Truncated), n, "{:?}", scene.world.nodes[1].counters());
    scene.unharmed();
}

#[test]
fn wrong_ip_checksum() {
    refused(Drop::IpChecksum, |scene| {
        let mut frame = scene.data_frame();
        frame[24] ^= 1;
        frame
    });
}

/// RFC 9293 MUST-3.
#[test]
fn wrong_tcp_checksum() {
    refused(Drop::TcpChecksum, |scene| {
        let mut frame = scene.data_frame();
        let last = frame.len() - 1;
        frame[last] ^= 0x40;
        frame
    });
}

#[test]
fn not_ipv4_not_tcp_and_fragments() {
    let mut scene = Scene::new();
    let frame = scene.data_frame();
    let mut arp = frame.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut udp = frame.clone();
    udp[23] = 17;
    fix_ip_checksum(&mut udp);
    let mut fragment = frame.clone();
    fragment[20..22].copy_from_slice(&[0x20, 0]);
    fix_ip_checksum(&mut fragment);
    let mut later_fragment = frame;
    later_fragment[20..22].copy_from_slice(&[0, 7]);
    fix_ip_checksum(&mut later_fragment);
    assert_eq!(scene.inject([arp, udp, fragment, later_fragment], Drop::NotTcp), 4);
    scene.unharmed();
}

/// The segment counts as if the option were not there (RFC 9293 MUST-7): this one's SYN is challenged.
#[test]
fn option_of_length_zero() {
    refused(Drop::BadFlags, |scene| {
        let mut frame = forged(&scene.data_frame(), &[], |h| {
            h.flags = flags::SYN | flags::ACK;
            h.options.mss = None;
            h.options.window_scale = Some(7);
        });
        let at = frame.len() - 4;
        assert_eq!(frame[at..], [1, 3, 3, 7], "the window scale comes last");
        frame[at + 2] = 0;
        fill_checksum(&mut frame);
        frame
    });
}

#[test]
fn data_offset_below_five_words_or_beyond_the_packet() {
    let mut scene = Scene::new();
    let good = scene.data_frame();
    let with_offset = |words: u8| {
        let mut frame = forged(&good, &[], |_| {});
        frame[46] = words << 4;
        fill_checksum(&mut frame);
        frame
    };
    let frames = (0..5).chain([15]).map(with_offset).collect::<Vec<_>>();
    assert_eq!(scene.inject(frames, Drop::BadHeader), 6, "{:?}", scene.world.nodes[1].counters());
    scene.unharmed();
}

#[test]
fn land_and_impossible_sources() {
    let mut scene = Scene::new();
    let good = scene.data_frame();
    let from = |address: IpAddr, port: u16| {
        forged(&good, &[], |h| {
            h.source = address;
            h.source_port = port;
            h.flags = flags::SYN;
        })
    };
    let frames =
        [from(B, 80), from(IpAddr::V4(Ipv4Addr::BROADCAST), 5), from(IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1)), 5)];
    assert_eq!(scene.inject(frames, Drop::BadSource), 3, "{:?}", scene.world.nodes[1].counters());
    scene.unharmed();
}

#[test]
fn somebody_elses_address() {
    refused(Drop::NotLocal, |scene| {
        forged(&scene.data_frame(), &[], |h| {
            h.destination = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 77));
            h.flags = flags::SYN;
        })
    });
}

#[test]
fn impossible_flags() {
    let mut scene = Scene::new();
    let good = scene.data_frame();
    let frames: Vec<_> = [flags::SYN | flags::FIN, flags::SYN | flags::RST, flags::SYN | flags::FIN | flags::RST]
        .into_iter()
        .map(|f| forged(&good, &[], |h| h.flags = f))
        .collect();
    assert_eq!(scene.inject(frames, Drop::BadFlags), 3, "{:?}", scene.world.nodes[1].counters());
    scene.unharmed();
}

#[test]
fn no_ack_flag() {
    refused(Drop::NoAck, |scene| forged(&scene.data_frame(), b"x", |h| h.flags = flags::PSH));
}

#[test]
fn data_outside_the_window() {
    refused(Drop::OutOfWindow, |scene| forged(&scene.data_frame(), b"forged", |h| h.seq = h.seq.wrapping_add(1 << 30)));
}

#[test]
fn data_that_came_long_ago_is_a_duplicate_or_out_of_window() {
    let mut scene = Scene::new();
    let frame = scene.data_frame();
    scene.run_for(ARRIVED);
    let before: u64 =
        [Drop::Duplicate, Drop::OutOfWindow, Drop::Paws].map(|d| scene.world.nodes[1].drops(d)).iter().sum();
    scene.inject([frame], Drop::Duplicate);
    let after: u64 =
        [Drop::Duplicate, Drop::OutOfWindow, Drop::Paws].map(|d| scene.world.nodes[1].drops(d)).iter().sum();
    assert_eq!(after - before, 1);
    scene.unharmed();
}

#[test]
fn timestamp_from_the_past() {
    refused(Drop::Paws, |scene| {
        forged(&scene.data_frame(), b"forged", |h| {
            let stamps = h.options.timestamps.as_mut().expect("timestamps are agreed");
            stamps.value = stamps.value.wrapping_sub(1_000_000);
        })
    });
}

#[test]
fn acknowledgement_of_what_was_never_sent() {
    refused(Drop::BadAck, |scene| forged(&scene.data_frame(), &[], |h| h.ack = h.ack.wrapping_add(1 << 28)));
}

#[test]
fn blind_resets() {
    let mut scene = Scene::new();
    let good = scene.data_frame();
    // In the window but not at RCV.NXT: a challenge ACK (RFC 5961 §3). 100 of them must not end the connection.
    let near: Vec<_> = (1..=100u32)
        .map(|i| {
            forged(&good, &[], |h| {
                h.flags = flags::RST;
                h.seq = h.seq.wrapping_add(5_000 + i * 7);
            })
        })
        .collect();
    assert_eq!(scene.inject(near, Drop::BadReset), 100, "{:?}", scene.world.nodes[1].counters());
    scene.unharmed();
}

#[test]
fn blind_syns_in_a_connection() {
    let mut scene = Scene::new();
    let good = scene.data_frame();
    let syns: Vec<_> = (0..100u32)
        .map(|i| {
            forged(&good, &[], |h| {
                h.flags = flags::SYN;
                h.seq = i << 25;
                h.ack = 0;
            })
        })
        .collect();
    scene.inject(syns, Drop::BadFlags);
    scene.unharmed();
}

#[test]
fn a_port_where_nobody_listens_answers_with_reset() {
    let mut scene = Scene::new();
    let good = scene.data_frame();
    let resets = scene.world.nodes[1].counters().map(|c| c.resets).iter().sum::<u64>();
    let syn = forged(&good, &[], |h| {
        h.flags = flags::SYN;
        h.source_port = 7777;
        h.destination_port = 81;
    });
    assert_eq!(scene.inject([syn], Drop::NoSocket), 1);
    assert!(scene.world.nodes[1].counters().map(|c| c.resets).iter().sum::<u64>() > resets, "RST was sent");
    scene.unharmed();
}

#[test]
fn a_flood_of_syns_fills_the_backlog_and_nothing_else() {
    let mut scene = Scene::new();
    let good = scene.data_frame();
    let syns: Vec<_> = (0..500u32)
        .map(|i| {
            forged(&good, &[], |h| {
                h.flags = flags::SYN;
                h.source = IpAddr::V4(Ipv4Addr::from(0x0a00_0001 + 10 + (i % 100)));
                h.source_port = 2000 + i as u16;
                h.seq = i * 7919;
                h.ack = 0;
            })
        })
        .collect();
    // Routes to the forged sources exist. Without them their SYNs would be dropped.
    for i in 0..100 {
        scene.world.nodes[1].add_route(
            IpAddr::V4(Ipv4Addr::from(0x0a00_0001 + 10 + i)),
            [2, 0, 0, 0, 1, i as u8],
            1500,
        );
    }
    let dropped = scene.inject(syns, Drop::BacklogFull);
    let cookies = scene.world.nodes[1].counters()[1].cookies_sent;
    assert_eq!((dropped, cookies), (0, 492), "backlog 8: the others are answered and forgotten");
    scene.unharmed();
}

#[test]
fn random_frames_are_each_counted_once() {
    let mut scene = Scene::new();
    let mut rng = Rng::new(99);
    let frames: Vec<Vec<u8>> = (0..20_000)
        .map(|_| {
            let mut frame = vec![0; rng.between(1, 200) as usize];
            rng.fill(&mut frame);
            if rng.below(2) == 0 && frame.len() > 24 {
                frame[12..15].copy_from_slice(&[8, 0, 0x45]);
                frame[23] = 6;
            }
            frame
        })
        .collect();
    let drops = |scene: &Scene| -> u64 { scene.world.nodes[1].counters().iter().flat_map(|c| c.drops).sum() };
    // Genuine frames may be dropped as duplicates meanwhile, so compare the other counters.
    let own = |scene: &Scene| scene.world.nodes[1].drops(Drop::Duplicate);
    let (before, own_before) = (drops(&scene), own(&scene));
    scene.inject(frames, Drop::NotTcp);
    let counted = drops(&scene) - before - (own(&scene) - own_before);
    assert_eq!(counted, 20_000, "{:?}", scene.world.nodes[1].counters());
    scene.unharmed();
}

#[test]
fn flipped_bits_in_good_frames_never_reach_the_application() {
    let mut scene = Scene::new();
    let mut rng = Rng::new(5);
    for _ in 0..50 {
        let good = scene.data_frame();
        let bad: Vec<Vec<u8>> = (0..20)
            .map(|_| {
                let mut frame = good.clone();
                let at = rng.between(14, frame.len() as u64 - 1) as usize;
                frame[at] ^= 1 << rng.below(8);
                frame
            })
            .collect();
        for frame in bad {
            scene.link.inject(0, scene.world.now, frame);
        }
        scene.run_for(200);
    }
    scene.run_for(ARRIVED);
    let dropped: u64 = [Drop::IpChecksum, Drop::TcpChecksum, Drop::Truncated, Drop::NotTcp, Drop::BadHeader]
        .map(|d| scene.world.nodes[1].drops(d))
        .iter()
        .sum();
    assert_eq!(dropped, 1000);
    scene.unharmed();
}

#[test]
fn garbage_never_ends_a_world_without_programs() {
    struct Nobody;
    impl Program for Nobody {
        fn step(&mut self, _: &mut World) -> bool {
            false
        }
        fn next_deadline(&self) -> Option<Micros> {
            None
        }
    }
    let mut scene = Scene::new();
    let good = scene.data_frame();
    let mut rng = Rng::new(17);
    // Random flags, numbers and payload with right checksums, from unknown hosts to the listener and to closed ports.
    for i in 0..5_000u32 {
        let mut payload = vec![0; rng.below(64) as usize];
        rng.fill(&mut payload);
        let (seq, ack, bits) = (rng.next_u64() as u32, rng.next_u64() as u32, rng.next_u64() as u8);
        let port = rng.between(78, 82) as u16;
        let frame = forged(&good, &payload, |h| {
            h.source_port = 3000 + (i % 500) as u16;
            h.destination_port = port;
            h.seq = seq;
            h.ack = ack;
            h.flags = bits;
        });
        scene.link.inject(0, scene.world.now, frame);
        if i % 50 == 0 {
            scene.run_for(100);
        }
    }
    scene.unharmed();
    let mut empty = World::default();
    empty.run(Micros(1), &mut Nobody);
}
