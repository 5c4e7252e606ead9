//! Closing: FINs, removal, TIME-WAIT, resets.

use super::world::*;
use crate::counters::Drop;
use crate::flow::{FlowId, Owner, flow_flags as bit};
use crate::messages::ToSlow;
use crate::seq::Seq;
use crate::slow::errno::ECONNABORTED;
use crate::slow::{ConnectError, Ending, SlowConfig, TcpState};
use towpath_wire::flags;

/// Sets a flow's flags and reports it.
fn closing(bench: &mut Bench, flow: FlowId, flow_flags: u64) {
    bench.reading(flow).flags = flow_flags;
    bench.say(ToSlow::Closing(flow));
    bench.poll();
}

/// Flags after both FINs, ours first.
const WE_FIRST: u64 = bit::FIN_WANTED | bit::FIN_SENT | bit::FIN_ACKED | bit::FIN_RECEIVED | bit::APP_CLOSED;

/// A child that we have closed and that has been removed, so that only TIME-WAIT is left. The peer's next number is
/// 5002, ours `snd_max`.
fn time_wait() -> (Bench, Seq) {
    let mut bench = Bench::listening(10);
    let flow = bench.child(4000);
    let reading = bench.reading(flow);
    (reading.snd_max, reading.rcv_nxt, reading.ts_recent) = (reading.snd_max.add(1), Seq(5002), 50);
    (reading.rcv_wnd, reading.rcv_wscale) = (40_000, 3);
    let end = reading.snd_max;
    closing(&mut bench, flow, WE_FIRST);
    assert_eq!(bench.messages(), ["0:remove 0"]);
    assert!(bench.said().is_empty(), "released only when the flow group has forgotten it");
    bench.say(ToSlow::Removed(flow));
    assert_eq!(bench.said(), [Said::Released(Owner(1001), Some(flow))]);
    assert_eq!(bench.world.ended, [(Owner(1001), Ending::Closed)]);
    assert_eq!(bench.states(), [TcpState::Listen, TcpState::TimeWait]);
    assert_eq!(bench.world.steered.len(), 1, "still steered");
    (bench, end)
}

#[test]
fn states_by_name() {
    let cases = [
        (0, "ESTAB"),
        (bit::FIN_WANTED, "FIN-WAIT-1"),
        (bit::FIN_WANTED | bit::FIN_SENT, "FIN-WAIT-1"),
        (bit::FIN_WANTED | bit::FIN_SENT | bit::FIN_ACKED, "FIN-WAIT-2"),
        (bit::FIN_RECEIVED | bit::PASSIVE_CLOSE, "CLOSE-WAIT"),
        (bit::FIN_WANTED | bit::FIN_SENT | bit::FIN_RECEIVED, "CLOSING"),
        (bit::FIN_WANTED | bit::FIN_RECEIVED | bit::PASSIVE_CLOSE, "LAST-ACK"),
        (bit::FIN_WANTED | bit::FIN_SENT | bit::FIN_RECEIVED | bit::PASSIVE_CLOSE, "LAST-ACK"),
    ];
    for (flags, name) in cases {
        assert_eq!(TcpState::of_flags(flags).name(), name);
    }
}

#[test]
fn the_active_closer_waits() {
    let (mut bench, _) = time_wait();
    bench.pass_ms(59_900);
    assert_eq!(bench.states().len(), 2);
    bench.pass_ms(200);
    assert_eq!(bench.states(), [TcpState::Listen]);
    assert!(bench.world.steered.is_empty());
    assert_eq!(bench.slow.next_deadline(), None);
}

/// RFC 9293 §3.10.7.4, MAY-2: the first segment of a new connection is a SYN alone.
#[test]
fn only_a_syn_without_an_acknowledgement_opens_anew_from_time_wait() {
    for other in [flags::SYN | flags::ACK, flags::ACK, flags::PSH, 0] {
        let (mut bench, end) = time_wait();
        bench.for_server(4000, Peer { seq: 9000, ack: end.0, flags: other, payload: 1, ..stamped(99) });
        assert_eq!(bench.states(), [TcpState::Listen, TcpState::TimeWait], "{other:#x}");
    }
}

