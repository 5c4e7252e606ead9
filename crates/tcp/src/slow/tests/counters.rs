//! What happens twice is counted twice.

use super::world::*;
use crate::counters::{Counters, Drop};
use crate::flow::Owner;
use crate::messages::ToSlow;
use crate::slow::SlowConfig;
use towpath_wire::flags;

/// Does something with a peer's port, for each of two ports. Returns the counters.
fn twice(mut bench: Bench, mut event: impl FnMut(&mut Bench, u16)) -> Counters {
    [4000, 4001].into_iter().for_each(|port| event(&mut bench, port));
    *bench.slow.counters()
}

/// The ACK of a SYN-ACK.
fn ack(syn_ack_seq: u32) -> Peer {
    Peer { seq: 5001, ack: syn_ack_seq.wrapping_add(1), flags: flags::ACK, ..stamped(2) }
}

#[test]
fn segments_of_installed_flows_are_counted_when_they_are_relayed() {
    let counters = twice(Bench::listening(8), |bench, port| {
        bench.child(port);
        bench.for_server(port, Peer { seq: 5001, flags: flags::ACK, payload: 5, ..stamped(2) });
    });
    assert_eq!((counters.opened, counters.relayed), (2, 2));
}

#[test]
fn resets_are_counted_both_ways() {
    let strangers = twice(Bench::listening(8), |bench, port| {
        bench.for_server(port, Peer { seq: 9, ack: 77, flags: flags::ACK, ..Peer::default() });
        assert_eq!(bench.frame().flags, flags::RST);
    });
    assert_eq!((strangers.resets, strangers.drops[Drop::NoSocket as usize]), (2, 2));
    let ended = twice(Bench::listening(8), |bench, port| {
        bench.for_server(port, syn(5000));
        assert_eq!(bench.frame().flags, flags::SYN | flags::ACK);
        if port == 4001 {
            assert!(bench.slow.close(bench.now, SERVER, &mut bench.world));
            assert_eq!(
                bench.frames().iter().map(|frame| frame.flags).collect::<Vec<_>>(),
                [flags::RST | flags::ACK; 2]
            );
        }
    });
    assert_eq!(ended.resets, 2, "the half-open connections of a listener that ends");
    let half_open = twice(Bench::listening(8), |bench, port| {
        bench.for_server(port, syn(5000));
        bench.frame();
        bench.for_server(port, Peer { seq: 5001, flags: flags::RST, ..Peer::default() });
    });
    assert_eq!((half_open.resets, half_open.failed), (2, 2), "by the peer");
    let refused = twice(Bench::new(), |bench, _| {
        bench.connect();
        let sent = bench.frame();
        let answer = Peer { ack: sent.seq.wrapping_add(1), flags: flags::RST | flags::ACK, ..Peer::default() };
        bench.for_client(sent.source_port, answer);
    });
    assert_eq!((refused.resets, refused.failed), (2, 2), "the answer to our SYN");
}

#[test]
fn repetitions_and_time_outs_are_counted() {
    let syns = twice(Bench::new(), |bench, port| {
        if port == 4000 {
            bench.connect();
        }
        bench.pass_ms(2000);
    });
    assert_eq!(syns.retransmits, 2, "after 1 s and 3 s");
    let mut bench = Bench::new();
    let flow = bench.client();
    bench.reading(flow).srtt_us = 10_000;
    bench.outstanding(flow, 1000);
    bench.pass_ms(700);
    assert_eq!(bench.slow.counters().timeouts, 2, "after 200 ms and 600 ms");
}

#[test]
fn cookies_and_missing_ports_are_counted() {
    let mut bench = Bench::listening(8);
    (0..8).for_each(|port| bench.for_server(10_000 + port, syn(1)));
    bench.frames();
    let cookies = twice(bench, |bench, port| {
        bench.for_server(port, Peer { options: Default::default(), ..syn(5000) });
        let answer = bench.frame();
        bench.for_server(port, Peer { options: Default::default(), ..ack(answer.seq) });
    });
    assert_eq!((cookies.cookies_sent, cookies.cookies_accepted, cookies.opened), (2, 2, 2));
    let config = SlowConfig { first_port: 40_000, last_port: 40_000, ..SlowConfig::default() };
    let mut bench = Bench::with(config);
    bench.connect();
    let ports = twice(bench, |bench, port| {
        let connect = bench.slow.connect(bench.now, Owner(port.into()), PEER, 80, None, false, &mut bench.world);
        assert!(connect.is_err());
    });
    assert_eq!(ports.out_of_ports, 2);
}

/// A flow that the fast path has removed is nobody's.
#[test]
fn segments_for_a_flow_on_its_way_out_are_counted_as_nobodys() {
    let counters = twice(Bench::listening(8), |bench, port| {
        let flow = bench.child(port);
        bench.say(ToSlow::Reset(flow));
        bench.for_server(port, Peer { seq: 5001, flags: flags::ACK, ..stamped(2) });
    });
    assert_eq!((counters.drops[Drop::NoSocket as usize], counters.relayed), (2, 0));
}
