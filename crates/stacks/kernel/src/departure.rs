//! Clients that have ended: what they leave is given to the kernel or reset, and then they are forgotten.

use crate::group::ClientGroup;
use rustix::event::epoll;
use std::os::fd::AsFd;
use std::sync::Arc;
use towpath_runtime::ClientId;
use towpath_runtime::slots::Phase;

impl ClientGroup {
    /// The last process of a client has ended.
    pub fn remove_client(&mut self, now: u64, id: ClientId) {
        let Some(index) = self.index_of(id) else { return };
        let Some(client) = self.client(index) else { return };
        client.leaving = true;
        let (open, used) = (client.out.open(), client.used());
        for context in (0..u64::BITS as usize).filter(|context| open >> context & 1 != 0) {
            client.out.set_context(context, None);
        }
        // Listeners first: connections that they have not handed out are aborted, not drained.
        for listeners in [true, false] {
            for (slot, _) in used.iter().filter(|(_, phase)| (*phase == Phase::Listening) == listeners) {
                let Some(client) = self.client(index) else { return };
                let generation = client.shared.generation(*slot);
                self.close(index, *slot, generation, false);
            }
        }
        let orphans = Arc::clone(&self.orphans);
        let Some(client) = self.client(index) else { return };
        let resets = client.orphan(&orphans, now);
        for (slot, generation) in resets {
            self.close(index, slot, generation, true);
        }
    }

    /// When the time of the next orphans is over, µs.
    pub fn orphans_until(&self) -> Option<u64> {
        self.clients.iter().flatten().filter_map(|client| client.orphans_until()).min()
    }

    /// Resets orphans whose time is over, and forgets clients whose sockets are all closed.
    pub fn forget_clients(&mut self, now: u64) {
        for index in 0..self.clients.len() as u32 {
            let Some(client) = self.client(index).filter(|client| client.leaving) else { continue };
            for (slot, generation) in client.overdue(now) {
                self.close(index, slot, generation, true);
            }
            self.forget_if_drained(index);
        }
    }

    fn forget_if_drained(&mut self, index: u32) {
        let epoll = &self.epoll;
        let Some(entry) = self.clients.get_mut(index as usize) else { return };
        if let Some(client) = entry
            && client.in_use == 0
        {
            for doorbell in &client.shared.doorbells {
                let _ = epoll::delete(epoll, doorbell.as_fd());
            }
            *entry = None;
        }
    }
}
