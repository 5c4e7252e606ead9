//! ICMP errors, and path MTU discovery.

use super::world::*;
use crate::counters::Drop;
use crate::flow::{FlowId, SocketOptions};
use crate::slow::{Route, TcpState};
use towpath_wire::icmp::{IcmpError, IcmpKind};

/// An error about the segment that is `offset` bytes after the oldest outstanding one of a flow.
fn about(bench: &Bench, flow: FlowId, kind: IcmpKind, offset: u32) -> IcmpError {
    let setup = &bench.world.setups[&flow];
    let tuple = setup.tuple;
    IcmpError {
        kind,
        local: tuple.local,
        local_port: tuple.local_port,
        remote: tuple.remote,
        remote_port: tuple.remote_port,
        seq: bench.readings.0[&flow].snd_una.add(offset).0,
        packet_bytes: 1500,
    }
}

fn hear(bench: &mut Bench, error: IcmpError) -> Vec<String> {
    bench.slow.on_icmp(bench.now, error, &mut bench.world);
    bench.poll();
    bench.messages()
}

fn busy() -> (Bench, FlowId) {
    let mut bench = Bench::new();
    let flow = bench.client();
    bench.reading(flow).srtt_us = 10_000;
    bench.outstanding(flow, 5000);
    (bench, flow)
}

const TOO_BIG: IcmpKind = IcmpKind::TooBig { mtu: 1400 };

#[test]
fn a_router_that_says_so_makes_segments_smaller() {
    let (mut bench, flow) = busy();
    let error = about(&bench, flow, TOO_BIG, 0);
    assert_eq!(hear(&mut bench, error), ["0:mss 0 1348"]);
    assert!(hear(&mut bench, error).is_empty(), "said before");
    // Ten minutes later, with data in flight.
    let mut seen = Vec::new();
    for _ in 0..7000 {
        bench.pass_ms(100);
        let reading = bench.reading(flow);
        reading.snd_una = reading.snd_una.add(10);
        (reading.snd_max, reading.snd_queued) = (reading.snd_una.add(10), reading.snd_una.add(10));
        seen.extend(bench.messages().into_iter().filter(|message| message.contains("mss")));
    }
    assert_eq!(seen, ["0:mss 0 1448"]);
}

#[test]
fn an_error_that_quotes_nothing_outstanding_is_forged() {
    let (mut bench, flow) = busy();
    for offset in [u32::MAX, 5000, 1 << 31] {
        let error = about(&bench, flow, TOO_BIG, offset);
        assert!(hear(&mut bench, error).is_empty(), "{offset}");
    }
    let good = about(&bench, flow, TOO_BIG, 4999);
    assert!(hear(&mut bench, IcmpError { local_port: 1, ..good }).is_empty());
    assert_eq!(bench.slow.counters().drops[Drop::BadIcmp as usize], 4);
    assert_eq!(hear(&mut bench, good).len(), 1);
}

/// RFC 9293 MUST-56.
#[test]
fn no_error_ends_an_established_connection() {
    let (mut bench, flow) = busy();
    for kind in [
        IcmpKind::NetworkUnreachable,
        IcmpKind::HostUnreachable,
        IcmpKind::NetworkRefused,
        IcmpKind::HostUnknown,
        IcmpKind::HostIsolated,
        IcmpKind::Prohibited,
        IcmpKind::SourceRouteFailed,
        IcmpKind::TimeExceeded,
        IcmpKind::ParameterProblem,
        IcmpKind::PortUnreachable,
        IcmpKind::ProtocolUnreachable,
        IcmpKind::SourceQuench,
    ] {
        let error = about(&bench, flow, kind, 0);
        assert!(hear(&mut bench, error).is_empty(), "{kind:?}");
    }
    assert_eq!(bench.states(), [TcpState::Established]);
}

/// RFC 9293 MUST-47, SHLD-25, MUST-54.
#[test]
fn the_errno_at_the_end_is_what_the_path_said_last() {
    for (progress, errno) in [(false, 113), (true, 110)] {
        let (mut bench, flow) = busy();
        let options = SocketOptions { user_timeout_ms: 3000, ..SocketOptions::default() };
        bench.slow.set_options(bench.now, CLIENT, options, &mut bench.world);
        let error = about(&bench, flow, IcmpKind::HostUnreachable, 0);
        hear(&mut bench, error);
        if progress {
            let reading = bench.reading(flow);
            reading.snd_una = reading.snd_una.add(10);
        }
        bench.pass_ms(10_000);
        let messages = bench.messages();
        assert!(messages.contains(&format!("0:abort 0 rst false errno {errno}")), "{messages:?}");
    }
}

