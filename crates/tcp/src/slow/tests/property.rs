//! Random sequences of all events: nothing panics, no message is lost, and `released` is called exactly once.

use super::world::*;
use crate::flow::{FlowId, FlowSnapshot, FourTuple, Owner, PortId, flow_flags as bit};
use crate::messages::{ToFast, ToSlow};
use crate::seq::Seq;
use crate::slow::{Route, SlowConfig, TcpState};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use towpath_wire::{Options, Timestamps, flags};

/// One event.
#[derive(Clone, Copy, Debug)]
enum Event {
    Listen(u8),
    Connect(u8),
    Close(u8),
    /// A segment between few ports, with numbers that are often right.
    Segment {
        port: u8,
        to_client: bool,
        flags: u8,
        seq: u8,
        ack: u8,
        payload: u8,
        stamp: Option<u8>,
    },
    /// The fast path reports something about one of its flows.
    Fast(u8, u8),
    Reading {
        flow: u8,
        flags: u16,
        flight: u8,
        window: u8,
    },
    Route(u8),
    Room {
        accept: bool,
        children: bool,
    },
    Pass(u32),
}

fn event() -> impl Strategy<Value = Event> {
    let segment =
        (0..3u8, any::<bool>(), prop_oneof![Just(2u8), Just(16), Just(18), Just(17), Just(4), Just(20), any::<u8>()]);
    let numbers = (0..6u8, 0..4u8, 0..3u8, prop::option::of(0..4u8));
    prop_oneof![
        2 => (0..3u8).prop_map(Event::Listen),
        3 => (0..6u8).prop_map(Event::Connect),
        2 => (0..9u8).prop_map(Event::Close),
        12 => (segment, numbers).prop_map(|((port, to_client, flags), (seq, ack, payload, stamp))| {
            Event::Segment { port, to_client, flags, seq, ack, payload, stamp }
        }),
        8 => (any::<u8>(), 0..8u8).prop_map(|(flow, what)| Event::Fast(flow, what)),
        4 => (any::<u8>(), 0..2048u16, 0..3u8, 0..2u8).prop_map(|(flow, flags, flight, window)| Event::Reading { flow, flags, flight, window }),
        1 => (0..5u8).prop_map(Event::Route),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(accept, children)| Event::Room { accept, children }),
        3 => prop_oneof![0..300u32, 0..100_000u32].prop_map(Event::Pass),
    ]
}

/// The bench with a model of the fast path, and expectations.
struct Model {
    bench: Bench,
    /// Flows that fast paths have been told to remove, and have not removed yet.
    leaving: BTreeSet<FlowId>,
    installed: BTreeMap<FlowId, FourTuple>,
    /// Owners that must be released exactly once.
    owed: BTreeSet<u64>,
    next_owner: u64,
    clients: Vec<Owner>,
    listeners: Vec<Owner>,
    last_iss: u32,
}

impl Model {
    fn new() -> Self {
        let config = SlowConfig {
            max_flows: 20,
            first_port: 40_000,
            last_port: 40_002,
            time_wait_max: 2,
            ..SlowConfig::default()
        };
        Self {
            bench: Bench::with(config),
            leaving: BTreeSet::new(),
            installed: BTreeMap::new(),
            owed: BTreeSet::new(),
            next_owner: 10,
            clients: Vec::new(),
            listeners: Vec::new(),
            last_iss: 0,
        }
    }

    fn owner(&mut self) -> Owner {
        self.next_owner += 1;
        Owner(self.next_owner)
    }

