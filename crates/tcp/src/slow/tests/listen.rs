//! Passive opens.

use super::world::*;
use crate::counters::Drop;
use crate::flow::{Owner, RingBytes, SocketOptions};
use crate::messages::ToFast;
use crate::seq::Seq;
use crate::slow::congestion::Algorithm;
use crate::slow::{Admission, FourTuple, Route, SlowConfig, TcpState};
use std::net::{IpAddr, Ipv4Addr};
use towpath_wire::{Options, Timestamps, flags};

/// The ACK that ends the handshake.
fn last_ack(syn_ack_seq: u32) -> Peer {
    Peer { seq: 5001, ack: syn_ack_seq.wrapping_add(1), flags: flags::ACK, ..stamped(2) }
}

/// RFC 9293 REC-1 (a window of 1 MiB), MUST-14.
#[test]
fn syn_is_answered_and_the_ack_installs_the_child() {
    let mut bench = Bench::listening(10);
    assert_eq!(bench.states(), [TcpState::Listen]);
    bench.for_server(4001, syn(5000));
    assert_eq!(bench.world.sent[0].0, 1, "the flow group of the tuple, not the one that received it");
    let answer = bench.frame();
    assert_eq!((answer.flags, answer.ack, answer.source_port), (flags::SYN | flags::ACK, 5001, 80));
    assert_eq!((answer.options.mss, answer.options.window_scale), (Some(1460), Some(3)));
    assert_eq!(answer.options.timestamps.unwrap().echo, 1);
    assert_eq!(bench.states(), [TcpState::Listen, TcpState::SynReceived]);
    assert!(bench.world.steered.is_empty(), "the listener's steering is enough");

    bench.now.0 += 5000;
    bench.for_server(4001, last_ack(answer.seq));
    assert_eq!(bench.said(), [Said::Established(Owner(1001)), Said::Accepted(Owner(1001))]);
    let ToFast::Install(setup) = bench.world.sent[0].1.clone() else { panic!("no Install") };
    assert_eq!((setup.owner, setup.snd_start, setup.rcv_start), (Owner(1001), Seq(answer.seq).add(1), Seq(5001)));
    assert_eq!(
        (setup.snd_wnd, setup.ts_recent, setup.srtt_us),
        (8192 << 7, 2, 5000),
        "the last ACK's window is scaled"
    );
    assert_eq!(bench.messages(), ["1:install 0"]);
    assert_eq!(bench.states(), [TcpState::Listen, TcpState::Established]);
    assert_eq!(bench.world.steered.len(), 1);
}

#[test]
fn options_are_answered_only_if_offered() {
    let mut bench = Bench::listening(10);
    bench.for_server(4000, Peer { seq: 5000, flags: flags::SYN, ..Default::default() });
    let answer = bench.frame();
    assert_eq!((answer.options.window_scale, answer.options.timestamps), (None, None));
    bench
        .for_server(4000, Peer { seq: 5001, ack: answer.seq.wrapping_add(1), flags: flags::ACK, ..Default::default() });
    let setup = bench.world.setups.values().next().unwrap();
    assert_eq!((setup.mss, setup.timestamps, setup.snd_wnd, setup.rcv_wscale), (536, false, 8192, 0));
}

#[test]
fn data_and_fin_on_the_last_ack_and_before_install_follow_the_install() {
    let mut bench = Bench::listening(10);
    bench.for_server(4000, syn(5000));
    let answer = bench.frame();
    bench.for_server(4000, Peer { payload: 100, flags: flags::ACK | flags::FIN, ..last_ack(answer.seq) });
    bench.for_server(4000, Peer { payload: 7, seq: 5101, ..last_ack(answer.seq) });
    bench.for_server(4000, Peer { flags: flags::RST, seq: 5108, ..Default::default() });
    assert_eq!(bench.messages(), ["0:install 0", "0:inject 100", "0:inject 7", "0:inject 0"]);
}

#[test]
fn data_whose_ack_was_lost_completes_the_handshake() {
    let mut bench = Bench::listening(10);
    bench.for_server(4000, syn(5000));
    let answer = bench.frame();
    bench.for_server(4000, Peer { payload: 50, seq: 6449, ..last_ack(answer.seq) });
    assert_eq!(bench.messages(), ["0:install 0", "0:inject 50"]);
    let setup = bench.world.setups.values().next().unwrap();
    assert_eq!((setup.rcv_start, setup.ts_recent), (Seq(5001), 1), "out of order: TS.Recent stays");
}

