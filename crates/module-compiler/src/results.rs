//! Which result a program has where it ends. Most ways through a program end with a number that is known before, so the loop
//! over frames goes on from there, and asks nothing.

use towpath_modules::ProgramSpec;
use towpath_modules::data_flow::{self, Fact};
use towpath_modules::insn::{self, ALU, ALU64, Insn, JMP, JMP32};

/// Instructions that are looked at before an end. Compilers put a constant there, or a jump to where others end.
const BEFORE_AN_END: usize = 4;

/// What r0 has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Known {
    /// Nothing leads here.
    #[default]
    Unreached,
    /// A result, whose upper half nobody asks for.
    Number(u32),
    Any,
}

impl Fact for Known {
    fn join(&self, other: &Self) -> Self {
        match (*self, *other) {
            (Self::Unreached, one) | (one, Self::Unreached) => one,
            (one, same) if one == same => one,
            _ => Self::Any,
        }
    }
}

impl Known {
    fn after(self, insn: Insn) -> Self {
        match insn.code {
            code if code == JMP | insn::CALL => Self::Any,
            _ if insn.writes() != Some(0) => self,
            code if code == ALU | insn::MOV || code == ALU64 | insn::MOV => Self::Number(insn.imm.cast_unsigned()),
            _ => Self::Any,
        }
    }
}

/// By instruction of a program, without its functions: what r0 has before it.
pub(crate) struct Results(Vec<Known>);

impl Results {
    pub(crate) fn of(program: &ProgramSpec) -> Self {
        let start = program.functions.first().copied().unwrap_or(0);
        let before = data_flow::before(program, [(start, Known::Any)], |_, insn, known: &Known| known.after(insn));
        Self(before)
    }

    /// The result of the program if it goes from the instruction at `from` to the one at `to`, and ends there.
    pub(crate) fn of_way(&self, program: &ProgramSpec, from: usize, to: usize) -> Option<u32> {
        let (mut known, mut at) = (self.0.get(from)?.after(*program.insns.get(from)?), to);
        for _ in 0..BEFORE_AN_END {
            let insn = *program.insns.get(at)?;
            at = match insn.class() {
                JMP | JMP32 if always_jumps(insn) => insn.target(at)?,
                JMP if insn.op() == insn::EXIT => break,
                ALU | ALU64 if insn.op() == insn::MOV && insn.dst == 0 => at + 1,
                _ => return None,
            };
            known = known.after(insn);
        }
        let ends = program.insns.get(at).is_some_and(|insn| insn.code == JMP | insn::EXIT);
        match known {
            Known::Number(result) if ends => Some(result),
            _ => None,
        }
    }
}

fn always_jumps(insn: Insn) -> bool {
    insn.op() == insn::JA && matches!(insn.class(), JMP | JMP32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
        Insn { code, dst, src, off, imm }
    }

    fn results(insns: &[Insn]) -> impl Fn(usize, usize) -> Option<u32> + use<> {
        let program = ProgramSpec { name: "ends".into(), frags: false, insns: insns.to_vec(), functions: vec![0] };
        let results = Results::of(&program);
        move |from, to| results.of_way(&program, from, to)
    }

    #[test]
    fn a_result_is_known_if_all_ways_to_a_jump_have_set_it() {
        let way = results(&[
            insn(0xb4, 0, 0, 0, 2), // w0 = 2
            insn(0x15, 1, 0, 3, 0), // if r1 == 0 goto 5
            insn(0x15, 1, 0, 2, 1), // if r1 == 1 goto 5
            insn(0xbf, 0, 1, 0, 0), // r0 = r1
            insn(0x05, 0, 0, 0, 0), // goto 5
            insn(0x95, 0, 0, 0, 0), // exit
        ]);
        assert_eq!(
            [(1, 5), (2, 5), (4, 5), (1, 2), (2, 3)].map(|(from, to)| way(from, to)),
            [Some(2), Some(2), None, None, None]
        );
    }

    #[test]
    fn what_is_set_on_the_way_to_an_end_is_the_result() {
        let way = results(&[
            insn(0x15, 1, 0, 2, 0),  // if r1 == 0 goto 3
            insn(0xb7, 0, 0, 0, -1), // r0 = -1
            insn(0x95, 0, 0, 0, 0),  // exit
            insn(0xb4, 0, 0, 0, 1),  // w0 = 1
            insn(0x05, 0, 0, -3, 0), // goto 2
            insn(0x05, 0, 0, -1, 0), // goto 5
        ]);
        assert_eq!((way(0, 1), way(0, 3), way(1, 2)), (Some(u32::MAX), Some(1), Some(u32::MAX)));
        assert_eq!((way(0, 5), way(0, 9), way(9, 2)), (None, None, None), "no end, and nothing there");
    }

    #[test]
    fn what_a_helper_returns_is_not_known() {
        let way = results(&[insn(0xb4, 0, 0, 0, 2), insn(0x85, 0, 0, 0, 7), insn(0x95, 0, 0, 0, 0)]);
        assert_eq!((way(0, 2), way(1, 2)), (Some(2), None));
    }
}
