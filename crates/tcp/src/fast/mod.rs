//! The fast path: established connections, in batches, on one core. No locks, no clock, no allocation per packet.
//!
//! A received batch runs through the stages [`pre`] (parse, check, look up), [`protocol`] (the state machine, and with the flow's line
//! still at hand [`post`]: what has to be said, to the peer and to the application) and [`deliver`] (payload into the ring, once).
//! [`egress`] sends, by turns of a round-robin [`scheduler`]. Stages are functions over a batch and the core's state, so that they can be
//! taken apart.
//!
//! Nothing is acknowledged before it has been copied: acknowledgements are built in `transmit`, after `receive` is done.

mod acknowledge;
mod app;
mod batch;
mod control;
mod deliver;
mod ecn;
mod egress;
mod hystart;
mod lookup;
mod meter;
mod out_of_order;
mod pace;
mod plan;
mod post;
mod pre;
mod protocol;
mod rack;
mod recovery;
mod repair;
mod report;
mod scheduler;
mod scoreboard;
#[cfg(test)]
mod tests;
mod timers;
mod wheel;

pub use crate::table::FlowTable;

use crate::buffers::{PortId, Rings, RxBatch, TxPorts};
use crate::counters::Counters;
use crate::flow::{FlowId, flow_flags};
use crate::messages::{AppLie, AppUpdate, AppView, FlowEvent, ToFast, ToSlow, event};
use crate::rate_limit::RateLimit;
use crate::seq::Seq;
use crate::table::{Lines, Tcb, bits};
use crate::time::Micros;
use batch::Batch;
use lookup::Lookup;
use out_of_order::OutOfOrder;
use scheduler::{Delayed, Scheduler};
use scoreboard::Boards;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use wheel::Wheel;

/// Settings of one core's fast path.
#[derive(Clone, Debug)]
pub struct FastConfig {
    /// Key of the hash table; must not be guessable by peers.
    pub seed: u64,
    /// How long an acknowledgement may wait for data to carry it, µs. 1000: longer than an application on this host takes to
    /// answer, far below the 500 ms of RFC 9293 §3.8.6.3 and below any peer's shortest time-out (Linux: 200 ms).
    pub delayed_ack_us: u64,
    /// Segments that one flow may send before it is another's turn. 16: a turn fills a batch's cache misses, and no flow waits
    /// long behind a bulk sender.
    pub segments_per_turn: usize,
    /// Challenge ACKs per second and core (RFC 5961 §7). 1000 as Linux, and per core, so that the limit tells little about others.
    pub challenge_acks_per_s: u32,
    /// Shortest time between two challenge ACKs of one flow, in ms (RFC 5961 §7; Linux: `tcp_invalid_ratelimit`).
    pub challenge_interval_ms: u32,
    /// Segments waiting for the slow path; more are dropped. 4096: some 6 MB.
    pub slow_segments: usize,
}

impl Default for FastConfig {
    fn default() -> Self {
        Self {
            seed: RandomState::new().hash_one(0u64),
            delayed_ack_us: 1000,
            segments_per_turn: 16,
            challenge_acks_per_s: 1000,
            challenge_interval_ms: 500,
            slow_segments: 4096,
        }
    }
}

/// What a core knows beyond its flows' lines; the stages share it.
#[derive(Debug)]
struct State {
    core: usize,
    config: FastConfig,
    lookup: Lookup,
    out_of_order: OutOfOrder,
    boards: Boards,
    scheduler: Scheduler,
    delayed: Delayed,
    wheel: Wheel,
    /// Flows with events that the engine has not yet taken.
    events: VecDeque<FlowId>,
    outbox: VecDeque<ToSlow>,
    /// `ToSlow::Segment`s in the outbox.
    slow_segments: usize,
    /// Complete frames of the slow path.
    frames: VecDeque<(PortId, Box<[u8]>)>,
    challenges: RateLimit,
    counters: Counters,
    /// IPv4 identification of the next packet.
    ident: u16,
}

impl State {
    /// Notes events for the engine; one report per flow and batch.
    #[inline]
    fn raise(&mut self, t: &mut Tcb, flow: FlowId, what: u32) {
        if !t.any(bits::EVENTS) {
            self.events.push_back(flow);
        }
        t.flags |= u64::from(what) << bits::EVENT_SHIFT;
    }

    /// Queues the flow for sending, if it is not yet queued.
    #[inline]
    fn schedule(&mut self, t: &mut Tcb, lines: &Lines, flow: FlowId) {
        if !t.has(bits::SCHEDULED) {
            t.flags |= bits::SCHEDULED;
            self.scheduler.push(lines.identity.port(), lines.identity.group(), flow);
        }
        self.press(t, lines, flow);
    }

