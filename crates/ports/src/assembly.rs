//! Received super-segments. The kernel puts one into several frame buffers; here it is in one piece.

use crate::mapping::Buffer;
use towpath_wire::ETHERNET_BYTES;

/// The largest super-segment: an IP packet of 64 KiB, and its Ethernet header with a tag.
const LARGEST: usize = 65_536 + ETHERNET_BYTES + 4;
/// How many may be held. More than one turn takes: 2 MiB of data, which is the worth of two full windows.
const PLACES: u16 = 32;
/// In a handle: it is a place, not an address of the frame memory.
const MARK: u64 = 1 << 63;

/// Buffers for super-segments, and the one that is being put together.
pub(crate) struct Assembly {
    /// Made when the first one comes.
    memory: Option<Buffer>,
    free: Vec<u16>,
    held: Vec<bool>,
    /// Place and length of the unfinished one. `None` as its length: it is too long, and dropped at its end.
    unfinished: Option<(u16, Option<usize>)>,
}

/// What has come of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// More parts follow.
    Unfinished,
    /// The super-segment is whole: its handle and its length.
    Whole(u64, u32),
    /// It was too long.
    Dropped,
}

impl Assembly {
    pub fn new() -> Self {
        let places = usize::from(PLACES);
        Self { memory: None, free: (0..PLACES).rev().collect(), held: vec![false; places], unfinished: None }
    }

    /// Has a super-segment begun that is not whole?
    pub fn is_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    /// Is there a buffer for the next part?
    pub fn has_room(&self) -> bool {
        self.unfinished.is_some() || !self.free.is_empty()
    }

    /// Adds a part, for which there must be room. `last`: it is the last one.
    pub fn add(&mut self, part: &[u8], last: bool) -> Added {
        if self.memory.is_none() {
            self.memory = Buffer::new(usize::from(PLACES) * LARGEST).ok();
        }
        let Some((place, len)) = self.unfinished.take().or_else(|| Some((self.free.pop()?, Some(0)))) else {
            return Added::Dropped;
        };
        let end = len.map(|len| len + part.len()).filter(|end| *end <= LARGEST);
        let end = match (len, end, &mut self.memory) {
            (Some(len), Some(end), Some(memory)) => {
                let start = usize::from(place) * LARGEST;
                memory[start + len..start + end].copy_from_slice(part);
                Some(end)
            }
            _ => None,
        };
        match end {
            _ if !last => {
                self.unfinished = Some((place, end));
                Added::Unfinished
            }
            Some(end) => {
                self.held[usize::from(place)] = true;
                Added::Whole(MARK | u64::from(place), end as u32)
            }
            None => {
                self.free.push(place);
                Added::Dropped
            }
        }
    }

    /// Is this the handle of a super-segment?
    pub fn has(handle: u64) -> bool {
        handle & MARK != 0
    }

    /// The bytes of a super-segment that is held; empty if none is.
    pub fn bytes(&self, handle: u64, len: u32) -> &[u8] {
        let place = (handle & !MARK) as usize;
        if self.held.get(place) != Some(&true) {
            return &[];
        }
        let memory = self.memory.as_deref().unwrap_or_default();
        memory.get(place * LARGEST..place * LARGEST + len as usize).unwrap_or_default()
    }

    /// The same bytes, to be changed in their place.
    pub fn bytes_mut(&mut self, handle: u64, len: u32) -> Option<&mut [u8]> {
        let place = (handle & !MARK) as usize;
        if self.held.get(place) != Some(&true) {
            return None;
        }
        self.memory.as_deref_mut()?.get_mut(place * LARGEST..place * LARGEST + len as usize)
    }

    /// Gives a buffer back. False if the handle is of none that is held.
    pub fn release(&mut self, handle: u64) -> bool {
        let place = (handle & !MARK) as usize;
        let held = self.held.get_mut(place).is_some_and(std::mem::take);
        if held {
            self.free.push(place as u16);
        }
        held
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A super-segment of these parts.
    fn of(assembly: &mut Assembly, parts: &[&[u8]]) -> Added {
        let (last, before) = parts.split_last().unwrap();
        for part in before {
            assert_eq!(assembly.add(part, false), Added::Unfinished);
            assert!(assembly.is_unfinished());
        }
        assembly.add(last, true)
    }

    #[test]
    fn parts_are_put_together_in_their_order() {
        let mut assembly = Assembly::new();
        let Added::Whole(first, 5) = of(&mut assembly, &[b"ab", b"c", b"de"]) else { panic!("it is whole") };
        let Added::Whole(second, 2) = of(&mut assembly, &[b"x", b"y"]) else { panic!("it is whole") };
        assert!(Assembly::has(first) && Assembly::has(second) && !assembly.is_unfinished());
        assert_eq!((assembly.bytes(first, 5), assembly.bytes(second, 2)), (&b"abcde"[..], &b"xy"[..]));
        assert!(assembly.release(first) && !assembly.release(first));
        assert_eq!(assembly.bytes(first, 5), b"");
        assert_eq!(assembly.bytes(second, 2), b"xy");
    }

    #[test]
    fn the_largest_fits_and_a_longer_one_is_dropped_at_its_end() {
        let mut assembly = Assembly::new();
        let largest = vec![7; LARGEST - 1];
        let Added::Whole(handle, len) = of(&mut assembly, &[&largest, b"8"]) else { panic!("it is whole") };
        assert_eq!(assembly.bytes(handle, len).last(), Some(&b'8'));
        for longer in [&[&largest[..], b"89"][..], &[&largest, b"89", b"", b"0"]] {
            assert_eq!(of(&mut assembly, longer), Added::Dropped);
            assert!(!assembly.is_unfinished());
        }
        // The buffer of the dropped ones is free again.
        assert_eq!(assembly.free.len(), usize::from(PLACES) - 1);
    }

    #[test]
    fn there_is_room_until_all_are_held() {
        let mut assembly = Assembly::new();
        let mut handles = Vec::new();
        while assembly.has_room() {
            let Added::Whole(handle, 1) = of(&mut assembly, &[b"", b"a"]) else { panic!("it is whole") };
            handles.push(handle);
        }
        assert_eq!(handles.len(), usize::from(PLACES));
        assert_eq!(assembly.add(b"a", true), Added::Dropped);
        assert!(assembly.release(handles[3]) && assembly.has_room());
    }
}
