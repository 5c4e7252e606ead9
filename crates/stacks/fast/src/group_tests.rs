//! One flow group, turned by hand.
#![allow(clippy::unwrap_used)]

use crate::by_hand::ByHand;
use crate::clients::ClientShared;
use crate::group::FlowGroup;
use crate::mailbox::{Receiver, Sender};
use crate::messages::{FromGroup, ToGroup};
use crate::owner::owner;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use towpath_ports::Port;
use towpath_ports::memory::{Loopback, pair};
use towpath_recorder::{self as recorder, Kind, Which};
use towpath_ring::lines::app_flags;
use towpath_ring::wake::doorbell;
use towpath_ring::{Geometry, Region, Slot};
use towpath_runtime::workers::{Group, Idle};
use towpath_runtime::{ClientId, ClientSetup};
use towpath_tcp::fast::FlowTable;
use towpath_tcp::flow::{Ecn, FlowId, FlowSetup, FourTuple, Link, Owner, PortId, Window, flow_flags};
use towpath_tcp::messages::{Held, Splicing, ToFast, ToSlow};
use towpath_tcp::seq::Seq;
use towpath_tcp::time::Micros;

/// A flow group with one client, and the slow thread's ends of its mailboxes.
pub struct Bench {
    pub flow_group: FlowGroup,
    pub to: Sender<ToGroup>,
    from: Receiver<FromGroup>,
    pub client: Arc<ClientShared>,
    pub table: Arc<FlowTable>,
    pub now: Micros,
    tail: u32,
}

pub const FLOW: FlowId = FlowId(0);
pub const START: u32 = 1000;
pub const RTT_US: u32 = 1000;

impl Bench {
    fn new() -> Self {
        Self::growing_to(0)
    }
    /// With rings of 4096 bytes that may grow to this size.
    pub fn growing_to(most: u32) -> Self {
        let geometry = Geometry {
            slots: 64,
            app_slots: 32,
            tx_bytes: 4096,
            rx_bytes: 4096,
            tx_most: most,
            rx_most: most,
            contexts: 1,
            flow_groups: 1,
        };
        let table = Arc::new(FlowTable::new(16));
        let ByHand { flow_group, to, from, client, .. } =
            ByHand::of(geometry, Box::new(Loopback::new()), Arc::clone(&table)).unwrap();
        Self { flow_group, to, from, client, table, now: Micros(1_000_000), tail: 0 }
    }
    /// A slot in its first use, as the application has seen it.
    pub fn slot(&self, raw: u32) -> Slot {
        let slot = self.client.region.slot(raw).unwrap();
        self.client.words(slot).generation.store(1, Relaxed);
        self.client.region.app(slot).generation.store(1, Relaxed);
        slot
    }
    pub fn queue_data(&mut self, slot: Slot) {
        let region = &self.client.region;
        let (seq, ack) = (&region.app(slot).data_seq, &region.stack(slot).data_ack);
        region.data_queue(0).push(&mut self.tail, slot, seq, ack);
    }
    pub fn turn(&mut self) {
        self.flow_group.turn(self.now);
    }
    pub fn install(&mut self, slot: Slot) {
        let setup = setup(owner(0, slot));
        self.to.send(ToGroup::Tcp(ToFast::Install(Box::new(setup))));
    }
    fn said(&mut self) -> Vec<FromGroup> {
        std::iter::from_fn(|| self.from.pop().ok()).collect()
    }
}

/// A flow of this owner.
pub fn setup(owner: Owner) -> FlowSetup {
    let tuple = FourTuple {
        local: IpAddr::V4(Ipv4Addr::LOCALHOST),
        local_port: 1,
        remote: IpAddr::V4(Ipv4Addr::LOCALHOST),
        remote_port: 2,
    };
    FlowSetup {
        flow: FLOW,
        owner,
        tuple,
        link: Link { port: PortId(0), source: [0; 6], destination: [0; 6], vlan: None },
        snd_start: Seq(START),
        rcv_start: Seq(2000),
        snd_wnd: 60_000,
        snd_wscale: 0,
        rcv_wscale: 0,
        window_scaling: false,
        mss: 1400,
        timestamps: false,
        sack: false,
        ts_recent: 0,
        ts_offset: 0,
        rcv_wnd: 4096,
        tx_bytes: 4096,
        rx_bytes: 4096,
        window: Window { cwnd: 14_000, ssthresh: u32::MAX, growth: 256, beta: 128, pacing: 0 },
        srtt_us: RTT_US,
        nodelay: true,
        ecn: Ecn::Off,
        class: 0,
        tos: 0,
        ttl: 64,
    }
}

