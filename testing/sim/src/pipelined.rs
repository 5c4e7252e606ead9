//! The pipeline in one thread and virtual time. Its stages take their steps in a random order, and all of them have come to rest when
//! time goes on. So a world has the same frames at the same times as with run-to-completion.

use crate::sockets::Sockets;
use crate::{PORT, TimedPort};
use towpath_ports::RxChecksum;
use towpath_rng::Rng;
use towpath_tcp::counters::Counters;
use towpath_tcp::fast::FastPath;
use towpath_tcp::fast::pipeline::{Abilities, Output, Parts, Shape};
use towpath_tcp::flow::FlowId;
use towpath_tcp::messages::{AppUpdate, AppView, ContractViolation, FlowEvent, ToFast, ToSlow};
use towpath_tcp::time::Micros;

/// Frames in each direction: more than a node handles in a step.
const FRAMES: usize = 128;
/// More steps than any pipeline takes to come to rest.
const STALLED: u32 = 1_000_000;

/// A pipeline, and the order of its steps.
pub struct Pipelined {
    parts: Parts<Vec<u8>>,
    rng: Rng,
    left: Vec<Output<Vec<u8>>>,
}

impl Pipelined {
    /// The stages of `fast` before this port, with replicas and an order that the seed gives.
    pub fn new(fast: FastPath, port: &mut dyn TimedPort, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut number = || rng.between(1, 4) as usize;
        let shape =
            Shape { pre: number(), deliver: number(), build: number(), run: number(), frames: FRAMES, events: 4 };
        let capabilities = port.capabilities();
        let abilities = Abilities { checksum: capabilities.tx_checksum, gso_max_bytes: capabilities.gso_max_bytes };
        let bytes = port.reserve().map_or(1 << 16, |buffer| buffer.len());
        let frames = vec![vec![0; bytes]; FRAMES];
        let parts = match Parts::new(fast, shape, abilities, frames) {
            Ok(parts) => parts,
            Err(error) => panic!("{error}"),
        };
        Self { parts, rng, left: vec![] }
    }

    /// One step of one stage.
    fn advance(&mut self, rings: &mut Sockets) {
        let Self { parts: Parts { sequencer, pre, deliver, build, commit, .. }, rng, left } = self;
        let places = pre.len() + deliver.len() + build.len() + 2;
        let mut at = rng.below(places as u64) as usize;
        if let Some(stage) = pre.get_mut(at) {
            stage.step();
            return;
        }
        at -= pre.len();
        if let Some(stage) = deliver.get_mut(at) {
            stage.step(rings);
            return;
        }
        at -= deliver.len();
        if let Some(stage) = build.get_mut(at) {
            stage.step(&*rings);
        } else if at == build.len() {
            left.extend(commit.next_output());
        } else {
            sequencer.spent();
        }
    }

    fn until(&mut self, rings: &mut Sockets, mut done: impl FnMut(&mut Self, &mut Sockets) -> bool) {
        for _ in 0..STALLED {
            if done(self, rings) {
                return;
            }
            self.advance(rings);
        }
        panic!("the pipeline waits for ever: {:?}", self.parts);
    }

    /// Everything has left that was made, and all copies are made.
    fn rest(&mut self, rings: &mut Sockets) {
        self.until(rings, |d, _| d.parts.group.is_quiet() && d.parts.group.made() == d.parts.commit.left());
    }

    /// Takes a batch through the state machine; its copies may come later.
    pub fn receive(
        &mut self,
        now: Micros,
        frames: impl ExactSizeIterator<Item = (Vec<u8>, RxChecksum)>,
        rings: &mut Sockets,
    ) {
        let mut frames = Some(frames.collect::<Vec<_>>().into_iter());
        self.until(rings, |d, _| {
            frames = frames.take().and_then(|batch| d.parts.sequencer.receive(PORT, batch).err());
            frames.is_none()
        });
        self.until(rings, |d, _| d.parts.group.receive(now));
    }

    /// See [`FastPath::app_update`].
    pub fn app_update(&mut self, now: Micros, flow: FlowId, update: AppUpdate) -> Result<(), ContractViolation> {
        self.parts.group.app_update(now, flow, update)
    }

    /// See [`FastPath::message`].
    pub fn message(&mut self, now: Micros, message: ToFast, rings: &mut Sockets) {
        let mut message = Some(message);
        self.until(rings, |d, rings| {
            message = message.take().and_then(|message| d.parts.group.message(now, message, rings).err());
            message.is_none()
        });
    }

    /// See [`FastPath::transmit`].
    pub fn transmit(&mut self, now: Micros, most: usize, rings: &mut Sockets, port: &mut dyn TimedPort) -> usize {
        let planned = self.parts.group.transmit(now, most);
        self.rest(rings);
        for output in self.left.drain(..) {
            let Output::Frame { frame, len, offload, .. } = output else {
                panic!("nothing else was made: {output:?}");
            };
            let Some(buffer) = port.reserve() else { panic!("the simulator's ports have room") };
            buffer[..len].copy_from_slice(&frame[..len]);
            port.commit(len, offload);
            self.parts.commit.give_back(frame);
        }
        planned
    }

    /// Messages for the slow path.
    pub fn messages(&mut self, rings: &mut Sockets) -> Vec<ToSlow> {
        self.until(rings, |d, _| d.parts.group.report());
        self.rest(rings);
        let message = |output| match output {
            Output::Message(message) => message,
            other => panic!("nothing else was made: {other:?}"),
        };
        self.left.drain(..).map(message).collect()
    }

    /// Events, with what their applications see.
    pub fn events(&mut self, rings: &mut Sockets) -> Vec<(FlowEvent, AppView)> {
        self.until(rings, |d, _| d.parts.group.publish());
        self.rest(rings);
        let event = |output| match output {
            Output::Event(event, view) => (event, view),
            other => panic!("nothing else was made: {other:?}"),
        };
        self.left.drain(..).map(event).collect()
    }

    /// See [`FastPath::has_work`].
    pub fn has_work(&self) -> bool {
        self.parts.group.has_work()
    }

    /// See [`FastPath::next_deadline`].
    pub fn next_deadline(&self) -> Option<Micros> {
        self.parts.group.next_deadline()
    }

    /// The counts of all stages.
    pub fn counters(&self) -> Counters {
        let mut all = *self.parts.group.counters();
        for pre in &self.parts.pre {
            all.stages.iter_mut().zip(pre.counters().stages).for_each(|(sum, count)| *sum += count);
            all.drops.iter_mut().zip(pre.counters().drops).for_each(|(sum, count)| *sum += count);
        }
        all
    }
}