#[test]
fn syn_ack_is_retransmitted_and_given_up() {
    let mut bench = Bench::listening(10);
    bench.for_server(4000, syn(5000));
    bench.pass_ms(62_900);
    assert_eq!(bench.frames().len(), 6, "at 0, 1, 3, 7, 15, 31 s");
    bench.pass_ms(200);
    assert_eq!(bench.said(), [Said::DropChild(Owner(1001))]);
    assert_eq!(bench.states(), [TcpState::Listen]);
    assert!(bench.frames().is_empty() && bench.world.children.is_empty() && bench.world.steered.is_empty());
}

#[test]
fn a_syn_again_gets_the_syn_ack_again() {
    let mut bench = Bench::listening(10);
    bench.for_server(4000, syn(5000));
    let first = bench.frame();
    bench.for_server(4000, syn(5000));
    let second = bench.frame();
    assert_eq!((first.seq, first.ack, first.flags), (second.seq, second.ack, second.flags));
    assert_eq!(bench.states().len(), 2);
}

#[test]
fn half_open_children_are_limited_by_the_backlog_but_at_least_eight() {
    for (backlog, limit) in [(0, 8), (20, 20), (1_000_000, 4096)] {
        let mut bench = Bench::with(SlowConfig { syn_cookies: false, ..SlowConfig::default() });
        bench
            .slow
            .listen(bench.now, SERVER, Ipv4Addr::UNSPECIFIED.into(), 80, false, backlog, &mut bench.world)
            .unwrap();
        for port in 0..5000 {
            bench.for_server(10_000 + port, syn(5000));
        }
        assert_eq!(bench.frames().len(), limit);
        assert_eq!(bench.slow.counters().drops[Drop::BacklogFull as usize], 5000 - limit as u64);
        assert_eq!(bench.world.children.len(), limit);
    }
}

#[test]
fn an_established_child_makes_room_in_the_backlog() {
    let mut bench = Bench::listening(8);
    for port in 0..100 {
        bench.child(10_000 + port);
    }
    assert_eq!(bench.slow.counters().drops[Drop::BacklogFull as usize], 0);
    assert_eq!(bench.states().iter().filter(|s| **s == TcpState::Established).count(), 100);
}

/// As in Linux.
#[test]
fn a_full_accept_queue_answers_no_syn() {
    let mut bench = Bench::listening(10);
    bench.world.accept_full = true;
    bench.for_server(4000, syn(5000));
    assert!(bench.frames().is_empty() && bench.world.children.is_empty());
    assert_eq!(bench.slow.counters().drops[Drop::BacklogFull as usize], 1);
    bench.world.accept_full = false;
    bench.for_server(4000, syn(5000));
    assert_eq!(bench.frame().flags, flags::SYN | flags::ACK);
}

#[test]
fn a_full_accept_queue_ignores_the_ack_and_the_next_attempt_succeeds() {
    let mut bench = Bench::listening(10);
    bench.for_server(4000, syn(5000));
    let answer = bench.frame();
    bench.world.accept_full = true;
    bench.for_server(4000, last_ack(answer.seq));
    assert_eq!(bench.said(), [Said::Established(Owner(1001))]);
    assert!(bench.messages().is_empty(), "not installed");
    assert_eq!(bench.states(), [TcpState::Listen, TcpState::SynReceived]);
    assert_eq!(bench.slow.counters().drops[Drop::BacklogFull as usize], 1);
    bench.pass_ms(1000);
    assert_eq!(bench.frame().flags, flags::SYN | flags::ACK, "asks for the ACK again");
    bench.world.accept_full = false;
    bench.for_server(4000, Peer { payload: 10, ..last_ack(answer.seq) });
    assert_eq!(bench.messages(), ["0:install 0", "0:inject 10"]);
    assert_eq!(bench.said(), [Said::Established(Owner(1001)), Said::Accepted(Owner(1001))]);
}

