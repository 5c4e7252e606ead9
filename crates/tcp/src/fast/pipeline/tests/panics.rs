//! Panics that leave a connection half done: it is reset, and the others go on.
use super::PORT;
use crate::buffers::Rings;
use crate::fast::pipeline::{Abilities, Output, Parts, Shape};
use crate::fast::tests::{ACK, FIN, Harness, RST, VecRings, seg, setup};
use crate::fast::{FastConfig, FastPath, FlowTable};
use crate::flow::{FlowId, FlowSetup, FourTuple};
use crate::messages::{AppUpdate, AppView, ToFast, ToSlow, event};
use crate::time::Micros;
use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use towpath_wire::offload::RxChecksum;
use towpath_wire::segment::parse;

const FLOWS: [FlowId; 3] = [FlowId(3), FlowId(5), FlowId(7)];
const NOW: Micros = Micros(1_000_000);
/// Received frames in the pipeline, and frames to send with.
const FRAMES: usize = 16;

/// A frame that ends the thread which writes it, once, if it is poisoned.
struct Frame {
    bytes: Vec<u8>,
    poisoned: bool,
}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Frame {
    fn as_mut(&mut self) -> &mut [u8] {
        fails_if(std::mem::take(&mut self.poisoned));
        &mut self.bytes
    }
}

fn fails_if(fails: bool) {
    if fails {
        resume_unwind(Box::new("this fails"));
    }
}

/// Rings of which one cannot be written.
struct Broken<'a>(&'a mut VecRings, Option<FlowId>);

impl Rings for Broken<'_> {
    fn deliver(&mut self, flow: FlowId, position: u32, bytes: &[u8]) {
        fails_if(self.1 == Some(flow));
        self.0.deliver(flow, position, bytes);
    }
    fn fetch(&self, flow: FlowId, position: u32, out: &mut [u8]) {
        self.0.fetch(flow, position, out);
    }
}

struct World {
    parts: Parts<Frame>,
    rings: VecRings,
    /// Makes frames of each flow.
    peers: Vec<Harness>,
    broken: Option<FlowId>,
    views: HashMap<FlowId, AppView>,
    messages: Vec<String>,
    /// Flags and payload of the frames for each peer.
    sent: HashMap<u16, Vec<(u8, Vec<u8>)>>,
    /// Commit ends with the events of this flow.
    silent: Option<FlowId>,
}

impl World {
    fn new(poisoned: bool) -> Self {
        let config = FastConfig { seed: 1, delayed_ack_us: 0, ..FastConfig::default() };
        let mut fast = FastPath::new(0, config, Arc::new(FlowTable::new(16)));
        let (mut rings, mut peers) = (VecRings::default(), vec![]);
        for flow in FLOWS {
            let tuple = FourTuple { remote_port: 4000 + flow.0 as u16, ..setup().tuple };
            let setup = FlowSetup { flow, tuple, nodelay: true, ..setup() };
            rings.tx.insert(flow, vec![b'a' + flow.0 as u8; setup.tx_bytes as usize]);
            rings.rx.insert(flow, vec![0; setup.rx_bytes as usize]);
            peers.push(Harness::of(setup.clone()));
            fast.message(NOW, ToFast::Install(Box::new(setup)), &mut rings);
        }
        let shape = Shape { pre: 2, deliver: 2, build: 2, run: 2, frames: FRAMES, events: 4 };
        let frame = |n| Frame { bytes: vec![0; 2048], poisoned: poisoned && n == 0 };
        let parts = Parts::new(fast, shape, Abilities::default(), (0..FRAMES).map(frame).collect()).unwrap();
        Self {
            parts,
            rings,
            peers,
            broken: None,
            views: HashMap::new(),
            messages: vec![],
            sent: HashMap::new(),
            silent: None,
        }
    }

    /// The next data of a peer, which has sent `from` bytes.
    fn data(&self, peer: usize, from: u32) -> Frame {
        let bytes = vec![b'A' + peer as u8; 100];
        Frame { bytes: self.peers[peer].frame(&seg(from, 0, &bytes)), poisoned: false }
    }

    fn receive(&mut self, frames: Vec<Frame>) {
        let batch: Vec<_> = frames.into_iter().map(|frame| (frame, RxChecksum::Unknown)).collect();
        assert!(self.parts.sequencer.receive(PORT, batch.into_iter()).is_ok());
    }

