//! The ways of spliced connections: ports, families, and what routers say.

use super::splice::{EAGAIN, EOPNOTSUPP, ETIMEDOUT, Proxy};
use super::world::*;
use crate::counters::Drop;
use crate::flow::{FlowId, FourTuple, Link, Owner, PortId};
use crate::messages::{Held, ToFast};
use crate::slow::Route;
use std::collections::HashMap;
use towpath_wire::icmp::{self, IcmpError, IcmpKind};

/// Opens a connection over another port, or over a link that is otherwise another one.
fn by(link: Link) -> impl FnOnce(&mut Bench) -> FlowId {
    move |bench| {
        bench.world.route = Some(Route::Via { link, source: US, mtu: 1500 });
        let flow = bench.client();
        bench.world.route = None;
        flow
    }
}

/// A router takes no more than 1,400 bytes of what we send on this connection.
fn too_big(tuple: FourTuple, seq: u32) -> IcmpError {
    let FourTuple { local, local_port, remote, remote_port } = tuple;
    IcmpError { kind: IcmpKind::TooBig { mtu: 1400 }, local, local_port, remote, remote_port, seq, packet_bytes: 1500 }
}

#[test]
fn connections_over_two_ports_name_the_way_out_and_other_links_are_refused() {
    let mut proxy = Proxy::with(by(Link { port: PortId(2), source: [7; 6], ..LINK }));
    proxy.ask().unwrap();
    proxy.held(0, Held::Resting);
    proxy.held(1, Held::Resting);
    proxy.bench.poll();
    assert_eq!(proxy.answers(), [0]);
    let ways = [0, 1].map(|side| proxy.bench.world.splices.as_ref().unwrap()[&proxy.tuple(side)].0);
    assert_eq!(ways.map(|way| way.link.port), [PortId(2), PortId(1)]);
    assert_eq!(ways.map(|way| way.link.source), [[7; 6], LINK.source]);
    let mut proxy = Proxy::with(by(Link { vlan: Some(5), ..LINK }));
    assert_eq!(proxy.ask(), Err(EOPNOTSUPP), "one has a tag");
    // Of one VLAN they keep it, also on another link of it. Another VLAN is another network.
    let link = Link { vlan: Some(5), ..LINK };
    let mut bench = Bench::listening(10);
    bench.world.splices = Some(HashMap::new());
    let flows = [CLIENT, Owner(77)].map(|owner| {
        bench.world.route = Some(Route::Via { link, source: US, mtu: 1500 });
        bench.client_of(owner, PEER, US)
    });
    let owners = flows.map(|flow| bench.world.setups[&flow].owner);
    flows.iter().for_each(|flow| _ = bench.reading(*flow));
    let Bench { slow, world, readings, now } = &mut bench;
    assert_eq!(slow.splice(*now, owners, 1, readings, world), Ok(()), "both have the tag");
}

#[test]
fn connections_of_two_families_and_of_one_link_alone_are_refused() {
    let mut proxy = Proxy::with(|bench| bench.client_of(CLIENT, PEER6, US6));
    assert_eq!(proxy.ask(), Err(EOPNOTSUPP), "the other one is over IPv4");
    let [us, peer] = ["fe80::1", "fe80::2"].map(|address| address.parse().unwrap());
    for (remote, local, answer) in [(PEER6, US6, Ok(())), (peer, us, Err(EOPNOTSUPP))] {
        let mut bench = Bench::listening(10);
        bench.world.splices = Some(HashMap::new());
        bench.world.route = Some(Route::Via { link: LINK, source: local, mtu: 1500 });
        let flows = [CLIENT, Owner(77)].map(|owner| bench.client_of(owner, remote, local));
        for flow in flows {
            bench.reading(flow).mss = 1428;
        }
        let owners = flows.map(|flow| bench.world.setups[&flow].owner);
        let Bench { slow, world, readings, now } = &mut bench;
        assert_eq!(slow.splice(*now, owners, 1, readings, world), answer, "{remote}");
    }
}

/// What the peers are told by ICMP, since the last call.
fn told(proxy: &mut Proxy) -> Vec<IcmpError> {
    let mut told = Vec::new();
    proxy.bench.world.sent.retain(|(_, message)| match message {
        ToFast::Transmit(_, frame) => icmp::parse(frame).map(|error| told.push(error)).is_none(),
        _ => true,
    });
    told
}

