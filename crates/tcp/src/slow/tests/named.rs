//! SYNs whose listeners the host names: the listeners are sockets of its kernel.

use super::world::*;
use crate::counters::Drop;
use crate::flow::{FourTuple, Owner, flow_flags};
use crate::messages::ToSlow;
use crate::slow::{Steered, TcpState};
use std::net::IpAddr;
use towpath_wire::{Options, Timestamps, flags};

const OTHER: Owner = Owner(8);

fn tuple(port: u16) -> FourTuple {
    FourTuple { local: US, local_port: 80, remote: PEER, remote_port: port }
}

/// Two listeners on one address, of which the kernel chooses one for each SYN.
fn two() -> Bench {
    let mut bench = Bench::new();
    bench.world.names = true;
    for (owner, addr) in [(SERVER, US), (OTHER, US)] {
        bench.slow.listen(bench.now, owner, addr, 80, false, 8, &mut bench.world).unwrap();
    }
    assert!(bench.world.listening.is_empty(), "no port is ours");
    bench
}

fn last_ack(syn_ack_seq: u32) -> Peer {
    Peer { seq: 5001, ack: syn_ack_seq.wrapping_add(1), flags: flags::ACK, ..stamped(2) }
}

#[test]
fn the_named_listener_gets_the_connection() {
    let mut bench = two();
    for (listener, port) in [(SERVER, 4000), (OTHER, 4001), (SERVER, 4002), (OTHER, 4003)] {
        bench.syn_for(listener, port, syn(5000));
        assert_eq!(bench.frame().flags, flags::SYN | flags::ACK);
        assert_eq!(bench.world.steered.get(&tuple(port)), Some(&Steered::ButFirstSyns));
    }
    bench.slow.close(bench.now, OTHER, &mut bench.world);
    let mut reset: Vec<_> = bench.frames().iter().map(|frame| (frame.flags, frame.destination_port)).collect();
    reset.sort_unstable();
    assert_eq!(reset, [(flags::RST | flags::ACK, 4001), (flags::RST | flags::ACK, 4003)]);
    assert_eq!(bench.world.steered.len(), 2);
    bench.syn_for(OTHER, 4004, syn(5000));
    assert!(bench.frames().is_empty() && bench.world.steered.len() == 2, "it has ended");
}

#[test]
fn a_half_open_connection_is_steered_until_it_ends() {
    type End = fn(&mut Bench);
    let ends: [(&str, End); 4] = [
        ("reset", |bench| bench.for_server(4000, Peer { seq: 5001, flags: flags::RST, ..Peer::default() })),
        ("time-out", |bench| bench.pass_ms(63_100)),
        ("another SYN", |bench| bench.syn_for(SERVER, 4000, syn(6000))),
        ("the listener's end", |bench| {
            bench.slow.close(bench.now, SERVER, &mut bench.world);
        }),
    ];
    for (what, end) in ends {
        let mut bench = two();
        bench.syn_for(SERVER, 4000, syn(5000));
        assert_eq!(bench.world.steered.len(), 1);
        end(&mut bench);
        assert!(bench.world.steered.is_empty() && bench.world.children.is_empty(), "{what}");
    }
}

#[test]
fn a_repeated_syn_is_recognised() {
    let mut bench = two();
    bench.syn_for(SERVER, 4000, syn(5000));
    let first = bench.frame();
    bench.pass_ms(600);
    bench.syn_for(SERVER, 4000, syn(5000));
    assert_eq!((bench.frame().seq, bench.world.children.len()), (first.seq, 1));
    bench.for_server(4000, last_ack(first.seq));
    assert_eq!(bench.messages(), ["0:install 0"]);
    assert_eq!(bench.world.steered.get(&tuple(4000)), Some(&Steered::ButFirstSyns));
    // RFC 5961 section 4.
    bench.syn_for(SERVER, 4000, syn(5000));
    assert_eq!(bench.messages(), ["0:challenge 0"]);
}

