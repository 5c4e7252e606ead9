//! Which connection uses which algorithm: its own choice, else its listener's, else the default. What the operator's policy says of a
//! destination arrives as the connection's own choice.

use super::Algorithm;
use crate::flow::{FlowId, Owner};
use crate::slow::SlowPath;
use crate::slow::connections::Phase;
use crate::slow::host::Host;
use crate::time::Micros;

impl SlowPath {
    /// `TCP_CONGESTION`: this socket's algorithm from now on; children of a listener inherit it. A running connection goes on from
    /// its present window. False = `owner` has no socket here (yet).
    pub fn set_congestion(&mut self, now: Micros, owner: Owner, algorithm: Algorithm, _: &mut dyn Host) -> bool {
        if let Some(listener) = self.listeners.of(owner) {
            listener.congestion = Some(algorithm);
            return true;
        }
        let Some(id) = self.table.by_owner(owner) else { return false };
        let Some(connection) = self.table.get_mut(id) else { return false };
        connection.congestion = Some(algorithm);
        if let Phase::Live(live) = &mut connection.phase {
            let congestion = &mut live.activity.congestion;
            let wanted = congestion.round_trip_us(&self.config).is_some();
            congestion.replace(algorithm);
            if !wanted {
                self.want_round_trips(now, id);
            }
        }
        true
    }

    /// `SO_MAX_PACING_RATE` in bytes per second, 0 = no limit: holds for an installed flow from its next decision on. False = `owner`
    /// has none.
    pub fn set_max_pacing(&mut self, owner: Owner, bytes_per_s: u64) -> bool {
        let live = self.table.by_owner(owner).and_then(|id| self.table.running(id));
        live.map(|live| live.activity.congestion.set_max_pacing(bytes_per_s)).is_some()
    }

    /// A socket's algorithm: what it uses, or would use for a destination that is not known yet.
    pub fn congestion(&self, owner: Owner) -> Algorithm {
        let connection = self.table.by_owner(owner).and_then(|id| self.table.get(id));
        let choice = connection.and_then(|connection| match &connection.phase {
            Phase::Live(live) => Some(live.activity.congestion.algorithm()),
            Phase::Opening(_) | Phase::Direct => connection.congestion,
        });
        choice.unwrap_or_else(|| self.inherited_congestion(Some(owner)))
    }

    /// For a connection that is about to be installed.
    pub(in crate::slow) fn choose_congestion(&mut self, id: FlowId) -> Algorithm {
        let Some(connection) = self.table.get(id) else { return self.config.congestion };
        let own = connection.congestion;
        let parent = match &connection.phase {
            Phase::Opening(opening) => opening.listener,
            Phase::Live(_) | Phase::Direct => None,
        };
        own.unwrap_or_else(|| self.inherited_congestion(parent))
    }

    /// For a connection, of this listener if any, that has not chosen itself.
    pub(in crate::slow) fn inherited_congestion(&self, parent: Option<Owner>) -> Algorithm {
        parent.and_then(|parent| self.listeners.congestion(parent)).unwrap_or(self.config.congestion)
    }
}
