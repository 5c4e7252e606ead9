//! SYN cookies, from the SYN that finds the backlog full to the established connection.

use super::world::*;
use crate::counters::Drop;
use crate::messages::ToFast;
use crate::slow::{Route, SlowConfig, TcpState};
use std::net::Ipv4Addr;
use towpath_wire::{Options, Segment, Timestamps, flags};

/// A listener whose backlog a flood has filled.
fn flooded() -> Bench {
    let mut bench = Bench::listening(8);
    for port in 0..8 {
        bench.for_server(10_000 + port, syn(1));
    }
    assert_eq!(bench.frames().len(), 8);
    bench
}

fn answer_to(syn_ack: &Segment, value: u32) -> Peer {
    let echo = syn_ack.options.timestamps.map(|ours| ours.value);
    let timestamps = echo.map(|echo| Timestamps { value, echo });
    Peer {
        seq: 5001,
        ack: syn_ack.seq.wrapping_add(1),
        flags: flags::ACK,
        options: Options { timestamps, ..Options::default() },
        payload: 0,
    }
}

fn ask(bench: &mut Bench, port: u16) -> Segment {
    bench.for_server(port, syn(5000));
    let answer = bench.frame();
    assert_eq!((answer.flags, answer.ack), (flags::SYN | flags::ACK, 5001));
    answer
}

fn install(bench: &mut Bench) -> crate::flow::FlowSetup {
    let setup = |m| match m {
        ToFast::Install(setup) => Some(*setup),
        _ => None,
    };
    let setups: Vec<_> = bench.world.sent.drain(..).filter_map(|(_, m)| setup(m)).collect();
    assert_eq!(setups.len(), 1);
    setups.into_iter().next().unwrap()
}

#[test]
fn a_cookie_opens_a_connection_with_all_that_the_syn_agreed_on() {
    let mut bench = flooded();
    let answer = ask(&mut bench, 4000);
    assert_eq!(bench.world.children.len(), 8, "nothing is held for it");
    assert_eq!(answer.options.mss, Some(1460));
    assert!(answer.options.window_scale.is_some() && answer.options.sack_permitted);
    bench.pass_ms(50);
    bench.for_server(4000, answer_to(&answer, 2));
    let setup = install(&mut bench);
    assert_eq!((setup.snd_start.0, setup.rcv_start.0), (answer.seq.wrapping_add(1), 5001));
    assert_eq!((setup.mss, setup.timestamps, setup.ts_recent, setup.sack), (1448, true, 2, true));
    assert_eq!((setup.snd_wscale, setup.snd_wnd), (7, 8192 << 7));
    assert_eq!(setup.rcv_wscale, answer.options.window_scale.unwrap());
    assert_eq!(bench.said(), [Said::Established(setup.owner), Said::Accepted(setup.owner)]);
    let counters = bench.slow.counters();
    assert_eq!((counters.cookies_sent, counters.cookies_accepted), (1, 1));
    assert_eq!(counters.drops.iter().sum::<u64>(), 0);
}

#[test]
fn a_cookie_remembers_ecn() {
    let mut bench = flooded();
    bench.for_server(4000, Peer { flags: flags::SYN | flags::ECE | flags::CWR, ..syn(5000) });
    let answer = bench.frame();
    assert_eq!(answer.flags, flags::SYN | flags::ACK | flags::ECE);
    bench.for_server(4000, answer_to(&answer, 2));
    assert_ne!(install(&mut bench).ecn, crate::flow::Ecn::Off);
}

#[test]
fn a_cookie_that_says_more_than_we_have_agrees_on_no_more() {
    let mut bench = Bench::with(SlowConfig { ecn: 0, sack: false, ..SlowConfig::default() });
    bench.slow.listen(bench.now, SERVER, Ipv4Addr::UNSPECIFIED.into(), 80, false, 8, &mut bench.world).unwrap();
    for port in 0..8 {
        bench.for_server(10_000 + port, syn(1));
    }
    assert_eq!(bench.frames().len(), 8);
    let mut answer = ask(&mut bench, 4000);
    // The peer sets the bits of SACK and ECN, which are not protected.
    let ours = answer.options.timestamps.as_mut().expect("timestamps");
    ours.value = ours.value.wrapping_add(0x30);
    bench.for_server(4000, answer_to(&answer, 2));
    let setup = install(&mut bench);
    assert_eq!((setup.timestamps, setup.sack, setup.ecn), (true, false, crate::flow::Ecn::Off));
}

