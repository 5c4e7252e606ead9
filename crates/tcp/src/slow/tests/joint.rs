//! Slow path and fast paths together: one host with two flow groups, connected to itself over a wire that loses frames.

use super::world::*;
use crate::buffers::{Rings, RxBatch, TxPorts};
use crate::fast::{FastConfig, FastPath, FlowTable};
use crate::flow::{FlowId, FourTuple, Owner, PortId, RingBytes};
use crate::messages::{AppUpdate, ToFast};
use crate::slow::{SlowConfig, SlowPath, TcpState};
use crate::time::Micros;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use towpath_rng::Rng;
use towpath_wire::offload::{RxChecksum, TxOffload};
use towpath_wire::parse;

/// Ring size in both directions. It is small, so that windows close.
const RING: u32 = 8192;

#[derive(Default)]
struct Memory {
    tx: HashMap<FlowId, Vec<u8>>,
    rx: HashMap<FlowId, Vec<u8>>,
}

impl Rings for Memory {
    fn deliver(&mut self, flow: FlowId, position: u32, bytes: &[u8]) {
        let ring = self.rx.get_mut(&flow).expect("ring");
        bytes.iter().zip(position..).for_each(|(byte, at)| ring[(at % RING) as usize] = *byte);
    }
    fn fetch(&self, flow: FlowId, position: u32, out: &mut [u8]) {
        out.iter_mut().zip(position..).for_each(|(byte, at)| *byte = self.tx[&flow][(at % RING) as usize]);
    }
}

struct Wire {
    buffer: Vec<u8>,
    frames: VecDeque<Box<[u8]>>,
}

impl TxPorts for Wire {
    fn reserve(&mut self, _: PortId) -> Option<&mut [u8]> {
        Some(&mut self.buffer)
    }
    fn commit(&mut self, _: PortId, len: usize, _: TxOffload) {
        self.frames.push_back(self.buffer[..len].into());
    }
    fn tx_checksum(&self, _: PortId) -> bool {
        false
    }
}

struct One<'a>(&'a [u8]);

impl RxBatch for One<'_> {
    fn len(&self) -> usize {
        1
    }
    fn bytes(&self, _: usize) -> &[u8] {
        self.0
    }
    fn checksum(&self, _: usize) -> RxChecksum {
        RxChecksum::Unknown
    }
}

/// One end's application. It sends `to_send` bytes, reads what it can, and closes when both are done.
#[derive(Default)]
struct App {
    update: AppUpdate,
    to_send: u32,
    received: u32,
    reads: bool,
    eof: bool,
    errno: i32,
}

struct Joint {
    bench: Bench,
    fast: [FastPath; 2],
    table: Arc<FlowTable>,
    memory: Memory,
    wire: Wire,
    apps: BTreeMap<FlowId, App>,
    owners: HashMap<FlowId, Owner>,
    /// Percentage of lost frames.
    loss: u64,
    random: Rng,
}

fn byte(position: u32) -> u8 {
    (position.wrapping_mul(2_654_435_761) >> 24) as u8
}

impl Joint {
    fn new(loss: u64, seed: u64) -> Self {
        let table = Arc::new(FlowTable::new(64));
        let config = FastConfig { seed: 1, ..FastConfig::default() };
        let fast = [0, 1].map(|flow_group| FastPath::new(flow_group, config.clone(), table.clone()));
        let mut bench = Bench::new();
        bench.slow = SlowPath::new(SlowConfig { max_flows: 64, ..SlowConfig::default() });
        bench.world.ring_bytes = Some(RingBytes::fixed(RING, RING));
        bench.slow.listen(bench.now, SERVER, US, 80, false, 10, &mut bench.world).unwrap();
        Self {
            bench,
            fast,
            table,
            memory: Memory::default(),
            wire: Wire { buffer: vec![0; 2048], frames: VecDeque::new() },
            apps: BTreeMap::new(),
            owners: HashMap::new(),
            loss,
            random: Rng::new(seed),
        }
    }

