//! The flow group's stage: protocol, post and plan. It decides everything, in the order in which run-to-completion does.

use super::copies::Copies;
use super::doing::Doing;
use super::items::{Found, Output, Received, Slot};
use super::order::{Reorder, put};
use super::plans::{Asked, Planning, Plans};
use crate::buffers::{Rings, RxBatch};
use crate::counters::{Counters, Stage};
use crate::fast::batch::{Copy, Item};
use crate::fast::context::FastState;
use crate::fast::{FastPath, protocol_and_post, splice};
use crate::flow::{FlowId, FlowSnapshot};
use crate::messages::{AppUpdate, ContractViolation, News, ToFast};
use crate::table::FlowTable;
use crate::time::Micros;
use rtrb::{Consumer, Producer};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_probes as probes;
use towpath_wire::offload::RxChecksum;

/// The stage that owns the flows.
#[derive(Debug)]
pub struct FlowGroup<F> {
    pub(super) fast: FastPath,
    parsed: Reorder<Slot<F>>,
    /// The frames of the batch that is coming.
    arrived: Vec<Slot<F>>,
    pub(super) copies: Copies<F>,
    pub(super) plans: Plans<F>,
    spent: Producer<Slot<F>>,
    /// The copies that are made, see [`super::Commit`].
    watermark: Arc<AtomicU64>,
    /// A frame is to be injected as soon as all copies are made.
    injecting: bool,
    /// Flows to be reset, see [`super::Commit`].
    pub(super) broken: Consumer<FlowId>,
    pub(super) doing: Doing,
    /// Flows that a panic has left half done.
    pub(super) doomed: Vec<FlowId>,
    pub(super) resets: u64,
    /// A batch ends by a panic when this many of its segments have been through the state machine.
    #[cfg(test)]
    pub(super) fails_after: Option<usize>,
}

/// A batch of frames as a stage sees it.
struct Frames<'a, F>(&'a [Slot<F>]);

impl<F: AsRef<[u8]>> RxBatch for Frames<'_, F> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn bytes(&self, i: usize) -> &[u8] {
        self.0[i].bytes()
    }
    fn checksum(&self, i: usize) -> RxChecksum {
        self.0[i].checksum
    }
}

impl<F: AsRef<[u8]> + AsMut<[u8]>> FlowGroup<F> {
    /// `frames`: the most that a batch can have.
    pub(super) fn new(
        fast: FastPath,
        (parsed, broken): (Reorder<Slot<F>>, Consumer<FlowId>),
        (copies, plans): (Copies<F>, Plans<F>),
        (spent, watermark): (Producer<Slot<F>>, Arc<AtomicU64>),
        frames: usize,
    ) -> Self {
        Self {
            fast,
            parsed,
            arrived: Vec::with_capacity(frames),
            copies,
            plans,
            spent,
            watermark,
            injecting: false,
            broken,
            doing: Doing::Nothing,
            doomed: vec![],
            resets: 0,
            #[cfg(test)]
            fails_after: None,
        }
    }

    /// Takes a received batch through protocol and post, and orders its copies. False: none has come in whole.
    #[inline]
    pub fn receive(&mut self, now: Micros) -> bool {
        // New copies would let it wait for ever.
        if self.injecting {
            return false;
        }
        self.reset_broken(now);
        while let Some(slot) = self.parsed.pop() {
            let last = slot.last;
            self.arrived.push(slot);
            if last {
                self.batch(now);
                return true;
            }
        }
        false
    }

    fn batch(&mut self, now: Micros) {
        self.doing = Doing::Batch;
        // What is there from before is no part of this batch.
        self.fast.batch.set_used(0);
        let Self { fast: FastPath { table, state, batch }, arrived, copies, .. } = self;
        state.sacks.clear();
        copies.begin();
        let (places, mut used) = (batch.places(arrived.len()), 0);
        for (i, slot) in (0..).zip(&*arrived) {
            let Some(place) = places.get_mut(used) else { break };
            used += usize::from(look_up(state, table, copies, (i, slot), place));
        }
        batch.set_used(used);
        #[cfg(test)]
        if let Some(count) = self.fails_after.take() {
            batch.set_used(count);
            protocol_and_post(table, state, now, batch);
            batch.set_used(used);
            std::panic::resume_unwind(Box::new("a batch that fails"));
        }
        protocol_and_post(table, state, now, batch);
        let items = batch.items();
        probes::stage::<{ probes::Stage::Protocol as u32 }>(items.len());
        copies.after(table, items);
        if !state.held.is_empty()
            && let Some(first) = arrived.first()
        {
            splice::keep(state, first.port, &Frames(arrived));
        }
        self.hand_on();
        self.doing = Doing::Nothing;
    }

    /// Frames with payload to be copied go on; the others have done their work. Nothing in here panics, so no frame is lost.
    pub(super) fn hand_on(&mut self) {
        let Self { fast: FastPath { state, batch, .. }, arrived, copies, spent, .. } = self;
        let (mut items, mut ordered) = (batch.items().iter().peekable(), 0);
        for (i, mut slot) in (0..).zip(arrived.drain(..)) {
            match items.next_if(|item| item.frame == i) {
                // The piece is in the frame: the parser has said where the payload is.
                Some(&Item { flow, copy, .. }) if copy.len != 0 => {
                    (slot.flow, slot.copy) = (flow, copy);
                    copies.order(slot);
                    ordered += 1;
                }
                _ => put(spent, slot),
            }
        }
        state.counters.stage(Stage::Deliver, ordered);
    }

