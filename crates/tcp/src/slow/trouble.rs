//! What is told of a connection in trouble before it ends (RFC 9293 §3.8.3 SHLD-9, §3.9.1.8 MUST-47).

use super::SlowPath;
use super::active::Activity;
use super::connections::{Live, Phase};
use super::errno::ETIMEDOUT;
use super::host::Host;
use crate::flow::{FlowId, Owner};

/// How long a connection's peer has not answered. All 0 = there is no trouble.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Retransmission time-outs since the last progress.
    pub timeouts: u32,
    /// Probes of a closed window, and keep-alives, since the last answer.
    pub probes: u32,
}

impl Live {
    /// How it is doing.
    pub(super) fn trouble(&self) -> Trouble {
        let probes = self.activity.unanswered_probes() + self.keepalive.probes();
        Trouble { timeouts: self.activity.timeouts(), probes }
    }
}

impl SlowPath {
    /// How a connection is doing; no trouble if it is not installed.
    pub fn trouble(&self, owner: Owner) -> Trouble {
        let connection = self.table.by_owner(owner).and_then(|id| self.table.get(id));
        match connection.map(|connection| &connection.phase) {
            Some(Phase::Live(live)) => live.trouble(),
            _ => Trouble::default(),
        }
    }

    /// Something is wrong with an installed flow's path that may pass. It is the errno at the end, if that comes of it (SHLD-25), and an
    /// application that has asked for it is told at once (MUST-47); one that has not is not disturbed (SHLD-20).
    pub(super) fn soft_error(&mut self, id: FlowId, errno: i32, host: &mut dyn Host) {
        if let Some(live) = self.table.running(id) {
            live.soft_error = errno;
            self.tell(id, errno, host);
        }
    }

    /// R1 has been reached: the application learns of it before R2 (RFC 9293 §3.8.3 SHLD-9), with what is known of the cause.
    pub(super) fn delivery_problem(&mut self, id: FlowId, host: &mut dyn Host) {
        if let Some(live) = self.table.running(id) {
            let errno = if live.soft_error == 0 { ETIMEDOUT } else { live.soft_error };
            self.tell(id, errno, host);
        }
    }

    fn tell(&mut self, id: FlowId, errno: i32, host: &mut dyn Host) {
        let Some(connection) = self.table.get(id) else { return };
        let Phase::Live(live) = &connection.phase else { return };
        let options = &live.options;
        let wanted = if connection.tuple.remote.is_ipv6() { options.soft_errors_v6 } else { options.soft_errors };
        if wanted && !live.orphan {
            host.soft_error(connection.owner, errno);
        }
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
