//! Egress between plan and commit, replicated: payload from send rings into frames, and checksums. Touches no flow's state.

use super::items::{Made, Output, Planned, What};
use super::order::{Numbered, put};
use crate::buffers::Rings;
use rtrb::{Consumer, Producer};
use towpath_wire::emit::fill_checksum;
use towpath_wire::offload::TxOffload;

/// A replica.
#[derive(Debug)]
pub struct Build<F> {
    plans: Consumer<Numbered<Planned<F>>>,
    made: Producer<Numbered<Made<F>>>,
    /// What it works on. It stays here while it does, so that a panic does not lose it.
    in_hand: Option<Numbered<Planned<F>>>,
    abandoned: u64,
}

impl<F: AsMut<[u8]>> Build<F> {
    pub(super) fn new(plans: Consumer<Numbered<Planned<F>>>, made: Producer<Numbered<Made<F>>>) -> Self {
        Self { plans, made, in_hand: None, abandoned: 0 }
    }

    /// Completes one frame. False: there is none.
    #[inline]
    pub fn step(&mut self, rings: &impl Rings) -> bool {
        let taken = self.take();
        self.work(rings);
        taken
    }

    /// Takes the next frame in hand.
    #[inline]
    pub(super) fn take(&mut self) -> bool {
        if self.in_hand.is_none() {
            self.in_hand = self.plans.pop().ok();
        }
        self.in_hand.is_some()
    }

    #[inline]
    fn work(&mut self, rings: &impl Rings) {
        let Some(Numbered { what, .. }) = &mut self.in_hand else { return };
        if let Some(frame) = what.frame.as_mut().get_mut(..what.len) {
            if let Some(fetch) = &what.fetch
                && let Some(start) = what.len.checked_sub(fetch.len)
            {
                rings.fetch(fetch.flow, fetch.position, &mut frame[start..]);
            }
            if what.sum {
                fill_checksum(frame);
            }
        }
        let Some(Numbered { number, what }) = self.in_hand.take() else { return };
        let Planned { after, frame, port, len, offload, sum, .. } = what;
        let offload = if sum { TxOffload::default() } else { offload };
        let what = What::Output(Output::Frame { port, frame, len, offload });
        put(&mut self.made, Numbered { number, what: Made { after, what } });
    }

    /// The thread has ended in the middle of a step; this one takes over. A frame in hand may be what has ended it, so it does
    /// not leave, as if lost on the wire. If each try ends a thread, TCP ends the connection, as it does when nothing arrives.
    pub fn recover(&mut self) {
        if let Some(Numbered { number, what: Planned { after, frame, .. } }) = self.in_hand.take() {
            self.abandoned += 1;
            put(&mut self.made, Numbered { number, what: Made { after, what: What::Abandoned(frame) } });
        }
    }

    /// Frames that did not leave because a thread has ended.
    pub fn abandoned(&self) -> u64 {
        self.abandoned
    }

    /// The number of what it has in hand.
    #[cfg(test)]
    pub(super) fn holds(&self) -> Option<u64> {
        self.in_hand.as_ref().map(|item| item.number)
    }
}
