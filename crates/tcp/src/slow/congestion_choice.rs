//! The choice of a connection's algorithm: its own, else its listener's, else the default. The operator's policy for a
//! destination is passed as the connection's own choice.

use super::SlowPath;
use super::congestion::Algorithm;
use super::connections::Phase;
use super::host::Host;
use crate::flow::{FlowId, Owner};
use crate::time::Micros;

impl SlowPath {
    /// `TCP_CONGESTION`: sets a socket's algorithm. Children of a listener inherit it. An installed connection
    /// continues with its current window. False = `owner` has no socket here (yet).
    pub fn set_congestion(&mut self, now: Micros, owner: Owner, algorithm: Algorithm, _: &mut dyn Host) -> bool {
        if let Some(listener) = self.listeners.of(owner) {
            listener.congestion = Some(algorithm);
            return true;
        }
        let Some(id) = self.table.by_owner(owner) else { return false };
        let Some(connection) = self.table.get_mut(id) else { return false };
        connection.congestion = Some(algorithm);
        if let Phase::Installed(installed) = &mut connection.phase {
            let congestion = &mut installed.activity.congestion;
            let wanted = congestion.round_trip_us(&self.config).is_some();
            congestion.replace(algorithm);
            if !wanted {
                self.want_round_trips(now, id);
            }
        }
        true
    }

    /// `SO_MAX_PACING_RATE` in bytes per second, 0 = no limit. It takes effect at the installed flow's next decision.
    /// False = `owner` has no installed flow.
    pub fn set_max_pacing(&mut self, owner: Owner, bytes_per_s: u64) -> bool {
        let installed = self.table.by_owner(owner).and_then(|id| self.table.running(id));
        installed.map(|installed| installed.activity.congestion.set_max_pacing(bytes_per_s)).is_some()
    }

    /// The algorithm that a socket uses, or would use without a policy for its destination.
    pub fn congestion(&self, owner: Owner) -> Algorithm {
        let connection = self.table.by_owner(owner).and_then(|id| self.table.get(id));
        let choice = connection.and_then(|connection| match &connection.phase {
            Phase::Installed(installed) => Some(installed.activity.congestion.algorithm()),
            Phase::Opening(_) | Phase::Direct => connection.congestion,
        });
        choice.unwrap_or_else(|| self.inherited_congestion(Some(owner)))
    }

    /// The algorithm of a connection that is about to be installed.
    pub(super) fn choose_congestion(&mut self, id: FlowId) -> Algorithm {
        let Some(connection) = self.table.get(id) else { return self.config.congestion };
        let own = connection.congestion;
        let parent = match &connection.phase {
            Phase::Opening(opening) => opening.listener,
            Phase::Installed(_) | Phase::Direct => None,
        };
        own.unwrap_or_else(|| self.inherited_congestion(parent))
    }

    /// The algorithm of a connection without its own choice; `parent` is its listener, if any.
    pub(super) fn inherited_congestion(&self, parent: Option<Owner>) -> Algorithm {
        parent.and_then(|parent| self.listeners.congestion(parent)).unwrap_or(self.config.congestion)
    }
}
