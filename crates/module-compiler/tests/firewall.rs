//! The limits of `firewall.bpf.c`: compiled, interpreted and in the kernel, each with maps of its own, segment by segment.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Three, may_verify, object_file};
use std::time::Duration;
use towpath_modules::verify::update_map;
use towpath_modules::{Action, Object};
use towpath_wire::ip::fill_header_checksum;
use towpath_wire::{fill_checksum, partial_checksum};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
/// The server's first number, and the client's.
const SERVERS: u32 = 1000;
const CLIENTS: u32 = 5000;
const PORT: u16 = 7000;

/// Who begins connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    /// 10.0.0.x
    Four(u8),
    /// fd00:0:0:x::y
    Six(u8, u8),
}

impl Host {
    fn is_v6(self) -> bool {
        matches!(self, Self::Six(..))
    }
    fn octets(self) -> Vec<u8> {
        match self {
            Self::Four(last) => vec![10, 0, 0, last],
            Self::Six(network, last) => [&[0xfd, 0, 0, 0, 0, 0, 0, network][..], &[0; 7], &[last]].concat(),
        }
    }
    fn server(self) -> Self {
        if self.is_v6() { Self::Six(99, 1) } else { Self::Four(99) }
    }
}

/// A segment of the connection that this host has begun on this port.
fn segment(host: Host, port: u16, is_clients: bool, flags: u8, [seq, ack]: [u32; 2], payload: usize) -> Vec<u8> {
    let mut addresses = [host.octets(), host.server().octets()];
    let mut ports = [port, PORT];
    if !is_clients {
        addresses.reverse();
        ports.reverse();
    }
    let mut frame = vec![2; 12];
    let length = (20 + payload) as u16;
    if host.is_v6() {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([6, 64]);
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + length).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 6, 0, 0]);
    }
    addresses.iter().for_each(|address| frame.extend(address));
    ports.iter().for_each(|port| frame.extend(port.to_be_bytes()));
    [seq, ack].iter().for_each(|number| frame.extend(number.to_be_bytes()));
    frame.extend([5 << 4, flags, 1, 0, 0, 0, 0, 0]);
    frame.resize(frame.len() + payload, 7);
    if !host.is_v6() {
        fill_header_checksum(&mut frame, 14);
    }
    fill_checksum(&mut frame);
    frame
}

struct Wall {
    three: Three,
    object: Object,
}

impl Wall {
    /// `None`: there is no clang, or no right to ask the verifier.
    fn new() -> Option<Self> {
        let file = object_file("bpf/modules/firewall.bpf.c").filter(|_| may_verify())?;
        let object = Object::parse(&file).unwrap();
        let mut wall = Self { three: Three::new(&object, "firewall").unwrap(), object };
        wall.set("counting", &[0; 4], &1u32.to_ne_bytes());
        Some(wall)
    }

    fn set(&mut self, map: &str, key: &[u8], value: &[u8]) {
        let number = self.object.maps.iter().position(|known| known.name == map).unwrap();
        update_map(&self.three.accepted.maps[number], key, value).unwrap();
        for instance in self.three.instances() {
            instance.module().maps()[number].set(key, value).unwrap();
        }
    }

    /// So many connections for each client of this host's family.
    fn limit(&mut self, host: Host, most: u32) {
        let key = [0u32.to_ne_bytes().to_vec(), vec![0; host.octets().len()]].concat();
        self.set(if host.is_v6() { "limits6" } else { "limits" }, &key, &most.to_ne_bytes());
    }

    /// A connection of this number, in this state: 4 = it has ended.
    fn knows(&mut self, host: Host, port: u16, number: u32, state: u32) {
        let [client, server] = [host, host.server()].map(|one| {
            let mut words = one.octets();
            words.resize(16, 0);
            words
        });
        let version: u32 = if host.is_v6() { 6 } else { 4 };
        let ports = [port, PORT].map(u16::to_be_bytes).concat();
        let key = [client, server, ports, version.to_ne_bytes().to_vec()].concat();
        let value = [&[0u32; 3][..], &[state, number], &[0; 3]]
            .concat()
            .into_iter()
            .flat_map(u32::to_ne_bytes)
            .collect::<Vec<_>>();
        self.set("connections", &key, &value);
    }

