//! Passive open: the answer to a peer's SYN (RFC 9293 §3.10.7.2).

use super::SlowPath;
use super::congestion::Algorithm;
use super::connections::ConnectionEntry;
use super::host::{Admission, Host, Route, Steered};
use super::isn::later_isn;
use super::opening::{OpeningState, Path};
use super::segments::Arrival;
use crate::counters::Drop;
use crate::flow::Owner;
use crate::seq::Seq;
use crate::time::Micros;

impl SlowPath {
    /// The listener of a first SYN.
    pub(super) fn listener_of_syn(&self, arrival: &Arrival, host: &mut dyn Host) -> Option<Owner> {
        if arrival.listener.is_some() || !host.finds_listeners(arrival.port) {
            return arrival.listener;
        }
        if host.names_listeners() {
            return host.listener_of(&arrival.tuple);
        }
        self.listeners.find_for(&arrival.tuple).map(|listener| listener.owner)
    }

    /// Answers a SYN for a listener, and adds the half-open connection. `old`: the next sequence number of the
    /// incarnation in TIME-WAIT that it replaces. False = dropped.
    pub(super) fn passive_open(
        &mut self,
        now: Micros,
        arrival: &Arrival,
        parent: Owner,
        old: Option<Seq>,
        host: &mut dyn Host,
    ) -> bool {
        let tuple = arrival.tuple;
        let Some(listener) = self.listeners.of(parent) else { return false };
        let (options, named) = (listener.options, arrival.listener.is_some());
        // A flood at several listeners of an application, none of which is full, must not take all that it has.
        let spared = self.config.syn_cookies && old.is_none() && host.spares_children(parent);
        let full = spared || listener.half_open.len() >= listener.limit;
        let Some(congestion) = self.admitted(now, parent, arrival, host) else { return false };
        // As in Linux, a SYN that nobody has room for gets no answer: its peer shall not believe to be connected.
        if host.accept_queue_full(parent) || full && (old.is_some() || !self.config.syn_cookies) {
            self.counters.drop(Drop::BacklogFull);
            return false;
        }
        // In a flood no routes are looked up for forged addresses. The cookie is sent back where the SYN came from. The
        // route is looked up when the peer answers the cookie.
        let path = match full {
            true => Path { link: arrival.way_back(), mtu: self.config.default_mtu_bytes },
            false => {
                let Some(path) = self.way_back(arrival, host) else { return false };
                path
            }
        };
        let secrets = self.secrets(host);
        let mut opening = self.new_opening(now, Some(parent), tuple.remote, host.ring_bytes(parent), options);
        if let Some(algorithm) = congestion {
            opening.dctcp = algorithm.needs_ecn();
            opening.ecn = self.config.ecn != 0 || opening.dctcp;
        }
        opening.ts_offset = secrets.timestamp_offset(&tuple);
        (opening.state, opening.path) = (OpeningState::SynReceived, Some(path));
        opening.hear_syn(&arrival.segment);
        if full {
            self.send_cookie(now, arrival, opening, host);
            return false;
        }
        let Some(owner) = self.table.has_room().then(|| host.new_child(parent)).flatten() else {
            self.counters.drop(Drop::NoMemory);
            return false;
        };
        opening.iss = later_isn(secrets.isn(now, &tuple), old);
        let connection = ConnectionEntry {
            bound: true,
            steered: old.is_some() || named,
            congestion,
            ..ConnectionEntry::opening(owner, tuple, opening, host.flow_group_for(&tuple, None))
        };
        let Some(id) = self.table.insert(connection) else {
            host.drop_child(owner);
            return false;
        };
        if let Some(listener) = self.listeners.of(parent) {
            listener.half_open.insert(id);
        }
        if named {
            // The peer may answer as soon as the SYN-ACK is on its way.
            host.steer(&tuple, Steered::ButFirstSyns);
        }
        self.send_syn(now, id, host);
        true
    }

    /// Asks the policy whether a peer may connect, and sends an RST if it says so. `Some` = it may. The inner value is
    /// its congestion control, if that is not the listener's.
    pub(super) fn admitted(
        &mut self,
        now: Micros,
        listener: Owner,
        arrival: &Arrival,
        host: &mut dyn Host,
    ) -> Option<Option<Algorithm>> {
        let admission = host.admit(listener, &arrival.tuple);
        if let Admission::Yes(congestion) = admission {
            return Some(Algorithm::from_id(congestion));
        }
        self.counters.drop(Drop::Forbidden);
        if admission == Admission::Refuse {
            self.refuse(now, arrival, host);
        }
        None
    }

    /// The path to the sender of a segment; `None` = there is none, and the segment is dropped.
    pub(super) fn way_back(&mut self, arrival: &Arrival, host: &mut dyn Host) -> Option<Path> {
        match host.route(arrival.tuple.remote, Some(arrival.tuple.local)) {
            Route::Via { link, mtu, .. } => Some(Path { link, mtu }),
            Route::Unreachable(_) => {
                self.counters.drop(Drop::NotLocal);
                None
            }
            // The reply needs no ARP, as it is sent back where the segment came from. `retry_routes` corrects the path
            // later.
            Route::Resolving | Route::NotOurs => {
                Some(Path { link: arrival.way_back(), mtu: self.config.default_mtu_bytes })
            }
        }
    }
}
