//! Instructions of eBPF, and the names of their parts (RFC 9669).
// The numbers stand in groups, each under its heading, with the RFC's own names.
#![allow(missing_docs)]

/// One instruction. `LD_IMM64` takes two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Insn {
    /// Class, operation and source.
    pub code: u8,
    /// Number of the destination register.
    pub dst: u8,
    /// Number of the source register.
    pub src: u8,
    /// Offset of a jump or an access.
    pub off: i16,
    /// Constant.
    pub imm: i32,
}

impl Insn {
    /// Reads one of an object.
    pub fn read(bytes: [u8; 8]) -> Self {
        let [code, registers, off @ .., a, b, c, d] = bytes;
        Self {
            code,
            dst: registers & 15,
            src: registers >> 4,
            off: i16::from_le_bytes(off),
            imm: i32::from_le_bytes([a, b, c, d]),
        }
    }
    /// As the kernel takes it.
    pub fn bytes(self) -> [u8; 8] {
        let ([a, b], [c, d, e, f]) = (self.off.to_le_bytes(), self.imm.to_le_bytes());
        [self.code, self.src << 4 | self.dst, a, b, c, d, e, f]
    }
    /// The class.
    pub fn class(self) -> u8 {
        self.code & 7
    }
    /// The operation of an arithmetic instruction or a jump.
    pub fn op(self) -> u8 {
        self.code & 0xf0
    }
    /// Is the second operand a register?
    pub fn by_register(self) -> bool {
        self.code & X != 0
    }
    /// The mode of a load or store.
    pub fn mode(self) -> u8 {
        self.code & 0xe0
    }
    /// Bytes of a load or store.
    pub fn size(self) -> u8 {
        match self.code & 0x18 {
            0x00 => 4,
            0x08 => 2,
            0x10 => 1,
            _ => 8,
        }
    }
    /// The register that it writes.
    pub fn writes(self) -> Option<u8> {
        match self.class() {
            ALU | ALU64 | LDX | LD => Some(self.dst),
            STX if self.mode() == ATOMIC && self.imm == CMPXCHG => Some(0),
            STX if self.mode() == ATOMIC && self.imm & FETCH != 0 => Some(self.src),
            _ => None,
        }
    }
    /// Where a jump of this instruction at `at` goes; `None` = it is no jump, or leads out of all programs.
    pub fn target(self, at: usize) -> Option<usize> {
        let by = match (self.class(), self.op()) {
            (JMP | JMP32, CALL | EXIT) => return None,
            (JMP32, JA) => i64::from(self.imm),
            (JMP | JMP32, _) => i64::from(self.off),
            _ => return None,
        };
        usize::try_from(at as i64 + 1 + by).ok()
    }
    /// Where a program may go on after this instruction at `at`: to the next one, or as a jump says.
    pub fn followers(self, at: usize) -> [Option<usize>; 2] {
        let always = self.op() == JA && matches!(self.class(), JMP | JMP32);
        let next = if self.code == LD_IMM64 { at + 2 } else { at + 1 };
        [Some(next).filter(|_| self.code != JMP | EXIT && !always), self.target(at)]
    }
}

/// Classes.
pub const LD: u8 = 0;
pub const LDX: u8 = 1;
pub const ST: u8 = 2;
pub const STX: u8 = 3;
pub const ALU: u8 = 4;
pub const JMP: u8 = 5;
pub const JMP32: u8 = 6;
pub const ALU64: u8 = 7;

/// The second operand is a register.
pub const X: u8 = 8;

/// `LD_IMM64`.
pub const LD_IMM64: u8 = 0x18;
/// Its sources: the number of a map, or a place in a map's first value.
pub const MAP: u8 = 1;
pub const MAP_VALUE: u8 = 2;
/// Sources of calls: a helper, or a function of the program.
pub const HELPER: u8 = 0;
pub const FUNCTION: u8 = 1;

/// Modes of loads and stores.
pub const MEM: u8 = 0x60;
pub const MEMSX: u8 = 0x80;
pub const ATOMIC: u8 = 0xc0;
/// The atomic operation gives the old value back.
pub const FETCH: i32 = 1;
pub const XCHG: i32 = 0xe1;
pub const CMPXCHG: i32 = 0xf1;

/// Arithmetic.
pub const ADD: u8 = 0x00;
pub const SUB: u8 = 0x10;
pub const MUL: u8 = 0x20;
pub const DIV: u8 = 0x30;
pub const OR: u8 = 0x40;
pub const AND: u8 = 0x50;
pub const LSH: u8 = 0x60;
pub const RSH: u8 = 0x70;
pub const NEG: u8 = 0x80;
pub const MOD: u8 = 0x90;
pub const XOR: u8 = 0xa0;
pub const MOV: u8 = 0xb0;
pub const ARSH: u8 = 0xc0;
pub const END: u8 = 0xd0;

/// Jumps.
pub const JA: u8 = 0x00;
pub const JEQ: u8 = 0x10;
pub const JGT: u8 = 0x20;
pub const JGE: u8 = 0x30;
pub const JSET: u8 = 0x40;
pub const JNE: u8 = 0x50;
pub const JSGT: u8 = 0x60;
pub const JSGE: u8 = 0x70;
pub const CALL: u8 = 0x80;
pub const EXIT: u8 = 0x90;
pub const JLT: u8 = 0xa0;
pub const JLE: u8 = 0xb0;
pub const JSLT: u8 = 0xc0;
pub const JSLE: u8 = 0xd0;