/// As `ss -K` does.
#[test]
fn a_connection_that_the_operator_cuts_is_reset_in_any_state() {
    let mut bench = Bench::listening(10);
    assert!(!bench.slow.cut(CLIENT, &mut bench.world), "there is none");
    bench.connect();
    assert!(bench.slow.cut(CLIENT, &mut bench.world));
    assert_eq!(bench.said(), [Said::ConnectFailed(CLIENT, ECONNABORTED), Said::Released(CLIENT, None)]);
    assert_eq!(bench.world.ended, [(CLIENT, Ending::NotOpened(ECONNABORTED))]);
    bench.frames();
    let flow = bench.child(4000);
    assert!(bench.slow.cut(Owner(1001), &mut bench.world));
    let messages = bench.messages();
    assert!(messages[0].starts_with(&format!("0:abort {}", flow.0)), "{messages:?}");
    assert!(!bench.states().contains(&TcpState::Established), "{:?}", bench.states());
    bench.say(ToSlow::Removed(flow));
    assert_eq!(bench.world.ended[1..], [(Owner(1001), Ending::Cut)]);
}

#[test]
fn the_passive_closer_does_not_wait() {
    for hint in [0, bit::PASSIVE_CLOSE] {
        let mut bench = Bench::new();
        let flow = bench.client();
        if hint == 0 {
            closing(&mut bench, flow, bit::FIN_RECEIVED);
            assert_eq!(bench.states(), [TcpState::CloseWait]);
        }
        closing(&mut bench, flow, WE_FIRST | hint);
        assert_eq!(bench.messages(), [format!("0:remove {}", flow.0)]);
        bench.say(ToSlow::Removed(flow));
        assert_eq!(bench.said(), [Said::Released(CLIENT, Some(flow))]);
        assert_eq!(bench.world.ended, [(CLIENT, Ending::PeerClosed)]);
        assert!(bench.states().is_empty() && bench.world.steered.is_empty());
    }
}

#[test]
fn half_closed_is_left_alone() {
    let mut bench = Bench::new();
    let flow = bench.client();
    closing(&mut bench, flow, bit::FIN_WANTED | bit::FIN_SENT | bit::FIN_ACKED);
    bench.pass_ms(1_000_000);
    assert!(bench.messages().is_empty(), "shutdown(SHUT_WR) may wait for ever");
    assert_eq!(bench.states(), [TcpState::FinWait2]);
}

#[test]
fn a_closed_socket_waits_sixty_seconds_in_fin_wait_2() {
    for app_first in [true, false] {
        let mut bench = Bench::new();
        let flow = bench.client();
        if app_first {
            bench.say(ToSlow::AppClosed(flow));
            bench.poll();
        }
        closing(&mut bench, flow, bit::FIN_WANTED | bit::FIN_SENT | bit::FIN_ACKED);
        if !app_first {
            bench.say(ToSlow::AppClosed(flow));
        }
        bench.pass_ms(59_900);
        assert!(bench.messages().is_empty());
        bench.pass_ms(200);
        assert_eq!(bench.messages(), [format!("0:remove {}", flow.0)]);
        bench.say(ToSlow::Removed(flow));
        assert_eq!(bench.said(), [Said::Released(CLIENT, Some(flow))]);
        assert!(bench.states().is_empty() && bench.world.steered.is_empty());
    }
}

#[test]
fn resets_remove_without_time_wait() {
    type Message = fn(FlowId) -> ToSlow;
    let all: [(Message, Ending); 3] =
        [(ToSlow::Reset, Ending::PeerReset), (ToSlow::Aborted, Ending::Aborted), (ToSlow::Violated, Ending::Violation)];
    for (message, why) in all {
        let mut bench = Bench::new();
        let flow = bench.client();
        bench.say(message(flow));
        bench.say(message(flow));
        assert_eq!(bench.messages(), [format!("0:remove {}", flow.0)], "once");
        bench.say(ToSlow::Active(flow));
        bench.say(ToSlow::Closing(flow));
        bench.pass_ms(1000);
        bench.say(ToSlow::Removed(flow));
        bench.say(ToSlow::Removed(flow));
        assert_eq!(bench.said(), [Said::Released(CLIENT, Some(flow))], "once");
        assert_eq!(bench.world.ended, [(CLIENT, why)], "once");
        assert!(bench.states().is_empty() && bench.world.steered.is_empty());
    }
}

#[test]
fn a_closed_socket_is_reset_whatever_is_still_to_be_sent() {
    let mut bench = Bench::new();
    let flow = bench.client();
    bench.say(ToSlow::AppClosed(flow));
    bench.slow.reset(CLIENT, Ending::Left, &mut bench.world);
    bench.slow.reset(CLIENT, Ending::Left, &mut bench.world);
    assert_eq!(
        bench.messages(),
        [format!("0:abort {} rst true errno 0", flow.0), format!("0:remove {}", flow.0)],
        "once"
    );
    bench.say(ToSlow::Removed(flow));
    assert_eq!(bench.world.ended, [(CLIENT, Ending::Left)]);
}

