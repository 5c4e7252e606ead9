//! The entries to look at, in turn. Most often there is one, which stands outside of the queue.

use super::entry::Entry;
use std::collections::VecDeque;

/// No entry has this place.
const NONE: u32 = u32::MAX;

/// Places of entries.
pub struct Ready {
    /// The first one; [`NONE`]: there are none.
    first: u32,
    rest: VecDeque<u32>,
}

impl Ready {
    pub const fn new() -> Self {
        Self { first: NONE, rest: VecDeque::new() }
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        usize::from(self.first != NONE) + self.rest.len()
    }

    #[inline(always)]
    pub fn front(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Are there no more than the first?
    #[inline(always)]
    pub fn has_no_second(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline(always)]
    pub fn push_back(&mut self, at: u32) {
        if self.first == NONE {
            self.first = at;
        } else {
            self.rest.push_back(at);
        }
    }

    /// Is this place the first, or are there none?
    #[inline(always)]
    pub fn is_free_for(&self, at: u32) -> bool {
        self.first == at || self.first == NONE
    }

    /// Puts an entry and its place first, if there are none or it is first already. False: another one is.
    #[inline(always)]
    pub fn make_first(&mut self, at: u32, entry: &mut Entry) -> bool {
        if self.first != at {
            if self.first != NONE {
                return false;
            }
            entry.queued = true;
            self.first = at;
        }
        true
    }

    #[inline(always)]
    pub fn pop_front(&mut self) {
        self.first = self.rest.pop_front().unwrap_or(NONE);
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.front().into_iter().chain(self.rest.iter().copied())
    }
}

impl FromIterator<u32> for Ready {
    fn from_iter<T: IntoIterator<Item = u32>>(places: T) -> Self {
        let mut ready = Self::new();
        places.into_iter().for_each(|at| ready.push_back(at));
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_in_the_order_in_which_they_were_put() {
        let mut ready: Ready = (0..3).collect();
        assert_eq!((ready.len(), ready.front(), ready.has_no_second()), (3, Some(0), false));
        assert!(ready.iter().eq(0..3));
        ready.push_back(0);
        for at in [0, 1, 2, 0] {
            assert_eq!(ready.front(), Some(at));
            ready.pop_front();
        }
        assert_eq!((ready.len(), ready.front(), ready.has_no_second()), (0, None, true));
        ready.pop_front();
        ready.push_back(7);
        assert_eq!((ready.len(), ready.front(), ready.has_no_second()), (1, Some(7), true));
        let (mut one, mut other) = (Entry::default(), Entry::default());
        assert!(ready.is_free_for(7) && ready.make_first(7, &mut one) && !one.queued, "as it was");
        assert!(!ready.is_free_for(8) && !ready.make_first(8, &mut other));
        ready.pop_front();
        assert!(ready.is_free_for(8) && ready.make_first(8, &mut other) && other.queued);
        assert_eq!((ready.len(), ready.front()), (1, Some(8)));
    }
}
