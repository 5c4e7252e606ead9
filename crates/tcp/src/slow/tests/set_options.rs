//! Socket options and their effects.

use super::world::*;
use crate::flow::{FlowId, SocketOptions, flow_flags as bit};
use crate::messages::{ToFast, ToSlow};
use crate::slow::{SlowConfig, TcpState};
use towpath_wire::{Segment, flags, parse};

fn set(bench: &mut Bench, owner: crate::flow::Owner, options: SocketOptions) {
    bench.slow.set_options(bench.now, owner, options, &mut bench.world);
}

/// Advances time by `seconds`. Returns each message with its second.
fn watch(bench: &mut Bench, seconds: u64) -> Vec<(u64, String)> {
    let mut seen = Vec::new();
    for t in 1..=seconds {
        bench.pass_ms(1000);
        seen.extend(bench.messages().into_iter().map(|message| (t, message)));
    }
    seen
}

fn kept_alive() -> SocketOptions {
    SocketOptions { keepalive: true, keep_idle_s: 100, keep_interval_s: 10, keep_count: 3, ..SocketOptions::default() }
}

#[test]
fn keepalive_is_off_by_default() {
    let mut bench = Bench::new();
    bench.client();
    assert!(watch(&mut bench, 20_000).is_empty());
}

#[test]
fn an_idle_peer_is_probed_and_given_up() {
    let mut bench = Bench::new();
    set(&mut bench, CLIENT, kept_alive());
    bench.client();
    let seen = watch(&mut bench, 1000);
    let probe = |t| (t, "0:keepalive 0".to_string());
    assert_eq!(seen[..3], [probe(100), probe(110), probe(120)]);
    assert_eq!(seen[3..], [(130, "0:abort 0 rst true errno 110".into()), (130, "0:remove 0".into())]);
}

#[test]
fn probes_without_an_answer_are_shown() {
    let mut bench = Bench::new();
    set(&mut bench, CLIENT, kept_alive());
    bench.client();
    watch(&mut bench, 115);
    assert_eq!(bench.slow.unanswered(CLIENT).probes, 2);
}

/// RFC 9293 MAY-5, MUST-24.
#[test]
fn an_idle_peer_that_answers_is_left_alone() {
    let mut bench = Bench::new();
    let flow = bench.client();
    set(&mut bench, CLIENT, kept_alive());
    let mut probes = 0;
    for _ in 0..10_000 {
        bench.pass_ms(1000);
        for message in bench.messages() {
            assert_eq!(message, "0:keepalive 0");
            bench.reading(flow).segments_heard += 1;
            probes += 1;
        }
    }
    assert!((97..=99).contains(&probes), "{probes}");
    set(&mut bench, CLIENT, SocketOptions::default());
    assert!(watch(&mut bench, 1000).is_empty(), "switched off");
}

#[test]
fn children_inherit_the_options_of_their_listener() {
    let mut bench = Bench::listening(8);
    set(&mut bench, SERVER, SocketOptions { tos: 0xbb, ttl: 7, max_segment: 600, ..kept_alive() });
    bench.for_server(4000, syn(5000));
    let core_frames: Vec<_> = bench.world.sent.iter().filter_map(|(_, m)| transmitted(m)).collect();
    assert_eq!(core_frames[0].options.mss, Some(600));
    assert_eq!(core_frames[0].tos, 0xb8, "the ECN bits are the stack's");
    let answer = bench.frame();
    bench.for_server(4000, Peer { seq: 5001, ack: answer.seq.wrapping_add(1), flags: flags::ACK, ..stamped(1) });
    let setup = &bench.world.setups[&FlowId(0)];
    assert_eq!((setup.tos, setup.ttl, setup.mss), (0xb8, 7, 588));
    bench.messages();
    assert_eq!(watch(&mut bench, 100), [(100, "0:keepalive 0".into())]);
}

fn transmitted(message: &ToFast) -> Option<Segment> {
    match message {
        ToFast::Transmit(_, frame) => parse(frame).ok(),
        _ => None,
    }
}

#[test]
fn options_of_a_socket_that_is_not_yet_connected_wait_for_it() {
    let mut bench = Bench::new();
    set(&mut bench, CLIENT, SocketOptions { max_segment: 1000, syn_retries: 2, ..SocketOptions::default() });
    bench.connect();
    assert_eq!(bench.frame().options.mss, Some(1000));
    let mut seconds = 0;
    while bench.said().is_empty() {
        bench.pass_ms(1000);
        bench.frames();
        seconds += 1;
    }
    assert_eq!(seconds, 7, "1 + 2 + 4 (TCP_SYNCNT)");
    bench.connect();
    assert_eq!(bench.frame().options.mss, Some(1460), "used up");
}

#[test]
fn the_configuration_can_clamp_the_mss() {
    let mut bench = Bench::with(SlowConfig { mss_clamp: 1200, ..SlowConfig::default() });
    bench.connect();
    assert_eq!(bench.frame().options.mss, Some(1200));
}

#[test]
fn the_user_timeout_ends_a_connect() {
    let mut bench = Bench::new();
    set(&mut bench, CLIENT, SocketOptions { user_timeout_ms: 5000, ..SocketOptions::default() });
    bench.connect();
    bench.pass_ms(4999);
    assert!(bench.said().is_empty());
    bench.pass_ms(2);
    assert_eq!(bench.said(), [Said::ConnectFailed(CLIENT, 110), Said::Released(CLIENT, None)]);
}

