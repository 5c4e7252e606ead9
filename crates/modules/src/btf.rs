//! Types in an object's BTF or in the kernel's, and the definitions of maps among them. Each access is checked: the file may be
//! anything.

use crate::elf::{text_at, u32_at};

/// A map as its definition says. Kinds are numbers of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definition {
    /// Its name.
    pub name: String,
    /// Kind.
    pub kind: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Most elements.
    pub entries: u32,
    /// Flags.
    pub flags: u32,
    /// Where the list of its first values begins, from the definition's start.
    pub values: Option<u32>,
    /// How it is pinned: a number of libbpf.
    pub pinning: u32,
    /// A member that means nothing to us.
    pub unknown: Option<String>,
}

/// A type.
#[derive(Debug)]
pub struct Type<'a> {
    /// The place of its name.
    name: u32,
    /// `BTF_KIND_*`.
    pub kind: u8,
    /// Of a struct: members have the widths of bit fields. Of an enum: its values are signed.
    flag: bool,
    /// Size, or the number of a type.
    pub size: u32,
    /// What follows.
    rest: &'a [u8],
}

/// A member of a struct or union.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Its name; an anonymous struct has none.
    pub name: &'a str,
    /// The number of its type.
    pub kind: u32,
    /// Where it begins.
    pub bit: u32,
    /// Of a bit field: its width. Else 0.
    pub width: u32,
}

/// An element of an enum.
#[derive(Clone, Copy, Debug)]
pub struct Enumerator<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its value. A negative one has all 64 bits.
    pub value: u64,
}

/// The types of an object or a kernel.
#[derive(Debug)]
pub struct Btf<'a> {
    types: Vec<Type<'a>>,
    names: &'a [u8],
}

/// Kinds of types (`BTF_KIND_*`).
pub const INT: u8 = 1;
/// See [`INT`].
pub const PTR: u8 = 2;
/// See [`INT`].
pub const ARRAY: u8 = 3;
/// See [`INT`].
pub const STRUCT: u8 = 4;
/// See [`INT`].
pub const UNION: u8 = 5;
/// See [`INT`].
pub const ENUM: u8 = 6;
/// See [`INT`].
pub const FORWARD: u8 = 7;
const VAR: u8 = 14;
const DATASEC: u8 = 15;
/// See [`INT`].
pub const FLOAT: u8 = 16;
/// See [`INT`].
pub const ENUM64: u8 = 19;
/// Types that only point to another one: typedef, volatile, const, restrict, and the type's tag.
const QUALIFIERS: [u8; 5] = [8, 9, 10, 11, 18];
/// Deeper types than any program has: a circle.
const DEEP: usize = 64;
const MAGIC: u32 = 0xeb9f;

