//! Order: the numbers of items, and the points behind replicas where they are in order again.

use rtrb::{Consumer, Producer};

/// An item with its place in the order.
#[derive(Debug)]
pub(super) struct Numbered<T> {
    pub number: u64,
    pub what: T,
}

/// Something with a number.
pub(super) trait Placed {
    fn number(&self) -> u64;
}

impl<T> Placed for Numbered<T> {
    #[inline]
    fn number(&self) -> u64 {
        self.number
    }
}

/// A reordering point. Each number stands in one lane, and those of a lane ascend. So the next one is at the front of some lane, and
/// nothing is stored here.
#[derive(Debug)]
pub(super) struct Reorder<T> {
    lanes: Vec<Consumer<T>>,
    next: u64,
    /// The lane to look at first: replicas get several neighbours.
    at: usize,
}

impl<T: Placed> Reorder<T> {
    pub fn new(lanes: Vec<Consumer<T>>) -> Self {
        Self { lanes, next: 0, at: 0 }
    }

    /// All numbers below this one have been taken.
    pub fn taken(&self) -> u64 {
        self.next
    }

    /// Finds the lane that has the next item.
    #[inline]
    fn find(&mut self) -> bool {
        for _ in 0..self.lanes.len() {
            if self.lanes[self.at].peek().is_ok_and(|front| front.number() == self.next) {
                return true;
            }
            self.at = if self.at + 1 == self.lanes.len() { 0 } else { self.at + 1 };
        }
        false
    }

    /// The next item, if it has come.
    #[inline]
    pub fn peek(&mut self) -> Option<&T> {
        if !self.find() {
            return None;
        }
        self.lanes[self.at].peek().ok()
    }

    /// Takes the next item, if it has come.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if !self.find() {
            return None;
        }
        let item = self.lanes[self.at].pop().ok()?;
        self.next += 1;
        Some(item)
    }
}

/// Adds an item to a ring that has a place for each frame of the pipeline. Were it full, a number would be lost, and everything
/// behind it would wait for ever. So that ends the thread.
#[inline]
pub(super) fn put<T>(ring: &mut Producer<T>, item: T) {
    assert!(ring.push(item).is_ok(), "a ring has a place for each frame");
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtrb::RingBuffer;
    use towpath_rng::Rng;

    #[test]
    fn items_leave_in_the_order_of_their_numbers_as_soon_as_they_can() {
        let mut rng = Rng::new(3);
        for lanes in 1..5 {
            let (mut ends, fronts): (Vec<_>, Vec<_>) = (0..lanes).map(|_| RingBuffer::new(1000)).unzip();
            let mut order = Reorder::new(fronts);
            // The lanes' items, which come at random times.
            let mut waiting = vec![std::collections::VecDeque::new(); lanes];
            (0..1000u64).for_each(|number| waiting[rng.below(lanes as u64) as usize].push_back(number));
            let mut come = vec![false; 1000];
            let mut next = 0;
            while next < 1000 {
                let lane = rng.below(lanes as u64) as usize;
                if let Some(number) = waiting[lane].pop_front() {
                    come[number as usize] = true;
                    put(&mut ends[lane], Numbered { number, what: number });
                }
                while let Some(Numbered { what, .. }) = order.pop() {
                    assert_eq!(what, next);
                    next += 1;
                }
                assert!(order.taken() == next && order.peek().is_none());
                assert!(come.get(next as usize) != Some(&true), "{next} has come, and waits");
            }
        }
    }

    #[test]
    fn the_next_item_can_be_looked_at() {
        let (mut end, front) = RingBuffer::new(2);
        let mut order = Reorder::new(vec![front]);
        put(&mut end, Numbered { number: 0, what: 'a' });
        assert_eq!(order.peek().map(|item| item.what), Some('a'));
        assert_eq!([order.pop(), order.pop()].map(|item| item.map(|item| item.what)), [Some('a'), None]);
    }
}
