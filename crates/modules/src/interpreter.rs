//! Runs programs that no verifier has judged. Each access is checked: it lies in the frame, the stack, a map's value or a
//! record that the run has taken. A program that does anything else ends, and so does one that runs too long.

use crate::check::STACK;
use crate::helpers::{self, Kind};
use crate::insn::{self, ALU, ALU64, Insn, JMP, JMP32, LD, LDX, ST, STX};
use crate::map::{Map, Ring, copy};
use crate::object::{MapKind, ProgramSpec};
use crate::run::{Field, Run};

/// Bytes of the stack of one function, as in the kernel.
const STACK_BYTES: usize = 512;
/// Functions that call each other.
const DEEP: usize = 8;
/// Most instructions of a run, as in the kernel.
const MAX_STEPS: u32 = 1_000_000;
/// Most records that a run has at the same time.
const MAX_RECORDS: usize = 64;

/// Why a run has ended before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It used bytes that are not its own.
    Access,
    /// An argument of a helper was wrong.
    Argument,
    /// Too many instructions.
    Steps,
    /// Functions called each other too deep.
    Depth,
    /// It ended with a record that it has neither submitted nor discarded, or took too many.
    Record,
}

/// What the interpreter keeps from run to run, so that it allocates nothing.
pub struct Interpreter {
    /// The stacks of the functions that have called each other.
    stack: Box<[u64; DEEP * STACK_BYTES / 8]>,
    /// Records that the run has, and their lengths.
    records: Vec<(u64, u64)>,
}

impl Default for Interpreter {
    fn default() -> Self {
        Self { stack: Box::new([0; DEEP * STACK_BYTES / 8]), records: Vec::with_capacity(MAX_RECORDS) }
    }
}

/// A function that has called another one.
#[derive(Clone, Copy, Default)]
struct Caller {
    program: usize,
    at: usize,
    saved: [u64; 4],
}

fn memory(at: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at as usize)
}

impl Interpreter {
    /// Runs this one of the programs.
    pub fn run(&mut self, run: &mut Run, programs: &[ProgramSpec], program: usize) -> Result<u64, Fault> {
        let result = self.steps(run, programs, program);
        let left = !self.records.is_empty();
        for (record, _) in self.records.drain(..) {
            // SAFETY: the run has taken the record, and not finished it.
            unsafe { Ring::finish(memory(record), true) };
        }
        if left { result.and(Err(Fault::Record)) } else { result }
    }