#[test]
fn no_slot_no_answer() {
    let mut bench = Bench::listening(10);
    bench.world.no_children = true;
    bench.for_server(4000, syn(5000));
    assert!(bench.frames().is_empty());
    assert_eq!(bench.slow.counters().drops[Drop::NoMemory as usize], 1);
    let mut bench = Bench::with(SlowConfig { max_flows: 1, ..SlowConfig::default() });
    bench.slow.listen(bench.now, SERVER, US, 80, false, 10, &mut bench.world).unwrap();
    bench.for_server(4000, syn(5000));
    bench.for_server(4002, syn(5000));
    assert_eq!((bench.frames().len(), bench.world.children.len()), (1, 1));
}

#[test]
fn rst_in_syn_received() {
    let mut bench = Bench::listening(10);
    bench.for_server(4000, syn(5000));
    bench.frame();
    bench.for_server(4000, Peer { seq: 4000, flags: flags::RST, ..Default::default() });
    assert!(bench.frames().is_empty(), "outside the window: nothing");
    bench.for_server(4000, Peer { seq: 5002, flags: flags::RST, ..Default::default() });
    let challenge = bench.frame();
    assert_eq!((challenge.flags, challenge.ack), (flags::ACK, 5001), "in the window, not exact: challenge");
    bench.for_server(4000, Peer { seq: 5001, flags: flags::RST, ..Default::default() });
    assert_eq!(bench.said(), [Said::DropChild(Owner(1001))]);
    assert!(bench.frames().is_empty());
    assert_eq!(bench.states(), [TcpState::Listen]);
}

#[test]
fn bad_segments_in_syn_received() {
    let mut bench = Bench::listening(10);
    bench.for_server(4000, syn(5000));
    let answer = bench.frame();
    bench.for_server(4000, Peer { ack: 1, ..last_ack(answer.seq) });
    let reset = bench.frame();
    assert_eq!((reset.flags, reset.seq), (flags::RST, 1), "wrong ACK");
    bench.for_server(4000, Peer { seq: 5001, flags: 0, ..stamped(1) });
    assert!(bench.frames().is_empty(), "no ACK flag");
    bench.for_server(4000, Peer { options: stamped(0).options, ..last_ack(answer.seq) });
    assert_eq!(bench.frame().flags, flags::ACK, "PAWS");
    bench.for_server(4000, Peer { seq: 5001 + 65_535, ..last_ack(answer.seq) });
    assert!(bench.frames().is_empty(), "once in half a second (RFC 5961 §7)");
    bench.pass_ms(500);
    bench.for_server(4000, Peer { seq: 5001 + 65_535, ..last_ack(answer.seq) });
    assert_eq!(bench.frame().flags, flags::ACK, "outside the window");
    for (reason, times) in [(Drop::BadAck, 1), (Drop::NoAck, 1), (Drop::Paws, 1), (Drop::OutOfWindow, 2)] {
        assert_eq!(bench.slow.counters().drops[reason as usize], times, "{reason:?}");
    }
    assert_eq!(bench.states(), [TcpState::Listen, TcpState::SynReceived]);
    bench.for_server(4000, last_ack(answer.seq));
    assert_eq!(bench.states(), [TcpState::Listen, TcpState::Established]);
}

/// RFC 9293 §3.10.7.4, fourth check (MUST-11): without a reply.
#[test]
fn another_syn_in_the_window_returns_a_passive_open_to_listen() {
    let mut bench = Bench::listening(10);
    bench.for_server(4000, syn(5000));
    bench.frame();
    bench.for_server(4000, syn(5003));
    assert!(bench.frames().is_empty());
    assert_eq!((bench.said(), bench.states()), (vec![Said::DropChild(Owner(1001))], vec![TcpState::Listen]));
    assert_eq!(bench.slow.counters().drops[Drop::BadFlags as usize], 1);
    bench.for_server(4000, syn(5003));
    assert_eq!(bench.frame().ack, 5004, "the next one opens");
}

#[test]
fn closing_a_listener_resets_its_half_open_children_and_keeps_the_others() {
    let mut bench = Bench::listening(10);
    bench.child(4000);
    bench.for_server(4002, syn(5000));
    let answer = bench.frame();
    assert!(bench.slow.close(bench.now, SERVER, &mut bench.world));
    let reset = bench.frame();
    assert_eq!(
        (reset.flags, reset.seq, reset.destination_port),
        (flags::RST | flags::ACK, answer.seq.wrapping_add(1), 4002)
    );
    assert_eq!(bench.said(), [Said::DropChild(Owner(1002)), Said::Released(SERVER, None)]);
    assert_eq!(bench.states(), [TcpState::Established]);
    assert!(bench.world.listening.is_empty());
    assert_eq!(bench.world.steered.len(), 1, "the child is steered by its own tuple");
    bench.for_server(4004, syn(5000));
    assert_eq!(bench.frame().flags, flags::RST | flags::ACK);
}

