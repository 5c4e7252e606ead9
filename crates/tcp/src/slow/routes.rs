//! Changes of routes and neighbours: pending connects go on, installed flows follow.

use super::SlowPath;
use super::connections::Phase;
use super::host::{Host, Route};
use super::opening::OpeningState;
use crate::flow::FlowId;
use crate::messages::ToFast;
use crate::time::Micros;

/// Most connections whose route is looked up again in one `poll` after routes have changed.
const REROUTES_PER_POLL: u32 = 1024;

impl SlowPath {
    /// Routes or neighbours have changed. Pending connects try again now, installed flows are updated in the next
    /// polls.
    pub fn retry_routes(&mut self, now: Micros, host: &mut dyn Host) {
        let resolving =
            |phase: &Phase| matches!(phase, Phase::Opening(opening) if opening.state == OpeningState::Resolving);
        let waiting: Vec<FlowId> = self.table.iter().filter(|(_, c)| resolving(&c.phase)).map(|(id, _)| id).collect();
        for id in waiting {
            self.retry_route(now, id, host);
        }
        self.reroute = Some(0);
    }

    /// Looks up the routes of some installed flows again.
    pub(super) fn reroute_some(&mut self, host: &mut dyn Host) {
        let Some(first) = self.reroute else { return };
        let end = first.saturating_add(REROUTES_PER_POLL).min(self.table.high_water());
        for id in (first..end).map(FlowId) {
            self.ask_route(id, host);
        }
        self.reroute = (end < self.table.high_water()).then_some(end);
    }

    /// Looks up the route of an installed flow again and updates the flow. Its addresses stay (RFC 9293 §3.9.1.1
    /// MUST-45).
    pub(super) fn ask_route(&mut self, id: FlowId, host: &mut dyn Host) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let Phase::Installed(installed) = &mut connection.phase else { return };
        let tuple = connection.tuple;
        if let Route::Via { link, mtu, .. } = host.route(tuple.remote, Some(tuple.local))
            && !installed.removing
        {
            let narrower = mtu < std::mem::replace(&mut installed.mtu, mtu);
            if link != installed.link {
                installed.link = link;
                if installed.is_spliced() {
                    return self.relink_splice(id, &link, narrower, host);
                }
                host.send(connection.flow_group, ToFast::Relink(id, link));
            }
            let payload = mtu.saturating_sub(installed.path.overhead()).clamp(1, installed.peer_payload.max(1));
            if let Some(mss) = installed.path.reroute(payload) {
                host.send(connection.flow_group, ToFast::SetMss(id, mss));
            }
        }
    }
}
