//! Clients that move to another stack with their connections, and clients that come from one. The region already holds
//! positions and states ([`towpath_runtime::resume`]). State that only the kernel has travels as a connection record.
//!
//! 1. `give`: the client's sockets are taken out of this kernel. Their addresses may be gone already.
//! 2. `adopt`: the other stack has the client. Its listeners are restored; packets of its connections are dropped.
//! 3. `put`: the connections are put into the other kernel, which must have their addresses now.
//! 4. `open`: packets are let in, and the client is woken.

use crate::client::{KernelClient, KernelSocket};
use crate::client_files::ClientFiles;
use crate::group::ClientGroup;
use crate::moved::{GivenClient, MoveRequest, MovedConnection};
use crate::{drop_filter, repair};
use rustix::event::epoll;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use towpath_ring::Slot;
use towpath_ring::command::op;
use towpath_ring::lines::{state, status};
use towpath_runtime::clients::AppMarks;
use towpath_runtime::resume::skip;
use towpath_runtime::slots::Phase;
use towpath_runtime::{ClientId, ClientSetup};

/// How often a listener is served to accept what waits in the kernel, before it is closed here.
const LOOKS: usize = 64;

impl ClientGroup {
    /// Serves a request about a client that moves.
    pub fn move_on(&mut self, now: u64, request: MoveRequest) {
        match request {
            MoveRequest::Give(id, reply) => _ = reply.send(self.give(id)),
            MoveRequest::Adopt(setup, moved, reply) => _ = reply.send(self.adopt(setup, &moved)),
            MoveRequest::Put(id, moved, reply) => _ = reply.send(self.put(id, moved)),
            MoveRequest::Open(id, reply) => {
                self.open_client(now, id);
                drop(reply);
            }
        }
    }

