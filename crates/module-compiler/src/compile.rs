//! Compiles programs to machine code. The code has no address in it: all that it needs it finds by the run that it is
//! given. So it may be made in another process than the one that runs it.
//!
//! It checks nothing that the kernel's verifier has proved. It is only run if that has accepted the program.

use crate::access::PAIR;
use crate::batch::{Batch, GoesOn};
use crate::emit::Emit;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{AbiParam, Function, Signature, UserFuncName};
use cranelift_codegen::isa::{CallConv, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{Context, isa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use std::collections::BTreeMap;
use towpath_modules::abi::{Base, STACK, bases, wants_room};
use towpath_modules::code::PLACE_BYTES;
use towpath_modules::compiled::Compiled;
use towpath_modules::insn::{self, ALU, ALU64, JMP, LD, LDX, ST, STX};
use towpath_modules::{LoadError, ProgramSpec};

/// Functions begin at multiples of this.
const ALIGNMENT: usize = 32;

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
            compiled.functions[index(at)] = append(&mut compiled.code, &make(None)?);
            if at == 0 && in_place {
                batches.push([make(Some(GoesOn::Passing))?, make(Some(GoesOn::Others))?]);
            }
        }
    }
    // Without them, which may not fit, frames go one by one.
    let batch_bytes: usize = batches.iter().flatten().map(|code| code.len() + ALIGNMENT).sum();
    if compiled.code.len() + batch_bytes <= PLACE_BYTES {
        for code in batches.iter().flatten() {
            let start = append(&mut compiled.code, code);
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
        batch: Option<GoesOn>,
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
        let mut emit = Emit { builder, program: self.program, registers, run, signature, blocks, batch: None };
        emit.builder.switch_to_block(entry);
        if let Some(goes_on) = batch {
            emit.batch = Some(Batch::begin(&mut emit.builder, entry, goes_on, self.program, self.bases));
        }
        let uses_stack =
            self.places().map(|at| self.program.insns[at]).any(|insn| [insn.dst, insn.src].contains(&STACK));
        emit.enter(entry, self.start, uses_stack);
        self.emit(&mut emit)?;
        let Emit { mut builder, batch, .. } = emit;
        if let Some(batch) = batch {
            batch.end(&mut builder);
        }
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
        let (mut ended, mut before, mut done) = (true, self.start, self.start);
        for at in self.places() {
            let from = std::mem::replace(&mut before, at);
            if let Some(block) = emit.blocks.get(&at).copied() {
                if !ended {
                    emit.go(from, at)?;
                }
                emit.builder.switch_to_block(block);
                ended = false;
            }
            // Nothing leads here.
            if ended {
                continue;
            }
            let insn = self.program.insns[at];
            if at >= done && emit.pair(at, &self.program.insns[at..self.end]) {
                done = at + PAIR;
            }
            if at < done {
                continue;
            }
            let offset = emit.offset_made(insn, self.bases[at], at);
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
            if let Some(offset) = offset {
                emit.set_offset(insn.dst, offset);
            }
        }
        Ok(())
    }
}