/// RFC 9293 MUST-47, SHLD-20, SHLD-25.
#[test]
fn an_error_that_ends_nothing_is_told_to_who_asks_for_it() {
    let wanted = SocketOptions { soft_errors: true, ..SocketOptions::default() };
    for (options, told) in [(SocketOptions::default(), false), (wanted, true)] {
        let (mut bench, flow) = busy();
        bench.slow.set_options(bench.now, CLIENT, options, &mut bench.world);
        let error = about(&bench, flow, IcmpKind::HostUnreachable, 0);
        hear(&mut bench, error);
        let expected = if told { vec![Said::SoftError(CLIENT, 113)] } else { vec![] };
        assert_eq!((bench.said(), bench.states()), (expected, vec![TcpState::Established]));
    }
}

/// As in Linux, whatever RFC 9293 MUST-56 says of soft errors (RFC 5461 §4.1).
#[test]
fn any_error_ends_a_connect_at_once() {
    for (kind, errno) in [
        (IcmpKind::PortUnreachable, 111),
        (IcmpKind::HostUnreachable, 113),
        (IcmpKind::NetworkUnreachable, 101),
        (IcmpKind::NetworkRefused, 101),
        (IcmpKind::HostUnknown, 112),
        (IcmpKind::HostIsolated, 64),
        (IcmpKind::Prohibited, 113),
        (IcmpKind::ProtocolUnreachable, 92),
        (IcmpKind::TimeExceeded, 113),
    ] {
        let mut bench = Bench::new();
        bench.connect();
        let sent = bench.frame();
        let error = IcmpError {
            kind,
            local: sent.source,
            local_port: sent.source_port,
            remote: sent.destination,
            remote_port: sent.destination_port,
            seq: sent.seq,
            packet_bytes: 60,
        };
        bench.slow.on_icmp(bench.now, IcmpError { seq: sent.seq.wrapping_add(1), ..error }, &mut bench.world);
        assert!(bench.said().is_empty(), "forged");
        bench.slow.on_icmp(bench.now, error, &mut bench.world);
        assert_eq!(bench.said()[0], Said::ConnectFailed(CLIENT, errno), "{kind:?}");
    }
}

/// As in Linux (`tcp_req_err`): without a RST and without a report.
#[test]
fn some_errors_end_a_half_open_connection() {
    for (kind, ends, ends6) in [
        (IcmpKind::NetworkUnreachable, true, false),
        (IcmpKind::HostUnreachable, true, false),
        (IcmpKind::TimeExceeded, true, false),
        (IcmpKind::ParameterProblem, true, true),
        (IcmpKind::NetworkRefused, false, false),
        (IcmpKind::HostUnknown, false, false),
        (IcmpKind::HostIsolated, false, false),
        (IcmpKind::PortUnreachable, false, true),
        (IcmpKind::ProtocolUnreachable, false, true),
        (IcmpKind::Prohibited, false, true),
        (IcmpKind::SourceQuench, false, false),
    ] {
        for (any, us, peer, ends) in [("0.0.0.0", US, PEER, ends), ("::", US6, PEER6, ends6)] {
            let mut bench = Bench::new();
            let any = any.parse().unwrap();
            bench.slow.listen(bench.now, SERVER, any, 80, true, 10, &mut bench.world).unwrap();
            bench.segment_at((peer, 4001), (us, 80), syn(5000));
            let sent = bench.frame();
            let error = IcmpError {
                kind,
                local: sent.source,
                local_port: sent.source_port,
                remote: sent.destination,
                remote_port: sent.destination_port,
                seq: sent.seq,
                packet_bytes: 60,
            };
            let half_open = vec![TcpState::Listen, TcpState::SynReceived];
            bench.slow.on_icmp(bench.now, IcmpError { seq: sent.seq.wrapping_add(1), ..error }, &mut bench.world);
            assert_eq!(bench.states(), half_open, "forged: {kind:?}");
            bench.slow.on_icmp(bench.now, error, &mut bench.world);
            let left = if ends { vec![TcpState::Listen] } else { half_open };
            assert_eq!((bench.states(), bench.messages()), (left, vec![]), "{kind:?} from {peer}");
        }
    }
}

#[test]
fn a_black_hole_is_left_by_smaller_segments() {
    let (mut bench, _) = busy();
    bench.pass_ms(10_000);
    let seen: Vec<_> = bench.messages().iter().map(|m| m.split(" cwnd").next().unwrap().to_string()).collect();
    let expected = ["0:timeout 0", "0:mss 0 1024", "0:timeout 0", "0:mss 0 512", "0:timeout 0"];
    assert_eq!(seen[..5], expected, "the size comes before what is sent again");
}

#[test]
fn a_route_with_another_mtu_changes_the_segments() {
    let (mut bench, _) = busy();
    for (mtu, expected) in [(1500, vec![]), (1300, vec!["0:mss 0 1248"]), (9000, vec!["0:mss 0 1448"])] {
        bench.world.route = Some(Route::Via { link: LINK, source: US, mtu });
        bench.slow.retry_routes(bench.now, &mut bench.world);
        bench.poll();
        assert_eq!(bench.messages(), expected, "{mtu}; the peer's limit stays");
    }
}
