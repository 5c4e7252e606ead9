//! Orphans: connections whose client has ended while bytes of theirs are still to be sent.
//!
//! They are bounded, because nobody is left who could be asked to stop. Each user has a share of the memory for them: as
//! much as is free, so one user has at most half. What finds no room is reset, as by Linux's `tcp_max_orphans`. A
//! client's orphans have two minutes, and the time that the longest queue takes at 16 KiB/s; then they are reset, too.
//! Linux has no such limit for a peer that goes on reading.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrphanLimits {
    /// Memory of all orphans of a stack, bytes.
    pub bytes: u64,
    /// How long a client's orphans have, beside the time for their bytes, µs.
    pub time_us: u64,
    /// The time for their bytes: they go at this rate at least, bytes per second.
    pub rate: u64,
}

impl Default for OrphanLimits {
    fn default() -> Self {
        Self { bytes: 256 << 20, time_us: 120_000_000, rate: 16 << 10 }
    }
}

/// The memory of a stack's orphans, by user.
#[derive(Debug, Default)]
pub struct Orphans {
    limits: OrphanLimits,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    by_user: HashMap<u32, u64>,
}

impl Orphans {
    /// None yet.
    pub fn new(limits: OrphanLimits) -> Arc<Self> {
        Arc::new(Self { limits, taken: Mutex::default() })
    }

    /// Takes memory for a user. False: he has his share.
    pub(crate) fn take(&self, uid: u32, bytes: u64) -> bool {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.by_user.get(&uid).copied().unwrap_or_default();
        let left = self.limits.bytes.saturating_sub(taken.all);
        if bytes > left || own + bytes > left - bytes {
            return false;
        }
        taken.all += bytes;
        taken.by_user.insert(uid, own + bytes);
        true
    }

    /// For how long a client has orphans whose longest queue has so many bytes, µs.
    pub(crate) fn time_us(&self, longest: u32) -> u64 {
        self.limits.time_us + u64::from(longest) * 1_000_000 / self.limits.rate.max(1)
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> (u64, usize) {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        (taken.all, taken.by_user.len())
    }

    fn give_back(&self, uid: u32, bytes: u64) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= bytes;
        if let Some(own) = taken.by_user.get_mut(&uid) {
            *own -= bytes;
            if *own == 0 {
                taken.by_user.remove(&uid);
            }
        }
    }
}

/// The orphans of one client. Their memory counts until this is dropped.
pub struct ClientOrphans {
    /// The memory of all.
    pub(crate) of: Arc<Orphans>,
    /// The user.
    pub(crate) uid: u32,
    /// What has been taken for them, bytes.
    pub(crate) bytes: u64,
    /// When their time is over, µs.
    pub(crate) until_us: u64,
}

impl Drop for ClientOrphans {
    fn drop(&mut self) {
        self.of.give_back(self.uid, self.bytes);
    }
}