#[test]
fn a_path_that_a_router_has_found_narrow_is_no_hindrance_and_one_that_was_guessed_is() {
    for (is_told, answer) in [(true, Ok(())), (false, Err(EOPNOTSUPP))] {
        let mut proxy = Proxy::with(Bench::client);
        let flow = proxy.flows[1];
        if is_told {
            proxy.bench.outstanding(flow, 5000);
            let tuple = proxy.tuple(1);
            let error = too_big(tuple, proxy.bench.readings.0[&flow].snd_una.0);
            let Bench { slow, world, now, .. } = &mut proxy.bench;
            slow.on_icmp(*now, error, world);
            proxy.bench.poll();
        }
        proxy.bench.reading(flow).mss = 1348;
        assert_eq!(proxy.ask(), answer);
    }
}

#[test]
fn a_router_that_finds_a_segment_too_big_is_passed_on_to_whoever_has_sent_it() {
    let mut proxy = Proxy::begun();
    let Proxy { flows, .. } = proxy;
    let [came, went] = [0, 1].map(|side| proxy.tuple(side));
    let sent = proxy.bench.readings.0[&flows[0]].rcv_nxt.add(5000);
    let way = proxy.bench.world.splices.as_ref().unwrap()[&came].0;
    let error = too_big(went, sent.add(way.seq).0);
    let hear = |proxy: &mut Proxy, error| {
        let Bench { slow, world, now, .. } = &mut proxy.bench;
        slow.on_icmp(*now, error, world);
        told(proxy)
    };
    // The sender reads it as an error about what it has sent to us.
    let expected = IcmpError {
        local: came.remote,
        local_port: came.remote_port,
        remote: came.local,
        remote_port: came.local_port,
        seq: sent.0,
        ..error
    };
    assert_eq!(hear(&mut proxy, error), [expected]);
    // Many say so at once, which is told ten times a second at most.
    assert!(hear(&mut proxy, error).is_empty());
    proxy.bench.pass_ms(100);
    // A forged one makes nobody send tiny packets, and one that quotes nothing outstanding is not passed on.
    let tiny = IcmpError { kind: IcmpKind::TooBig { mtu: 68 }, ..error };
    assert_eq!(hear(&mut proxy, tiny)[0].kind, IcmpKind::TooBig { mtu: 552 });
    proxy.bench.pass_ms(100);
    let acked = proxy.seen(1).acked;
    for seq in [acked.sub(1), acked.add((1 << 20) + 1), acked.add(1 << 29)] {
        assert!(hear(&mut proxy, IcmpError { seq: seq.0, ..error }).is_empty());
    }
    assert_eq!(proxy.bench.slow.counters().drops[Drop::BadIcmp as usize], 3);
    // Those are not counted against the others.
    assert_eq!(hear(&mut proxy, IcmpError { seq: acked.add(1 << 20).0, ..error }).len(), 1);
    proxy.bench.pass_ms(100);
    // Whatever else a router says is the peers' matter, and they hear nothing of it.
    assert!(hear(&mut proxy, IcmpError { kind: IcmpKind::NetworkUnreachable, ..error }).is_empty());
    assert!(proxy.steps().is_empty() && !proxy.is_over());
}

#[test]
fn what_routers_say_of_one_splice_takes_no_other_answers_away() {
    let mut proxy = Proxy::begun();
    proxy.bench.slow.config.replies_per_s = 0;
    let went = proxy.tuple(1);
    let error = too_big(went, proxy.seen(1).acked.0);
    let Bench { slow, world, now, .. } = &mut proxy.bench;
    slow.on_icmp(*now, error, world);
    assert_eq!(told(&mut proxy).len(), 1);
}