#[test]
fn a_syn_that_names_nobody_gets_no_answer() {
    let mut bench = two();
    bench.for_server(4000, syn(5000));
    assert!(bench.frames().is_empty() && bench.world.steered.is_empty() && bench.world.children.is_empty());
    assert_eq!(bench.slow.counters().drops[Drop::NoSocket as usize], 1);
}

#[test]
fn the_answer_to_a_cookie_is_steered_and_finds_its_listener() {
    let mut bench = two();
    for port in 0..8 {
        bench.syn_for(OTHER, 10_000 + port, syn(1));
    }
    bench.frames();
    for port in 4000..4008 {
        bench.syn_for(OTHER, port, syn(5000));
        let answer = bench.frame();
        assert!(bench.world.half_open.contains(&tuple(port)) && !bench.world.steered.contains_key(&tuple(port)));
        let echo = answer.options.timestamps.unwrap().value;
        let options = Options { timestamps: Some(Timestamps { value: 2, echo }), ..Options::default() };
        bench.for_server(port, Peer { options, ..last_ack(answer.seq) });
        assert_eq!(bench.world.steered.get(&tuple(port)), Some(&Steered::ButFirstSyns));
    }
    let counters = bench.slow.counters();
    assert_eq!((counters.cookies_sent, counters.cookies_accepted), (8, 8));
}

/// One user has stopped to listen, and another has got the port. The stack does not know of it yet.
#[test]
fn the_answer_to_a_cookie_goes_to_no_other_users_listener() {
    const USERS: [Owner; 2] = [Owner(1001), Owner(2001)];
    let mut bench = Bench::new();
    bench.world.names = true;
    for owner in USERS {
        bench.slow.listen(bench.now, owner, US, 80, false, 8, &mut bench.world).unwrap();
        for port in 0..9 {
            bench.syn_for(owner, owner.0 as u16 * 10 + port, syn(1));
        }
    }
    bench.frames();
    for (number, port) in (4000..4016).enumerate() {
        let listener = USERS[number % 2];
        bench.syn_for(listener, port, syn(5000));
        let answer = bench.frame();
        let timestamps = answer.options.timestamps.map(|ours| Timestamps { value: 2, echo: ours.value });
        let options = Options { timestamps, ..Options::default() };
        bench.for_server(port, Peer { options, ..last_ack(answer.seq) });
        assert_eq!(bench.world.parents.pop(), Some(listener), "{port}");
    }
}

/// A connection of the listener that is in TIME-WAIT. RCV.NXT is 5002.
fn in_time_wait(bench: &mut Bench) {
    bench.syn_for(SERVER, 4000, syn(5000));
    let answer = bench.frame();
    bench.for_server(4000, last_ack(answer.seq));
    let flow = bench.slow.connections().iter().find_map(|c| c.flow).unwrap();
    let setup = &bench.world.setups[&flow];
    let (snd, rcv) = (setup.snd_start, setup.rcv_start);
    let reading = bench.readings.0.entry(flow).or_default();
    (reading.snd_una, reading.snd_nxt, reading.snd_max, reading.rcv_nxt) =
        (snd.add(1), snd.add(1), snd.add(1), rcv.add(1));
    reading.ts_recent = 2;
    reading.flags = flow_flags::FIN_WANTED | flow_flags::FIN_ACKED | flow_flags::FIN_RECEIVED;
    bench.say(ToSlow::Closing(flow));
    bench.poll();
    bench.say(ToSlow::Removed(flow));
    bench.world.sent.clear();
    assert_eq!(bench.states(), [TcpState::Listen, TcpState::Listen, TcpState::TimeWait]);
    assert_eq!(bench.world.steered.get(&tuple(4000)), Some(&Steered::ButFirstSyns));
}

