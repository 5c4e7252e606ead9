//! Two connections that are spliced: asked for, translated, and ended.

use super::world::*;
use crate::flow::{FlowId, FlowSnapshot, FourTuple, Owner, PortId, flow_flags};
use crate::messages::{Held, ToSlow};
use crate::seq::Seq;
use crate::slow::{Ending, Forwarded, Route};
use std::collections::HashMap;
use towpath_wire::flags;

pub(super) const EAGAIN: i32 = 11;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
pub(super) const EOPNOTSUPP: i32 = 95;
const ECONNRESET: i32 = 104;
const ENOTCONN: i32 = 107;
pub(super) const ETIMEDOUT: i32 = 110;

/// A proxy: a child of its listener, and a connection that it has opened.
pub(super) struct Proxy {
    pub(super) bench: Bench,
    pub(super) flows: [FlowId; 2],
    pub(super) owners: [Owner; 2],
    /// How often it has asked.
    round: u32,
}

impl Proxy {
    pub(super) fn new() -> Self {
        Self::with(Bench::client)
    }
    /// With a connection that is opened so.
    pub(super) fn with(open: impl FnOnce(&mut Bench) -> FlowId) -> Self {
        let mut bench = Bench::listening(10);
        let mss = 1448;
        let flows = [bench.child(4001), open(&mut bench)];
        let owners = flows.map(|flow| bench.world.setups[&flow].owner);
        for (flow, rcv) in flows.into_iter().zip([10, 20]) {
            let reading = bench.reading(flow);
            reading.mss = mss;
            reading.flags |= flow_flags::TIMESTAMPS | flow_flags::SACK;
            reading.rcv_nxt = reading.rcv_nxt.add(rcv);
            (reading.snd_wscale, reading.rcv_wscale) = (7, 3);
        }
        bench.reading(flows[0]).snd_wscale = 1;
        bench.world.splices = Some(HashMap::new());
        bench.messages();
        Self { bench, flows, owners, round: 0 }
    }
    pub(super) fn ask(&mut self) -> Result<(), i32> {
        self.ask_for(self.owners)
    }
    pub(super) fn ask_for(&mut self, owners: [Owner; 2]) -> Result<(), i32> {
        self.round += 1;
        let Bench { slow, world, readings, now } = &mut self.bench;
        slow.splice(*now, owners, 1, readings, world)
    }
    /// Answers to the newest round.
    pub(super) fn held(&mut self, side: usize, held: Held) {
        self.held_in(self.round, side, held);
    }
    fn held_in(&mut self, round: u32, side: usize, held: Held) {
        self.bench.say(ToSlow::Held(self.flows[side], round, held));
    }
    pub(super) fn steps(&mut self) -> Vec<String> {
        let steps = ["hold", "resume", "release", "begun", "ended", "remove"];
        let name = |message: &String| message.split_once(':').unwrap().1.to_owned();
        let is_step = |message: &String| steps.iter().any(|step| message.starts_with(step));
        self.bench.messages().iter().map(name).filter(is_step).collect()
    }
    pub(super) fn answers(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.bench.world.splice_answers).into_iter().map(|(_, errno)| errno).collect()
    }
    pub(super) fn begun() -> Self {
        let mut proxy = Self::new();
        proxy.ask().unwrap();
        proxy.held(0, Held::Resting);
        proxy.held(1, Held::Resting);
        proxy.bench.poll();
        assert_eq!(proxy.answers(), [0]);
        proxy.steps();
        proxy
    }
    pub(super) fn tuple(&self, side: usize) -> FourTuple {
        self.bench.world.setups[&self.flows[side]].tuple
    }
    pub(super) fn seen(&mut self, side: usize) -> &mut Forwarded {
        let tuple = self.tuple(side);
        &mut self.bench.world.splices.as_mut().unwrap().get_mut(&tuple).unwrap().1
    }
    pub(super) fn is_over(&self) -> bool {
        self.bench.world.splices.as_ref().unwrap().is_empty()
    }
    /// The other peer acknowledges this one's bytes up to `seq`.
    pub(super) fn acknowledged(&mut self, side: usize, seq: Seq) {
        let delta = self.bench.world.splices.as_ref().unwrap()[&self.tuple(side)].0.seq;
        self.seen(1 - side).acked = seq.add(delta);
    }
}

