//! The pipeline in one thread: its stages take their steps in a random order, and replicas end in the middle of one.
use super::reference::write;
use super::traces::Flows;
use super::{PORT, Seen, Step};
use crate::counters::Counters;
use crate::fast::pipeline::{Output, Parts, Shape};
use crate::fast::tests::VecRings;
use crate::flow::FlowId;
use crate::messages::{AppUpdate, AppView, ToFast};
use crate::time::Micros;
use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use towpath_rng::Rng;
use towpath_wire::offload::RxChecksum;
use towpath_wire::segment::parse;

/// Frames to send with: more than the flows can have out.
const FRAMES: usize = 256;
/// More steps than any pipeline takes for anything.
const STALLED: u32 = 1_000_000;

/// A stage, by its place in the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Sequencer,
    Pre(usize),
    Deliver(usize),
    Build(usize),
    Commit,
}

pub struct Driver<'a> {
    parts: Parts<Vec<u8>>,
    rng: Rng,
    flows: &'a Flows,
    rings: VecRings,
    now: Micros,
    /// Batches that have not been received yet.
    coming: VecDeque<Vec<Vec<u8>>>,
    /// Stages in proportion to how often they get a turn.
    turns: Vec<Place>,
    /// Received frames so far, and the numbers in the trace of those that were taken.
    arrived: u64,
    taken: Vec<u64>,
    /// Frames that were not taken, as the thread of the sequencer has ended.
    cut: u64,
    /// Threads that have ended, and the steps until others take over.
    dead: Vec<(Place, u64)>,
    deaths_ppm: u32,
    /// Frames that have been sent.
    held: Vec<Vec<u8>>,
    /// Steps with something to do.
    steps: u64,
    tails: HashMap<FlowId, u32>,
    /// What the applications know.
    views: HashMap<FlowId, AppView>,
    /// The bytes of the receive rings when they were shown or acknowledged.
    pub shown: HashMap<FlowId, Vec<u8>>,
    pub seen: Vec<Seen>,
    /// Numbers of received frames, and of what was made, that were abandoned.
    pub lost: HashSet<u64>,
    pub unsent: HashSet<u64>,
    pub deaths: u32,
}

impl<'a> Driver<'a> {
    pub fn new(flows: &'a Flows, seed: u64, deaths_ppm: u32) -> Self {
        let mut rng = Rng::new(seed);
        let shape = Shape {
            pre: rng.between(1, 4) as usize,
            deliver: rng.between(1, 4) as usize,
            build: rng.between(1, 4) as usize,
            run: rng.between(1, 6) as usize,
            frames: rng.between(64, 100) as usize,
            events: rng.between(1, 8) as usize,
        };
        let frame = if flows.abilities.gso_max_bytes == 0 { 2048 } else { 1 << 15 };
        let parts = Parts::new(flows.fast_path(), shape, flows.abilities, vec![vec![0; frame]; FRAMES]).unwrap();
        let mut turns = vec![];
        let all = [Place::Sequencer, Place::Commit]
            .into_iter()
            .chain((0..shape.pre).map(Place::Pre))
            .chain((0..shape.deliver).map(Place::Deliver))
            .chain((0..shape.build).map(Place::Build));
        for place in all {
            let speed = 1 << rng.below(6);
            turns.extend(std::iter::repeat_n(place, speed));
        }
        let mut driver = Self {
            parts,
            rng,
            flows,
            rings: flows.rings(),
            now: flows.now,
            coming: VecDeque::new(),
            turns,
            arrived: 0,
            taken: vec![],
            cut: 0,
            dead: vec![],
            deaths_ppm,
            held: vec![],
            steps: 0,
            tails: HashMap::new(),
            views: HashMap::new(),
            shown: HashMap::new(),
            seen: vec![],
            lost: HashSet::new(),
            unsent: HashSet::new(),
            deaths: 0,
        };
        let Self { parts, rings, .. } = &mut driver;
        flows.install(|now, message| parts.group.message(now, message, &mut *rings).unwrap());
        driver
    }

