//! The slow path: opening, closing, timers, congestion control, and everything else that does not happen per packet.

use crate::api::NewPort;
use crate::client::{OfClient, SlowClient, now};
use crate::clients::ClientShared;
use crate::flood_notice::FloodNotice;
use crate::host::{Later, SlowHost};
use crate::kernel_listeners::ListenerCheck;
use crate::mailbox::{Doorbell, Receiver};
use crate::messages::{FromGroup, ToGroup};
use crate::metrics::{LoopCounters, Metrics};
use crate::owner::owner;
use crate::slots::Phase;
use crate::waiting::{RouteWaits, WaitingCommands};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use towpath_recorder::{self as recorder, Entry, Kind};
use towpath_ring::Slot;
use towpath_ring::command::not_ours;
use towpath_ring::dirty::NAP_US;
use towpath_ring::lines::app_flags;
use towpath_runtime::ended::Ended;
use towpath_runtime::requests::Request;
use towpath_runtime::slots::ServedClient;
use towpath_runtime::{ClientId, ClientSetup, Orphans};
use towpath_tcp::fast::FlowTable;
use towpath_tcp::flow::{FlowId, FlowSnapshot, flow_flags};
use towpath_tcp::messages::ToSlow;
use towpath_tcp::slow::{SlowPath, Snapshots};
use towpath_tcp::time::Micros;

/// Messages taken from one flow group, and commands from one client, before the next has its turn.
const BATCH: usize = 256;
/// SYNs that the slow thread takes in one turn.
const SYNS: usize = 256;
/// SYNs, and messages of its flow group, that a worker takes in one turn. More of them come only in a flood, which is not to
/// hold up established connections.
pub const SYNS_ON_WORKER: usize = 32;
const MESSAGES_ON_WORKER: usize = 64;
/// Requests of the service in one turn.
const REQUESTS: usize = 16;
/// How often the stats of active connections are copied to their information lines, µs.
const REFRESH_US: u64 = 100_000;
/// Of how many connections at a time. One costs some twenty cache misses, about 2 µs. With more active connections the lines are
/// older. A call that reads what changes has the line copied first (`op::REFRESH`).
const REFRESHED: usize = 512;
/// How often the counters are published while there is work, µs.
const PUBLISH_US: u64 = 1000;
/// How long the kernel socket of a slot is kept without a command for that slot, µs. Socket and command come on
/// different ways.
pub const LOOSE_US: u64 = 2_000_000;

/// The flow table, as the slow path reads it.
pub struct Readings<'a>(pub &'a FlowTable);

impl Snapshots for Readings<'_> {
    fn snapshot(&self, flow: FlowId) -> FlowSnapshot {
        self.0.snapshot(flow)
    }
}