impl<'a> Btf<'a> {
    /// Reads the section `.BTF`.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        if u32_at(data, 0)? & 0xffff != MAGIC {
            return None;
        }
        let header = u32_at(data, 4)? as usize;
        let part = |at| {
            let start = header.checked_add(u32_at(data, at)? as usize)?;
            data.get(start..start.checked_add(u32_at(data, at + 4)? as usize)?)
        };
        let (mut rest, names) = (part(8)?, part(16)?);
        // Number 0 is void.
        let mut types = vec![Type { name: 0, kind: 0, flag: false, size: 0, rest: &[] }];
        while !rest.is_empty() {
            let (name, info, size) = (u32_at(rest, 0)?, u32_at(rest, 4)?, u32_at(rest, 8)?);
            let (kind, count) = ((info >> 24 & 31) as u8, (info & 0xffff) as usize);
            let more = match kind {
                INT | VAR | 17 => 4,
                ARRAY => 12,
                STRUCT | UNION | DATASEC | ENUM64 => 12 * count,
                ENUM | 13 => 8 * count,
                0 | 20.. => return None,
                _ => 0,
            };
            types.push(Type { name, kind, flag: info >> 31 != 0, size, rest: rest.get(12..12 + more)? });
            rest = &rest[12 + more..];
        }
        Some(Self { types, names })
    }

    /// The text at this place.
    pub fn name(&self, at: u32) -> Option<&'a str> {
        text_at(self.names, at as usize)
    }

    /// The type of this number.
    pub fn get(&self, number: u32) -> Option<&Type<'a>> {
        self.types.get(number as usize)
    }

    /// A type's name. An anonymous one has none.
    pub fn name_of(&self, number: u32) -> Option<&'a str> {
        self.name(self.get(number)?.name)
    }

    /// Numbers of all types, but void.
    pub fn numbers(&self) -> std::ops::Range<u32> {
        1..self.types.len() as u32
    }

    /// The type of this number without its qualifiers.
    pub fn plain(&self, number: u32) -> Option<&Type<'a>> {
        self.get(self.plain_number(number)?)
    }

    /// The number of [`Btf::plain`].
    pub fn plain_number(&self, mut number: u32) -> Option<u32> {
        for _ in 0..DEEP {
            let found = self.get(number)?;
            if !QUALIFIERS.contains(&found.kind) {
                return Some(number);
            }
            number = found.size;
        }
        None
    }

    /// Bytes of a type.
    pub fn bytes(&self, number: u32) -> Option<u32> {
        self.size_of(number, 0)
    }

    fn size_of(&self, number: u32, deep: usize) -> Option<u32> {
        let found = self.plain(number)?;
        match found.kind {
            INT | STRUCT | UNION | ENUM | ENUM64 | FLOAT => Some(found.size),
            PTR => Some(8),
            ARRAY if deep < DEEP => u32_at(found.rest, 8)?.checked_mul(self.size_of(u32_at(found.rest, 0)?, deep + 1)?),
            _ => None,
        }
    }

    /// What a pointer points to.
    fn pointed(&self, number: u32) -> Option<u32> {
        self.plain(number).filter(|found| found.kind == PTR).map(|found| found.size)
    }

    /// The number that `int (*member)[N]` stands for.
    fn number(&self, member: u32) -> Option<u32> {
        let array = self.plain(self.pointed(member)?)?;
        if array.kind == ARRAY { u32_at(array.rest, 8) } else { None }
    }

    /// The maps of the section `.maps`.
    pub fn maps(&self) -> Option<Vec<Definition>> {
        let section = self.types.iter().find(|one| one.kind == DATASEC && self.name(one.name) == Some(".maps"));
        let Some(section) = section else { return Some(Vec::new()) };
        section.rest.chunks_exact(12).map(|entry| self.map(u32_at(entry, 0)?)).collect()
    }

    fn map(&self, variable: u32) -> Option<Definition> {
        let variable = self.types.get(variable as usize).filter(|found| found.kind == VAR)?;
        let definition = self.plain(variable.size).filter(|found| found.kind == STRUCT)?;
        let mut map = Definition { name: self.name(variable.name)?.into(), ..Definition::default() };
        for member in definition.rest.chunks_exact(12) {
            let (name, kind) = (self.name(u32_at(member, 0)?)?, u32_at(member, 4)?);
            match name {
                "type" => map.kind = self.number(kind)?,
                "key_size" => map.key_size = self.number(kind)?,
                "value_size" => map.value_size = self.number(kind)?,
                "max_entries" => map.entries = self.number(kind)?,
                "map_flags" => map.flags = self.number(kind)?,
                "key" => map.key_size = self.bytes(self.pointed(kind)?)?,
                "value" => map.value_size = self.bytes(self.pointed(kind)?)?,
                // A list of pointers: of programs, or of maps.
                "values" => map.values = Some(u32_at(member, 8)? / 8),
                "pinning" => map.pinning = self.number(kind)?,
                other => map.unknown = Some(other.into()),
            }
        }
        Some(map)
    }
}