    /// If the flow's group waits for credit: what the limit is not for goes nevertheless.
    #[inline]
    fn press(&mut self, t: &mut Tcb, lines: &Lines, flow: FlowId) {
        if !self.scheduler.waits(lines.identity.group()) {
            return;
        }
        t.flags |= flow_flags::LIMIT_WAIT;
        let rest = bits::RESET | bits::PROBE | bits::KEEPALIVE;
        if t.any(bits::ACK_NOW | bits::ACK_OWED | rest) && !t.has(bits::PRESSING) {
            t.flags |= bits::PRESSING;
            if t.has(bits::ACK_OWED) {
                // No data will carry it soon.
                t.flags |= bits::ACK_NOW;
            }
            self.scheduler.press(lines.identity.port(), flow);
        }
    }

    /// Puts the flow on the slow path's list if something is outstanding or stuck.
    #[inline]
    fn activate(&mut self, t: &mut Tcb, flow: FlowId) {
        if !t.has(flow_flags::ACTIVE) && (!t.idle() || plan::stuck(t)) {
            t.flags |= flow_flags::ACTIVE;
            self.outbox.push_back(ToSlow::Active(flow));
        }
    }

    /// Asks for an ACK that somebody else may have provoked, within the limits of the flow and of all together (RFC 5961 §7). The flow's
    /// is the first, so that one that two hosts talk past each other on does not use up the others'.
    #[cold]
    fn challenge(&mut self, now: Micros, t: &mut Tcb, lines: &Lines) {
        let at = &lines.addresses.challenged_at_ms;
        // 0 is never.
        let now_ms = ((now.0 / 1000) as u32).max(1);
        if at.get() != 0 && now_ms.wrapping_sub(at.get()) < self.config.challenge_interval_ms {
            return;
        }
        if self.challenges.allow(now, self.config.challenge_acks_per_s, self.config.seed) {
            at.set(now_ms);
            t.flags |= bits::ACK_NOW;
        }
    }

    /// Gives the flow a scoreboard with what is out already: one segment, timed if it was sent but once. False = there is none left.
    fn track(&mut self, t: &mut Tcb, lines: &Lines, now: u32) -> bool {
        let (at, again) = if t.has(bits::TIMING) { (lines.measures.rtt_at.get(), false) } else { (now, true) };
        let Some(entry) = self.boards.take(t.snd_una, t.snd_max, at, again) else { return false };
        lines.recovery.board.set(u32::from(entry));
        t.flags |= bits::TRACKED;
        true
    }

    /// Gives the flow's scoreboard back: nothing is outstanding, or nobody cares.
    fn untrack(&mut self, t: &mut Tcb, lines: &Lines) {
        if t.has(bits::TRACKED) {
            self.boards.release(lines.recovery.board.get());
            lines.recovery.board.set(0);
            lines.recovery.deadline.set(0);
            t.flags &= !(bits::TRACKED | bits::SCORED | bits::LOST | bits::TAIL);
        }
    }

    /// Ends the flow as far as peer and application are concerned; the slow path removes it.
    fn kill(&mut self, t: &mut Tcb, lines: &Lines, flow: FlowId, rst: bool, errno: i32) {
        let resend = bits::ACK_NOW | bits::ACK_OWED | bits::RESEND | bits::PROBE | bits::TIMING;
        t.flags = t.flags & !(resend | bits::ABORTING) | bits::DEAD;
        t.acks.set_due(0);
        self.out_of_order.release(t.out_of_order);
        t.out_of_order = 0;
        self.untrack(t, lines);
        if rst {
            t.flags |= bits::RESET;
            self.schedule(t, lines, flow);
        }
        if errno != 0 {
            lines.identity.set_errno(errno);
            self.raise(t, flow, event::ERROR);
        }
    }
}

/// Reports a removed flow as soon as none of the queues names it any more. Returns the flags to store: the application's view is
/// read after this, so what it shows (the peer's FIN, our FIN) stays until the number is used again.
#[inline]
fn settle(outbox: &mut VecDeque<ToSlow>, flow: FlowId, flags: u64) -> u64 {
    let queued = bits::SCHEDULED | bits::PRESSING | bits::DELAYED | bits::EVENTS;
    if flags & bits::REMOVING != 0 && flags & queued == 0 {
        outbox.push_back(ToSlow::Removed(flow));
        return flags & !bits::REMOVING;
    }
    flags
}

/// One core's fast path.
#[derive(Debug)]
pub struct FastPath {
    table: Arc<FlowTable>,
    state: State,
    batch: Batch,
}

impl FastPath {
    /// The fast path of core number `core`. It writes those flows of `table` that are installed by a message to it, no others.
    pub fn new(core: usize, config: FastConfig, table: Arc<FlowTable>) -> Self {
        let state = State {
            core,
            lookup: Lookup::new(config.seed),
            config,
            out_of_order: OutOfOrder::default(),
            boards: Boards::default(),
            scheduler: Scheduler::default(),
            delayed: Delayed::default(),
            wheel: Wheel::default(),
            events: VecDeque::with_capacity(256),
            outbox: VecDeque::with_capacity(256),
            slow_segments: 0,
            frames: VecDeque::new(),
            challenges: RateLimit::default(),
            counters: Counters::default(),
            ident: 0,
        };
        Self { table, state, batch: Batch::with_capacity(256) }
    }

