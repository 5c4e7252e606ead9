//! Fourth stage, replicated: payload from frames into receive rings. Touches no flow's state.

use super::items::{Received, Slot};
use super::order::put;
use crate::buffers::Rings;
use crate::fast::deliver;
use rtrb::{Consumer, Producer};

/// A replica.
#[derive(Debug)]
pub struct Deliver<F> {
    jobs: Consumer<Slot<F>>,
    /// One message for each copy: it is done.
    done: Producer<Slot<F>>,
    /// What it works on. It stays here while it does, so that a panic does not lose it.
    in_hand: Option<Slot<F>>,
    /// The number of a copy that has ended a thread.
    tried: Option<u64>,
    given_up: u64,
}

impl<F: AsRef<[u8]>> Deliver<F> {
    pub(super) fn new(jobs: Consumer<Slot<F>>, done: Producer<Slot<F>>) -> Self {
        Self { jobs, done, in_hand: None, tried: None, given_up: 0 }
    }

    /// Makes one copy. False: there is none to be made.
    ///
    /// If a thread has ended in the middle of a copy, the next call, from any thread, makes it once more. It cannot just be left out:
    /// the segment has been accepted. And nobody has been told of its bytes.
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
        let Some(slot) = &self.in_hand else { return };
        let Received { flow, copy, .. } = &**slot;
        if let Some(bytes) = deliver::piece(slot.bytes(), copy) {
            rings.deliver(*flow, copy.position, bytes);
        }
        self.hand_on(false);
    }

    #[inline]
    fn hand_on(&mut self, failed: bool) {
        if let Some(mut slot) = self.in_hand.take() {
            slot.failed = failed;
            put(&mut self.done, slot);
        }
    }

    /// The thread has ended in the middle of a step; this one takes over. A copy that has ended two threads is given up, so that
    /// nothing waits for it: its connection will be reset.
    pub fn recover(&mut self) {
        let Some(Received { number, .. }) = self.in_hand.as_deref() else { return };
        if self.tried == Some(*number) {
            self.given_up += 1;
            self.hand_on(true);
        } else {
            self.tried = Some(*number);
        }
    }

    /// Copies that were given up because each try has ended a thread.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }
}
