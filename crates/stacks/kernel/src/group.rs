//! One turn of a group of clients.

use crate::batch::{Batch, BatchLists};
use crate::client::{ClientState, KernelClient, KernelSocket};
use crate::moved::MoveRequest;
use crate::rate::Rates;
use rustix::event::epoll;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc;
use towpath_ring::Slot;
use towpath_ring::command::not_ours::REASONS;
use towpath_runtime::admission::AdmissionState;
use towpath_runtime::clients::ClientShared;
use towpath_runtime::group_times::GroupTimes;
use towpath_runtime::mailbox::Doorbell;
use towpath_runtime::requests::Request;
use towpath_runtime::sampler::Sampler;
use towpath_runtime::slots::Phase;
use towpath_runtime::thread::watch;
use towpath_runtime::{ClientId, ClientSetup, Orphans};

/// Slots of the dirty set, and commands, served for one client in a turn before the next client is served.
const PER_CLIENT: usize = 64;
/// Requests of the service served in one turn.
const REQUESTS: usize = 16;
/// Socket events taken in one turn.
pub const EVENTS: usize = 256;
/// How long a port reservation waits for its command, and a command for its reservation, µs.
pub const LOOSE_US: u64 = 2_000_000;
/// Event data of doorbells. Such an event only says that some queue has entries.
const A_DOORBELL: u64 = 0;

/// Counters of a group.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Commands decided.
    pub commands: u64,
    /// Connects started.
    pub connects: u64,
    /// Connections accepted.
    pub accepts: u64,
    /// System calls that sent.
    pub sends: u64,
    /// Bytes that these calls sent.
    pub sent_bytes: u64,
    /// Bytes of files sent without passing through a ring.
    pub file_bytes: u64,
    /// System calls that received.
    pub receives: u64,
    /// Bytes that these calls received.
    pub received_bytes: u64,
    /// System calls that made several of these at once.
    pub batches: u64,
    /// Slots taken from dirty sets.
    pub data_entries: u64,
    /// Connections established.
    pub opened: u64,
    /// Connections that failed before they were established.
    pub failed: u64,
    /// Connections that ended with an error.
    pub resets: u64,
    /// Turns and their times.
    pub account: GroupTimes,
    /// Turns that took as many socket events as one turn may.
    pub full: u64,
    /// Turns that ended in a panic.
    pub panics: u64,
}

/// The state of a group. One thread at a time serves it.
pub struct ClientGroup {
    /// Number of this group.
    pub number: usize,
    /// Number of groups of the stack.
    pub groups: usize,
    /// Clients of the group, by index.
    pub clients: Vec<Option<KernelClient>>,
    /// The operator's policy.
    pub gate: AdmissionState,
    /// Requests of the service.
    pub requests: mpsc::Receiver<Request>,
    /// Requests about clients that move with their connections.
    pub moves: mpsc::Receiver<MoveRequest>,
    /// Notified for requests.
    pub doorbell: Arc<Doorbell>,
    /// Watches the doorbell, the clients' doorbells and the sockets.
    pub epoll: OwnedFd,
    /// Slots to serve in this turn.
    pub scheduled: Vec<(u32, Slot)>,
    /// Makes many calls at once, if the kernel can.
    pub batch: Option<Batch>,
    /// The operations of such a call.
    pub batch_lists: BatchLists,
    /// Slots to serve in the next turn, whether an event comes or not.
    pub next_turn: Vec<(u32, Slot)>,
    /// Connections that their applications have reset in this turn. Their slots are freed after the next turn.
    pub resets: Vec<(ClientId, Slot, u32)>,
    /// Listeners that had no room for a connection that waits in the kernel.
    pub full_listeners: Vec<(u32, Slot)>,
    /// When to retry these listeners, µs.
    pub retry_listeners_at: Option<u64>,
    /// The byte rates of clients, and the connections that wait for them.
    pub rates: Rates,
    /// Commands left to the application's own kernel, by `not_ours` reason.
    pub not_ours: [u64; REASONS],
    /// The memory of connections whose clients have ended.
    pub orphans: Arc<Orphans>,
    /// Number of the newest client.
    pub last_id: u32,
    pub counts: Counts,
    /// Measures what the applications achieve.
    pub sampler: Sampler,
    /// When this turn began, µs.
    pub now_us: u64,
    /// Socket events, a buffer reused in each turn.
    pub events: Vec<(u64, epoll::EventFlags)>,
    /// The turn before had work, and took every event that the kernel had.
    pub drained: bool,
}

impl ClientGroup {
    /// Runs one turn. Returns how much work there was.
    pub fn serve(&mut self, now: u64) -> usize {
        self.now_us = now;
        let resets = std::mem::take(&mut self.resets);
        let mut work = resets.len() + self.service(now) + self.commands(now) + self.data_entries();
        // After a turn that took every event, the thread will go to sleep if nothing else comes. Sleeping asks the
        // kernel too, so this turn need not.
        let asks = !std::mem::take(&mut self.drained) || work > 0;
        if asks {
            self.poll(Some(0));
        }
        let all = asks && self.events.len() < EVENTS;
        work += self.sockets() + self.schedule_postponed();
        self.drained = all && work > 0;
        self.serve_scheduled();
        self.tell_of_resets(resets);
        work += self.due(now);
        for client in self.clients.iter_mut().flatten() {
            client.out.notify(&client.shared);
        }
        work
    }

