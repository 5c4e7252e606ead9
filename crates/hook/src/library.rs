//! The preloaded library's file: the note by which it is known.

use crate::elf_file::ElfFile;
use crate::needed::Dynamic;
use crate::program::{HEAD_BYTES, MACHINE, PT_NOTE, half, long, word};
use std::path::Path;

/// `e_type` of a shared object.
const ET_DYN: u16 = 3;
/// Who defines the note, and its type.
const NAME: [u8; 8] = *b"Towpath\0";
const TYPE: u32 = 1;
const VERSION_BYTES: usize = 16;
/// Bytes of a segment of notes that are looked at.
const NOTE_BYTES: usize = 4096;

/// An ELF note with the library's version.
#[repr(C, align(4))]
pub struct Note {
    name_bytes: u32,
    version_bytes: u32,
    kind: u32,
    name: [u8; 8],
    version: [u8; VERSION_BYTES],
}

impl Note {
    /// The note of a library of this version.
    pub const fn of(version: &str) -> Self {
        let (mut padded, mut at) = ([0; VERSION_BYTES], 0);
        while at < version.len() && at < VERSION_BYTES {
            padded[at] = version.as_bytes()[at];
            at += 1;
        }
        Self {
            name_bytes: NAME.len() as u32,
            version_bytes: VERSION_BYTES as u32,
            kind: TYPE,
            name: NAME,
            version: padded,
        }
    }
}

/// Checks that a file is the library. On error: why it is not.
pub fn check(file: &Path) -> Result<(), &'static str> {
    let source = ElfFile::open(file).map_err(|_| "cannot be opened")?;
    let head = source.read(0, HEAD_BYTES).map_err(|_| "cannot be read")?;
    let is_shared_object = head.starts_with(b"\x7fELF\x02\x01") && half(&head, 16) == Some(ET_DYN);
    if !is_shared_object || half(&head, 18) != Some(MACHINE) {
        return Err("is no shared object of this processor");
    }
    if has_note(&source, &head) { Ok(()) } else { Err("is another shared object, not Towpath's library") }
}

/// The libraries that a file names as needed (`DT_NEEDED`).
pub fn needs(file: &Path) -> Vec<String> {
    let dynamic = ElfFile::open(file).ok().and_then(|source| Dynamic::of(&source));
    let names = dynamic.iter().flat_map(Dynamic::libraries);
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

fn has_note(source: &ElfFile, head: &[u8]) -> bool {
    let (Some(table), Some(size), Some(count)) = (long(head, 32), half(head, 54), half(head, 56)) else { return false };
    let begin = [&TYPE.to_le_bytes()[..], &NAME].concat();
    (0..usize::from(count)).map(|entry| table.saturating_add(entry * usize::from(size))).any(|at| {
        let (start, length) = (long(head, at + 8).unwrap_or(0), long(head, at + 32).unwrap_or(0));
        word(head, at) == Some(PT_NOTE)
            && source
                .read(start as u64, length.min(NOTE_BYTES))
                .is_ok_and(|notes| notes.windows(begin.len()).any(|window| window == begin))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A shared object with one segment, of notes.
    fn object(notes: &[u8]) -> Vec<u8> {
        let mut head = vec![0; 120];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[16..18].copy_from_slice(&ET_DYN.to_le_bytes());
        head[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        head[32..40].copy_from_slice(&64u64.to_le_bytes());
        head[54..56].copy_from_slice(&56u16.to_le_bytes());
        head[56..58].copy_from_slice(&1u16.to_le_bytes());
        head[64..68].copy_from_slice(&PT_NOTE.to_le_bytes());
        head[72..80].copy_from_slice(&120u64.to_le_bytes());
        head[96..104].copy_from_slice(&(notes.len() as u64).to_le_bytes());
        head.extend_from_slice(notes);
        head
    }

    #[test]
    fn only_a_shared_object_with_the_note_is_the_library() {
        let note = Note::of("0.1.0");
        assert_eq!((note.version_bytes, &note.version[..6]), (16, &b"0.1.0\0"[..]));
        let file = std::env::temp_dir().join(format!("towpath-library-{}", std::process::id()));
        let judge = |content: &[u8]| {
            std::fs::write(&file, content).unwrap();
            check(&file)
        };
        let good = object(b"\x08\0\0\0\x10\0\0\0\x01\0\0\0Towpath\x000.1.0");
        assert_eq!(judge(&good), Ok(()));
        let other = object(b"\x04\0\0\0\x10\0\0\0\x03\0\0\0GNU\0build id");
        assert_eq!(judge(&other), Err("is another shared object, not Towpath's library"));
        assert_eq!(judge(b"root:x:0:0:root:/root:/bin/bash"), Err("is no shared object of this processor"));
        for length in 0..good.len() {
            let _ = judge(&good[..length]);
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!(check(&file), Err("cannot be opened"));
        assert_eq!(check(Path::new("/tmp")), Err("cannot be read"));
        assert!(check(&std::env::current_exe().unwrap()).is_err(), "a program is none");
    }
}
