//! The fast path: established connections, in batches, on one core. No locks, no clock, no allocation per packet.
//!
//! A received batch runs through four stages:
//!
//! 1. [`pre`] parses, checks, and looks the flow up.
//! 2. [`protocol`] is the state machine.
//! 3. [`post`] gives the flow a turn to send, or lets its acknowledgement wait. Protocol and post take one flow after
//!    the other, while its line is at hand.
//! 4. [`deliver`] copies the payload into the ring, once.
//!
//! [`egress`] sends, by turns of a round-robin [`scheduler`].
//!
//! One thread runs all stages of a flow group today. They share the [`context`], but not the right to write. Each stage
//! has a permit ([`stages`](crate::table::stages)). A stage that writes another's state, or asks another for something
//! that it may not ask, does not compile. State with one writer can move to another core with its stage. State with
//! several writers must become messages first.
//!
//! Nothing is acknowledged before it has been copied: acknowledgements are built in `transmit`, after `receive` is
//! done.

mod acknowledge;
mod app;
mod batch;
mod close;
mod context;
mod control;
mod credit;
mod deliver;
mod ecn;
mod egress;
mod fifo;
mod hystart;
mod lookup;
mod marks;
mod out_of_order;
mod pace;
pub mod pipeline;
mod plan;
mod post;
mod pre;
mod prediction;
mod protocol;
mod rack;
mod rare;
mod recover;
mod recovery;
mod report;
mod scheduler;
mod scoreboard;
mod segment;
mod splice;
#[cfg(test)]
pub(crate) mod tests;
mod timers;
mod trimmed;
mod wheel;
mod window_step;

pub use crate::table::FlowTable;

use crate::buffers::{Rings, RxBatch, TxPorts};
use crate::counters::{Counters, Stage};
use crate::flow::{FlowId, FlowSnapshot, PortId};
use crate::messages::{AppUpdate, AppView, ContractViolation, FlowEvent, News, ToFast, ToSlow, event};
use crate::seq::Seq;
use crate::table::bits::{
    AckDebt, AppFlags, DEAD, EVENTS, FIN_RECEIVED, FIN_SENT, FlagSet, QueueFlags, Reports, Requests, URGENT_IN,
};
use crate::table::stages::Permits;
use crate::table::tcb::{Marks, Tcb};
use crate::table::{FLOW_GROUPS, Lines, word};
use crate::time::Micros;
use app::rx_tail;
use batch::{Batch, Copy, Item};
use context::{FastState, FlowTurn};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use towpath_probes as probes;

/// The permits of the stages.
const STAGES: Permits = Permits::issue();

/// How long an acknowledgement waits for data to carry it unless configured otherwise, µs. That is longer than an
/// application on this host takes to answer. It is far below the 500 ms of RFC 9293 §3.8.6.3, and below any peer's
/// shortest time-out (Linux: 200 ms).
pub const DELAYED_ACK_US: u64 = 1000;

/// Settings of a fast path.
#[derive(Clone, Debug)]
pub struct FastConfig {
    /// Key of the hash table; must not be guessable by peers.
    pub seed: u64,
    /// How long an acknowledgement may wait for data to carry it, µs.
    pub delayed_ack_us: u64,
    /// Segments that one flow may send before it is another's turn. With 16 a turn is worth its cache misses, and no
    /// flow waits long behind a bulk sender.
    pub segments_per_turn: usize,
    /// Challenge ACKs per second and flow group (RFC 5961 §7). 1000 as Linux; one limit for each class tells little
    /// about other flows.
    pub challenge_acks_per_s: u32,
    /// Shortest time between two challenge ACKs of one flow, in ms (RFC 5961 §7; Linux: `tcp_invalid_ratelimit`).
    pub challenge_interval_ms: u32,
    /// Segments waiting for the slow path; more are dropped. 4096: about 6 MB.
    pub slow_segments: usize,
    /// Header prediction. Without it the same happens, with more instructions; for tests.
    pub prediction: bool,
}

impl Default for FastConfig {
    fn default() -> Self {
        Self {
            seed: RandomState::new().hash_one(0u64),
            delayed_ack_us: DELAYED_ACK_US,
            segments_per_turn: 16,
            challenge_acks_per_s: 1000,
            challenge_interval_ms: 500,
            slow_segments: 4096,
            prediction: true,
        }
    }
}

/// The fast path of one flow group.
#[derive(Debug)]
pub struct FastPath {
    table: Arc<FlowTable>,
    state: FastState,
    batch: Batch,
}

