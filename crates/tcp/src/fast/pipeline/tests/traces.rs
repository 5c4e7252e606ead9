//! Traces of several flows at a time: each flow's is that of the prediction's test, recorded while run-to-completion answers.
use super::{PORT, Step};
use crate::fast::pipeline::Abilities;
use crate::fast::tests::prediction::Trace;
use crate::fast::tests::{FLOW, Harness, VecRings, setup};
use crate::fast::{FastConfig, FastPath, FlowTable};
use crate::flow::{Ecn, FlowId, FlowSetup, FourTuple, Link};
use crate::messages::{Splicing, ToFast};
use crate::time::Micros;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use towpath_rng::Rng;
use towpath_wire::checksum;

/// The first and the last are marked in one place of [`super::super::copies`].
const FLOWS: [FlowId; 3] = [FlowId(3), FlowId(5), FlowId(67)];

/// The flows of a trace, and what they have in common.
pub struct Flows {
    pub setups: Vec<FlowSetup>,
    pub abilities: Abilities,
    pub now: Micros,
    prediction: bool,
}

/// The byte that an application writes at a position.
pub fn written(position: u32) -> u8 {
    (position ^ position >> 8 ^ position >> 16) as u8
}

impl Flows {
    fn new(rng: &mut Rng) -> Self {
        let v6 = |n: u16| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n));
        let mut setups = vec![];
        for flow in &FLOWS[..rng.between(1, 3) as usize] {
            let tuple = match flow.0 {
                5 => FourTuple { local: v6(1), remote: v6(2), ..setup().tuple },
                n => FourTuple { remote_port: 4000 + n as u16, ..setup().tuple },
            };
            setups.push(FlowSetup {
                flow: *flow,
                tuple,
                timestamps: rng.chance(900_000),
                sack: rng.chance(800_000),
                ecn: [Ecn::Off, Ecn::Off, Ecn::Classic, Ecn::Dctcp][rng.below(4) as usize],
                link: Link { vlan: rng.chance(100_000).then_some(7), ..setup().link },
                ..setup()
            });
        }
        let checksum = rng.chance(500_000);
        let cuts = checksum && rng.chance(500_000);
        let abilities = Abilities { checksum, gso_max_bytes: if cuts { 30_000 } else { 0 } };
        Self { setups, abilities, now: Micros(1_000_000), prediction: rng.chance(700_000) }
    }

    fn config(&self) -> FastConfig {
        FastConfig { seed: 1, prediction: self.prediction, slow_segments: 40, ..FastConfig::default() }
    }

    pub fn fast_path(&self) -> FastPath {
        FastPath::new(0, self.config(), Arc::new(FlowTable::new(128)))
    }

    pub fn rings(&self) -> VecRings {
        let mut rings = VecRings::default();
        for setup in &self.setups {
            rings.tx.insert(setup.flow, vec![0; setup.tx_bytes as usize]);
            rings.rx.insert(setup.flow, vec![0; setup.rx_bytes as usize]);
        }
        rings
    }

    pub fn install(&self, mut message: impl FnMut(Micros, ToFast)) {
        self.setups.iter().for_each(|setup| message(self.now, ToFast::Install(Box::new(setup.clone()))));
    }
}

