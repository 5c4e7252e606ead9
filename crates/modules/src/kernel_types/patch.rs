//! An instruction gets the value of its relocation.

use super::value::{Field, Value};
use crate::insn::{self, ALU, ALU64, Insn, LD_IMM64, LDX, ST, STX};

/// Bytes that an instruction has now, or two do.
pub struct Changed {
    /// They begin where the relocation says.
    pub bytes: Vec<u8>,
    /// They may not be reached: the kernel has not what they rely on.
    pub is_poison: bool,
}

/// The verifier refuses a program that comes here, as it reads beyond the stack. Where it cannot come, because the program has
/// asked before whether there is such a thing, the instruction stays.
const POISON: Insn = Insn { code: LDX | insn::MEM | DOUBLE_WORD, dst: 0, src: 10, off: 0, imm: 0 };
const DOUBLE_WORD: u8 = 0x18;

/// Changes the instruction at a place of a section. `local` is what it stands for in the object.
pub fn change(code: &[u8], at: u32, local: Option<Value>, value: Option<Value>) -> Result<Changed, String> {
    let start = at as usize;
    let read = |start: usize| {
        let bytes = code.get(start..start.checked_add(8)?)?;
        Some(Insn::read(bytes.try_into().ok()?))
    };
    let mut changed = read(start).filter(|_| start.is_multiple_of(8)).ok_or("there is no such instruction")?;
    let is_wide = changed.code == LD_IMM64;
    let mut second = match is_wide {
        true => Some(read(start + 8).ok_or("its second half is missing")?),
        false => None,
    };
    let value = value.filter(|value| fits(changed, local, *value));
    let Some(Value { value, field }) = value else {
        let count = if is_wide { 2 } else { 1 };
        return Ok(Changed { bytes: POISON.bytes().repeat(count), is_poison: true });
    };
    match changed.class() {
        ALU | ALU64 if !changed.by_register() => changed.imm = value as i32,
        LDX | ST | STX => {
            changed.off = i16::try_from(value).map_err(|_| "the field is too far from the beginning of its type")?;
            if let (Some(field), Some(before)) = (field, local.and_then(|local| local.field))
                && field.bytes != before.bytes
            {
                changed.code = changed.code & !0x18 | size_code(field.bytes).unwrap_or(DOUBLE_WORD);
            }
        }
        _ if is_wide && changed.src == 0 => {
            changed.imm = value as i32;
            second.iter_mut().for_each(|second| second.imm = (value >> 32) as i32);
        }
        _ => return Err(format!("its instruction (code {:#x}) takes no such value", changed.code)),
    }
    let bytes = [Some(changed), second].into_iter().flatten().flat_map(Insn::bytes).collect();
    Ok(Changed { bytes, is_poison: false })
}

/// Can the load or store be one of the kernel's field? A signed one, or a part of a struct, cannot change its size.
fn fits(insn: Insn, local: Option<Value>, value: Value) -> bool {
    let (Some(Field { bytes, resizes }), Some(local)) = (value.field, local.and_then(|local| local.field)) else {
        return true;
    };
    let moves = matches!(insn.class(), LDX | ST | STX);
    !moves || bytes == local.bytes || resizes && local.resizes && size_code(bytes).is_some()
}

fn size_code(bytes: u32) -> Option<u8> {
    Some(match bytes {
        1 => 0x10,
        2 => 0x08,
        4 => 0x00,
        8 => DOUBLE_WORD,
        _ => return None,
    })
}