#[test]
fn a_forged_acknowledgement_neither_adds_nor_stops_the_count() {
    let mut proxy = Proxy::begun();
    let start = proxy.bench.readings.0[&proxy.flows[0]].rcv_nxt;
    // Bytes that have gone on, how far somebody says that they have arrived, and what counts.
    let steps = [
        (1000, 1000, 1000),
        // Forged, far ahead: what has gone on counts, and no more.
        (3000, 2_000_000_000, 3000),
        (4_000_000, 3000, 3000),
        (4_000_000, 3_000_000, 3_000_000),
        // Forged, far behind. Then real ones.
        (6_000_000, 2_500_000_000u32, 3_000_000),
        (6_000_000, 5_000_000, 6_000_000),
        (9_000_000, 8_000_000, 9_000_000),
        (9_500_000, 9_500_000, 9_500_000),
    ];
    for (bytes, upto, told) in steps {
        proxy.seen(0).bytes = bytes;
        proxy.acknowledged(0, start.add(upto));
        proxy.bench.pass_ms(150);
        assert_eq!(proxy.bench.world.passed_on[&proxy.owners[0]], told, "{bytes} {upto}");
    }
    assert_eq!(proxy.bench.world.passed_on[&proxy.owners[1]], 0);
}

#[test]
fn an_acknowledgement_that_was_long_on_its_way_takes_nothing_back() {
    let mut proxy = Proxy::begun();
    let ends = proxy.flows.map(|flow| proxy.bench.readings.0[&flow].rcv_nxt);
    let delta = proxy.bench.world.splices.as_ref().unwrap()[&proxy.tuple(0)].0.seq;
    // The other peer has acknowledged all and the FIN. Then an old acknowledgement comes.
    proxy.seen(0).bytes = 2_000_000;
    proxy.seen(0).fin = Some(ends[0].add(2_000_001));
    proxy.acknowledged(0, ends[0].add(1_000_000));
    let passed = |proxy: &mut Proxy, newest: u32| {
        proxy.seen(1).newest = ends[0].add(newest).add(delta);
        proxy.bench.pass_ms(150);
        proxy.bench.world.passed_on[&proxy.owners[0]]
    };
    // More than was sent nobody has acknowledged.
    assert_eq!(passed(&mut proxy, 2_000_002), 1_000_000);
    assert!(proxy.steps().is_empty());
    assert_eq!(passed(&mut proxy, 2_000_001), 2_000_000);
    assert_eq!(proxy.steps(), [format!("ended(none) {}", proxy.flows[0].0)], "its end has arrived");
}

#[test]
fn who_asks_again_after_the_time_is_over_hears_of_it_once() {
    for swapped in [false, true] {
        let mut proxy = Proxy::new();
        proxy.ask().unwrap();
        proxy.held(1, Held::Unread);
        assert_eq!(proxy.answers(), [EAGAIN]);
        proxy.bench.pass_ms(1100);
        let mut owners = proxy.owners;
        if swapped {
            owners.reverse();
        }
        assert!(proxy.answers().is_empty());
        assert_eq!(proxy.ask_for(owners), Err(ETIMEDOUT));
        proxy.ask().unwrap();
        // Much later it is another attempt.
        proxy.held(1, Held::Unread);
        proxy.bench.pass_ms(2500);
        proxy.ask().unwrap();
    }
}

#[test]
fn a_neighbour_that_is_asked_for_anew_stands_in_no_splices_way() {
    let mut proxy = Proxy::new();
    proxy.bench.world.route = Some(Route::Resolving);
    proxy.ask().unwrap();
    proxy.held(0, Held::Resting);
    proxy.held(1, Held::Resting);
    proxy.bench.poll();
    assert_eq!(proxy.answers(), [0]);
    let way = proxy.bench.world.splices.as_ref().unwrap()[&proxy.tuple(0)].0;
    assert_eq!(way.link, LINK);
}

#[test]
fn a_splice_follows_a_route_to_another_port_unless_it_is_narrower_or_none() {
    for (port, mtu, follows) in [(2, 1500, true), (2, 1400, false), (9, 1500, false)] {
        let mut proxy = Proxy::begun();
        let link = Link { port: PortId(port), destination: [9; 6], ..LINK };
        proxy.bench.world.route = Some(Route::Via { link, source: US, mtu });
        let Bench { slow, world, now, .. } = &mut proxy.bench;
        slow.retry_routes(*now, world);
        proxy.bench.pass_ms(200);
        assert_eq!(!proxy.is_over(), follows, "{port} {mtu}");
        if follows {
            let ways = [0, 1].map(|side| proxy.bench.world.splices.as_ref().unwrap()[&proxy.tuple(side)].0.link);
            assert_eq!(ways, [link; 2]);
        }
    }
}