fn named(step: &str, proxy: &Proxy) -> Vec<String> {
    proxy.flows.map(|flow| format!("{step} {}", flow.0)).to_vec()
}

#[test]
fn segments_of_one_connection_become_segments_of_the_other() {
    let mut proxy = Proxy::new();
    proxy.ask().unwrap();
    assert_eq!(proxy.steps(), named("hold", &proxy));
    proxy.held(1, Held::Resting);
    proxy.held(0, Held::Outstanding);
    assert!(proxy.answers().is_empty() && proxy.steps().is_empty());
    proxy.bench.pass_ms(1);
    assert_eq!(proxy.steps(), [format!("hold {}", proxy.flows[0].0)], "only that which does not rest");
    proxy.held(0, Held::Resting);
    proxy.bench.poll();
    assert_eq!((proxy.answers(), proxy.steps()), (vec![0], named("begun", &proxy)));
    let [a, b] = [0, 1].map(|side| proxy.bench.readings.0[&proxy.flows[side]]);
    let there = [0, 1].map(|side| proxy.bench.world.splices.as_ref().unwrap()[&proxy.tuple(side)].0);
    for (translation, from, to, side) in [(there[0], a, b, 0), (there[1], b, a, 1)] {
        assert_eq!((translation.from, translation.to), (proxy.tuple(side), proxy.tuple(1 - side)));
        // The next byte of the one is the next byte to the other, and so are acknowledgements.
        assert_eq!(from.rcv_nxt.add(translation.seq), to.snd_max);
        assert_eq!(from.snd_max.add(translation.ack), to.rcv_nxt);
        assert_eq!(translation.acked, from.snd_max);
    }
    assert_eq!((there[0].shift, there[1].shift), (1 - 3, 7 - 3), "windows");
    // A timestamp that goes there and comes back is what it was.
    assert_eq!(there[0].tsval.wrapping_add(there[1].tsecr), 0);
    assert_eq!(there[1].tsval.wrapping_add(there[0].tsecr), 0);
}

#[test]
fn what_is_left_is_passed_on_first_and_for_a_second_nothing_new_is_taken() {
    let mut proxy = Proxy::new();
    proxy.ask().unwrap();
    assert_eq!(proxy.ask(), Err(EBUSY));
    proxy.held_in(1, 1, Held::Unread);
    assert_eq!(proxy.answers(), [EAGAIN]);
    assert_eq!(proxy.steps()[2..], named("resume", &proxy));
    // An answer that comes later than that, or even in the next round.
    proxy.held_in(1, 0, Held::Resting);
    let swapped = [proxy.owners[1], proxy.owners[0]];
    proxy.ask_for(swapped).unwrap();
    proxy.held_in(1, 0, Held::Resting);
    proxy.held(1, Held::Resting);
    proxy.bench.poll();
    assert!(proxy.answers().is_empty(), "the other one may go on by now");
    proxy.steps();
    proxy.bench.pass_ms(60);
    assert_eq!(proxy.answers(), [EAGAIN], "one does not answer");
    // Who asks again and again holds them no longer than a second.
    for _ in 0..18 {
        proxy.ask().unwrap();
        proxy.bench.pass_ms(50);
        assert_eq!(proxy.answers(), [EAGAIN]);
    }
    proxy.bench.pass_ms(38);
    proxy.ask().unwrap();
    proxy.bench.pass_ms(5);
    assert_eq!(proxy.answers(), [ETIMEDOUT]);
    let steps = proxy.steps();
    assert_eq!(steps[steps.len() - 2..], named("release", &proxy));
    proxy.ask().unwrap();
    proxy.held(0, Held::Ending);
    assert_eq!(proxy.answers(), [ENOTCONN]);
    proxy.steps();
    // Nothing of it is left.
    proxy.bench.pass_ms(3000);
    assert!(proxy.steps().is_empty());
}

