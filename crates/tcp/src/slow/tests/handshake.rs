//! Times and numbers of handshakes that do not succeed at once.

use super::world::*;
use crate::flow::SocketOptions;
use crate::slow::{Route, SlowConfig, TcpState};
use towpath_wire::flags;

fn set(bench: &mut Bench, owner: crate::flow::Owner, options: SocketOptions) {
    bench.slow.set_options(bench.now, owner, options, &mut bench.world);
}

/// The limit is looked at when a SYN has timed out once, and cuts the waits from then on.
#[test]
fn a_connect_with_a_user_timeout_sends_as_many_syns_as_it_has_time_for() {
    for (user_timeout_ms, before_ms, syns, end_ms) in [(5000, 4990, 3, 5010), (500, 990, 1, 1010)] {
        let mut bench = Bench::new();
        set(&mut bench, CLIENT, SocketOptions { user_timeout_ms, ..SocketOptions::default() });
        bench.connect();
        bench.pass_ms(before_ms);
        assert_eq!((bench.frames().len(), bench.said().len()), (syns, 0), "{user_timeout_ms} ms");
        bench.pass_ms(end_ms - before_ms);
        assert_eq!(bench.frames().len(), usize::from(user_timeout_ms == 500), "one time-out there is in any case");
        assert_eq!(bench.said(), [Said::ConnectFailed(CLIENT, 110), Said::Released(CLIENT, None)]);
    }
}

/// TCP_DEFER_ACCEPT lengthens the wait of a peer that has answered, and of no other.
#[test]
fn a_listener_that_waits_for_data_waits_longer_only_for_a_peer_that_has_answered() {
    for answers in [false, true] {
        let mut bench = Bench::listening(8);
        set(&mut bench, SERVER, SocketOptions { defer_accept_s: 100, ..SocketOptions::default() });
        bench.for_server(4000, syn(5000));
        let sent = bench.frame();
        if answers {
            bench.for_server(4000, Peer { seq: 5001, ack: sent.seq.wrapping_add(1), flags: flags::ACK, ..stamped(1) });
        }
        bench.pass_ms(64_000);
        assert_eq!(bench.frames().len(), if answers { 0 } else { 5 });
        assert_eq!(bench.states().contains(&TcpState::SynReceived), answers, "after five repetitions");
        bench.pass_ms(300_000);
        assert_eq!(bench.states(), [TcpState::Listen]);
    }
}

/// RFC 7323 §2.2: only a SYN's window is not scaled.
#[test]
fn a_challenge_in_the_handshake_has_a_scaled_window() {
    let mut bench = Bench::listening(8);
    bench.for_server(4000, syn(5000));
    let sent = bench.frame();
    assert_eq!((sent.window, sent.options.window_scale), (65_535, Some(3)));
    bench.for_server(4000, Peer { seq: 5002, flags: flags::RST, ..Peer::default() });
    assert_eq!(bench.frame().window, 8191);
    bench.pass_ms(499);
    bench.for_server(4000, Peer { seq: 5002, flags: flags::RST, ..Peer::default() });
    assert!(bench.frames().is_empty(), "RFC 5961 §7: not yet half a second");
    bench.pass_ms(1);
    bench.for_server(4000, Peer { seq: 5002, flags: flags::RST, ..Peer::default() });
    assert_eq!(bench.frames().len(), 1);
}

#[test]
fn a_route_that_is_not_known_is_asked_for_ten_times_a_second() {
    let config = SlowConfig { route_retry_ms: 100, ..SlowConfig::default() };
    for (known_ms, sent_ms) in [(1, 100), (150, 200), (250, 300)] {
        let mut bench = Bench::with(config.clone());
        bench.world.route = Some(Route::Resolving);
        bench.connect();
        bench.pass_ms(known_ms);
        bench.world.route = None;
        bench.pass_ms(sent_ms - known_ms - 2);
        assert!(bench.frames().is_empty(), "{known_ms}");
        bench.pass_ms(4);
        assert_eq!(bench.frame().flags, flags::SYN);
    }
}

/// The only free number is used again, and none beyond the table's end is made.
#[test]
fn a_full_table_has_no_number_beyond_its_end() {
    use crate::flow::{FlowId, Owner};
    let mut bench = Bench::with(SlowConfig { max_flows: 1, ..SlowConfig::default() });
    bench.connect();
    assert!(bench.slow.close(bench.now, CLIENT, &mut bench.world));
    bench.frames();
    assert_eq!(bench.client(), FlowId(0));
    let full = bench.slow.connect(bench.now, Owner(9), PEER, 80, None, false, &mut bench.world);
    assert_eq!(full, Err(crate::slow::ConnectError::Errno(105)));
}
