//! Listeners that stay the kernel's end with their sockets. Nobody tells the stack that a socket is closed or has stopped
//! listening in another process, so the kernel is asked.

use crate::kernel_listeners::ListenerCheck;
use crate::owner::split;
use crate::slots::Phase;
use crate::slow::SlowThread;
use towpath_tcp::flow::Owner;
use towpath_tcp::time::Micros;

/// How often the kernel is asked for each listener, µs.
const ROUND_US: u64 = 1_000_000;
/// How many listeners are asked for in one turn.
const BATCH: usize = 64;

impl SlowThread {
    /// Ends the listeners whose sockets listen no longer.
    pub fn check_listeners(&mut self, now: Micros) {
        if now < self.listener_check.at {
            return;
        }
        if self.listener_check.from == 0 {
            self.listener_check.round_at = now.after(ROUND_US);
        }
        let from = Owner(self.listener_check.from);
        let asked: Vec<_> =
            self.host.kernel_listeners.from(from).map(|(owner, proof)| (owner, *proof)).take(BATCH).collect();
        let more = asked.len() == BATCH;
        let next = asked.last().map_or(0, |(owner, _)| owner.0 + 1);
        let ListenerCheck { at, round_at, from } = &mut self.listener_check;
        (*at, *from) = if more { (now, next) } else { (*round_at, 0) };
        for (owner, proof) in asked {
            if !self.host.network.is_listening(proof.cookie, proof.addr, proof.port) {
                self.end_stopped(now, owner);
            }
        }
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
