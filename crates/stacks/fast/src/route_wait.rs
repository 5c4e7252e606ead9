//! Connects whose next hop is being resolved. Where the host's rules judge first SYNs, the answer to the command waits a
//! moment for the hop. The kernel can have the socket as long as there is no answer.

use crate::slow::SlowState;
use std::net::IpAddr;
use towpath_ring::Slot;
use towpath_runtime::Verdict;
use towpath_tcp::slow::Route;
use towpath_tcp::time::Micros;

/// What has become of a command.
pub enum Outcome {
    /// It is carried out, or refused: the answer.
    Answer(i32),
    /// It waits for its route, and is looked at again.
    AwaitsRoute,
}

impl SlowState {
    /// The policy's verdict, if this command has waited.
    pub fn admitted_before(&self, index: u32, slot: Slot) -> Option<Verdict> {
        let client = self.host.clients.get(index as usize)?.as_ref()?.shared.id;
        self.route_waits.get(client, slot).map(|wait| Verdict::Allow(wait.congestion))
    }

    /// Shall this command wait for its route? If not, it waits no more.
    pub fn route_is_coming(
        &mut self,
        now: Micros,
        (index, slot): (u32, Slot),
        (remote, local): (IpAddr, IpAddr),
        congestion: u8,
    ) -> bool {
        let network = &mut self.host.network;
        let local = (!local.is_unspecified()).then_some(local);
        let resolving = network.judges_first_syns() && network.route(remote, local) == Route::Resolving;
        let Some(client) = self.host.client(index).map(|client| client.shared.id) else { return false };
        if resolving {
            return self.route_waits.wait(now, client, slot, congestion);
        }
        self.route_waits.remove(client, slot);
        false
    }

    /// The command is as if it had not been seen.
    pub fn await_route(&mut self, index: u32, slot: Slot, before: u32) {
        if let Some(client) = self.host.client(index) {
            client.slot(slot).command_seq = before;
        }
    }

    /// Carries out the commands that have waited long enough; all if routes have changed.
    pub fn look_at_routes(&mut self, now: Micros, changed: bool) {
        for (client, wait) in self.route_waits.due(now, changed) {
            if let Some(index) = self.index_of(client) {
                self.command(now, index, wait.slot);
            }
            // Its process may have ended, so that the command was answered without a look at its route.
            if wait.until <= now {
                self.route_waits.remove(client, wait.slot);
            }
        }
    }
}
