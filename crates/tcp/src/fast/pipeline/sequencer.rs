//! Ingress: numbers for received frames, and the replicas that parse them.

use super::items::{Received, Slot};
use super::order::put;
use crate::flow::PortId;
use rtrb::{Consumer, Producer};
use towpath_wire::offload::RxChecksum;

/// The beginning of the pipeline. It belongs to the thread that receives from the ports.
#[derive(Debug)]
pub struct Sequencer<F> {
    lanes: Vec<Producer<Slot<F>>>,
    /// Frames that have done their work.
    spent: [Consumer<Slot<F>>; 2],
    next: u64,
    /// The lane of the next frame, and how many more it gets before the next lane.
    at: usize,
    left: usize,
    run: usize,
    /// Places for the frames that may still be received.
    free: Vec<Slot<F>>,
    /// The newest frame of the batch that is being received: only when the next one comes is it known not to be the last.
    in_hand: Option<Slot<F>>,
}

impl<F> Sequencer<F> {
    /// `run`: neighbours that go to one replica.
    pub(super) fn new(
        lanes: Vec<Producer<Slot<F>>>,
        spent: [Consumer<Slot<F>>; 2],
        (run, frames): (usize, usize),
    ) -> Self {
        let free = (0..frames).map(|_| Received::free()).collect();
        Self { lanes, spent, next: 0, at: 0, left: run, run, free, in_hand: None }
    }

    /// How many frames may be received now. It grows with [`Sequencer::spent`].
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Receives a batch. If there is no room for all of it, nothing is taken.
    pub fn receive<I>(&mut self, port: PortId, frames: I) -> Result<(), I>
    where
        I: ExactSizeIterator<Item = (F, RxChecksum)>,
    {
        let count = frames.len();
        if count > self.free.len() {
            return Err(frames);
        }
        for (frame, checksum) in frames.take(count) {
            let Some(mut slot) = self.free.pop() else { break };
            (slot.frame, slot.checksum, slot.port, slot.last) = (Some(frame), checksum, port, false);
            if let Some(before) = self.in_hand.replace(slot) {
                self.hand_on(before);
            }
        }
        self.end_batch();
        Ok(())
    }

    #[inline]
    fn hand_on(&mut self, mut slot: Slot<F>) {
        slot.number = self.next;
        put(&mut self.lanes[self.at], slot);
        self.next += 1;
        self.left -= 1;
        if self.left == 0 {
            (self.at, self.left) = ((self.at + 1) % self.lanes.len(), self.run);
        }
    }

    #[inline]
    fn end_batch(&mut self) {
        if let Some(mut newest) = self.in_hand.take() {
            newest.last = true;
            self.hand_on(newest);
        }
    }

    /// The thread has ended in the middle of [`Sequencer::receive`]; this one takes over. The batch ends with the newest frame that
    /// was taken. The caller still has the others.
    pub fn recover(&mut self) {
        self.end_batch();
    }

    /// A frame that nothing in the pipeline needs any more.
    pub fn spent(&mut self) -> Option<F> {
        let mut slot = self.spent.iter_mut().find_map(|ring| ring.pop().ok())?;
        let frame = slot.frame.take();
        self.free.push(slot);
        frame
    }
}