    pub fn run(&mut self, steps: &[Step]) {
        self.coming = steps
            .iter()
            .filter_map(|step| if let Step::Batch(frames) = step { Some(frames.clone()) } else { None })
            .collect();
        for step in steps {
            for _ in 0..self.rng.below(20) {
                self.advance();
            }
            self.step(step);
        }
        self.until("the end", |d| d.released());
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Wait(us) => self.now = Micros(self.now.0 + us),
            Step::Batch(_) => self.until("a batch", |d| d.parts.group.receive(d.now)),
            Step::Update(flow, update) => {
                if !self.knows(*flow, update) {
                    // The trace's application has looked when it was not told.
                    self.until("a publication", |d| d.released());
                    let received = self.parts.group.view(*flow).rx_tail;
                    self.show(*flow, update.rx_head.min(received));
                }
                write(&mut self.rings, &mut self.tails, *flow, update);
                let _ = self.parts.group.app_update(self.now, *flow, *update);
            }
            Step::Message(message) => {
                let mut message = Some(message.clone());
                self.until("quiet", |d| {
                    message = message.take().and_then(|m| d.message(m));
                    assert!(message.is_none() || !d.parts.group.receive(d.now), "what arrives would keep it waiting");
                    message.is_none()
                });
            }
            Step::Transmit(None) => {
                if self.held.len() > FRAMES / 4 || self.rng.chance(100_000) {
                    self.give_back(usize::MAX);
                }
                let free = |d: &Self| FRAMES.saturating_sub(d.held.len() + d.outstanding());
                if free(self) < FRAMES / 2 {
                    self.until("frames", |d| d.released());
                    self.give_back(usize::MAX);
                }
                self.parts.group.transmit(self.now, 10_000);
            }
            Step::Transmit(Some(room)) => {
                self.until("all frames", |d| d.released() && d.outstanding() == 0);
                // All others are at the port.
                let mut spare = vec![];
                self.drain_free(&mut spare);
                self.held.append(&mut spare);
                self.give_back(*room);
                self.parts.group.transmit(self.now, 10_000);
                self.until("all frames", |d| d.released());
                self.give_back(usize::MAX);
            }
            Step::Publish => {
                self.until("events", |d| d.parts.group.publish());
                self.until("messages", |d| d.parts.group.report());
            }
        }
    }

    fn message(&mut self, message: ToFast) -> Option<ToFast> {
        self.parts.group.message(self.now, message, &mut self.rings).err()
    }

    /// Steps stages until something is so.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..STALLED {
            if done(self) {
                return;
            }
            self.advance();
        }
        panic!("the pipeline waits for ever for {what}: {:?}", self.parts);
    }

    /// One step of one stage.
    fn advance(&mut self) {
        self.dead.iter_mut().for_each(|(_, left)| *left = left.saturating_sub(1));
        if let Some(at) = self.dead.iter().position(|(_, left)| *left == 0) {
            let (place, _) = self.dead.swap_remove(at);
            self.recover(place);
        }
        let place = self.turns[self.rng.below(self.turns.len() as u64) as usize];
        if self.dead.iter().any(|(dead, _)| *dead == place) {
            return;
        }
        if self.rng.chance(self.deaths_ppm) && self.dies(place) {
            self.deaths += 1;
            self.dead.push((place, self.rng.between(1, 300)));
            return;
        }
        let Parts { pre, deliver, build, .. } = &mut self.parts;
        match place {
            Place::Sequencer => self.arrive(),
            Place::Pre(n) => self.steps += u64::from(pre[n].step()),
            Place::Deliver(n) => self.steps += u64::from(deliver[n].step(&mut self.rings)),
            Place::Build(n) => self.steps += u64::from(build[n].step(&self.rings)),
            Place::Commit => self.leave(),
        }
    }

    /// The thread of a stage ends with something in hand.
    fn dies(&mut self, place: Place) -> bool {
        let Parts { pre, deliver, build, commit, .. } = &mut self.parts;
        match place {
            Place::Pre(n) => pre[n].take(),
            Place::Deliver(n) => deliver[n].take(),
            Place::Build(n) => build[n].take(),
            Place::Commit => commit.front().is_some(),
            // In the middle of a batch.
            Place::Sequencer => false,
        }
    }

    fn recover(&mut self, place: Place) {
        let Parts { pre, deliver, build, commit, .. } = &mut self.parts;
        match place {
            Place::Pre(n) => {
                self.lost.extend(pre[n].holds().map(|number| self.taken[number as usize]));
                pre[n].recover();
            }
            Place::Build(n) => {
                self.unsent.extend(build[n].holds());
                build[n].recover();
            }
            // Its next step makes the copy once more, and half of it may be there. Were that to fail too, the flow would be reset.
            Place::Deliver(n) => {
                deliver[n].recover();
                deliver[n].step(&mut self.rings);
            }
            Place::Commit => {
                if let Some(Output::Frame { .. }) = commit.front() {
                    self.unsent.insert(commit.left());
                }
                commit.recover();
                self.leave();
            }
            Place::Sequencer => {}
        }
    }

    fn arrive(&mut self) {
        while self.rng.chance(800_000) && self.parts.sequencer.spent().is_some() {}
        let Some(frames) = self.coming.pop_front() else { return };
        if frames.len() > self.parts.sequencer.room() {
            while self.parts.sequencer.spent().is_some() {}
        }
        if frames.len() > self.parts.sequencer.room() {
            self.coming.push_front(frames);
            return;
        }
        let count = frames.len() as u64;
        // The port fails in the middle of a batch, and what it still had is lost.
        let dies = count > 1 && self.rng.chance(self.deaths_ppm * 20);
        let until = if dies { self.rng.between(1, count - 1) } else { count };
        let batch = frames.into_iter().enumerate().map(|(n, frame)| {
            if n as u64 == until {
                resume_unwind(Box::new("a port that fails"));
            }
            (frame, RxChecksum::Unknown)
        });
        let sequencer = &mut self.parts.sequencer;
        if catch_unwind(AssertUnwindSafe(|| assert!(sequencer.receive(PORT, batch).is_ok()))).is_err() {
            sequencer.recover();
        }
        self.taken.extend(self.arrived..self.arrived + until);
        self.lost.extend(self.arrived + until..self.arrived + count);
        self.arrived += count;
        self.cut += count - until;
        self.deaths += u32::from(dies);
    }

    fn leave(&mut self) {
        if self.dead.iter().any(|(dead, _)| *dead == Place::Commit) {
            return;
        }
        let Some(output) = self.parts.commit.next_output() else { return };
        match output {
            Output::Frame { port, frame, len, offload } => {
                self.acknowledges(&frame[..len]);
                self.seen.push(Seen::Frame(port, frame[..len].to_vec(), offload));
                self.held.push(frame);
                if self.rng.chance(500_000) {
                    self.give_back(usize::MAX);
                }
            }
            Output::Event(event, view) => {
                self.show(event.flow, view.rx_tail);
                self.views.insert(event.flow, view);
                self.seen.push(Seen::Event(event.flow, event.what, view));
            }
            Output::Message(message) => self.seen.push(Seen::Message(format!("{message:?}"))),
        }
    }

    /// Everything has left that was made.
    fn released(&mut self) -> bool {
        self.leave();
        self.parts.group.is_quiet() && self.parts.group.made() == self.parts.commit.left()
    }

    fn outstanding(&self) -> usize {
        (self.parts.group.made() - self.parts.commit.left()) as usize
    }

    fn give_back(&mut self, most: usize) {
        let from = self.held.len().saturating_sub(most);
        for frame in self.held.drain(from..) {
            self.parts.commit.give_back(frame);
        }
    }

    fn drain_free(&mut self, into: &mut Vec<Vec<u8>>) {
        while let Some(frame) = self.parts.group.take_free() {
            into.push(frame);
        }
    }

    /// Has the application been told what its words build on?
    fn knows(&self, flow: FlowId, update: &AppUpdate) -> bool {
        let view = self.views.get(&flow).copied().unwrap_or_default();
        let size = self.rings.tx[&flow].len() as u32;
        update.tx_tail.wrapping_sub(view.tx_head) <= size && update.rx_head.wrapping_sub(view.rx_tail) as i32 <= 0
    }

    /// What the peer is told to be there must have been copied.
    fn acknowledges(&mut self, frame: &[u8]) {
        let s = parse(frame).unwrap();
        let of = |setup: &&crate::flow::FlowSetup| {
            (setup.tuple.remote, setup.tuple.remote_port) == (s.destination, s.destination_port)
        };
        let Some(setup) = self.flows.setups.iter().find(of) else { return };
        let position = s.ack.wrapping_sub(setup.rcv_start.0);
        if position < 1 << 31 {
            self.show(setup.flow, position);
        }
    }

    /// From now on somebody knows that these bytes are there.
    fn show(&mut self, flow: FlowId, position: u32) {
        let (ring, shown) = (&self.rings.rx[&flow], self.shown.entry(flow).or_default());
        for at in shown.len() as u32..position {
            shown.push(ring[at as usize % ring.len()]);
        }
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

    pub fn abandoned(&self) -> (u64, u64) {
        let Parts { pre, build, commit, .. } = &self.parts;
        let unsent: u64 = build.iter().map(|build| build.abandoned()).sum();
        (self.cut + pre.iter().map(|pre| pre.abandoned()).sum::<u64>(), unsent + commit.abandoned())
    }

    pub fn lines(&self) -> Vec<String> {
        self.flows.setups.iter().map(|setup| self.parts.group.lines(setup.flow)).collect()
    }
}