    fn steps(&mut self, run: &mut Run, programs: &[ProgramSpec], mut program: usize) -> Result<u64, Fault> {
        let context = (&raw mut *run).expose_provenance() as u64;
        let bottom = self.stack.as_mut_ptr().expose_provenance() as u64;
        let top = |depth: usize| bottom + ((DEEP - depth) * STACK_BYTES) as u64;
        let mut callers = [Caller::default(); DEEP];
        let (mut depth, mut at) = (0usize, 0usize);
        let mut registers = [0u64; 11];
        registers[1] = context;
        registers[usize::from(STACK)] = top(0);
        self.stack.fill(0);
        for _ in 0..MAX_STEPS {
            let insn = *programs.get(program).and_then(|program| program.insns.get(at)).ok_or(Fault::Access)?;
            let (dst, src) = (registers[usize::from(insn.dst)], registers[usize::from(insn.src)]);
            let operand = if insn.by_register() { src } else { i64::from(insn.imm).cast_unsigned() };
            let next = at + 1;
            at = next;
            match insn.class() {
                ALU => registers[usize::from(insn.dst)] = alu32(insn, dst, operand),
                ALU64 => registers[usize::from(insn.dst)] = alu64(insn, dst, operand),
                LD => {
                    let second = programs[program].insns.get(next).copied().unwrap_or_default();
                    registers[usize::from(insn.dst)] = constant(run, insn, second).ok_or(Fault::Access)?;
                    at += 1;
                }
                LDX => registers[usize::from(insn.dst)] = self.load(run, context, insn, src)?,
                ST | STX if insn.mode() == insn::MEM => {
                    let value = if insn.class() == ST { i64::from(insn.imm).cast_unsigned() } else { src };
                    self.store(run, dst.wrapping_add_signed(insn.off.into()), insn.size().into(), value)?;
                }
                ST | STX => self.atomic(run, insn, dst, &mut registers)?,
                JMP if insn.op() == insn::EXIT => {
                    let Some(below) = depth.checked_sub(1) else { return Ok(registers[0]) };
                    depth = below;
                    let caller = callers[depth];
                    (program, at) = (caller.program, caller.at);
                    registers[6..=9].copy_from_slice(&caller.saved);
                    registers[usize::from(STACK)] = top(depth);
                }
                JMP if insn.op() == insn::CALL && insn.src == insn::FUNCTION => {
                    if depth + 1 >= DEEP {
                        return Err(Fault::Depth);
                    }
                    let mut saved = [0; 4];
                    saved.copy_from_slice(&registers[6..=9]);
                    callers[depth] = Caller { program, at: next, saved };
                    depth += 1;
                    registers[usize::from(STACK)] = top(depth);
                    at = next.wrapping_add_signed(insn.imm as isize);
                }
                JMP if insn.op() == insn::CALL => {
                    let arguments = [registers[1], registers[2], registers[3], registers[4], registers[5]];
                    if insn.imm == helpers::TAIL_CALL {
                        self.check(run, context, &[Kind::Context, Kind::ProgArray, Kind::Number], arguments)?;
                        let map: *const Map = run.map(arguments[1]).ok_or(Fault::Argument)?;
                        // SAFETY: the map is there as long as the module is.
                        let map = unsafe { &*map };
                        if let Some(other) = helpers::next_program(run, map, arguments[2]) {
                            (program, at) = (other, 0);
                            registers[1] = context;
                            continue;
                        }
                        registers[0] = 0;
                    } else {
                        registers[0] = self.call(run, context, insn.imm, arguments)?;
                    }
                }
                class => {
                    if taken(insn, dst, operand, class == JMP32) {
                        at = insn.target(next - 1).ok_or(Fault::Access)?;
                    }
                }
            }
        }
        Err(Fault::Steps)
    }

    /// May the program have these bytes, and write them if `write`?
    fn may(&self, run: &Run, at: u64, length: u64, write: bool) -> bool {
        let within = |start: u64, end: u64| {
            at >= start && length <= end.saturating_sub(start) && at - start <= end - start - length
        };
        let stack = self.stack.as_ptr() as u64;
        within(run.data_meta, run.data_end)
            || within(stack, stack + (DEEP * STACK_BYTES) as u64)
            || self.records.iter().any(|(record, bytes)| within(*record, record + bytes))
            || run.all_maps().any(|map| map.has_value(at as usize, length as usize, write))
    }

    fn load(&self, run: &Run, context: u64, insn: Insn, base: u64) -> Result<u64, Fault> {
        let (size, at) = (u64::from(insn.size()), base.wrapping_add_signed(insn.off.into()));
        if base == context {
            let field = if insn.code == LDX | insn::MEM { Field::at(insn.off) } else { None };
            return Ok(field.ok_or(Fault::Access)?.of(run));
        }
        if !self.may(run, at, size, false) {
            return Err(Fault::Access);
        }
        let mut bytes = [0; 8];
        // SAFETY: the program may have these bytes, as was looked at.
        unsafe { copy(memory(at), bytes.as_mut_ptr(), size as usize) };
        let value = u64::from_le_bytes(bytes);
        Ok(if insn.mode() == insn::MEMSX {
            let unused = 64 - 8 * size as u32;
            ((value << unused).cast_signed() >> unused).cast_unsigned()
        } else {
            value
        })
    }

    fn store(&mut self, run: &Run, at: u64, size: u64, value: u64) -> Result<(), Fault> {
        if !self.may(run, at, size, true) {
            return Err(Fault::Access);
        }
        // SAFETY: the program may write these bytes, as was looked at.
        unsafe { copy(value.to_le_bytes().as_ptr(), memory(at), size as usize) };
        Ok(())
    }