#[test]
fn listen_twice() {
    let mut bench = Bench::new();
    let listen = |b: &mut Bench, owner, addr, backlog| {
        b.slow.listen(b.now, Owner(owner), addr, 80, false, backlog, &mut b.world)
    };
    assert_eq!(listen(&mut bench, 1, US, 8), Ok(()));
    assert_eq!(listen(&mut bench, 1, US, 100), Ok(()), "a new backlog");
    assert_eq!(listen(&mut bench, 2, US, 8), Err(98));
    assert_eq!(listen(&mut bench, 1, PEER, 8), Err(98));
    assert_eq!(listen(&mut bench, 2, IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8), Ok(()));
    for port in 0..50 {
        bench.for_server(10_000 + port, syn(5000));
    }
    assert_eq!(bench.frames().len(), 50, "the exact address wins, with its new backlog");
}

/// RFC 9293 MUST-41, MUST-42.
#[test]
fn a_port_can_be_listened_on_while_it_connects() {
    let mut bench = Bench::new();
    let local = Some((US, 80));
    bench.slow.connect(bench.now, CLIENT, PEER, 4000, local, false, &mut bench.world).unwrap();
    let sent = bench.frame();
    assert_eq!(bench.slow.listen(bench.now, SERVER, US, 80, false, 8, &mut bench.world), Ok(()));
    assert_eq!(bench.states(), [TcpState::Listen, TcpState::SynSent]);
    bench.for_server(4001, syn(5000));
    assert_eq!(bench.frame().flags, flags::SYN | flags::ACK, "a new connection");
    let answer = Peer { ack: sent.seq.wrapping_add(1), flags: flags::SYN | flags::ACK, ..syn(7000) };
    bench.for_server(4000, answer);
    assert_eq!(bench.said(), [Said::Established(CLIENT)], "the older one goes on");
}

/// RFC 9293 MUST-57.
#[test]
fn segments_of_nobody() {
    let mut bench = Bench::listening(10);
    bench.for_server(4000, Peer { seq: 10, ack: 99, flags: flags::ACK, payload: 5, ..Default::default() });
    let reset = bench.frame();
    assert_eq!((reset.flags, reset.seq, reset.ack), (flags::RST, 99, 0), "ACK to a listener");
    bench.segment_at((PEER, 5), (US, 81), Peer { seq: 10, flags: flags::FIN, payload: 5, ..Default::default() });
    let reset = bench.frame();
    assert_eq!((reset.flags, reset.seq, reset.ack), (flags::RST | flags::ACK, 0, 16), "no ACK: SEG.SEQ + SEG.LEN");
    bench.segment_at((PEER, 5), (US, 81), Peer { seq: 10, flags: flags::RST, ..Default::default() });
    bench.segment_at((PEER, 5), (IpAddr::V4(Ipv4Addr::BROADCAST), 80), syn(1));
    bench.segment_at((PEER, 5), (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1)), 80), syn(1));
    bench.segment_at((PEER, 5), (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 77)), 80), syn(1));
    bench.for_server(4000, Peer { flags: flags::SYN | flags::FIN, ..Default::default() });
    bench.for_server(4000, Peer { flags: flags::SYN | flags::RST, ..Default::default() });
    bench.for_server(4000, Peer { seq: 10, flags: flags::FIN, payload: 5, ..Default::default() });
    assert!(bench.frames().is_empty(), "none of these is answered");
    let drops = bench.slow.counters().drops;
    assert_eq!(
        (drops[Drop::NoSocket as usize], drops[Drop::NotLocal as usize], drops[Drop::BadFlags as usize]),
        (3, 3, 2)
    );
}

#[test]
fn broken_frames_are_counted_by_reason() {
    use crate::flow::PortId;
    use crate::messages::ToSlow;
    let mut bench = Bench::listening(10);
    let good = frame((PEER, 4000), (US, 80), syn(1));
    let mut bad_sum = good.to_vec();
    bad_sum[24] ^= 1;
    for bytes in [&good[..20], &bad_sum[..]] {
        bench.say(ToSlow::Segment(PortId(1), bytes.into()));
    }
    let drops = bench.slow.counters().drops;
    assert_eq!((drops[Drop::Truncated as usize], drops[Drop::IpChecksum as usize]), (1, 1));
}

