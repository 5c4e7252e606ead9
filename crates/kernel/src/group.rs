//! A turn of a group of clients: whatever is there.

use crate::ahead::Lists;
use crate::batch::Batch;
use crate::client::{KernelClient, OfClient, OfSlot};
use crate::moving::Move;
use crate::rate::Rates;
use rustix::event::epoll;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc;
use towpath_ring::Slot;
use towpath_ring::command::not_ours::REASONS;
use towpath_stack::account::Account;
use towpath_stack::clients::ClientShared;
use towpath_stack::guard::Gate;
use towpath_stack::mailbox::Bell;
use towpath_stack::requests::Request;
use towpath_stack::sampler::Sampler;
use towpath_stack::slots::Phase;
use towpath_stack::thread::watch;
use towpath_stack::{ClientId, ClientSetup};

/// Doors and commands of one client in a turn, before the next has its turn.
const PER_CLIENT: usize = 64;
/// Requests of the service in one turn.
const REQUESTS: usize = 16;
/// Events of sockets in one turn.
pub const EVENTS: usize = 256;
/// What the events of bells carry: they say only that there is something in a queue.
const A_BELL: u64 = 0;

/// What is counted.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Commands decided.
    pub commands: u64,
    /// Connects begun.
    pub connects: u64,
    /// Connections accepted.
    pub accepts: u64,
    /// System calls that sent, and their bytes.
    pub sends: u64,
    /// See `sends`.
    pub sent_bytes: u64,
    /// Bytes of files that were sent without passing through a ring.
    pub file_bytes: u64,
    /// System calls that received, and their bytes.
    pub receives: u64,
    /// See `receives`.
    pub received_bytes: u64,
    /// System calls that made several of these at once.
    pub batches: u64,
    /// Doors of applications.
    pub doors: u64,
    /// Connections that were established.
    pub opened: u64,
    /// Connections that failed before that.
    pub failed: u64,
    /// Connections that ended with an error.
    pub resets: u64,
    /// Turns and times.
    pub account: Account,
    /// Turns that took as many events of sockets as a turn may.
    pub full: u64,
    /// Turns that ended by a panic.
    pub panics: u64,
}

/// The state of a group. One thread at a time serves it.
pub struct ClientGroup {
    /// Its number.
    pub number: usize,
    /// How many there are.
    pub groups: usize,
    /// Its clients.
    pub clients: Vec<Option<KernelClient>>,
    /// The operator's policy.
    pub gate: Gate,
    /// From the service.
    pub requests: mpsc::Receiver<Request>,
    /// From the service: clients that come and go with their connections.
    pub moves: mpsc::Receiver<Move>,
    /// Rung for requests.
    pub bell: Arc<Bell>,
    /// Watches the bell, the clients' doorbells and the sockets.
    pub epoll: OwnedFd,
    /// Slots to be looked at in this turn.
    pub noticed: Vec<(u32, Slot)>,
    /// For many calls at once, if the kernel has that.
    pub batch: Option<Batch>,
    /// See there.
    pub lists: Lists,
    /// Slots to be looked at in the next turn, whether something happens or not.
    pub again: Vec<(u32, Slot)>,
    /// Connections that were reset in this turn because their applications wish it; those are told so after the next.
    pub resets: Vec<(ClientId, Slot, u32)>,
    /// Listeners with connections that there was no room for, and when to look again, µs.
    pub crowded: Vec<(u32, Slot)>,
    /// See `crowded`.
    pub crowded_at: Option<u64>,
    /// What clients under a rate may send, and who waits for it.
    pub rates: Rates,
    /// Commands left to the kernel, by `not_ours` reason.
    pub not_ours: [u64; REASONS],
    /// The last client's number.
    pub last_id: u32,
    /// What is counted.
    pub counts: Counts,
    /// What its applications achieve.
    pub sampler: Sampler,
    /// When this turn began, µs.
    pub now_us: u64,
    /// Events of sockets, used anew in each turn.
    pub events: Vec<(u64, epoll::EventFlags)>,
    /// The turn before had something to do, and all that the kernel had to tell.
    pub told_all: bool,
}

