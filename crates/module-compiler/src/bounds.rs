//! Which registers have a place in the frame, and which its end. The loop over frames knows their lengths. So a comparison of
//! such a place with the end is one of an offset with the length, and most of them need no address.
//!
//! The verifier accepts no place further from the frame than addresses reach. So offsets compare as the places do, with their
//! signs: a place may be before the frame.

use towpath_modules::ProgramSpec;
use towpath_modules::abi::{Base, Field};
use towpath_modules::data_flow::{self, Fact};
use towpath_modules::insn::{self, ALU64, Insn, JMP};

/// What a register has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing leads here.
    #[default]
    Unreached,
    /// The frame's begin, and something added to it.
    Frame,
    End,
    Other,
}

impl Fact for Place {
    fn join(&self, other: &Self) -> Self {
        match (*self, *other) {
            (Self::Unreached, one) | (one, Self::Unreached) => one,
            (one, same) if one == same => one,
            _ => Self::Other,
        }
    }
}

pub(crate) type Places = [Place; 11];

/// How an instruction makes a place in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// It is the begin.
    Begin,
    /// It is that of this register.
    Copy(u8),
    /// It is that of this register, moved by a number.
    Moved(u8, i32),
    /// It is that of the one register, moved by what the other has.
    MovedBy(u8, u8),
}

/// By instruction of a program, without its functions: what registers have before it.
pub(crate) fn places(program: &ProgramSpec, bases: &[Base]) -> Vec<Places> {
    let start = program.functions.first().copied().unwrap_or(0);
    let begin = (start, [Place::Other; 11]);
    data_flow::before(program, [begin], |at, insn, state: &Places| after(insn, bases[at], *state))
}

fn after(insn: Insn, base: Base, mut state: Places) -> Places {
    if insn.code == JMP | insn::CALL {
        state[..=5].fill(Place::Other);
    } else if let Some(written) = insn.writes() {
        let is_end = field(insn, base) == Some(Field::DataEnd)
            || insn.code == ALU64 | insn::MOV | insn::X && insn.off == 0 && state[usize::from(insn.src)] == Place::End;
        state[usize::from(written)] = match made(insn, base, &state) {
            Some(_) => Place::Frame,
            None if is_end => Place::End,
            None => Place::Other,
        };
    }
    state
}

fn field(insn: Insn, base: Base) -> Option<Field> {
    Field::of_load(insn, base).filter(|_| base == Base::Context)
}

/// The place in the frame that an instruction makes, if registers have these before it.
pub(crate) fn made(insn: Insn, base: Base, before: &Places) -> Option<Made> {
    let (dst, src) = (insn.dst, insn.src);
    let in_frame = |register: u8| before[usize::from(register)] == Place::Frame;
    let is_number = |register: u8| before[usize::from(register)] == Place::Other;
    match insn.code {
        _ if field(insn, base) == Some(Field::Data) => Some(Made::Begin),
        code if code == ALU64 | insn::MOV | insn::X && insn.off == 0 && in_frame(src) => Some(Made::Copy(src)),
        code if code == ALU64 | insn::ADD && in_frame(dst) => Some(Made::Moved(dst, insn.imm)),
        code if code == ALU64 | insn::ADD | insn::X && in_frame(dst) && is_number(src) => Some(Made::MovedBy(dst, src)),
        code if code == ALU64 | insn::ADD | insn::X && is_number(dst) && in_frame(src) => Some(Made::MovedBy(src, dst)),
        _ => None,
    }
}

/// Does a jump compare a place in the frame with the end? `Some(true)`: the place comes first.
pub(crate) fn compares(insn: Insn, before: &Places) -> Option<bool> {
    let orders = matches!(insn.op(), insn::JGT | insn::JGE | insn::JLT | insn::JLE);
    if insn.class() != JMP || !insn.by_register() || !orders {
        return None;
    }
    match [insn.dst, insn.src].map(|register| before[usize::from(register)]) {
        [Place::Frame, Place::End] => Some(true),
        [Place::End, Place::Frame] => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Place::{End, Frame, Other};
    use towpath_modules::abi::bases;

    fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
        Insn { code, dst, src, off, imm }
    }

    /// What registers 1 to 4 have before the last instruction.
    fn last(insns: &[Insn]) -> [Place; 4] {
        let insns = [insns, &[insn(0x95, 0, 0, 0, 0)]].concat();
        let program = ProgramSpec { name: "bounds".into(), frags: false, insns, functions: vec![0] };
        let places = places(&program, &bases(&program));
        let last = places[places.len() - 1];
        [last[1], last[2], last[3], last[4]]
    }

    const END: Insn = Insn { code: 0x61, dst: 2, src: 1, off: 4, imm: 0 };
    const DATA: Insn = Insn { code: 0x61, dst: 3, src: 1, off: 0, imm: 0 };

    #[test]
    fn places_are_followed_through_copies_and_sums() {
        let add = insn(0x07, 3, 0, 0, -14);
        let copy = insn(0xbf, 4, 3, 0, 0);
        assert_eq!(last(&[END, DATA, add, copy]), [Other, End, Frame, Frame]);
        let by_register = [insn(0x0f, 3, 5, 0, 0), insn(0xb7, 4, 0, 0, 9), insn(0x0f, 4, 3, 0, 0)];
        assert_eq!(last(&[&[END, DATA], &by_register[..]].concat()), [Other, End, Frame, Frame]);
    }

    #[test]
    fn what_is_something_else_on_one_of_two_ways_is_no_place() {
        assert_eq!(last(&[END, DATA, insn(0x15, 5, 0, 1, 0), insn(0xb7, 3, 0, 0, 1)]), [Other, End, Other, Other]);
        assert_eq!(last(&[END, DATA, insn(0x15, 5, 0, 1, 0), insn(0xbf, 2, 3, 0, 0)]), [Other, Other, Frame, Other]);
        // Half of an address, a difference, a place that was stored.
        assert_eq!(last(&[DATA, insn(0xbc, 4, 3, 0, 0)])[3], Other);
        assert_eq!(last(&[END, DATA, insn(0x1f, 2, 3, 0, 0)])[1], Other);
        assert_eq!(last(&[DATA, insn(0x7b, 10, 3, -8, 0), insn(0x79, 4, 10, -8, 0)])[3], Other);
        // A call overwrites what it may.
        assert_eq!(last(&[END, DATA, insn(0x85, 0, 0, 0, 7)]), [Other; 4]);
    }

    #[test]
    fn places_in_the_frame_and_its_end_are_compared() {
        let before = [Other, Other, End, Frame, Frame, Other, Other, Other, Other, Other, Other];
        let by = |code, dst, src| compares(insn(code, dst, src, 0, 0), &before);
        assert_eq!([by(0x2d, 3, 2), by(0xbd, 4, 2), by(0xad, 2, 3)], [Some(true), Some(true), Some(false)]);
        assert_eq!([by(0x2d, 3, 4), by(0x2d, 1, 2), by(0x2e, 3, 2), by(0x1d, 3, 2), by(0x25, 3, 2)], [None; 5]);
    }
}