    /// Does it pass? All have said the same.
    #[track_caller]
    fn passes(&mut self, frame: &[u8]) -> bool {
        match self.three.agree("firewall", frame) {
            Action::Pass => true,
            Action::Drop => false,
            other => panic!("{other:?}"),
        }
    }

    /// The segment with which a client completes its handshake.
    #[track_caller]
    fn completes(&mut self, host: Host, port: u16) -> bool {
        self.passes(&segment(host, port, true, ACK, [CLIENTS + 1, SERVERS + 1], 0))
    }

    /// Opens a connection. Does it have a place?
    #[track_caller]
    fn opens(&mut self, host: Host, port: u16) -> bool {
        assert!(self.passes(&segment(host, port, true, SYN, [CLIENTS, 0], 0)));
        assert!(self.passes(&segment(host, port, false, SYN | ACK, [SERVERS, CLIENTS + 1], 0)));
        self.completes(host, port)
    }

    /// Both ends say that they have sent all, one after the other, and the server acknowledges it.
    #[track_caller]
    fn ends(&mut self, host: Host, port: u16, client_first: bool) {
        let clients = segment(host, port, true, FIN | ACK, [CLIENTS + 1, SERVERS + 1], 0);
        let acked = CLIENTS + 1 + u32::from(client_first);
        let servers = segment(host, port, false, FIN | ACK, [SERVERS + 1, acked], 0);
        if client_first {
            assert!(self.passes(&clients) && self.passes(&servers));
        } else {
            assert!(self.passes(&servers) && self.passes(&clients));
            assert!(self.passes(&segment(host, port, false, ACK, [SERVERS + 2, CLIENTS + 2], 0)));
        }
    }
}

const FAMILIES: [Host; 2] = [Host::Four(1), Host::Six(1, 1)];

#[test]
fn a_client_has_as_many_connections_as_its_limit_says_over_both_versions_of_ip() {
    let Some(mut wall) = Wall::new() else { return };
    for host in FAMILIES {
        assert!(wall.opens(host, 999), "there is no limit");
        wall.limit(host, 300);
        let opened = (1000..1300).filter(|port| wall.opens(host, *port)).count();
        assert_eq!(opened, 300, "{host:?}");
        assert!(!wall.opens(host, 1300) && !wall.completes(host, 1300));
        assert!(wall.passes(&segment(host, 1299, true, ACK, [CLIENTS + 1, SERVERS + 1], 100)), "others go on");
        // What it sends again has a place when there is one.
        wall.ends(host, 1117, true);
        assert!(wall.completes(host, 1300) && !wall.opens(host, 1301));
        // As many places as connections have ended, however they have.
        (1010..1020).for_each(|port| wall.ends(host, port, port % 2 == 0));
        assert!(wall.passes(&segment(host, 1020, true, RST | ACK, [CLIENTS + 1, 0], 0)));
        assert!(wall.passes(&segment(host, 1021, false, RST | ACK, [SERVERS + 1, 0], 0)));
        assert!(wall.passes(&segment(host, 1022, true, RST | ACK, [CLIENTS, 0], 0)), "the server does not believe it");
        let opened = (2000..2020).filter(|port| wall.opens(host, *port)).count();
        assert_eq!(opened, 10 + 2, "{host:?}");
        // One that has ended and goes on needs a place again.
        assert!(!wall.passes(&segment(host, 1010, true, ACK, [CLIENTS + 1, SERVERS + 1], 100)));
        wall.ends(host, 1050, true);
        assert!(wall.passes(&segment(host, 1010, true, ACK, [CLIENTS + 1, SERVERS + 1], 100)));
        assert!(!wall.opens(host, 2500));
    }
}