/// The steps of one flow alone.
fn alone(flows: &Flows, setup: &FlowSetup, rng: Rng, steps: usize) -> Vec<Step> {
    let mut h = Harness::configured(FlowSetup { flow: FLOW, ..setup.clone() }, flows.config());
    (h.tx.unsummed, h.tx.gso_max_bytes) = (flows.abilities.checksum, flows.abilities.gso_max_bytes);
    let (mut trace, mut recorded) = (Trace::new(rng), vec![]);
    for _ in 0..steps {
        let act = trace.rng.below(32);
        let us = trace.rng.below(3000);
        h.now = h.now.after(us);
        recorded.push(Step::Wait(us));
        match act {
            0..15 => {
                let count = if trace.rng.chance(600_000) { 1 } else { trace.rng.between(2, 9) };
                let mut segments: Vec<_> = (0..count).map(|_| trace.segment(&h)).collect();
                if trace.rng.chance(200_000) {
                    // What comes ahead of a hole comes again with other bytes, and the hole is filled.
                    let from = trace.rng.below(segments.len() as u64) as usize;
                    segments[from..].reverse();
                    let mut again = segments[from].clone();
                    again.data.iter_mut().for_each(|byte| *byte ^= 0x55);
                    segments.insert(from + 1, again);
                }
                recorded.push(Step::Batch(segments.iter().map(|s| h.frame(s)).collect()));
                h.batch(&segments);
            }
            15..28 => {
                let before = h.app;
                h.app = trace.update(&h);
                recorded.push(Step::Update(setup.flow, h.app));
                if h.update().is_err() {
                    h.app = before;
                }
            }
            28 => {
                let message = match trace.rng.below(12) {
                    0 => ToFast::Splice(FLOW, Splicing::Hold(1)),
                    1 | 2 => ToFast::Splice(FLOW, Splicing::Release),
                    3 => ToFast::Inject(PORT, h.frame(&trace.segment(&h)).into()),
                    _ => trace.message(&h),
                };
                recorded.push(Step::Message(of(setup.flow, message.clone())));
                h.message(message);
            }
            _ => {}
        }
        if trace.rng.chance(500_000) {
            let room = trace.rng.chance(50_000).then(|| trace.rng.below(3) as usize);
            h.tx.room = room.unwrap_or(usize::MAX);
            h.fast.transmit(h.now, 10_000, &h.rings, &mut h.tx);
            recorded.push(Step::Transmit(room));
        }
        if trace.rng.chance(700_000) {
            h.collect();
            recorded.push(Step::Publish);
        }
        if h.app.closed {
            break;
        }
    }
    let abort = ToFast::Abort { flow: setup.flow, rst: true, errno: None };
    let last = [Step::Message(abort), Step::Message(ToFast::Remove(setup.flow)), Step::Transmit(None), Step::Publish];
    recorded.extend(last);
    recorded
}

/// A message of the test's flow for this one.
fn of(flow: FlowId, message: ToFast) -> ToFast {
    match message {
        ToFast::SetMss(_, mss) => ToFast::SetMss(flow, mss),
        ToFast::SetWindow(_, window) => ToFast::SetWindow(flow, window),
        ToFast::Timeout(_, window) => ToFast::Timeout(flow, window),
        ToFast::ProbeWindow(_) => ToFast::ProbeWindow(flow),
        ToFast::KeepAlive(_) => ToFast::KeepAlive(flow),
        ToFast::SendAck(_) => ToFast::SendAck(flow),
        ToFast::Splice(_, step) => ToFast::Splice(flow, step),
        other => other,
    }
}

/// Of a segment over IPv4.
fn fill_checksums(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = checksum::finish(checksum::add(0, &frame[14..34]));
    frame[24..26].copy_from_slice(&sum);
    towpath_wire::emit::fill_checksum(frame);
}

/// A frame that is no segment of a flow.
fn stray(rng: &mut Rng, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    match rng.below(6) {
        0 => frame.truncate(rng.below(frame.len() as u64) as usize),
        1 => {
            let at = rng.below(frame.len() as u64) as usize;
            frame[at] ^= 1 << rng.below(8);
        }
        2 => {
            // Another port, and so another checksum.
            frame[35] ^= 0x40;
            towpath_wire::emit::fill_checksum(&mut frame);
        }
        // From where nobody sends, and from itself.
        3 => {
            frame[26..30].copy_from_slice(&[224, 0, 0, 1]);
            fill_checksums(&mut frame);
        }
        4 => {
            frame.copy_within(30..34, 26);
            frame.copy_within(36..38, 34);
            fill_checksums(&mut frame);
        }
        _ => rng.fill(&mut frame),
    }
    frame
}

/// A trace: the steps of its flows in turns, some of their batches made one.
pub fn trace(seed: u64, steps: usize) -> (Flows, Vec<Step>) {
    let mut rng = Rng::new(seed);
    let flows = Flows::new(&mut rng);
    let mut left: Vec<_> =
        flows.setups.iter().map(|setup| alone(&flows, setup, rng.fork(), steps).into_iter().peekable()).collect();
    let mut all: Vec<Step> = vec![];
    while !left.is_empty() {
        let at = rng.below(left.len() as u64) as usize;
        let Some(mut step) = left[at].next() else {
            drop(left.remove(at));
            continue;
        };
        if let Step::Batch(frames) = &mut step {
            if rng.chance(300_000) {
                let stray = stray(&mut rng, &frames[0]);
                frames.insert(rng.below(frames.len() as u64 + 1) as usize, stray);
            }
            if let Some(Step::Batch(before)) = all.last_mut()
                && before.len() + frames.len() <= 64
                && rng.chance(500_000)
            {
                // The order within each flow stays.
                for frame in frames.drain(..) {
                    before.push(frame);
                }
                continue;
            }
        }
        if matches!(step, Step::Wait(_)) && matches!(all.last(), Some(Step::Batch(_))) && rng.chance(500_000) {
            continue;
        }
        all.push(step);
    }
    (flows, all)
}
