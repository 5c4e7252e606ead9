//! What a relocation stands for, once it is known where its access leads.

use super::access::{Access, End, Kind};
use crate::btf::{Btf, PTR};

/// A value for an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// The value.
    pub value: u64,
    /// Of the offset of what a load reads: how much that is.
    pub field: Option<Field>,
}

/// A field that is loaded or stored as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its bytes.
    pub bytes: u32,
    /// Is it a pointer or an unsigned integer? Such a one may be read with another size.
    pub resizes: bool,
}

fn plain(value: impl Into<u64>) -> Value {
    Value { value: value.into(), field: None }
}

/// The value of a relocation. `access` is `None` where there is no such thing. `None`: it has no value then.
pub fn of(types: &Btf<'_>, kind: Kind, access: Option<&Access>) -> Result<Option<Value>, String> {
    if matches!(kind, Kind::Exists | Kind::TypeExists | Kind::EnumExists) {
        return Ok(Some(plain(access.is_some())));
    }
    let Some(access) = access else { return Ok(None) };
    Ok(Some(match kind {
        Kind::TypeIdLocal | Kind::TypeIdTarget => plain(access.root),
        Kind::TypeSize => plain(types.bytes(access.root).ok_or("its type has no size")?),
        Kind::EnumValue => plain(access.enumerator(types).ok_or("there is no such element of an enum")?),
        _ => field(types, kind, access)?,
    }))
}

fn field(types: &Btf<'_>, kind: Kind, access: &Access) -> Result<Value, String> {
    let (of, width) = match access.end(types)? {
        End::Element(of) => (of, 0),
        End::Member(member) => (member.kind, member.width),
    };
    let found = types.plain(of).ok_or("its types cannot be read")?;
    // A whole field begins at a byte, and is as long as it is. Of a bit field the integer is read that has all of it.
    let (byte, bytes, width) = match width {
        0 => {
            let bytes = types.bytes(of).ok_or("its type has no size")?;
            (access.bit / 8, bytes, bytes.checked_mul(8).ok_or("its type is too large")?)
        }
        width => {
            let (byte, bytes) = around(access.bit, width, found.size)?;
            (byte, bytes, width)
        }
    };
    let is_field = width == bytes.saturating_mul(8);
    let shift = |by: u32| 64u32.checked_sub(by).map(plain).ok_or("the field is larger than 64 bits");
    Ok(match kind {
        Kind::Offset => {
            let resizes = found.kind == PTR || found.kind == crate::btf::INT && !found.is_signed();
            Value { value: byte.into(), field: is_field.then_some(Field { bytes, resizes }) }
        }
        Kind::Size => plain(bytes),
        Kind::Signed => plain(found.is_signed()),
        Kind::ShiftLeft => shift((access.bit - byte * 8).saturating_add(width))?,
        _ => shift(width)?,
    })
}

/// The first byte and the bytes of the integer around a bit field: that of its type, or a larger one.
fn around(bit: u32, width: u32, size: u32) -> Result<(u32, u32), String> {
    let mut bytes = size;
    while matches!(bytes, 1 | 2 | 4 | 8) {
        let byte = bit / 8 / bytes * bytes;
        if bit.checked_add(width).is_some_and(|end| end - byte * 8 <= bytes * 8) {
            return Ok((byte, bytes));
        }
        bytes *= 2;
    }
    Err("no integer has all of the bit field".into())
}
