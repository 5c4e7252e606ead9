//! Read-only views of listeners and connections, for `ss`-like lists and `TCP_INFO`.

use super::SlowPath;
use super::active_flows::Activity;
use super::active_open::unspecified;
use super::connections::{Installed, Phase};
use super::opening::OpeningState;
use super::send_stats::SendStats;
use super::tcp_state::TcpState;
use crate::counters::Counters;
use crate::flow::{FlowId, FlowSnapshot, FourTuple, Owner};
use crate::time::Micros;

/// One line of [`SlowPath::connections`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Its state. That of an installed flow is as of the slow path's last check; [`TcpState::of_flags`] of a snapshot
    /// is newer.
    pub state: TcpState,
    /// Its owner; none in TIME-WAIT.
    pub owner: Option<Owner>,
    /// Its addresses. A listener's remote end is 0, and so are parts that a connect has not chosen yet.
    pub tuple: FourTuple,
    /// Its number, if it is installed.
    pub flow: Option<FlowId>,
    /// Time-outs and probes that the peer has not answered.
    pub unanswered: Unanswered,
}

/// Time-outs and probes that a connection's peer has not answered. All 0 = it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unanswered {
    /// Retransmission time-outs since the last progress.
    pub timeouts: u32,
    /// Probes of a closed window, and keep-alives, since the last answer.
    pub probes: u32,
}

impl Installed {
    /// How it is doing.
    pub(super) fn unanswered(&self) -> Unanswered {
        let probes = self.activity.unanswered_probes() + self.keepalive.probes();
        Unanswered { timeouts: self.activity.timeouts(), probes }
    }
}

impl Activity {
    /// Time-outs since the last progress; of a flow that is not watched there are none.
    fn timeouts(&self) -> u32 {
        if self.is_listed() { self.retransmit.timeouts() } else { 0 }
    }
    fn unanswered_probes(&self) -> u32 {
        if self.is_listed() { self.persist.unanswered() } else { 0 }
    }
}

impl SlowPath {
    /// The counters so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The number of active flows, and of tuples in TIME-WAIT.
    pub fn sizes(&self) -> (usize, usize) {
        (self.active.len(), self.time_wait.len())
    }

    /// All listeners, connections in all states, and tuples in TIME-WAIT.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        let nowhere = |local: std::net::IpAddr, local_port| FourTuple {
            local,
            local_port,
            remote: unspecified(local),
            remote_port: 0,
        };
        let listeners = self.listeners.iter().map(|(addr, port, listener)| ConnectionInfo {
            state: TcpState::Listen,
            owner: Some(listener.owner),
            tuple: nowhere(addr, port),
            flow: None,
            unanswered: Unanswered::default(),
        });
        let connections = self.table.iter().map(|(id, connection)| ConnectionInfo {
            state: match &connection.phase {
                Phase::Opening(opening) if opening.state == OpeningState::SynReceived => TcpState::SynReceived,
                Phase::Opening(_) => TcpState::SynSent,
                Phase::Installed(installed) if installed.removing => TcpState::Closed,
                Phase::Installed(installed) => TcpState::of_flags(installed.flags),
                Phase::Direct => TcpState::Established,
            },
            owner: Some(connection.owner),
            tuple: connection.tuple,
            flow: matches!(connection.phase, Phase::Installed(_)).then_some(id),
            unanswered: match &connection.phase {
                Phase::Installed(installed) => installed.unanswered(),
                Phase::Opening(opening) => Unanswered { timeouts: opening.timeouts, probes: 0 },
                Phase::Direct => Unanswered::default(),
            },
        });
        let unanswered = Unanswered::default();
        let waiting = |tuple| ConnectionInfo { state: TcpState::TimeWait, owner: None, tuple, flow: None, unanswered };
        listeners.chain(connections).chain(self.time_wait.iter().map(waiting)).collect()
    }

    /// The addresses of an owner's connection, as far as they are chosen.
    pub fn tuple_of(&self, owner: Owner) -> Option<FourTuple> {
        let connection = self.table.by_owner(owner).and_then(|id| self.table.get(id));
        connection.map(|connection| connection.tuple)
    }

    /// How a connection is doing; no unanswered if it is not installed.
    pub fn unanswered(&self, owner: Owner) -> Unanswered {
        let connection = self.table.by_owner(owner).and_then(|id| self.table.get(id));
        match connection.map(|connection| &connection.phase) {
            Some(Phase::Installed(installed)) => installed.unanswered(),
            _ => Unanswered::default(),
        }
    }

    /// Statistics of an owner's connection, whose snapshot this is; zeros if it is not installed.
    pub fn send_stats(&mut self, now: Micros, owner: Owner, snapshot: &FlowSnapshot) -> SendStats {
        let Some(id) = self.table.by_owner(owner) else { return SendStats::default() };
        let Some(installed) = self.table.running(id) else { return SendStats::default() };
        installed.activity.meter.hear(now, snapshot);
        installed.keepalive.hear(now, snapshot.segments_heard);
        installed.activity.meter.read(now, installed.keepalive.heard_at())
    }
}
