//! A pipeline's stages, joined by rings.

use super::copies::Copies;
use super::items::Abilities;
use super::order::Reorder;
use super::plans::Plans;
use super::{Build, Commit, Deliver, FlowGroup, Pre, Sequencer};
use crate::fast::FastPath;
use rtrb::{Consumer, Producer, RingBuffer};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// How many replicas the stages have, and how large the rings are.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Replicas of `pre`.
    pub pre: usize,
    /// Replicas of `deliver`.
    pub deliver: usize,
    /// Replicas of `build`.
    pub build: usize,
    /// Received frames that go to one replica before the next one gets some.
    pub run: usize,
    /// Received frames in the pipeline at most; also the largest batch.
    pub frames: usize,
    /// Events and messages that wait for `commit` at most; more stay with the flow group.
    pub events: usize,
}

/// A shape that no pipeline can have: this number has to be one at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadShape(pub &'static str);

impl fmt::Display for BadShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a pipeline needs at least one of: {}", self.0)
    }
}

impl std::error::Error for BadShape {}

/// The stages of a pipeline. Each can go to a thread of its own.
#[derive(Debug)]
pub struct Parts<F> {
    /// Takes received frames.
    pub sequencer: Sequencer<F>,
    /// First stage.
    pub pre: Vec<Pre<F>>,
    /// Second and third stage, and the first part of the last one.
    pub group: FlowGroup<F>,
    /// Fourth stage.
    pub deliver: Vec<Deliver<F>>,
    /// The middle of the last stage.
    pub build: Vec<Build<F>>,
    /// The end.
    pub commit: Commit<F>,
}

impl<F: AsRef<[u8]> + AsMut<[u8]>> Parts<F> {
    /// The stages of this fast path. `frames`: those to send with; a flow waits while none is free.
    pub fn new(fast: FastPath, shape: Shape, abilities: Abilities, frames: Vec<F>) -> Result<Self, BadShape> {
        let Shape { pre, deliver, build, run, frames: received, events } = shape;
        for (number, name) in [
            (pre, "replicas of pre"),
            (deliver, "replicas of deliver"),
            (build, "replicas of build"),
            (run, "frames in a run"),
            (received, "received frames"),
            (events, "events"),
            (frames.len(), "frames to send with"),
        ] {
            if number == 0 {
                return Err(BadShape(name));
            }
        }
        let hasher = fast.state.lookup.hasher();
        // Each ring has a place for every frame that could be in it, so nobody waits for room.
        let (arrival_ends, arrivals) = rings(pre, received);
        let (parsed_ends, parsed) = rings(pre, received);
        let (job_ends, jobs) = rings(deliver, received);
        let (done_ends, done) = rings(deliver, received);
        let (plan_ends, plans) = rings(build, frames.len());
        let (made_ends, mut made) = rings(build, frames.len());
        let (direct_end, direct) = RingBuffer::new(events);
        made.push(direct);
        let (spent_group, spent_first) = RingBuffer::new(received);
        let (spent_commit, spent_second) = RingBuffer::new(received);
        let planned = frames.len();
        let (mut free_end, free) = RingBuffer::new(planned);
        frames.into_iter().for_each(|frame| super::order::put(&mut free_end, frame));
        // It is emptied whenever something could be ordered or planned; one more is in the hands of `commit`.
        let (broken_end, broken) = RingBuffer::new(received + planned + events + 1);
        let watermark = Arc::new(AtomicU64::new(0));
        let outputs = Plans::new(plan_ends, direct_end, free, abilities);
        let work = (Copies::new(job_ends), outputs);
        Ok(Self {
            sequencer: Sequencer::new(arrival_ends, [spent_first, spent_second], (run, received)),
            pre: arrivals.into_iter().zip(parsed_ends).map(|(a, p)| Pre::new(a, p, hasher.clone())).collect(),
            group: FlowGroup::new(
                fast,
                (Reorder::new(parsed), broken),
                work,
                (spent_group, Arc::clone(&watermark)),
                received,
            ),
            deliver: jobs.into_iter().zip(done_ends).map(|(jobs, done)| Deliver::new(jobs, done)).collect(),
            build: plans.into_iter().zip(made_ends).map(|(plans, made)| Build::new(plans, made)).collect(),
            commit: Commit::new(
                Reorder::new(made),
                Reorder::new(done),
                (spent_commit, free_end),
                (watermark, broken_end),
            ),
        })
    }
}

/// Rings for `count` replicas.
fn rings<T>(count: usize, places: usize) -> (Vec<Producer<T>>, Vec<Consumer<T>>) {
    (0..count).map(|_| RingBuffer::new(places)).unzip()
}
