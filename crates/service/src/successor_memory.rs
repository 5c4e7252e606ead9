//! Memory that passes one text from a dead serving process to the next.
//!
//! It has two halves. A text is written to the half that is not in force, and one short write puts it in force. A process
//! that dies meanwhile leaves the old text.

use rustix::fd::OwnedFd;
use std::io;

/// Bytes of the memory.
pub const SUCCESSOR_BYTES: u64 = 128 << 20;
/// The place of the first half. Before it are the place and the length of the text in force, of 8 bytes each.
const FIRST: u64 = 4096;
const SECOND: u64 = FIRST + MOST;
/// Most bytes of a text.
const MOST: u64 = (SUCCESSOR_BYTES - FIRST) / 2;

/// See the module.
#[derive(Debug)]
pub struct SuccessorMemory(OwnedFd);

impl SuccessorMemory {
    /// In memory of [`SUCCESSOR_BYTES`].
    pub fn new(memory: OwnedFd) -> Self {
        Self(memory)
    }

    /// The place and the length of the text in force.
    fn in_force(&self) -> io::Result<Option<(u64, u64)>> {
        let mut head = [[0; 8]; 2];
        let read = rustix::io::pread(&self.0, head.as_flattened_mut(), 0)?;
        let [place, length] = head.map(u64::from_le_bytes);
        let is_whole = read == 16 && [FIRST, SECOND].contains(&place) && length <= MOST;
        Ok(is_whole.then_some((place, length)))
    }

    /// The text that was written last. Empty: none was.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let Some((place, length)) = self.in_force()? else { return Ok(Vec::new()) };
        let mut text = vec![0; length as usize];
        let mut done = 0;
        while done < text.len() {
            match rustix::io::pread(&self.0, &mut text[done..], place + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(text)
    }

    /// Puts this text in the place of the last one. An error leaves that one in force.
    pub fn write(&self, text: &[u8]) -> io::Result<()> {
        if text.len() as u64 > MOST {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let place = if self.in_force()?.is_some_and(|(place, _)| place == FIRST) { SECOND } else { FIRST };
        let mut done = 0;
        while done < text.len() {
            done += rustix::io::pwrite(&self.0, &text[done..], place + done as u64)?;
        }
        let head = [place, text.len() as u64].map(u64::to_le_bytes);
        match rustix::io::pwrite(&self.0, head.as_flattened(), 0)? {
            16 => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn memory() -> OwnedFd {
        let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, SUCCESSOR_BYTES).unwrap();
        memory
    }

    #[test]
    fn the_last_text_is_read_by_whoever_comes_next() {
        let memory = memory();
        let worker = || SuccessorMemory::new(memory.try_clone().unwrap());
        assert_eq!(worker().read().unwrap(), b"");
        for text in [&b"one"[..], b"another, longer one", b"", b"last"] {
            worker().write(text).unwrap();
            assert_eq!(worker().read().unwrap(), text);
        }
    }

    #[test]
    fn a_worker_that_dies_while_it_writes_leaves_the_old_text() {
        let memory = SuccessorMemory::new(memory());
        memory.write(b"old").unwrap();
        let (place, _) = memory.in_force().unwrap().unwrap();
        // All of the new text, but not that it is in force.
        let other = if place == FIRST { SECOND } else { FIRST };
        rustix::io::pwrite(&memory.0, b"newer", other).unwrap();
        assert_eq!(memory.read().unwrap(), b"old");
        memory.write(b"new").unwrap();
        assert_eq!(memory.in_force().unwrap(), Some((other, 3)));
        assert_eq!(memory.read().unwrap(), b"new");
    }

    #[test]
    fn what_no_worker_writes_is_no_text_and_too_much_is_refused() {
        let memory = SuccessorMemory::new(memory());
        for (place, length) in [(8, 3), (FIRST, MOST + 1), (SECOND + 1, 0), (u64::MAX, u64::MAX)] {
            rustix::io::pwrite(&memory.0, [place, length].map(u64::to_le_bytes).as_flattened(), 0).unwrap();
            assert_eq!(memory.read().unwrap(), b"", "{place} {length}");
        }
        memory.write(b"text").unwrap();
        let error = memory.write(&vec![0; MOST as usize + 1]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(memory.read().unwrap(), b"text");
    }
}