#[test]
fn the_user_timeout_ends_a_connection_whose_data_are_not_acknowledged() {
    let mut bench = Bench::new();
    let flow = bench.client();
    bench.reading(flow).srtt_us = 10_000;
    set(&mut bench, CLIENT, SocketOptions { user_timeout_ms: 5000, ..SocketOptions::default() });
    bench.outstanding(flow, 1000);
    let seen = watch(&mut bench, 100);
    assert_eq!(seen.iter().find(|(_, m)| m.starts_with("0:abort")).map(|(t, _)| *t), Some(5), "{seen:?}");
}

/// RFC 9293 SHLD-21.
#[test]
fn type_of_service_changes_on_a_live_flow() {
    let mut bench = Bench::new();
    bench.client();
    set(&mut bench, CLIENT, SocketOptions { tos: 0x10, ..SocketOptions::default() });
    assert_eq!(bench.messages(), ["0:service 0 tos 16 ttl 64"]);
    set(&mut bench, CLIENT, SocketOptions { tos: 0x11, ..SocketOptions::default() });
    assert!(bench.messages().is_empty(), "nothing new");
}

#[test]
fn each_family_has_its_own_type_of_service_and_hop_limit() {
    let options = SocketOptions { tos: 0x10, ttl: 9, tclass: 0x20, hops: 7, ..SocketOptions::default() };
    assert_eq!(crate::slow::socket_options::service(&options, false), (0x10, 9));
    assert_eq!(crate::slow::socket_options::service(&options, true), (0x20, 7));
    let mut bench = Bench::new();
    bench.client();
    set(&mut bench, CLIENT, SocketOptions { tclass: 0x10, hops: 3, ..SocketOptions::default() });
    assert!(bench.messages().is_empty(), "what IPv6 has is nothing to a connection over IPv4");
}

#[test]
fn linger2_sets_how_long_fin_wait_2_lasts() {
    for (linger2_s, expected) in [
        (0, vec![(60, "0:remove 0".to_string())]),
        (5, vec![(5, "0:remove 0".to_string())]),
        (-1, vec![(1, "0:abort 0 rst true errno 0".to_string()), (1, "0:remove 0".to_string())]),
    ] {
        let mut bench = Bench::new();
        let flow = bench.client();
        set(&mut bench, CLIENT, SocketOptions { linger2_s, ..SocketOptions::default() });
        bench.reading(flow).flags = bit::FIN_SENT | bit::FIN_ACKED | bit::APP_CLOSED;
        bench.say(ToSlow::AppClosed(flow));
        assert_eq!(watch(&mut bench, 100), expected, "{linger2_s}");
    }
}

#[test]
fn a_deferred_connection_waits_for_data() {
    let mut bench = Bench::listening(8);
    set(&mut bench, SERVER, SocketOptions { defer_accept_s: 5, ..SocketOptions::default() });
    bench.for_server(4000, syn(5000));
    let answer = bench.frame();
    let ack = Peer { seq: 5001, ack: answer.seq.wrapping_add(1), flags: flags::ACK, ..stamped(1) };
    bench.for_server(4000, ack);
    assert_eq!(bench.states(), [TcpState::Listen, TcpState::SynReceived]);
    bench.pass_ms(2000);
    assert!(bench.frames().is_empty(), "the SYN-ACK has arrived");
    bench.for_server(4000, Peer { payload: 10, ..ack });
    assert_eq!(bench.states(), [TcpState::Listen, TcpState::Established]);
}

#[test]
fn a_deferred_connection_without_data_is_accepted_at_the_end() {
    let mut bench = Bench::listening(8);
    set(&mut bench, SERVER, SocketOptions { defer_accept_s: 5, ..SocketOptions::default() });
    bench.for_server(4000, syn(5000));
    let answer = bench.frame();
    let ack = Peer { seq: 5001, ack: answer.seq.wrapping_add(1), flags: flags::ACK, ..stamped(1) };
    bench.for_server(4000, ack);
    bench.pass_ms(6999);
    assert!(bench.frames().is_empty());
    bench.pass_ms(2);
    assert_eq!(bench.frame().flags, flags::SYN | flags::ACK, "asked once more");
    bench.for_server(4000, ack);
    assert_eq!(bench.states(), [TcpState::Listen, TcpState::Established]);
}

#[test]
fn no_more_sockets_have_options_before_they_connect_than_may_connect() {
    use crate::flow::Owner;
    let mut bench = Bench::with(SlowConfig { max_flows: 2, ..SlowConfig::default() });
    let options = |max_segment| SocketOptions { max_segment, ..SocketOptions::default() };
    for (owner, max_segment) in [(10, 1000), (11, 1001), (12, 1002), (11, 1003)] {
        set(&mut bench, Owner(owner), options(max_segment));
    }
    let said = [12, 11, 10].map(|owner| {
        bench.slow.connect(bench.now, Owner(owner), PEER, 80, None, false, &mut bench.world).unwrap();
        let mss = bench.frame().options.mss;
        assert!(bench.slow.close(bench.now, Owner(owner), &mut bench.world));
        mss
    });
    assert_eq!(said, [Some(1460), Some(1003), Some(1000)], "the third came too late; the second changed its own");
}

#[test]
fn options_without_keepalive_wake_nobody_and_a_flow_on_its_way_out_has_none() {
    let mut bench = Bench::new();
    let flow = bench.client();
    set(&mut bench, CLIENT, SocketOptions { tos: 0x10, ..SocketOptions::default() });
    assert_eq!((bench.messages().len(), bench.slow.next_deadline()), (1, None));
    bench.say(ToSlow::Reset(flow));
    bench.messages();
    set(&mut bench, CLIENT, SocketOptions { tos: 0x20, ..kept_alive() });
    assert_eq!((bench.messages().len(), bench.slow.next_deadline()), (0, None));
}
