//! The parts of an object file that a module is made of. Each access is checked: the file may be anything.

use crate::error::LoadError;

/// A section.
#[derive(Clone, Debug)]
pub struct Section<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its bytes. Of one without bytes in the file (`.bss`) there are none.
    pub data: &'a [u8],
    /// Where they are in the file.
    pub start: u64,
    /// Its length, also without bytes.
    pub size: u64,
    /// `SHT_REL` and the like.
    pub kind: u32,
    /// Are its bytes instructions?
    pub code: bool,
    /// For relocations: the number of the section that they change.
    pub info: u32,
}

/// A symbol.
#[derive(Clone, Debug)]
pub struct Symbol<'a> {
    /// Its name; sections have none.
    pub name: &'a str,
    /// Is it a function?
    pub function: bool,
    /// Number of its section; 0 = it is defined elsewhere.
    pub section: usize,
    /// Place in its section.
    pub value: u64,
    /// Bytes.
    pub size: u64,
}

/// A relocation.
#[derive(Clone, Copy, Debug)]
pub struct Relocation {
    /// Place in the section that it changes.
    pub offset: u64,
    /// Number of its symbol.
    pub symbol: usize,
}

/// An object file.
#[derive(Debug)]
pub struct Elf<'a> {
    /// By number.
    pub sections: Vec<Section<'a>>,
    /// By number.
    pub symbols: Vec<Symbol<'a>>,
    /// What changes, and how: pairs of the changed section's number and its relocations.
    pub relocations: Vec<(usize, Vec<Relocation>)>,
}

const SYMTAB: u32 = 2;
const NOBITS: u32 = 8;
const REL: u32 = 9;
/// `SHF_EXECINSTR`.
const EXECUTABLE: u64 = 4;
/// `EM_BPF`.
const BPF: u16 = 247;
/// More sections than any program of ours has.
const MAX_SECTIONS: u16 = 4096;

/// The two bytes at a place.
pub fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    data.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_le_bytes)
}
/// The four bytes at a place.
pub fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}
/// The eight bytes at a place.
pub fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    data.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)
}
/// A text that ends with NUL.
pub fn text_at(data: &[u8], at: usize) -> Option<&str> {
    let text = data.get(at..)?;
    let end = text.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&text[..end]).ok()
}
fn range(data: &[u8], at: u64, length: u64) -> Option<&[u8]> {
    data.get(usize::try_from(at).ok()?..usize::try_from(at.checked_add(length)?).ok()?)
}

impl<'a> Elf<'a> {
    /// Reads the file.
    pub fn parse(file: &'a [u8]) -> Result<Self, LoadError> {
        if file.get(..4) != Some(b"\x7fELF") {
            return Err(LoadError::NotElf);
        }
        let machine = u16_at(file, 18).ok_or(LoadError::Broken("its header is cut off"))?;
        // 64 bits, little-endian, an object file.
        if machine != BPF || file[4..6] != [2, 1] || u16_at(file, 16) != Some(1) {
            return Err(LoadError::Machine(machine));
        }
        let sections = sections(file).ok_or(LoadError::Broken("its sections do not lie within the file"))?;
        let symbols = symbols(file, &sections).ok_or(LoadError::Broken("its symbols do not lie within the file"))?;
        let relocations = sections.iter().filter(|section| section.kind == REL);
        let relocations = relocations.map(|section| (section.info as usize, relocations_of(section.data))).collect();
        Ok(Self { sections, symbols, relocations })
    }

    /// The relocations of a section.
    pub fn relocations_of(&self, section: usize) -> impl Iterator<Item = Relocation> {
        let all = self.relocations.iter().filter(move |(changed, _)| *changed == section);
        all.flat_map(|(_, relocations)| relocations.iter().copied())
    }

    /// The section of this name.
    pub fn section(&self, name: &str) -> Option<(usize, &Section<'a>)> {
        self.sections.iter().enumerate().find(|(_, section)| section.name == name)
    }
}

fn sections(file: &[u8]) -> Option<Vec<Section<'_>>> {
    let (table, each) = (u64_at(file, 40)?, u64::from(u16_at(file, 58)?));
    let (count, names) = (u16_at(file, 60)?.min(MAX_SECTIONS), u16_at(file, 62)?);
    let header = |number: u16| range(file, table.checked_add(each * u64::from(number))?, 64);
    let bytes = |header: &[u8]| {
        let absent = u32_at(header, 4)? == NOBITS;
        if absent { Some(&file[..0]) } else { range(file, u64_at(header, 24)?, u64_at(header, 32)?) }
    };
    let names = bytes(header(names)?)?;
    let section = |number| {
        let header = header(number)?;
        Some(Section {
            name: text_at(names, u32_at(header, 0)? as usize)?,
            data: bytes(header)?,
            start: u64_at(header, 24)?,
            size: u64_at(header, 32)?,
            kind: u32_at(header, 4)?,
            code: u64_at(header, 8)? & EXECUTABLE != 0,
            info: u32_at(header, 44)?,
        })
    };
    (0..count).map(section).collect()
}

fn symbols<'a>(file: &'a [u8], sections: &[Section<'a>]) -> Option<Vec<Symbol<'a>>> {
    let Some(number) = sections.iter().position(|section| section.kind == SYMTAB) else { return Some(Vec::new()) };
    // The link of a symbol table is the section of its names.
    let (table, each) = (u64_at(file, 40)?, usize::from(u16_at(file, 58)?));
    let link = u32_at(file, usize::try_from(table).ok()?.checked_add(each * number)?.checked_add(40)?)?;
    let names = sections.get(link as usize)?.data;
    let symbol = |entry: &[u8]| {
        let section = usize::from(u16_at(entry, 6)?);
        Some(Symbol {
            name: text_at(names, u32_at(entry, 0)? as usize)?,
            function: entry[4] & 15 == 2,
            // The numbers from 0xff00 on are no sections.
            section: if section < 0xff00 { section } else { 0 },
            value: u64_at(entry, 8)?,
            size: u64_at(entry, 16)?,
        })
    };
    sections[number].data.chunks_exact(24).map(symbol).collect()
}

fn relocations_of(data: &[u8]) -> Vec<Relocation> {
    let read = |entry: &[u8]| {
        let (offset, info) = (u64_at(entry, 0)?, u64_at(entry, 8)?);
        Some(Relocation { offset, symbol: (info >> 32) as usize })
    };
    data.chunks_exact(16).filter_map(read).collect()
}
