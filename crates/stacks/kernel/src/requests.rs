//! Requests of the service to a group.

use crate::client::KernelClient;
use crate::group::{ClientGroup, Counts};
use crate::tcp_info::TcpInfo;
use std::os::fd::AsFd;
use std::sync::Arc;
use towpath_ring::Slot;
use towpath_runtime::requests::Request;
use towpath_runtime::reservation::Reservation;
use towpath_runtime::slots::Phase;
use towpath_runtime::status::{FlowGroupStatus, Tally};
use towpath_runtime::{ClientId, SocketStatus, Status};

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
            Request::Reserve(id, raw, seq, reservation) => self.reserve(now, id, raw, seq, reservation),
            Request::Hangup(id, raw, generation) => {
                let Some(index) = self.index_of(id) else { return };
                if let Some((_, slot)) = self.find(index, raw) {
                    self.close(index, slot, generation, false);
                }
            }
            Request::Departed(id, process) => self.departed(id, process),
            Request::RemoveClient(id, done) => {
                self.remove_client(now, id);
                drop(done);
            }
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
            // The service does not send it, because this stack asks the policy for each connection.
            Request::Refusals(done) => drop(done),
            // Clients are not joined directly here: the kernel has its own loopback.
            Request::Pair(_, _, _, reply) => {
                let _ = reply.send(None);
            }
            // The kernel's frames are taken from the kernel, in a thread of the service.
            Request::Capture(_, done) | Request::Modules(_, done) => drop(done),
            // The service does not send it: `ss -K` does that.
            Request::Cut(_, reply) => drop(reply),
            Request::Ended(reply) => drop(reply),
            Request::Connections(reply) => {
                let _ = reply.send(self.connections());
            }
            Request::Status(reply) => {
                let _ = reply.send(self.status());
            }
        }
    }

    fn reserve(&mut self, now: u64, id: ClientId, raw: u32, seq: u32, reservation: Reservation) {
        let Some(index) = self.index_of(id) else { return };
        let Some(client) = self.client(index) else { return };
        let layout = client.shared.region.layout();
        // Only these slots have commands.
        match layout.slot(raw).filter(|slot| layout.is_app_slot(*slot)) {
            Some(slot) => {
                client.reserve(slot, seq, reservation, now);
                self.resume_command(index, slot);
            }
            None => client.shared.violated_contract(),
        }
    }

    fn departed(&mut self, id: ClientId, process: u32) {
        let Some(index) = self.index_of(id) else { return };
        let Some(client) = self.client(index) else { return };
        client.own.files.departed(process);
        for (slot, generation) in client.process_exited(process) {
            self.close(index, slot, generation, false);
        }
        let Some(client) = self.client(index) else { return };
        for (slot, _) in client.used().into_iter().filter(|(_, phase)| *phase == Phase::Listening) {
            client.offer_again(slot);
        }
    }

    fn connections(&mut self) -> Vec<SocketStatus> {
        let core = self.number;
        let mut found = Vec::new();
        for client in self.clients.iter_mut().flatten() {
            for (slot, _) in client.used() {
                if client.slot(slot).phase == Phase::Listening {
                    // An application that accepts does not notify the stack.
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
        let contract_violations = clients.clone().map(|client| client.status().contract_violations).sum();
        let c = &self.counts;
        let core = FlowGroupStatus {
            tally: tally(c, contract_violations),
            turns: c.account.turns,
            busy_us: c.account.busy_us,
            idle_us: c.account.idle_us,
            sleeps: c.account.sleeps,
            full: c.full,
            achieved: self.sampler.achieved(),
            flows,
            requests: self.sampler.times().into(),
            ..FlowGroupStatus::default()
        };
        Status {
            // The worker pool reports them.
            workers: Vec::new(),
            flow_groups: vec![core],
            slow: Tally::default(),
            panics: c.panics,
            not_ours: self.not_ours,
            listeners: Default::default(),
            clients: clients.map(KernelClient::status).collect(),
            ended: Vec::new(),
        }
    }
}

fn tally(c: &Counts, contract_violations: u64) -> Tally {
    let stages = [
        ("commands", c.commands),
        ("connects", c.connects),
        ("accepts", c.accepts),
        ("doorbells", c.data_entries),
        ("sends", c.sends),
        ("sent_bytes", c.sent_bytes),
        ("file_bytes", c.file_bytes),
        ("receives", c.receives),
        ("received_bytes", c.received_bytes),
        ("batches", c.batches),
    ];
    let stages = stages.into_iter().collect();
    Tally { stages, opened: c.opened, failed: c.failed, resets: c.resets, contract_violations, ..Tally::default() }
}

/// States as `ss` prints them, by Linux's numbers.
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

fn connection(client: &mut KernelClient, slot: Slot, core: usize) -> Option<SocketStatus> {
    let shared = Arc::clone(&client.shared);
    let entry = client.slot(slot);
    let tcp_info = entry.own.fd.as_ref().and_then(|fd| TcpInfo::of(fd.as_fd()));
    let state = match entry.phase {
        Phase::Free | Phase::Child | Phase::Direct | Phase::Over => return None,
        Phase::Listening => "LISTEN",
        Phase::Opening => "SYN-SENT",
        Phase::Open => tcp_info.as_ref().and_then(|f| STATES.get(f.state() as usize).copied()).unwrap_or("ESTAB"),
    };
    let (send_q, recv_q) = match &entry.listener {
        Some(listener) => (listener.backlog, listener.waiting()),
        None => {
            let in_kernel = entry.own.fd.as_ref().and_then(|fd| crate::sys::ioctl_int(fd, libc::TIOCOUTQ));
            let queued = entry.own.tx_tail.wrapping_sub(entry.own.sent) + entry.own.sideband.file_bytes();
            let unread = entry.own.got.wrapping_sub(entry.own.rx_head);
            (queued.saturating_add(in_kernel.unwrap_or(0).max(0) as u32), unread)
        }
    };
    Some(SocketStatus {
        halves: None,
        local: entry.own.local,
        peer: entry.own.remote,
        state: state.into(),
        client: Some(shared.id),
        slot: slot.raw(),
        uid: shared.uid,
        pid: shared.pid,
        program: shared.name.clone(),
        tcp: tcp_info.filter(|_| entry.phase == Phase::Open).map(|tcp_info| tcp_info.status()),
        send_q,
        recv_q,
        flow_group: Some(core),
        direct: false,
    })
}
