//! What the tests of the interpreter share: instructions, maps, and modules of them.
#![allow(clippy::unwrap_used, dead_code)]

use std::sync::Arc;
use towpath_modules::{Insn, Instance, MapKind, MapSpec, Module, Object, ProgramSpec};

pub fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn { code, dst, src, off, imm }
}

/// Bytes of a value: fewer than lie between two of them.
pub const VALUE: usize = 12;
pub const ENTRIES: u32 = 4;

/// Maps by number: an array, a hash with keys of 4 bytes, constants, a ring buffer, and programs for tail calls.
pub const ARRAY: i32 = 0;
pub const HASH: i32 = 1;
pub const CONSTANTS: i32 = 2;
pub const RING: i32 = 3;
pub const PROGRAMS: i32 = 4;

pub fn maps() -> Vec<MapSpec> {
    let spec = |kind: MapKind, sizes| MapSpec::new(kind.name(), kind.number(), sizes, 0).unwrap();
    let value = VALUE as u32;
    vec![
        spec(MapKind::Array, [4, value, ENTRIES]),
        spec(MapKind::Hash, [4, value, ENTRIES]),
        MapSpec { read_only: true, initial: vec![7; VALUE], ..spec(MapKind::Array, [4, value, 1]) },
        spec(MapKind::RingBuf, [0, 0, 4096]),
        MapSpec { programs: vec![(1, "main".into())], ..spec(MapKind::ProgArray, [4, 4, 2]) },
    ]
}

/// Loads a map into a register.
pub fn map(register: u8, number: i32) -> [Insn; 2] {
    [insn(0x18, register, 1, 0, number), Insn::default()]
}

/// Loads the place of a map's first value.
pub fn value(register: u8, number: i32) -> [Insn; 2] {
    [insn(0x18, register, 2, 0, number), Insn::default()]
}

/// A call of a helper.
pub fn call(number: i32) -> Insn {
    insn(0x85, 0, 0, 0, number)
}

pub const EXIT: Insn = Insn { code: 0x95, dst: 0, src: 0, off: 0, imm: 0 };

/// An object with the maps, and this program.
pub fn object(insns: Vec<Insn>, functions: Vec<usize>) -> Object {
    let program = ProgramSpec { name: "main".into(), frags: false, insns, functions };
    Object { programs: vec![program], maps: maps(), license: "GPL".into() }
}

/// A module that no verifier has judged, in which key 1 of the hash is there.
pub fn instance(insns: Vec<Insn>, functions: Vec<usize>) -> Instance {
    let module = Module::interpreted(&object(insns, functions), 0, 1).unwrap();
    module.maps()[HASH as usize].set(&1u32.to_ne_bytes(), &[3; VALUE]).unwrap();
    Instance::new(&Arc::new(module), 0)
}