#[test]
fn what_is_written_before_the_flow_is_here_is_sent() {
    let mut bench = Bench::new();
    let slot = bench.slot(3);
    bench.client.region.app(slot).tx_tail.store(100, Relaxed);
    bench.queue_data(slot);
    bench.turn();
    assert!(
        matches!(bench.said()[..], [FromGroup::DataQueued { slot: s, .. }] if s == slot),
        "no flow: the slow thread is asked"
    );
    bench.install(slot);
    bench.turn();
    assert_eq!(bench.table.snapshot(FLOW).snd_max, Seq(START + 100), "no further notification is needed");
}

#[test]
fn a_slot_without_a_flow_is_relayed_once_until_it_is_looked_at() {
    let mut bench = Bench::new();
    let slot = bench.slot(3);
    for _ in 0..5 {
        bench.queue_data(slot);
        bench.turn();
    }
    assert_eq!(bench.said().len(), 1);
    bench.client.words(slot).relayed.store(false, Relaxed);
    bench.queue_data(slot);
    bench.turn();
    assert_eq!(bench.said().len(), 1);
}

#[test]
fn a_line_of_another_generation_is_not_believed() {
    let mut bench = Bench::new();
    let slot = bench.slot(3);
    bench.install(slot);
    bench.turn();
    let line = bench.client.region.app(slot);
    line.tx_tail.store(100, Relaxed);
    line.flags.store(app_flags::CLOSED, Relaxed);
    line.generation.store(2, Relaxed);
    bench.said();
    bench.queue_data(slot);
    bench.turn();
    assert_eq!(bench.table.snapshot(FLOW).snd_max, Seq(START));
    assert!(bench.said().is_empty());
    bench.client.region.app(slot).generation.store(1, Relaxed);
    bench.queue_data(slot);
    bench.turn();
    assert_eq!(bench.table.snapshot(FLOW).snd_queued, Seq(START + 100));
    let said = bench.said();
    assert!(said.iter().any(|m| matches!(m, FromGroup::Closed { generation: 1, .. })), "the slow thread is told");
}

#[test]
fn a_vanished_application_closes_with_its_last_good_words() {
    let mut bench = Bench::new();
    let slot = bench.slot(3);
    bench.install(slot);
    bench.turn();
    bench.client.region.app(slot).tx_tail.store(100, Relaxed);
    bench.queue_data(slot);
    bench.turn();
    bench.client.region.app(slot).generation.store(9, Relaxed);
    for generation in [2, 1] {
        bench.to.send(ToGroup::Close { client: 0, slot, generation, abort: false });
        bench.turn();
        let closed = bench.table.snapshot(FLOW).flags & flow_flags::APP_CLOSED != 0;
        assert_eq!(closed, generation == 1);
    }
    assert_eq!(bench.table.snapshot(FLOW).snd_queued, Seq(START + 100));
}

#[test]
fn a_removed_flow_leaves_its_slot_to_the_next() {
    let mut bench = Bench::new();
    let slot = bench.slot(3);
    bench.install(slot);
    bench.turn();
    assert_eq!(bench.flow_group.rings.flows(), 1);
    bench.to.send(ToGroup::Tcp(ToFast::Remove(FLOW)));
    bench.turn();
    bench.turn();
    assert!(bench.said().iter().any(|m| matches!(m, FromGroup::Tcp(ToSlow::Removed(FLOW)))));
    assert_eq!(bench.flow_group.rings.flows(), 0);
    bench.queue_data(slot);
    bench.turn();
    assert!(matches!(bench.said()[..], [FromGroup::DataQueued { .. }]));
}

#[test]
fn entries_that_name_no_slot_are_counted_and_skipped() {
    let mut bench = Bench::new();
    let slot = bench.slot(63);
    bench.turn();
    let region = Arc::clone(&bench.client.region);
    // An entry of a larger region's slot 64.
    let large = Region::create(Geometry { slots: 128, ..region.geometry() }).unwrap().0.slot(64).unwrap();
    let (seq, ack) = (AtomicU32::new(0), AtomicU32::new(0));
    region.data_queue(0).push(&mut bench.tail, large, &seq, &ack);
    bench.queue_data(slot);
    bench.turn();
    assert_eq!(bench.client.contract_violations.load(Relaxed), 1);
    assert_eq!(bench.said().len(), 1, "the next entry is served");
}

