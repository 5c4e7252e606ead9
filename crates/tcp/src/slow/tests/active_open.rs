//! Active opens.

use super::world::*;
use crate::counters::Drop;
use crate::flow::Owner;
use crate::messages::ToFast;
use crate::seq::Seq;
use crate::slow::{ConnectError, FirstSyn, Route, SlowConfig, TcpState};
use std::net::{IpAddr, Ipv4Addr};
use towpath_wire::{Options, flags};

/// RFC 9293 MUST-44.
#[test]
fn syn_offers_every_option() {
    let mut bench = Bench::new();
    bench.connect();
    let (flow_group, _) = bench.world.sent[0];
    let syn = bench.frame();
    assert_eq!(flow_group, 0, "the flow group of the tuple");
    assert_eq!((syn.source, syn.destination, syn.destination_port, syn.flags), (US, PEER, 80, flags::SYN));
    assert!((32_768..=60_999).contains(&syn.source_port));
    assert_eq!((syn.source_mac, syn.destination_mac, syn.window), (OUR_MAC, PEER_MAC, 65_535));
    assert_eq!((syn.options.mss, syn.options.window_scale, syn.options.sack_permitted), (Some(1460), Some(3), true));
    assert_eq!(syn.options.timestamps.unwrap().echo, 0);
    assert_eq!(bench.states(), [TcpState::SynSent]);
    assert_eq!(bench.world.steered.len(), 1, "steered before the SYN");
}

#[test]
fn syn_ack_installs_the_flow_and_is_acknowledged() {
    let mut bench = Bench::new();
    bench.connect();
    let sent = bench.frame();
    bench.now.0 += 30_000;
    let answer = Peer { ack: sent.seq.wrapping_add(1), flags: flags::SYN | flags::ACK, ..syn(7000) };
    bench.for_client(sent.source_port, answer);
    assert_eq!(bench.said(), [Said::Established(CLIENT)]);
    let ToFast::Install(setup) = bench.world.sent[0].1.clone() else { panic!("no Install") };
    assert_eq!((setup.snd_start, setup.rcv_start), (Seq(sent.seq).add(1), Seq(7001)));
    assert_eq!((setup.snd_wnd, setup.snd_wscale, setup.rcv_wscale), (8192, 7, 3), "a SYN's window is not scaled");
    assert_eq!((setup.mss, setup.timestamps, setup.ts_recent), (1448, true, 1));
    assert!(setup.sack);
    assert_eq!((setup.rcv_wnd, setup.tx_bytes, setup.rx_bytes), (65_535, 65_536, 262_144));
    assert_eq!((setup.window.cwnd, setup.srtt_us), (14_480, 30_000));
    assert_eq!(bench.messages(), ["0:install 0", "0:ack 0"]);
    assert_eq!(bench.states(), [TcpState::Established]);
    assert_eq!(bench.slow.counters().opened, 1);
    bench.pass_ms(200_000);
    assert!(bench.messages().is_empty(), "the SYN timer is off");
}

#[test]
fn options_that_the_peer_lacks_are_not_used() {
    let mut bench = Bench::new();
    bench.connect();
    let sent = bench.frame();
    let plain = Peer { seq: 7000, ack: sent.seq.wrapping_add(1), flags: flags::SYN | flags::ACK, ..Default::default() };
    bench.for_client(sent.source_port, plain);
    let setup = bench.world.setups.values().next().unwrap();
    assert_eq!((setup.mss, setup.timestamps, setup.snd_wscale, setup.rcv_wscale), (536, false, 0, 0));
    assert!(!setup.sack);
}

#[test]
fn a_ridiculous_mss_is_not_believed() {
    let mut bench = Bench::new();
    bench.connect();
    let sent = bench.frame();
    let options = Options { mss: Some(1), ..syn(0).options };
    bench.for_client(
        sent.source_port,
        Peer { ack: sent.seq.wrapping_add(1), flags: flags::SYN | flags::ACK, options, ..syn(7000) },
    );
    assert_eq!(bench.world.setups.values().next().unwrap().mss, 48 - 12);
}