    fn atomic(&mut self, run: &Run, insn: Insn, base: u64, registers: &mut [u64; 11]) -> Result<(), Fault> {
        use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
        let at = base.wrapping_add_signed(insn.off.into());
        let size = u64::from(insn.size());
        if at % size != 0 || !self.may(run, at, size, true) {
            return Err(Fault::Access);
        }
        let src = registers[usize::from(insn.src)];
        macro_rules! operate {
            ($atomic:ty, $word:ty) => {{
                // SAFETY: the program may write these bytes, and they are aligned, as was looked at.
                let cell = unsafe { <$atomic>::from_ptr(memory(at).cast()) };
                u64::from(match insn.imm & !insn::FETCH {
                    0x00 => cell.fetch_add(src as $word, SeqCst),
                    0x40 => cell.fetch_or(src as $word, SeqCst),
                    0x50 => cell.fetch_and(src as $word, SeqCst),
                    0xa0 => cell.fetch_xor(src as $word, SeqCst),
                    0xe0 => cell.swap(src as $word, SeqCst),
                    _ => match cell.compare_exchange(registers[0] as $word, src as $word, SeqCst, SeqCst) {
                        Ok(old) | Err(old) => old,
                    },
                })
            }};
        }
        let old = if size == 8 { operate!(AtomicU64, u64) } else { operate!(AtomicU32, u32) };
        if insn.imm == insn::CMPXCHG {
            registers[0] = old;
        } else if insn.imm & insn::FETCH != 0 {
            registers[usize::from(insn.src)] = old;
        }
        Ok(())
    }

    fn call(&mut self, run: &mut Run, context: u64, number: i32, arguments: [u64; 5]) -> Result<u64, Fault> {
        let place = helpers::place(number).ok_or(Fault::Argument)?;
        let (_, kinds, helper) = helpers::HELPERS[place];
        self.check(run, context, kinds, arguments)?;
        let [one, two, three, four, five] = arguments;
        let reserves = kinds.first() == Some(&Kind::RingBuf) && kinds.len() == 3;
        if reserves && self.records.len() == MAX_RECORDS {
            return Err(Fault::Record);
        }
        // SAFETY: the run is alive, and its arguments are what their kinds say.
        let result = unsafe { helper(run, one, two, three, four, five) };
        if reserves && result != 0 {
            self.records.push((result, two));
        }
        if kinds.first() == Some(&Kind::Record) {
            self.records.retain(|(record, _)| *record != one);
        }
        Ok(result)
    }

    fn check(&self, run: &Run, context: u64, kinds: &[Kind], arguments: [u64; 5]) -> Result<(), Fault> {
        let of_kind = |named: u64, kind: MapKind| run.map(named).is_some_and(|map| map.spec().kind == kind);
        for (place, (kind, value)) in kinds.iter().zip(arguments).enumerate() {
            let map = || run.map(arguments[0]);
            // The length of bytes is the argument behind them.
            let length = arguments.get(place + 1).copied().unwrap_or(0) & 0xffff_ffff;
            let fits = match kind {
                Kind::Number => true,
                Kind::Context => value == context,
                Kind::Map => map().is_some(),
                Kind::RingBuf => of_kind(value, MapKind::RingBuf),
                Kind::ProgArray => of_kind(value, MapKind::ProgArray),
                Kind::DevMap => of_kind(value, MapKind::DevMap) || of_kind(value, MapKind::DevMapHash),
                Kind::Key => map().is_some_and(|map| self.may(run, value, map.spec().key_size.into(), false)),
                Kind::Value => map().is_some_and(|map| self.may(run, value, map.spec().value_size.into(), false)),
                Kind::Read => length == 0 || self.may(run, value, length, false),
                Kind::Write => length == 0 || self.may(run, value, length, true),
                Kind::Record => self.records.iter().any(|(record, _)| *record == value),
            };
            if !fits {
                return Err(Fault::Argument);
            }
        }
        Ok(())
    }
}

