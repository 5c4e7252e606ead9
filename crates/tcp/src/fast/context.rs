//! The context of the stages: the state of a fast path, and one flow's turn.

use super::FastConfig;
use super::fifo::Fifo;
use super::lookup::Lookup;
use super::out_of_order::OutOfOrder;
use super::scheduler::{Delayed, Scheduler};
use super::scoreboard::Scoreboards;
use super::wheel::Wheel;
use crate::counters::{Counters, Drop};
use crate::flow::{FlowId, PortId};
use crate::messages::ToSlow;
use crate::rate_limit::RateLimit;
use crate::table::bits::{ACK_NOW, ACTIVE, AckDebt, EVENTS, Reports};
use crate::table::permit::{Owned, Permit, Writes};
use crate::table::stages::{Close, Control, Egress, Loss, Post, Receive};
use crate::table::tcb::Tcb;
use crate::table::{FlowTable, Lines};
use crate::time::Micros;
use std::collections::VecDeque;
use std::hint::cold_path;
use towpath_wire::segment::SackBlocks;

/// Complete frames of the slow path that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct SlowFrames(pub VecDeque<(PortId, Box<[u8]>)>);

/// What frames have beside the state of their flow.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// IPv4 identification of the next packet.
    pub ident: u16,
    /// The time in ms, modulo 2^32.
    pub ms: u32,
}

/// Reports that wait for the stack's thread and the slow path. Shared: every stage reports.
#[derive(Debug)]
pub(super) struct Outbox {
    /// Flows with events that the stack's thread has not yet taken.
    pub events: Fifo<FlowId>,
    /// Messages for the slow path.
    pub messages: VecDeque<ToSlow>,
    /// `ToSlow::Segment`s among them.
    pub segments: usize,
}

impl Outbox {
    /// A copy of a frame for the slow path. This allocates, so there are at most `most`.
    #[cold]
    pub fn pass_to_slow(&mut self, counters: &mut Counters, most: usize, port: PortId, frame: &[u8]) {
        if self.segments >= most {
            return counters.drop(Drop::SlowPathFull);
        }
        self.segments += 1;
        self.messages.push_back(ToSlow::Segment(port, frame.into()));
    }
}

/// All that a fast path knows beyond the lines of its flows.
#[derive(Debug)]
pub(super) struct FastState {
    pub flow_group: usize,
    pub config: FastConfig,
    pub lookup: Owned<Lookup>,
    pub out_of_order: Owned<OutOfOrder>,
    pub challenges: Owned<RateLimit>,
    pub scoreboards: Owned<Scoreboards>,
    pub scheduler: Owned<Scheduler>,
    pub delayed: Owned<Delayed>,
    pub wheel: Owned<Wheel>,
    pub frames: Owned<SlowFrames>,
    pub sending: Owned<Sending>,
    pub outbox: Outbox,
    /// Replies that have gone at once since frames were sent last. They count towards the next budget.
    pub at_once: usize,
    /// The SACK options of the batch. Few segments have one.
    pub sacks: Vec<SackBlocks>,
    /// Frames of the batch that flows which are to be spliced have not taken.
    pub held: Vec<u32>,
    /// Each stage counts for itself.
    pub counters: Counters,
}

impl Writes<Lookup> for Control {}
impl Writes<OutOfOrder> for Receive {}
impl Writes<OutOfOrder> for Close {}
impl Writes<RateLimit> for Receive {}
impl Writes<RateLimit> for Control {}
impl Writes<Scoreboards> for Loss {}
impl Writes<Scheduler> for Post {}
impl Writes<Delayed> for Post {}
impl Writes<Wheel> for Post {}
impl Writes<Wheel> for Loss {}
impl Writes<SlowFrames> for Control {}
impl Writes<SlowFrames> for Egress {}
impl Writes<Sending> for Egress {}

