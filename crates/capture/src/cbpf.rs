//! Classic BPF: the language of tcpdump's filters. Programs are checked as the kernel checks them
//! (`bpf_check_classic` and `check_load_and_stores` of net/core/filter.c) and mean what they mean there.
//!
//! A captured frame can answer some of the kernel's extensions (loads from [`AD_OFF`] on). They are its protocol, its
//! direction, and that it has lost no VLAN tag. A program with another one is refused.

use std::fmt;

/// Most instructions of a program.
pub const MAX_INSTRUCTIONS: usize = 4096;
/// Words of a program's own memory.
const MEMORY: usize = 16;
/// Loads at or above this offset read metadata, not the frame.
const AD_OFF: u32 = 0xffff_f000;
const AD_PROTOCOL: u32 = AD_OFF;
const AD_PKTTYPE: u32 = AD_OFF + 4;
const AD_VLAN_TAG: u32 = AD_OFF + 44;
const AD_VLAN_TAG_PRESENT: u32 = AD_OFF + 48;
/// `PACKET_OUTGOING`; a received frame has `PACKET_HOST`, 0.
const OUTGOING: u32 = 4;

/// The codes, as `linux/bpf_common.h` composes them.
mod code {
    pub const LD: u16 = 0x00;
    pub const LDX: u16 = 0x01;
    pub const ST: u16 = 0x02;
    pub const STX: u16 = 0x03;
    pub const ALU: u16 = 0x04;
    pub const JMP: u16 = 0x05;
    pub const RET: u16 = 0x06;
    pub const MISC: u16 = 0x07;
    pub const CLASS: u16 = 0x07;
    pub const H: u16 = 0x08;
    pub const B: u16 = 0x10;
    pub const SIZE: u16 = 0x18;
    pub const IMM: u16 = 0x00;
    pub const ABS: u16 = 0x20;
    pub const IND: u16 = 0x40;
    pub const MEM: u16 = 0x60;
    pub const LEN: u16 = 0x80;
    pub const MSH: u16 = 0xa0;
    pub const MODE: u16 = 0xe0;
    pub const X: u16 = 0x08;
    pub const OPERATION: u16 = 0xf0;
    pub const ADD: u16 = 0x00;
    pub const SUB: u16 = 0x10;
    pub const MUL: u16 = 0x20;
    pub const DIV: u16 = 0x30;
    pub const OR: u16 = 0x40;
    pub const AND: u16 = 0x50;
    pub const LSH: u16 = 0x60;
    pub const RSH: u16 = 0x70;
    pub const NEG: u16 = 0x80;
    pub const MOD: u16 = 0x90;
    pub const XOR: u16 = 0xa0;
    pub const JA: u16 = 0x00;
    pub const JEQ: u16 = 0x10;
    pub const JGT: u16 = 0x20;
    pub const JGE: u16 = 0x30;
    pub const JSET: u16 = 0x40;
    pub const A: u16 = 0x10;
    pub const TAX: u16 = 0x00;
    pub const TXA: u16 = 0x80;
}
use code::*;

/// One instruction: `struct sock_filter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// The operation.
    pub code: u16,
    /// Instructions to skip if the condition holds.
    pub jt: u8,
    /// Instructions to skip if not.
    pub jf: u8,
    /// Its operand.
    pub k: u32,
}

/// Why a program is refused. Instructions are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is empty or too long.
    #[error("a program has 1 to {MAX_INSTRUCTIONS} instructions, this one has {0}")]
    Length(usize),
    /// This instruction means nothing.
    #[error("instruction {0}: there is no code {1:#x}")]
    Code(usize, u16),
    /// This operand is out of range.
    #[error("instruction {0}: its operand {1} is out of range")]
    Operand(usize, u32),
    /// This jump leads out of the program.
    #[error("instruction {0}: a jump out of the program")]
    Jump(usize),
    /// This load may come before any store.
    #[error("instruction {0}: a word of memory is read that nothing has written")]
    Memory(usize),
    /// It does not end.
    #[error("the last instruction is no return")]
    NoReturn,
    /// This load asks for something that a captured frame does not have.
    #[error("instruction {0}: an extension of the kernel that a capture does not have")]
    Extension(usize),
    /// This text is no program.
    #[error("{0:?} is no instruction: four numbers are needed, as `tcpdump -ddd` prints them")]
    Text(String),
}

/// A frame, as a program may ask for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame<'a> {
    /// Its bytes, Ethernet header first.
    pub bytes: &'a [u8],
    /// Sent by this host?
    pub outgoing: bool,
}

