//! Segments that came ahead of a hole: ranges per flow, in a side table that only flows with a hole use.
//!
//! The bytes are in the receive ring already. Only their ranges are kept here.

use crate::seq::Seq;

/// Separate ranges kept per flow. When slow start overflows a queue, every other segment is lost for a round trip: 128
/// holes are a window of 370 KB. An entry is about 1,600 bytes.
pub(super) const RANGES: usize = 128;

/// The ranges of one flow: sorted, disjoint, not touching.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranges {
    ranges: [(Seq, Seq); RANGES],
    /// When each range changed last, as a count of changes.
    changed: [u32; RANGES],
    len: usize,
    changes: u32,
    /// Sequence number of a FIN that came ahead of a hole.
    fin: Option<Seq>,
}

/// The result of [`Ranges::insert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inserted {
    /// Some of it is new.
    New,
    /// All of it was there.
    Nothing,
    /// There is no room for one more range.
    Full,
}

impl Default for Ranges {
    fn default() -> Self {
        let ranges = [(Seq::default(), Seq::default()); RANGES];
        Self { ranges, changed: [0; RANGES], len: 0, changes: 0, fin: None }
    }
}

impl Ranges {
    /// Remembers `start..end`.
    pub fn insert(&mut self, start: Seq, end: Seq) -> Inserted {
        self.changes = self.changes.wrapping_add(1);
        let ranges = &mut self.ranges[..self.len];
        // Ranges from `first` on end at or after our start. Ranges before `last` start at or before our end. So all of
        // `first..last` overlap or touch the new range, and are joined with it.
        let first = ranges.iter().position(|r| !r.1.before(start)).unwrap_or(self.len);
        let last = ranges.iter().position(|r| r.0.after(end)).unwrap_or(self.len);
        if first == last {
            if self.len == RANGES {
                return Inserted::Full;
            }
            self.ranges.copy_within(first..self.len, first + 1);
            self.changed.copy_within(first..self.len, first + 1);
            self.ranges[first] = (start, end);
            self.changed[first] = self.changes;
            self.len += 1;
            return Inserted::New;
        }
        self.changed[first] = self.changes;
        let (low, high) = (ranges[first].0, ranges[last - 1].1);
        if last == first + 1 && !start.before(low) && !end.after(high) {
            return Inserted::Nothing;
        }
        ranges[first] = (if start.before(low) { start } else { low }, high.max(end));
        self.ranges.copy_within(last..self.len, first + 1);
        self.changed.copy_within(last..self.len, first + 1);
        self.len -= last - first - 1;
        Inserted::New
    }

    /// The first part of `start..end` that is there.
    pub fn overlap(&self, start: Seq, end: Seq) -> Option<(Seq, Seq)> {
        let range = self.ranges[..self.len].iter().find(|range| range.1.after(start))?;
        let (low, high) = (range.0.max(start), if range.1.after(end) { end } else { range.1 });
        low.before(high).then_some((low, high))
    }

    /// Remembers a FIN at `seq`. Later ones are ignored.
    pub fn insert_fin(&mut self, seq: Seq) {
        self.fin.get_or_insert(seq);
    }

    /// How far data reach without a hole if everything before `next` is there. Ranges up to that are forgotten.
    pub fn advance(&mut self, next: Seq) -> Seq {
        let mut next = next;
        let mut used = 0;
        for range in &self.ranges[..self.len] {
            if range.0.after(next) {
                break;
            }
            next = next.max(range.1);
            used += 1;
        }
        if used != 0 {
            self.ranges.copy_within(used..self.len, 0);
            self.changed.copy_within(used..self.len, 0);
        }
        self.len -= used;
        next
    }

    /// The range with the FIN's number if that follows it (as Linux): a FIN that is not reported is sent again.
    pub fn with_fin(&self, (start, end): (Seq, Seq)) -> (Seq, Seq) {
        (start, end.add(u32::from(self.fin_at(end))))
    }

    /// True if a FIN is at `seq`.
    pub fn fin_at(&self, seq: Seq) -> bool {
        self.fin == Some(seq)
    }

    /// Nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len == 0 && self.fin.is_none()
    }

    /// The range that `seq` lies in.
    pub fn around(&self, seq: Seq) -> Option<(Seq, Seq)> {
        self.ranges[..self.len].iter().copied().find(|r| !seq.before(r.0) && seq.before(r.1))
    }

    /// The ranges, the most recently changed first.
    pub fn recent(&self) -> impl Iterator<Item = (Seq, Seq)> + Clone {
        let mut least = 0;
        std::iter::from_fn(move || {
            let age = |i: &usize| self.changes.wrapping_sub(self.changed[*i]);
            let next = (0..self.len).filter(|i| age(i) >= least).min_by_key(age)?;
            // No two have changed at the same time.
            least = age(&next) + 1;
            Some(self.ranges[next])
        })
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The ranges, lowest first.
    #[cfg(test)]
    pub fn as_slice(&self) -> &[(Seq, Seq)] {
        &self.ranges[..self.len]
    }
}