/// Work that comes after a turn and before the thread sleeps is found by the look after arming. The data queue, the
/// mailbox, and what was armed before.
#[test]
fn a_group_that_arms_looks_again() {
    let mut bench = Bench::new();
    let slot = bench.slot(3);
    bench.install(slot);
    bench.turn();
    bench.said();
    let idle = |bench: &mut Bench| !matches!(bench.flow_group.arm(1_000_000), Idle::No);
    assert!(idle(&mut bench), "there is nothing to do");
    let queue = Arc::clone(&bench.client);
    let must_notify = || queue.region.data_queue(0).must_notify();
    assert!(must_notify(), "whoever writes now wakes it");
    bench.flow_group.disarm(true);
    assert!(!must_notify());
    // The writer has looked at the flag before it was set, and so wakes nobody.
    bench.queue_data(slot);
    assert!(!idle(&mut bench), "an entry of the data queue");
    bench.flow_group.disarm(false);
    bench.turn();
    assert!(idle(&mut bench));
    bench.flow_group.disarm(false);
    bench.to.send(ToGroup::Close { client: 0, slot, generation: 9, abort: false });
    assert!(!idle(&mut bench), "a message");
    bench.flow_group.disarm(false);
}

/// A turn that ends by a panic has taken entries for which nothing was done, and has frames of the port in hand.
#[test]
fn what_a_panic_has_lost_is_looked_at_again() {
    let mut bench = Bench::new();
    let slot = bench.slot(3);
    bench.install(slot);
    bench.turn();
    bench.client.region.app(slot).tx_tail.store(100, Relaxed);
    bench.queue_data(slot);
    let client = bench.flow_group.rings.client(0).unwrap();
    assert_eq!(client.shared.next_data_some(0, &mut client.data_head, &mut [0; 16]), 1);
    bench.turn();
    assert_eq!(bench.table.snapshot(FLOW).snd_max, Seq(START), "the entry is lost");
    bench.flow_group.panicked();
    assert!(matches!(bench.flow_group.arm(1_000_000), Idle::No), "it does not sleep over that");
    bench.flow_group.disarm(false);
    bench.turn();
    assert_eq!(bench.table.snapshot(FLOW).snd_max, Seq(START + 100));
    assert!(!bench.said().iter().any(|m| matches!(m, FromGroup::Tcp(ToSlow::Aborted(_)))), "it was not half done");
}

/// An application may write or close while its flow rests. That counts when the flow goes on.
#[test]
fn a_flow_that_goes_on_is_looked_at_again() {
    for (closes, releases) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut bench = Bench::new();
        let slot = bench.slot(3);
        bench.install(slot);
        bench.to.send(ToGroup::Tcp(ToFast::Splice(FLOW, Splicing::Hold(1))));
        bench.turn();
        let rests = |message: &FromGroup| matches!(message, FromGroup::Tcp(ToSlow::Held(FLOW, 1, Held::Resting)));
        assert!(bench.said().iter().any(rests));
        bench.client.region.app(slot).tx_tail.store(100, Relaxed);
        if closes {
            bench.client.region.app(slot).flags.store(app_flags::CLOSED, Relaxed);
        }
        bench.queue_data(slot);
        bench.turn();
        assert_eq!(bench.table.snapshot(FLOW).snd_max, Seq(START), "it rests");
        let step = if releases { Splicing::Release } else { Splicing::Resume };
        bench.to.send(ToGroup::Tcp(ToFast::Splice(FLOW, step)));
        bench.turn();
        assert_eq!(bench.table.snapshot(FLOW).snd_max, Seq(START + 100 + u32::from(closes)), "with a FIN if it closes");
    }
}

