//! Which programs may write to a frame. One that does not can be run on a frame that is somebody else's.

use crate::data_flow::{self, Fact};
use crate::helpers;
use crate::insn::{self, ADD, ALU64, Insn, JMP, ST, STX};
use crate::object::ProgramSpec;

/// Helpers that return a place in a map, or in its records: `map_lookup_elem` and `ringbuf_reserve`.
const GIVE_PLACES: [i32; 2] = [1, 131];
/// Helpers that have the context, and write to no frame: `tail_call`, `xdp_get_buff_len` and `xdp_load_bytes`.
const LOOK: [i32; 3] = [helpers::TAIL_CALL, 188, 189];

/// Registers, by their bits, that surely have no place in a frame: the stack's, and places in maps.
type Apart = u16;
const STACK: Apart = 1 << 10;

impl Fact for Option<Apart> {
    fn join(&self, other: &Self) -> Self {
        match (*self, *other) {
            (Some(one), Some(other)) => Some(one & other),
            (one, other) => one.or(other),
        }
    }
}

/// May a program write to a frame? A place that it has stored somewhere and loaded again may be anything.
pub fn may_write_frames(program: &ProgramSpec) -> bool {
    let begins = program.functions.iter().map(|start| (*start, Some(STACK)));
    let before =
        data_flow::before(program, begins, |_, insn, apart: &Option<Apart>| apart.map(|apart| after(insn, apart)));
    program.insns.iter().zip(before).any(|(insn, apart)| apart.is_some_and(|apart| writes(*insn, apart)))
}

fn writes(insn: Insn, apart: Apart) -> bool {
    match insn.class() {
        ST | STX => apart & bit(insn.dst) == 0,
        JMP if insn.code == JMP | insn::CALL && insn.src == insn::HELPER => {
            helpers::takes_context(insn.imm) && !LOOK.contains(&insn.imm)
        }
        _ => false,
    }
}

fn after(insn: Insn, apart: Apart) -> Apart {
    if insn.code == JMP | insn::CALL {
        let gives = insn.src == insn::HELPER && GIVE_PLACES.contains(&insn.imm);
        return apart & !0b11_1111 | Apart::from(gives);
    }
    let Some(written) = insn.writes().map(bit) else { return apart };
    let stays = match insn.class() {
        // Also if it is no place, but a number: nobody can write there.
        ALU64 if insn.op() == ADD => apart & bit(insn.dst) != 0 && (!insn.by_register() || apart & bit(insn.src) != 0),
        ALU64 if insn.code == ALU64 | insn::MOV | insn::X && insn.off == 0 => apart & bit(insn.src) != 0,
        insn::LD => insn.src == insn::MAP_VALUE,
        _ => false,
    };
    if stays { apart | written } else { apart & !written }
}

fn bit(register: u8) -> Apart {
    1 << register
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
        Insn { code, dst, src, off, imm }
    }

    fn may_write(insns: &[Insn]) -> bool {
        let exit = [insn(0xb7, 0, 0, 0, 2), insn(0x95, 0, 0, 0, 0)];
        let insns = [insns, &exit].concat();
        may_write_frames(&ProgramSpec { name: "writes".into(), frags: false, insns, functions: vec![0] })
    }

    #[test]
    fn stores_to_the_stack_and_to_maps_are_none_to_a_frame() {
        let stack = insn(0x7b, 10, 1, -8, 0);
        let place = [insn(0xbf, 2, 10, 0, 0), insn(0x07, 2, 0, 0, -8), insn(0x62, 2, 0, 0, 1)];
        assert!(!may_write(&[stack]) && !may_write(&place));
        let lookup = [insn(0x85, 0, 0, 0, 1), insn(0x15, 0, 0, 1, 0), insn(0xdb, 0, 6, 0, 0)];
        assert!(!may_write(&lookup), "a count in a map");
        assert!(!may_write(&[insn(0x18, 3, 2, 0, 0), insn(0, 0, 0, 0, 0), insn(0x63, 3, 0, 0, 0)]), "a variable");
    }

    #[test]
    fn all_other_stores_may_be_to_a_frame() {
        let data = insn(0x61, 2, 1, 0, 0);
        assert!(may_write(&[data, insn(0x72, 2, 0, 0, 1)]));
        assert!(
            may_write(&[data, insn(0x7b, 10, 2, -8, 0), insn(0x79, 3, 10, -8, 0), insn(0x72, 3, 0, 0, 1)]),
            "spilled"
        );
        assert!(may_write(&[data, insn(0xbf, 3, 2, 0, 0), insn(0x0f, 3, 4, 0, 0), insn(0x72, 3, 0, 0, 1)]), "moved");
        // On one of two ways.
        let either = [data, insn(0x15, 5, 0, 1, 0), insn(0xbf, 2, 10, 0, 0), insn(0x72, 2, 0, -8, 1)];
        assert!(may_write(&either));
        // A call overwrites what it was given.
        assert!(may_write(&[insn(0xbf, 2, 10, 0, 0), insn(0x85, 0, 0, 0, 7), insn(0x72, 2, 0, -8, 1)]));
        // A stack's place with the frame's for an offset is a frame's as well.
        assert!(may_write(&[data, insn(0xbf, 3, 10, 0, 0), insn(0x0f, 3, 2, 0, 0), insn(0x72, 3, 0, 0, 1)]));
    }

    #[test]
    fn helpers_write_to_a_frame_if_they_have_it_and_do_not_only_look() {
        let call = |number| may_write(&[insn(0x85, 0, 0, 0, number)]);
        assert_eq!(
            [1, 2, 12, 28, 188, 189, 190, 44, 65].map(call),
            [false, false, false, false, false, false, true, true, true]
        );
    }
}