    /// Runs the stages until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..100 {
            self.round();
        }
        let Parts { sequencer, group, commit, .. } = &mut self.parts;
        assert!(group.is_quiet() && group.made() == commit.left(), "nothing waits");
        while sequencer.spent().is_some() {}
        assert_eq!(sequencer.room(), FRAMES, "all received frames are back");
    }

    fn round(&mut self) {
        let Self { parts, rings, broken, .. } = self;
        let Parts { pre, group, deliver, build, .. } = parts;
        pre.iter_mut().for_each(|stage| while stage.step() {});
        let turn = AssertUnwindSafe(|| {
            while group.receive(NOW) {}
            group.transmit(NOW, 100);
            group.publish();
            group.report();
        });
        if catch_unwind(turn).is_err() {
            group.recover(NOW);
        }
        for stage in deliver {
            let mut rings = Broken(rings, *broken);
            if catch_unwind(AssertUnwindSafe(|| while stage.step(&mut rings) {})).is_err() {
                stage.recover();
            }
        }
        build.iter_mut().for_each(|stage| while stage.step(rings) {});
        if catch_unwind(AssertUnwindSafe(|| self.leave())).is_err() {
            self.parts.commit.recover();
        }
    }

    fn leave(&mut self) {
        let Self { parts: Parts { commit, .. }, views, messages, sent, silent, .. } = self;
        while let Some(output) = commit.front() {
            match output {
                Output::Frame { frame, len, .. } => {
                    let frame = &frame.bytes[..*len];
                    let s = parse(frame).unwrap();
                    let payload = frame[s.payload_offset as usize..].to_vec();
                    sent.entry(s.destination_port).or_default().push((s.flags, payload));
                }
                Output::Event(event, view) => {
                    fails_if(*silent == Some(event.flow));
                    assert!(view.eof || event.what & event::EOF == 0, "both say the same of the end");
                    views.insert(event.flow, *view);
                }
                Output::Message(message) => messages.push(format!("{message:?}")),
            }
            commit.done();
        }
    }

    fn was_told(&self, message: &ToSlow) -> bool {
        self.messages.contains(&format!("{message:?}"))
    }

    /// Which connections have been reset: what slow path and peers know.
    fn resets(&self) -> Vec<FlowId> {
        let told = FLOWS.into_iter().filter(|flow| self.was_told(&ToSlow::Aborted(*flow)));
        let told: Vec<_> = told.collect();
        let of = |flow: &FlowId| self.sent.get(&(4000 + flow.0 as u16));
        let peers = FLOWS.into_iter().filter(|flow| of(flow).is_some_and(|s| s.iter().any(|(f, _)| f & RST != 0)));
        assert_eq!(peers.collect::<Vec<_>>(), told, "slow path and peers know the same");
        assert_eq!(self.parts.group.resets(), told.len() as u64);
        told
    }

    /// All applications that are left go on.
    fn goes_on(&mut self, flows: &[FlowId], received: u32) {
        let frames = FLOWS.iter().enumerate().filter(|(_, flow)| flows.contains(flow));
        let frames = frames.map(|(peer, _)| self.data(peer, received)).collect();
        self.receive(frames);
        self.settle();
        for flow in flows {
            let view = self.views[flow];
            assert_eq!((view.rx_tail, view.errno), (received + 100, 0), "{flow:?}");
            let byte = b'A' + FLOWS.iter().position(|f| f == flow).unwrap() as u8;
            assert!(self.rings.rx[flow][..view.rx_tail as usize].iter().all(|b| *b == byte), "{flow:?}");
        }
    }
}

#[test]
fn a_copy_that_always_fails_resets_its_connection_and_nothing_else() {
    let mut world = World::new(false);
    let first = (0..3).map(|peer| world.data(peer, 0)).collect();
    world.receive(first);
    world.settle();
    world.broken = Some(FLOWS[0]);
    let next = vec![world.data(0, 100), world.data(1, 100), world.data(0, 200), world.data(2, 100)];
    world.receive(next);
    world.settle();
    assert_eq!(world.resets(), [FLOWS[0]]);
    let view = world.views[&FLOWS[0]];
    assert_eq!((view.rx_tail, view.errno), (100, 103), "no byte is shown that is not there");
    assert_eq!(world.parts.deliver.iter().map(|stage| stage.given_up()).sum::<u64>(), 2);
    world.goes_on(&FLOWS[1..], 200);
}

#[test]
fn an_end_behind_bytes_that_are_not_there_is_not_shown() {
    let mut world = World::new(false);
    world.broken = Some(FLOWS[0]);
    let bytes = world.peers[0].frame(&seg(0, 0, &[b'A'; 100]).with(ACK | FIN));
    world.receive(vec![Frame { bytes, poisoned: false }]);
    world.settle();
    assert_eq!(world.resets(), [FLOWS[0]]);
    let view = world.views[&FLOWS[0]];
    assert_eq!((view.rx_tail, view.eof, view.errno), (0, false, 103));
}