/// The state of the slow path: the protocol's, the clients', and what is due. Its own thread and workers take turns with it
/// ([`crate::shared_slow`]).
pub struct SlowState {
    /// The protocol.
    pub slow: SlowPath,
    /// The host that the protocol asks.
    pub host: SlowHost,
    /// The flow table, which it reads.
    pub table: Arc<FlowTable>,
    /// Messages from the flow groups.
    pub inbox: Vec<Receiver<FromGroup>>,
    /// Requests of the service.
    pub requests: mpsc::Receiver<Request>,
    /// The doorbell through which flow groups and callers notify it.
    pub doorbell: Arc<Doorbell>,
    /// Turns that ended by a panic.
    pub panics: Arc<AtomicU64>,
    /// Watches the doorbell and the command doorbells.
    pub epoll: Arc<OwnedFd>,
    /// When its thread wakes at the latest; `None`: it is awake.
    pub wakes_at: Option<Micros>,
    /// The memory in which the counters are published.
    pub metrics: Arc<Metrics>,
    /// When the counters are to be published next.
    pub publish_at: Micros,
    /// Flows whose stats are copied now and then.
    pub active: VecDeque<FlowId>,
    /// Flows whose stats are copied soon, because their state has changed.
    pub closing: Vec<FlowId>,
    /// Is a flow, by number, on the list of active ones?
    pub is_active: Vec<bool>,
    /// When they are to be copied next.
    pub refresh_at: Micros,
    /// Commands left to the kernel, by `not_ours` reason.
    pub not_ours: [u64; not_ours::REASONS],
    /// What clients have used that have ended.
    pub ended: Ended,
    /// The memory of connections whose clients have ended.
    pub orphans: Arc<Orphans>,
    /// Must a client prove that it has the local port that a command names?
    pub needs_proof: bool,
    /// Says that a backlog is full.
    pub flood_notice: FloodNotice,
    /// Commands that wait for their proof.
    pub waiting: WaitingCommands,
    /// Commands that wait for their route.
    pub route_waits: RouteWaits,
    /// Asks for the listeners that stay the kernel's.
    pub listener_check: ListenerCheck,
    /// Last client number given out.
    pub last_id: u32,
    /// The number of flow groups. This thread also raises events by this number.
    pub flow_groups: usize,
    /// When the last direct connection began.
    pub joined_at: Micros,
    /// While direct connections come often, the thread sleeps for [`NAP_US`] at most, and their ends do not wake it.
    pub naps_until: Micros,
    /// Commands that are carried out once the ends of direct connections have been: client, its number, and slot.
    pub after_ends: VecDeque<(ClientId, u32, Slot)>,
}

impl SlowState {
    /// Does all work that there is now, and returns how much it was.
    pub fn turn(&mut self, now: Micros) -> usize {
        self.host.now = now;
        // Ends of direct connections come first: what they give back counts for SYNs, too.
        let mut work = self.requests(now)
            + self.take_commands(now)
            + self.syns(now, SYNS)
            + self.strays(now)
            + self.messages(now)
            + self.commands(now);
        let changed = self.host.network.changed();
        if changed {
            let new = self.host.network.new_ports();
            if !new.is_empty() {
                // The interface has another index.
                self.slow.change_splices(&mut self.host);
            }
            for NewPort { flow_group, number, port } in new {
                if let Some(group) = self.host.flow_groups.get_mut(flow_group) {
                    group.to.send(ToGroup::Port(number, port));
                }
            }
            self.slow.retry_routes(now, &mut self.host);
            work += 1;
        }
        self.look_at_routes(now, changed);
        if self.slow.next_deadline().is_some_and(|at| at <= now) {
            self.slow.poll(now, &Readings(&self.table), &mut self.host);
            work += 1;
        }
        self.check_listeners(now);
        self.later(now);
        self.refresh(now);
        self.expire(now);
        if work == 0 || now >= self.publish_at {
            self.publish_at = now.after(PUBLISH_US);
            self.publish();
            if let Some(cookies) = self.flood_notice.due(now, self.slow.counters().cookies_sent) {
                tracing::warn!("possible SYN flood: a backlog is full, {cookies} SYNs were answered with cookies");
            }
        }
        self.flush();
        work
    }

    /// A turn on the worker that serves this flow group: only what a handshake waits for. Applications are not woken yet.
    /// Returns how many SYNs were taken, and how much work it was beside them.
    pub fn turn_on_worker(&mut self, now: Micros, flow_group: usize) -> (usize, usize) {
        // The worker's turn began a moment ago, and another thread may have had this one since. Time must not go back.
        let now = now.max(self.host.now);
        self.host.now = now;
        let work = (self.syns(now, SYNS_ON_WORKER), self.messages_of(now, flow_group, MESSAGES_ON_WORKER));
        if self.slow.next_deadline().is_some_and(|at| at <= now) {
            self.slow.poll(now, &Readings(&self.table), &mut self.host);
        }
        self.later(now);
        self.flush_groups();
        work
    }

    /// Ends a turn on a worker. Must the slow thread be woken? It sleeps longer than it may by now.
    pub fn end_on_worker(&mut self, now: Micros) -> bool {
        self.publish();
        self.flush();
        let sleeps_too_long = self.wakes_at.is_some_and(|at| self.deadline(now).is_some_and(|sooner| sooner < at));
        if sleeps_too_long {
            self.wakes_at = None;
        }
        sleeps_too_long
    }