#[test]
fn only_connections_that_understand_each_other_are_spliced() {
    let mut proxy = Proxy::new();
    assert_eq!(proxy.ask_for([proxy.owners[0]; 2]), Err(EINVAL));
    assert_eq!(proxy.ask_for([proxy.owners[0], Owner(77)]), Err(ENOTCONN));
    assert_eq!(proxy.ask_for([proxy.owners[0], SERVER]), Err(ENOTCONN));
    let flow = proxy.flows[0];
    for flag in [flow_flags::TIMESTAMPS, flow_flags::SACK, flow_flags::ECN] {
        proxy.bench.reading(flow).flags ^= flag;
        assert_eq!(proxy.ask(), Err(EOPNOTSUPP), "{flag:#x}");
        proxy.bench.reading(flow).flags ^= flag;
    }
    proxy.bench.reading(flow).mss = 1000;
    assert_eq!(proxy.ask(), Err(EOPNOTSUPP), "the other peer may send more");
    proxy.bench.reading(flow).mss = 1448;
    // One that is not installed yet is judged later.
    let there = std::mem::take(proxy.bench.reading(flow));
    proxy.ask().unwrap();
    *proxy.bench.reading(flow) = FlowSnapshot { mss: 1000, ..there };
    proxy.held(0, Held::Resting);
    proxy.held(1, Held::Resting);
    proxy.bench.poll();
    assert_eq!(proxy.answers(), [EOPNOTSUPP]);
    assert_eq!(proxy.steps()[2..], named("release", &proxy));
    proxy.bench.world.splices = None;
    assert_eq!(proxy.ask(), Err(EOPNOTSUPP), "no module");
}

#[test]
fn a_splice_ends_when_both_fins_are_acknowledged() {
    let mut proxy = Proxy::begun();
    let numbers = [0, 1].map(|side| proxy.bench.readings.0[&proxy.flows[side]].rcv_nxt.add(1));
    for (side, fin) in numbers.into_iter().enumerate() {
        (proxy.seen(side).fin, proxy.seen(side).segments) = (Some(fin), 1);
    }
    proxy.acknowledged(0, numbers[0]);
    proxy.bench.pass_ms(2500);
    let [first, second] = named("ended(none)", &proxy).try_into().unwrap();
    assert_eq!(proxy.steps(), [first], "the other one is not");
    proxy.acknowledged(1, numbers[1]);
    proxy.seen(0).segments += 1;
    proxy.bench.pass_ms(150);
    assert_eq!(proxy.steps(), [second]);
    assert!(!proxy.is_over(), "the last segments may come again");
    proxy.bench.pass_ms(2500);
    assert_eq!(proxy.steps(), named("remove", &proxy));
    assert!(
        proxy.is_over()
            && proxy
                .bench
                .slow
                .connections()
                .iter()
                .all(|c| c.flow.is_none_or(|f| !proxy.flows.contains(&f)) || c.state == crate::slow::TcpState::Closed)
    );
    for flow in proxy.flows {
        proxy.bench.say(ToSlow::Removed(flow));
    }
    assert_eq!(proxy.bench.slow.connections().len(), 1, "the listener");
    assert_eq!(proxy.bench.slow.next_deadline(), None);
}

#[test]
fn a_reset_ends_a_splice_unless_it_is_forged() {
    a_reset_ends_a_splice(true);
    a_reset_ends_a_splice(false);
}

fn a_reset_ends_a_splice(exact: bool) {
    let mut proxy = Proxy::begun();
    let next = proxy.bench.readings.0[&proxy.flows[0]].rcv_nxt;
    (proxy.seen(0).rst, proxy.seen(0).segments) = (Some(next.add(1 << 30)), 1);
    proxy.bench.pass_ms(5000);
    assert!(proxy.steps().is_empty(), "no peer takes that");
    // Nor one that is nearly right: the peer would answer, and silence for a minute tells that there is none.
    (proxy.seen(0).rst, proxy.seen(0).segments) = (Some(next.add(100)), 2);
    proxy.bench.pass_ms(59_000);
    proxy.seen(1).segments += 1;
    proxy.bench.pass_ms(59_000);
    assert!(proxy.steps().is_empty() && !proxy.is_over());
    if exact {
        (proxy.seen(0).rst, proxy.seen(0).segments) = (Some(next), 3);
        proxy.bench.pass_ms(2500);
    } else {
        proxy.bench.pass_ms(2000);
    }
    assert!(proxy.is_over());
    let [ended, removed] = ["ended(some(104))", "remove"].map(|step| named(step, &proxy));
    assert_eq!(proxy.steps(), [ended[0].clone(), removed[0].clone(), ended[1].clone(), removed[1].clone()]);
}

