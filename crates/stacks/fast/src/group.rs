//! A flow group of the fast path: ports, the flows on them, and the data queues of their applications. One thread at a
//! time serves it ([`towpath_runtime::workers`]), and the thread may change from turn to turn.

use crate::mailbox::{Doorbell, Receiver, Sender};
use crate::messages::{FromGroup, ToGroup, record_to_fast, record_to_slow};
use crate::metrics::{LoopCounters, Metrics};
use crate::owner::split;
use crate::portset::{Frames, PortSet, emptied};
use crate::rings::{Endpoint, Endpoints, GroupClient};
use crate::shared_slow::{SharedSlow, TAKES_SYNS};
use crate::thread::{wait, watch};
use rustix::event::epoll;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_ports::{Port, RxFrame};
use towpath_probes::{self as probes, Stage};
use towpath_recorder::{self as recorder, Entry, Kind};
use towpath_runtime::group_times::GroupTimes;
use towpath_runtime::sampler::Sampler;
use towpath_runtime::workers::{Group, Idle};
use towpath_tcp::fast::FastPath;
use towpath_tcp::flow::{FlowId, PortId};
use towpath_tcp::messages::{Splicing, ToFast, ToSlow};
use towpath_tcp::time::Micros;

/// Frames taken from one port in one turn. The headers of so many fit the first-level cache.
const RX_BATCH: usize = 64;
/// Messages of the slow path in one turn.
const MESSAGE_BATCH: usize = 256;
/// Frames sent in one turn.
const TX_BUDGET: usize = 128;
/// Least time between two publications of the counters, µs. A port's counters cost a system call.
const PUBLISH_US: u64 = 1000;

/// The state of one flow group.
pub struct FlowGroup {
    /// Its number, by which it also raises events.
    pub number: usize,
    /// The protocol.
    pub fast: FastPath,
    /// Its ports.
    pub ports: PortSet,
    /// Its flows and clients.
    pub rings: Endpoints,
    /// Messages from the slow path.
    pub inbox: Receiver<ToGroup>,
    /// Messages to the slow path.
    pub outbox: Sender<FromGroup>,
    /// The doorbell through which the slow path notifies it.
    pub doorbell: Arc<Doorbell>,
    /// Turns that ended by a panic.
    pub panics: Arc<AtomicU64>,
    /// Watches the doorbell, the ports and the clients' doorbells.
    pub epoll: OwnedFd,
    /// The memory in which its counters are published.
    pub metrics: Arc<Metrics>,
    /// Memory of its turns.
    pub scratch: Scratch,
    /// The slow path, to which its worker gives turns; `None`: in tests that play the slow path themselves.
    pub slow: Option<Arc<SharedSlow>>,
}

/// Memory that a turn uses and the next uses again.
#[derive(Default)]
pub struct Scratch {
    /// Received frames that the port has not back yet, and the place of that port.
    frames: Vec<RxFrame>,
    receives: usize,
    /// Their bytes, while a port has them.
    bytes: Vec<&'static [u8]>,
    /// Clients that are to be told of events.
    pub to_notify: Vec<u32>,
    /// The client whose data queue came first in the last turn.
    pub first_client: usize,
    /// When the counters are to be published next, and whether there is anything new in them.
    publish_at: u64,
    uncounted: bool,
    account: GroupTimes,
    /// Time of turns with work that has been divided among programs, µs.
    pub charged_us: u64,
    /// Turns that have left frames or slots to the next.
    pub full: u64,
    /// The slow thread has been told to take the SYNs that wait.
    left_syns: bool,
    /// Messages wait as the mailbox to the slow path has no room for them.
    waits: bool,
    /// The time of this turn, µs.
    pub now_us: u64,
    /// What applications achieve.
    pub sampler: Sampler,
    /// A turn has ended by a panic.
    recovers: bool,
    /// Flows whose application's words may have been lost by that.
    unsure: std::ops::Range<u32>,
}

impl FlowGroup {
    /// Lets its ports wake it.
    pub fn watch_ports(&self) -> std::io::Result<()> {
        self.ports.wait_fds().try_for_each(|fd| watch(&self.epoll, fd, false))
    }