    fn publish(&self) {
        self.metrics.publish(self.flow_groups, self.slow.counters(), &LoopCounters::default());
    }

    fn requests(&mut self, now: Micros) -> usize {
        let mut work = 0;
        // The number is limited, because the flow groups wait for the results of the first requests. A steady stream of
        // requests must not hold them up.
        while work < REQUESTS
            && let Ok(request) = self.requests.try_recv()
        {
            self.request(now, request);
            self.later(now);
            work += 1;
        }
        work
    }

    fn messages(&mut self, now: Micros) -> usize {
        (0..self.inbox.len()).map(|flow_group| self.messages_of(now, flow_group, BATCH)).sum()
    }

    fn messages_of(&mut self, now: Micros, flow_group: usize, most: usize) -> usize {
        for work in 0..most {
            let Ok(message) = self.inbox[flow_group].pop() else { return work };
            self.message(now, flow_group, message);
            self.later(now);
        }
        most
    }

    fn message(&mut self, now: Micros, flow_group: usize, message: FromGroup) {
        match message {
            FromGroup::Tcp(message) => {
                match message {
                    ToSlow::Active(flow) => self.note_active(flow),
                    ToSlow::Closing(flow) => self.closing.push(flow),
                    _ => {}
                }
                self.slow.on_message(now, flow_group, message, &mut self.host);
            }
            FromGroup::DataQueued { client, slot } => self.data_queued(now, flow_group, client, slot),
            FromGroup::Closed { client, slot, generation } => {
                if let Some(client) = self.host.client(client)
                    && client.shared.generation(slot) == generation
                    && client.slot(slot).phase != Phase::Free
                {
                    client.slot(slot).app_closed = true;
                    if client.slot(slot).phase == Phase::Over {
                        client.free(slot);
                    }
                }
            }
            FromGroup::Forgotten(index) => self.forgotten(index),
        }
    }

    /// The application has queued a slot with a flow group that does not own it.
    fn data_queued(&mut self, now: Micros, flow_group: usize, index: u32, slot: Slot) {
        let Some(client) = self.host.client(index) else { return };
        // Cleared before the words are read, so that a later entry comes through.
        client.shared.words(slot).relayed.store(false, Ordering::SeqCst);
        let (phase, owner) = (client.slot(slot).phase, client.slot(slot).own.flow_group);
        if phase == Phase::Open {
            // The owning group looks at the slot when it installs the flow.
            if owner != flow_group {
                self.host.flow_groups[owner].to.send(ToGroup::DataQueued { client: index, slot });
            }
            return;
        }
        let Some(words) = client.shared.app_words(slot) else { return };
        if words.flags & app_flags::CLOSED != 0 {
            let generation = client.shared.generation(slot);
            self.close(now, index, slot, generation, words.flags & app_flags::ABORT != 0);
        } else if phase == Phase::Listening && !client.sync_listener(slot) {
            client.shared.violated_contract();
            self.host.later.push(Later::EndListener { client: index, slot });
        }
    }

    /// The application is done with a slot.
    pub fn close(&mut self, now: Micros, index: u32, slot: Slot, generation: u32, abort: bool) {
        let Some(client) = self.host.client(index) else { return };
        if client.shared.generation(slot) != generation {
            return;
        }
        let entry = client.slot(slot);
        let (phase, flow_group, was_closed) = (entry.phase, entry.own.flow_group, entry.app_closed);
        if phase == Phase::Free {
            return;
        }
        entry.app_closed = true;
        // Of an open connection its flow group tells.
        if !was_closed && !matches!(phase, Phase::Open | Phase::Child) {
            towpath_probes::close(owner(index, slot).0, abort);
        }
        match phase {
            Phase::Free | Phase::Child => {}
            Phase::Direct => self.part(now, index, slot, abort),
            Phase::Over => client.free(slot),
            Phase::Open if was_closed && !abort => {}
            Phase::Open => {
                self.host.flow_groups[flow_group].to.send(ToGroup::Close { client: index, slot, generation, abort })
            }
            Phase::Opening => {
                self.slow.close(now, owner(index, slot), &mut self.host);
                self.free_if(index, slot, Phase::Opening);
            }
            Phase::Listening => {
                let waiting = client.take_queue(slot);
                self.slow.close(now, owner(index, slot), &mut self.host);
                self.free_if(index, slot, Phase::Listening);
                for (child, generation) in waiting {
                    self.close(now, index, child, generation, true);
                }
            }
        }
    }