/// A checked program.
#[derive(Clone, PartialEq, Eq)]
pub struct Program(Box<[Instruction]>);

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a program of {} instructions", self.0.len())
    }
}

impl Program {
    /// Checks a program.
    pub fn new(instructions: &[Instruction]) -> Result<Self, Refused> {
        if !(1..=MAX_INSTRUCTIONS).contains(&instructions.len()) {
            return Err(Refused::Length(instructions.len()));
        }
        for (at, instruction) in instructions.iter().enumerate() {
            check(at, *instruction, instructions.len())?;
        }
        if instructions.last().is_none_or(|last| !matches!(last.code, RET_K | RET_A)) {
            return Err(Refused::NoReturn);
        }
        check_memory(instructions)?;
        Ok(Self(instructions.into()))
    }

    /// Reads the output of `tcpdump -ddd`: the number of instructions, then four numbers for each. Commas may stand for
    /// line feeds (`iptables -m bpf`).
    pub fn parse(text: &str) -> Result<Self, Refused> {
        let mut lines = text.split([',', '\n']).map(str::trim).filter(|line| !line.is_empty());
        let first = lines.next().unwrap_or("");
        let count: usize = first.parse().map_err(|_| Refused::Text(first.into()))?;
        let instructions = lines.map(instruction).collect::<Result<Vec<_>, _>>()?;
        if instructions.len() != count {
            return Err(Refused::Length(instructions.len()));
        }
        Self::new(&instructions)
    }

    /// Its instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.0
    }

    /// Runs it: how many bytes of the frame are wanted, 0 = none of it. A load from outside of the frame ends it with
    /// 0, and so does a division by zero.
    pub fn run(&self, frame: Frame<'_>) -> u32 {
        let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; MEMORY]);
        let mut at = 0usize;
        // Jumps lead forward only, and the last instruction is a return.
        while let Some(&Instruction { code, jt, jf, k }) = self.0.get(at) {
            at += 1;
            let operand = if code & X != 0 { x } else { k };
            match code & CLASS {
                LD | LDX => {
                    let loaded = match code & MODE {
                        IMM => Some(k),
                        MEM => memory.get(k as usize).copied(),
                        LEN => Some(frame.bytes.len() as u32),
                        MSH => load(frame.bytes, k, B).map(|byte| (byte & 0xf) * 4),
                        IND => load(frame.bytes, x.wrapping_add(k), code & SIZE),
                        _ if k >= AD_OFF => extension(frame, k),
                        _ => load(frame.bytes, k, code & SIZE),
                    };
                    let Some(loaded) = loaded else { return 0 };
                    if code & CLASS == LD {
                        a = loaded;
                    } else {
                        x = loaded;
                    }
                }
                ST | STX => {
                    if let Some(word) = memory.get_mut(k as usize) {
                        *word = if code & CLASS == ST { a } else { x };
                    }
                }
                ALU => match calculate(code & OPERATION, a, operand) {
                    Some(result) => a = result,
                    None => return 0,
                },
                JMP if code & OPERATION == JA => at = at.saturating_add(k as usize),
                JMP => at += usize::from(if holds(code & OPERATION, a, operand) { jt } else { jf }),
                RET => return if code & 0x18 == A { a } else { k },
                _ if code & 0xf8 == TXA => a = x,
                _ => x = a,
            }
        }
        0
    }
}

const RET_K: u16 = RET;
const RET_A: u16 = RET | A;

fn instruction(line: &str) -> Result<Instruction, Refused> {
    let wrong = || Refused::Text(line.chars().take(40).collect());
    let mut words = line.split_ascii_whitespace();
    let mut next = || words.next().and_then(|word| word.parse::<u32>().ok()).ok_or_else(wrong);
    let [code, jt, jf, k] = [next()?, next()?, next()?, next()?];
    if words.next().is_some() {
        return Err(wrong());
    }
    let code = u16::try_from(code).map_err(|_| wrong())?;
    let (jt, jf) = (u8::try_from(jt).map_err(|_| wrong())?, u8::try_from(jf).map_err(|_| wrong())?);
    Ok(Instruction { code, jt, jf, k })
}