/// What stands in the application's line counts, whether or not the slot was queued.
#[test]
fn a_flow_is_held_by_what_its_application_has_written_by_then() {
    let mut bench = Bench::new();
    let slot = bench.slot(3);
    bench.install(slot);
    bench.turn();
    bench.said();
    bench.client.region.app(slot).tx_tail.store(100, Relaxed);
    bench.to.send(ToGroup::Tcp(ToFast::Splice(FLOW, Splicing::Hold(1))));
    bench.turn();
    let waits = |message: &FromGroup| matches!(message, FromGroup::Tcp(ToSlow::Held(FLOW, 1, Held::Outstanding)));
    assert!(bench.said().iter().any(waits));
}

#[test]
fn a_turns_time_is_divided_by_what_was_done_for_each_program() {
    let mut bench = Bench::new();
    let region = Region::create(bench.client.region.geometry()).unwrap().0;
    let setup = ClientSetup::of_nobody(region, vec![doorbell().unwrap(), doorbell().unwrap()]);
    let other = Arc::new(ClientShared::new(ClientId(2), 1, setup));
    bench.to.send(ToGroup::AddClient(Arc::clone(&other)));
    let slot = bench.slot(0);
    bench.install(slot);
    bench.queue_data(slot);
    bench.turn();
    let busy = |client: &ClientShared| client.busy_ns.load(Relaxed);
    // Its entry is all that there was.
    bench.flow_group.charge(300);
    assert_eq!((busy(&bench.client), busy(&other)), (300_000, 0));
    for (index, items) in [(0, 3), (1, 1)] {
        bench.flow_group.rings.client(index).unwrap().items = items;
    }
    bench.flow_group.charge(700);
    assert_eq!((busy(&bench.client), busy(&other)), (600_000, 100_000));
    // What is done for nobody is charged to nobody, and not to whoever comes next.
    bench.flow_group.charge(5_000);
    bench.flow_group.rings.client(1).unwrap().items = 1;
    bench.flow_group.charge(5_001);
    assert_eq!((busy(&bench.client), busy(&other)), (600_000, 101_000));
}

#[test]
fn a_full_mailbox_is_recorded_once_when_something_waits_for_it() {
    recorder::open(4, &[]).unwrap();
    recorder::begin("full mailbox");
    let full = || {
        let rows = recorder::read(Which::Own);
        let events = rows.iter().filter(|row| row.thread == "full mailbox").flat_map(|row| &row.events);
        events.filter(|event| event.kind == Kind::Full).map(|event| event.times).sum::<u32>()
    };
    let mut bench = Bench::new();
    bench.turn();
    let answered = |bench: &mut Bench, count: u32| {
        for round in 0..count {
            bench.to.send(ToGroup::Tcp(ToFast::Splice(FLOW, Splicing::Hold(round))));
        }
        bench.turn();
    };
    answered(&mut bench, 64);
    assert_eq!(full(), 0, "all had room");
    answered(&mut bench, 1);
    (0..9).for_each(|_| bench.turn());
    assert_eq!(full(), 1, "once, however long it lasts");
    assert!(bench.from.pop().is_ok());
    bench.turn();
    assert_eq!(full(), 1, "nothing waits any more");
    answered(&mut bench, 1);
    assert_eq!(full(), 2, "it happens again");
}

/// Messages may change the ports and what stands beside them. So what is looked at among them is given to a port afterwards only.
#[test]
fn replies_go_at_once_but_not_among_messages() {
    let (near, mut far) = pair(1500);
    let (mut core, now) = (ByHand::new(2, 4096, Box::new(near)).unwrap(), Micros(1_000_000));
    for n in 0..2 {
        let usual = setup(Owner(0));
        let tuple = FourTuple { remote_port: 7 + n as u16, ..usual.tuple };
        core.install(n, FlowSetup { flow: FlowId(n), tuple, timestamps: true, nodelay: true, ..usual }, now).unwrap();
    }
    let mut came = |core: &mut ByHand| {
        core.flow_group.ports.flush();
        let mut frames = Vec::new();
        far.receive(&mut frames, 10);
        far.release(&frames);
        frames.len()
    };
    core.answer(0, 0, 64).unwrap();
    core.flow_group.data_queues(now);
    assert_eq!(came(&mut core), 1, "it does not wait until all send");
    core.answer(1, 0, 64).unwrap();
    let slot = core.client.region.slot(1).unwrap();
    core.flow_group.look_at(now, 0, slot);
    assert_eq!(came(&mut core), 0);
    core.turn(now);
    assert_eq!(came(&mut core), 1);
}
