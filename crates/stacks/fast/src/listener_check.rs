//! Listeners that stay the kernel's end with their sockets. Nobody tells the stack that a socket is closed or has stopped
//! listening in another process, so the kernel is asked.

use crate::client;
use crate::owner::split;
use crate::slots::Phase;
use crate::slow::SlowState;
use towpath_tcp::flow::Owner;
use towpath_tcp::time::Micros;

/// How many listeners are asked for in one turn.
const BATCH: usize = 64;
/// For how long the kernel is asked in one turn, µs.
const TURN_US: u64 = 1000;

impl SlowState {
    /// Ends the listeners whose sockets listen no longer.
    pub fn check_listeners(&mut self, now: Micros) {
        let Some(from) = self.listener_check.due(now) else { return };
        let begun = client::now();
        let spent = || client::now().since(begun);
        if from == Owner(0) {
            self.host.count_refusals();
            self.host.end_old_rules(|| spent() < TURN_US);
        }
        let listeners = self.host.kernel_listeners.from(from).map(|(owner, proof)| (owner, *proof));
        let some: Vec<_> = listeners.take(BATCH + 1).collect();
        let mut asked = 0;
        for (owner, proof) in some.iter().take(BATCH) {
            if !self.host.network.is_listening(proof.cookie, proof.addr, proof.port) {
                self.end_stopped(now, *owner);
            } else {
                // A connection that waits is noticed although none follows.
                self.host.has_stalled(*owner);
            }
            asked += 1;
            if spent() >= TURN_US {
                break;
            }
        }
        self.listener_check.asked(client::now(), spent(), some.get(asked).map(|(owner, _)| *owner));
    }

    /// The socket of a listener listens no longer: as if its application had closed it. An application that still has
    /// the socket sees its end by the kernel's.
    fn end_stopped(&mut self, now: Micros, owner: Owner) {
        let index = split(owner).0;
        let Some((client, slot)) = self.host.find(owner) else { return self.host.leave_to_kernel(owner) };
        let generation = client.shared.generation(slot);
        if client.slot(slot).phase == Phase::Listening {
            tracing::debug!(client = client.shared.id.0, "a listener has ended: its socket listens no longer");
            self.close(now, index, slot, generation, false);
        }
    }
}