#[test]
fn a_network_of_ipv6_is_one_client_and_an_address_of_ipv4_is_one() {
    let Some(mut wall) = Wall::new() else { return };
    for host in FAMILIES {
        wall.limit(host, 2);
    }
    assert!(wall.opens(Host::Six(1, 1), 1000) && wall.opens(Host::Six(1, 2), 1000));
    assert!(!wall.opens(Host::Six(1, 3), 1000), "another address of it");
    assert!(wall.opens(Host::Six(2, 3), 1000), "another network");
    assert!(wall.opens(Host::Four(1), 1000) && wall.opens(Host::Four(1), 1001) && !wall.opens(Host::Four(1), 1002));
    assert!(wall.opens(Host::Four(2), 1000));
}

#[test]
fn more_than_can_be_counted_is_no_limit_and_none_at_all_is_one() {
    let Some(mut wall) = Wall::new() else { return };
    for host in FAMILIES {
        wall.limit(host, 16_385);
        assert!((1000..1040).all(|port| wall.opens(host, port)));
        wall.limit(host, 0);
        assert!(!wall.opens(host, 2000));
    }
}

/// Nobody says that the place is free. It is found all the same: by 128 looks at a time, with a pause between them.
#[test]
fn the_place_of_a_connection_that_ended_unseen_is_found() {
    let Some(mut wall) = Wall::new() else { return };
    for host in FAMILIES {
        wall.limit(host, 300);
        assert!((1000..1300).all(|port| wall.opens(host, port)));
        wall.knows(host, 1200, 200, 4);
        let pause = || std::thread::sleep(Duration::from_millis(6));
        assert!(!wall.opens(host, 1500), "it is not among the first");
        pause();
        assert!(wall.completes(host, 1500) && !wall.opens(host, 1501), "{host:?}");
    }
}

#[test]
fn networks_are_blocked_over_both_versions_of_ip() {
    let Some(mut wall) = Wall::new() else { return };
    for (map, bits, host, other) in
        [("blocked_nets", 32u32, Host::Four(1), Host::Four(2)), ("blocked_nets6", 64, Host::Six(1, 7), Host::Six(2, 7))]
    {
        let mut frame = |host, is_clients| wall.passes(&segment(host, 1000, is_clients, ACK, [1, 1], 10));
        assert!(frame(host, true) && frame(other, true));
        let key = [bits.to_ne_bytes().to_vec(), host.octets()].concat();
        wall.set(map, &key, &1u32.to_ne_bytes());
        let mut frame = |host, is_clients| wall.passes(&segment(host, 1000, is_clients, ACK, [1, 1], 10));
        assert!(!frame(host, true) && !frame(host, false) && frame(other, true) && frame(other, false));
    }
}

/// What a client sends on a connection that has no place.
#[track_caller]
fn has_no_place(wall: &mut Wall, host: Host, port: u16) {
    for (flags, payload) in [(ACK, 0), (ACK, 100), (FIN | ACK, 0)] {
        let frame = segment(host, port, true, flags, [CLIENTS + 1, SERVERS + 101], payload);
        assert!(!wall.passes(&frame), "{host:?} {port}: {flags} {payload}");
    }
}

/// The server goes on, whatever the reason.
#[test]
fn a_reset_that_the_server_does_not_believe_gives_no_client_two_places() {
    let Some(mut wall) = Wall::new() else { return };
    for host in FAMILIES {
        wall.limit(host, 1);
        assert!(wall.opens(host, 1000));
        for port in 1000..1010 {
            let reset = segment(host, port, true, RST | ACK, [CLIENTS + 1, SERVERS + 1], 0);
            let goes_on = segment(host, port, false, ACK, [SERVERS + 1, CLIENTS + 1], 100);
            assert!(wall.passes(&reset) && wall.passes(&goes_on));
            assert!(!wall.opens(host, port + 1), "{host:?}: it has its place again");
            assert!(wall.passes(&reset) && wall.completes(host, port + 1) && wall.passes(&goes_on));
            has_no_place(&mut wall, host, port);
            assert!(wall.passes(&goes_on) && wall.passes(&reset), "the server may send, and the client end it");
            has_no_place(&mut wall, host, port);
            assert!(wall.passes(&segment(host, port + 1, true, ACK, [CLIENTS - 99, SERVERS + 1], 100)));
        }
        // It goes on when there is a place, and counts.
        wall.ends(host, 1010, true);
        assert!(wall.passes(&segment(host, 1004, true, ACK, [CLIENTS + 1, SERVERS + 101], 0)));
        has_no_place(&mut wall, host, 1005);
        assert!(!wall.opens(host, 1011));
        wall.ends(host, 1004, false);
        assert!(wall.opens(host, 1011));
    }
}

