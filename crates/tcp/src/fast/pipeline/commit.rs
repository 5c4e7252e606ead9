//! The end of the pipeline: what the flow group has made leaves in the order in which it was made, and not before what was
//! accepted earlier is copied.

use super::items::{Made, Output, Slot, What};
use super::order::{Numbered, Reorder, put};
use crate::flow::FlowId;
use crate::messages::{ToSlow, event};
use rtrb::Producer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// It belongs to the thread that has the ports and tells applications.
#[derive(Debug)]
pub struct Commit<F> {
    made: Reorder<Numbered<Made<F>>>,
    /// Received frames whose payload is copied.
    copied: Reorder<Slot<F>>,
    spent: Producer<Slot<F>>,
    free: Producer<F>,
    /// The number of copies up to the first that is not made yet, for the flow group.
    watermark: Arc<AtomicU64>,
    /// What leaves now. It stays here while it does, so that a panic does not lose it.
    in_hand: Option<Output<F>>,
    /// It has ended a thread.
    tried: bool,
    abandoned: u64,
    /// Flows that the flow group is to reset.
    broken: Producer<FlowId>,
    /// Flows with a copy that was given up, and where the bytes end that are there.
    ends: Vec<(FlowId, u32)>,
}

impl<F> Commit<F> {
    pub(super) fn new(
        made: Reorder<Numbered<Made<F>>>,
        copied: Reorder<Slot<F>>,
        (spent, free): (Producer<Slot<F>>, Producer<F>),
        (watermark, broken): (Arc<AtomicU64>, Producer<FlowId>),
    ) -> Self {
        Self { made, copied, spent, free, watermark, in_hand: None, tried: false, abandoned: 0, broken, ends: vec![] }
    }

    /// What may leave next. `None`: nothing now. It belongs to the caller, whose panic loses it.
    #[inline]
    pub fn next_output(&mut self) -> Option<Output<F>> {
        match self.in_hand.take() {
            None => self.next(),
            again => again,
        }
    }

    /// What may leave next. `None`: nothing now. It stays here until [`Commit::done`], so a panic of the caller does not lose it.
    #[inline]
    pub fn front(&mut self) -> Option<&mut Output<F>> {
        if self.in_hand.is_none() {
            self.in_hand = self.next();
            self.tried = false;
        }
        self.in_hand.as_mut()
    }

    /// What was at the front has left.
    #[inline]
    pub fn done(&mut self) {
        if let Some(Output::Frame { frame, .. }) = self.in_hand.take() {
            self.give_back(frame);
        }
    }

    /// The thread has ended in the middle of a step; this one takes over. A frame at the front may have left or not: it is given up, as
    /// if lost on the wire. An event or a message comes once more. One that ends two threads is given up, and an event's
    /// connection is reset, because its application would wait for ever.
    pub fn recover(&mut self) {
        match self.in_hand.take() {
            None => return,
            Some(Output::Frame { frame, .. }) => self.give_back(frame),
            again if !self.tried => {
                (self.in_hand, self.tried) = (again, true);
                return;
            }
            Some(Output::Event(event, _)) => self.breaks(event.flow),
            Some(Output::Message(_)) => {}
        }
        self.abandoned += 1;
    }

    /// Frames, events and messages that were given up because a thread has ended.
    pub fn abandoned(&self) -> u64 {
        self.abandoned
    }

    #[inline]
    fn next(&mut self) -> Option<Output<F>> {
        self.take_copies();
        loop {
            if self.made.peek()?.what.after > self.copied.taken() {
                return None;
            }
            match self.made.pop()?.what.what {
                What::Output(mut output) => {
                    if !self.ends.is_empty() {
                        self.shorten(&mut output);
                    }
                    return Some(output);
                }
                What::Abandoned(frame) => self.give_back(frame),
            }
        }
    }

    /// How many frames, events and messages have left, or were abandoned.
    pub fn left(&self) -> u64 {
        self.made.taken() - u64::from(self.in_hand.is_some())
    }

    /// Completions have made the bytes visible to this thread, which shows them to others.
    #[inline]
    fn take_copies(&mut self) {
        let before = self.copied.taken();
        while let Some(slot) = self.copied.pop() {
            let failed = slot.failed.then_some((slot.flow, slot.copy.position));
            put(&mut self.spent, slot);
            if let Some((flow, position)) = failed {
                self.fails(flow, position);
            }
        }
        if self.copied.taken() != before {
            self.watermark.store(self.copied.taken(), Ordering::Release);
        }
    }

    /// A copy was given up: nothing is shown from there on, and its flow is reset.
    #[cold]
    fn fails(&mut self, flow: FlowId, position: u32) {
        match self.ends.iter_mut().find(|(of, _)| *of == flow) {
            Some((_, end)) if (position.wrapping_sub(*end) as i32) < 0 => *end = position,
            Some(_) => {}
            None => {
                self.ends.push((flow, position));
                self.breaks(flow);
            }
        }
    }

    /// Some flow has bytes that are not there.
    #[cold]
    fn shorten(&mut self, output: &mut Output<F>) {
        match output {
            Output::Event(event, view) => {
                let end = self.ends.iter().find(|(flow, _)| *flow == event.flow);
                if let Some((_, end)) = end
                    && (view.rx_tail.wrapping_sub(*end) as i32) > 0
                {
                    (view.rx_tail, view.eof) = (*end, false);
                    // Bytes are missing in front of it: it would look like an orderly end.
                    event.what &= !event::EOF;
                }
            }
            // Its number may be used again.
            Output::Message(ToSlow::Removed(removed)) => self.ends.retain(|(flow, _)| flow != removed),
            Output::Frame { .. } | Output::Message(_) => {}
        }
    }

    #[cold]
    fn breaks(&mut self, flow: FlowId) {
        put(&mut self.broken, flow);
    }

    /// The flow group may use a frame again that has been sent.
    #[inline]
    pub fn give_back(&mut self, frame: F) {
        put(&mut self.free, frame);
    }
}