#[test]
fn a_segment_for_a_flow_on_its_way_out_is_not_injected() {
    let mut bench = Bench::listening(10);
    let flow = bench.child(4000);
    bench.say(ToSlow::Reset(flow));
    bench.messages();
    bench.for_server(4000, Peer { seq: 5001, flags: flags::ACK, payload: 5, ..Default::default() });
    bench.for_server(4000, syn(9_000_000));
    assert!(bench.messages().is_empty(), "the flow group would only give it back");
}

#[test]
fn time_wait_acknowledges_the_fin_again_and_starts_over() {
    let (mut bench, end) = time_wait();
    bench.pass_ms(30_000);
    bench.for_server(4000, Peer { seq: 5001, ack: end.0, flags: flags::FIN | flags::ACK, ..stamped(60) });
    let ack = bench.frame();
    assert_eq!((ack.flags, ack.seq, ack.ack), (flags::ACK, end.0, 5002));
    assert_eq!(ack.window, 5000, "the last window, scaled, as Linux says it");
    assert_eq!(ack.options.timestamps.unwrap().echo, 50);
    assert_eq!((ack.source_mac, ack.destination_mac), (OUR_MAC, PEER_MAC));
    bench.pass_ms(59_900);
    assert_eq!(bench.states(), [TcpState::Listen, TcpState::TimeWait], "2 MSL from the FIN");
    bench.pass_ms(200);
    assert_eq!(bench.states(), [TcpState::Listen]);
}

#[test]
fn time_wait_ignores_rst_and_bare_acks() {
    let (mut bench, end) = time_wait();
    bench.for_server(4000, Peer { seq: 5002, flags: flags::RST, ..Default::default() });
    bench.for_server(4000, Peer { seq: 5002, ack: end.0, flags: flags::RST | flags::ACK, ..Default::default() });
    bench.for_server(4000, Peer { seq: 5002, ack: end.0, flags: flags::ACK, ..stamped(60) });
    assert!(bench.frames().is_empty());
    assert_eq!(bench.states(), [TcpState::Listen, TcpState::TimeWait]);
    assert_eq!(bench.slow.counters().drops[Drop::BadReset as usize], 2);
    bench.for_server(4000, Peer { seq: 4000, ack: end.0, flags: flags::ACK, payload: 10, ..stamped(60) });
    assert_eq!(bench.frame().flags, flags::ACK, "old data is acknowledged");
}

/// RFC 9293 §3.10.7.4, first check; RFC 7323 §5.3, R1.
#[test]
fn time_wait_answers_bare_acks_that_are_not_acceptable() {
    for (seq, stamp) in [(5001, 60), (4000, 60), (5003, 60), (5002 + 70_000, 60), (5002, 49)] {
        let (mut bench, end) = time_wait();
        bench.for_server(4000, Peer { seq, ack: end.0, flags: flags::ACK, ..stamped(stamp) });
        let ack = bench.frame();
        assert_eq!((ack.flags, ack.seq, ack.ack), (flags::ACK, end.0, 5002), "{seq} with timestamp {stamp}");
        bench.for_server(4000, Peer { seq, ack: end.0, flags: flags::ACK, ..stamped(stamp) });
        assert!(bench.frames().is_empty(), "once in half a second");
    }
}

/// RFC 5961 §7: two hosts do not answer each other's acknowledgements for ever.
#[test]
fn time_wait_answers_once_in_half_a_second_but_data_always() {
    let (mut bench, end) = time_wait();
    let fin = Peer { seq: 5001, ack: end.0, flags: flags::FIN | flags::ACK, ..stamped(60) };
    for _ in 0..50 {
        bench.for_server(4000, fin);
    }
    assert_eq!(bench.frames().len(), 1);
    bench.for_server(4000, Peer { seq: 4000, payload: 10, ..fin });
    assert_eq!(bench.frames().len(), 1, "data");
    bench.pass_ms(500);
    bench.for_server(4000, fin);
    assert_eq!(bench.frames().len(), 1);
}

