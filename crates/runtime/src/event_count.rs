//! How often something has happened on a slot. A sleeper compares the count in the slot's line with the one that it saw before it
//! looked at the slot, and sleeps only if they are equal ([`towpath_ring::wake`]).
//!
//! The flow group that serves the slot counts, and the slow thread may at the same time. If both added one to one word, both could
//! store the same value. Who has seen the first of the two would sleep through the second. So each has a word of its own, and
//! the value in the line is made of both.

use std::sync::atomic::{AtomicU32, Ordering};

/// The events of one slot.
pub struct EventCount {
    /// Of the thread that serves the slot, which alone writes it.
    served: AtomicU32,
    /// Of all other threads.
    others: AtomicU32,
}

/// Both words only grow, and the least bits of one are far from those of the other. So no value comes again within 65,000 events of
/// each.
fn together(served: u32, others: u32) -> u32 {
    served.wrapping_add(others.rotate_left(16))
}

impl EventCount {
    /// None yet.
    pub const fn new() -> Self {
        Self { served: AtomicU32::new(0), others: AtomicU32::new(0) }
    }
    /// Another stack has counted so far.
    pub fn resume(&self, line: &AtomicU32) {
        self.served.store(line.load(Ordering::Relaxed), Ordering::Relaxed);
        self.others.store(0, Ordering::Relaxed);
    }
    /// One more, by the thread that serves the slot. What has happened must be stored before.
    #[inline]
    pub fn serve(&self, line: &AtomicU32) {
        let served = self.served.load(Ordering::Relaxed).wrapping_add(1);
        // Release: a thread that sees the new value sees what has happened. So does one that sees the line's value, which is made of it.
        self.served.store(served, Ordering::Release);
        line.store(together(served, self.others.load(Ordering::Acquire)), Ordering::Release);
    }
    /// The same by any other thread.
    pub fn add(&self, line: &AtomicU32) {
        let others = self.others.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        line.store(together(self.served.load(Ordering::Acquire), others), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads raise an event each while a third one is about to sleep. A thread may load before the others see what it has
    /// stored.
    #[derive(Clone, Copy, Default)]
    struct Model {
        /// How far each thread is.
        steps: [usize; 3],
        /// Which of the two does so. Any may on AArch64; on x86-64 what `add` does fences.
        loads_early: [bool; 2],
        happened: [bool; 2],
        words: [u32; 2],
        /// What each of the two has read of the other's word.
        read: [u32; 2],
        line: u32,
        woken: [bool; 2],
        /// What the sleeper compares, and what it has not seen.
        seen: u32,
        missed: [bool; 2],
    }

    impl Model {
        /// The next step of a thread. False: it has none left.
        fn step(&mut self, thread: usize, with_two_words: bool) -> bool {
            let (step, other) = (self.steps[thread], 1 - thread.min(1));
            self.steps[thread] += 1;
            let at = match (step, with_two_words) {
                // The thread's stores are seen after its load of the other's word.
                (0..=2, true) if thread < 2 && self.loads_early[thread] => [2, 0, 1][step],
                (0..=1, false) if thread < 2 && self.loads_early[thread] => 1 - step,
                _ => step,
            };
            match (thread, at) {
                (2, 0) => self.seen = self.line,
                (2, 1) => self.missed = self.happened.map(|happened| !happened),
                (2, 2) => {
                    let asleep = self.line == self.seen;
                    let slept_through = (0..2).any(|event| self.missed[event] && self.woken[event]);
                    assert!(!(asleep && slept_through), "a sleeper has missed an event");
                }
                (2, _) => return false,
                (_, 0) => self.happened[thread] = true,
                (_, 1) if with_two_words => self.words[thread] += 1,
                // One word, which is loaded here and stored below.
                (_, 1) => self.read[thread] = self.words[0] + 1,
                (_, 2) if with_two_words => self.read[thread] = self.words[other],
                (_, 2) => self.words[0] = self.read[thread],
                (0, 3) if with_two_words => self.line = together(self.words[0], self.read[0]),
                (1, 3) if with_two_words => self.line = together(self.read[1], self.words[1]),
                (_, 3) => self.line = self.read[thread],
                (_, 4) => self.woken[thread] = true,
                _ => return false,
            }
            true
        }

        /// All orders of all steps.
        fn explore(self, with_two_words: bool) {
            for thread in 0..3 {
                let mut next = self;
                if next.step(thread, with_two_words) {
                    next.explore(with_two_words);
                }
            }
        }
    }

    #[test]
    fn whoever_counts_at_the_same_time_nobody_sleeps_through_an_event() {
        for loads_early in [[false, false], [true, false], [false, true], [true, true]] {
            Model { loads_early, ..Model::default() }.explore(true);
        }
    }

    #[test]
    #[should_panic(expected = "a sleeper has missed an event")]
    fn with_one_word_somebody_would() {
        Model { loads_early: [true, true], ..Model::default() }.explore(false);
    }

    #[test]
    fn each_count_leaves_another_value() {
        let (events, line) = (EventCount::new(), AtomicU32::new(0));
        let mut values = std::collections::BTreeSet::from([0]);
        for _ in 0..60_000 {
            events.serve(&line);
            assert!(values.insert(line.load(Ordering::Relaxed)));
            events.add(&line);
            assert!(values.insert(line.load(Ordering::Relaxed)));
        }
        let next = EventCount::new();
        next.resume(&line);
        next.serve(&line);
        assert!(values.insert(line.load(Ordering::Relaxed)));
    }
}
