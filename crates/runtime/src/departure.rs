//! A client has ended: its region is given up, and its connections become orphans.

use crate::orphans::{ClientOrphans, Orphans};
use crate::slots::{Phase, ServedClient};
use std::io::ErrorKind;
use std::sync::Arc;
use towpath_ring::Slot;
use towpath_ring::detach::Unsent;

/// How soon a reset is tried again of what is still there, µs.
const AGAIN_US: u64 = 1_000_000;

impl<C, S: Default> ServedClient<C, S> {
    /// No process of the client is left, and all its slots are closed. Its region is given up, but for what is still to
    /// be sent. Returns the slots that must be reset, with their generations.
    pub fn orphan(&mut self, orphans: &Arc<Orphans>, now_us: u64) -> Vec<(Slot, u32)> {
        let uid = self.shared.uid;
        let (mut kept, mut bytes, mut resets): (Vec<Unsent>, _, _) = (Vec::new(), 0, Vec::new());
        for (slot, _) in self.used().into_iter().filter(|(_, phase)| *phase == Phase::Open) {
            match self.shared.region.unsent(slot).filter(|unsent| orphans.take(uid, unsent.memory())) {
                Some(unsent) => {
                    bytes += unsent.memory();
                    kept.push(unsent);
                }
                None => resets.push((slot, self.shared.generation(slot))),
            }
        }
        if !resets.is_empty() {
            let (pid, count) = (self.shared.pid, resets.len());
            tracing::debug!(
                pid,
                uid,
                count,
                "connections of a program that has ended are reset: no room, or not ready"
            );
        }
        let longest = kept.iter().map(Unsent::len).max().unwrap_or_default();
        let until_us = now_us + orphans.time_us(longest);
        self.orphans = Some(ClientOrphans { of: Arc::clone(orphans), uid, bytes, until_us });
        match self.shared.region.detach(&kept) {
            Err(error) if error.kind() != ErrorKind::Unsupported => {
                tracing::warn!(%error, client = self.shared.id.0, "the region of a client that is gone stays as it is");
            }
            _ => {}
        }
        resets
    }

    /// When the time of its orphans is over, µs.
    pub fn orphans_until(&self) -> Option<u64> {
        self.orphans.as_ref().map(|orphans| orphans.until_us)
    }

    /// The slots that must be reset because their time is over, with their generations.
    pub fn overdue(&mut self, now_us: u64) -> Vec<(Slot, u32)> {
        let Some(orphans) = self.orphans.as_mut().filter(|orphans| orphans.until_us <= now_us) else {
            return Vec::new();
        };
        orphans.until_us = now_us + AGAIN_US;
        let (pid, count) = (self.shared.pid, self.in_use);
        tracing::debug!(pid, count, "connections of a program that has ended are reset: too slow");
        self.used().into_iter().map(|(slot, _)| (slot, self.shared.generation(slot))).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::client_setup::{ClientId, ClientSetup};
    use crate::clients::ClientShared;
    use crate::orphans::OrphanLimits;
    use std::sync::atomic::Ordering::Relaxed;
    use towpath_ring::{Geometry, Region};

    const RING: u32 = 16384;
    const LIMITS: OrphanLimits = OrphanLimits { bytes: 20 * (16384 + 4096), time_us: 1000, rate: 16384 };

    /// A client whose `open` connections have as many bytes unsent as fit.
    fn client(uid: u32, open: u32) -> ServedClient<(), ()> {
        let geometry = Geometry { slots: 16, app_slots: 16, tx_bytes: RING, rx_bytes: RING, ..Geometry::DEFAULT };
        let setup = ClientSetup { uid, ..ClientSetup::of_nobody(Region::create(geometry).unwrap().0, Vec::new()) };
        let mut client = ServedClient::new(Arc::new(ClientShared::new(ClientId(1), 0, setup)), 0, ());
        for raw in 0..open {
            let slot = client.shared.region.slot(raw).unwrap();
            client.take(slot, Phase::Open);
            client.show(slot, towpath_ring::lines::state::ESTABLISHED, 0);
            let line = client.shared.region.app(slot);
            line.generation.store(client.shared.generation(slot), Relaxed);
            line.tx_tail.store(RING, Relaxed);
        }
        client
    }

    #[test]
    fn what_the_dead_leave_is_bounded_in_bytes_for_each_user_and_counted_until_it_is_gone() {
        let orphans = Orphans::new(LIMITS);
        let (mut first, mut second, mut other) = (client(1000, 8), client(1000, 8), client(1001, 8));
        assert!(first.orphan(&orphans, 0).is_empty());
        // Ten of twenty: the user has no more than are free.
        assert_eq!(second.orphan(&orphans, 0).len(), 6);
        assert_eq!(other.orphan(&orphans, 0).len(), 3, "another user finds half of the rest");
        drop((first, second));
        assert_eq!(orphans.taken().1, 1);
        assert!(client(1000, 7).orphan(&orphans, 0).is_empty());
        drop(other);
        assert_eq!(orphans.taken(), (0, 0));
    }

    #[test]
    fn what_the_dead_leave_has_a_time_that_follows_from_the_longest_queue() {
        let orphans = Orphans::new(LIMITS);
        let mut client = client(1000, 2);
        assert_eq!(client.orphans_until(), None);
        client.orphan(&orphans, 500);
        assert_eq!(client.orphans_until(), Some(500 + 1000 + 1_000_000), "16 KiB take a second");
        assert!(client.overdue(1_001_499).is_empty());
        assert_eq!(client.overdue(1_001_500).len(), 2);
        assert!(client.overdue(1_001_501).is_empty(), "they have a moment to go");
        assert_eq!(client.overdue(2_001_500).len(), 2);
    }

    #[test]
    fn a_connection_whose_words_contradict_the_contract_is_reset() {
        let orphans = Orphans::new(LIMITS);
        let mut client = client(1000, 2);
        let slot = client.shared.region.slot(1).unwrap();
        client.shared.region.app(slot).tx_tail.store(RING + 1, Relaxed);
        let generation = client.shared.generation(slot);
        assert_eq!(client.orphan(&orphans, 0), [(slot, generation)]);
    }
}