#[test]
fn a_later_syn_in_time_wait_opens_a_connection_of_the_named_listener() {
    let mut bench = two();
    in_time_wait(&mut bench);
    let later = Peer { options: stamped(9).options, ..syn(90_000) };
    bench.world.steered.insert(tuple(4000), Steered::All);
    bench.for_server(4000, later);
    assert!(bench.frames().is_empty(), "its repetition will name the listener");
    assert_eq!(bench.world.steered.get(&tuple(4000)), Some(&Steered::ButFirstSyns));
    bench.world.steered.insert(tuple(4000), Steered::All);
    bench.syn_for(OTHER, 4000, later);
    assert_eq!(bench.frame().flags, flags::SYN | flags::ACK);
    bench.slow.close(bench.now, OTHER, &mut bench.world);
    assert!(bench.world.steered.is_empty());
}

#[test]
fn a_connection_of_the_kernel_gets_its_segments_although_the_tuple_was_in_time_wait() {
    let mut bench = two();
    in_time_wait(&mut bench);
    let ack = Peer { seq: 90_001, ack: 77, flags: flags::ACK, ..stamped(9) };
    bench.for_server(4000, ack);
    assert_eq!(bench.world.steered.len(), 1, "nobody has taken a SYN");
    bench.frames();
    bench.world.kernel_has = true;
    bench.for_server(4000, ack);
    assert!(bench.frames().is_empty() && bench.world.steered.is_empty());
    bench.pass_ms(120_000);
}

/// The listener that has sent the cookie has ended, and one of the kernel's own has taken the SYN's repetition.
#[test]
fn a_connection_of_the_kernel_is_not_reset_although_a_cookie_was_sent() {
    let mut bench = two();
    for port in 0..8 {
        bench.syn_for(OTHER, 10_000 + port, syn(1));
    }
    bench.frames();
    for kernel_has in [false, true] {
        bench.world.kernel_has = kernel_has;
        bench.syn_for(OTHER, 4000, syn(5000));
        assert_eq!(bench.frame().flags, flags::SYN | flags::ACK);
        bench.for_server(4000, last_ack(77));
        assert_eq!(bench.frames().len(), usize::from(!kernel_has), "a reset");
        assert_eq!(bench.world.half_open.contains(&tuple(4000)), !kernel_has);
    }
}

/// The repetition of its SYN went to a listener of the kernel's own.
#[test]
fn a_connection_of_the_kernel_ends_our_half_open_one() {
    let mut bench = two();
    for (kernel_has, port) in [(false, 4000), (true, 4001)] {
        bench.world.kernel_has = kernel_has;
        bench.syn_for(SERVER, port, syn(5000));
        assert_eq!(bench.frame().flags, flags::SYN | flags::ACK);
        bench.for_server(port, last_ack(77));
        assert_eq!(bench.frames().len(), usize::from(!kernel_has), "a reset");
        assert_eq!(bench.world.steered.contains_key(&tuple(port)), !kernel_has);
    }
    assert_eq!(bench.world.children.len(), 1);
    bench.world.kernel_has = false;
    bench.pass_ms(120_000);
    assert!(bench.world.children.is_empty());
}

#[test]
fn listeners_are_never_in_each_others_way() {
    let mut bench = two();
    let any = "0.0.0.0".parse::<IpAddr>().unwrap();
    assert_eq!(bench.slow.listen(bench.now, Owner(9), any, 80, false, 8, &mut bench.world), Ok(()));
}

/// Only an acknowledgement of something else shows that another connection has the tuple.
#[test]
fn time_wait_keeps_what_may_belong_to_the_old_connection_from_the_kernel() {
    for (what, ack_ours, ends) in [
        (flags::ACK, false, true),
        (flags::ACK, true, false),
        (flags::ACK | flags::SYN, false, false),
        (flags::RST, false, false),
        (flags::PSH, false, false),
    ] {
        let mut bench = two();
        in_time_wait(&mut bench);
        bench.world.kernel_has = true;
        let snd_nxt = bench.readings.0.values().next().unwrap().snd_max;
        let ack = if ack_ours { snd_nxt.0 } else { 77 };
        bench.for_server(4000, Peer { seq: 5002, ack, flags: what, ..stamped(9) });
        assert_eq!(bench.states().contains(&TcpState::TimeWait), !ends, "{what:#x}, {ack_ours}");
    }
}
