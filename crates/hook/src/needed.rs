//! The dynamic section of a program: the libraries that it names (`DT_NEEDED`), where it looks for them, and the names
//! of its symbols.

use crate::elf_file::ElfFile;

/// `p_type` of segments that are loaded, and of the dynamic section.
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
/// Tags of the dynamic section.
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
/// Sizes in the file in bytes, and the most entries and bytes of strings that are read.
const HEADER: usize = 56;
const ENTRY: usize = 16;
const HEADERS_MAX: usize = 64;
const ENTRIES_MAX: usize = 512;
const STRINGS_MAX: usize = 8 << 20;

/// The part of a program header that is used.
pub struct Header {
    /// `p_type`
    pub kind: u32,
    /// `p_flags`
    pub flags: u32,
    /// Where the segment is in the file.
    pub offset: u64,
    address: u64,
    /// Its bytes in the file.
    pub bytes: u64,
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// The program headers of a 64-bit program.
pub fn headers(source: &ElfFile) -> Option<Vec<Header>> {
    let head = source.read(0, 64).ok()?;
    let count = usize::from(u16::from_le_bytes(head.get(56..58)?.try_into().ok()?)).min(HEADERS_MAX);
    let table = source.read(word(&head, 32)?, count * HEADER).ok()?;
    let header = |header: &[u8]| {
        let half = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
        Some(Header {
            kind: half(0)?,
            flags: half(4)?,
            offset: word(header, 8)?,
            address: word(header, 16)?,
            bytes: word(header, 32)?,
        })
    };
    Some(table.chunks_exact(HEADER).filter_map(header).collect())
}

/// The section's entries, and the strings to which they point.
pub struct Dynamic {
    entries: Vec<(u64, u64)>,
    strings: Vec<u8>,
}

impl Dynamic {
    /// Reads it; `None`: there is none.
    pub fn of(source: &ElfFile) -> Option<Self> {
        let headers = headers(source)?;
        let dynamic = headers.iter().find(|header| header.kind == PT_DYNAMIC)?;
        let section = source.read(dynamic.offset, (dynamic.bytes as usize).min(ENTRIES_MAX * ENTRY)).ok()?;
        let pairs = section.chunks_exact(ENTRY).map(|entry| (word(entry, 0).unwrap_or(0), word(entry, 8).unwrap_or(0)));
        let entries: Vec<_> = pairs.take_while(|(tag, _)| *tag != DT_NULL).collect();
        let value = |tag: u64| entries.iter().find(|entry| entry.0 == tag).map(|entry| entry.1);
        let (begin, bytes) = (value(DT_STRTAB)?, value(DT_STRSZ)?);
        let holds = |header: &&Header| header.kind == PT_LOAD && begin.wrapping_sub(header.address) < header.bytes;
        let loaded = headers.iter().find(holds)?;
        let at = loaded.offset.checked_add(begin - loaded.address)?;
        let bytes = bytes.min(loaded.bytes).min(STRINGS_MAX as u64);
        let strings = source.read(at, bytes as usize).ok()?;
        Some(Self { entries, strings })
    }

    fn named(&self, wanted: u64) -> impl Iterator<Item = &[u8]> {
        let string = |at: u64| self.strings.get(at as usize..)?.split(|byte| *byte == 0).next();
        self.entries.iter().filter(move |(tag, _)| *tag == wanted).filter_map(move |(_, at)| string(*at))
    }

    /// The libraries' names.
    pub fn libraries(&self) -> impl Iterator<Item = &[u8]> {
        self.named(DT_NEEDED)
    }

    /// True if it names a library that begins with `prefix`.
    pub fn names(&self, prefix: &[u8]) -> bool {
        self.libraries().any(|name| name.starts_with(prefix))
    }

    /// The directories in which the program looks for libraries first, separated by colons.
    pub fn search_path(&self) -> Option<&[u8]> {
        self.named(DT_RUNPATH).next().or_else(|| self.named(DT_RPATH).next())
    }

    /// True if it defines or uses a symbol of this name.
    pub fn has_symbol(&self, name: &[u8]) -> bool {
        self.strings.split(|byte| *byte == 0).any(|string| string == name)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_libraries_and_symbols_of_this_program() {
        let own = Dynamic::of(&ElfFile::open(&std::env::current_exe().unwrap()).unwrap()).unwrap();
        assert!(own.names(b"libc.so"));
        assert!(!own.names(b"liburing.so"));
        assert!(own.has_symbol(b"openat64") || own.has_symbol(b"open64") || own.has_symbol(b"read"));
        assert!(!own.has_symbol(b"__asan_init"));
    }

    #[test]
    fn a_file_that_is_cut_or_garbled_names_nothing() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let path = std::env::temp_dir().join(format!("towpath-needed-{}", std::process::id()));
        let names = || Dynamic::of(&ElfFile::open(&path).unwrap()).is_some_and(|dynamic| dynamic.names(b"libc.so"));
        for cut in [0, 10, 63, 64, 200, 1000] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert!(!names(), "{cut}");
        }
        let mut garbled = whole[..2000.min(whole.len())].to_vec();
        garbled[32..].fill(0xff);
        std::fs::write(&path, &garbled).unwrap();
        assert!(!names());
        std::fs::remove_file(&path).unwrap();
    }
}
