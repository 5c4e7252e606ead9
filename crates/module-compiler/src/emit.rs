//! Instructions of a program as those of the machine.

use crate::batch::Batch;
use crate::bounds::Made;
use crate::memory::FIXED;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I16, I32, I64};
use cranelift_codegen::ir::{Block, InstBuilder, SigRef, StackSlotData, StackSlotKind, Type, Value};
use cranelift_frontend::{FunctionBuilder, Variable};
use std::collections::BTreeMap;
use towpath_modules::ProgramSpec;
use towpath_modules::abi::{Base, STACK, TAIL_CALL, helper_place, place};
use towpath_modules::insn::{self, ALU64, Insn, JMP32};

const STACK_BYTES: u32 = 512;

/// A function that is being made.
pub(crate) struct Emit<'a> {
    pub(crate) builder: FunctionBuilder<'a>,
    pub(crate) program: &'a ProgramSpec,
    pub(crate) registers: [Variable; 11],
    /// The run, which is the context, too.
    pub(crate) run: Value,
    pub(crate) signature: SigRef,
    pub(crate) blocks: BTreeMap<usize, Block>,
    /// The loop over frames that the program stands in.
    pub(crate) batch: Option<Batch>,
}

impl Emit<'_> {
    pub(crate) fn get(&mut self, register: u8) -> Value {
        self.builder.use_var(self.registers[usize::from(register)])
    }
    pub(crate) fn set(&mut self, register: u8, value: Value) {
        self.builder.def_var(self.registers[usize::from(register)], value);
    }
    pub(crate) fn number(&mut self, kind: Type, number: i64) -> Value {
        let number = if kind == I32 { number & 0xffff_ffff } else { number };
        self.builder.ins().iconst(kind, number)
    }
    /// Sets a register to a value of 32 or 64 bits.
    pub(crate) fn set_wide(&mut self, register: u8, value: Value) {
        let narrow = self.builder.func.dfg.value_type(value) != I64;
        let value = if narrow { self.builder.ins().uextend(I64, value) } else { value };
        self.set(register, value);
    }
    pub(crate) fn narrow(&mut self, value: Value, kind: Type) -> Value {
        if kind == I64 { value } else { self.builder.ins().ireduce(kind, value) }
    }

    /// The program's beginning. A stack that nobody reads or writes is not made.
    pub(crate) fn enter(&mut self, entry: Block, start: usize, uses_stack: bool) {
        let zero = self.number(I64, 0);
        (0..=STACK).for_each(|register| self.set(register, zero));
        if self.batch.is_some() {
            self.set(1, self.run);
        } else {
            for register in 1..=5 {
                let argument = self.builder.block_params(entry)[usize::from(register)];
                self.set(register, argument);
            }
        }
        let first = self.blocks[&start];
        if !uses_stack {
            self.builder.ins().jump(first, &[]);
            return;
        }
        let slot = StackSlotData::new(StackSlotKind::ExplicitSlot, STACK_BYTES, 4);
        let slot = self.builder.create_sized_stack_slot(slot);
        let bottom = self.builder.ins().stack_addr(I64, slot, 0);
        let bytes = self.number(I64, STACK_BYTES.into());
        let top = self.builder.ins().iadd(bottom, bytes);
        self.set(STACK, top);
        self.builder.ins().jump(first, &[]);
    }

    /// The offset of the place in the frame that the instruction at `at` makes, if it does. It is asked for before the instruction.
    pub(crate) fn offset_made(&mut self, insn: Insn, base: Base, at: usize) -> Option<Value> {
        let Self { builder, batch, registers, .. } = self;
        let batch = batch.as_ref()?;
        Some(match batch.made(insn, base, at)? {
            Made::Begin => builder.ins().iconst(I64, 0),
            Made::Copy(of) => batch.offset(builder, of),
            Made::Moved(of, by) => {
                let (offset, by) = (batch.offset(builder, of), builder.ins().iconst(I64, i64::from(by)));
                builder.ins().iadd(offset, by)
            }
            Made::MovedBy(of, by) => {
                let (offset, by) = (batch.offset(builder, of), builder.use_var(registers[usize::from(by)]));
                builder.ins().iadd(offset, by)
            }
        })
    }

    /// A register has a place in the frame now.
    pub(crate) fn set_offset(&mut self, register: u8, offset: Value) {
        let Self { builder, batch, .. } = self;
        if let Some(batch) = batch {
            batch.set_offset(builder, register, offset);
        }
    }

    fn operand(&mut self, insn: Insn, kind: Type) -> Value {
        if !insn.by_register() {
            return self.number(kind, insn.imm.into());
        }
        let value = self.get(insn.src);
        self.narrow(value, kind)
    }

    pub(crate) fn arithmetic(&mut self, insn: Insn, kind: Type) {
        let wide = self.get(insn.dst);
        if insn.op() == insn::END {
            return self.swap(insn, wide);
        }
        let (one, other) = (self.narrow(wide, kind), self.operand(insn, kind));
        let signed = insn.off != 0;
        let ins = self.builder.ins();
        let value = match insn.op() {
            insn::ADD => ins.iadd(one, other),
            insn::SUB => ins.isub(one, other),
            insn::MUL => ins.imul(one, other),
            insn::OR => ins.bor(one, other),
            insn::AND => ins.band(one, other),
            insn::XOR => ins.bxor(one, other),
            // The amount is taken modulo the width.
            insn::LSH => ins.ishl(one, other),
            insn::RSH => ins.ushr(one, other),
            insn::ARSH => ins.sshr(one, other),
            insn::NEG => ins.ineg(one),
            insn::DIV | insn::MOD => self.divide(one, other, kind, insn.op() == insn::MOD, signed),
            _ if signed => {
                let part = [I8, I16, I32][usize::from(insn.off.cast_unsigned().trailing_zeros() as u8 - 3)];
                let part = self.builder.ins().ireduce(part, other);
                self.builder.ins().sextend(kind, part)
            }
            _ => other,
        };
        self.set_wide(insn.dst, value);
    }

    fn divide(&mut self, one: Value, other: Value, kind: Type, rest: bool, signed: bool) -> Value {
        let (zero, unit, minus) = (self.number(kind, 0), self.number(kind, 1), self.number(kind, -1));
        let by_zero = self.builder.ins().icmp(IntCC::Equal, other, zero);
        let without = if rest { one } else { zero };
        if !signed {
            let safe = self.builder.ins().select(by_zero, unit, other);
            let ins = self.builder.ins();
            let value = if rest { ins.urem(one, safe) } else { ins.udiv(one, safe) };
            return self.builder.ins().select(by_zero, without, value);
        }
        // The least number by -1 is a trap of the machine.
        let by_minus = self.builder.ins().icmp(IntCC::Equal, other, minus);
        let either = self.builder.ins().bor(by_zero, by_minus);
        let safe = self.builder.ins().select(either, unit, other);
        let ins = self.builder.ins();
        let value = if rest { ins.srem(one, safe) } else { ins.sdiv(one, safe) };
        let negative = if rest { zero } else { self.builder.ins().ineg(one) };
        let value = self.builder.ins().select(by_minus, negative, value);
        self.builder.ins().select(by_zero, without, value)
    }

    fn swap(&mut self, insn: Insn, wide: Value) {
        let kind = [I16, I32, I64][(insn.imm.trailing_zeros() as usize - 4).min(2)];
        let mut value = self.narrow(wide, kind);
        if insn.class() == ALU64 || insn.by_register() {
            value = self.builder.ins().bswap(value);
        }
        self.set_wide(insn.dst, value);
    }

    pub(crate) fn constant(&mut self, insn: Insn, second: Insn) {
        if insn.src == 0 {
            let number = i64::from(second.imm) << 32 | i64::from(insn.imm.cast_unsigned());
            let value = self.number(I64, number);
            return self.set(insn.dst, value);
        }
        let maps = self.builder.ins().load(I64, FIXED, self.run, place::MAPS);
        let entry = insn.imm * place::MAP_BYTES;
        let value = if insn.src == insn::MAP {
            self.builder.ins().load(I64, FIXED, maps, entry)
        } else {
            let values = self.builder.ins().load(I64, FIXED, maps, entry + place::VALUES);
            let offset = self.number(I64, second.imm.into());
            self.builder.ins().iadd(values, offset)
        };
        self.set(insn.dst, value);
    }

    /// The program's end, with this result.
    pub(crate) fn leave(&mut self, result: Value) {
        match &self.batch {
            Some(batch) => batch.leave(&mut self.builder, result),
            None => drop(self.builder.ins().return_(&[result])),
        }
    }

    fn arguments(&mut self) -> [Value; 6] {
        [self.run, self.get(1), self.get(2), self.get(3), self.get(4), self.get(5)]
    }

    fn call(&mut self, callee: Value, arguments: &[Value]) -> Value {
        let call = self.builder.ins().call_indirect(self.signature, callee, arguments);
        self.builder.inst_results(call)[0]
    }

    pub(crate) fn call_function(&mut self, number: usize) {
        let functions = self.builder.ins().load(I64, FIXED, self.run, place::FUNCTIONS);
        let callee = self.builder.ins().load(I64, FIXED, functions, number as i32 * 8);
        let arguments = self.arguments();
        let result = self.call(callee, &arguments);
        self.set(0, result);
    }

    pub(crate) fn call_helper(&mut self, number: i32) -> Result<(), String> {
        let at = helper_place(number).ok_or("an unknown helper")?;
        let callee = self.builder.ins().load(I64, FIXED, self.run, place::HELPERS + at as i32 * 8);
        let arguments = self.arguments();
        let result = self.call(callee, &arguments);
        if number != TAIL_CALL {
            self.set(0, result);
            return Ok(());
        }
        // The other program's result is this function's.
        let [goes, stays] = [(); 2].map(|()| self.builder.create_block());
        let zero = self.number(I64, 0);
        self.builder.ins().brif(result, goes, &[], stays, &[]);
        self.builder.switch_to_block(goes);
        let other = self.call(result, &[self.run, self.run, zero, zero, zero, zero]);
        self.leave(other);
        self.builder.switch_to_block(stays);
        self.set(0, zero);
        Ok(())
    }

    /// Goes from the instruction at `from` to the one at `to`.
    pub(crate) fn go(&mut self, from: usize, to: usize) -> Result<(), String> {
        let block = self.way(from, to)?;
        self.builder.ins().jump(block, &[]);
        Ok(())
    }

    /// The block of an instruction, seen from the one at `from`. If the program ends there, it may be the loop's.
    fn way(&mut self, from: usize, to: usize) -> Result<Block, String> {
        let Self { builder, program, batch, blocks, .. } = self;
        let out = batch.as_mut().and_then(|batch| batch.way(builder, program, from, to));
        out.or_else(|| blocks.get(&to).copied()).ok_or_else(|| "a jump goes nowhere".into())
    }

    pub(crate) fn jump(&mut self, insn: Insn, at: usize) -> Result<(), String> {
        let to = insn.target(at).ok_or("a jump goes nowhere")?;
        if insn.op() == insn::JA {
            return self.go(at, to);
        }
        let Self { builder, batch, .. } = self;
        let bounds = batch.as_ref().and_then(|batch| batch.compared(builder, insn, at));
        let kind = if insn.class() == JMP32 { I32 } else { I64 };
        let (one, other) = bounds.unwrap_or_else(|| {
            let wide = self.get(insn.dst);
            (self.narrow(wide, kind), self.operand(insn, kind))
        });
        let condition = match insn.op() {
            insn::JGT if bounds.is_some() => IntCC::SignedGreaterThan,
            insn::JGE if bounds.is_some() => IntCC::SignedGreaterThanOrEqual,
            insn::JLT if bounds.is_some() => IntCC::SignedLessThan,
            insn::JLE if bounds.is_some() => IntCC::SignedLessThanOrEqual,
            insn::JEQ => IntCC::Equal,
            insn::JNE => IntCC::NotEqual,
            insn::JGT => IntCC::UnsignedGreaterThan,
            insn::JGE => IntCC::UnsignedGreaterThanOrEqual,
            insn::JLT => IntCC::UnsignedLessThan,
            insn::JLE => IntCC::UnsignedLessThanOrEqual,
            insn::JSGT => IntCC::SignedGreaterThan,
            insn::JSGE => IntCC::SignedGreaterThanOrEqual,
            insn::JSLT => IntCC::SignedLessThan,
            insn::JSLE => IntCC::SignedLessThanOrEqual,
            _ => {
                let both = self.builder.ins().band(one, other);
                return self.branch(both, at, to);
            }
        };
        let holds = self.builder.ins().icmp(condition, one, other);
        self.branch(holds, at, to)
    }

    /// Goes from the instruction at `at` to the one at `to` if this is not zero, and else to the next.
    fn branch(&mut self, holds: Value, at: usize, to: usize) -> Result<(), String> {
        let (there, next) = (self.way(at, to)?, self.way(at, at + 1)?);
        self.builder.ins().brif(holds, there, &[], next, &[]);
        Ok(())
    }
}
