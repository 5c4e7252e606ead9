//! The definitions of maps in an object's BTF. Each access is checked: the file may be anything.

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

struct Type<'a> {
    name: u32,
    kind: u8,
    /// Size, or the number of a type.
    size: u32,
    /// What follows.
    rest: &'a [u8],
}

/// The types of an object.
pub struct Btf<'a> {
    types: Vec<Type<'a>>,
    names: &'a [u8],
}

const INT: u8 = 1;
const PTR: u8 = 2;
const ARRAY: u8 = 3;
const STRUCT: u8 = 4;
const UNION: u8 = 5;
const ENUM: u8 = 6;
const VAR: u8 = 14;
const DATASEC: u8 = 15;
const FLOAT: u8 = 16;
const ENUM64: u8 = 19;
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
        let mut types = vec![Type { name: 0, kind: 0, size: 0, rest: &[] }];
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
            types.push(Type { name, kind, size, rest: rest.get(12..12 + more)? });
            rest = &rest[12 + more..];
        }
        Some(Self { types, names })
    }

    fn name(&self, at: u32) -> Option<&'a str> {
        text_at(self.names, at as usize)
    }

    /// The type of this number without its qualifiers.
    fn plain(&self, number: u32) -> Option<&Type<'a>> {
        let mut found = self.types.get(number as usize)?;
        for _ in 0..DEEP {
            if !QUALIFIERS.contains(&found.kind) {
                return Some(found);
            }
            found = self.types.get(found.size as usize)?;
        }
        None
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
                "key" => map.key_size = self.size_of(self.pointed(kind)?, 0)?,
                "value" => map.value_size = self.size_of(self.pointed(kind)?, 0)?,
                // A list of pointers: of programs, or of maps.
                "values" => map.values = Some(u32_at(member, 8)? / 8),
                "pinning" => map.pinning = self.number(kind)?,
                other => map.unknown = Some(other.into()),
            }
        }
        Some(map)
    }
}