    /// Takes one turn, and returns how much work it was.
    pub fn turn(&mut self, now: Micros) -> usize {
        (self.scratch.now_us, self.scratch.left_syns) = (now.0, false);
        if !self.scratch.unsure.is_empty() {
            self.recover(now);
        }
        probes::turn_begin(self.number);
        let mut work = self.messages(now);
        probes::stage::<{ Stage::Messages as u32 }>(work);
        let received = self.receive(now);
        // Applications work on new data while this flow group sends.
        work += received + self.publish_stage();
        let queued = self.data_queues(now);
        probes::stage::<{ Stage::Data as u32 }>(queued);
        let sent = self.fast.transmit(now, TX_BUDGET, &self.rings, &mut self.ports);
        self.ports.flush();
        probes::stage::<{ Stage::Flush as u32 }>(sent);
        work += queued + sent + self.publish_stage();
        let told = self.tell_slow();
        let (answered, sent_by_slow) = self.slow_turn(now);
        probes::stage::<{ Stage::Slow as u32 }>(told);
        probes::turn_end(self.number, received, sent + sent_by_slow);
        work + told + answered
    }

    /// After a turn that ended by a panic: connections that it has left half done are reset, and the words of all others' applications are
    /// read again, because those in hand have left their queues. A flow that ends this by a panic, too, is not looked at again.
    #[cold]
    fn recover(&mut self, now: Micros) {
        if std::mem::take(&mut self.scratch.recovers) {
            let frames = std::mem::take(&mut self.scratch.frames);
            if let Some(port) = self.ports.iter_mut().nth(self.scratch.receives).filter(|_| !frames.is_empty()) {
                port.release(&frames);
            }
            let half_done = self.fast.recover(now);
            let number = half_done.len();
            tracing::warn!(flow_group = self.number, number, "connections that the panic has left half done are reset");
            for flow in half_done {
                if let Some(endpoint) = self.rings.endpoint(flow) {
                    endpoint.half_done = true;
                }
            }
        }
        while let Some(flow) = self.scratch.unsure.next() {
            let place = self.rings.endpoint(FlowId(flow)).map(|endpoint| (endpoint.client, endpoint.slot));
            if let Some((client, slot)) = place {
                self.look_at(now, client, slot);
            }
        }
    }

    /// Gives the slow path a turn if there is something for it, and uses what it answers. Returns how much work it was, and how
    /// many frames were sent.
    fn slow_turn(&mut self, now: Micros) -> (usize, usize) {
        let Some(slow) = &self.slow else {
            self.outbox.flush();
            return (0, 0);
        };
        if !self.outbox.settle() && (self.number != TAKES_SYNS || !slow.has_syns()) {
            return (0, 0);
        }
        let slow = Arc::clone(slow);
        let Some(mut turn) = slow.begin() else {
            self.scratch.left_syns = true;
            return (0, 0);
        };
        let work = turn.run(now, self.number) + self.messages(now);
        probes::stage::<{ Stage::Slow as u32 }>(work);
        let sent = self.fast.transmit(now, TX_BUDGET, &self.rings, &mut self.ports);
        self.ports.flush();
        probes::stage::<{ Stage::Flush as u32 }>(sent);
        self.publish_stage();
        self.scratch.left_syns = turn.end(now);
        (work, sent)
    }

    #[inline]
    fn messages(&mut self, now: Micros) -> usize {
        if self.inbox.is_empty() { 0 } else { self.take_messages(now) }
    }

