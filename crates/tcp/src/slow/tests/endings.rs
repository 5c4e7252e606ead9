//! What the host is told of how connections have ended.

use super::splice::Proxy;
use super::world::*;
use crate::flow::{Link, PortId, flow_flags as bit};
use crate::messages::ToSlow;
use crate::slow::Ending::{
    Abandoned, Aborted, Cut, Left, NoAnswer, NoFin, NotKept, OtherEnd, PeerReset, PeersClosed, SpliceLost, Violation,
};
use crate::slow::{Ending, Route};
use std::collections::HashMap;

/// How both ends of a splice have ended, which is over.
fn of_both(mut proxy: Proxy) -> [Ending; 2] {
    assert!(proxy.is_over());
    for flow in proxy.flows {
        proxy.bench.say(ToSlow::Removed(flow));
    }
    let ended = proxy.bench.world.ended.clone();
    assert_eq!(ended.len(), 2, "once each");
    proxy.owners.map(|owner| ended.iter().find(|(of, _)| *of == owner).unwrap().1)
}

/// Both peers have closed, and the applications were told.
fn peers_close(proxy: &mut Proxy) {
    for side in 0..2 {
        let fin = proxy.bench.readings.0[&proxy.flows[side]].rcv_nxt.add(1);
        (proxy.seen(side).fin, proxy.seen(side).segments) = (Some(fin), 1);
        proxy.acknowledged(side, fin);
    }
    proxy.bench.pass_ms(150);
}

/// An end of a splice can tell what its own peer and its own application have done, and no more.
#[test]
fn each_end_of_a_splice_has_its_own_reason() {
    type Way = fn(&mut Proxy);
    let ways: [(&str, Way, [Ending; 2]); 10] = [
        ("an application aborts", |proxy| proxy.bench.say(ToSlow::Aborted(proxy.flows[1])), [OtherEnd, Aborted]),
        ("or violates", |proxy| proxy.bench.say(ToSlow::Violated(proxy.flows[0])), [Violation, OtherEnd]),
        (
            "or is gone",
            |proxy| {
                let Bench { slow, world, .. } = &mut proxy.bench;
                slow.reset(proxy.owners[0], Left, world);
            },
            [Left, OtherEnd],
        ),
        (
            "the operator cuts one",
            |proxy| {
                let Bench { slow, world, .. } = &mut proxy.bench;
                assert!(slow.cut(proxy.owners[1], world));
            },
            [OtherEnd, Cut],
        ),
        (
            "a peer resets",
            |proxy| {
                let next = proxy.bench.readings.0[&proxy.flows[1]].rcv_nxt;
                (proxy.seen(1).rst, proxy.seen(1).segments) = (Some(next), 1);
                proxy.bench.pass_ms(2500);
            },
            [OtherEnd, PeerReset],
        ),
        (
            "the module is taken away",
            |proxy| {
                proxy.bench.world.splices = Some(HashMap::new());
                proxy.bench.pass_ms(200);
            },
            [SpliceLost; 2],
        ),
        (
            "a new path is too narrow",
            |proxy| {
                let link = Link { port: PortId(2), destination: [9; 6], ..LINK };
                proxy.bench.world.route = Some(Route::Via { link, source: US, mtu: 1400 });
                let Bench { slow, world, now, .. } = &mut proxy.bench;
                slow.retry_routes(*now, world);
                proxy.bench.pass_ms(200);
            },
            [SpliceLost; 2],
        ),
        ("nobody says anything", |proxy| proxy.bench.pass_ms(6 * 86_400_000), [NoAnswer(110); 2]),
        (
            "the peers close",
            |proxy| {
                peers_close(proxy);
                proxy.bench.pass_ms(2500);
            },
            [PeersClosed; 2],
        ),
        (
            "and then the application does",
            |proxy| {
                peers_close(proxy);
                proxy.bench.say(ToSlow::Aborted(proxy.flows[0]));
            },
            [PeersClosed; 2],
        ),
    ];
    for (name, way, expected) in ways {
        let mut proxy = Proxy::begun();
        way(&mut proxy);
        assert_eq!(of_both(proxy), expected, "{name}");
    }
}

/// A program that is gone may have left nothing but the wait for the peer's FIN.
#[test]
fn who_has_acknowledged_all_has_let_nobody_wait_for_that() {
    const ALL_IS_ACKED: u64 = bit::FIN_WANTED | bit::FIN_SENT | bit::FIN_ACKED;
    for (flags, why, expected) in [(0, Left, Left), (ALL_IS_ACKED, Left, NoFin), (ALL_IS_ACKED, NotKept, NotKept)] {
        let mut bench = Bench::new();
        let flow = bench.client();
        bench.reading(flow).flags |= flags;
        bench.say(ToSlow::AppClosed(flow));
        bench.poll();
        bench.slow.reset(CLIENT, why, &mut bench.world);
        bench.say(ToSlow::Removed(flow));
        assert_eq!(bench.world.ended, [(CLIENT, expected)], "{flags}");
    }
}

/// Each connect has an end: whoever follows them does not wait for ever.
#[test]
fn a_connect_that_is_abandoned_has_an_end_too() {
    for resolving in [false, true] {
        let mut bench = Bench::new();
        if resolving {
            bench.world.route = Some(Route::Resolving);
        }
        bench.connect();
        assert!(bench.slow.close(bench.now, CLIENT, &mut bench.world));
        bench.pass_ms(1_000_000);
        assert_eq!(bench.world.ended, [(CLIENT, Abandoned)]);
    }
    // A half-open child is nobody's yet.
    let mut bench = Bench::listening(10);
    bench.for_server(4000, syn(5000));
    bench.slow.close(bench.now, SERVER, &mut bench.world);
    assert!(bench.world.ended.is_empty());
}