    fn service(&mut self, now: u64) -> usize {
        let mut work = 0;
        while work < REQUESTS
            && let Ok(request) = self.requests.try_recv()
        {
            self.request(now, request);
            work += 1;
        }
        while let Ok(request) = self.moves.try_recv() {
            self.move_on(now, request);
            work += 1;
        }
        work
    }

    fn commands(&mut self, now: u64) -> usize {
        let mut work = 0;
        for index in 0..self.clients.len() as u32 {
            for _ in 0..PER_CLIENT {
                let Some(client) = self.client(index) else { break };
                let Some(slot) = client.shared.next_command(&mut client.command_head) else { break };
                work += 1;
                if let Some(slot) = slot {
                    self.command(now, index, slot);
                }
            }
        }
        work
    }

    fn data_entries(&mut self) -> usize {
        let mut work = 0;
        for index in 0..self.clients.len() as u32 {
            for _ in 0..PER_CLIENT {
                let Some(client) = self.client(index) else { break };
                let Some(slot) = client.shared.next_data(0, &mut client.own.data_head) else { break };
                work += 1;
                if let Some(slot) = slot {
                    self.schedule(index, slot);
                }
            }
        }
        self.counts.data_entries += work as u64;
        work
    }

    /// Serves the events that the kernel has reported.
    fn sockets(&mut self) -> usize {
        let events = std::mem::take(&mut self.events);
        self.counts.full += u64::from(events.len() == EVENTS);
        let mut work = 0;
        for (data, flags) in &events {
            // A doorbell event counts as work too: its entry may have arrived after this turn had emptied the queue.
            work += 1;
            if *data == A_DOORBELL {
                continue;
            }
            let (index, raw) = ((data >> 32) as u32 - 1, *data as u32);
            let Some((client, slot)) = self.find(index, raw) else { continue };
            let own = &mut client.slot(slot).own;
            let over = flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            own.readable |= over || flags.contains(epoll::EventFlags::IN);
            own.writable |= over || flags.contains(epoll::EventFlags::OUT);
            own.ending |= over;
            own.urgent_announced |= flags.contains(epoll::EventFlags::PRI);
            if flags.contains(epoll::EventFlags::ERR) {
                self.soft_errors(index, slot);
            }
            self.schedule(index, slot);
        }
        self.events = events;
        self.events.clear();
        work
    }

    /// Schedules the slots that had more to do than fits one turn.
    fn schedule_postponed(&mut self) -> usize {
        let again = std::mem::take(&mut self.next_turn);
        for (index, slot) in &again {
            if let Some(client) = self.client(*index) {
                client.slot(*slot).own.next_turn = false;
                self.schedule(*index, *slot);
            }
        }
        again.len()
    }

    /// Schedules a slot for the next turn.
    pub fn schedule_next_turn(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        if !std::mem::replace(&mut client.slot(slot).own.next_turn, true) {
            self.next_turn.push((index, slot));
        }
    }

    /// Serves a slot: whatever its phase has to do now.
    pub fn serve_slot(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        match client.slot(slot).phase {
            Phase::Open => self.serve_connection(index, slot),
            Phase::Listening => self.serve_listener(index, slot),
            Phase::Opening => self.serve_connecting(index, slot),
            Phase::Over => self.serve_ended(index, slot),
            Phase::Free | Phase::Child | Phase::Direct => {}
        }
    }

    /// The client at `index`.
    pub fn client(&mut self, index: u32) -> Option<&mut KernelClient> {
        self.clients.get_mut(index as usize)?.as_mut()
    }

    /// The client at `index` and one of its slots.
    pub fn find(&mut self, index: u32, raw: u32) -> Option<(&mut KernelClient, Slot)> {
        let client = self.client(index)?;
        let slot = client.shared.region.slot(raw)?;
        Some((client, slot))
    }

    /// The index of a client.
    pub fn index_of(&self, id: ClientId) -> Option<u32> {
        self.clients.iter().position(|c| c.as_ref().is_some_and(|c| c.shared.id == id)).map(|i| i as u32)
    }

    /// Adds a socket to the group's epoll instance, edge-triggered.
    pub fn watch_socket(&self, index: u32, slot: Slot, fd: &OwnedFd) -> io::Result<()> {
        let data = epoll::EventData::new_u64((u64::from(index) + 1) << 32 | u64::from(slot.raw()));
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::PRI
            | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, fd, data, flags)?)
    }

    /// Takes a client in.
    pub fn add_client(&mut self, setup: ClientSetup) -> io::Result<ClientId> {
        if setup.region.geometry().flow_groups != 1 || setup.doorbells.len() < 2 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let index = self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len());
        // A client's number says which group it belongs to.
        self.last_id += 1;
        let id = ClientId(self.last_id * self.groups as u32 + self.number as u32);
        let shared = Arc::new(ClientShared::new(id, index as u32, setup));
        for doorbell in &shared.doorbells {
            watch(&self.epoll, doorbell.as_fd(), true)?;
        }
        if self.clients.len() == index {
            self.clients.push(None);
        }
        self.clients[index] = Some(KernelClient::new(shared, 0, ClientState::default()));
        Ok(id)
    }

    /// The stack's own part of a slot.
    pub fn own(&mut self, index: u32, slot: Slot) -> Option<&mut KernelSocket> {
        Some(&mut self.client(index)?.slot(slot).own)
    }
}