#[test]
fn a_later_syn_reopens() {
    let by_timestamp = Peer { options: crate::slow::tests::world::stamped(51).options, ..syn(1) };
    let by_sequence = Peer { options: Default::default(), ..syn(5003) };
    for later in [by_timestamp, by_sequence] {
        let (mut bench, end) = time_wait();
        bench.for_server(4000, later);
        let answer = bench.frame();
        assert_eq!((answer.flags, answer.ack), (flags::SYN | flags::ACK, later.seq + 1));
        assert!(Seq(answer.seq).after(end), "beyond all of the old connection's");
        assert_eq!(bench.states(), [TcpState::Listen, TcpState::SynReceived]);
        let ack = Peer { seq: later.seq + 1, ack: answer.seq.wrapping_add(1), flags: flags::ACK, ..later };
        bench.for_server(4000, ack);
        assert_eq!(bench.states(), [TcpState::Listen, TcpState::Established]);
        bench.pass_ms(100_000);
        assert_eq!(bench.states(), [TcpState::Listen, TcpState::Established], "the old entry's end means nothing");
        assert_eq!(bench.world.steered.len(), 1);
    }
}

#[test]
fn a_later_syn_waits_until_the_core_has_forgotten_the_old_flow() {
    let mut bench = Bench::listening(10);
    let flow = bench.child(4000);
    closing(&mut bench, flow, WE_FIRST);
    let later = Peer { options: stamped(51).options, ..syn(9_000_000) };
    bench.for_server(4000, later);
    assert!(bench.frames().is_empty());
    bench.say(ToSlow::Removed(flow));
    bench.for_server(4000, later);
    assert_eq!(bench.frame().flags, flags::SYN | flags::ACK);
}

#[test]
fn an_older_syn_does_not_reopen() {
    let (mut bench, _) = time_wait();
    bench.for_server(4000, Peer { options: stamped(49).options, ..syn(6000) });
    assert_eq!(bench.frame().flags, flags::ACK, "an older timestamp, whatever the sequence number");
    bench.pass_ms(500);
    bench.for_server(4000, Peer { options: Default::default(), ..syn(5000) });
    assert_eq!(bench.frame().flags, flags::ACK, "an older sequence number");
    assert_eq!(bench.states(), [TcpState::Listen, TcpState::TimeWait]);
}

#[test]
fn a_reopening_that_fails_is_cleaned_up() {
    let (mut bench, _) = time_wait();
    bench.for_server(4000, Peer { options: stamped(51).options, ..syn(9000) });
    assert_eq!(bench.frame().flags, flags::SYN | flags::ACK);
    bench.pass_ms(100_000);
    bench.frames();
    assert_eq!(bench.states(), [TcpState::Listen]);
    assert!(bench.world.steered.is_empty() && bench.world.children.is_empty());
}

#[test]
fn time_wait_without_a_listener_resets_a_later_syn() {
    let (mut bench, _) = time_wait();
    bench.slow.close(bench.now, SERVER, &mut bench.world);
    bench.for_server(4000, Peer { options: stamped(51).options, ..syn(9000) });
    assert_eq!(bench.frame().flags, flags::RST | flags::ACK);
}

#[test]
fn only_so_many_wait() {
    let mut bench = Bench::with(SlowConfig { time_wait_max: 3, ..SlowConfig::default() });
    bench.slow.listen(bench.now, SERVER, US, 80, false, 10, &mut bench.world).unwrap();
    for port in 0..5 {
        let flow = bench.child(4000 + port);
        closing(&mut bench, flow, WE_FIRST);
        bench.say(ToSlow::Removed(flow));
        bench.pass_ms(10);
    }
    let waiting: Vec<u16> = bench
        .slow
        .connections()
        .iter()
        .filter(|c| c.state == TcpState::TimeWait)
        .map(|c| c.tuple.remote_port)
        .collect();
    assert_eq!(waiting, [4002, 4003, 4004], "the oldest are forgotten");
    assert_eq!(bench.world.steered.len(), 3);
}

/// A client's connection to port 80 from port 40000, in TIME-WAIT.
fn client_in_time_wait() -> (Bench, Seq) {
    let mut bench = Bench::with(SlowConfig { first_port: 40_000, last_port: 40_000, ..SlowConfig::default() });
    let flow = bench.client();
    let reading = bench.reading(flow);
    reading.snd_max = reading.snd_max.add(50_000_000);
    let end = reading.snd_max;
    closing(&mut bench, flow, WE_FIRST);
    bench.messages();
    bench.say(ToSlow::Removed(flow));
    bench.said();
    (bench, end)
}