#[test]
fn who_aborts_or_takes_the_module_away_resets_both_peers() {
    for way in 0..4 {
        let mut proxy = Proxy::begun();
        proxy.seen(0).acked = Seq(1111);
        proxy.seen(1).acked = Seq(2222);
        let acked = match way {
            0 => {
                proxy.bench.say(ToSlow::Aborted(proxy.flows[1]));
                [1111, 2222]
            }
            1 => {
                let Bench { slow, world, .. } = &mut proxy.bench;
                assert!(slow.cut(proxy.owners[0], world));
                [1111, 2222]
            }
            2 => {
                let Bench { slow, world, .. } = &mut proxy.bench;
                slow.reset(proxy.owners[0], Ending::Left, world);
                [1111, 2222]
            }
            _ => {
                let began = [0, 1].map(|side| proxy.bench.readings.0[&proxy.flows[side]].snd_max.0);
                proxy.bench.world.splices = Some(HashMap::new());
                proxy.bench.pass_ms(200);
                began
            }
        };
        let resets: Vec<_> = proxy.bench.frames().iter().map(|s| (s.flags, s.seq)).collect();
        assert_eq!(resets, acked.map(|acked| (flags::RST, acked)), "{way}");
        let errno = if way == 1 || way == 3 { 103 } else { ECONNRESET };
        let ended = named(&format!("ended(some({errno}))"), &proxy);
        assert!(proxy.steps().contains(&ended[0]) && proxy.is_over(), "{way}");
    }
}

#[test]
fn who_closes_after_both_ends_resets_nobody() {
    let mut proxy = Proxy::begun();
    for side in 0..2 {
        let fin = proxy.bench.readings.0[&proxy.flows[side]].rcv_nxt.add(1);
        proxy.seen(side).fin = Some(fin);
        proxy.acknowledged(side, fin);
    }
    proxy.bench.pass_ms(150);
    proxy.bench.say(ToSlow::Aborted(proxy.flows[0]));
    assert!(proxy.bench.frames().is_empty() && proxy.is_over());
}

#[test]
fn what_the_other_peer_has_acknowledged_counts_as_passed_each_byte_once() {
    let mut proxy = Proxy::begun();
    let start = proxy.bench.readings.0[&proxy.flows[0]].rcv_nxt;
    proxy.seen(0).bytes = 5_000_000_000;
    // Nothing, something, less as one was overtaken, and on: 4 GiB and more.
    for (upto, told) in
        [(0u32, 0u64), (1000, 1000), (400, 1000), (2_000_000_000, 2_000_000_000), (4_000_000_000, 4_000_000_000)]
    {
        proxy.acknowledged(0, start.add(upto));
        proxy.bench.pass_ms(150);
        let passed = proxy.owners.map(|owner| proxy.bench.world.passed_on[&owner]);
        assert_eq!(passed, [told, 0]);
    }
    // The end has a number of its own.
    let end = start.add(4_000_000_000).add(600_000_000);
    proxy.seen(0).fin = Some(end);
    proxy.acknowledged(0, end);
    proxy.bench.pass_ms(150);
    assert_eq!(proxy.bench.world.passed_on[&proxy.owners[0]], 4_599_999_999);
}

#[test]
fn a_flow_that_goes_while_it_is_asked_for_lets_the_other_one_go_on() {
    let mut proxy = Proxy::new();
    proxy.ask().unwrap();
    proxy.held(1, Held::Resting);
    proxy.steps();
    proxy.bench.say(ToSlow::Reset(proxy.flows[0]));
    proxy.bench.say(ToSlow::Removed(proxy.flows[0]));
    assert_eq!(proxy.answers(), [ENOTCONN]);
    assert!(proxy.steps().contains(&format!("release {}", proxy.flows[1].0)));
}