    fn lost(&mut self) -> bool {
        self.random.below(100) < self.loss
    }

    fn connect(&mut self, owner: Owner) {
        self.bench.slow.connect(self.bench.now, owner, US, 80, None, true, &mut self.bench.world).unwrap();
    }

    /// Does all current work, and advances time by 20 µs.
    fn turn(&mut self) {
        let now = self.bench.now;
        for (flow_group, message) in std::mem::take(&mut self.bench.world.sent) {
            if let ToFast::Install(setup) = &message {
                self.memory.tx.insert(setup.flow, vec![0; RING as usize]);
                self.memory.rx.insert(setup.flow, vec![0; RING as usize]);
                self.apps.insert(setup.flow, App { reads: true, ..App::default() });
                self.owners.insert(setup.flow, setup.owner);
            }
            self.fast[flow_group].message(now, message, &mut self.memory);
        }
        for flow in self.apps.keys().copied().collect::<Vec<_>>() {
            self.application(flow);
        }
        for fast in &mut self.fast {
            fast.transmit(now, 64, &self.memory, &mut self.wire);
        }
        for frame in std::mem::take(&mut self.wire.frames) {
            if !self.lost() {
                // Any queue may receive a frame. The slow path passes one for the other flow group's flow on.
                let flow_group = usize::from(parse(&frame).unwrap().source_port % 2);
                self.fast[flow_group].receive(now, PortId(1), &One(&frame), &mut self.memory);
            }
        }
        for flow_group in 0..2 {
            self.fast[flow_group].events().for_each(drop);
            while let Some(message) = self.fast[flow_group].pop_to_slow() {
                self.bench.slow.on_message(now, flow_group, message, &mut self.bench.world);
            }
        }
        self.bench.slow.poll(now, &*self.table, &mut self.bench.world);
        self.bench.now = now.after(20);
    }

    fn application(&mut self, flow: FlowId) {
        let (flow_group, app) = (self.flow_group_of(flow), self.apps.get_mut(&flow).unwrap());
        let view = self.fast[flow_group].view(flow);
        (app.eof, app.errno) = (view.eof, view.errno);
        let before = app.update;
        while app.to_send > 0 && app.update.tx_tail.wrapping_sub(view.tx_head) < RING {
            let at = app.update.tx_tail;
            self.memory.tx.get_mut(&flow).unwrap()[(at % RING) as usize] = byte(at);
            app.update.tx_tail += 1;
            app.to_send -= 1;
        }
        while app.reads && app.update.rx_head != view.rx_tail {
            let at = app.update.rx_head;
            assert_eq!(self.memory.rx[&flow][(at % RING) as usize], byte(at), "byte {at}");
            app.update.rx_head += 1;
            app.received += 1;
        }
        if app.update != before {
            let update = app.update;
            self.fast[flow_group].app_update(self.bench.now, flow, update).expect("no contract violation");
        }
    }

    fn close(&mut self, flow: FlowId) {
        let flow_group = self.flow_group_of(flow);
        let app = self.apps.get_mut(&flow).unwrap();
        (app.update.closed, app.update.shut_wr) = (true, true);
        let update = app.update;
        self.fast[flow_group].app_update(self.bench.now, flow, update).expect("no lie");
    }

    fn flow_group_of(&self, flow: FlowId) -> usize {
        usize::from(self.bench.world.setups[&flow].tuple.remote_port % 2)
    }

    /// Runs until `done`, skipping idle time. Panics after `limit_ms` of virtual time.
    fn until(&mut self, limit_ms: u64, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.bench.now.after(limit_ms * 1000);
        while !done(self) {
            assert!(self.bench.now < end, "{what} never came: {:?}", self.bench.slow.connections());
            self.turn();
            let busy = !self.bench.world.sent.is_empty() || self.fast.iter().any(FastPath::has_work);
            if !busy {
                let timers = self.fast.iter().filter_map(FastPath::next_deadline);
                let next: Option<Micros> = timers.chain(self.bench.slow.next_deadline()).min();
                self.bench.now = self.bench.now.max(next.unwrap_or(end).min(end));
            }
        }
    }

