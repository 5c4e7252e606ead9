//! What the service asks a group for.

use crate::client::KernelClient;
use crate::figures::Figures;
use crate::group::{ClientGroup, Counts};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use towpath_ring::Slot;
use towpath_stack::requests::Request;
use towpath_stack::slots::Phase;
use towpath_stack::status::{CoreStatus, Tally};
use towpath_stack::{ClientId, Connection, Status};

impl ClientGroup {
    /// Serves one request.
    pub fn request(&mut self, now: u64, request: Request) {
        match request {
            Request::AddClient(setup, reply) => {
                let _ = reply.send(self.add_client(setup));
            }
            Request::Context(id, context, wake, done) => {
                if let Some(client) = self.index_of(id).and_then(|index| self.client(index)) {
                    client.out.set_context(context as usize, wake.map(Arc::new));
                }
                drop(done);
            }
            Request::Reserve(id, raw, seq, socket) => self.reserve(now, id, raw, seq, socket),
            Request::Hangup(id, raw, generation) => {
                let Some(index) = self.index_of(id) else { return };
                if let Some((_, slot)) = self.find(index, raw) {
                    self.close(index, slot, generation, false);
                }
            }
            Request::Departed(id, process) => self.departed(id, process),
            Request::RemoveClient(id) => self.remove_client(id),
            Request::File(id, file, reply) => {
                let _ = reply.send(self.add_file(id, file));
            }
            Request::ForgetFile(id, process, file, done) => {
                self.forget_file(id, process, file);
                drop(done);
            }
            Request::Policy(done) => {
                self.apply_policy();
                drop(done);
            }
            // Nobody is joined here: the kernel has a loopback of its own.
            Request::Pair(_, _, _, reply) => {
                let _ = reply.send(None);
            }
            Request::Connections(reply) => {
                let _ = reply.send(self.connections());
            }
            Request::Status(reply) => {
                let _ = reply.send(self.status());
            }
        }
    }

    fn reserve(&mut self, now: u64, id: ClientId, raw: u32, seq: u32, socket: OwnedFd) {
        let Some(index) = self.index_of(id) else { return };
        let Some(client) = self.client(index) else { return };
        let layout = client.shared.region.layout();
        // Only those have commands.
        match layout.slot(raw).filter(|slot| layout.is_app_slot(*slot)) {
            Some(slot) => {
                client.reserve(slot, seq, socket, now);
                self.go_on(index, slot);
            }
            None => client.shared.lied(),
        }
    }

    fn departed(&mut self, id: ClientId, process: u32) {
        let Some(index) = self.index_of(id) else { return };
        let Some(client) = self.client(index) else { return };
        client.own.files.departed(process);
        for (slot, generation) in client.bereave(process) {
            self.close(index, slot, generation, false);
        }
        let Some(client) = self.client(index) else { return };
        for (slot, _) in client.used().into_iter().filter(|(_, phase)| *phase == Phase::Listening) {
            client.offer_again(slot);
        }
    }

    /// No process of the client is left.
    fn remove_client(&mut self, id: ClientId) {
        let Some(index) = self.index_of(id) else { return };
        let Some(client) = self.client(index) else { return };
        client.leaving = true;
        let (open, used) = (client.out.open(), client.used());
        for context in (0..u64::BITS as usize).filter(|context| open >> context & 1 != 0) {
            client.out.set_context(context, None);
        }
        // Listeners first: what they have not handed out is aborted, not drained.
        for listeners in [true, false] {
            for (slot, _) in used.iter().filter(|(_, phase)| (*phase == Phase::Listening) == listeners) {
                let Some(client) = self.client(index) else { return };
                let generation = client.shared.generation(*slot);
                self.close(index, *slot, generation, false);
            }
        }
    }

    fn connections(&mut self) -> Vec<Connection> {
        let core = self.number;
        let mut found = Vec::new();
        for client in self.clients.iter_mut().flatten() {
            for (slot, _) in client.used() {
                if client.slot(slot).phase == Phase::Listening {
                    // An application that accepts rings no door for it.
                    let _ = client.sync_listener(slot);
                }
                found.extend(connection(client, slot, core));
            }
        }
        found
    }

    fn status(&self) -> Status {
        let clients = self.clients.iter().flatten();
        let flows = clients.clone().map(|client| u64::from(client.connections)).sum();
        let lies = clients.clone().map(|client| client.status().lies).sum();
        let c = &self.counts;
        let core = CoreStatus {
            tally: tally(c, lies),
            turns: c.account.turns,
            busy_us: c.account.busy_us,
            idle_us: c.account.idle_us,
            sleeps: c.account.sleeps,
            full: c.full,
            achieved: self.sampler.achieved(),
            flows,
            ports: Vec::new(),
        };
        Status {
            // The crew knows them.
            threads: Vec::new(),
            cores: vec![core],
            slow: Tally::default(),
            panics: c.panics,
            not_ours: self.not_ours,
            clients: clients.map(KernelClient::status).collect(),
        }
    }
}

fn tally(c: &Counts, lies: u64) -> Tally {
    let stages = vec![
        ("commands", c.commands),
        ("connects", c.connects),
        ("accepts", c.accepts),
        ("doors", c.doors),
        ("sends", c.sends),
        ("sent_bytes", c.sent_bytes),
        ("file_bytes", c.file_bytes),
        ("receives", c.receives),
        ("received_bytes", c.received_bytes),
        ("batches", c.batches),
    ];
    Tally { stages, opened: c.opened, failed: c.failed, resets: c.resets, lies, ..Tally::default() }
}

/// The states of `ss`, by Linux's numbers.
const STATES: [&str; 13] = [
    "UNCONN",
    "ESTAB",
    "SYN-SENT",
    "SYN-RECV",
    "FIN-WAIT-1",
    "FIN-WAIT-2",
    "TIME-WAIT",
    "UNCONN",
    "CLOSE-WAIT",
    "LAST-ACK",
    "LISTEN",
    "CLOSING",
    "SYN-RECV",
];

fn connection(client: &mut KernelClient, slot: Slot, core: usize) -> Option<Connection> {
    let shared = Arc::clone(&client.shared);
    let entry = client.slot(slot);
    let figures = entry.own.fd.as_ref().and_then(|fd| Figures::of(fd.as_fd()));
    let state = match entry.phase {
        Phase::Free | Phase::Child | Phase::Direct | Phase::Over => return None,
        Phase::Listening => "LISTEN",
        Phase::Opening => "SYN-SENT",
        Phase::Open => figures.as_ref().and_then(|f| STATES.get(f.state() as usize).copied()).unwrap_or("ESTAB"),
    };
    let (tx_queue, rx_queue) = match &entry.listener {
        Some(listener) => (listener.backlog, listener.waiting()),
        None => {
            let in_kernel = entry.own.fd.as_ref().and_then(|fd| crate::sys::ioctl_int(fd, libc::TIOCOUTQ));
            let queued = entry.own.tx_tail.wrapping_sub(entry.own.sent) + entry.own.asides.file_bytes();
            let unread = entry.own.got.wrapping_sub(entry.own.rx_head);
            (queued.saturating_add(in_kernel.unwrap_or(0).max(0) as u32), unread)
        }
    };
    Some(Connection {
        local: entry.own.local,
        remote: entry.own.remote,
        state,
        client: Some(shared.id),
        slot: slot.raw(),
        uid: shared.uid,
        pid: shared.pid,
        program: shared.name.clone(),
        tcp: figures.filter(|_| entry.phase == Phase::Open).map(|figures| figures.status()),
        tx_queue,
        rx_queue,
        core: Some(core),
        direct: false,
    })
}