impl FastPath {
    /// The fast path of this flow group. It writes those flows of `table` that are installed by a message to it, no
    /// others.
    pub fn new(flow_group: usize, config: FastConfig, table: Arc<FlowTable>) -> Self {
        assert!(flow_group < FLOW_GROUPS, "flow groups are numbered in a byte");
        Self { table, state: FastState::new(flow_group, config), batch: Batch::with_capacity(256) }
    }

    /// Takes a batch of received frames through all stages. The frames may be released afterwards.
    #[inline]
    pub fn receive(&mut self, now: Micros, port: PortId, frames: &impl RxBatch, rings: &mut impl Rings) {
        let Self { table, state, batch } = self;
        let FastState { lookup, outbox, counters, config, sacks, .. } = &mut *state;
        sacks.clear();
        let slow_segments = config.slow_segments;
        pre::run(pre::Intake { lookup, outbox, counters, sacks, slow_segments }, port, frames, batch);
        protocol_and_post(table, state, now, batch);
        // Not in there, where it would take a register from the predicted path.
        probes::stage::<{ probes::Stage::Protocol as u32 }>(batch.items().len());
        deliver::run(&mut state.counters, frames, rings, batch.items());
        if !state.held.is_empty() {
            splice::keep(state, port, frames);
        }
        // What is left there has not come to its end ([`FastPath::recover`]).
        batch.set_used(0);
    }

    /// Takes over what the application has written. After a contract violation its connection is aborted.
    #[inline(always)]
    pub fn app_update(&mut self, now: Micros, flow: FlowId, update: AppUpdate) -> Result<(), ContractViolation> {
        app::update(STAGES.application, &self.table, &mut self.state, now, flow, &update)
    }

    /// [`FastPath::app_update`], after which the flow's reply goes at once if it is one segment, no rule holds it back, and nobody
    /// waits to send in front of it. Else it waits for [`FastPath::transmit`], which counts those that have gone, too. Nothing
    /// that has been received may still wait to be delivered.
    #[inline(always)]
    pub fn app_update_at_once(
        &mut self,
        now: Micros,
        flow: FlowId,
        update: AppUpdate,
        rings: &impl Rings,
        ports: &mut impl TxPorts,
    ) -> Result<(), ContractViolation> {
        let Self { table, state, .. } = &mut *self;
        app::update_at_once(STAGES.application, table, state, (now, flow), &update, (rings, ports))
    }

    /// Doubles the flow's receive ring if `fits` says so of its bytes: the ring's size, the first unread position, and that
    /// after the last byte. With a hole in front of a byte it waits. The peer is told of the room if that matters to it.
    #[cold]
    pub fn double_receive_ring(&mut self, now: Micros, flow: FlowId, fits: impl FnOnce(u32, u32, u32) -> bool) -> bool {
        app::double_receive_ring(STAGES.application, &self.table, &mut self.state, now, flow, fits)
    }

    /// From now on the flow's receive ring has memory for the next `bytes` bytes only. The window stays as it was offered: what
    /// goes beyond those bytes is dropped. False: there are unread bytes, or something has come ahead of a hole.
    #[cold]
    pub fn trim_receive_ring(&mut self, now: Micros, flow: FlowId, bytes: u32) -> bool {
        trimmed::trim(STAGES.receive, &self.table, &mut self.state, now, flow, bytes, false)
    }

    /// The same of a ring that has been trimmed already. 0: it takes nothing for now.
    #[cold]
    pub fn trim_receive_ring_again(&mut self, now: Micros, flow: FlowId, bytes: u32) -> bool {
        trimmed::trim(STAGES.receive, &self.table, &mut self.state, now, flow, bytes, true)
    }

    /// The flow's receive ring has all its memory again.
    #[cold]
    pub fn restore_receive_ring(&mut self, now: Micros, flow: FlowId) {
        trimmed::restore(STAGES.receive, &self.table, &mut self.state, now, flow);
    }

    /// A reading of the flow's state.
    pub fn measures(&self, flow: FlowId) -> FlowSnapshot {
        self.table.snapshot(flow)
    }

    /// The flow's send ring has this size from now on.
    #[cold]
    pub fn resize_send_ring(&mut self, flow: FlowId, bytes: u32) {
        if let Some(lines) = self.table.get(flow).filter(|lines| lines.identity.is_owned_by(self.state.flow_group)) {
            lines.identity.tx_bytes.set(STAGES.control, bytes);
        }
    }