#[test]
fn resets_and_challenges_are_limited() {
    let mut bench = Bench::new();
    for port in 0..3000 {
        bench.segment_at((PEER, 5000 + port), (US, 81), syn(1));
    }
    let sent = bench.frames().len();
    assert!((500..=1000).contains(&sent), "{sent}");
    bench.pass_ms(1000);
    bench.segment_at((PEER, 5), (US, 81), syn(1));
    assert_eq!(bench.frames().len(), 1, "the next second");
    let mut bench = Bench::listening(4000);
    for port in 0..3000 {
        bench.for_server(5000 + port, syn(1));
    }
    bench.frames();
    for port in 0..3000 {
        bench.for_server(5000 + port, syn(1));
    }
    let sent = bench.frames().len();
    assert!((500..=1000).contains(&sent), "{sent}");
}

#[test]
fn a_syn_for_an_installed_flow_is_challenged() {
    let mut bench = Bench::listening(10);
    bench.child(4000);
    bench.for_server(4000, syn(5001));
    assert_eq!(bench.messages(), ["0:challenge 0"]);
    bench.for_server(4000, Peer { flags: flags::SYN | flags::ACK, ..syn(5000) });
    assert_eq!(bench.messages(), ["0:challenge 0"], "also one whose last ACK was lost");
}

#[test]
fn the_answer_needs_no_arp() {
    let mut bench = Bench::listening(10);
    bench.world.route = Some(Route::Resolving);
    bench.for_server(4000, syn(5000));
    let answer = bench.frame();
    assert_eq!((answer.source_mac, answer.destination_mac), (OUR_MAC, PEER_MAC));
    bench.world.route = Some(Route::Unreachable(113));
    bench.for_server(4002, syn(5000));
    assert!(bench.frames().is_empty());
}

#[test]
fn a_small_ring_needs_no_scaling_but_agrees_to_it() {
    let mut bench = Bench::listening(10);
    bench.world.ring_bytes = Some(RingBytes::fixed(4096, 16_384));
    bench.for_server(4000, syn(5000));
    let answer = bench.frame();
    assert_eq!((answer.window, answer.options.window_scale), (16_384, Some(0)));
    let options = Options { timestamps: Some(Timestamps { value: 1, echo: 0 }), ..Options::default() };
    bench.for_server(
        4000,
        Peer { seq: 5001 + 16_384, ack: answer.seq.wrapping_add(1), flags: flags::ACK, options, payload: 1 },
    );
    assert_eq!(bench.frame().flags, flags::ACK, "outside this window");
    bench.for_server(4000, Peer { options, ..last_ack(answer.seq) });
    let setup = &bench.world.setups[&crate::flow::FlowId(0)];
    assert_eq!((setup.window_scaling, setup.rcv_wscale), (true, 0));
}

#[test]
fn a_syn_that_is_not_admitted_is_dropped_or_reset_and_holds_nothing() {
    let mut bench = Bench::listening(10);
    bench.world.admission = Some(Admission::Drop);
    bench.for_server(4001, syn(5000));
    assert!(bench.frames().is_empty());
    bench.world.admission = Some(Admission::Refuse);
    bench.for_server(4001, syn(5000));
    let answer = bench.frame();
    assert_eq!((answer.flags, answer.ack), (flags::RST | flags::ACK, 5001));
    assert_eq!(bench.slow.counters().drops[Drop::Forbidden as usize], 2);
    assert_eq!(bench.states(), [TcpState::Listen]);
    bench.world.admission = Some(Admission::Yes(Algorithm::Dctcp.id()));
    bench.for_server(4001, syn(5000));
    let answer = bench.frame();
    bench.for_server(4001, last_ack(answer.seq));
    assert_eq!(bench.slow.congestion(Owner(1001)), Algorithm::Dctcp, "chosen with the admission");
    let setup = bench.world.setups.values().next().unwrap();
    assert_eq!(setup.class, 1, "the host says which class its flow is of");
}