#[test]
fn without_timestamps_only_the_mss_comes_back() {
    let mut bench = flooded();
    let options = Options { mss: Some(1400), window_scale: Some(7), sack_permitted: true, ..Options::default() };
    bench.for_server(4000, Peer { options, ..syn(5000) });
    let answer = bench.frame();
    assert_eq!(answer.options, Options { mss: Some(1460), ..Options::default() });
    bench.for_server(4000, Peer { payload: 20, ..answer_to(&answer, 0) });
    assert!(matches!(bench.world.sent.last(), Some((_, ToFast::Inject(..)))), "its data too");
    let setup = install(&mut bench);
    assert_eq!((setup.mss, setup.timestamps, setup.sack), (1300, false, false));
    assert_eq!((setup.snd_wscale, setup.rcv_wscale, setup.snd_wnd), (0, 0, 8192));
}

#[test]
fn a_cookie_may_come_back_with_the_first_data_alone_or_again() {
    let mut bench = flooded();
    let answer = ask(&mut bench, 4000);
    bench.world.accept_full = true;
    bench.for_server(4000, answer_to(&answer, 2));
    assert_eq!(bench.states().len(), 9, "the accept queue is full: nothing is kept");
    assert_eq!(bench.world.children.len(), 8);
    bench.world.accept_full = false;
    bench.for_server(4000, Peer { payload: 5, ..answer_to(&answer, 3) });
    assert_eq!(bench.states().iter().filter(|s| **s == TcpState::Established).count(), 1);
}

#[test]
fn what_follows_the_first_data_does_not_reset_a_peer_that_waits_for_a_place() {
    let mut bench = flooded();
    let answer = ask(&mut bench, 4000);
    let first = Peer { payload: 5, ..answer_to(&answer, 2) };
    let end = Peer { seq: 5006, flags: flags::ACK | flags::FIN, ..answer_to(&answer, 2) };
    bench.world.accept_full = true;
    bench.for_server(4000, first);
    bench.world.accept_full = false;
    bench.for_server(4000, end);
    assert!(bench.frames().is_empty(), "nothing is said while it waits");
    bench.for_server(4000, first);
    assert_eq!(bench.states().iter().filter(|s| **s == TcpState::Established).count(), 1);
}

#[test]
fn no_cookie_where_nobody_would_accept_what_comes_of_it() {
    let mut bench = flooded();
    let answer = ask(&mut bench, 4000);
    bench.world.accept_full = true;
    bench.for_server(4000, answer_to(&answer, 2));
    bench.world.sent.clear();
    bench.for_server(4001, syn(5000));
    assert!(bench.frames().is_empty(), "the peer asks again when there may be room");
    bench.world.accept_full = false;
    bench.for_server(4000, answer_to(&answer, 3));
    bench.world.sent.clear();
    bench.for_server(4001, syn(5000));
    assert_eq!(bench.frame().flags, flags::SYN | flags::ACK);
}

#[test]
fn without_cookies_a_full_backlog_answers_nobody() {
    let mut bench = Bench::with(SlowConfig { syn_cookies: false, ..SlowConfig::default() });
    bench.slow.listen(bench.now, SERVER, US, 80, false, 8, &mut bench.world).unwrap();
    for port in 0..8 {
        bench.for_server(3000 + port, syn(1));
    }
    bench.frames();
    bench.for_server(4000, syn(5000));
    assert!(bench.frames().is_empty());
    assert_eq!(bench.slow.counters().drops[Drop::BacklogFull as usize], 1);
}

#[test]
fn a_forged_or_old_cookie_is_refused() {
    let mut bench = flooded();
    let answer = ask(&mut bench, 4000);
    let good = answer_to(&answer, 2);
    bench.for_server(4001, good);
    bench.for_server(4000, Peer { ack: good.ack.wrapping_add(100), ..good });
    bench.for_server(4000, Peer { seq: 5002, ..good });
    assert_eq!(bench.frames().iter().map(|f| f.flags).collect::<Vec<_>>(), [flags::RST; 3]);
    bench.pass_ms(121_000);
    bench.frames();
    bench.for_server(4000, good);
    assert_eq!(bench.frame().flags, flags::RST);
    assert_eq!(bench.slow.counters().cookies_accepted, 0);
}

#[test]
fn without_pressure_no_number_is_taken_for_a_cookie() {
    let mut bench = flooded();
    let answer = ask(&mut bench, 4000);
    let mut calm = Bench::listening(8);
    calm.for_server(4000, answer_to(&answer, 2));
    assert_eq!(calm.frame().flags, flags::RST);
    assert_eq!(calm.slow.counters().drops[Drop::NoSocket as usize], 1);
}