    /// Gives a client up. This stack forgets it, and no stack serves its region.
    fn give(&mut self, id: ClientId) -> GivenClient {
        let mut given = GivenClient::default();
        let Some(index) = self.index_of(id) else { return given };
        self.accept_pending(index);
        let Some(client) = self.client(index) else { return given };
        // Commands that have not been decided stay in the region for the next stack.
        for waiting in std::mem::take(&mut client.own.pending_commands) {
            client.refuse(waiting.slot);
            client.line(waiting.slot).state.store(state::FREE, Ordering::Release);
        }
        for slot in slots_in_phase(client, Phase::Open) {
            match self.take_out(index, slot) {
                Ok((moved, socket, drop_filter)) => {
                    given.drop_filters.extend(drop_filter);
                    given.moved.push(moved);
                    // Closing is silent, because the socket is under repair.
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

    /// Accepts connections that wait in the kernel.
    fn accept_pending(&mut self, index: u32) {
        let Some(client) = self.client(index) else { return };
        for slot in slots_in_phase(client, Phase::Listening) {
            for _ in 0..LOOKS {
                let Some(client) = self.client(index) else { return };
                if client.slot(slot).phase != Phase::Listening || !client.slot(slot).own.readable {
                    break;
                }
                self.serve_slot(index, slot);
            }
        }
    }

    fn take_out(
        &mut self,
        index: u32,
        slot: Slot,
    ) -> Result<(MovedConnection, OwnedFd, Option<OwnedFd>), repair::CannotMove> {
        let none = repair::CannotMove::State(7);
        let own = self.own(index, slot).ok_or(none)?;
        if !own.sideband.is_plain() {
            return Err(repair::CannotMove::Sideband);
        }
        let socket = own.fd.take().ok_or(none)?;
        let (closing, local) = (own.closing, own.local);
        // From here on no byte arrives that would be missing in the record.
        drop_filter::drop_all(&socket);
        match repair::take_ending(socket.as_fd()) {
            Ok((record, repair::EndedDirections { ours: fin, theirs })) => {
                if theirs && let Some(client) = self.client(index) {
                    // The next kernel will not learn of the peer's FIN.
                    let shown = &client.line(slot).status;
                    shown.store(shown.load(Ordering::Relaxed) | status::RX_EOF, Ordering::Release);
                }
                let drop_filter =
                    drop_filter::raise(local).inspect_err(|errno| tracing::warn!(errno, "no drop filter at {local}"));
                Ok((MovedConnection { slot: slot.raw(), closing, fin, record }, socket, drop_filter.ok()))
            }
            Err(why) => {
                drop_filter::drop_none(&socket);
                if let Some(own) = self.own(index, slot) {
                    own.fd = Some(socket);
                }
                Err(why)
            }
        }
    }

    /// Forgets a client whose connections are out.
    fn leave(&mut self, index: u32, given: &mut GivenClient) {
        let Some(mut client) = self.clients.get_mut(index as usize).and_then(Option::take) else { return };
        client.out.notify(&client.shared);
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
            let Some((reservation, _)) = entry.reservation.take() else { continue };
            // A reservation of a free slot has arrived before its command.
            let posted = region.command(slot).read().0;
            let ahead = entry.phase == Phase::Free && posted == entry.command_seq;
            let seq = if entry.phase == Phase::Free { posted.wrapping_add(ahead.into()) } else { entry.command_seq };
            given.reservations.push((slot.raw(), seq, reservation.held));
        }
    }

    /// Takes over a client whose region another stack has served. `moved` lists its connections, by slot and local
    /// address; others are reset.
    fn adopt(&mut self, setup: ClientSetup, moved: &[(u32, SocketAddr)]) -> io::Result<ClientId> {
        let id = self.add_client(setup)?;
        let (Some(index), filtered) = (self.index_of(id), !moved.is_empty()) else { return Ok(id) };
        let Some(client) = self.client(index) else { return Ok(id) };
        let region = std::sync::Arc::clone(&client.shared.region);
        client.own.files = ClientFiles::of_another_life();
        client.own.data_head = skip(region.data_queue(0), region.geometry().slots);
        for (slot, state) in client.resume() {
            let Some(client) = self.client(index) else { break };
            match state {
                state::LISTENING => self.restore_listener(index, slot, filtered),
                state::ESTABLISHED if moved.iter().any(|(raw, _)| *raw == slot.raw()) => {
                    client.claim(slot, Phase::Open);
                    client.slot(slot).own = positions(client, slot);
                }
                state::CONNECTING => self.restart_connect(index, slot),
                state::ESTABLISHED => {
                    client.claim(slot, Phase::Open);
                    client.over(slot, libc::ECONNRESET);
                }
                _ => client.claim(slot, Phase::Over),
            }
        }
        for local in moved.iter().map(|(_, local)| *local).collect::<BTreeSet<_>>() {
            match (drop_filter::raise(local), self.client(index)) {
                (Ok(drop_filter), Some(client)) => client.own.drop_filters.push(drop_filter),
                (Err(errno), _) => tracing::warn!(errno, "no drop filter at {local}"),
                (Ok(_), None) => {}
            }
        }
        Ok(id)
    }

    /// Restores a listener with the accept queue that the previous stack has left.
    fn restore_listener(&mut self, index: u32, slot: Slot, filtered: bool) {
        let Some(client) = self.client(index) else { return };
        client.claim(slot, Phase::Listening);
        let command = client.shared.region.command(slot).read().1;
        client.resume_listener(slot, command.backlog);
        let result = match (command.op, u16::try_from(command.local_port)) {
            (op::LISTEN, Ok(1..)) => self.start_listening(index, slot, &command, filtered),
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

    /// Starts a connect again whose answer has not come.
    fn restart_connect(&mut self, index: u32, slot: Slot) {
        let Some(client) = self.client(index) else { return };
        client.claim(slot, Phase::Opening);
        let command = client.shared.region.command(slot).read().1;
        let result =
            if command.op == op::CONNECT { self.start_connect(index, slot, &command) } else { Err(libc::ECONNRESET) };
        if let Err(errno) = result
            && let Some(client) = self.client(index)
        {
            client.over(slot, errno);
        }
    }

    /// Puts connections into this kernel. Returns how many it refused; these are reset.
    fn put(&mut self, id: ClientId, moved: Vec<MovedConnection>) -> usize {
        let Some(index) = self.index_of(id) else { return moved.len() };
        moved.into_iter().map(|moved| self.put_one(index, moved)).filter(|put| !put).count()
    }

    fn put_one(&mut self, index: u32, moved: MovedConnection) -> bool {
        let Some((client, slot)) = self.find(index, moved.slot) else { return false };
        if client.slot(slot).phase != Phase::Open || client.slot(slot).own.fd.is_some() {
            return false;
        }
        let put = repair::put(&moved.record);
        let put = put.and_then(|fd| match self.watch_socket(index, slot, &fd) {
            Ok(()) => Ok(fd),
            Err(_) => Err(repair::CannotMove::Call("epoll_ctl", rustix::io::Errno::NOBUFS)),
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

    /// An adopted client is complete: lets its packets in, and wakes it.
    fn open_client(&mut self, now: u64, id: ClientId) {
        let Some(index) = self.index_of(id) else { return };
        let Some(client) = self.client(index) else { return };
        client.own.drop_filters.clear();
        for slot in slots_in_phase(client, Phase::Listening) {
            if let Some(fd) = &client.slot(slot).own.fd {
                drop_filter::drop_none(fd);
            }
        }
        client.tell_again();
        let region = std::sync::Arc::clone(&client.shared.region);
        for (slot, _) in client.used() {
            self.schedule_next_turn(index, slot);
        }
        // Commands that have not been decided.
        for slot in (0..region.geometry().app_slots).filter_map(|raw| region.slot(raw)) {
            let seq = region.command(slot).read().0;
            if seq != 0 && seq != region.stack(slot).command_done.load(Ordering::Relaxed) {
                self.command(now, index, slot);
            }
        }
    }
}

fn slots_in_phase(client: &KernelClient, phase: Phase) -> Vec<Slot> {
    client.used().into_iter().filter(|(_, of)| *of == phase).map(|(slot, _)| slot).collect()
}

/// Positions of both directions, as the previous stack has published them.
fn positions(client: &KernelClient, slot: Slot) -> KernelSocket {
    let (line, words) = (client.line(slot), client.shared.app_words(slot));
    let sent = line.tx_head.load(Ordering::Relaxed);
    let got = line.rx_tail.load(Ordering::Relaxed);
    let marks = words.and_then(|words| words.marks).unwrap_or_default();
    let bits = line.status.load(Ordering::Relaxed);
    KernelSocket {
        sent,
        tx_tail: sent,
        got,
        // An application that has not accepted the connection has read nothing.
        rx_head: words.map_or(0, |words| words.rx_head),
        status: bits,
        // The FIN has been sent before; the connection record says whether it must be sent again.
        shut: bits & status::TX_CLOSED != 0,
        marks_done: AppMarks {
            urgent: marks.urgent.filter(|urgent| sent.wrapping_sub(*urgent) as i32 >= 0),
            ..AppMarks::default()
        },
        marked: marks != AppMarks::default(),
        ..KernelSocket::default()
    }
}