    #[inline(never)]
    fn take_messages(&mut self, now: Micros) -> usize {
        let mut work = 0;
        while work < MESSAGE_BATCH {
            let Ok(message) = self.inbox.pop() else { break };
            work += 1;
            match message {
                ToGroup::Tcp(message) => self.protocol_message(now, message),
                ToGroup::AddClient(shared) => {
                    let client = GroupClient::new(shared, self.number);
                    if let Err(error) = watch(&self.epoll, client.shared.doorbells[self.number].as_fd(), true) {
                        tracing::error!(flow_group = self.number, %error, "a client cannot wake this flow group");
                    }
                    self.rings.add_client(client);
                }
                ToGroup::DropClient(index) => {
                    if let Some(client) = self.rings.client(index) {
                        let _ = epoll::delete(&self.epoll, client.shared.doorbells[self.number].as_fd());
                    }
                    self.rings.drop_client(index);
                    self.outbox.send(FromGroup::Forgotten(index));
                }
                ToGroup::Context { client, context, wake, done: _done } => {
                    if let Some(client) = self.rings.client(client) {
                        client.out.set_context(context, wake);
                    }
                }
                ToGroup::Capture { taps, done: _done } => self.ports.tap(taps),
                ToGroup::Modules { filters, done: _done } => self.ports.filter(filters),
                ToGroup::Translate(port, mut frame) => self.ports.translate(port, &mut frame),
                ToGroup::Port(number, port) => self.replace_port(number, port),
                ToGroup::DataQueued { client, slot } => self.look_at(now, client, slot),
                ToGroup::Close { client, slot, generation, abort } => self.close(now, client, slot, generation, abort),
            }
        }
        work
    }

    /// Another process may hold the old port, too, so its end alone does not take it out of the set.
    fn replace_port(&mut self, number: PortId, port: Box<dyn Port>) {
        if let Some(old) = self.ports.wait_fd(number) {
            let _ = epoll::delete(&self.epoll, old);
        }
        self.ports.replace(number, port);
        if let Some(Err(error)) = self.ports.wait_fd(number).map(|new| watch(&self.epoll, new, false)) {
            tracing::error!(flow_group = self.number, %error, "a port cannot wake this flow group");
        }
    }

    fn protocol_message(&mut self, now: Micros, message: ToFast) {
        record_to_fast(self.number, &message);
        let (mut installed, mut resumed) = (None, None);
        match &message {
            ToFast::Install(setup) => {
                let (client, raw) = split(setup.owner);
                installed = self.rings.install(setup.flow, client, raw, now).map(|slot| (client, slot));
            }
            // The application must be shown the flow's last state while the flow exists.
            ToFast::Remove(_) => {
                self.publish();
            }
            // It is judged by what the application has written and read by now.
            ToFast::Splice(flow, Splicing::Hold(_)) => {
                if let Some(Endpoint { client, slot, .. }) = self.rings.endpoint(*flow).copied() {
                    self.look_at(now, client, slot);
                }
                self.publish();
            }
            ToFast::Splice(flow, Splicing::Resume | Splicing::Release) => resumed = Some(*flow),
            _ => {}
        }
        self.fast.message(now, message, &mut self.rings);
        // The application may have queued the slot before the flow was here.
        if let Some((client, slot)) = installed {
            self.look_at(now, client, slot);
        }
        if let Some(flow) = resumed {
            self.look_again(now, flow);
        }
    }

    /// Nobody has looked at the application's words while the flow rested.
    fn look_again(&mut self, now: Micros, flow: FlowId) {
        let Some(endpoint) = self.rings.endpoint(flow) else { return };
        let was_closed = std::mem::take(&mut endpoint.closed);
        let Endpoint { client, slot, generation, .. } = *endpoint;
        if was_closed {
            // Tracers were told when it happened, and are told again.
            self.close(now, client, slot, generation, false);
        } else {
            self.look_at(now, client, slot);
        }
    }

    // By itself, so that it has all registers.
    #[inline(never)]
    fn receive(&mut self, now: Micros) -> usize {
        let mut work = 0;
        for number in 0..self.ports.len() {
            let Scratch { frames, bytes, full, receives, .. } = &mut self.scratch;
            *receives = number;
            let Some(port) = self.ports.receive(number, frames, RX_BATCH) else { continue };
            let taken = frames.len();
            probes::stage::<{ Stage::Take as u32 }>(taken);
            if taken == 0 {
                continue;
            }
            work += taken;
            *full += u64::from(taken == RX_BATCH);
            let mut all = std::mem::take(bytes);
            port.bytes_of(frames, &mut all);
            self.fast.receive(now, PortId(number as u8), &Frames { bytes: &all, frames }, &mut self.rings);
            *bytes = emptied(all);
            port.release(frames);
            frames.clear();
            probes::stage::<{ Stage::Deliver as u32 }>(taken);
        }
        self.ports.redirect();
        work
    }