/// RFC 9293 SHLD-4.
#[test]
fn an_active_open_reuses_time_wait_after_a_second_if_timestamps_protect_it() {
    let (mut bench, end) = client_in_time_wait();
    let connect = |bench: &mut Bench| bench.slow.connect(bench.now, Owner(9), PEER, 80, None, false, &mut bench.world);
    assert_eq!(connect(&mut bench), Err(ConnectError::Errno(99)));
    bench.pass_ms(1000);
    assert_eq!(connect(&mut bench), Ok(()));
    let sent = bench.frame();
    assert_eq!((sent.source_port, Seq(sent.seq).after(end)), (40_000, true));
    assert_eq!((bench.states(), bench.world.steered.len()), (vec![TcpState::SynSent], 1));
    bench.slow.close(bench.now, Owner(9), &mut bench.world);
    assert!(bench.world.steered.is_empty());
}

#[test]
fn ports_in_time_wait_are_reused_when_fresh_ones_are_rare() {
    let config = SlowConfig { first_port: 40_000, last_port: 41_999, ..SlowConfig::default() };
    let mut bench = Bench::with(config);
    let mut ports = std::collections::BTreeSet::new();
    for i in 0..4000 {
        let flow = bench.client();
        ports.insert(bench.world.setups[&flow].tuple.local_port);
        closing(&mut bench, flow, WE_FIRST);
        bench.say(ToSlow::Removed(flow));
        bench.now.0 += 1000;
        bench.world.sent.clear();
        bench.world.said.clear();
        assert!(bench.slow.sizes().1 <= 2000, "after {i} connections");
    }
    assert!(ports.len() > 1500, "{} ports used", ports.len());
}

#[test]
fn numbers_come_back_late() {
    let mut bench = Bench::new();
    let mut numbers = Vec::new();
    for _ in 0..200 {
        let flow = bench.client();
        bench.say(ToSlow::Reset(flow));
        bench.say(ToSlow::Removed(flow));
        numbers.push(flow.0);
    }
    assert_eq!(numbers[62..66], [62, 63, 0, 1], "as soon as 64 are free");
    let mut sorted = numbers[..64].to_vec();
    sorted.dedup();
    assert_eq!(sorted.len(), 64, "64 others first");
    assert!(numbers.iter().max() < Some(&70), "but they do come back");
}

/// A cookie would not be beyond the old connection's numbers (RFC 6191).
#[test]
fn a_later_syn_gets_no_cookie_where_the_backlog_is_full() {
    let (mut bench, _) = time_wait();
    (0..10).for_each(|port| bench.for_server(10_000 + port, syn(1)));
    assert_eq!(bench.frames().len(), 10, "the backlog");
    bench.for_server(4000, Peer { options: stamped(51).options, ..syn(9000) });
    assert!(bench.frames().is_empty());
    assert_eq!((bench.slow.counters().cookies_sent, bench.slow.counters().drops[Drop::BacklogFull as usize]), (0, 1));
    assert!(bench.states().contains(&TcpState::TimeWait), "it asks again");
}

/// RFC 6191: with the same timestamp the sequence number decides.
#[test]
fn a_syn_with_the_last_timestamp_reopens_if_its_number_is_later() {
    for (seq, answer) in [(5003, flags::SYN | flags::ACK), (5002, flags::ACK)] {
        let (mut bench, _) = time_wait();
        bench.for_server(4000, Peer { options: stamped(50).options, ..syn(seq) });
        assert_eq!(bench.frame().flags, answer, "{seq}");
    }
}

/// RFC 9293 §3.10.7.4, eighth check: 2 MSL start over with the peer's FIN, and with nothing else.
#[test]
fn only_the_peers_own_fin_makes_time_wait_longer() {
    for (seq, payload, fin, longer) in
        [(5000, 1, flags::FIN, true), (5000, 2, 0, false), (4000, 1, flags::FIN, false), (5001, 1, flags::FIN, false)]
    {
        let (mut bench, end) = time_wait();
        bench.pass_ms(30_000);
        bench.for_server(4000, Peer { seq, ack: end.0, flags: flags::ACK | fin, payload, ..stamped(60) });
        bench.frames();
        bench.pass_ms(30_100);
        assert_eq!(bench.states().contains(&TcpState::TimeWait), longer, "{seq} {fin}");
    }
}

#[test]
fn a_socket_stays_closed_however_often_its_flow_is_looked_at() {
    let mut bench = Bench::new();
    let flow = bench.client();
    let flags = bit::FIN_WANTED | bit::FIN_SENT | bit::APP_CLOSED;
    closing(&mut bench, flow, flags);
    closing(&mut bench, flow, flags | bit::FIN_ACKED);
    bench.pass_ms(60_100);
    assert_eq!(bench.messages(), [format!("0:remove {}", flow.0)], "FIN-WAIT-2 has ended");
}
