//! The loop over frames that a program stands in, so that one call runs it on many. What is the same for all of them is done
//! once, and a frame after which the loop goes on costs no return.

use crate::bounds::{self, Made, Places};
use crate::memory::{ACCESS, FIXED};
use crate::results::Results;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{Block, InstBuilder, Value};
use cranelift_frontend::{FunctionBuilder, Variable};
use std::collections::BTreeMap;
use towpath_modules::ProgramSpec;
use towpath_modules::abi::{Base, Field, helper_takes_context, place};
use towpath_modules::insn::{self, Insn, JMP};
use towpath_modules::module::PASS;

/// After which frames the loop goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GoesOn {
    /// Those that pass. It is the loop of a module.
    Passing,
    /// All others. It is the loop of a filter, which looks for those that pass.
    Others,
}

/// The loop.
pub(crate) struct Batch {
    goes_on: GoesOn,
    /// Where the frame begins and ends. No program in a batch changes that.
    data: Value,
    data_end: Value,
    length: Value,
    /// What registers have before each instruction.
    places: Vec<Places>,
    /// The offsets of those that have a place in the frame.
    offsets: [Variable; 11],
    /// To the next frame.
    next: Block,
    /// Ends with this result.
    stop: Block,
    results: Results,
    /// Where it ends with results that are known.
    ends: BTreeMap<u32, Block>,
}

impl Batch {
    /// Begins the loop. The function's arguments are the run, the first frame's place in the list, and the list's end. There is
    /// one frame at least. It returns where the loop has stopped; 0: it went on after all frames.
    pub(crate) fn begin(
        builder: &mut FunctionBuilder<'_>,
        entry: Block,
        goes_on: GoesOn,
        program: &ProgramSpec,
        bases: &[Base],
    ) -> Self {
        let [run, first, end] = [0, 1, 2].map(|argument| builder.block_params(entry)[argument]);
        let [begin, next, done, stop] = [(); 4].map(|()| builder.create_block());
        let at = builder.declare_var(I64);
        builder.def_var(at, first);
        builder.ins().jump(begin, &[]);

        builder.switch_to_block(next);
        let place = builder.use_var(at);
        let bytes = builder.ins().iconst(I64, i64::from(place::SLICE_BYTES));
        let place = builder.ins().iadd(place, bytes);
        builder.def_var(at, place);
        let more = builder.ins().icmp(IntCC::NotEqual, place, end);
        builder.ins().brif(more, begin, &[], done, &[]);

        builder.switch_to_block(done);
        let nowhere = builder.ins().iconst(I64, 0);
        builder.ins().return_(&[nowhere]);

        let result = builder.append_block_param(stop, I32);
        builder.set_cold_block(stop);
        builder.switch_to_block(stop);
        builder.ins().store(ACCESS, result, run, place::RESULT);
        let place = builder.use_var(at);
        builder.ins().return_(&[place]);

        builder.switch_to_block(begin);
        let place = builder.use_var(at);
        let data = builder.ins().load(I64, FIXED, place, place::SLICE_START);
        let length = builder.ins().load(I64, FIXED, place, place::SLICE_LENGTH);
        let data_end = builder.ins().iadd(data, length);
        if needs_run(program, bases) {
            for (value, field) in [(data, Field::Data), (data_end, Field::DataEnd)] {
                builder.ins().store(ACCESS, value, run, field.place().0);
            }
            let zero = builder.ins().iconst(I32, 0);
            builder.ins().store(ACCESS, zero, run, place::TAIL_CALLS);
        }
        let zero = builder.ins().iconst(I64, 0);
        let offsets = std::array::from_fn(|_| builder.declare_var(I64));
        offsets.iter().for_each(|offset| builder.def_var(*offset, zero));
        let (places, results) = (bounds::places(program, bases), Results::of(program));
        Self { goes_on, data, data_end, length, places, offsets, next, stop, results, ends: BTreeMap::new() }
    }

    /// The program's end, with this result.
    pub(crate) fn leave(&self, builder: &mut FunctionBuilder<'_>, result: Value) {
        let result = builder.ins().ireduce(I32, result);
        let pass = builder.ins().iconst(I32, i64::from(PASS));
        let goes_on = match self.goes_on {
            GoesOn::Passing => IntCC::Equal,
            GoesOn::Others => IntCC::NotEqual,
        };
        let goes_on = builder.ins().icmp(goes_on, result, pass);
        builder.ins().brif(goes_on, self.next, &[], self.stop, &[result.into()]);
    }

    /// Where the program goes from the instruction at `from` to the one at `to`, if it ends there with a result that is known.
    pub(crate) fn way(
        &mut self,
        builder: &mut FunctionBuilder<'_>,
        program: &ProgramSpec,
        from: usize,
        to: usize,
    ) -> Option<Block> {
        let result = self.results.of_way(program, from, to)?;
        if (result == PASS) == (self.goes_on == GoesOn::Passing) {
            return Some(self.next);
        }
        Some(*self.ends.entry(result).or_insert_with(|| builder.create_block()))
    }

    /// Makes the ends with results that are known. A frame after which the loop goes on pays nothing for them.
    pub(crate) fn end(self, builder: &mut FunctionBuilder<'_>) {
        for (result, block) in self.ends {
            builder.switch_to_block(block);
            builder.set_cold_block(block);
            let result = builder.ins().iconst(I32, i64::from(result));
            builder.ins().jump(self.stop, &[result.into()]);
        }
    }

    /// How the instruction at `at` makes a place in the frame, if it does.
    pub(crate) fn made(&self, insn: Insn, base: Base, at: usize) -> Option<Made> {
        bounds::made(insn, base, &self.places[at])
    }

    /// The offset of the place in the frame that a register has.
    pub(crate) fn offset(&self, builder: &mut FunctionBuilder<'_>, register: u8) -> Value {
        builder.use_var(self.offsets[usize::from(register)])
    }

    pub(crate) fn set_offset(&self, builder: &mut FunctionBuilder<'_>, register: u8, offset: Value) {
        builder.def_var(self.offsets[usize::from(register)], offset);
    }

    /// An offset and the frame's length, which the jump at `at` is to compare. The program compares two addresses there.
    pub(crate) fn compared(&self, builder: &mut FunctionBuilder<'_>, insn: Insn, at: usize) -> Option<(Value, Value)> {
        match bounds::compares(insn, &self.places[at])? {
            true => Some((self.offset(builder, insn.dst), self.length)),
            false => Some((self.length, self.offset(builder, insn.src))),
        }
    }

    /// A field of the context that needs no memory.
    pub(crate) fn value_of(&self, field: Field) -> Option<Value> {
        match field {
            Field::Data => Some(self.data),
            Field::DataEnd => Some(self.data_end),
            _ => None,
        }
    }
}

/// Does somebody else than the program's own loads look where the frame is: a helper, or a function that has the context?
fn needs_run(program: &ProgramSpec, bases: &[Base]) -> bool {
    program.insns.iter().zip(bases).any(|(insn, base)| match insn.code == JMP | insn::CALL {
        true => insn.src == insn::FUNCTION || helper_takes_context(insn.imm),
        false => *base != Base::Context && Field::of_load(*insn, *base).is_some(),
    })
}