    fn free_if(&mut self, index: u32, slot: Slot, phase: Phase) {
        if let Some(client) = self.host.client(index)
            && client.slot(slot).phase == phase
        {
            client.free(slot);
        }
    }

    /// Does the work that the slow path's callbacks have left.
    pub fn later(&mut self, now: Micros) {
        while let Some(later) = self.host.later.pop() {
            match later {
                Later::Close { client, slot, generation, abort } => {
                    if let Some(entry) = self.host.client(client) {
                        entry.slot(slot).app_closed = false;
                    }
                    self.close(now, client, slot, generation, abort);
                }
                Later::EndListener { client, slot } => self.end_listener(now, client, slot),
            }
        }
    }

    /// Closes a listener whose words break the contract. Its application sees an error.
    fn end_listener(&mut self, now: Micros, index: u32, slot: Slot) {
        let Some(client) = self.host.client(index) else { return };
        if client.slot(slot).phase != Phase::Listening {
            return;
        }
        let waiting = client.take_queue(slot);
        client.over(slot, libc::ECONNRESET);
        self.slow.close(now, owner(index, slot), &mut self.host);
        for (child, generation) in waiting {
            self.close(now, index, child, generation, true);
        }
    }

    fn note_active(&mut self, flow: FlowId) {
        let index = flow.0 as usize;
        if self.is_active.len() <= index {
            self.is_active.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.is_active[index], true) {
            self.active.push_back(flow);
        }
    }

    /// Copies the stats of flows to where `TCP_INFO` finds them: of all whose state is news, and of active ones.
    fn refresh(&mut self, now: Micros) {
        if !self.has_to_refresh() || now < self.refresh_at {
            return;
        }
        self.refresh_at = now.after(REFRESH_US);
        for flow in std::mem::take(&mut self.closing) {
            if self.show(now, flow) {
                self.note_active(flow);
            }
        }
        for _ in 0..self.active.len().min(REFRESHED) {
            let Some(flow) = self.active.pop_front() else { break };
            self.is_active[flow.0 as usize] = false;
            if self.show(now, flow) {
                self.note_active(flow);
            }
        }
    }

    fn has_to_refresh(&self) -> bool {
        !self.active.is_empty() || !self.closing.is_empty()
    }

    /// Copies the stats of a flow. Is it active?
    fn show(&mut self, now: Micros, flow: FlowId) -> bool {
        let Some(owner) = self.host.owners.get(flow.0 as usize).copied().flatten() else { return false };
        let snapshot = self.table.snapshot(flow);
        let (unanswered, sent) = (self.slow.unanswered(owner), self.slow.send_stats(now, owner, &snapshot));
        self.host.show_figures(owner, &snapshot, unanswered, sent);
        self.host.show_congestion(owner, self.slow.congestion(owner));
        snapshot.flags & flow_flags::ACTIVE != 0
    }

    fn flush_groups(&mut self) {
        for flow_group in &mut self.host.flow_groups {
            flow_group.to.flush();
        }
    }

    /// Wakes the receivers of messages and events.
    fn flush(&mut self) {
        self.flush_groups();
        for client in self.host.clients.iter_mut().flatten() {
            client.out.notify(&client.shared);
        }
    }

