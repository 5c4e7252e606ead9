//! Which loads are of the context. Its fields are 32 bits wide for the program and pointers here, so a load of one is
//! another instruction. The kernel's verifier allows the context as a base only as it was given: nothing but 0 may be added to
//! its pointer. So a base can be compared with it, where it is not plain from the program what it is.

use crate::data_flow::{self, Fact};
use crate::insn::{self, ALU64, Insn, JMP, LDX, STX};
use crate::object::ProgramSpec;

/// What a register has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Base {
    /// Nothing leads here.
    #[default]
    Unreached,
    /// The context.
    Context,
    /// Something else.
    Other,
    /// The one or the other.
    Either,
}

impl Fact for Base {
    fn join(&self, other: &Self) -> Self {
        match (*self, *other) {
            (Self::Unreached, one) | (one, Self::Unreached) => one,
            (one, same) if one == same => one,
            _ => Self::Either,
        }
    }
}

type State = [Base; 11];

/// By instruction: what the base of the load is.
pub fn bases(program: &ProgramSpec) -> Vec<Base> {
    // The context comes from the stack only if a program has put it there. The verifier lets it keep pointers nowhere else.
    let bases = bases_if(program, Base::Other);
    let keeps = |(insn, base): (&Insn, &Base)| {
        let stores = insn.class() == STX && insn.mode() == insn::MEM && insn.size() == 8;
        stores && matches!(base, Base::Context | Base::Either)
    };
    if program.insns.iter().zip(&bases).any(keeps) { bases_if(program, Base::Either) } else { bases }
}

/// The same if a pointer on the stack is this.
fn bases_if(program: &ProgramSpec, on_stack: Base) -> Vec<Base> {
    let begins = program.functions.iter().enumerate().map(|(number, start)| {
        let mut entry = [Base::Other; 11];
        if number == 0 {
            entry[1] = Base::Context;
        } else {
            entry[1..=5].fill(Base::Either);
        }
        (*start, entry)
    });
    let before = data_flow::before(program, begins, |_, insn, state| after(insn, *state, on_stack));
    before.iter().zip(&program.insns).map(|(state, insn)| state[usize::from(insn.src)]).collect()
}

fn after(insn: Insn, mut state: State, on_stack: Base) -> State {
    if insn.code == JMP | insn::CALL {
        state[1..=5].fill(Base::Other);
        // A function may return what it was given.
        state[0] = if insn.src == insn::FUNCTION { Base::Either } else { Base::Other };
    } else if insn.code == ALU64 | insn::MOV | insn::X && insn.off == 0 {
        state[usize::from(insn.dst)] = state[usize::from(insn.src)];
    } else if insn.class() == ALU64 && insn.op() != insn::MOV && may_keep(insn, &state) {
        state[usize::from(insn.dst)] = Base::Either;
    } else if let Some(written) = insn.writes() {
        // A pointer on the stack is 64 bits wide.
        let spilled = insn.class() == LDX && insn.mode() == insn::MEM && insn.size() == 8;
        state[usize::from(written)] = if spilled { on_stack } else { Base::Other };
    }
    state
}

/// The verifier lets a program add 0 to the context's pointer, or that to 0, and subtract 0.
fn may_keep(insn: Insn, state: &State) -> bool {
    let is_context = |register: u8| matches!(state[usize::from(register)], Base::Context | Base::Either);
    is_context(insn.dst) || (insn.by_register() && is_context(insn.src))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts a register on the stack, takes it back as r2, and loads from that.
    fn kept(register: u8) -> Base {
        let insn = |code, dst, src, off| Insn { code, dst, src, off, imm: 0 };
        let insns = vec![
            insn(LDX | insn::MEM, 3, 1, 0),
            insn(STX | insn::MEM | 0x18, 10, register, -8),
            insn(LDX | insn::MEM | 0x18, 2, 10, -8),
            insn(LDX | insn::MEM, 0, 2, 8),
            insn(JMP | insn::EXIT, 0, 0, 0),
        ];
        bases(&ProgramSpec { name: "kept".into(), frags: false, insns, functions: vec![0] })[3]
    }

    #[test]
    fn arithmetic_may_leave_the_context_what_it_is() {
        // On r1, with r3 from the frame: constants, and either register as the other's operand.
        for (code, dst, src, base) in [
            (ALU64 | insn::ADD, 1, 0, Base::Either),
            (ALU64 | insn::SUB | insn::X, 1, 3, Base::Either),
            (ALU64 | insn::ADD | insn::X, 3, 1, Base::Either),
            (ALU64 | insn::ADD | insn::X, 3, 4, Base::Other),
            (ALU64 | insn::MOV, 1, 0, Base::Other),
        ] {
            let insn = |code, dst, src, off| Insn { code, dst, src, off, imm: 0 };
            let insns = vec![
                insn(LDX | insn::MEM, 3, 1, 0),
                insn(code, dst, src, 0),
                insn(LDX | insn::MEM, 0, dst, 0),
                insn(JMP | insn::EXIT, 0, 0, 0),
            ];
            let program = ProgramSpec { name: "kept".into(), frags: false, insns, functions: vec![0] };
            assert_eq!(bases(&program)[2], base, "{code:#x} {dst} {src}");
        }
    }

    #[test]
    fn what_comes_from_the_stack_may_be_the_context_only_if_that_was_put_there() {
        assert_eq!((kept(1), kept(3)), (Base::Either, Base::Other));
    }
}