/// The server drops each of these without a word. Its client is idle then, and counts all the same.
#[test]
fn a_reset_with_a_wrong_number_or_a_fault_ends_nothing() {
    let Some(mut wall) = Wall::new() else { return };
    for host in FAMILIES {
        wall.limit(host, 1);
        assert!(wall.opens(host, 1000) && !wall.opens(host, 1001));
        let reset = |flags, number, payload| segment(host, 1000, true, flags, [number, SERVERS + 1], payload);
        let right = reset(RST, CLIENTS + 1, 0);
        let mut wrong: Vec<_> = [0, 2, 100, 1 << 31].map(|off| reset(RST | ACK, CLIENTS + off, 0)).into();
        wrong.extend([reset(RST, CLIENTS + 1, 10), reset(RST | FIN, CLIENTS + 1, 0)]);
        let mut changed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = right.clone();
            change(&mut frame);
            wrong.push(frame);
        };
        changed(&|frame| *frame.last_chunk_mut::<4>().unwrap() = [1, 2, 0, 0]);
        if host.is_v6() {
            changed(&|frame| frame[19] += 4);
        } else {
            changed(&|frame| frame[24] ^= 1);
            for (place, value) in [(20, 0x20), (21, 1), (17, 44), (17, 36)] {
                changed(&|frame| {
                    frame[place] = value;
                    fill_header_checksum(frame, 14);
                });
            }
        }
        for (number, frame) in wrong.iter().enumerate() {
            assert!(wall.passes(frame));
            assert!(!wall.completes(host, 1001), "{host:?}: {number}");
        }
        // What was sent before may have made it old.
        assert!(wall.passes(&segment(host, 1000, true, ACK, [CLIENTS + 1, SERVERS + 1], 100)));
        assert!(wall.passes(&right) && !wall.completes(host, 1001), "{host:?}");
        assert!(wall.passes(&segment(host, 1000, false, ACK, [SERVERS + 1, CLIENTS + 101], 0)));
        assert!(wall.passes(&right) && !wall.completes(host, 1001), "{host:?}: it is old");
        assert!(wall.passes(&reset(RST, CLIENTS + 101, 0)) && wall.completes(host, 1001), "{host:?}");
        // The number of the segment that has begun it the server need not have taken.
        assert!(wall.passes(&segment(host, 1001, false, RST, [SERVERS + 1, 0], 0)));
        assert!(wall.passes(&segment(host, 1002, true, SYN, [CLIENTS, 0], 0)));
        assert!(wall.passes(&segment(host, 1002, false, SYN | ACK, [SERVERS, CLIENTS + 1], 0)));
        for number in [50, 1] {
            assert!(wall.passes(&segment(host, 1002, true, ACK, [CLIENTS + number, SERVERS + 1], 0)));
        }
        assert!(wall.passes(&segment(host, 1002, true, RST, [CLIENTS + 50, 0], 0)) && !wall.opens(host, 1003));
    }
}