    /// The flows of a client and of the server's child.
    fn pair(&self, client: Owner) -> (FlowId, FlowId) {
        let flow = *self.owners.iter().find(|(_, owner)| **owner == client).expect("client's flow").0;
        let t = self.bench.world.setups[&flow].tuple;
        let reversed =
            FourTuple { local: t.remote, local_port: t.remote_port, remote: t.local, remote_port: t.local_port };
        let child = self.bench.world.setups.values().find(|s| s.tuple == reversed).expect("child's flow").flow;
        (flow, child)
    }

    /// Opens a connection, and waits until both ends are installed.
    fn opened(&mut self, client: Owner) -> (FlowId, FlowId) {
        self.connect(client);
        self.until(100_000, "the connection", |j| j.owners.len() == 2);
        self.pair(client)
    }

    fn said(&self, said: &Said) -> usize {
        self.bench.world.said.iter().filter(|s| *s == said).count()
    }

    /// Checks that both ends are released once, that only TIME-WAIT is left, and that it ends.
    fn nothing_left(&mut self, client: Owner, flows: (FlowId, FlowId)) {
        let child = self.owners[&flows.1];
        let (a, b) = (Said::Released(client, Some(flows.0)), Said::Released(child, Some(flows.1)));
        self.until(2_000_000, "the release", |j| j.said(&a) == 1 && j.said(&b) == 1);
        self.until(100_000, "the end of TIME-WAIT", |j| j.bench.states() == [TcpState::Listen]);
        assert!(self.bench.world.steered.is_empty());
        assert_eq!((self.said(&a), self.said(&b)), (1, 1));
        assert_eq!(self.fast.iter().map(FastPath::flows).sum::<usize>(), 0);
        self.until(1000, "an empty list", |j| j.bench.slow.sizes() == (0, 0));
    }
}

/// Both ends send `bytes` over a wire that loses `loss` of 100 frames, then the client closes, then the server.
fn exchange(loss: u64, seed: u64, bytes: u32) -> Joint {
    let mut joint = Joint::new(loss, seed);
    let flows = joint.opened(CLIENT);
    for flow in [flows.0, flows.1] {
        joint.apps.get_mut(&flow).unwrap().to_send = bytes;
    }
    joint.until(2_000_000, "the last byte", |j| [flows.0, flows.1].iter().all(|f| j.apps[f].received == bytes));
    joint.close(flows.0);
    joint.until(500_000, "EOF", |j| j.apps[&flows.1].eof);
    joint.close(flows.1);
    joint.nothing_left(CLIENT, flows);
    assert!(joint.apps.values().all(|app| app.errno == 0));
    joint
}

#[test]
fn a_connection_from_syn_to_the_end_of_time_wait() {
    let joint = exchange(0, 1, 100_000);
    let retransmits: u64 = joint.fast.iter().map(|f| f.counters().retransmits).sum();
    assert_eq!((retransmits, joint.bench.slow.counters().timeouts), (0, 0));
    assert_eq!((joint.bench.slow.counters().opened, joint.bench.slow.counters().failed), (2, 0));
}

#[test]
fn losses_everywhere_lose_nothing() {
    let mut timeouts = 0;
    for seed in 0..60 {
        let joint = exchange([5, 15, 30][seed as usize % 3], seed, 20_000);
        timeouts += joint.bench.slow.counters().timeouts;
    }
    assert!(timeouts > 60, "only {timeouts} time-outs: the test tests nothing");
}

#[test]
fn the_passive_closer_leaves_no_time_wait() {
    let mut joint = Joint::new(0, 1);
    let flows = joint.opened(CLIENT);
    joint.close(flows.1);
    joint.until(1000, "EOF", |j| j.apps[&flows.0].eof);
    joint.close(flows.0);
    joint.until(1000, "both ends gone", |j| j.fast.iter().all(|f| f.flows() == 0));
    let waiting: Vec<u16> = joint
        .bench
        .slow
        .connections()
        .iter()
        .filter(|c| c.state == TcpState::TimeWait)
        .map(|c| c.tuple.local_port)
        .collect();
    assert_eq!(waiting, [80], "the server closed first");
    joint.nothing_left(CLIENT, flows);
}