    /// Carries out a message of the slow path.
    pub fn message(&mut self, now: Micros, message: ToFast, rings: &mut impl Rings) {
        let Self { table, state, .. } = &mut *self;
        match message {
            ToFast::Inject(port, frame) => self.receive(now, port, &control::Injected(frame), rings),
            ToFast::Install(setup) => control::install(STAGES.install, STAGES.post, table, state, now, &setup),
            ToFast::Splice(flow, step) => splice::step((STAGES.receive, STAGES.control), table, state, now, flow, step),
            other => control::message(STAGES.control, table, state, now, other),
        }
    }

    /// Sends up to `budget` frames; returns how many went out. Frames for which a port has no room stay for the next
    /// call.
    pub fn transmit(&mut self, now: Micros, budget: usize, rings: &impl Rings, ports: &mut impl TxPorts) -> usize {
        if self.state.delayed.is_due(now) {
            post::expire(STAGES.post, &self.table, &mut self.state, now);
        }
        timers::expire((STAGES.loss, STAGES.post), &self.table, &mut self.state, now);
        egress::run(STAGES.egress, &self.table, &mut self.state, now, budget, rings, ports)
    }

    /// Are there events to take?
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.state.outbox.events.is_empty()
    }

    /// Takes the events since the last call, one per flow.
    pub fn events(&mut self) -> impl Iterator<Item = FlowEvent> + '_ {
        std::iter::from_fn(|| self.take_event().map(|(event, ..)| event))
    }

    /// Takes the events of one flow, with what is nearly always all that is shown to its application.
    #[inline]
    pub fn next_event(&mut self) -> Option<News> {
        let (event, is_usual, lines) = self.take_event()?;
        let (tx_head, rx_tail) = lines.filter(|_| is_usual).map_or((0, 0), |lines| {
            // Without an end all of this is data.
            let (t, id) = (lines.protocol.load_words::<{ word::SND_UNA | word::RCV_NXT }>(), &lines.identity);
            let ends = (Seq(id.snd_start.get()), Seq(id.rcv_start.get()));
            (t.snd_una().bytes_since(ends.0), t.rcv_nxt().bytes_since(ends.1))
        });
        let news = News { event, tx_head, rx_tail, is_usual };
        debug_assert!(!is_usual || is_all_of(&self.view(event.flow), &news));
        Some(news)
    }

    /// Events, whether they are usual ([`News::is_usual`]), and the lines of their flow.
    #[inline(always)]
    fn take_event(&mut self) -> Option<(FlowEvent, bool, Option<&Lines>)> {
        let Self { table, state: FastState { outbox, .. }, .. } = self;
        let flow = outbox.events.pop()?;
        let Some(lines) = table.get(flow) else { return Some((FlowEvent { flow, what: 0 }, false, None)) };
        let by = STAGES.post;
        let mut t = lines.protocol.load_words::<{ word::MARKS }>();
        let (what, is_usual) = (t.flags::<Reports>().events(), !t.marked(UNUSUAL));
        t.clear(by, EVENTS);
        post::settle(by, &mut t, outbox, flow);
        lines.protocol.store_words::<_, { word::MARKS }, { word::MARKS }>(by, &t);
        Some((FlowEvent { flow, what }, is_usual, Some(lines)))
    }

    /// The words that are shown to the application.
    pub fn view(&self, flow: FlowId) -> AppView {
        self.table.get(flow).map_or_else(AppView::default, shown)
    }

    /// The next message for the slow path.
    pub fn pop_to_slow(&mut self) -> Option<ToSlow> {
        let outbox = &mut self.state.outbox;
        let message = outbox.messages.pop_front()?;
        outbox.segments -= usize::from(matches!(message, ToSlow::Segment(..)));
        Some(message)
    }

    /// True if a message for the slow path is left.
    pub fn has_to_slow(&self) -> bool {
        !self.state.outbox.messages.is_empty()
    }

    /// True if there is anything to send or to report right now.
    pub fn has_work(&self) -> bool {
        let s = &self.state;
        let outbox = &s.outbox;
        let to_send = !s.scheduler.is_empty() || s.scheduler.is_serving() || !s.frames.0.is_empty();
        to_send || !outbox.events.is_empty() || !outbox.messages.is_empty()
    }

    /// When `transmit` should be called next if nothing else happens.
    pub fn next_deadline(&self) -> Option<Micros> {
        let s = &self.state;
        s.delayed.next_deadline().into_iter().chain(s.wheel.next_deadline()).min()
    }

    /// How many flows are installed.
    pub fn flows(&self) -> usize {
        self.state.lookup.len()
    }

    /// The counters as they are now.
    pub fn counters(&self) -> &Counters {
        &self.state.counters
    }
}