impl ClientGroup {
    /// Everything that is there now; how much it was.
    pub fn serve(&mut self, now: u64) -> usize {
        self.now_us = now;
        let resets = std::mem::take(&mut self.resets);
        let mut work = resets.len() + self.service(now) + self.commands(now) + self.doors();
        // Right after such a turn, and with nothing else to do, the thread will sleep: that asks the kernel, too, so it is not asked twice.
        let asks = !std::mem::take(&mut self.told_all) || work > 0;
        if asks {
            self.poll(Some(0));
        }
        let all = asks && self.events.len() < EVENTS;
        work += self.sockets() + self.repeat();
        self.told_all = all && work > 0;
        self.look_at_all();
        self.tell_of_resets(resets);
        work += self.due(now);
        for client in self.clients.iter_mut().flatten() {
            client.out.ring(&client.shared);
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

    fn doors(&mut self) -> usize {
        let mut work = 0;
        for index in 0..self.clients.len() as u32 {
            for _ in 0..PER_CLIENT {
                let Some(client) = self.client(index) else { break };
                let Some(slot) = client.shared.next_door(0, &mut client.own.door_head) else { break };
                work += 1;
                if let Some(slot) = slot {
                    self.notice(index, slot);
                }
            }
        }
        self.counts.doors += work as u64;
        work
    }

    /// Does what the kernel has told of.
    fn sockets(&mut self) -> usize {
        let events = std::mem::take(&mut self.events);
        self.counts.full += u64::from(events.len() == EVENTS);
        let mut work = 0;
        for (data, flags) in &events {
            // A bell, too: what it was rung for may have come after it was looked for in this turn.
            work += 1;
            if *data == A_BELL {
                continue;
            }
            let (index, raw) = ((data >> 32) as u32 - 1, *data as u32);
            let Some((client, slot)) = self.find(index, raw) else { continue };
            let own = &mut client.slot(slot).own;
            let over = flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            own.readable |= over || flags.contains(epoll::EventFlags::IN);
            own.writable |= over || flags.contains(epoll::EventFlags::OUT);
            own.ending |= over;
            own.marked |= flags.contains(epoll::EventFlags::PRI);
            if flags.contains(epoll::EventFlags::ERR) {
                self.soft_errors(index, slot);
            }
            self.notice(index, slot);
        }
        self.events = events;
        self.events.clear();
        work
    }

    /// Those that had more to do than fits one turn.
    fn repeat(&mut self) -> usize {
        let again = std::mem::take(&mut self.again);
        for (index, slot) in &again {
            if let Some(client) = self.client(*index) {
                client.slot(*slot).own.again = false;
                self.notice(*index, *slot);
            }
        }
        again.len()
    }

    /// A slot is to be looked at in the next turn.
    pub fn once_more(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        if !std::mem::replace(&mut client.slot(slot).own.again, true) {
            self.again.push((index, slot));
        }
    }

    /// What is there to do for a slot?
    pub fn look(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        match client.slot(slot).phase {
            Phase::Open => self.look_at_connection(index, slot),
            Phase::Listening => self.look_at_listener(index, slot),
            Phase::Opening => self.look_at_opening(index, slot),
            Phase::Over => self.look_at_ended(index, slot),
            Phase::Free | Phase::Child | Phase::Direct => {}
        }
    }

    /// The client in place `index`.
    pub fn client(&mut self, index: u32) -> Option<&mut KernelClient> {
        self.clients.get_mut(index as usize)?.as_mut()
    }

    /// A client and a slot of it.
    pub fn find(&mut self, index: u32, raw: u32) -> Option<(&mut KernelClient, Slot)> {
        let client = self.client(index)?;
        let slot = client.shared.region.slot(raw)?;
        Some((client, slot))
    }

    /// Place of a client.
    pub fn index_of(&self, id: ClientId) -> Option<u32> {
        self.clients.iter().position(|c| c.as_ref().is_some_and(|c| c.shared.id == id)).map(|i| i as u32)
    }

    /// From now on the socket's events come to this group, each once.
    pub fn attend(&self, index: u32, slot: Slot, fd: &OwnedFd) -> io::Result<()> {
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
        if setup.region.geometry().cores != 1 || setup.doorbells.len() < 2 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let index = self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len());
        // The number says which group the client belongs to.
        self.last_id += 1;
        let id = ClientId(self.last_id * self.groups as u32 + self.number as u32);
        let shared = Arc::new(ClientShared::new(id, index as u32, setup));
        for doorbell in &shared.doorbells {
            watch(&self.epoll, doorbell.as_fd(), true)?;
        }
        if self.clients.len() == index {
            self.clients.push(None);
        }
        self.clients[index] = Some(KernelClient::new(shared, 0, OfClient::default()));
        Ok(id)
    }

    /// Forgets clients whose sockets are all closed.
    pub fn forget_clients(&mut self) {
        let epoll = &self.epoll;
        for place in &mut self.clients {
            if let Some(client) = place
                && client.leaving
                && client.in_use == 0
            {
                for doorbell in &client.shared.doorbells {
                    let _ = epoll::delete(epoll, doorbell.as_fd());
                }
                *place = None;
            }
        }
    }

    /// The stack's own part of a slot.
    pub fn own(&mut self, index: u32, slot: Slot) -> Option<&mut OfSlot> {
        Some(&mut self.client(index)?.slot(slot).own)
    }
}