#[test]
fn a_spliced_flow_has_no_timers_and_its_new_link_is_the_translations() {
    let mut proxy = Proxy::begun();
    let link = crate::flow::Link { destination: [9; 6], ..LINK };
    proxy.bench.world.route = Some(Route::Via { link, source: US, mtu: 1500 });
    let Bench { slow, world, now, .. } = &mut proxy.bench;
    slow.retry_routes(*now, world);
    proxy.bench.pass_ms(200);
    for side in [0, 1] {
        assert_eq!(proxy.bench.world.splices.as_ref().unwrap()[&proxy.tuple(side)].0.link, link);
    }
    proxy.bench.pass_ms(4 * 3_600_000);
    assert!(proxy.bench.messages().is_empty());
    // Nobody has said anything for five days.
    proxy.bench.pass_ms(5 * 86_400_000);
    assert!(proxy.is_over());
}

/// A segment of the client with this much payload, which its flow has not taken.
fn segment(proxy: &mut Proxy, flags: u8, payload: usize) {
    segment_at(proxy, 1, flags, payload);
}

fn segment_at(proxy: &mut Proxy, flow_group: usize, flags: u8, payload: usize) {
    let frame = frame((PEER, 4001), (US, 80), Peer { seq: 9000, ack: 1, flags, payload, ..Peer::default() });
    let Bench { slow, world, now, .. } = &mut proxy.bench;
    slow.on_message(*now, flow_group, ToSlow::Segment(PortId(1), frame), world);
}

#[test]
fn what_comes_to_another_flow_group_is_offered_to_the_flow() {
    let mut proxy = Proxy::new();
    proxy.ask().unwrap();
    segment_at(&mut proxy, 0, flags::ACK, 0);
    assert!(proxy.bench.messages().contains(&"1:inject 0".into()));
    assert_eq!(proxy.bench.slow.kept_bytes(), 0);
}

#[test]
fn who_cuts_a_connection_that_is_asked_for_resets_its_peer() {
    let mut proxy = Proxy::new();
    proxy.ask().unwrap();
    proxy.held(0, Held::Resting);
    proxy.steps();
    let Bench { slow, world, .. } = &mut proxy.bench;
    assert!(slow.cut(proxy.owners[0], world));
    assert_eq!(proxy.answers(), [ENOTCONN]);
    let messages = proxy.bench.messages();
    let at = |what: &str| messages.iter().position(|message| message.contains(what)).unwrap();
    assert!(at("release") < at("abort") && at("abort") < at("remove"), "{messages:?}");
}

#[test]
fn an_end_is_seen_although_a_wrong_acknowledgement_came_last() {
    let mut proxy = Proxy::begun();
    let numbers = [0, 1].map(|side| proxy.bench.readings.0[&proxy.flows[side]].rcv_nxt.add(1));
    for (side, fin) in numbers.into_iter().enumerate() {
        (proxy.seen(side).fin, proxy.seen(side).segments) = (Some(fin), 1);
    }
    proxy.acknowledged(0, numbers[0]);
    proxy.acknowledged(1, numbers[1].sub(1000));
    let [first, second] = named("ended(none)", &proxy).try_into().unwrap();
    proxy.bench.pass_ms(59_000);
    assert_eq!(proxy.steps(), [first]);
    proxy.bench.pass_ms(2000);
    assert_eq!(proxy.steps()[0], second);
    assert!(proxy.is_over());
}

