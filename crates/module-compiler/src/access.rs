//! Loads and stores of programs.

use crate::emit::Emit;
use crate::memory::ACCESS;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I16, I32, I64};
use cranelift_codegen::ir::{AtomicRmwOp, InstBuilder, MemFlagsData, Type, Value};
use towpath_modules::abi::{Base, Field};
use towpath_modules::insn::{self, ALU, ALU64, Insn, LDX, ST};

/// Instructions of [`Emit::pair`].
pub(crate) const PAIR: usize = 4;
/// A load of one byte.
const LOAD_BYTE: u8 = LDX | insn::MEM | 0x10;

impl Emit<'_> {
    pub(crate) fn load(&mut self, insn: Insn, base: Base) {
        let at = self.get(insn.src);
        let field = Field::of_load(insn, base);
        let known = field.filter(|_| base == Base::Context).zip(self.batch.as_ref());
        if let Some(value) = known.and_then(|(field, batch)| batch.value_of(field)) {
            return self.set(insn.dst, value);
        }
        let Some((place, pointer)) = field.map(Field::place) else {
            let value = self.load_bytes(insn, at);
            return self.set(insn.dst, value);
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
        self.set(insn.dst, value);
        self.builder.ins().jump(after, &[]);
        self.builder.switch_to_block(after);
    }

    /// All 64 bits of a register. The load itself fills them.
    fn load_bytes(&mut self, insn: Insn, at: Value) -> Value {
        let (signed, off, ins) = (insn.mode() == insn::MEMSX, i32::from(insn.off), self.builder.ins());
        match (insn.size(), signed) {
            (1, false) => ins.uload8(I64, ACCESS, at, off),
            (1, true) => ins.sload8(I64, ACCESS, at, off),
            (2, false) => ins.uload16(I64, ACCESS, at, off),
            (2, true) => ins.sload16(I64, ACCESS, at, off),
            (4, false) => ins.uload32(ACCESS, at, off),
            (4, true) => ins.sload32(ACCESS, at, off),
            _ => ins.load(I64, ACCESS, at, off),
        }
    }

    /// Do the four instructions from this one on make a number of two bytes that lie side by side? Compilers do so where a number
    /// may not be aligned. Then one load does the same. No jump may lead between them.
    pub(crate) fn pair(&mut self, at: usize, insns: &[Insn]) -> bool {
        let Some([one, other, shift, or]) = insns.first_chunk().copied() else { return false };
        let loads = one.code == LOAD_BYTE && other.code == LOAD_BYTE && one.src == other.src;
        let (low, high) = if one.off < other.off { (one, other) } else { (other, one) };
        let shifts = matches!(shift.class(), ALU | ALU64) && shift.op() == insn::LSH && !shift.by_register();
        let joins = matches!(or.class(), ALU | ALU64) && or.op() == insn::OR && or.by_register();
        let fits = loads
            && ![one.src, other.dst].contains(&one.dst)
            && low.off.checked_add(1) == Some(high.off)
            && (shifts && shift.dst == high.dst && shift.imm == 8)
            && (joins && [[low.dst, high.dst], [high.dst, low.dst]].contains(&[or.dst, or.src]))
            && self.blocks.range(at + 1..at + PAIR).next().is_none();
        if fits {
            let base = self.get(one.src);
            let number = self.builder.ins().uload16(I64, ACCESS, base, i32::from(low.off));
            let [low_byte, high_byte] = [0xff, 0xff00].map(|mask| self.builder.ins().band_imm_u(number, mask));
            self.set(low.dst, low_byte);
            self.set(high.dst, high_byte);
            self.set(or.dst, number);
        }
        fits
    }

    pub(crate) fn store(&mut self, insn: Insn) {
        let (at, kind) = (self.get(insn.dst), kind_of(insn.size()));
        let wide = if insn.class() == ST { self.number(I64, insn.imm.into()) } else { self.get(insn.src) };
        let value = self.narrow(wide, kind);
        self.builder.ins().store(ACCESS, value, at, i32::from(insn.off));
    }

    pub(crate) fn atomic(&mut self, insn: Insn) {
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
}

fn kind_of(bytes: u8) -> Type {
    match bytes {
        1 => I8,
        2 => I16,
        4 => I32,
        _ => I64,
    }
}