/// RFC 9293 MUST-22, MUST-23.
#[test]
fn syn_is_retransmitted_with_backoff_until_etimedout() {
    let mut bench = Bench::new();
    bench.connect();
    let first = bench.frame();
    let start = bench.now.0;
    let mut at = Vec::new();
    for _ in 0..300 {
        bench.pass_ms(1000);
        for again in bench.frames() {
            assert_eq!((again.seq, again.source_port, again.flags), (first.seq, first.source_port, flags::SYN));
            at.push((bench.now.0 - start) / 1_000_000);
        }
        if let Some(said) = bench.said().first() {
            assert_eq!(*said, Said::ConnectFailed(CLIENT, 110));
            at.push((bench.now.0 - start) / 1_000_000);
        }
    }
    assert_eq!(at, [1, 3, 7, 15, 31, 63, 127, 247], "seven retransmissions, then the errno: MUST-23");
    assert!(bench.states().is_empty() && bench.world.steered.is_empty());
    assert_eq!(bench.slow.counters().failed, 1);
}

#[test]
fn a_retransmitted_syn_costs_the_initial_window_and_gives_no_sample() {
    let mut bench = Bench::new();
    bench.connect();
    bench.pass_ms(1000);
    let sent = bench.frames()[1];
    bench.for_client(
        sent.source_port,
        Peer { ack: sent.seq.wrapping_add(1), flags: flags::SYN | flags::ACK, ..syn(7000) },
    );
    let setup = bench.world.setups.values().next().unwrap();
    assert_eq!((setup.window.cwnd, setup.srtt_us), (1448, 0));
}

#[test]
fn rst_with_a_good_ack_refuses_and_nothing_else_does() {
    let mut bench = Bench::new();
    bench.connect();
    let sent = bench.frame();
    let port = sent.source_port;
    bench.for_client(port, Peer { flags: flags::RST, ..Default::default() });
    bench.for_client(port, Peer { ack: sent.seq, flags: flags::RST | flags::ACK, ..Default::default() });
    assert!(bench.frames().is_empty(), "never a RST for a RST");
    assert_eq!(bench.states(), [TcpState::SynSent]);
    assert_eq!(bench.slow.counters().drops[Drop::BadReset as usize], 1);
    assert_eq!(bench.slow.counters().drops[Drop::BadAck as usize], 1);
    bench
        .for_client(port, Peer { ack: sent.seq.wrapping_add(1), flags: flags::RST | flags::ACK, ..Default::default() });
    assert_eq!(bench.said(), [Said::ConnectFailed(CLIENT, 111), Said::Released(CLIENT, None)]);
    assert!(bench.states().is_empty() && bench.world.steered.is_empty());
}

#[test]
fn a_wrong_ack_in_syn_sent_is_reset_and_the_connect_goes_on() {
    let mut bench = Bench::new();
    bench.connect();
    let sent = bench.frame();
    bench.for_client(
        sent.source_port,
        Peer { seq: 9, ack: sent.seq.wrapping_add(77), flags: flags::ACK, ..Default::default() },
    );
    let reset = bench.frame();
    assert_eq!((reset.flags, reset.seq), (flags::RST, sent.seq.wrapping_add(77)));
    bench.for_client(sent.source_port, Peer { ack: sent.seq.wrapping_add(1), flags: flags::ACK, ..Default::default() });
    assert_eq!(bench.states(), [TcpState::SynSent], "an ACK without SYN is nothing");
}