#[test]
fn segments_that_come_while_it_is_asked_for_are_kept_for_whoever_takes_them() {
    for begins in [true, false] {
        let mut proxy = Proxy::new();
        proxy.ask().unwrap();
        segment(&mut proxy, flags::ACK, 1000);
        // More than is kept.
        (0..5).for_each(|_| segment(&mut proxy, flags::ACK, 60_000));
        assert_eq!(proxy.bench.slow.counters().drops[crate::counters::Drop::Held as usize], 1);
        proxy.held(0, Held::Resting);
        if begins {
            proxy.held(1, Held::Resting);
            proxy.bench.poll();
            let lengths: Vec<_> = proxy.bench.world.translated.iter().map(|(_, frame)| frame.len()).collect();
            assert_eq!(lengths, [1054, 60_054, 60_054, 60_054, 60_054]);
            // One that the translator has missed.
            segment(&mut proxy, flags::ACK, 500);
            assert_eq!(proxy.bench.world.translated.len(), 6);
        } else {
            proxy.held(1, Held::Ending);
            let inject = |message: &String| message.contains("inject");
            let injected: Vec<_> = proxy.bench.messages().into_iter().filter(inject).collect();
            assert_eq!((injected.len(), injected[0].as_str()), (5, "1:inject 1000"));
            assert!(proxy.bench.world.translated.is_empty());
        }
        assert_eq!(proxy.bench.slow.kept_bytes(), 0);
    }
}

#[test]
fn one_user_leaves_room_for_others() {
    let mut bench = Bench::listening(1000);
    bench.world.splices = Some(HashMap::new());
    let flows: Vec<_> = (0..260).map(|number| bench.child(5000 + number)).collect();
    for flow in &flows {
        *bench.reading(*flow) = FlowSnapshot { mss: 1448, ..*bench.reading(*flow) };
    }
    let owners: Vec<_> = flows.iter().map(|flow| bench.world.setups[flow].owner).collect();
    let Bench { slow, world, readings, now } = &mut bench;
    let asked = owners.chunks(2).map(|pair| slow.splice(*now, [pair[0], pair[1]], 1, readings, world));
    let results: Vec<_> = asked.collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 128);
    assert_eq!(results[129], Err(EBUSY));
}

#[test]
fn a_peer_that_begins_anew_is_challenged_and_one_that_has_closed_may() {
    let mut proxy = Proxy::begun();
    proxy.seen(0).acked = Seq(1111);
    let next = proxy.bench.readings.0[&proxy.flows[0]].rcv_nxt;
    segment(&mut proxy, flags::SYN, 0);
    let challenge = proxy.bench.frame();
    assert_eq!((challenge.flags, challenge.seq, challenge.ack), (flags::ACK, 1111, next.0), "its RST will be exact");
    let numbers = [0, 1].map(|side| proxy.bench.readings.0[&proxy.flows[side]].rcv_nxt.add(1));
    for side in [0, 1] {
        (proxy.seen(side).fin, proxy.seen(side).segments) = (Some(numbers[side]), 1);
        proxy.acknowledged(side, numbers[side]);
    }
    proxy.bench.pass_ms(150);
    segment(&mut proxy, flags::SYN, 0);
    assert!(proxy.is_over());
}

#[test]
fn many_splices_are_looked_at_in_turn_and_end_one_by_one() {
    let mut bench = Bench::listening(4000);
    bench.world.splices = Some(HashMap::new());
    let pairs = 600;
    let flows: Vec<_> = (0..2 * pairs).map(|number| bench.child(5000 + number)).collect();
    for flow in &flows {
        *bench.reading(*flow) = FlowSnapshot { mss: 1448, ..*bench.reading(*flow) };
    }
    for pair in flows.chunks(2) {
        let owners = [0, 1].map(|side| bench.world.setups[&pair[side]].owner);
        let Bench { slow, world, readings, now } = &mut bench;
        slow.splice(*now, owners, 1, readings, world).unwrap();
        let round = world.sent.iter().rev().find_map(|(_, message)| match message {
            crate::messages::ToFast::Splice(_, crate::messages::Splicing::Hold(round)) => Some(*round),
            _ => None,
        });
        pair.iter().for_each(|flow| bench.say(ToSlow::Held(*flow, round.unwrap(), Held::Resting)));
        bench.poll();
    }
    assert_eq!(bench.world.splices.as_ref().unwrap().len(), 2 * usize::from(pairs));
    for flow in &flows {
        bench.say(ToSlow::Aborted(*flow));
        bench.say(ToSlow::Removed(*flow));
    }
    assert!(bench.world.splices.as_ref().unwrap().is_empty());
    bench.pass_ms(10_000);
    assert_eq!(bench.slow.connections().len(), 1, "the listener");
}