fn constant(run: &Run, insn: Insn, second: Insn) -> Option<u64> {
    if insn.src == 0 {
        return Some(u64::from(second.imm.cast_unsigned()) << 32 | u64::from(insn.imm.cast_unsigned()));
    }
    let place = usize::try_from(insn.imm).ok().filter(|place| *place < run.map_count)?;
    // SAFETY: there are `map_count` entries.
    let map = unsafe { *run.maps.add(place) };
    Some(match insn.src {
        insn::MAP => map.map.expose_provenance() as u64,
        _ => (map.values.expose_provenance() as u64).wrapping_add_signed(second.imm.into()),
    })
}

fn swap(insn: Insn, value: u64) -> u64 {
    // `to_le` and `to_be` of the 32-bit class, and the unconditional swap of the other.
    let swaps = insn.class() == ALU64 || insn.by_register();
    match (insn.imm, swaps) {
        (16, false) => value & 0xffff,
        (16, true) => u64::from((value as u16).swap_bytes()),
        (32, false) => value & 0xffff_ffff,
        (32, true) => u64::from((value as u32).swap_bytes()),
        (_, false) => value,
        (_, true) => value.swap_bytes(),
    }
}

/// Arithmetic of one width: unsigned and signed numbers of it, and sign-extending moves.
macro_rules! arithmetic {
    ($name:ident, $unsigned:ty, $signed:ty) => {
        fn $name(insn: Insn, dst: $unsigned, operand: $unsigned) -> $unsigned {
            let (signed, by) = (dst.cast_signed(), operand.cast_signed());
            match (insn.op(), insn.off) {
                (insn::ADD, _) => dst.wrapping_add(operand),
                (insn::SUB, _) => dst.wrapping_sub(operand),
                (insn::MUL, _) => dst.wrapping_mul(operand),
                (insn::DIV, 0) => dst.checked_div(operand).unwrap_or(0),
                (insn::DIV, _) if by == 0 => 0,
                (insn::DIV, _) => signed.wrapping_div(by).cast_unsigned(),
                (insn::MOD, 0) => dst.checked_rem(operand).unwrap_or(dst),
                (insn::MOD, _) if by == 0 => dst,
                (insn::MOD, _) => signed.wrapping_rem(by).cast_unsigned(),
                (insn::OR, _) => dst | operand,
                (insn::AND, _) => dst & operand,
                (insn::XOR, _) => dst ^ operand,
                (insn::LSH, _) => dst.wrapping_shl(operand as u32),
                (insn::RSH, _) => dst.wrapping_shr(operand as u32),
                (insn::ARSH, _) => signed.wrapping_shr(operand as u32).cast_unsigned(),
                (insn::NEG, _) => dst.wrapping_neg(),
                (_, 8) => <$signed>::from(operand as i8).cast_unsigned(),
                (_, 16) => <$signed>::from(operand as i16).cast_unsigned(),
                (_, 32) => <$signed>::from(operand as i32).cast_unsigned(),
                _ => operand,
            }
        }
    };
}

arithmetic!(wide, u64, i64);
arithmetic!(narrow, u32, i32);

fn alu64(insn: Insn, dst: u64, operand: u64) -> u64 {
    if insn.op() == insn::END { swap(insn, dst) } else { wide(insn, dst, operand) }
}

fn alu32(insn: Insn, dst: u64, operand: u64) -> u64 {
    if insn.op() == insn::END { swap(insn, dst) } else { narrow(insn, dst as u32, operand as u32).into() }
}

fn taken(insn: Insn, dst: u64, operand: u64, short: bool) -> bool {
    let (one, other) = if short { (dst & 0xffff_ffff, operand & 0xffff_ffff) } else { (dst, operand) };
    let sign = |value: u64| if short { i64::from(value as i32) } else { value.cast_signed() };
    let (signed, by) = (sign(one), sign(other));
    match insn.op() {
        insn::JA => true,
        insn::JEQ => one == other,
        insn::JNE => one != other,
        insn::JGT => one > other,
        insn::JGE => one >= other,
        insn::JLT => one < other,
        insn::JLE => one <= other,
        insn::JSET => one & other != 0,
        insn::JSGT => signed > by,
        insn::JSGE => signed >= by,
        insn::JSLT => signed < by,
        _ => signed <= by,
    }
}
