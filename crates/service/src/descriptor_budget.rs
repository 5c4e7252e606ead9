//! Which user has how many descriptors of the service's table.
//!
//! A user may take more as long as he has no more than are free. So one user has at most half, two have a third each,
//! and some are always free for the next. The service's own user and root may take all but the service's reserve.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The service's own descriptors: at most this part of all, and at most this many.
const RESERVE: (u64, u64) = (8, 1024);

/// See the module.
#[derive(Debug)]
pub struct DescriptorBudget {
    most: u64,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    by_user: HashMap<u32, u64>,
}

impl DescriptorBudget {
    /// The budget under this limit on open files.
    pub fn new(limit: u64) -> Self {
        let reserve = (limit / RESERVE.0).min(RESERVE.1);
        Self { most: limit - reserve, taken: Mutex::default() }
    }

    /// Takes `count` descriptors for a user. False: he has his share.
    pub fn take(&self, uid: u32, operator: bool, count: u64) -> bool {
        let mut taken = self.taken();
        let own = taken.by_user.get(&uid).copied().unwrap_or_default();
        let left = self.most.saturating_sub(taken.all);
        if count > left || (!operator && own + count > left - count) {
            return false;
        }
        taken.all += count;
        taken.by_user.insert(uid, own + count);
        true
    }

    /// Every change is one step, so a thread that panicked with the lock has left it consistent.
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A user has closed `count` descriptors.
    pub fn give_back(&self, uid: u32, count: u64) {
        let mut taken = self.taken();
        let Some(own) = taken.by_user.get_mut(&uid) else { return };
        let count = count.min(*own);
        *own -= count;
        let none = *own == 0;
        taken.all -= count;
        if none {
            taken.by_user.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes one by one until it is refused.
    fn all(budget: &DescriptorBudget, uid: u32, operator: bool) -> usize {
        std::iter::from_fn(|| budget.take(uid, operator, 1).then_some(())).count()
    }

    #[test]
    fn one_user_leaves_as_many_as_he_takes_and_the_operator_finds_some() {
        let budget = DescriptorBudget::new(20_000);
        assert_eq!(all(&budget, 1000, false), 9488, "half of all but the reserve");
        assert_eq!(all(&budget, 1001, false), 4744);
        assert_eq!(all(&budget, 0, true), 4744, "all that are left");
        assert!(!budget.take(1002, false, 1));
        budget.give_back(1000, 9488);
        assert!(!budget.taken().by_user.contains_key(&1000));
        assert_eq!(all(&budget, 1002, false), 4744);
    }

    #[test]
    fn the_reserve_is_a_part_of_a_small_limit_and_a_number_of_a_large_one() {
        let most = |limit| DescriptorBudget::new(limit).most;
        assert_eq!([most(0), most(7), most(800), most(8192), most(100_000)], [0, 7, 700, 7168, 98_976]);
    }

    /// What all have, and what one user has; `None`: he is not known any more.
    fn taken(budget: &DescriptorBudget, uid: u32) -> (u64, Option<u64>) {
        let taken = budget.taken();
        (taken.all, taken.by_user.get(&uid).copied())
    }

    #[test]
    fn what_is_given_back_counts_once_and_for_who_had_it() {
        let budget = DescriptorBudget::new(128);
        assert!(budget.take(1000, false, 3) && budget.take(1001, false, 4) && budget.take(1000, false, 2));
        budget.give_back(1000, 1);
        assert_eq!(taken(&budget, 1000), (8, Some(4)));
        budget.give_back(1000, 99);
        budget.give_back(1002, 1);
        assert_eq!(taken(&budget, 1000), (4, None), "nobody gives back what he has not");
        budget.give_back(1001, 3);
        assert_eq!(taken(&budget, 1001), (1, Some(1)));
    }

    #[test]
    fn many_at_once_count_as_many() {
        let budget = DescriptorBudget::new(128);
        assert!(!budget.take(1000, false, 57), "112 but the reserve");
        assert!(budget.take(1000, false, 56));
        assert!(!budget.take(0, true, 57) && budget.take(0, true, 56));
    }
}