/// Second and third stage, one flow of the batch after the other, while its line is at hand.
fn protocol_and_post(table: &FlowTable, state: &mut FastState, now: Micros, batch: &mut Batch) {
    let items = batch.items();
    state.counters.stage(Stage::Protocol, items.len());
    let mut turns = 0;
    let mut rest = items;
    loop {
        let items = std::mem::take(&mut rest);
        let alone = match &*items {
            [] => break,
            [_] => true,
            [first, second, ..] => first.flow != second.flow,
        };
        turns += 1;
        if !(alone && state.config.prediction) {
            rest = several(table, state, now, items);
        } else if let Some((item, behind)) = items.split_first_mut() {
            rest = behind;
            match table.get(item.flow) {
                Some(lines) => single(state, lines, now, item),
                None => item.copy = Copy::default(),
            }
        }
    }
    state.counters.stage(Stage::Post, turns);
}

/// The segments at the beginning of `items` that are of one flow. Returns the other items.
#[inline(never)]
fn several<'a>(table: &FlowTable, state: &mut FastState, now: Micros, items: &'a mut [Item]) -> &'a mut [Item] {
    let Some(flow) = items.first().map(|first| first.flow) else { return items };
    let count = items.iter().take_while(|next| next.flow == flow).count();
    let (items, behind) = items.split_at_mut(count);
    match table.get(flow) {
        Some(lines) => unpredicted(state, lines, now, items),
        None => items.iter_mut().for_each(|item| item.copy = Copy::default()),
    }
    behind
}

#[inline(never)]
fn unpredicted(state: &mut FastState, lines: &Lines, now: Micros, items: &mut [Item]) {
    let mut turn = FlowTurn { t: lines.protocol.load(), state, lines, flow: items[0].flow, now };
    protocol::run(STAGES.receive, &mut turn, items);
    post::flow(STAGES.post, &mut turn);
    turn.store((STAGES.receive, STAGES.post));
}

/// A segment that is the only one of its flow in a batch.
#[inline(always)]
fn single(state: &mut FastState, lines: &Lines, now: Micros, item: &mut Item) {
    // A copy, so that nothing is loaded again what the prediction has compared.
    let segment = item.segment;
    let Some(t) = prediction::expected(&lines.protocol, &segment) else {
        return unpredicted(state, lines, now, std::slice::from_mut(item));
    };
    let mut turn = FlowTurn { t, state, lines, flow: item.flow, now };
    protocol::one::<true>(STAGES.receive, &mut turn, &segment, (item.frame, &mut item.copy));
    let limited = post::predicted(STAGES.post, &mut turn);
    turn.store_words::<_, { prediction::RECEIVE_READS }, { prediction::RECEIVE_WRITES }>((STAGES.receive, STAGES.post));
    if limited {
        post::limited(STAGES.post, turn.state, lines, now, turn.flow);
    }
}

/// Nothing of this is set on a flow whose events are usual ([`News::is_usual`]).
const UNUSUAL: Marks = Marks::mask(DEAD, QueueFlags::EMPTY, AckDebt::EMPTY, Requests::EMPTY)
    .and(FIN_RECEIVED.and(URGENT_IN), AppFlags::EMPTY)
    .and_reports(FIN_SENT.and(Reports::of(!(event::READABLE | event::ROOM))));

/// Does this view of a flow show no more than these usual news?
fn is_all_of(view: &AppView, news: &News) -> bool {
    *view == AppView { tx_head: news.tx_head, rx_tail: news.rx_tail, errno: view.errno, ..AppView::default() }
}

/// The words that are shown to the application.
#[inline]
fn shown(lines: &Lines) -> AppView {
    const WORDS: u16 = word::SND_UNA | word::RCV_NXT | word::SND_QUEUED | word::MARKS;
    let (t, id) = (&lines.protocol.load_words::<WORDS>(), &lines.identity);
    AppView {
        tx_head: tx_head(t, lines),
        rx_tail: rx_tail(t, lines),
        errno: id.errno(),
        eof: t.has(FIN_RECEIVED),
        tx_closed: t.has(FIN_SENT) || t.has(DEAD),
        urgent: t.has(URGENT_IN).then(|| lines.recovery.rcv_up.get().wrapping_sub(id.rcv_start.get())),
    }
}

/// Position up to which the send ring is acknowledged.
#[inline]
fn tx_head(t: &Tcb, lines: &Lines) -> u32 {
    let una = if t.snd_una().after(t.snd_queued()) { t.snd_queued() } else { t.snd_una() };
    una.bytes_since(Seq(lines.identity.snd_start.get()))
}