#[test]
fn simultaneous_open_by_ack_and_by_syn_ack() {
    for last in [flags::ACK, flags::SYN | flags::ACK] {
        let mut bench = Bench::new();
        bench.connect();
        let sent = bench.frame();
        bench.for_client(sent.source_port, syn(7000));
        let answer = bench.frame();
        assert_eq!((answer.flags, answer.seq, answer.ack), (flags::SYN | flags::ACK, sent.seq, 7001));
        assert_eq!(bench.states(), [TcpState::SynReceived]);
        let seq = if last == flags::ACK { 7001 } else { 7000 };
        let options = syn(0).options;
        bench.for_client(
            sent.source_port,
            Peer { seq, ack: sent.seq.wrapping_add(1), flags: last, options, payload: 0 },
        );
        assert_eq!(bench.states(), [TcpState::Established]);
        assert_eq!(bench.said(), [Said::Established(CLIENT)]);
        let window = if last == flags::ACK { 8192 << 7 } else { 8192 };
        assert_eq!(bench.world.setups.values().next().unwrap().snd_wnd, window, "a SYN's window is not scaled");
        let expected: &[&str] = if last == flags::ACK { &["0:install 0"] } else { &["0:install 0", "0:ack 0"] };
        assert_eq!(bench.messages(), expected);
    }
}

#[test]
fn a_syn_that_is_repeated_in_a_simultaneous_open_is_answered_again() {
    let mut bench = Bench::new();
    bench.connect();
    let sent = bench.frame();
    for _ in 0..2 {
        bench.for_client(sent.source_port, syn(7000));
        let answer = bench.frame();
        assert_eq!((answer.flags, answer.seq, answer.ack), (flags::SYN | flags::ACK, sent.seq, 7001));
        assert_eq!(bench.states(), [TcpState::SynReceived], "nothing has acknowledged our SYN");
    }
}

#[test]
fn close_in_syn_sent_is_silent() {
    let mut bench = Bench::new();
    bench.connect();
    bench.frame();
    assert!(bench.slow.close(bench.now, CLIENT, &mut bench.world));
    assert_eq!(bench.said(), [Said::Released(CLIENT, None)]);
    assert!(bench.frames().is_empty() && bench.states().is_empty() && bench.world.steered.is_empty());
    bench.pass_ms(10_000);
    assert!(bench.frames().is_empty());
    assert!(!bench.slow.close(bench.now, CLIENT, &mut bench.world), "only once");
}

/// RFC 9293 MUST-46.
#[test]
fn destinations_that_are_not_ours() {
    let mut bench = Bench::new();
    let connect =
        |bench: &mut Bench, to, port| bench.slow.connect(bench.now, CLIENT, to, port, None, false, &mut bench.world);
    for to in
        [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::BROADCAST), IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1))]
    {
        assert_eq!(connect(&mut bench, to, 80), Err(ConnectError::NotOurs));
    }
    assert_eq!(connect(&mut bench, PEER, 0), Err(ConnectError::NotOurs));
    assert_eq!(connect(&mut bench, US, 80), Err(ConnectError::NotOurs), "no listener of ours");
    bench.world.route = Some(Route::NotOurs);
    assert_eq!(connect(&mut bench, PEER, 80), Err(ConnectError::NotOurs));
    bench.world.route = Some(Route::Unreachable(101));
    assert_eq!(connect(&mut bench, PEER, 80), Err(ConnectError::Errno(101)));
    assert!(bench.said().is_empty() && bench.states().is_empty());
    bench.world.route = None;
    bench.slow.listen(bench.now, SERVER, US, 80, false, 10, &mut bench.world).unwrap();
    assert_eq!(connect(&mut bench, US, 80), Ok(()));
    assert_eq!(connect(&mut bench, PEER, 80), Err(ConnectError::Errno(106)), "one owner, one connection");
}

/// The host's rules refuse the SYN, or change it: nothing of the connection is left.
#[test]
fn a_connect_whose_first_syn_the_host_refuses_never_began() {
    let mut bench = Bench::new();
    bench.world.judgement = Some(FirstSyn::Refused);
    let connect = |bench: &mut Bench| bench.slow.connect(bench.now, CLIENT, PEER, 80, None, false, &mut bench.world);
    assert_eq!(connect(&mut bench), Err(ConnectError::Refused));
    assert!(bench.said().is_empty() && bench.states().is_empty() && bench.messages().is_empty());
    assert!(bench.world.steered.is_empty(), "{:?}", bench.world.steered);
    bench.pass_ms(200_000);
    assert_eq!((bench.said().len(), bench.world.judged.len()), (0, 1), "no timer is left");
    bench.world.judgement = Some(FirstSyn::Sent);
    assert_eq!(connect(&mut bench), Ok(()));
    assert_eq!(bench.states(), [TcpState::SynSent]);
}