/// All flows of a fast path that have a hole. Entry numbers are one-based, to fit `Ahead::out_of_order`.
#[derive(Debug, Default)]
pub(super) struct OutOfOrder {
    entries: Vec<Ranges>,
    free: Vec<u16>,
}

impl OutOfOrder {
    /// An empty entry, or `None` if 65,535 flows have one.
    pub fn take(&mut self) -> Option<u16> {
        if let Some(entry) = self.free.pop() {
            return Some(entry);
        }
        let entry = u16::try_from(self.entries.len() + 1).ok()?;
        self.entries.push(Ranges::default());
        Some(entry)
    }

    /// The entry's ranges.
    pub fn get(&mut self, entry: u16) -> Option<&mut Ranges> {
        self.entries.get_mut(usize::from(entry).checked_sub(1)?)
    }

    /// The entry's ranges, to read.
    pub fn peek(&self, entry: u16) -> Option<&Ranges> {
        self.entries.get(usize::from(entry).checked_sub(1)?)
    }

    /// Gives an entry back; 0 is none.
    pub fn release(&mut self, entry: u16) {
        if let Some(ranges) = self.get(entry) {
            *ranges = Ranges::default();
            self.free.push(entry);
        }
    }

    /// Entries in use.
    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn joins_and_fills() {
        let mut r = Ranges::default();
        let base = Seq(u32::MAX - 25);
        let at = |n: u32| base.add(n);
        assert_eq!(r.insert(at(10), at(20)), Inserted::New);
        assert_eq!(r.insert(at(30), at(40)), Inserted::New);
        assert_eq!(r.insert(at(12), at(20)), Inserted::Nothing);
        assert_eq!(r.insert(at(20), at(25)), Inserted::New);
        assert_eq!(r.as_slice(), [(at(10), at(25)), (at(30), at(40))]);
        assert_eq!(r.insert(at(24), at(31)), Inserted::New);
        assert_eq!(r.as_slice(), [(at(10), at(40))]);
        assert_eq!(r.overlap(at(5), at(12)), Some((at(10), at(12))));
        assert_eq!(r.overlap(at(12), at(50)), Some((at(12), at(40))));
        assert_eq!(r.overlap(at(5), at(10)), None);
        assert_eq!(r.overlap(at(40), at(50)), None);
        assert_eq!(r.advance(at(5)), at(5));
        assert_eq!(r.advance(at(10)), at(40));
        assert!(r.is_empty());
    }

    #[test]
    fn one_range_too_many_does_not_fit_but_joining_does() {
        let mut r = Ranges::default();
        for n in 0..RANGES as u32 {
            assert_eq!(r.insert(Seq(n * 10), Seq(n * 10 + 5)), Inserted::New);
        }
        assert_eq!(r.insert(Seq(9000), Seq(9005)), Inserted::Full);
        assert_eq!(r.insert(Seq(75), Seq(80)), Inserted::New);
        assert_eq!(r.insert(Seq(5), Seq(10)), Inserted::New);
        assert_eq!(r.insert(Seq(9000), Seq(9005)), Inserted::New);
    }

    #[test]
    fn the_most_recently_changed_range_comes_first() {
        let mut r = Ranges::default();
        for n in [10, 30, 50, 70] {
            r.insert(Seq(n), Seq(n + 10));
        }
        r.insert(Seq(40), Seq(45));
        r.insert(Seq(12), Seq(13));
        let recent: Vec<_> = r.recent().map(|(start, end)| (start.0, end.0)).collect();
        // A repetition counts as a change: its range is reported too (RFC 2883 §4.2).
        assert_eq!(recent, [(10, 20), (30, 45), (70, 80), (50, 60)]);
        assert_eq!((r.around(Seq(44)), r.around(Seq(45))), (Some((Seq(30), Seq(45))), None));
        assert_eq!(r.advance(Seq(25)), Seq(25));
        assert_eq!(r.recent().next(), Some((Seq(30), Seq(45))));
    }

    proptest! {
        /// Against a set of bytes.
        #[test]
        fn is_a_set(base in any::<u32>(), pieces in prop::collection::vec((0u32..200, 1u32..40), 1..40), filled in 0u32..260) {
            let (mut r, mut set) = (Ranges::default(), [false; 300]);
            for (start, len) in pieces {
                let new = set[start as usize..(start + len) as usize].iter().any(|b| !b);
                match r.insert(Seq(base).add(start), Seq(base).add(start + len)) {
                    Inserted::Full => prop_assert_eq!(r.as_slice().len(), RANGES),
                    done => {
                        prop_assert_eq!(done == Inserted::New, new);
                        set[start as usize..(start + len) as usize].fill(true);
                    }
                }
            }
            let mut runs = 0;
            for n in 0..300 {
                runs += usize::from(set[n] && (n == 0 || !set[n - 1]));
            }
            prop_assert_eq!(runs, r.as_slice().len());
            set[..filled as usize].fill(true);
            let end = set.iter().position(|b| !b).unwrap_or(300) as u32;
            prop_assert_eq!(r.advance(Seq(base).add(filled)), Seq(base).add(end));
            prop_assert!(r.as_slice().iter().all(|x| x.0.after(Seq(base).add(end))));
        }
    }
}