impl Type<'_> {
    /// Is it a struct or a union?
    pub fn is_composite(&self) -> bool {
        matches!(self.kind, STRUCT | UNION)
    }
    /// Is it an enum, of 32 bits or 64?
    pub fn is_enum(&self) -> bool {
        matches!(self.kind, ENUM | ENUM64)
    }
    /// Are its values signed?
    pub fn is_signed(&self) -> bool {
        // Bit 0 of an integer's encoding.
        self.kind == INT && self.word(0).is_some_and(|word| word >> 24 & 1 != 0) || self.is_enum() && self.flag
    }
    /// Is it an integer of old, that begins within its bytes?
    pub fn begins_within(&self) -> bool {
        self.kind == INT && self.word(0).is_some_and(|word| word >> 16 & 0xff != 0)
    }
    /// Of an array: the type of its elements, and how many there are.
    pub fn array(&self) -> Option<(u32, u32)> {
        if self.kind == ARRAY { Some((self.word(0)?, self.word(8)?)) } else { None }
    }
    fn word(&self, at: usize) -> Option<u32> {
        u32_at(self.rest, at)
    }
}

impl<'a> Btf<'a> {
    /// The members of a struct or union; none of others.
    pub fn members(&self, of: &Type<'a>) -> impl Iterator<Item = Option<Member<'a>>> {
        let (flag, rest) = (of.flag, if of.is_composite() { of.rest } else { &[] });
        rest.chunks_exact(12).map(move |entry| {
            let place = u32_at(entry, 8)?;
            let (bit, width) = if flag { (place & 0xff_ffff, place >> 24) } else { (place, 0) };
            Some(Member { name: self.name(u32_at(entry, 0)?)?, kind: u32_at(entry, 4)?, bit, width })
        })
    }

    /// The elements of an enum; none of others.
    pub fn enumerators(&self, of: &Type<'a>) -> impl Iterator<Item = Option<Enumerator<'a>>> {
        let (each, rest) = if of.kind == ENUM { (8, of.rest) } else { (12, of.rest) };
        let (signed, rest) = (of.flag, if of.is_enum() { rest } else { &[] });
        rest.chunks_exact(each).map(move |entry| {
            let low = u32_at(entry, 4)?;
            let value = match u32_at(entry, 8) {
                Some(high) => u64::from(high) << 32 | u64::from(low),
                None if signed => i64::from(low as i32) as u64,
                None => low.into(),
            };
            Some(Enumerator { name: self.name(u32_at(entry, 0)?)?, value })
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// BTF of these words of types and these names.
    fn btf(types: &[u32], names: &[u8]) -> Vec<u8> {
        let header = [MAGIC | 1 << 16, 24, 0, 4 * types.len() as u32, 4 * types.len() as u32, names.len() as u32];
        header.iter().chain(types).flat_map(|word| word.to_le_bytes()).chain(names.iter().copied()).collect()
    }

    #[test]
    fn elements_of_enums_have_all_their_bits() {
        let (signed, two) = (1 << 31, 2);
        let small = [1, u32::from(ENUM) << 24 | two | signed, 4, 3, -5i32 as u32, 5, 9];
        let unsigned = [1, u32::from(ENUM) << 24 | 1, 4, 3, 0xffff_fff0];
        let large = [1, u32::from(ENUM64) << 24 | 1, 8, 3, 0x9abc_def0, 0x1234_5678];
        let bytes = btf(&[&small[..], &unsigned, &large].concat(), b"\0e\0a\0b\0");
        let types = Btf::parse(&bytes).unwrap();
        let of = |number| {
            let found = types.get(number).unwrap();
            (types.enumerators(found).map(|one| one.unwrap().value).collect::<Vec<_>>(), found.is_signed())
        };
        assert_eq!(of(1), (vec![-5i64 as u64, 9], true));
        assert_eq!(of(2), (vec![0xffff_fff0], false));
        assert_eq!(of(3), (vec![0x1234_5678_9abc_def0], false));
        assert_eq!(types.numbers(), 1..4);
    }
}