/// A SYN that is repeated goes the same way. A rule that refuses it then is as good as a lost packet.
#[test]
fn every_repeat_of_a_first_syn_is_judged() {
    let mut bench = Bench::new();
    bench.world.judgement = Some(FirstSyn::Sent);
    bench.connect();
    let first = bench.world.judged[0].clone();
    assert!(bench.messages().is_empty(), "the host has sent it");
    bench.world.judgement = Some(FirstSyn::Refused);
    bench.pass_ms(3_500);
    assert_eq!(bench.world.judged.len(), 3, "after 1 s and 3 s");
    assert!(bench.messages().is_empty() && bench.said().is_empty());
    assert_eq!(bench.states(), [TcpState::SynSent]);
    bench.world.judgement = Some(FirstSyn::Sent);
    bench.pass_ms(400_000);
    assert_eq!(bench.said()[0], Said::ConnectFailed(CLIENT, 110));
    assert_eq!(bench.world.judged.len(), 8);
    assert_eq!(bench.world.judged[7].len(), first.len());
}

/// A route that comes late: the application has its answer already.
#[test]
fn a_refused_first_syn_after_the_answer_counts_as_lost() {
    let mut bench = Bench::new();
    (bench.world.route, bench.world.judgement) = (Some(Route::Resolving), Some(FirstSyn::Refused));
    bench.connect();
    bench.world.route = None;
    bench.pass_ms(500);
    assert_eq!((bench.world.judged.len(), bench.said().len()), (1, 0));
    assert_eq!(bench.states(), [TcpState::SynSent]);
}

/// RFC 9293 MUST-43.
#[test]
fn a_bound_socket_keeps_its_address_and_port() {
    let mut bench = Bench::new();
    let local = Some((IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)), 4321));
    let connect =
        |bench: &mut Bench, owner| bench.slow.connect(bench.now, owner, PEER, 80, local, false, &mut bench.world);
    assert_eq!(connect(&mut bench, CLIENT), Ok(()));
    let syn = bench.frame();
    assert_eq!((syn.source, syn.source_port), (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)), 4321));
    assert_eq!(connect(&mut bench, Owner(77)), Err(ConnectError::Errno(99)), "the connection exists");
    assert!(bench.said().is_empty(), "nothing is said of a connect that did not begin");
}

#[test]
fn ephemeral_ports_are_all_used_and_then_run_out() {
    let mut bench = Bench::with(SlowConfig { first_port: 40_000, last_port: 40_009, ..SlowConfig::default() });
    let mut ports = std::collections::BTreeSet::new();
    let mut order = Vec::new();
    for i in 0..10 {
        bench.slow.connect(bench.now, Owner(100 + i), PEER, 80, None, false, &mut bench.world).unwrap();
        let port = bench.frame().source_port;
        order.push(port);
        ports.insert(port);
    }
    assert_eq!(ports.into_iter().collect::<Vec<_>>(), (40_000..40_010).collect::<Vec<_>>());
    assert!(!order.is_sorted(), "{order:?} is guessable");
    let more =
        |bench: &mut Bench, port| bench.slow.connect(bench.now, Owner(200), PEER, port, None, false, &mut bench.world);
    assert_eq!(more(&mut bench, 80), Err(ConnectError::Errno(99)));
    assert_eq!(more(&mut bench, 81), Ok(()), "another destination has all ports free");
}

#[test]
fn the_table_has_an_end() {
    let mut bench = Bench::with(SlowConfig { max_flows: 2, ..SlowConfig::default() });
    let connect =
        |bench: &mut Bench, owner| bench.slow.connect(bench.now, Owner(owner), PEER, 80, None, false, &mut bench.world);
    assert_eq!(connect(&mut bench, 10), Ok(()));
    assert_eq!(connect(&mut bench, 11), Ok(()));
    assert_eq!(connect(&mut bench, 12), Err(ConnectError::Errno(105)));
    assert!(bench.slow.close(bench.now, Owner(10), &mut bench.world));
    assert_eq!(connect(&mut bench, 12), Ok(()));
}

