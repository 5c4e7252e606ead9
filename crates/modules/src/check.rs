//! What can be seen of a program without running it: known instructions, jumps within a function, helpers that there are.
//! It is no proof that the program is safe, and asks for what compiler and interpreter rely on.

use crate::context::{self, Base};
use crate::error::LoadError;
use crate::helpers;
use crate::insn::{self, ALU, ALU64, Insn, JMP, JMP32, LD, LD_IMM64, LDX, ST, STX};
use crate::names;
use crate::object::ProgramSpec;

/// What a program needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Room around the frame: it moves the ends, or looks at the metadata.
    pub room: bool,
    /// What is known of the frame: it looks at the metadata.
    pub meta: bool,
}

/// Numbers of the stack's register, and of all registers.
pub const STACK: u8 = 10;
const REGISTERS: u8 = 11;

/// Checks a program, of an object with this many maps.
pub fn check(program: &ProgramSpec, maps: usize) -> Result<Needs, LoadError> {
    let refuse = |at: usize, why: String| LoadError::Instruction { program: program.name.clone(), at, why };
    let insns = &program.insns;
    // By instruction: the number of its function, and is it the second half of one?
    let mut owner = vec![0; insns.len()];
    for (number, start) in program.functions.iter().enumerate() {
        let end = program.functions.get(number + 1).copied().unwrap_or(insns.len());
        let last = insns.get(end.wrapping_sub(1)).filter(|_| start < &end);
        let ends = last.is_some_and(|last| {
            last.code == JMP | insn::EXIT || matches!((last.class(), last.op()), (JMP | JMP32, insn::JA))
        });
        if !ends {
            return Err(refuse(end.saturating_sub(1), "a function does not end here with a return or a jump".into()));
        }
        owner[*start..end].fill(number);
    }
    let mut second = vec![false; insns.len()];
    for at in 0..insns.len() {
        if second[at] {
            continue;
        }
        let insn = insns[at];
        if insn.dst >= REGISTERS || insn.src >= REGISTERS {
            return Err(refuse(at, "there is no such register".into()));
        }
        let known = match insn.class() {
            LD => imm64(insn, insns.get(at + 1), maps).inspect(|()| second[at + 1] = true),
            LDX | ST | STX => memory(insn),
            ALU | ALU64 => arithmetic(insn),
            _ => jump(insn),
        };
        known.map_err(|why| refuse(at, why))?;
        if insn.writes() == Some(STACK) {
            return Err(refuse(at, "it writes r10, where the stack is".into()));
        }
    }
    for (at, insn) in insns.iter().enumerate().filter(|(at, _)| !second[*at]) {
        let is_call = insn.code == JMP | insn::CALL && insn.src == insn::FUNCTION;
        let target = if is_call { usize::try_from(at as i64 + 1 + i64::from(insn.imm)).ok() } else { insn.target(at) };
        let inside = |target: usize| second.get(target) == Some(&false) && owner[target] == owner[at];
        let fits = match target {
            Some(target) if is_call => program.functions.contains(&target),
            Some(target) => inside(target),
            // Jumps before the program have no target either.
            None => !is_call && !matches!(insn.class(), JMP | JMP32) || matches!(insn.op(), insn::CALL | insn::EXIT),
        };
        if !fits {
            return Err(refuse(at, "it jumps out of its function".into()));
        }
    }
    Ok(Needs { room: wants_room(program), meta: reads_meta(program) })
}

/// Does a program move a frame's ends, or look at `data_meta`?
pub fn wants_room(program: &ProgramSpec) -> bool {
    let moves =
        |insn: &Insn| insn.code == JMP | insn::CALL && insn.src == insn::HELPER && helpers::MOVERS.contains(&insn.imm);
    program.insns.iter().any(moves) || reads_meta(program)
}

/// Does a program look at `data_meta`?
fn reads_meta(program: &ProgramSpec) -> bool {
    let mut bases = context::bases(program).into_iter().zip(&program.insns);
    bases.any(|(base, insn)| insn.code == LDX | insn::MEM && insn.off == 8 && may_be_context(base))
}

fn may_be_context(base: Base) -> bool {
    matches!(base, Base::Context | Base::Either)
}

fn imm64(insn: Insn, next: Option<&Insn>, maps: usize) -> Result<(), String> {
    if insn.code != LD_IMM64 {
        return Err("this way to load (LD_ABS, LD_IND) is of socket filters, and a module is none".into());
    }
    let map = usize::try_from(insn.imm).is_ok_and(|map| map < maps);
    match (insn.src, next) {
        (_, None) => Err("its second half is missing".into()),
        (_, Some(next)) if next.code != 0 || next.dst != 0 || next.src != 0 || next.off != 0 => {
            Err("its second half is another instruction".into())
        }
        (0, _) => Ok(()),
        (insn::MAP, _) | (insn::MAP_VALUE, _) if map => Ok(()),
        (insn::MAP | insn::MAP_VALUE, _) => Err("there is no such map".into()),
        (4, _) => Err("it names a function for a helper to call, and modules have no such helpers".into()),
        (source, _) => Err(format!("modules have no 64-bit constants of kind {source}")),
    }
}

fn memory(insn: Insn) -> Result<(), String> {
    let sizes = insn.size();
    let known = match (insn.class(), insn.mode()) {
        (_, insn::MEM) => true,
        (LDX, insn::MEMSX) => sizes < 8,
        (STX, insn::ATOMIC) => {
            let operation = matches!(insn.imm & !insn::FETCH, 0x00 | 0x40 | 0x50 | 0xa0);
            sizes >= 4 && (operation || insn.imm == insn::XCHG || insn.imm == insn::CMPXCHG)
        }
        _ => false,
    };
    if known { Ok(()) } else { Err(format!("modules do not know this access (code {:#x})", insn.code)) }
}

fn arithmetic(insn: Insn) -> Result<(), String> {
    let (register, off) = (insn.by_register(), insn.off);
    let known = match insn.op() {
        insn::END => off == 0 && matches!(insn.imm, 16 | 32 | 64) && (insn.class() == ALU || !register),
        insn::NEG => off == 0 && !register,
        insn::DIV | insn::MOD => matches!(off, 0 | 1),
        insn::MOV if register => matches!(off, 0 | 8 | 16) || (off == 32 && insn.class() == ALU64),
        insn::ADD..=insn::ARSH => off == 0,
        _ => false,
    };
    if known { Ok(()) } else { Err(format!("modules do not know this arithmetic (code {:#x})", insn.code)) }
}

fn jump(insn: Insn) -> Result<(), String> {
    match (insn.class(), insn.op()) {
        (JMP, insn::CALL) if !insn.by_register() => match insn.src {
            insn::HELPER if helpers::place(insn.imm).is_some() => Ok(()),
            insn::HELPER => Err(format!("it calls the helper {}, which modules do not have", names::helper(insn.imm))),
            insn::FUNCTION => Ok(()),
            2 => Err("it calls a function of the kernel (kfunc), which modules do not have".into()),
            _ => Err("modules do not know this call".into()),
        },
        (JMP, insn::EXIT) | (JMP | JMP32, insn::JA) if !insn.by_register() => Ok(()),
        (_, insn::JEQ..=insn::JSGE | insn::JLT..=insn::JSLE) => Ok(()),
        _ => Err(format!("modules do not know this jump (code {:#x})", insn.code)),
    }
}