#[test]
fn simultaneous_close() {
    for seed in 0..20 {
        let mut joint = Joint::new(if seed == 0 { 0 } else { 20 }, seed);
        let flows = joint.opened(CLIENT);
        joint.close(flows.0);
        joint.close(flows.1);
        joint.nothing_left(CLIENT, flows);
    }
}

#[test]
fn a_reader_that_pauses_closes_its_window_and_the_probes_find_it_open_again() {
    for loss in [0, 20] {
        let mut joint = Joint::new(loss, 7);
        let flows = joint.opened(CLIENT);
        joint.apps.get_mut(&flows.1).unwrap().reads = false;
        joint.apps.get_mut(&flows.0).unwrap().to_send = 30_000;
        let (table, start) = (joint.table.clone(), joint.bench.now);
        joint.until(50_000, "the closed window", |_| table.snapshot(flows.0).snd_wnd == 0);
        joint.until(300_000, "a pause", |j| j.bench.now.since(start) > 100_000_000);
        assert_eq!(joint.apps[&flows.0].errno, 0, "still there after 100 s");
        joint.apps.get_mut(&flows.1).unwrap().reads = true;
        joint.until(500_000, "the rest", |j| j.apps[&flows.1].received == 30_000);
        joint.close(flows.0);
        joint.close(flows.1);
        joint.nothing_left(CLIENT, flows);
    }
}

#[test]
fn a_peer_that_vanishes_is_given_up() {
    let mut joint = Joint::new(0, 1);
    let flows = joint.opened(CLIENT);
    joint.loss = 100;
    joint.apps.get_mut(&flows.0).unwrap().to_send = 1000;
    joint.until(1_500_000, "ETIMEDOUT", |j| j.apps[&flows.0].errno == 110);
    joint.until(1000, "the release", |j| j.said(&Said::Released(CLIENT, Some(flows.0))) == 1);
}

#[test]
fn unread_data_on_close_resets_the_peer() {
    let mut joint = Joint::new(0, 1);
    let flows = joint.opened(CLIENT);
    joint.apps.get_mut(&flows.1).unwrap().reads = false;
    joint.apps.get_mut(&flows.0).unwrap().to_send = 1000;
    let table = joint.table.clone();
    joint.until(1000, "the data", |_| table.snapshot(flows.1).rx_queued == 1000);
    joint.close(flows.1);
    joint.until(1000, "ECONNRESET", |j| j.apps[&flows.0].errno == 104);
    joint.nothing_left(CLIENT, flows);
}

#[test]
fn connections_one_after_another_reuse_the_ports_in_time_wait() {
    let mut joint = Joint::new(0, 3);
    joint.bench.slow = SlowPath::new(SlowConfig { first_port: 40_000, last_port: 40_001, ..SlowConfig::default() });
    joint.bench.world.listening.clear();
    joint.bench.slow.listen(joint.bench.now, SERVER, US, 80, false, 10, &mut joint.bench.world).unwrap();
    for i in 0..12 {
        let client = Owner(100 + i);
        let flows = joint.opened(client);
        joint.apps.get_mut(&flows.0).unwrap().to_send = 5000;
        joint.until(1000, "the data", |j| j.apps[&flows.1].received == 5000);
        joint.close(flows.0);
        joint.close(flows.1);
        joint.until(1000, "both ends gone", |j| j.fast.iter().all(|f| f.flows() == 0));
        joint.until(5000, "a second", |j| j.bench.world.sent.is_empty());
        joint.bench.now.0 += 1_100_000;
        joint.owners.clear();
        joint.apps.clear();
        joint.bench.world.setups.clear();
    }
}