    /// Takes a batch of received frames through all stages. The frames may be released afterwards.
    pub fn receive(&mut self, now: Micros, port: PortId, frames: &impl RxBatch, rings: &mut impl Rings) {
        let Self { table, state, batch } = self;
        batch.clear();
        pre::run(state, port, frames, batch);
        protocol::run(table, state, now, batch.items());
        deliver::run(state, frames, rings, batch.items());
    }

    /// Takes over what the application has written. On a lie its connection is aborted.
    pub fn app_update(&mut self, now: Micros, flow: FlowId, update: AppUpdate) -> Result<(), AppLie> {
        app::update(&self.table, &mut self.state, now, flow, update)
    }

    /// Does what the slow path says.
    pub fn message(&mut self, now: Micros, message: ToFast, rings: &mut impl Rings) {
        match message {
            ToFast::Inject(port, frame) => self.receive(now, port, &control::Injected(frame), rings),
            other => control::message(&self.table, &mut self.state, now, other),
        }
    }

    /// Sends up to `budget` frames; returns how many went out. What a port has no room for stays for the next call.
    pub fn transmit(&mut self, now: Micros, budget: usize, rings: &impl Rings, ports: &mut impl TxPorts) -> usize {
        post::expire(&self.table, &mut self.state, now);
        timers::expire(&self.table, &mut self.state, now);
        egress::run(&self.table, &mut self.state, now, budget, rings, ports)
    }

    /// Takes the events since the last call, one per flow.
    pub fn events(&mut self) -> impl Iterator<Item = FlowEvent> + '_ {
        let Self { table, state, .. } = self;
        let State { events, outbox, .. } = state;
        std::iter::from_fn(move || {
            let flow = events.pop_front()?;
            let what = table.get(flow).map_or(0, |lines| {
                let flags = lines.protocol.flags();
                lines.protocol.set_flags(settle(outbox, flow, flags & !bits::EVENTS));
                ((flags & bits::EVENTS) >> bits::EVENT_SHIFT) as u32
            });
            Some(FlowEvent { flow, what })
        })
    }

    /// The words that the application shall see.
    pub fn view(&self, flow: FlowId) -> AppView {
        let Some(lines) = self.table.get(flow) else { return AppView::default() };
        let (t, id) = (lines.protocol.load(), &lines.identity);
        AppView {
            tx_head: tx_head(&t, lines),
            rx_tail: rx_tail(&t, lines),
            errno: id.errno(),
            eof: t.has(flow_flags::FIN_RECEIVED),
            tx_closed: t.any(flow_flags::FIN_SENT | bits::DEAD),
            urgent: t.has(bits::URGENT_IN).then(|| lines.recovery.rcv_up.get().wrapping_sub(id.rcv_start.get())),
        }
    }

    /// The next message for the slow path.
    pub fn pop_to_slow(&mut self) -> Option<ToSlow> {
        let message = self.state.outbox.pop_front()?;
        self.state.slow_segments -= usize::from(matches!(message, ToSlow::Segment(..)));
        Some(message)
    }

    /// Is there anything to send or to report right now?
    pub fn has_work(&self) -> bool {
        let s = &self.state;
        !s.scheduler.is_empty() || !s.frames.is_empty() || !s.events.is_empty() || !s.outbox.is_empty()
    }

    /// When `transmit` should be called next if nothing else happens.
    pub fn next_deadline(&self) -> Option<Micros> {
        let s = &self.state;
        s.delayed.next_deadline().into_iter().chain(s.wheel.next_deadline()).min()
    }

    /// How many flows are installed on this core.
    pub fn flows(&self) -> usize {
        self.state.lookup.len()
    }

    /// What has been counted so far.
    pub fn counters(&self) -> &Counters {
        &self.state.counters
    }
}

/// The flow's lines, if it is installed on this core.
#[inline]
fn owned<'a>(table: &'a FlowTable, state: &State, flow: FlowId) -> Option<(&'a Lines, Tcb)> {
    let lines = table.get(flow)?;
    let installed = lines.protocol.flags() & bits::INSTALLED != 0;
    (installed && lines.identity.core() as usize == state.core).then(|| (lines, lines.protocol.load()))
}

/// Position up to which the send ring is acknowledged.
#[inline]
fn tx_head(t: &Tcb, lines: &Lines) -> u32 {
    let una = if t.snd_una.after(t.snd_queued) { t.snd_queued } else { t.snd_una };
    una.bytes_since(Seq(lines.identity.snd_start.get()))
}

/// Position up to which the receive ring holds data in order.
#[inline]
fn rx_tail(t: &Tcb, lines: &Lines) -> u32 {
    let fin = u32::from(t.has(flow_flags::FIN_RECEIVED));
    t.rcv_nxt.sub(fin).bytes_since(Seq(lines.identity.rcv_start.get()))
}
