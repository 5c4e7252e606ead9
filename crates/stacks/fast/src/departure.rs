//! Clients that have ended: what they leave is completed or reset, and then they are forgotten.

use crate::messages::ToGroup;
use crate::owner::owner;
use crate::slots::Phase;
use crate::slow::{LOOSE_US, SlowState};
use rustix::event::epoll;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use towpath_recorder::{self as recorder, Entry, Kind};
use towpath_ring::Slot;
use towpath_runtime::ClientId;
use towpath_tcp::slow::Ending;
use towpath_tcp::time::Micros;

impl SlowState {
    /// No process of the client is left.
    pub fn remove_client(&mut self, now: Micros, id: ClientId) {
        let Some(index) = self.index_of(id) else { return };
        let Some(client) = self.host.client(index) else { return };
        client.leaving = true;
        let (open, used) = (client.out.open(), client.used());
        let (done, _) = mpsc::channel();
        for context in (0..u64::BITS).filter(|context| open >> context & 1 != 0) {
            self.set_context(id, context, None, &done);
        }
        // Listeners are closed first: connections that were never accepted are aborted, not drained.
        for listeners in [true, false] {
            for (slot, _) in used.iter().filter(|(_, phase)| (*phase == Phase::Listening) == listeners) {
                let Some(client) = self.host.client(index) else { return };
                let generation = client.shared.generation(*slot);
                self.close(now, index, *slot, generation, false);
            }
        }
        self.host.vacate_pairs_of(index);
        let orphans = std::sync::Arc::clone(&self.orphans);
        let Some(client) = self.host.client(index) else { return };
        let resets = client.orphan(&orphans, now.0);
        for (slot, generation) in resets {
            self.reset(now, index, slot, generation, Ending::NotKept);
        }
    }

    /// Drops reservations for which no command came, resets orphans whose time is over, and forgets clients whose
    /// sockets are all drained.
    pub fn expire(&mut self, now: Micros) {
        self.host.expire_pairs(now);
        self.expire_waiting(now);
        for index in 0..self.host.clients.len() as u32 {
            let Some(client) = self.host.client(index) else { continue };
            client.expire_reservations(now.0, LOOSE_US);
            if !client.leaving {
                continue;
            }
            for (slot, generation) in client.overdue(now.0) {
                self.reset(now, index, slot, generation, Ending::Left);
            }
            self.forget_if_drained(index);
        }
    }

    /// Resets a connection that is closed already, for this reason.
    fn reset(&mut self, now: Micros, index: u32, slot: Slot, generation: u32, why: Ending) {
        let Some(client) = self.host.client(index) else { return };
        if client.slot(slot).phase == Phase::Open {
            self.slow.reset(owner(index, slot), why, &mut self.host);
        } else {
            self.close(now, index, slot, generation, true);
        }
    }

    fn forget_if_drained(&mut self, index: u32) {
        let flow_groups = &mut self.host.flow_groups;
        let Some(client) = self.host.clients.get_mut(index as usize).and_then(Option::as_mut) else { return };
        if client.in_use == 0 && client.own.forgetting.is_none() {
            client.own.forgetting = Some(flow_groups.len());
            for flow_group in flow_groups.iter_mut() {
                flow_group.to.send(ToGroup::DropClient(index));
            }
        }
    }

    /// A flow group has forgotten a client.
    pub fn forgotten(&mut self, index: u32) {
        let Some(client) = self.host.client(index) else { return };
        let left = client.own.forgetting.unwrap_or(1) - 1;
        client.own.forgetting = Some(left);
        if left == 0 {
            if let Some(doorbell) = client.shared.doorbells.get(self.flow_groups) {
                let _ = epoll::delete(&self.epoll, doorbell.as_fd());
            }
            let id = client.shared.id;
            let busy_ns = client.shared.busy_ns.load(Ordering::Relaxed);
            self.ended.add(client.shared.uid, &client.shared.name, busy_ns);
            self.host.clients[index as usize] = None;
            recorder::record(&Entry::new(Kind::ClientGone, index.into()));
            self.host.drop_pairs_of(id);
        }
    }
}