    /// See [`FastPath::app_update`].
    pub fn app_update(&mut self, now: Micros, flow: FlowId, update: AppUpdate) -> Result<(), ContractViolation> {
        self.doing = Doing::Flow(flow);
        let result = self.fast.app_update(now, flow, update);
        self.doing = Doing::Nothing;
        result
    }

    /// See [`FastPath::message`]. A frame for [`ToFast::Inject`] is copied here, so it comes back while copies are under way that
    /// were ordered before. Until it has been taken nothing is received.
    pub fn message(&mut self, now: Micros, message: ToFast, rings: &mut impl Rings) -> Result<(), ToFast> {
        // Before a flow gets the number of one that is to be reset.
        self.reset_broken(now);
        if matches!(message, ToFast::Inject(..)) {
            self.injecting = !self.is_quiet();
            if self.injecting {
                return Err(message);
            }
            self.fast.batch.set_used(0);
        }
        self.doing = Doing::of(&message);
        self.fast.message(now, message, rings);
        self.doing = Doing::Nothing;
        Ok(())
    }

    /// Plans up to `budget` frames; returns how many. Without a free frame a flow waits, as for a port without room.
    pub fn transmit(&mut self, now: Micros, budget: usize) -> usize {
        self.reset_broken(now);
        self.doing = Doing::Sending;
        let asked = Cell::new(None);
        let mut ports = Planning { plans: &mut self.plans, asked: &asked, after: self.copies.ordered() };
        let planned = self.fast.transmit(now, budget, &Asked(&asked), &mut ports);
        self.doing = Doing::Nothing;
        planned
    }

    /// Hands on the events of flows. False: there are more, for the next call.
    ///
    /// They wait for the copies and frames before them. So nothing is shown that is not copied yet, and no place in a send ring is
    /// shown as free while a frame is made of it.
    pub fn publish(&mut self) -> bool {
        let after = self.copies.ordered();
        while self.plans.has_room() {
            let Some(News { event, .. }) = self.fast.next_event() else { return true };
            let view = self.fast.view(event.flow);
            self.plans.add(after, Output::Event(event, view));
        }
        false
    }

    /// Hands on the messages for the slow path. False: there are more, for the next call.
    ///
    /// They wait in the same order. So no flow's number is used again while its rings are written or read.
    pub fn report(&mut self) -> bool {
        let after = self.copies.ordered();
        while self.plans.has_room() {
            let Some(message) = self.fast.pop_to_slow() else { return true };
            self.plans.add(after, Output::Message(message));
        }
        false
    }

    /// See [`FastPath::has_work`].
    pub fn has_work(&self) -> bool {
        self.fast.has_work() || !self.broken.is_empty()
    }

    /// All copies are made that were ordered.
    pub fn is_quiet(&self) -> bool {
        self.watermark.load(Ordering::Acquire) == self.copies.ordered()
    }

    /// How many frames, events and messages have been made.
    pub fn made(&self) -> u64 {
        self.plans.made()
    }

    /// See [`FastPath::next_deadline`].
    pub fn next_deadline(&self) -> Option<Micros> {
        self.fast.next_deadline()
    }

    /// A reading of a flow's state. What has been received need not be copied yet.
    pub fn measures(&self, flow: FlowId) -> FlowSnapshot {
        self.fast.measures(flow)
    }

    /// Takes a free frame away.
    #[cfg(test)]
    pub(super) fn take_free(&mut self) -> Option<F> {
        self.plans.take_free()
    }

    /// What will be shown to the application.
    #[cfg(test)]
    pub(super) fn view(&self, flow: FlowId) -> crate::messages::AppView {
        self.fast.view(flow)
    }

    /// All of a flow's state.
    #[cfg(test)]
    pub(super) fn lines(&self, flow: FlowId) -> String {
        format!("{:?}", self.fast.table.get(flow))
    }

    /// The counters of all stages but `pre`, whose replicas count for themselves.
    pub fn counters(&self) -> &Counters {
        self.fast.counters()
    }
}

/// The end of the first stage: the flow of a parsed segment. What has none goes to the slow path. `i`: its number in the batch. True:
/// it has made an item in this place.
#[inline]
fn look_up<F: AsRef<[u8]>>(
    state: &mut FastState,
    table: &FlowTable,
    copies: &mut Copies<F>,
    (i, slot): (u32, &Received<F>),
    place: &mut Item,
) -> bool {
    let flow = match slot.found {
        Found::Nothing => return false,
        Found::Slow => None,
        Found::Segment => state.lookup.find_hashed(&slot.at),
    };
    if let Some(flow) = flow {
        copies.before(table, flow);
        (place.flow, place.frame, place.segment, place.copy) = (flow, i, slot.segment, Copy::default());
        place.segment.put_sack(&slot.sack, &mut state.sacks);
        true
    } else {
        let FastState { outbox, counters, config, .. } = state;
        outbox.pass_to_slow(counters, config.slow_segments, slot.port, slot.bytes());
        false
    }
}