    /// Passes messages on to the slow path.
    fn tell_slow(&mut self) -> usize {
        let mut work = 0;
        while self.outbox.has_room() {
            let Some(message) = self.fast.pop_to_slow() else { return work };
            record_to_slow(self.number, &message);
            if let ToSlow::Removed(flow) = message {
                self.rings.remove(flow);
            }
            self.outbox.send(FromGroup::Tcp(message));
            self.scratch.waits &= self.fast.has_to_slow();
            work += 1;
        }
        self.note_full();
        work
    }

    /// The mailbox has no room. What waits for it since now is recorded, and not each turn for which it waits.
    #[cold]
    #[inline(never)]
    fn note_full(&mut self) {
        if self.fast.has_to_slow() && !std::mem::replace(&mut self.scratch.waits, true) {
            let entry = Entry::new(Kind::Full, self.number as u64);
            recorder::record(&Entry { flow_group: self.number as u32, ..entry });
        }
    }

    fn publish_metrics(&mut self) {
        let (times, achieved) = (&self.scratch.account, self.scratch.sampler.achieved());
        let turns = LoopCounters {
            turns: times.turns,
            busy_us: times.busy_us,
            idle_us: times.idle_us,
            sleeps: times.sleeps,
            flows: self.rings.flows(),
            full: self.scratch.full,
            app_bytes: achieved.bytes,
            samples: achieved.samples,
            sample_logarithms: achieved.logarithms,
        };
        self.charge(turns.busy_us);
        self.metrics.publish(self.number, self.fast.counters(), &turns);
        self.metrics.publish_requests(self.number, self.scratch.sampler.times());
        for (number, port) in self.ports.iter_mut().enumerate() {
            self.metrics.publish_port(self.number, number, port.counters());
        }
    }
}

impl Group for FlowGroup {
    fn turn(&mut self, now_us: u64) -> usize {
        FlowGroup::turn(self, Micros(now_us))
    }
    fn turned(&mut self, now_us: u64, took_us: u64, worked: bool) {
        let scratch = &mut self.scratch;
        scratch.account.turned(now_us, took_us, worked);
        scratch.uncounted |= worked;
        if scratch.uncounted && now_us >= scratch.publish_at {
            (scratch.publish_at, scratch.uncounted) = (now_us + PUBLISH_US, false);
            self.publish_metrics();
        }
    }
    fn panicked(&mut self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        // The next turn does the rest, in which one more panic is caught, too.
        self.scratch.recovers = true;
        if self.scratch.unsure.is_empty() {
            self.scratch.unsure = 0..self.rings.flow_places();
        }
    }
    fn arm(&mut self, now_us: u64) -> Idle {
        self.doorbell.arm();
        let mut pending = !self.inbox.is_empty() || self.fast.has_work() || !self.scratch.unsure.is_empty();
        let number = self.number;
        for client in self.rings.clients() {
            let data_queue = client.shared.region.data_queue(number);
            data_queue.arm();
            pending |= !data_queue.is_empty(client.data_head);
        }
        let takes_syns = number == TAKES_SYNS && !self.scratch.left_syns;
        pending |= takes_syns && self.slow.as_ref().is_some_and(|slow| slow.has_syns());
        if pending || self.ports.pending() {
            return Idle::No;
        }
        let publish_us = self.scratch.uncounted.then(|| self.scratch.publish_at.saturating_sub(now_us));
        let deadline_us = self.fast.next_deadline().map(|end| end.since(Micros(now_us)));
        // Messages for which the slow thread had no room must be tried again.
        let waits = !self.outbox.flush() || !self.outbox.has_room();
        Idle::For([publish_us, deadline_us, waits.then_some(1000)].into_iter().flatten().min())
    }
    fn disarm(&mut self, slept: bool) {
        self.scratch.account.sleeps += u64::from(slept);
        self.doorbell.disarm();
        let number = self.number;
        for client in self.rings.clients() {
            client.shared.region.data_queue(number).disarm();
        }
    }
    fn wait(&mut self, timeout_us: Option<u64>) {
        wait(&self.epoll, timeout_us);
    }
    fn set(&self) -> &OwnedFd {
        &self.epoll
    }
}
