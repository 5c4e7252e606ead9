//! Fourth stage, replicated: payload from frames into receive rings. Touches no flow's state.

use super::items::Job;
use super::order::{Numbered, put};
use crate::buffers::Rings;
use crate::fast::deliver;
use rtrb::{Consumer, Producer};

/// A replica.
#[derive(Debug)]
pub struct Deliver<F> {
    jobs: Consumer<Numbered<Job<F>>>,
    /// One message for each copy: it is done.
    done: Producer<Numbered<F>>,
    /// What it works on. It stays here while it does, so that a panic does not lose it.
    in_hand: Option<Numbered<Job<F>>>,
}

impl<F: AsRef<[u8]>> Deliver<F> {
    pub(super) fn new(jobs: Consumer<Numbered<Job<F>>>, done: Producer<Numbered<F>>) -> Self {
        Self { jobs, done, in_hand: None }
    }

    /// Makes one copy. False: there is none to be made.
    ///
    /// If a thread has ended in the middle of a copy, the next call, from any thread, makes it once more. It cannot be left out: the
    /// segment has been accepted. And nobody has been told of its bytes.
    #[inline]
    pub fn step(&mut self, rings: &mut impl Rings) -> bool {
        let taken = self.take();
        self.work(rings);
        taken
    }

    /// Takes the next copy in hand.
    #[inline]
    pub(super) fn take(&mut self) -> bool {
        if self.in_hand.is_none() {
            self.in_hand = self.jobs.pop().ok();
        }
        self.in_hand.is_some()
    }

    #[inline]
    fn work(&mut self, rings: &mut impl Rings) {
        let Some(Numbered { what: Job { flow, copy, frame }, .. }) = &self.in_hand else { return };
        if let Some(bytes) = deliver::piece(frame.as_ref(), copy) {
            rings.deliver(*flow, copy.position, bytes);
        }
        if let Some(Numbered { number, what }) = self.in_hand.take() {
            put(&mut self.done, Numbered { number, what: what.frame });
        }
    }
}