impl FastState {
    pub fn new(flow_group: usize, config: FastConfig) -> Self {
        let room = 256;
        Self {
            flow_group,
            lookup: Owned::new(Lookup::new(config.seed)),
            config,
            out_of_order: Owned::default(),
            challenges: Owned::default(),
            scoreboards: Owned::default(),
            scheduler: Owned::default(),
            delayed: Owned::default(),
            wheel: Owned::default(),
            frames: Owned::default(),
            sending: Owned::default(),
            outbox: Outbox { events: Fifo::with_capacity(room), messages: VecDeque::with_capacity(room), segments: 0 },
            at_once: 0,
            sacks: Vec::with_capacity(room),
            held: Vec::new(),
            counters: Counters::default(),
        }
    }
}

/// One flow's way through a stage.
pub(super) struct FlowTurn<'a> {
    pub state: &'a mut FastState,
    pub lines: &'a Lines,
    pub t: Tcb,
    pub flow: FlowId,
    pub now: Micros,
}

impl<'a> FlowTurn<'a> {
    /// A turn of a flow that is installed in this fast path.
    #[inline]
    pub fn of(table: &'a FlowTable, state: &'a mut FastState, now: Micros, flow: FlowId) -> Option<Self> {
        let lines = Self::lines(table, state, flow)?;
        Some(Self { t: lines.protocol.load(), state, lines, flow, now })
    }

    /// The lines of a flow that is installed in this fast path.
    #[inline(always)]
    pub fn lines(table: &'a FlowTable, state: &FastState, flow: FlowId) -> Option<&'a Lines> {
        let lines = table.get(flow)?;
        if lines.identity.is_owned_by(state.flow_group) { Some(lines) } else { None }
    }

    /// Ends the turn. It stores the words that the stage, or one that it handed the flow to, has written.
    #[inline(always)]
    pub fn store<S: Permit>(&self, by: S) {
        self.lines.protocol.store(by, &self.t);
    }

    /// Ends a turn that has loaded `LOADED` alone, and may have changed `STORED`.
    #[inline(always)]
    pub fn store_words<S: Permit, const LOADED: u16, const STORED: u16>(&self, by: S) {
        self.lines.protocol.store_words::<S, LOADED, STORED>(by, &self.t);
    }

    /// The word `WORD` has changed, which the predicted path seldom changes. So that path stores it here, and not at its end.
    #[inline(always)]
    pub fn seldom<S: Permit, const PREDICTED: bool, const WORD: u16>(&self, by: S) {
        if PREDICTED {
            self.lines.protocol.store_only::<S, WORD>(by, &self.t);
        }
    }

    /// Notes events for the stack's thread; one report per flow and batch.
    #[inline]
    pub fn raise<S: Writes<Reports>>(&mut self, by: S, what: u32) {
        if !self.t.any(EVENTS) {
            self.state.outbox.events.push(self.flow);
        }
        self.t.set(by, Reports::of(what));
    }

    /// Tells the slow path.
    #[inline]
    pub fn tell<S: Writes<Reports>>(&mut self, _: S, message: ToSlow) {
        self.state.outbox.messages.push_back(message);
    }

    /// Puts the flow on the slow path's list if something is outstanding or stuck.
    #[inline]
    pub fn activate<S: Writes<Reports>>(&mut self, by: S) {
        if self.t.has(ACTIVE) {
            return;
        }
        cold_path();
        if !self.t.idle() || self.t.stuck() {
            self.t.set(by, ACTIVE);
            self.tell(by, ToSlow::Active(self.flow));
        }
    }

    /// Asks for an ACK that a stranger may have provoked, within the limits of the flow and of all flows (RFC 5961 §7).
    /// The flow's limit comes first: two hosts that only exchange ACKs on one flow must not use up the others'
    /// challenges.
    #[cold]
    pub fn challenge<S: Writes<AckDebt> + Writes<RateLimit>>(&mut self, by: S) {
        let at = &self.lines.addresses.challenged_at_ms;
        // 0 means never.
        let now_ms = self.now.ms().max(1);
        let FastState { config, challenges, .. } = &mut *self.state;
        if at.get() != 0 && now_ms.wrapping_sub(at.get()) < config.challenge_interval_ms {
            return;
        }
        if challenges.by(by).allow(self.now, config.challenge_acks_per_s, config.seed) {
            at.set(by, now_ms);
            self.t.set(by, ACK_NOW);
        }
    }
}