/// The memory per connection that docs/reference/configuration.md states at `max_connections`: about 1.3 KiB. Entries
/// in tables count twice, as tables may be half empty.
#[test]
fn a_connection_takes_little_more_than_a_kilobyte() {
    use crate::flow::{FlowId, FourTuple};
    use crate::slow::connections::{ConnectionEntry, Installed};
    let entries = 2 * (size_of::<(FourTuple, FlowId)>() + size_of::<(Owner, FlowId)>());
    let bytes = size_of::<crate::table::Lines>() + size_of::<ConnectionEntry>() + size_of::<Installed>() + entries;
    assert!((1100..=1400).contains(&bytes), "{bytes}");
    assert_eq!(size_of::<crate::table::Lines>(), 448);
}

/// `SO_REUSEPORT`: every listener of the group gets some peers, and each peer always the same listener. The port is
/// steered to us until the last of them is closed.
#[test]
fn listeners_that_all_share_a_port_share_its_connections() {
    let mut bench = Bench::new();
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let shared = SocketOptions { reuse_port: true, ..SocketOptions::default() };
    let group = [Owner(1), Owner(2), Owner(3)];
    for owner in group {
        bench.slow.set_options(bench.now, owner, shared, &mut bench.world);
        assert_eq!(bench.slow.listen(bench.now, owner, any, 80, false, 100, &mut bench.world), Ok(()));
    }
    let alone = bench.slow.listen(bench.now, Owner(4), any, 80, false, 100, &mut bench.world);
    assert_eq!(alone, Err(98), "EADDRINUSE without the option");
    let tuple = |port| FourTuple { local: US, local_port: 80, remote: PEER, remote_port: port };
    let chosen = |bench: &Bench, port| bench.slow.listeners.find_for(&tuple(port)).unwrap().owner;
    for owner in group {
        let peers = (4000..4300).filter(|port| chosen(&bench, *port) == owner).count();
        assert!((60..140).contains(&peers), "{peers} of 300 peers for {owner:?}");
    }
    // Two listeners are the harder case, as one bit decides.
    assert!(bench.slow.close(bench.now, group[1], &mut bench.world));
    for peers in [4000..4300, 40_000..40_300] {
        let first = peers.filter(|port| chosen(&bench, *port) == group[0]).count();
        assert!((100..200).contains(&first), "{first} of 300 peers for the first of two");
    }
    let next = bench.slow.listen(bench.now, group[1], any, 80, false, 100, &mut bench.world);
    assert_eq!(next, Err(98), "the option is the listener's, and goes with it");
    for owner in &group[..1] {
        assert!(bench.slow.close(bench.now, *owner, &mut bench.world));
        assert!(!bench.world.listening.is_empty());
    }
    assert!((4000..4300).all(|port| chosen(&bench, port) == group[2]));
    bench.slow.close(bench.now, group[2], &mut bench.world);
    assert!(bench.world.listening.is_empty());
}

/// Where nobody is a listener's own, its backlog's places are for all of the application.
#[test]
fn a_host_that_spares_its_children_has_cookies_sent_if_they_are_allowed() {
    for (syn_cookies, spares, children, cookies) in
        [(true, true, 0, 1), (true, false, 1, 0), (false, true, 1, 0), (false, false, 1, 0)]
    {
        let mut bench = Bench::with(SlowConfig { syn_cookies, ..SlowConfig::default() });
        bench.slow.listen(bench.now, SERVER, US, 80, false, 8, &mut bench.world).unwrap();
        bench.world.spares = spares;
        bench.for_server(4000, syn(5000));
        assert_eq!(bench.frame().flags, flags::SYN | flags::ACK);
        let sent = bench.slow.counters().cookies_sent;
        assert_eq!((bench.world.children.len(), sent), (children, cookies), "{syn_cookies} {spares}");
    }
}

#[test]
fn a_full_table_reserves_no_child() {
    let mut bench = Bench::with(SlowConfig { max_flows: 1, ..SlowConfig::default() });
    bench.slow.listen(bench.now, SERVER, US, 80, false, 10, &mut bench.world).unwrap();
    bench.for_server(4000, syn(5000));
    bench.for_server(4002, syn(5000));
    assert_eq!(bench.slow.counters().drops[Drop::NoMemory as usize], 1);
    assert!(bench.said().is_empty(), "nothing is taken back");
    bench.for_server(4000, Peer { seq: 5001, flags: flags::RST, ..Peer::default() });
    bench.frames();
    bench.for_server(4002, syn(5000));
    assert_eq!(bench.frame().destination_port, 4002, "a number that is free again is room");
}