#[test]
fn a_flood_holds_nothing_and_does_not_keep_others_out() {
    let mut bench = Bench::listening(16);
    for i in 0..50_000u32 {
        let from = (Ipv4Addr::from(0x0b00_0000 + i / 50_000).into(), (i % 50_000 + 1000) as u16);
        bench.segment_at(from, (US, 80), syn(i));
        if i % 5000 == 4999 {
            bench.world.sent.clear();
            let child = bench.world.children.len();
            assert_eq!(child, 16, "slots that a flood can hold");
            let port = 2000 + (i / 5000) as u16;
            let answer = ask(&mut bench, port);
            bench.for_server(port, answer_to(&answer, 9));
            install(&mut bench);
        }
    }
    assert_eq!(bench.slow.counters().cookies_accepted, 10);
}

#[test]
fn cookies_are_limited_per_second() {
    let mut bench = Bench::with(SlowConfig { cookies_per_s: 10, ..SlowConfig::default() });
    bench.slow.listen(bench.now, SERVER, Ipv4Addr::UNSPECIFIED.into(), 80, false, 8, &mut bench.world).unwrap();
    (0..100).for_each(|i| bench.for_server(1000 + i, syn(1)));
    let sent = bench.frames().len();
    assert!((8 + 5..=8 + 10).contains(&sent), "{sent}");
    assert_eq!(bench.slow.counters().drops[Drop::BacklogFull as usize], 100 - sent as u64);
}

#[test]
fn a_cookie_asks_nobody_for_the_way_before_its_answer_comes() {
    let mut bench = flooded();
    let route = bench.world.route.replace(Route::Unreachable(113));
    let answer = ask(&mut bench, 4000);
    bench.for_server(4000, answer_to(&answer, 2));
    assert_eq!((bench.slow.counters().drops[Drop::NotLocal as usize], bench.slow.counters().cookies_accepted), (1, 0));
    bench.world.route = route;
    bench.for_server(4000, answer_to(&answer, 2));
    assert_eq!(install(&mut bench).tuple.remote_port, 4000);
}

/// Each option comes back as the SYN said it, and a shift beyond 14 as 14 (RFC 7323 §2.3).
#[test]
fn a_cookie_returns_each_option_that_was_offered_and_no_other() {
    for (scale, sack, ecn) in [
        (None, false, false),
        (Some(0), false, false),
        (Some(7), true, false),
        (Some(14), false, true),
        (Some(15), true, true),
        (None, true, true),
    ] {
        let mut bench = flooded();
        let options = Options { window_scale: scale, sack_permitted: sack, ..syn(0).options };
        let asks = if ecn { flags::ECE | flags::CWR } else { 0 };
        bench.for_server(4000, Peer { flags: flags::SYN | asks, options, ..syn(5000) });
        let answer = bench.frame();
        bench.for_server(4000, answer_to(&answer, 2));
        let setup = install(&mut bench);
        let wscale = scale.map_or(0, |shift: u8| shift.min(14));
        let got = (setup.snd_wscale, setup.rcv_wscale != 0, setup.sack, setup.ecn != crate::flow::Ecn::Off);
        assert_eq!(got, (wscale, scale.is_some(), sack, ecn), "{scale:?} {sack} {ecn}");
    }
}

/// RFC 9293 §3.10.7.2: a listener opens by an ACK only, which is neither a reset nor a SYN.
#[test]
fn only_a_bare_acknowledgement_returns_a_cookie() {
    for (other, accepted) in [
        (flags::ACK, 1),
        (flags::ACK | flags::PSH, 1),
        (flags::ACK | flags::RST, 0),
        (flags::ACK | flags::SYN, 0),
        (flags::PSH, 0),
    ] {
        let mut bench = flooded();
        let answer = ask(&mut bench, 4000);
        bench.for_server(4000, Peer { flags: other, ..answer_to(&answer, 2) });
        assert_eq!(bench.slow.counters().cookies_accepted, accepted, "{other:#x}");
    }
}

/// RFC 4987 §3.6: two minutes after the last cookie none is on its way.
#[test]
fn a_listener_looks_for_cookies_for_two_minutes_after_the_last() {
    for (ms, replies) in [(59_000, 1), (121_000, 0)] {
        let mut bench = flooded();
        let answer = ask(&mut bench, 4000);
        bench.now = bench.now.after(ms * 1000);
        bench.for_server(4000, answer_to(&answer, 2));
        assert_eq!(bench.slow.counters().cookies_accepted, replies, "after {ms} ms");
    }
}
