//! Clients that move to another stack, with their connections, and clients that come from one. What a region shows is taken from there
//! ([`towpath_stack::resume`]); what only the kernel knows of a connection goes as a record.
//!
//! 1. [`ClientGroup::give`]: the clients' sockets are taken out of this kernel. Their addresses may be gone already, or not.
//! 2. [`ClientGroup::adopt`]: the other stack has the client. Its listeners listen again; packets of its connections are dropped.
//! 3. [`ClientGroup::put`]: the connections are put into the other kernel, which must have their addresses now.
//! 4. [`ClientGroup::open`]: packets are let in, and everybody is told to look.

use crate::asides::ClientFiles;
use crate::client::{KernelClient, OfSlot};
use crate::group::ClientGroup;
use crate::{repair, shield};
use rustix::event::epoll;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use towpath_record::Record;
use towpath_ring::Slot;
use towpath_ring::command::op;
use towpath_ring::lines::{app_flags, state, status};
use towpath_stack::resume::skip;
use towpath_stack::slots::Phase;
use towpath_stack::{ClientId, ClientSetup};

/// Times a listener is looked at for connections that the kernel has, before it is closed here.
const LOOKS: usize = 64;

/// A connection that moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its slot.
    pub slot: u32,
    /// The application has closed it; what is queued is still to be sent.
    pub closing: bool,
    /// Our FIN is to be sent again.
    pub fin: bool,
    /// What its kernel knew.
    pub record: Record,
}

/// What a stack gives up of a client.
#[derive(Debug, Default)]
pub struct Given {
    /// Its connections.
    pub moved: Vec<Moved>,
    /// How many connections could not be taken out: they are reset.
    pub lost: usize,
    /// What reserves ports: slot, number of its command.
    pub reservations: Vec<(u32, u32, OwnedFd)>,
    /// While these are open, this kernel answers no packet of the connections.
    pub shields: Vec<OwnedFd>,
}

/// What a group is asked for. A `Sender` carries the answer.
pub enum Move {
    /// See [`ClientGroup::give`].
    Give(ClientId, Sender<Given>),
    /// See [`ClientGroup::adopt`].
    Adopt(ClientSetup, Vec<(u32, SocketAddr)>, Sender<io::Result<ClientId>>),
    /// See [`ClientGroup::put`].
    Put(ClientId, Vec<Moved>, Sender<usize>),
    /// See [`ClientGroup::open`].
    Open(ClientId, Sender<()>),
}

impl ClientGroup {
    /// Serves one request about moving.
    pub fn move_on(&mut self, now: u64, request: Move) {
        match request {
            Move::Give(id, reply) => _ = reply.send(self.give(id)),
            Move::Adopt(setup, moved, reply) => _ = reply.send(self.adopt(setup, &moved)),
            Move::Put(id, moved, reply) => _ = reply.send(self.put(id, moved)),
            Move::Open(id, reply) => {
                self.open_up(now, id);
                drop(reply);
            }
        }
    }

    /// Gives a client up: this stack knows it no more, and its region is nobody's.
    fn give(&mut self, id: ClientId) -> Given {
        let mut given = Given::default();
        let Some(index) = self.index_of(id) else { return given };
        self.take_in(index);
        let Some(client) = self.client(index) else { return given };
        // Commands that have not been decided are as good as not seen.
        for waiting in std::mem::take(&mut client.own.waiting) {
            client.refuse(waiting.slot);
            client.line(waiting.slot).state.store(state::FREE, Ordering::Release);
        }
        for slot in used_for(client, Phase::Open) {
            match self.take_out(index, slot) {
                Ok((moved, socket, shield)) => {
                    given.shields.extend(shield);
                    given.moved.push(moved);
                    // Silently: it is under repair.
                    drop(socket);
                }
                Err(why) => {
                    tracing::warn!(slot = slot.raw(), %why, "a connection cannot move; it is reset");
                    given.lost += 1;
                    self.abort(index, slot, libc::ECONNRESET);
                }
            }
        }
        self.leave(index, &mut given);
        given
    }

    /// Takes in what peers have opened and nobody has accepted yet.
    fn take_in(&mut self, index: u32) {
        let Some(client) = self.client(index) else { return };
        for slot in used_for(client, Phase::Listening) {
            for _ in 0..LOOKS {
                let Some(client) = self.client(index) else { return };
                if client.slot(slot).phase != Phase::Listening || !client.slot(slot).own.readable {
                    break;
                }
                self.look(index, slot);
            }
        }
    }

