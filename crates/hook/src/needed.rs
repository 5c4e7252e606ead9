//! The libraries that a dynamic program names (`DT_NEEDED`).

use crate::elf_file::ElfFile;

/// `p_type` of segments that are loaded, and of the dynamic section.
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
/// Tags of the dynamic section.
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
/// Sizes in the file in bytes, and the most entries that are read.
const HEADER: usize = 56;
const ENTRY: usize = 16;
const HEADERS_MAX: usize = 64;
const ENTRIES_MAX: usize = 512;

/// The part of a program header that is used.
struct Header {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// True if a 64-bit program names a library that begins with `prefix`.
pub fn names(source: &ElfFile, prefix: &[u8]) -> bool {
    named(source, prefix).is_some()
}

fn named(source: &ElfFile, prefix: &[u8]) -> Option<()> {
    let head = source.read(0, 64).ok()?;
    let count = usize::from(u16::from_le_bytes(head.get(56..58)?.try_into().ok()?)).min(HEADERS_MAX);
    let table = source.read(word(&head, 32)?, count * HEADER).ok()?;
    let headers: Vec<_> = table
        .chunks_exact(HEADER)
        .filter_map(|header| {
            let kind = u32::from_le_bytes(header.get(..4)?.try_into().ok()?);
            Some(Header { kind, offset: word(header, 8)?, address: word(header, 16)?, bytes: word(header, 32)? })
        })
        .collect();
    let dynamic = headers.iter().find(|header| header.kind == PT_DYNAMIC)?;
    let section = source.read(dynamic.offset, (dynamic.bytes as usize).min(ENTRIES_MAX * ENTRY)).ok()?;
    let entries = || {
        let pairs = section.chunks_exact(ENTRY).map(|entry| (word(entry, 0).unwrap_or(0), word(entry, 8).unwrap_or(0)));
        pairs.take_while(|(tag, _)| *tag != DT_NULL)
    };
    let strings = entries().find(|(tag, _)| *tag == DT_STRTAB)?.1;
    let holds = |header: &&Header| header.kind == PT_LOAD && strings.wrapping_sub(header.address) < header.bytes;
    let loaded = headers.iter().find(holds)?;
    let at = loaded.offset.checked_add(strings - loaded.address)?;
    let is_it = |name: u64| source.read(at.saturating_add(name), prefix.len()).is_ok_and(|name| name == prefix);
    entries().any(|(tag, name)| tag == DT_NEEDED && is_it(name)).then_some(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_libraries_of_this_program() {
        let own = ElfFile::open(&std::env::current_exe().unwrap()).unwrap();
        assert!(names(&own, b"libc.so"));
        assert!(!names(&own, b"liburing.so"));
    }

    #[test]
    fn a_file_that_is_cut_or_garbled_names_nothing() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let path = std::env::temp_dir().join(format!("towpath-needed-{}", std::process::id()));
        for cut in [0, 10, 63, 64, 200, 1000] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert!(!names(&ElfFile::open(&path).unwrap(), b"libc.so"), "{cut}");
        }
        let mut garbled = whole[..2000.min(whole.len())].to_vec();
        garbled[32..].fill(0xff);
        std::fs::write(&path, &garbled).unwrap();
        assert!(!names(&ElfFile::open(&path).unwrap(), b"libc.so"));
        std::fs::remove_file(&path).unwrap();
    }
}
