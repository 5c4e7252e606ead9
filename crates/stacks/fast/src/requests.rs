//! Requests of the service's threads to the slow thread.

use crate::client::SlowClient;
use crate::metrics::tally;
use crate::slots::Phase;
use crate::slow::SlowState;
use std::sync::atomic::Ordering;
use towpath_runtime::requests::Request;
use towpath_runtime::reservation::Reservation;
use towpath_runtime::{ClientId, Status};
use towpath_tcp::time::Micros;

impl SlowState {
    /// Serves one request.
    pub fn request(&mut self, now: Micros, request: Request) {
        match request {
            Request::AddClient(setup, reply) => {
                let _ = reply.send(self.add_client(setup));
            }
            Request::Context(id, context, wake, done) => self.set_context(id, context, wake, &done),
            Request::Reserve(id, raw, seq, reservation) => self.reserve(now, id, raw, seq, reservation),
            Request::Hangup(id, raw, generation) => self.hangup(now, id, raw, generation),
            Request::Departed(id, process) => self.departed(now, id, process),
            Request::RemoveClient(id, done) => {
                self.remove_client(now, id);
                drop(done);
            }
            // The service does not send these, because this stack takes no files.
            Request::File(_, _, reply) => drop(reply),
            Request::ForgetFile(_, _, _, done) => drop(done),
            Request::Policy(done) => {
                self.apply_policy();
                if self.host.gate.guard.drains() {
                    self.host.give_back_listeners();
                }
                self.judge_all_peers();
                drop(done);
            }
            Request::Refusals(done) => {
                self.host.count_refusals();
                drop(done);
            }
            Request::Pair(id, place, pair, reply) => {
                let index = self.index_of(id);
                let _ = reply.send(index.and_then(|index| self.host.pair_handle(index, place, pair)));
            }
            Request::Capture(taps, done) => self.capture(taps, &done),
            Request::Modules(modules, done) => self.modules(modules.as_ref(), &done),
            Request::Cut(ends, reply) => {
                let _ = reply.send(self.cut_all(ends.into_iter().collect()));
            }
            Request::Connections(reply) => {
                let _ = reply.send(self.connections());
            }
            Request::Ended(reply) => {
                let _ = reply.send(self.host.ended.list(now));
            }
            Request::Status(reply) => {
                self.host.count_refusals();
                let _ = reply.send(Status {
                    flow_groups: self.metrics.flow_groups(),
                    // The workers know them.
                    workers: Vec::new(),
                    slow: tally(self.slow.counters()),
                    panics: self.panics.load(Ordering::Relaxed),
                    not_ours: self.not_ours,
                    listeners: self.host.listener_counts(),
                    clients: self.host.clients.iter().flatten().map(SlowClient::status).collect(),
                    ended: self.ended.status(),
                });
            }
        }
    }

    fn reserve(&mut self, now: Micros, id: ClientId, raw: u32, seq: u32, reservation: Reservation) {
        let Some(index) = self.index_of(id) else { return };
        let Some(client) = self.host.client(index) else { return };
        let layout = client.shared.region.layout();
        // Only slots of the application have commands.
        match layout.slot(raw).filter(|slot| layout.is_app_slot(*slot)) {
            Some(slot) => {
                client.reserve(slot, seq, reservation, now.0);
                self.proof_arrived(now, index, slot);
            }
            None => client.shared.violated_contract(),
        }
    }

    fn hangup(&mut self, now: Micros, id: ClientId, raw: u32, generation: u32) {
        let Some(index) = self.index_of(id) else { return };
        if let Some(slot) = self.host.client(index).and_then(|c| c.shared.region.slot(raw)) {
            self.close(now, index, slot, generation, false);
        }
    }

    fn departed(&mut self, now: Micros, id: ClientId, process: u32) {
        self.listener_check.soon(now);
        let Some(index) = self.index_of(id) else { return };
        let Some(client) = self.host.client(index) else { return };
        for (slot, generation) in client.process_exited(process) {
            self.close(now, index, slot, generation, false);
        }
        let Some(client) = self.host.client(index) else { return };
        for (slot, _) in client.used().into_iter().filter(|(_, phase)| *phase == Phase::Listening) {
            client.offer_again(slot);
        }
    }
}
