//! IPv6, listeners of both families, and VLANs.

use super::world::*;
use crate::flow::{Link, Owner};
use crate::messages::ToFast;
use crate::slow::{ConnectError, Route, TcpState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_wire::{Options, flags};

const ANY: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
const ANY_V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const EADDRINUSE: i32 = 98;

fn listen(bench: &mut Bench, owner: u64, addr: IpAddr, v6only: bool) -> Result<(), i32> {
    bench.slow.listen(bench.now, Owner(owner), addr, 80, v6only, 8, &mut bench.world)
}

/// The number of SYN-ACKs to a SYN to this address.
fn answers(bench: &mut Bench, from: IpAddr, port: u16, to: IpAddr) -> usize {
    bench.segment_at((from, port), (to, 80), syn(5000));
    bench.frames().iter().filter(|frame| frame.flags == flags::SYN | flags::ACK).count()
}

#[test]
fn a_listener_on_the_ipv6_wildcard_takes_ipv4_too() {
    let mut bench = Bench::new();
    listen(&mut bench, 1, ANY, false).unwrap();
    assert_eq!(bench.world.listening.len(), 2, "both families are steered");
    assert_eq!(answers(&mut bench, PEER6, 4000, US6), 1);
    assert_eq!(answers(&mut bench, PEER, 4000, US), 1);
    bench.slow.close(bench.now, Owner(1), &mut bench.world);
    assert!(bench.world.listening.is_empty());
}

#[test]
fn v6only_leaves_ipv4_to_another_listener() {
    let mut bench = Bench::new();
    listen(&mut bench, 1, ANY, true).unwrap();
    assert_eq!(bench.world.listening.len(), 1);
    assert_eq!(answers(&mut bench, PEER6, 4000, US6), 1);
    assert_eq!(answers(&mut bench, PEER, 4000, US), 0);
    assert_eq!(listen(&mut bench, 2, ANY_V4, false), Ok(()));
    assert_eq!(answers(&mut bench, PEER, 4001, US), 1);
}

#[test]
fn wildcards_that_would_share_a_port_are_refused() {
    let mut bench = Bench::new();
    listen(&mut bench, 1, ANY, false).unwrap();
    assert_eq!(listen(&mut bench, 2, ANY_V4, false), Err(EADDRINUSE));
    assert_eq!(listen(&mut bench, 3, US, false), Ok(()), "a single address is more specific");
    let mut bench = Bench::new();
    listen(&mut bench, 1, ANY_V4, false).unwrap();
    assert_eq!(listen(&mut bench, 2, ANY, false), Err(EADDRINUSE));
    assert_eq!(listen(&mut bench, 2, ANY, true), Ok(()));
}

#[test]
fn mss_over_ipv6_is_mtu_less_60_and_1220_by_default() {
    let mut bench = Bench::new();
    listen(&mut bench, 1, ANY, false).unwrap();
    // RFC 9293 MUST-15: a peer without an MSS option.
    let bare = Peer { seq: 5000, flags: flags::SYN, options: Options::default(), ..Default::default() };
    bench.segment_at((PEER6, 4000), (US6, 80), bare);
    let answer = bench.frame();
    assert_eq!((answer.source, answer.destination, answer.options.mss), (US6, PEER6, Some(1440)));
    let ack = Peer { seq: 5001, ack: answer.seq.wrapping_add(1), flags: flags::ACK, ..Default::default() };
    bench.segment_at((PEER6, 4000), (US6, 80), ack);
    let setup = bench.world.setups.values().next().unwrap();
    assert_eq!((setup.mss, setup.tuple.local, setup.tuple.remote), (1220, US6, PEER6));
}

#[test]
fn a_connect_over_ipv6_is_answered_and_shown() {
    let mut bench = Bench::new();
    bench.slow.connect(bench.now, CLIENT, PEER6, 80, None, false, &mut bench.world).unwrap();
    let sent = bench.frame();
    assert_eq!((sent.source, sent.destination, sent.options.mss), (US6, PEER6, Some(1440)));
    let answer = Peer { ack: sent.seq.wrapping_add(1), flags: flags::SYN | flags::ACK, ..syn(7000) };
    bench.segment_at((PEER6, 80), (US6, sent.source_port), answer);
    assert_eq!(bench.states(), [TcpState::Established]);
    assert_eq!(bench.slow.connections()[0].tuple.remote, PEER6);
}

#[test]
fn a_socket_bound_in_the_other_family_is_the_kernels() {
    let mut bench = Bench::new();
    let result = bench.slow.connect(bench.now, CLIENT, PEER, 80, Some((US6, 4000)), false, &mut bench.world);
    assert_eq!(result, Err(ConnectError::NotOurs));
    for remote in [ANY, "ff02::1".parse().unwrap()] {
        let result = bench.slow.connect(bench.now, CLIENT, remote, 80, None, false, &mut bench.world);
        assert_eq!(result, Err(ConnectError::NotOurs), "{remote}");
    }
}

#[test]
fn a_route_with_a_vlan_tags_handshake_and_flow() {
    let mut bench = Bench::new();
    let link = Link { vlan: Some(7), ..LINK };
    bench.world.route = Some(Route::Via { link, source: US6, mtu: 1500 });
    listen(&mut bench, 1, ANY, false).unwrap();
    bench.segment_at((PEER6, 4000), (US6, 80), syn(5000));
    let answer = bench.frame();
    assert_eq!(answer.vlan, Some(7));
    let ack = Peer { seq: 5001, ack: answer.seq.wrapping_add(1), flags: flags::ACK, ..stamped(2) };
    bench.segment_at((PEER6, 4000), (US6, 80), ack);
    let installed = bench.world.sent.iter().any(|(_, m)| matches!(m, ToFast::Install(setup) if setup.link == link));
    assert!(installed);
}

#[test]
fn an_answer_to_a_stray_segment_has_its_vlan() {
    let mut bench = Bench::new();
    let mut bytes = frame((PEER, 4000), (US, 81), syn(5000)).to_vec();
    bytes.splice(12..12, [0x81, 0, 0, 9]);
    bench.slow.on_message(
        bench.now,
        0,
        crate::messages::ToSlow::Segment(crate::flow::PortId(1), bytes.into()),
        &mut bench.world,
    );
    let reset = bench.frame();
    assert_eq!((reset.flags & flags::RST, reset.vlan), (flags::RST, Some(9)));
}