#[test]
fn a_copy_that_fails_once_is_made_once_more() {
    let mut world = World::new(false);
    world.broken = Some(FLOWS[0]);
    let data = vec![world.data(0, 0)];
    world.receive(data);
    world.round();
    world.broken = None;
    world.settle();
    world.goes_on(&FLOWS[..1], 100);
    assert!(world.resets().is_empty());
}

#[test]
fn the_number_of_a_flow_with_a_copy_that_failed_can_be_used_again() {
    let mut world = World::new(false);
    world.broken = Some(FLOWS[0]);
    let data = vec![world.data(0, 0)];
    world.receive(data);
    world.settle();
    world.broken = None;
    assert!(world.parts.group.message(NOW, ToFast::Remove(FLOWS[0]), &mut world.rings).is_ok());
    world.settle();
    assert!(world.was_told(&ToSlow::Removed(FLOWS[0])));
    let setup = world.peers[0].setup.clone();
    assert!(world.parts.group.message(NOW, ToFast::Install(Box::new(setup)), &mut world.rings).is_ok());
    world.goes_on(&FLOWS[..1], 0);
}

#[test]
fn a_batch_that_fails_resets_what_may_be_half_done() {
    for (after, left) in [(0, 0), (1, 0), (2, 1), (3, 2)] {
        let mut world = World::new(false);
        world.parts.group.fails_after = Some(after);
        let batch = (0..3).map(|peer| world.data(peer, 0)).collect();
        world.receive(batch);
        world.settle();
        assert_eq!(world.resets(), FLOWS[left..], "after {after} segments");
        // What was done before is copied and shown.
        for flow in &FLOWS[..left] {
            assert_eq!(world.views[flow].rx_tail, 100);
        }
        world.goes_on(&FLOWS[..left], 100);
    }
}

#[test]
fn a_flow_whose_turn_to_send_fails_is_reset_and_the_others_send() {
    let mut world = World::new(true);
    for flow in FLOWS {
        let update = AppUpdate { tx_tail: 10, nodelay: true, ..AppUpdate::default() };
        assert!(world.parts.group.app_update(NOW, flow, update).is_ok());
    }
    world.settle();
    assert_eq!(world.resets(), [FLOWS[0]]);
    for flow in &FLOWS[1..] {
        let sent = &world.sent[&(4000 + flow.0 as u16)];
        assert_eq!(sent.iter().map(|(_, data)| data.len()).sum::<usize>(), 10);
    }
    world.goes_on(&FLOWS[1..], 0);
}

#[test]
fn a_message_that_fails_resets_the_flow_that_it_is_for() {
    let mut world = World::new(false);
    let frame = world.data(1, 0).bytes;
    let Parts { group, .. } = &mut world.parts;
    let mut rings = Broken(&mut world.rings, Some(FLOWS[1]));
    let inject = AssertUnwindSafe(|| group.message(NOW, ToFast::Inject(PORT, frame.into()), &mut rings));
    assert!(catch_unwind(inject).is_err());
    group.recover(NOW);
    world.settle();
    assert_eq!(world.resets(), [FLOWS[1]]);
    world.goes_on(&[FLOWS[0], FLOWS[2]], 0);
}

#[test]
fn an_application_that_cannot_be_told_loses_its_connection() {
    let mut world = World::new(false);
    world.silent = Some(FLOWS[2]);
    let batch = (0..3).map(|peer| world.data(peer, 0)).collect();
    world.receive(batch);
    world.settle();
    assert_eq!(world.resets(), [FLOWS[2]]);
    // Its event, and that of the reset.
    assert_eq!(world.parts.commit.abandoned(), 2);
    world.goes_on(&FLOWS[..2], 100);
}

#[test]
fn a_port_that_fails_in_the_middle_of_a_batch_loses_only_what_it_still_had() {
    let mut world = World::new(false);
    let fails = Cell::new(true);
    let frames: Vec<_> = (0..3).map(|peer| world.data(peer, 0)).collect();
    let batch = frames.into_iter().enumerate().map(|(n, frame)| {
        fails_if(fails.get() && n == 2);
        (frame, RxChecksum::Unknown)
    });
    let sequencer = &mut world.parts.sequencer;
    assert!(catch_unwind(AssertUnwindSafe(|| sequencer.receive(PORT, batch).is_ok())).is_err());
    sequencer.recover();
    world.settle();
    world.goes_on(&FLOWS[..2], 100);
    assert!(!world.views.contains_key(&FLOWS[2]));
    world.goes_on(&FLOWS[2..], 0);
    assert!(world.resets().is_empty());
}