    fn take_out(&mut self, index: u32, slot: Slot) -> Result<(Moved, OwnedFd, Option<OwnedFd>), repair::Stays> {
        let none = repair::Stays::State(7);
        let own = self.own(index, slot).ok_or(none)?;
        if !own.asides.is_plain() {
            return Err(repair::Stays::Aside);
        }
        let socket = own.fd.take().ok_or(none)?;
        let (closing, local) = (own.closing, own.local);
        // From here on nothing arrives any more that would have to be in the record.
        shield::drop_all(&socket);
        match repair::take_ending(socket.as_fd()) {
            Ok((record, repair::Ended { ours: fin, theirs })) => {
                if theirs && let Some(client) = self.client(index) {
                    // The next kernel will not hear of it.
                    let shown = &client.line(slot).status;
                    shown.store(shown.load(Ordering::Relaxed) | status::RX_EOF, Ordering::Release);
                }
                let shield = shield::raise(local).inspect_err(|errno| tracing::warn!(errno, "no shield at {local}"));
                Ok((Moved { slot: slot.raw(), closing, fin, record }, socket, shield.ok()))
            }
            Err(why) => {
                shield::drop_none(&socket);
                if let Some(own) = self.own(index, slot) {
                    own.fd = Some(socket);
                }
                Err(why)
            }
        }
    }

    /// Forgets a client whose connections are out.
    fn leave(&mut self, index: u32, given: &mut Given) {
        let Some(mut client) = self.clients.get_mut(index as usize).and_then(Option::take) else { return };
        client.out.ring(&client.shared);
        for doorbell in &client.shared.doorbells {
            let _ = epoll::delete(&self.epoll, doorbell.as_fd());
        }
        if let Some(under) = &client.under {
            under.fetch_sub(client.connections.into(), Ordering::Relaxed);
        }
        let slots: Vec<u32> = client.slots.iter().map(|(raw, _)| raw as u32).collect();
        let region = std::sync::Arc::clone(&client.shared.region);
        for slot in slots.into_iter().filter_map(|raw| region.slot(raw)) {
            let entry = client.slot(slot);
            let Some((socket, _)) = entry.socket.take() else { continue };
            // The reservation of a slot that is free has come before its command.
            let posted = region.command(slot).read().0;
            let ahead = entry.phase == Phase::Free && posted == entry.command_seq;
            let seq = if entry.phase == Phase::Free { posted.wrapping_add(ahead.into()) } else { entry.command_seq };
            given.reservations.push((slot.raw(), seq, socket));
        }
    }

    /// Takes a client over whose region another stack has served. Its connections are those of `moved` (slot and address here), which
    /// [`ClientGroup::put`] brings; others are reset.
    fn adopt(&mut self, setup: ClientSetup, moved: &[(u32, SocketAddr)]) -> io::Result<ClientId> {
        let id = self.add_client(setup)?;
        let (Some(index), shielded) = (self.index_of(id), !moved.is_empty()) else { return Ok(id) };
        let Some(client) = self.client(index) else { return Ok(id) };
        let region = std::sync::Arc::clone(&client.shared.region);
        client.own.files = ClientFiles::of_another_life();
        client.own.door_head = skip(region.doors(0), region.geometry().slots);
        for (slot, state) in client.resume() {
            let Some(client) = self.client(index) else { break };
            match state {
                state::LISTENING => self.listen_again(index, slot, shielded),
                state::ESTABLISHED if moved.iter().any(|(raw, _)| *raw == slot.raw()) => {
                    client.claim(slot, Phase::Open);
                    client.slot(slot).own = positions(client, slot);
                }
                state::CONNECTING => self.connect_again(index, slot),
                state::ESTABLISHED => {
                    client.claim(slot, Phase::Open);
                    client.over(slot, libc::ECONNRESET);
                }
                _ => client.claim(slot, Phase::Over),
            }
        }
        for local in moved.iter().map(|(_, local)| *local).collect::<BTreeSet<_>>() {
            match (shield::raise(local), self.client(index)) {
                (Ok(shield), Some(client)) => client.own.shields.push(shield),
                (Err(errno), _) => tracing::warn!(errno, "no shield at {local}"),
                (Ok(_), None) => {}
            }
        }
        Ok(id)
    }