/// Neither numbers from too far away nor a FIN hide what came behind the last acknowledgement.
#[test]
fn a_reset_that_has_become_old_ends_nothing() {
    let Some(mut wall) = Wall::new() else { return };
    for host in FAMILIES {
        wall.limit(host, 1);
        let first = CLIENTS + 1;
        let from =
            |flags, off: u32, bytes| segment(host, 1000, true, flags, [first.wrapping_add(off), SERVERS + 1], bytes);
        let acks = |off| segment(host, 1000, false, ACK, [SERVERS + 1, first + off], 0);
        assert!(wall.opens(host, 1000) && !wall.opens(host, 1001));
        // The server takes the third one, and has not acknowledged it yet.
        for (off, bytes) in [(0x7fff_ff00, 10), (0x8000_0010, 10), (0, 100)] {
            assert!(wall.passes(&from(ACK, off, bytes)));
        }
        assert!(wall.passes(&from(RST, 0, 0)) && !wall.completes(host, 1001), "{host:?}: it has sent more");
        assert!(wall.passes(&acks(100)));
        // Of two FINs it takes the first.
        for off in [100, 99] {
            assert!(wall.passes(&from(FIN | ACK, off, 0)));
            assert!(wall.passes(&from(RST, 100, 0)) && !wall.completes(host, 1001), "{host:?}: it has sent a FIN");
        }
        assert!(wall.passes(&from(FIN | ACK, 100, 0)) && wall.passes(&acks(101)) && !wall.completes(host, 1001));
        assert!(wall.passes(&from(RST, 101, 0)) && wall.completes(host, 1001), "{host:?}");
    }
}

/// A program on this host may leave the rest of the sum to others. Where nobody does, the server drops it.
#[test]
fn a_reset_with_a_part_of_its_sum_is_one_unless_all_have_whole_sums() {
    let Some(mut wall) = Wall::new() else { return };
    for host in FAMILIES {
        wall.limit(host, 1);
        let partial = |port| {
            let mut frame = segment(host, port, true, RST, [CLIENTS + 1, 0], 0);
            partial_checksum(&mut frame);
            frame
        };
        assert!(wall.opens(host, 1000) && wall.passes(&partial(1000)) && wall.opens(host, 1001), "{host:?}");
        wall.set("counting", &[0; 4], &2u32.to_ne_bytes());
        assert!(wall.passes(&partial(1001)) && !wall.opens(host, 1002), "{host:?}");
        assert!(wall.passes(&segment(host, 1001, true, RST, [CLIENTS + 1, 0], 0)) && wall.completes(host, 1002));
        wall.set("counting", &[0; 4], &1u32.to_ne_bytes());
    }
}