    fn step(&mut self, event: Event) {
        let bench = &mut self.bench;
        match event {
            Event::Listen(i) => {
                let addr = if i == 0 { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { US };
                let owner = self.owner();
                let bench = &mut self.bench;
                if bench
                    .slow
                    .listen(bench.now, owner, addr, 80 + u16::from(i / 2), false, u32::from(i), &mut bench.world)
                    .is_ok()
                {
                    self.owed.insert(owner.0);
                    self.listeners.push(owner);
                }
            }
            Event::Connect(i) => {
                let owner = self.owner();
                let bench = &mut self.bench;
                let local = (i > 3).then_some((US, 40_000 + u16::from(i % 3)));
                if bench.slow.connect(bench.now, owner, PEER, 80, local, i % 2 == 0, &mut bench.world).is_ok() {
                    self.owed.insert(owner.0);
                    self.clients.push(owner);
                }
            }
            Event::Close(i) => {
                let all: Vec<Owner> = self.clients.iter().chain(&self.listeners).copied().collect();
                if let Some(owner) = all.get(usize::from(i) % all.len().max(1)) {
                    bench.slow.close(bench.now, *owner, &mut bench.world);
                }
            }
            Event::Segment { port, to_client, flags, seq, ack, payload, stamp } => {
                let timestamps = stamp.map(|value| Timestamps { value: u32::from(value), echo: 0 });
                let options = Options { timestamps, ..Options::default() };
                let ack = self.last_iss.wrapping_add(u32::from(ack));
                let peer = Peer { seq: 4999 + u32::from(seq), ack, flags, options, payload: usize::from(payload) };
                match to_client {
                    true => bench.for_client(40_000 + u16::from(port), peer),
                    false => bench.for_server(4000 + u16::from(port), peer),
                }
            }
            Event::Fast(flow, what) => self.fast_says(flow, what),
            Event::Reading { flow, flags, flight, window } => {
                let Some(id) = pick(self.installed.keys(), flow) else { return };
                let queued = Seq(100 + u32::from(flight));
                let mut snapshot =
                    FlowSnapshot { snd_una: Seq(100), snd_max: queued, snd_queued: queued, ..Default::default() };
                (snapshot.flags, snapshot.snd_wnd, snapshot.mss) = (u64::from(flags), u32::from(window), 1448);
                bench.readings.0.insert(id, snapshot);
            }
            Event::Route(i) => {
                bench.world.route =
                    [None, Some(Route::Resolving), Some(Route::NotOurs), Some(Route::Unreachable(101)), None]
                        [usize::from(i)];
                bench.slow.retry_routes(bench.now, &mut bench.world);
            }
            Event::Room { accept, children } => {
                (bench.world.accept_full, bench.world.no_children) = (!accept, !children);
            }
            Event::Pass(ms) => bench.pass_ms(u64::from(ms)),
        }
        self.settle();
    }

    fn fast_says(&mut self, flow: u8, what: u8) {
        let bench = &mut self.bench;
        if what == 7 {
            if let Some(id) = pick(self.leaving.iter(), flow) {
                self.leaving.remove(&id);
                self.installed.remove(&id);
                bench.say(ToSlow::Removed(id));
            }
            return;
        }
        let Some(id) = pick(self.installed.keys(), flow) else { return };
        bench.say(match what {
            0 => ToSlow::Active(id),
            1 => ToSlow::Loss(id),
            2 => ToSlow::Closing(id),
            3 => ToSlow::Reset(id),
            4 => ToSlow::AppClosed(id),
            5 => ToSlow::Aborted(id),
            _ => ToSlow::Marked(id),
        });
    }

    /// Reads messages and calls, and checks them against the expectations.
    fn settle(&mut self) {
        for (flow_group, message) in std::mem::take(&mut self.bench.world.sent) {
            match message {
                ToFast::Install(setup) => {
                    assert_eq!(flow_group, usize::from(setup.tuple.remote_port % 2), "the flow's own flow group");
                    assert!(
                        self.installed.insert(setup.flow, setup.tuple).is_none(),
                        "{:?} reused before Removed",
                        setup.flow
                    );
                }
                ToFast::Remove(flow) => {
                    assert!(self.installed.contains_key(&flow), "removed but not installed");
                    assert!(self.leaving.insert(flow), "removed twice");
                }
                ToFast::SetClass(..) | ToFast::SetWeight { .. } | ToFast::SetLimit { .. } => {}
                ToFast::Transmit(PortId(port), frame) => {
                    assert_eq!(port, 1);
                    let segment = towpath_wire::parse(&frame).unwrap();
                    if segment.flags & flags::SYN != 0 {
                        self.last_iss = segment.seq;
                    }
                }
                ToFast::Inject(_, frame) => {
                    let segment = towpath_wire::parse(&frame).unwrap();
                    let of = |t: &FourTuple| {
                        (t.local_port, t.remote_port) == (segment.destination_port, segment.source_port)
                    };
                    let home = self.installed.iter().find(|(_, t)| of(t));
                    assert!(home.is_some_and(|(id, _)| !self.leaving.contains(id)), "it would come straight back");
                    assert_eq!(segment.flags & flags::SYN, 0);
                }
                ToFast::SetWindow(flow, _)
                | ToFast::Timeout(flow, _)
                | ToFast::ProbeWindow(flow)
                | ToFast::ProbeTail(flow)
                | ToFast::SendAck(flow)
                | ToFast::Challenge(flow)
                | ToFast::KeepAlive(flow)
                | ToFast::SetMss(flow, _)
                | ToFast::SetService { flow, .. }
                | ToFast::Deactivate(flow)
                | ToFast::Relink(flow, _)
                | ToFast::Splice(flow, _)
                | ToFast::Abort { flow, .. } => {
                    assert!(
                        self.installed.contains_key(&flow) && !self.leaving.contains(&flow),
                        "{flow:?} is not there"
                    );
                }
            }
        }
        for said in self.bench.said() {
            match said {
                Said::Released(owner, _) => assert!(self.owed.remove(&owner.0), "{owner:?} released twice"),
                Said::Accepted(owner) => assert!(self.owed.insert(owner.0)),
                _ => {}
            }
        }
    }

    /// Ends all connections and listeners, and checks that nothing is left.
    fn end(&mut self) {
        (self.bench.world.route, self.bench.world.accept_full) = (None, false);
        for owner in self.clients.clone().into_iter().chain(self.listeners.clone()) {
            self.bench.slow.close(self.bench.now, owner, &mut self.bench.world);
        }
        self.settle();
        for id in self.installed.keys().copied().collect::<Vec<_>>() {
            self.bench.say(ToSlow::Reset(id));
        }
        self.settle();
        assert_eq!(self.leaving.len(), self.installed.len());
        for id in std::mem::take(&mut self.leaving) {
            self.bench.say(ToSlow::Removed(id));
        }
        self.settle();
        self.bench.pass_ms(200_000);
        self.settle();
        assert!(self.owed.is_empty(), "never released: {:?}", self.owed);
        assert!(self.bench.slow.connections().is_empty(), "{:?}", self.bench.slow.connections());
        assert!(self.bench.world.steered.is_empty() && self.bench.world.listening.is_empty(), "still steered");
        assert!(self.bench.world.children.is_empty(), "slots lost: {:?}", self.bench.world.children);
        assert_eq!(self.bench.slow.next_deadline(), None);
    }
}

/// The n-th of these, modulo their count.
fn pick<'a>(mut ids: impl ExactSizeIterator<Item = &'a FlowId>, n: u8) -> Option<FlowId> {
    let len = ids.len();
    ids.nth(usize::from(n) % len.max(1)).copied()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn books_balance(events in prop::collection::vec(event(), 1..120)) {
        let mut model = Model::new();
        events.into_iter().for_each(|event| model.step(event));
        model.end();
    }
}

/// The property is useful only if random events reach the interesting states.
#[test]
fn random_events_reach_every_state() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, TestRunner};
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let (mut seen, mut bits) = (std::collections::HashSet::new(), 0);
    for _ in 0..1000 {
        let mut model = Model::new();
        let events = prop::collection::vec(event(), 100).new_tree(&mut runner).unwrap().current();
        for event in events {
            model.step(event);
            seen.extend(model.bench.states());
            if let Event::Reading { flags, .. } = event {
                bits |= u64::from(flags);
            }
        }
    }
    for state in [
        TcpState::Listen,
        TcpState::SynSent,
        TcpState::SynReceived,
        TcpState::Established,
        TcpState::TimeWait,
        TcpState::Closed,
    ] {
        assert!(seen.contains(&state), "{state:?} never reached: {seen:?}");
    }
    assert_ne!(bits & bit::PASSIVE_CLOSE, 0);
}