    /// Listens where the stack before did, with the accept queue that it has left.
    fn listen_again(&mut self, index: u32, slot: Slot, shielded: bool) {
        let Some(client) = self.client(index) else { return };
        client.claim(slot, Phase::Listening);
        let command = client.shared.region.command(slot).read().1;
        client.resume_listener(slot, command.backlog.max(1));
        let result = match (command.op, u16::try_from(command.local_port)) {
            (op::LISTEN, Ok(1..)) => self.begin_to_listen(index, slot, &command, shielded),
            _ => Err(libc::EINVAL),
        };
        if let Err(errno) = result {
            tracing::warn!(errno, port = command.local_port, "a listener cannot be made again; it is closed");
            let Some(client) = self.client(index) else { return };
            let waiting = client.take_queue(slot);
            client.over(slot, libc::ECONNRESET);
            waiting.into_iter().for_each(|(child, generation)| self.close(index, child, generation, true));
        }
    }

    /// Begins a connect anew whose answer has not come.
    fn connect_again(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        client.claim(slot, Phase::Opening);
        let command = client.shared.region.command(slot).read().1;
        let result = if command.op == op::CONNECT { self.begin(index, slot, &command) } else { Err(libc::ECONNRESET) };
        if let Err(errno) = result
            && let Some(client) = self.client(index)
        {
            client.over(slot, errno);
        }
    }

    /// Puts connections into this kernel; how many it did not take, which are reset.
    fn put(&mut self, id: ClientId, moved: Vec<Moved>) -> usize {
        let Some(index) = self.index_of(id) else { return moved.len() };
        moved.into_iter().map(|moved| self.put_one(index, moved)).filter(|put| !put).count()
    }

    fn put_one(&mut self, index: u32, moved: Moved) -> bool {
        let Some((client, slot)) = self.find(index, moved.slot) else { return false };
        if client.slot(slot).phase != Phase::Open || client.slot(slot).own.fd.is_some() {
            return false;
        }
        let put = repair::put(&moved.record);
        let put = put.and_then(|fd| match self.attend(index, slot, &fd) {
            Ok(()) => Ok(fd),
            Err(_) => Err(repair::Stays::Call("epoll_ctl", rustix::io::Errno::NOBUFS)),
        });
        match put {
            Ok(fd) => {
                self.first_options(index, slot, &fd);
                let Some(own) = self.own(index, slot) else { return false };
                (own.local, own.remote) = (moved.record.local, moved.record.remote);
                (own.readable, own.writable, own.closing, own.fd) = (true, true, moved.closing, Some(fd));
                own.shut &= !moved.fin;
                true
            }
            Err(why) => {
                tracing::warn!(slot = moved.slot, %why, "a connection cannot be put into this kernel; it is reset");
                self.abort(index, slot, libc::ECONNRESET);
                false
            }
        }
    }

    /// Everything of a client that was adopted is there: packets are let in, and everybody is told to look.
    fn open_up(&mut self, now: u64, id: ClientId) {
        let Some(index) = self.index_of(id) else { return };
        let Some(client) = self.client(index) else { return };
        client.own.shields.clear();
        for slot in used_for(client, Phase::Listening) {
            if let Some(fd) = &client.slot(slot).own.fd {
                shield::drop_none(fd);
            }
        }
        client.tell_again();
        let region = std::sync::Arc::clone(&client.shared.region);
        for (slot, _) in client.used() {
            self.once_more(index, slot);
        }
        // What has been asked for and not decided.
        for slot in (0..region.geometry().app_slots).filter_map(|raw| region.slot(raw)) {
            let seq = region.command(slot).read().0;
            if seq != 0 && seq != region.stack(slot).command_done.load(Ordering::Relaxed) {
                self.command(now, index, slot);
            }
        }
    }
}

fn used_for(client: &KernelClient, phase: Phase) -> Vec<Slot> {
    client.used().into_iter().filter(|(_, of)| *of == phase).map(|(slot, _)| slot).collect()
}

/// How far both directions have come, as the stack before has shown it.
fn positions(client: &KernelClient, slot: Slot) -> OfSlot {
    let (line, words) = (client.line(slot), client.shared.app_words(slot));
    let sent = line.tx_head.load(Ordering::Relaxed);
    let got = line.rx_tail.load(Ordering::Relaxed);
    let bits = line.status.load(Ordering::Relaxed);
    OfSlot {
        sent,
        tx_tail: sent,
        got,
        // Who has not accepted it yet has not read anything.
        rx_head: words.map_or(0, |words| words.rx_head),
        status: bits,
        // Whatever is said of the FIN, it has gone out.
        shut: bits & status::TX_CLOSED != 0,
        urgent_sent: words.and_then(|words| words.urgent).filter(|urgent| sent.wrapping_sub(*urgent) as i32 >= 0),
        flags: words.map_or(0, |words| words.flags) & app_flags::URGENT,
        ..OfSlot::default()
    }
}