/// Does the instruction exist, and are its operands in range?
fn check(at: usize, instruction: Instruction, length: usize) -> Result<(), Refused> {
    let Instruction { code, jt, jf, k } = instruction;
    let unknown = Err(Refused::Code(at, code));
    let operand = Err(Refused::Operand(at, k));
    match code & CLASS {
        LD | LDX if !is_load(code) => unknown,
        LD | LDX | ST | STX if is_memory(code) && k as usize >= MEMORY => operand,
        LD if code & MODE == ABS && k >= AD_OFF => {
            let known = matches!(k, AD_PROTOCOL | AD_PKTTYPE | AD_VLAN_TAG | AD_VLAN_TAG_PRESENT);
            if known { Ok(()) } else { Err(Refused::Extension(at)) }
        }
        // Offsets from the headers that the kernel has found (SKF_NET_OFF, SKF_LL_OFF).
        LD if code & MODE == ABS && k > i32::MAX as u32 => Err(Refused::Extension(at)),
        LD | LDX => Ok(()),
        ST if code != ST => unknown,
        STX if code != STX => unknown,
        ALU => match code & OPERATION {
            _ if code & !(CLASS | X | OPERATION) != 0 => unknown,
            NEG if code & X != 0 => unknown,
            DIV | MOD if code & X == 0 && k == 0 => operand,
            LSH | RSH if code & X == 0 && k >= 32 => operand,
            ADD..=XOR => Ok(()),
            _ => unknown,
        },
        JMP if code == JMP | JA => {
            if (k as usize) < length - at - 1 {
                Ok(())
            } else {
                Err(Refused::Jump(at))
            }
        }
        JMP => {
            if code & !(CLASS | X | OPERATION) != 0 || !(JEQ..=JSET).contains(&(code & OPERATION)) {
                return unknown;
            }
            let inside = |skip: u8| at + 1 + usize::from(skip) < length;
            if inside(jt) && inside(jf) { Ok(()) } else { Err(Refused::Jump(at)) }
        }
        RET if code != RET_K && code != RET_A => unknown,
        MISC if code != MISC | TAX && code != MISC | TXA => unknown,
        _ => Ok(()),
    }
}

fn is_load(code: u16) -> bool {
    let sizes = matches!(code & SIZE, 0 | H | B);
    match (code & CLASS, code & MODE) {
        (LD, ABS | IND) => sizes,
        (LD | LDX, IMM | MEM | LEN) => code & SIZE == 0,
        (LDX, MSH) => code & SIZE == B,
        _ => false,
    }
}

fn is_memory(code: u16) -> bool {
    matches!(code & CLASS, ST | STX) || code & MODE == MEM
}

/// True if every memory word is written before it is read, on every path.
fn check_memory(instructions: &[Instruction]) -> Result<(), Refused> {
    // The words that are certainly written, before each instruction.
    let mut known = vec![u16::MAX; instructions.len()];
    let mut written = 0u16;
    for (at, &Instruction { code, jt, jf, k }) in instructions.iter().enumerate() {
        written &= known[at];
        match code & CLASS {
            ST | STX => written |= 1 << k,
            LD | LDX if code & MODE == MEM && written & 1 << k == 0 => return Err(Refused::Memory(at)),
            JMP => {
                let skips = if code == JMP | JA { [k as usize; 2] } else { [usize::from(jt), usize::from(jf)] };
                for skip in skips {
                    known[at + 1 + skip] &= written;
                }
                // The next instruction is reached by jumps only.
                written = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(())
}

fn load(bytes: &[u8], at: u32, size: u16) -> Option<u32> {
    let rest = bytes.get(at as usize..)?;
    match size {
        B => rest.first().map(|byte| u32::from(*byte)),
        H => rest.first_chunk().map(|half| u32::from(u16::from_be_bytes(*half))),
        _ => rest.first_chunk().map(|word| u32::from_be_bytes(*word)),
    }
}

fn extension(frame: Frame<'_>, k: u32) -> Option<u32> {
    match k {
        AD_PROTOCOL => load(frame.bytes, 12, H),
        AD_PKTTYPE => Some(if frame.outgoing { OUTGOING } else { 0 }),
        AD_VLAN_TAG | AD_VLAN_TAG_PRESENT => Some(0),
        _ => None,
    }
}

/// `None` = a division by zero.
fn calculate(operation: u16, a: u32, operand: u32) -> Option<u32> {
    Some(match operation {
        ADD => a.wrapping_add(operand),
        SUB => a.wrapping_sub(operand),
        MUL => a.wrapping_mul(operand),
        DIV => a.checked_div(operand)?,
        MOD => a.checked_rem(operand)?,
        OR => a | operand,
        AND => a & operand,
        // A shift by a register takes the register modulo 32.
        LSH => a.wrapping_shl(operand),
        RSH => a.wrapping_shr(operand),
        NEG => a.wrapping_neg(),
        _ => a ^ operand,
    })
}

fn holds(condition: u16, a: u32, operand: u32) -> bool {
    match condition {
        JEQ => a == operand,
        JGT => a > operand,
        JGE => a >= operand,
        _ => a & operand != 0,
    }
}
