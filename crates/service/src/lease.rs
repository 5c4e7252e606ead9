//! What a client costs of its user's shares: descriptors and a region. It counts until the stack has forgotten the
//! client, which may be a while after its last process has ended.

use crate::descriptor_budget::DescriptorBudget;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How many regions each user has.
#[derive(Debug, Default)]
pub struct RegionCounts(Mutex<HashMap<u32, u32>>);

impl RegionCounts {
    /// Takes one for a user. False: he has `most` already.
    fn take(&self, uid: u32, most: u32) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = counts.get(&uid).copied().unwrap_or_default();
        if own >= most {
            return false;
        }
        counts.insert(uid, own + 1);
        true
    }

    fn give_back(&self, uid: u32) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = counts.get_mut(&uid) {
            *own -= 1;
            if *own == 0 {
                counts.remove(&uid);
            }
        }
    }
}

/// The shares that clients cost.
#[derive(Clone, Debug)]
pub struct Shares {
    /// Descriptors of the service.
    pub descriptors: Arc<DescriptorBudget>,
    /// Regions.
    pub regions: Arc<RegionCounts>,
}

/// See the module. Its drop gives the shares back.
#[derive(Debug)]
pub struct ClientLease {
    of: Shares,
    uid: u32,
    operator: bool,
    descriptors: u64,
}

/// The share that a user has used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Descriptors.
    Descriptors,
    /// Regions, of programs that run and of those that have ended.
    Regions,
}

impl ClientLease {
    /// Takes the shares of one more client.
    pub fn take(of: &Shares, uid: u32, operator: bool, (descriptors, most): (u64, u32)) -> Result<Self, Full> {
        if !of.regions.take(uid, most) {
            return Err(Full::Regions);
        }
        if !of.descriptors.take(uid, operator, descriptors) {
            of.regions.give_back(uid);
            return Err(Full::Descriptors);
        }
        Ok(Self { of: of.clone(), uid, operator, descriptors })
    }
}

impl towpath_runtime::ClientLease for ClientLease {
    fn take_descriptor(&self) -> bool {
        self.of.descriptors.take(self.uid, self.operator, 1)
    }
    fn give_descriptor_back(&self) {
        self.of.descriptors.give_back(self.uid, 1);
    }
}

impl Drop for ClientLease {
    fn drop(&mut self) {
        self.of.descriptors.give_back(self.uid, self.descriptors);
        self.of.regions.give_back(self.uid);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_region_counts_until_its_lease_ends() {
        let shares = Shares { descriptors: Arc::new(DescriptorBudget::new(16)), regions: Arc::default() };
        let take = |uid, most| ClientLease::take(&shares, uid, false, (3, most));
        let first = take(1000, 1).unwrap();
        assert_eq!(take(1000, 1).unwrap_err(), Full::Regions);
        let second = take(1000, 2).unwrap();
        assert_eq!(take(1001, 2).map(drop), Ok(()), "another user has some of his own");
        assert_eq!(take(1000, 3).unwrap_err(), Full::Descriptors, "8 are his half");
        assert_eq!(take(1000, 2).unwrap_err(), Full::Regions, "what was refused takes nothing");
        drop((first, second));
        assert!(shares.regions.0.lock().unwrap().is_empty());
        assert!(take(1000, 1).is_ok());
    }
}
