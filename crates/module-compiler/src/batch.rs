//! The loop over frames that a program stands in, so that one call runs it on many. What is the same for all of them is done
//! once, and a frame that passes costs no return.

use crate::memory::{ACCESS, FIXED};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{Block, InstBuilder, Value};
use cranelift_frontend::FunctionBuilder;
use towpath_modules::ProgramSpec;
use towpath_modules::abi::{Base, Field, helper_takes_context, place};
use towpath_modules::insn::{self, JMP};
use towpath_modules::module::PASS;

/// The loop.
pub(crate) struct Batch {
    /// Where the frame begins and ends. No program in a batch changes that.
    data: Value,
    data_end: Value,
    /// To the next frame.
    next: Block,
    /// Ends with this result.
    stop: Block,
}

impl Batch {
    /// Begins the loop. The function's arguments are the run, the first frame's place in the list, and the list's end. There is
    /// one frame at least.
    pub(crate) fn begin(builder: &mut FunctionBuilder<'_>, entry: Block, needs_run: bool) -> Self {
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
        builder.ins().return_(&[end]);

        let result = builder.append_block_param(stop, I32);
        builder.switch_to_block(stop);
        builder.ins().store(ACCESS, result, run, place::RESULT);
        let place = builder.use_var(at);
        builder.ins().return_(&[place]);

        builder.switch_to_block(begin);
        let place = builder.use_var(at);
        let data = builder.ins().load(I64, FIXED, place, place::SLICE_START);
        let length = builder.ins().load(I64, FIXED, place, place::SLICE_LENGTH);
        let data_end = builder.ins().iadd(data, length);
        if needs_run {
            for (value, field) in [(data, Field::Data), (data_end, Field::DataEnd)] {
                builder.ins().store(ACCESS, value, run, field.place().0);
            }
            let zero = builder.ins().iconst(I32, 0);
            builder.ins().store(ACCESS, zero, run, place::TAIL_CALLS);
        }
        Self { data, data_end, next, stop }
    }

    /// The program's end, with this result.
    pub(crate) fn leave(&self, builder: &mut FunctionBuilder<'_>, result: Value) {
        let result = builder.ins().ireduce(I32, result);
        let pass = builder.ins().iconst(I32, i64::from(PASS));
        let passes = builder.ins().icmp(IntCC::Equal, result, pass);
        builder.ins().brif(passes, self.next, &[], self.stop, &[result.into()]);
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
pub(crate) fn needs_run(program: &ProgramSpec, bases: &[Base]) -> bool {
    program.insns.iter().zip(bases).any(|(insn, base)| match insn.code == JMP | insn::CALL {
        true => insn.src == insn::FUNCTION || helper_takes_context(insn.imm),
        false => *base != Base::Context && Field::of_load(*insn, *base).is_some(),
    })
}
