//! Generation of segments and calls near the boundaries of the model's state.

use super::{Scene, Step};
use crate::model::{Model, ModelState, Segment};
use towpath_wire::segment::flags;

/// The source of choices: `below(n)` is in `0..n`.
pub struct Choices<'a>(pub &'a mut dyn FnMut(u64) -> u64);

impl Choices<'_> {
    fn below(&mut self, n: u32) -> u32 {
        (self.0)(u64::from(n)) as u32
    }

    fn percent(&mut self, percent: u32) -> bool {
        self.below(100) >= 100 - percent
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u32) as usize]
    }
}

/// The start of a sequence, and its length.
pub fn scene(choices: &mut Choices<'_>) -> (Scene, usize) {
    let start = [ModelState::Listen, ModelState::SynSent, ModelState::Listen, ModelState::SynSent, ModelState::Closed];
    let start = start[choices.below(41) as usize / 10];
    let irs = match choices.below(3) {
        0 => choices.below(u32::MAX),
        // Near the wrap of sequence numbers, and near the change of their sign.
        1 => 0u32.wrapping_sub(choices.below(3000)),
        _ => (1u32 << 31).wrapping_sub(choices.below(3000)),
    };
    let scene = Scene {
        start,
        listener: start == ModelState::Listen && choices.below(2) == 1,
        irs,
        seed: u64::from(choices.below(1 << 30)),
    };
    (scene, 4 + choices.below(24) as usize)
}

/// The next step for an endpoint in this model's state.
pub fn step(model: &Model, choices: &mut Choices<'_>) -> Step {
    if model.synchronized() && !model.closed && choices.percent(30) {
        return call(model, choices);
    }
    let segment = match model.state {
        ModelState::Closed | ModelState::Listen | ModelState::SynSent if choices.percent(75) => {
            handshake(model, choices)
        }
        ModelState::TimeWait if choices.percent(15) => {
            let seq = model.rcv_nxt.wrapping_add(choices.below(5000)).wrapping_sub(1000);
            Segment { seq, flags: flags::SYN, window: 65_535, mss: Some(1460), ..Segment::default() }
        }
        _ => anything(model, choices),
    };
    Step::Arrives(segment)
}

fn call(model: &Model, choices: &mut Choices<'_>) -> Step {
    let writes = matches!(model.state, ModelState::Established | ModelState::CloseWait);
    match choices.below(12) {
        0..=3 if writes => Step::Write(1 + choices.below(1200)),
        4 | 5 if writes => Step::Shutdown,
        6 if model.state != ModelState::TimeWait => Step::Close,
        _ => Step::Read,
    }
}

/// Mostly segments of a peer that opens a connection.
fn handshake(model: &Model, choices: &mut Choices<'_>) -> Segment {
    let answers = model.state == ModelState::SynSent && choices.percent(70);
    let extra = if choices.percent(4) { choices.pick(&[flags::FIN, flags::PSH, flags::URG, flags::RST]) } else { 0 };
    Segment {
        ack: if answers { model.snd_nxt } else { 0 },
        flags: flags::SYN | extra | if answers { flags::ACK } else { 0 },
        window: choices.pick(&[65_535, 65_535, 20_000, 0]),
        len: if choices.percent(5) { choices.below(100) } else { 0 },
        mss: choices.pick(&[Some(1460), Some(1460), None]),
        shift: choices.pick(&[None, Some(0), Some(3)]),
        sack_permitted: choices.below(2) == 1,
        ..Segment::default()
    }
}

fn anything(model: &Model, choices: &mut Choices<'_>) -> Segment {
    let mut len = match choices.below(10) {
        0..=3 => 0,
        4 => 1,
        5 => model.window().min(1460),
        6 => (model.window() + 1).min(1460),
        _ => 1 + choices.below(800),
    };
    let flags = flags_of(choices);
    let (mut seq, ack) = (seq(model, len, choices), ack(model, choices));
    if model.window() < 1400 && choices.percent(5) {
        // More than the whole window.
        (seq, len) = (model.rcv_nxt.wrapping_sub(choices.below(30)), model.window() + 30);
    }
    let syn = flags & flags::SYN != 0;
    Segment {
        seq,
        ack: if flags & flags::ACK != 0 { ack } else { 0 },
        flags,
        window: choices.pick(&[65_535, 65_535, 65_535, 65_535, 20_000, 0]),
        len: if syn && choices.percent(80) { 0 } else { len },
        urgent: if flags & flags::URG != 0 { choices.below(1000) as u16 } else { 0 },
        mss: syn.then_some(1460),
        ..Segment::default()
    }
}

fn flags_of(choices: &mut Choices<'_>) -> u8 {
    use flags::{ACK, FIN, PSH, RST, SYN, URG};
    match choices.below(40) {
        0 => RST,
        1 => RST | ACK,
        2 => SYN,
        3 => SYN | ACK,
        4..=8 => FIN | ACK,
        9 => PSH,
        10 => FIN,
        11..=13 => ACK | URG,
        14 if choices.below(4) == 3 => choices.below(64) as u8,
        _ => ACK | PSH,
    }
}

/// A sequence number: mostly in order, else at a boundary, a byte beside it, or random.
fn seq(model: &Model, len: u32, choices: &mut Choices<'_>) -> u32 {
    let (next, edge) = (model.rcv_nxt, model.rcv_nxt.wrapping_add(model.window()));
    let near = choices.pick(&[0, 1, u32::MAX]);
    match choices.below(16) {
        0 => next.wrapping_sub(len).wrapping_add(near),
        1 => edge.wrapping_add(near),
        2 => edge.wrapping_sub(len).wrapping_add(near),
        3 => next.wrapping_add(near),
        4 | 5 => next.wrapping_add(choices.below(model.window().max(1))),
        6 => next.wrapping_sub(choices.below(2000)),
        7 => (0x1_0000_0000_u64 - 1 - u64::from(choices.below(1 << 31))) as u32,
        8 => 0,
        _ => next,
    }
}

/// An acknowledgement number: mostly of all data, else at a boundary, a byte beside it, or random.
fn ack(model: &Model, choices: &mut Choices<'_>) -> u32 {
    let near = choices.pick(&[0, 1, u32::MAX]);
    match choices.below(16) {
        0 | 1 => model.snd_una.wrapping_add(near),
        2 => model.snd_nxt.wrapping_add(near),
        3 => model.snd_una.wrapping_sub(65_535 << choices.below(4)).wrapping_add(near),
        4 => model.snd_una.wrapping_add(choices.below(model.snd_nxt.wrapping_sub(model.snd_una).max(1))),
        5 if choices.below(3) == 0 => choices.below(u32::MAX),
        _ => model.snd_nxt,
    }
}
