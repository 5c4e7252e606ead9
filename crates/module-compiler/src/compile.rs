//! Compiles programs to machine code. The code has no address in it: all that it needs it finds by the run that it is
//! given. So it may be made in another process than the one that runs it.
//!
//! It checks nothing that the kernel's verifier has proved. It is only run if that has accepted the program.

use crate::batch::{Batch, needs_run};
use crate::memory::{ACCESS, FIXED};
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I16, I32, I64};
use cranelift_codegen::ir::{
    AbiParam, AtomicRmwOp, Block, Function, InstBuilder, MemFlagsData, SigRef, Signature, StackSlotData, StackSlotKind,
    Type, UserFuncName, Value,
};
use cranelift_codegen::isa::{CallConv, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{Context, isa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use std::collections::BTreeMap;
use towpath_modules::abi::{Base, Field, STACK, TAIL_CALL, bases, helper_place, place, wants_room};
use towpath_modules::code::PLACE_BYTES;
use towpath_modules::compiled::Compiled;
use towpath_modules::insn::{self, ALU, ALU64, Insn, JMP, JMP32, LD, LDX, ST, STX};
use towpath_modules::{LoadError, ProgramSpec};

/// Functions begin at multiples of this.
const ALIGNMENT: usize = 32;
const STACK_BYTES: u32 = 512;

/// The machine that this runs on.
fn machine() -> Result<OwnedTargetIsa, String> {
    let mut flags = settings::builder();
    for (name, value) in [("opt_level", "speed"), ("enable_probestack", "false"), ("unwind_info", "false")] {
        flags.set(name, value).map_err(|why| why.to_string())?;
    }
    let lookup = isa::lookup_by_name(&format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    lookup.map_err(|why| why.to_string())?.finish(settings::Flags::new(flags)).map_err(|why| why.to_string())
}

/// Compiles all programs of a module.
pub fn compile(programs: &[ProgramSpec]) -> Result<Compiled, LoadError> {
    let fail = |program: &ProgramSpec, why: String| LoadError::Compiler { program: program.name.clone(), why };
    let Some(first) = programs.first() else { return Ok(Compiled::default()) };
    let isa = machine().map_err(|why| fail(first, why))?;
    let mut compiled = Compiled { code: Vec::new(), functions: vec![0; programs.len()] };
    let (mut shared, mut batches) = (FunctionBuilderContext::new(), Vec::new());
    let in_place = !programs.iter().any(wants_room);
    for (number, program) in programs.iter().enumerate() {
        let bases = bases(program);
        let below = compiled.functions.len();
        compiled.functions.resize(below + program.functions.len() - 1, 0);
        for (at, start) in program.functions.iter().enumerate() {
            let end = program.functions.get(at + 1).copied().unwrap_or(program.insns.len());
            let index = |at: usize| if at == 0 { number } else { below + at - 1 };
            let callee = |start: usize| program.functions.iter().position(|known| *known == start).map(index);
            let body = Body { program, bases: &bases, start: *start, end, callee: &callee };
            let mut make = |batch| body.compile(&*isa, &mut shared, batch).map_err(|why| fail(program, why));
            compiled.functions[index(at)] = append(&mut compiled.code, &make(false)?);
            if at == 0 && in_place {
                batches.push(make(true)?);
            }
        }
    }
    // Without them, which may not fit, frames go one by one.
    let batch_bytes: usize = batches.iter().map(|code| code.len() + ALIGNMENT).sum();
    if compiled.code.len() + batch_bytes <= PLACE_BYTES {
        for code in batches {
            let start = append(&mut compiled.code, &code);
            compiled.functions.push(start);
        }
    }
    Ok(compiled)
}

/// Puts a function behind the others. Returns where it begins.
fn append(all: &mut Vec<u8>, function: &[u8]) -> u32 {
    all.resize(all.len().next_multiple_of(ALIGNMENT), 0);
    let start = all.len() as u32;
    all.extend(function);
    start
}

/// One function.
struct Body<'a> {
    program: &'a ProgramSpec,
    bases: &'a [Base],
    start: usize,
    end: usize,
    /// The number of the function that begins there.
    callee: &'a dyn Fn(usize) -> Option<usize>,
}

impl Body<'_> {
    /// `batch`: the function runs the program on many frames.
    fn compile(
        &self,
        isa: &dyn isa::TargetIsa,
        shared: &mut FunctionBuilderContext,
        batch: bool,
    ) -> Result<Vec<u8>, String> {
        let mut signature = Signature::new(CallConv::triple_default(isa.triple()));
        signature.params.extend([AbiParam::new(I64); 6]);
        signature.returns.push(AbiParam::new(I64));
        let mut function = Function::with_name_signature(UserFuncName::default(), signature.clone());
        let mut builder = FunctionBuilder::new(&mut function, shared);
        let signature = builder.import_signature(signature);
        let registers = std::array::from_fn(|_| builder.declare_var(I64));
        let entry = builder.create_block();
        builder.append_block_params_for_function_params(entry);
        let run = builder.block_params(entry)[0];
        let mut blocks = BTreeMap::from([(self.start, builder.create_block())]);
        for at in self.places() {
            let insn = self.program.insns[at];
            if let Some(target) = insn.target(at) {
                for leader in [target, at + 1] {
                    blocks.entry(leader).or_insert_with(|| builder.create_block());
                }
            }
        }
        let mut emit = Emit { builder, registers, run, signature, blocks, batch: None };
        emit.builder.switch_to_block(entry);
        if batch {
            emit.batch = Some(Batch::begin(&mut emit.builder, entry, needs_run(self.program, self.bases)));
        }
        let uses_stack =
            self.places().map(|at| self.program.insns[at]).any(|insn| [insn.dst, insn.src].contains(&STACK));
        emit.enter(entry, self.start, uses_stack);
        self.emit(&mut emit)?;
        let Emit { mut builder, .. } = emit;
        builder.seal_all_blocks();
        builder.finalize(isa.frontend_config());
        let mut context = Context::for_function(function);
        let compiled = context.compile(isa, &mut ControlPlane::default()).map_err(|why| format!("{:?}", why.inner))?;
        if !compiled.buffer.relocs().is_empty() {
            return Err("its code would stand at one address only".into());
        }
        Ok(compiled.code_buffer().to_vec())
    }

    /// The places of instructions, without second halves.
    fn places(&self) -> impl Iterator<Item = usize> {
        let after = |at: usize| if self.program.insns[at].code == insn::LD_IMM64 { at + 2 } else { at + 1 };
        std::iter::successors(Some(self.start), move |at| Some(after(*at)).filter(|next| *next < self.end))
    }

    fn emit(&self, emit: &mut Emit<'_>) -> Result<(), String> {
        let mut ended = true;
        for at in self.places() {
            if let Some(block) = emit.blocks.get(&at).copied() {
                if !ended {
                    emit.builder.ins().jump(block, &[]);
                }
                emit.builder.switch_to_block(block);
                ended = false;
            }
            // Nothing leads here.
            if ended {
                continue;
            }
            let insn = self.program.insns[at];
            match insn.class() {
                ALU => emit.arithmetic(insn, I32),
                ALU64 => emit.arithmetic(insn, I64),
                LD => emit.constant(insn, self.program.insns[at + 1]),
                LDX => emit.load(insn, self.bases[at]),
                ST | STX if insn.mode() == insn::MEM => emit.store(insn),
                ST | STX => emit.atomic(insn),
                JMP if insn.op() == insn::EXIT => {
                    let result = emit.get(0);
                    emit.leave(result);
                    ended = true;
                }
                JMP if insn.op() == insn::CALL && insn.src == insn::FUNCTION => {
                    let start = at.wrapping_add_signed(insn.imm as isize + 1);
                    emit.call_function((self.callee)(start).ok_or("a call goes nowhere")?);
                }
                JMP if insn.op() == insn::CALL => emit.call_helper(insn.imm)?,
                _ => {
                    emit.jump(insn, at)?;
                    ended = true;
                }
            }
        }
        Ok(())
    }
}

struct Emit<'a> {
    builder: FunctionBuilder<'a>,
    registers: [Variable; 11],
    /// The run, which is the context, too.
    run: Value,
    signature: SigRef,
    blocks: BTreeMap<usize, Block>,
    /// The loop over frames that the program stands in.
    batch: Option<Batch>,
}

