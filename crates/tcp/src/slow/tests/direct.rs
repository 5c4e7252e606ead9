//! Direct connections: their listeners, tuples and entries.

use super::world::*;
use crate::flow::{FourTuple, Owner, SocketOptions};
use crate::messages::ToSlow;
use crate::slow::congestion::Algorithm;
use crate::slow::{Route, SlowConfig, TcpState};
use std::net::IpAddr;

const SECOND: Owner = Owner(3);

/// Options with this segment size, so that they differ.
fn options(max_segment: u16) -> SocketOptions {
    SocketOptions { max_segment, congestion: Algorithm::Reno.id(), reuse_port: true, ..SocketOptions::default() }
}

/// Two listeners on our port 80.
fn bench(config: SlowConfig) -> Bench {
    let mut bench = Bench::with(config);
    for (owner, max_segment) in [(SERVER, 1000), (SECOND, 1001)] {
        bench.slow.set_options(bench.now, owner, options(max_segment), &mut bench.world);
        bench.slow.listen(bench.now, owner, US, 80, false, 8, &mut bench.world).unwrap();
    }
    bench
}

fn tuple(local: (IpAddr, u16), remote: (IpAddr, u16)) -> FourTuple {
    FourTuple { local: local.0, local_port: local.1, remote: remote.0, remote_port: remote.1 }
}

#[test]
fn a_direct_connection_finds_its_listener_and_what_it_inherits() {
    let mut bench = bench(SlowConfig::default());
    let found = bench.slow.listener_for(&tuple((PEER, 4000), (US, 80))).unwrap();
    assert!([SERVER, SECOND].contains(&found.0));
    assert_eq!(Some(found.1), bench.slow.inherited_from(found.0));
    assert!(bench.slow.listener_for(&tuple((US, 80), (PEER, 4000))).is_none(), "seen from the wrong end");
    assert_eq!(bench.slow.inherited_from(SERVER), Some(options(1000)));
    assert_eq!(bench.slow.inherited_from(SECOND), Some(options(1001)));
    assert_eq!(bench.slow.inherited_from(CLIENT), None);
    let mut at: Vec<Owner> = bench.slow.listeners_at(US, 80).collect();
    at.sort_unstable_by_key(|owner| owner.0);
    assert_eq!(at, [SERVER, SECOND]);
    assert_eq!(bench.slow.listeners_at(US, 81).count() + bench.slow.listeners_at(PEER, 80).count(), 0);
    assert_eq!(bench.slow.early_options(CLIENT), SocketOptions::default());
    bench.slow.set_options(bench.now, CLIENT, options(900), &mut bench.world);
    assert_eq!(bench.slow.early_options(CLIENT), options(900));
}

#[test]
fn a_direct_tuple_is_one_that_connect_would_have_within_this_host() {
    let config = SlowConfig { first_port: 40_000, last_port: 40_000, ..SlowConfig::default() };
    let choose = |owner, to, local, route| {
        let mut bench = bench(config.clone());
        bench.world.route = route;
        bench.slow.choose_direct_tuple(bench.now, owner, to, local, &mut bench.world)
    };
    let to = (US, 80);
    let found = Some(tuple((US, 40_000), to));
    assert_eq!(choose(CLIENT, to, None, None), found);
    assert_eq!(choose(CLIENT, to, Some((IpAddr::from([0, 0, 0, 0]), 0)), None), found, "any address and port");
    assert_eq!(choose(CLIENT, to, Some((US, 0)), None), found);
    assert_eq!(choose(CLIENT, to, Some((US, 77)), None), Some(tuple((US, 77), to)));
    assert_eq!(choose(SERVER, to, None, None), None, "it listens");
    assert_eq!(choose(CLIENT, to, Some((US6, 0)), None), None, "another family");
    assert_eq!(choose(CLIENT, to, Some((PEER, 0)), None), None, "not this host's address");
    assert_eq!(choose(CLIENT, to, Some((US, 80)), None), None, "both ends alike");
    assert_eq!(choose(CLIENT, to, None, Some(Route::Resolving)), None);
    let mut bench = bench(config);
    bench.connect();
    let again = bench.slow.choose_direct_tuple(bench.now, CLIENT, to, None, &mut bench.world);
    assert_eq!(again, None, "it has a connection");
}

#[test]
fn a_tuple_is_free_if_neither_end_has_a_connection_or_had_one_a_moment_ago() {
    let mut bench = Bench::listening(8);
    let ends = tuple((US, 80), (PEER, 4000));
    assert!(bench.slow.is_free(&ends));
    let flow = bench.child(4000);
    assert!(!bench.slow.is_free(&ends) && !bench.slow.is_free(&ends.reversed()));
    use crate::flow::flow_flags as bit;
    bench.reading(flow).flags = bit::FIN_WANTED | bit::FIN_SENT | bit::FIN_ACKED | bit::FIN_RECEIVED;
    bench.say(ToSlow::Closing(flow));
    bench.poll();
    bench.say(ToSlow::Removed(flow));
    assert_eq!((bench.states(), bench.slow.sizes().1), (vec![TcpState::Listen, TcpState::TimeWait], 1));
    assert!(!bench.slow.is_free(&ends) && !bench.slow.is_free(&ends.reversed()), "TIME-WAIT");
    bench.pass_ms(61_000);
    assert!(bench.slow.is_free(&ends) && bench.slow.is_free(&ends.reversed()));
}

#[test]
fn a_direct_connection_is_entered_with_both_ends_or_not_at_all() {
    let ends = tuple((US, 40_000), (US, 80));
    for (max_flows, entered) in [(2, true), (1, false)] {
        let mut bench = bench(SlowConfig { max_flows, ..SlowConfig::default() });
        bench.slow.set_options(bench.now, CLIENT, options(900), &mut bench.world);
        assert_eq!(bench.slow.add_direct([CLIENT, Owner(9)], SERVER, ends), entered);
        assert_eq!(bench.slow.is_free(&ends), !entered);
        assert_eq!(bench.slow.tuple_of(CLIENT), entered.then_some(ends));
        assert_eq!(bench.slow.tuple_of(Owner(9)), entered.then_some(ends.reversed()));
        assert_eq!(
            bench.states().iter().filter(|state| **state == TcpState::Established).count(),
            if entered { 2 } else { 0 }
        );
        assert_eq!(bench.slow.early_options(CLIENT), if entered { SocketOptions::default() } else { options(900) });
        if entered {
            let choices = [CLIENT, Owner(9)].map(|owner| bench.slow.congestion(owner));
            assert_eq!(choices, [Algorithm::Reno; 2], "its own, and its listener's");
        }
        bench.slow.remove_direct(CLIENT);
        assert_eq!(bench.slow.tuple_of(CLIENT), None);
        assert_eq!(bench.slow.tuple_of(Owner(9)).is_some(), entered, "each end for itself");
    }
    let mut bench = Bench::new();
    bench.client();
    bench.slow.remove_direct(CLIENT);
    assert!(bench.slow.tuple_of(CLIENT).is_some(), "a connection with segments is none");
}