#[test]
fn a_route_that_is_resolved_in_time_and_one_that_is_not() {
    let mut bench = Bench::new();
    bench.world.route = Some(Route::Resolving);
    bench.connect();
    bench.pass_ms(2000);
    assert!(bench.frames().is_empty());
    assert_eq!(bench.states(), [TcpState::SynSent]);
    bench.world.route = None;
    bench.slow.retry_routes(bench.now, &mut bench.world);
    assert_eq!(bench.frame().flags, flags::SYN, "at once");

    let mut bench = Bench::new();
    bench.world.route = Some(Route::Resolving);
    bench.connect();
    bench.pass_ms(2000);
    bench.world.route = None;
    bench.pass_ms(100);
    assert_eq!(bench.frame().flags, flags::SYN, "by the timer");

    let mut bench = Bench::new();
    bench.world.route = Some(Route::Resolving);
    bench.connect();
    bench.pass_ms(2900);
    assert!(bench.said().is_empty());
    bench.pass_ms(200);
    assert_eq!(bench.said(), [Said::ConnectFailed(CLIENT, 113), Said::Released(CLIENT, None)]);
    assert!(bench.states().is_empty() && bench.world.steered.is_empty());
}

#[test]
fn close_while_resolving() {
    let mut bench = Bench::new();
    bench.world.route = Some(Route::Resolving);
    bench.connect();
    assert!(bench.slow.close(bench.now, CLIENT, &mut bench.world));
    assert_eq!(bench.said(), [Said::Released(CLIENT, None)]);
    bench.pass_ms(10_000);
    assert!(bench.said().is_empty() && bench.frames().is_empty());
}

/// RFC 9293 MUST-45.
#[test]
fn installed_flows_follow_a_route_change() {
    let mut bench = Bench::new();
    let flow = bench.client();
    bench.slow.retry_routes(bench.now, &mut bench.world);
    bench.poll();
    assert!(bench.messages().is_empty(), "same link");
    let link = crate::flow::Link { destination: [9; 6], ..LINK };
    let source = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));
    bench.world.route = Some(Route::Via { link, source, mtu: 1500 });
    bench.slow.retry_routes(bench.now, &mut bench.world);
    assert_eq!(bench.slow.next_deadline(), Some(crate::time::Micros(0)));
    bench.poll();
    assert_eq!(bench.messages(), [format!("0:relink {}", flow.0)]);
    assert_eq!(bench.slow.connections()[0].tuple.local, US, "a connection keeps its address");
}

/// A port of its own is another one than that of the same number elsewhere.
#[test]
fn a_connection_never_has_both_ends_alike() {
    let config = SlowConfig { first_port: 40_000, last_port: 40_000, ..SlowConfig::default() };
    let mut bench = Bench::with(config.clone());
    let connect =
        |bench: &mut Bench, to, port| bench.slow.connect(bench.now, CLIENT, to, port, None, false, &mut bench.world);
    assert_eq!(connect(&mut bench, PEER, 40_000), Ok(()), "the peer's port has our port's number");
    let mut bench = Bench::with(config.clone());
    bench.slow.listen(bench.now, SERVER, US, 80, false, 8, &mut bench.world).unwrap();
    assert_eq!(connect(&mut bench, US, 80), Ok(()), "our own address has another port");
    // The listener ends before its route is known. Then only the port is in the way.
    for (port, said) in [(40_000, vec![Said::ConnectFailed(CLIENT, 99), Said::Released(CLIENT, None)]), (80, vec![])] {
        let mut bench = Bench::with(config.clone());
        bench.slow.listen(bench.now, SERVER, US, port, false, 8, &mut bench.world).unwrap();
        bench.world.route = Some(Route::Resolving);
        assert_eq!(connect(&mut bench, US, port), Ok(()));
        bench.slow.close(bench.now, SERVER, &mut bench.world);
        bench.said();
        bench.world.route = None;
        bench.pass_ms(150);
        assert_eq!(bench.said(), said, "{port}");
    }
}