    /// The thread is about to sleep. Returns for how long at most, µs; `None`: there is something to do.
    pub fn arm(&mut self) -> Option<Option<u64>> {
        self.doorbell.arm();
        let naps = now() < self.naps_until;
        let mut pending = !self.after_ends.is_empty() || self.inbox.iter().any(|i| !i.is_empty());
        for client in self.host.clients.iter().flatten() {
            let commands = client.shared.region.commands();
            if naps {
                commands.arm_for_a_nap();
            } else {
                commands.arm();
            }
            pending |= !commands.is_empty(client.command_head);
        }
        // A request notifies even while the doorbell is not armed, so that none is missed here.
        if pending {
            self.disarm();
            return None;
        }
        let now = now();
        let nap = naps.then_some(now.after(NAP_US));
        let deadline = self.deadline(now).into_iter().chain(nap).min();
        self.wakes_at = Some(deadline.unwrap_or(Micros(u64::MAX)));
        Some(deadline.map(|at| at.since(now)))
    }

    /// The thread is awake.
    pub fn disarm(&mut self) {
        self.wakes_at = None;
        self.doorbell.disarm();
        for client in self.host.clients.iter().flatten() {
            client.shared.region.commands().disarm();
        }
    }

    /// When the thread must look again at the latest.
    fn deadline(&mut self, now: Micros) -> Option<Micros> {
        let protocol = self.slow.next_deadline();
        let refresh = self.has_to_refresh().then_some(self.refresh_at);
        let loose = self.host.clients.iter().flatten().any(|c| !c.loose_reservations.is_empty());
        let beat = self.host.kernel_listeners.next_deadline(now);
        let check = beat.map(|_| self.listener_check.next_deadline());
        let expire = loose.then_some(now.after(LOOSE_US));
        let orphans = self.host.clients.iter().flatten().filter_map(ServedClient::orphans_until).min().map(Micros);
        // Messages for which a flow group had no room must be tried again.
        let crowded = self.host.flow_groups.iter_mut().any(|c| !c.to.flush());
        let retry = crowded.then_some(now.after(1000));
        [
            protocol,
            refresh,
            beat,
            check,
            expire,
            orphans,
            retry,
            self.waiting.next_deadline(),
            self.route_waits.next_deadline(),
            self.host.pairs.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Adds a client.
    pub fn add_client(&mut self, setup: ClientSetup) -> io::Result<ClientId> {
        if setup.region.geometry().flow_groups as usize != self.flow_groups || setup.doorbells.len() <= self.flow_groups
        {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let places = &mut self.host.clients;
        let index = places.iter().position(Option::is_none).unwrap_or(places.len());
        self.last_id += 1;
        let id = ClientId(self.last_id);
        let shared = Arc::new(ClientShared::new(id, index as u32, setup));
        let value = (shared.pid.cast_unsigned(), id.0);
        recorder::record(&Entry { value, ..Entry::new(Kind::Client, index as u64) });
        crate::thread::watch(&self.epoll, shared.doorbells[self.flow_groups].as_fd(), true)?;
        if places.len() == index {
            places.push(None);
        }
        places[index] = Some(SlowClient::new(Arc::clone(&shared), self.flow_groups, OfClient::new(shared.index)));
        for flow_group in &mut self.host.flow_groups {
            flow_group.to.send(ToGroup::AddClient(Arc::clone(&shared)));
        }
        Ok(id)
    }

    /// Index of a client.
    pub fn index_of(&self, id: ClientId) -> Option<u32> {
        self.host.clients.iter().position(|c| c.as_ref().is_some_and(|c| c.shared.id == id)).map(|i| i as u32)
    }

    /// Opens (`Some`) or closes an event context of this client.
    pub fn set_context(&mut self, id: ClientId, context: u32, wake: Option<OwnedFd>, done: &mpsc::Sender<()>) {
        let Some(index) = self.index_of(id) else { return };
        let wake = wake.map(Arc::new);
        let context = context as usize;
        if let Some(client) = self.host.client(index) {
            client.out.set_context(context, wake.clone());
        }
        for flow_group in &mut self.host.flow_groups {
            flow_group.to.send(ToGroup::Context { client: index, context, wake: wake.clone(), done: done.clone() });
        }
    }
}
