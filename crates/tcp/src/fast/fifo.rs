//! A queue that is nearly always emptied in the turn in which it was filled: adding and taking are a few instructions.

/// First in, first out. Taken items stay until the queue is empty, or full.
#[derive(Debug)]
pub(super) struct Fifo<T> {
    items: Vec<T>,
    taken: usize,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self { items: Vec::new(), taken: 0 }
    }
}

impl<T: Copy> Fifo<T> {
    /// Room for this many items without an allocation.
    pub fn with_capacity(items: usize) -> Self {
        Self { items: Vec::with_capacity(items), taken: 0 }
    }
    #[inline]
    pub fn len(&self) -> usize {
        self.items.len() - self.taken
    }
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.taken == self.items.len()
    }
    /// All items, the next one first.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        self.items[self.taken..].iter().copied()
    }
    /// The next item.
    #[inline(always)]
    pub fn front(&self) -> Option<T> {
        self.items.get(self.taken).copied()
    }
    /// The next item, if it is the only one.
    #[inline(always)]
    pub fn only(&self) -> Option<T> {
        if self.taken + 1 == self.items.len() { self.front() } else { None }
    }
    /// Adds an item at the end.
    #[inline(always)]
    pub fn push(&mut self, item: T) {
        if self.items.len() == self.items.capacity() {
            self.make_room();
        }
        self.items.push(item);
    }
    /// Puts an item back, before all others.
    pub fn push_front(&mut self, item: T) {
        if let Some(place) = self.taken.checked_sub(1) {
            self.items[place] = item;
            self.taken = place;
        } else {
            self.items.insert(0, item);
        }
    }
    /// Takes the next item.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<T> {
        let item = self.next()?;
        self.tidy();
        Some(item)
    }
    /// The same, if [`Fifo::tidy`] follows before an item is added at the end.
    #[inline(always)]
    pub fn next(&mut self) -> Option<T> {
        let item = self.front()?;
        self.taken += 1;
        Some(item)
    }
    /// Forgets the taken items if there are no others.
    #[inline(always)]
    pub fn tidy(&mut self) {
        if self.taken == self.items.len() {
            self.items.clear();
            self.taken = 0;
        }
    }

    /// Moves what is left over the taken items if these are half of all, so that an item is moved once on average. Else there
    /// will be an allocation.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self) {
        if self.taken * 2 >= self.items.len() {
            self.items.drain(..self.taken);
            self.taken = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use towpath_rng::Rng;

    #[test]
    fn it_is_a_queue() {
        let (mut fifo, mut queue, mut rng) = (Fifo::with_capacity(4), VecDeque::new(), Rng::new(1));
        for n in 0..100_000u32 {
            match rng.below(9) {
                0..4 => {
                    fifo.push(n);
                    queue.push_back(n);
                }
                4 => {
                    fifo.push_front(n);
                    queue.push_front(n);
                }
                5 => {
                    assert_eq!([fifo.next(), fifo.next()], [queue.pop_front(), queue.pop_front()]);
                    fifo.tidy();
                }
                _ => assert_eq!(fifo.pop(), queue.pop_front()),
            }
            let only = (queue.len() == 1).then(|| queue[0]);
            assert_eq!((fifo.front(), fifo.only()), (queue.front().copied(), only));
            assert_eq!((fifo.len(), fifo.is_empty()), (queue.len(), queue.is_empty()));
        }
    }

    #[test]
    fn a_queue_that_never_runs_empty_needs_no_more_room() {
        let mut fifo = Fifo::with_capacity(8);
        (0..4).for_each(|n| fifo.push(n));
        let room = fifo.items.capacity();
        for n in 0..1000 {
            assert_eq!(fifo.pop(), Some(n));
            fifo.push(n + 4);
        }
        assert_eq!(fifo.items.capacity(), room);
    }
}