/// Its timestamps are the only options that a reset has.
#[test]
fn a_reset_with_timestamps_ends_a_connection() {
    let Some(mut wall) = Wall::new() else { return };
    for host in FAMILIES {
        wall.limit(host, 1);
        assert!(wall.opens(host, 1000) && !wall.opens(host, 1001));
        let mut frame = segment(host, 1000, true, RST, [CLIENTS + 1, 0], 12);
        let tcp = frame.len() - 32;
        frame[tcp + 12] = 8 << 4;
        frame[tcp + 20..].copy_from_slice(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        let faulty = frame.clone();
        fill_checksum(&mut frame);
        assert!(wall.passes(&faulty) && !wall.completes(host, 1001));
        assert!(wall.passes(&frame) && wall.completes(host, 1001), "{host:?}");
    }
}

/// The server acknowledges the FIN that it takes.
#[test]
fn a_fin_that_the_server_does_not_acknowledge_ends_nothing() {
    let Some(mut wall) = Wall::new() else { return };
    for host in FAMILIES {
        wall.limit(host, 1);
        assert!(wall.opens(host, 1000) && !wall.opens(host, 1001));
        let from = |is_clients, flags, numbers, payload| segment(host, 1000, is_clients, flags, numbers, payload);
        assert!(wall.passes(&from(false, FIN | ACK, [SERVERS + 1, CLIENTS + 1], 0)));
        for number in [CLIENTS, CLIENTS + 1, CLIENTS + 500] {
            assert!(wall.passes(&from(true, FIN | ACK, [number, SERVERS + 2], 0)));
            assert!(wall.passes(&from(false, ACK, [SERVERS + 2, CLIENTS + 1], 0)), "another FIN may have its number");
            assert!(!wall.completes(host, 1001), "{host:?}: {number}");
        }
        // Payload in its place, before it and behind it.
        assert!(wall.passes(&from(true, FIN | ACK, [CLIENTS + 1, SERVERS + 2], 0)));
        assert!(wall.passes(&from(true, ACK, [CLIENTS + 1, SERVERS + 2], 1)));
        assert!(wall.passes(&from(false, ACK, [SERVERS + 2, CLIENTS + 2], 0)) && !wall.completes(host, 1001));
        assert!(wall.passes(&from(true, ACK, [CLIENTS + 2, SERVERS + 2], 1)));
        assert!(wall.passes(&from(true, FIN | ACK, [CLIENTS + 2, SERVERS + 2], 0)));
        assert!(wall.passes(&from(false, ACK, [SERVERS + 2, CLIENTS + 3], 0)) && !wall.completes(host, 1001));
        assert!(wall.passes(&from(true, FIN | ACK, [CLIENTS + 3, SERVERS + 2], 7)));
        assert!(!wall.completes(host, 1001), "{host:?}: nobody has acknowledged it");
        assert!(wall.passes(&from(false, ACK, [SERVERS + 2, CLIENTS + 11], 0)) && wall.completes(host, 1001));
    }
}

/// Their ports are the same, and the network, but not the address.
#[test]
fn the_place_of_another_address_is_another_ones() {
    let Some(mut wall) = Wall::new() else { return };
    let [one, other] = [1, 2].map(|last| Host::Six(1, last));
    wall.limit(one, 1);
    assert!(wall.opens(one, 1000) && !wall.opens(other, 1000));
    assert!(wall.passes(&segment(one, 1000, true, RST, [CLIENTS + 1, 0], 0)) && wall.completes(other, 1000));
    assert!(wall.passes(&segment(one, 1000, false, ACK, [SERVERS + 1, CLIENTS + 1], 100)));
    has_no_place(&mut wall, one, 1000);
}

/// It was idle, and has lost its place to one that differs by its address alone: its end frees nothing.
#[test]
fn who_has_lost_its_place_frees_none_when_it_ends() {
    let Some(mut wall) = Wall::new() else { return };
    let [one, other] = [1, 2].map(|last| Host::Six(1, last));
    wall.limit(one, 300);
    assert!((1000..1300).all(|port| wall.opens(one, port)));
    wall.knows(other, 1000, 0, 0);
    wall.ends(one, 1200, true);
    wall.ends(other, 1000, true);
    assert!(wall.opens(one, 1500), "the place that is free is found at once");
    assert!(!wall.opens(one, 1501));
}

#[test]
fn a_fin_that_the_server_does_not_believe_lets_its_client_send_nothing() {
    let Some(mut wall) = Wall::new() else { return };
    for host in FAMILIES {
        wall.limit(host, 1);
        assert!(wall.opens(host, 1000) && !wall.opens(host, 1001));
        wall.ends(host, 1000, true);
        assert!(wall.completes(host, 1001));
        assert!(wall.passes(&segment(host, 1000, true, ACK, [CLIENTS + 1, SERVERS + 2], 0)), "it has the server's");
        assert!(!wall.passes(&segment(host, 1000, true, ACK, [CLIENTS + 1, SERVERS + 2], 100)));
        assert!(wall.passes(&segment(host, 1001, true, ACK, [CLIENTS + 1, SERVERS + 1], 100)));
        // The server may have gone to TIME-WAIT, and a forger does not know the numbers.
        assert!(wall.passes(&segment(host, 1001, false, RST, [SERVERS + 1, 0], 0)));
        assert!(wall.passes(&segment(host, 1000, true, ACK, [CLIENTS + 77, 1], 100)) && !wall.opens(host, 1002));
        assert!(wall.passes(&segment(host, 1000, false, ACK, [SERVERS + 2, CLIENTS + 2], 0)));
        assert!(wall.completes(host, 1002), "{host:?}: its answer gives the place back");
    }
}

/// What is known of the connection before does not spare the one after it the place.
#[test]
fn a_connection_between_the_ends_of_one_that_has_ended_needs_a_place() {
    let Some(mut wall) = Wall::new() else { return };
    for host in FAMILIES {
        wall.limit(host, 1);
        let answers = |wall: &mut Wall, number| {
            assert!(wall.passes(&segment(host, 1000, true, SYN, [CLIENTS, 0], 0)));
            assert!(wall.passes(&segment(host, 1000, false, SYN | ACK, [number, CLIENTS + 1], 0)));
        };
        let acknowledges =
            |wall: &mut Wall, number: u32| wall.passes(&segment(host, 1000, true, ACK, [CLIENTS + 1, number + 1], 0));
        assert!(wall.opens(host, 1000));
        wall.ends(host, 1000, true);
        answers(&mut wall, 77_000);
        assert!(acknowledges(&mut wall, 77_000) && !wall.opens(host, 1001), "{host:?}: it counts");
        assert!(wall.passes(&segment(host, 1000, false, RST, [77_001, 0], 0)) && wall.completes(host, 1001));
        answers(&mut wall, 88_000);
        assert!(!acknowledges(&mut wall, 88_000), "{host:?}: there is no place");
        // Who has not seen the answer takes none.
        wall.ends(host, 1001, true);
        assert!(acknowledges(&mut wall, 99_000) && wall.opens(host, 1002));
        wall.ends(host, 1002, true);
        assert!(acknowledges(&mut wall, 88_000) && !wall.opens(host, 1003));
        // It may end at once by a reset of its client's, whose numbers are others than before.
        assert!(wall.passes(&segment(host, 1000, true, SYN, [66_000, 0], 0)));
        assert!(wall.passes(&segment(host, 1000, false, SYN | ACK, [55_000, 66_001], 0)));
        assert!(wall.passes(&segment(host, 1000, true, ACK, [66_001, 55_001], 0)) && !wall.completes(host, 1003));
        assert!(wall.passes(&segment(host, 1000, true, RST, [66_001, 0], 0)) && wall.completes(host, 1003));
        wall.ends(host, 1003, true);
        answers(&mut wall, 88_000);
        assert!(acknowledges(&mut wall, 88_000) && !wall.completes(host, 1003));
        // The server's FIN was the last one's.
        assert!(wall.passes(&segment(host, 1000, false, FIN | ACK, [88_001, CLIENTS + 1], 0)));
        answers(&mut wall, 99_000);
        assert!(acknowledges(&mut wall, 99_000));
        assert!(wall.passes(&segment(host, 1000, true, FIN | ACK, [CLIENTS + 1, 99_001], 0)));
        assert!(!wall.completes(host, 1003), "{host:?}: the server goes on");
        assert!(wall.passes(&segment(host, 1000, false, FIN | ACK, [99_001, CLIENTS + 2], 0)));
        assert!(wall.completes(host, 1003));
    }
}

/// So it answers what acknowledges a wrong number before the handshake is complete, which goes on.
#[test]
fn a_reset_of_the_servers_that_ends_nothing_gives_no_client_two_places() {
    let Some(mut wall) = Wall::new() else { return };
    for host in FAMILIES {
        wall.limit(host, 1);
        let goes_on = segment(host, 1000, false, ACK, [SERVERS + 1, CLIENTS + 1], 100);
        let reset = segment(host, 1000, false, RST, [9, 0], 0);
        assert!(wall.opens(host, 1000) && wall.passes(&reset) && wall.passes(&goes_on));
        assert!(!wall.opens(host, 1001), "{host:?}: it has its place again");
        assert!(wall.passes(&reset) && wall.completes(host, 1001));
        assert!(!wall.completes(host, 1000), "{host:?}: its handshake may only be complete now");
        assert!(wall.passes(&goes_on));
        has_no_place(&mut wall, host, 1000);
        // Nothing of it is dropped where there is no limit any more.
        wall.limit(host, 16_385);
        assert!(wall.completes(host, 1000));
    }
}

#[test]
fn a_connection_that_goes_on_with_another_place_has_no_two() {
    let Some(mut wall) = Wall::new() else { return };
    for host in FAMILIES {
        wall.limit(host, 2);
        assert!(wall.opens(host, 1000) && wall.opens(host, 1001));
        (1000..1002).for_each(|port| wall.ends(host, port, true));
        assert!(wall.passes(&segment(host, 1000, true, ACK, [CLIENTS + 1, SERVERS + 1], 100)));
        assert!(wall.opens(host, 1002) && !wall.opens(host, 1003), "{host:?}");
    }
}