impl Emit<'_> {
    fn get(&mut self, register: u8) -> Value {
        self.builder.use_var(self.registers[usize::from(register)])
    }
    fn set(&mut self, register: u8, value: Value) {
        self.builder.def_var(self.registers[usize::from(register)], value);
    }
    fn number(&mut self, kind: Type, number: i64) -> Value {
        let number = if kind == I32 { number & 0xffff_ffff } else { number };
        self.builder.ins().iconst(kind, number)
    }
    /// Sets a register to a value of 32 or 64 bits.
    fn set_wide(&mut self, register: u8, value: Value) {
        let narrow = self.builder.func.dfg.value_type(value) != I64;
        let value = if narrow { self.builder.ins().uextend(I64, value) } else { value };
        self.set(register, value);
    }
    fn narrow(&mut self, value: Value, kind: Type) -> Value {
        if kind == I64 { value } else { self.builder.ins().ireduce(kind, value) }
    }

    /// The program's beginning. A stack that nobody reads or writes is not made.
    fn enter(&mut self, entry: Block, start: usize, uses_stack: bool) {
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

    fn operand(&mut self, insn: Insn, kind: Type) -> Value {
        if !insn.by_register() {
            return self.number(kind, insn.imm.into());
        }
        let value = self.get(insn.src);
        self.narrow(value, kind)
    }

    fn arithmetic(&mut self, insn: Insn, kind: Type) {
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

    fn constant(&mut self, insn: Insn, second: Insn) {
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

    fn load(&mut self, insn: Insn, base: Base) {
        let at = self.get(insn.src);
        let field = Field::of_load(insn, base);
        let known = field.filter(|_| base == Base::Context).zip(self.batch.as_ref());
        if let Some(value) = known.and_then(|(field, batch)| batch.value_of(field)) {
            return self.set(insn.dst, value);
        }
        let Some((place, pointer)) = field.map(Field::place) else {
            let value = self.load_bytes(insn, at);
            return self.set_wide(insn.dst, value);
        };
        let kind = if pointer { I64 } else { I32 };
        if base == Base::Context {
            let value = self.builder.ins().load(kind, ACCESS, self.run, place);
            return self.set_wide(insn.dst, value);
        }
        let [of_context, of_other, after] = [(); 3].map(|()| self.builder.create_block());
        let is_context = self.builder.ins().icmp(IntCC::Equal, at, self.run);
        self.builder.ins().brif(is_context, of_context, &[], of_other, &[]);
        self.builder.switch_to_block(of_context);
        let value = self.builder.ins().load(kind, ACCESS, self.run, place);
        self.set_wide(insn.dst, value);
        self.builder.ins().jump(after, &[]);
        self.builder.switch_to_block(of_other);
        let value = self.load_bytes(insn, at);
        self.set_wide(insn.dst, value);
        self.builder.ins().jump(after, &[]);
        self.builder.switch_to_block(after);
    }

    fn load_bytes(&mut self, insn: Insn, at: Value) -> Value {
        let value = self.builder.ins().load(kind_of(insn.size()), ACCESS, at, i32::from(insn.off));
        if insn.mode() == insn::MEMSX { self.builder.ins().sextend(I64, value) } else { value }
    }

    fn store(&mut self, insn: Insn) {
        let (at, kind) = (self.get(insn.dst), kind_of(insn.size()));
        let wide = if insn.class() == ST { self.number(I64, insn.imm.into()) } else { self.get(insn.src) };
        let value = self.narrow(wide, kind);
        self.builder.ins().store(ACCESS, value, at, i32::from(insn.off));
    }

    fn atomic(&mut self, insn: Insn) {
        let (base, kind) = (self.get(insn.dst), kind_of(insn.size()));
        let offset = self.number(I64, insn.off.into());
        let at = self.builder.ins().iadd(base, offset);
        let wide = self.get(insn.src);
        let value = self.narrow(wide, kind);
        // Programs that may run have these aligned.
        let flags = MemFlagsData::trusted();
        if insn.imm == insn::CMPXCHG {
            let wide = self.get(0);
            let expected = self.narrow(wide, kind);
            let old = self.builder.ins().atomic_cas(flags, at, expected, value);
            return self.set_wide(0, old);
        }
        let operation = match insn.imm & !insn::FETCH {
            0x00 => AtomicRmwOp::Add,
            0x40 => AtomicRmwOp::Or,
            0x50 => AtomicRmwOp::And,
            0xa0 => AtomicRmwOp::Xor,
            _ => AtomicRmwOp::Xchg,
        };
        let old = self.builder.ins().atomic_rmw(kind, flags, operation, at, value);
        if insn.imm & insn::FETCH != 0 {
            self.set_wide(insn.src, old);
        }
    }

    /// The program's end, with this result.
    fn leave(&mut self, result: Value) {
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

    fn call_function(&mut self, number: usize) {
        let functions = self.builder.ins().load(I64, FIXED, self.run, place::FUNCTIONS);
        let callee = self.builder.ins().load(I64, FIXED, functions, number as i32 * 8);
        let arguments = self.arguments();
        let result = self.call(callee, &arguments);
        self.set(0, result);
    }

    fn call_helper(&mut self, number: i32) -> Result<(), String> {
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

    fn jump(&mut self, insn: Insn, at: usize) -> Result<(), String> {
        let target =
            insn.target(at).and_then(|target| self.blocks.get(&target)).copied().ok_or("a jump goes nowhere")?;
        if insn.op() == insn::JA {
            self.builder.ins().jump(target, &[]);
            return Ok(());
        }
        let kind = if insn.class() == JMP32 { I32 } else { I64 };
        let wide = self.get(insn.dst);
        let (one, other) = (self.narrow(wide, kind), self.operand(insn, kind));
        let condition = match insn.op() {
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
                let next = self.blocks[&(at + 1)];
                self.builder.ins().brif(both, target, &[], next, &[]);
                return Ok(());
            }
        };
        let holds = self.builder.ins().icmp(condition, one, other);
        let next = self.blocks[&(at + 1)];
        self.builder.ins().brif(holds, target, &[], next, &[]);
        Ok(())
    }
}

fn kind_of(bytes: u8) -> Type {
    match bytes {
        1 => I8,
        2 => I16,
        4 => I32,
        _ => I64,
    }
}
