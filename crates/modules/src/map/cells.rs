//! Memory that programs of several flow groups read and write at the same time, as they do in the kernel. So each access
//! of ours is atomic: in words or halves of them where they are aligned, else in bytes.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Bytes that begin at a multiple of eight.
#[derive(Debug)]
pub struct Cells(Box<[AtomicU64]>);

impl Cells {
    /// Zeros. Memory is touched only as needed.
    pub fn new(bytes: usize) -> Self {
        let words = Box::into_raw(vec![0u64; bytes.div_ceil(8)].into_boxed_slice());
        // SAFETY: the pointer is that of a box, and `AtomicU64` is laid out as `u64` is.
        Self(unsafe { Box::from_raw(words as *mut [AtomicU64]) })
    }
    /// Where they begin. They may be written through it, as they are atomic.
    pub fn start(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }
    /// How many there are.
    pub fn bytes(&self) -> usize {
        self.0.len() * 8
    }
}

/// Calls `word` for each whole word and `byte` for each other byte of `length` bytes.
#[inline]
fn each(aligned: bool, length: usize, mut word: impl FnMut(usize), mut byte: impl FnMut(usize)) {
    let words = if aligned { length / 8 } else { 0 };
    (0..words).for_each(|at| word(at * 8));
    (words * 8..length).for_each(&mut byte);
}

/// # Safety
/// The byte may be read and written as an atomic as long as this runs.
unsafe fn byte(at: *const u8) -> &'static AtomicU8 {
    // SAFETY: as promised by the caller; the reference is used at once.
    unsafe { AtomicU8::from_ptr(at.cast_mut()) }
}

/// # Safety
/// Half a word is aligned, and may be read and written as an atomic as long as this runs.
unsafe fn half(at: *const u8) -> &'static AtomicU32 {
    // SAFETY: as promised by the caller; the reference is used at once.
    unsafe { AtomicU32::from_ptr(at.cast_mut().cast()) }
}

/// # Safety
/// The word is aligned, and may be read and written as an atomic as long as this runs.
unsafe fn word(at: *const u8) -> &'static AtomicU64 {
    // SAFETY: as promised by the caller; the reference is used at once.
    unsafe { AtomicU64::from_ptr(at.cast_mut().cast()) }
}

/// Copies bytes of which others may write some meanwhile.
///
/// # Safety
/// Both ends have `length` bytes, which may be read and written.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    let aligned = (from as usize | to as usize) & 7 == 0;
    each(
        aligned,
        length,
        // SAFETY: `at` lies within both ends, as the caller promises, and both are aligned.
        |at| unsafe { word(to.add(at)).store(word(from.add(at)).load(Ordering::Relaxed), Ordering::Relaxed) },
        // SAFETY: `at` lies within both ends, as the caller promises.
        |at| unsafe { byte(to.add(at)).store(byte(from.add(at)).load(Ordering::Relaxed), Ordering::Relaxed) },
    );
}

/// Writes zeros.
///
/// # Safety
/// There are `length` bytes, which may be written.
pub unsafe fn clear(at: *mut u8, length: usize) {
    for place in 0..length {
        // SAFETY: it lies within the bytes, as the caller promises.
        unsafe { byte(at.add(place)).store(0, Ordering::Relaxed) };
    }
}

/// Up to eight bytes as a number, the first one lowest: in the largest units that their place lets be atomic.
///
/// # Safety
/// There are `length` bytes, which may be read.
#[inline(always)]
unsafe fn load(at: *const u8, length: usize) -> u64 {
    // SAFETY: as promised by the caller, and it is aligned.
    unsafe {
        match length {
            4 if at as usize & 3 == 0 => u64::from(u32::from_le(half(at).load(Ordering::Relaxed))),
            8 if at as usize & 7 == 0 => u64::from_le(word(at).load(Ordering::Relaxed)),
            _ => load_slowly(at, length),
        }
    }
}

/// # Safety
/// That of [`load`].
#[inline(never)]
unsafe fn load_slowly(at: *const u8, length: usize) -> u64 {
    let (mut all, mut place) = (0, 0);
    while place < length {
        let from = at.wrapping_add(place);
        let is_half = length - place >= 4 && from as usize & 3 == 0;
        // SAFETY: it lies within the bytes, as the caller promises, and half a word is aligned.
        let part = unsafe {
            if is_half {
                u64::from(u32::from_le(half(from).load(Ordering::Relaxed)))
            } else {
                u64::from(byte(from).load(Ordering::Relaxed))
            }
        };
        all |= part << (8 * place);
        place += if is_half { 4 } else { 1 };
    }
    all
}

/// Are they the same?
///
/// # Safety
/// Both have `length` bytes, which may be read.
#[inline(always)]
pub unsafe fn equal(one: *const u8, other: *const u8, length: usize) -> bool {
    // Most keys are short, and a loop would cost them most.
    // SAFETY: as promised by the caller.
    unsafe {
        match length {
            0..=8 => load(one, length) == load(other, length),
            _ => equal_long(one, other, length),
        }
    }
}

/// # Safety
/// That of [`equal`].
#[inline(never)]
unsafe fn equal_long(one: *const u8, other: *const u8, length: usize) -> bool {
    let (mut start, mut same) = (0, true);
    while start < length && same {
        let part = (length - start).min(8);
        // SAFETY: the part lies within both, as the caller promises.
        same = unsafe { load(one.add(start), part) == load(other.add(start), part) };
        start += part;
    }
    same
}

/// A number for these bytes that who does not know the seed cannot choose.
///
/// # Safety
/// There are `length` bytes, which may be read.
#[inline(always)]
pub unsafe fn hash(at: *const u8, length: usize, seed: u64) -> u64 {
    if length > 8 {
        // SAFETY: as promised by the caller.
        return unsafe { hash_long(at, length, seed) };
    }
    // SAFETY: as promised by the caller.
    mix(mix(seed.rotate_left(23), unsafe { load(at, length) }), seed ^ length as u64)
}

#[inline]
fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
    (product as u64) ^ (product >> 64) as u64
}

/// # Safety
/// That of [`hash`].
#[inline(never)]
unsafe fn hash_long(at: *const u8, length: usize, seed: u64) -> u64 {
    let (mut hash, mut start) = (seed, 0);
    while start < length {
        let part = (length - start).min(8);
        // SAFETY: the part lies within the bytes, as the caller promises.
        let word = unsafe { load(at.add(start), part) };
        hash = mix(hash.rotate_left(23), word);
        start += part;
    }
    mix(hash, seed ^ length as u64)
}

/// Copies out.
///
/// # Safety
/// There are as many bytes as `to` has, which may be read.
pub unsafe fn read(from: *const u8, to: &mut [u8]) {
    // SAFETY: as promised by the caller, and `to` is ours.
    unsafe { copy(from, to.as_mut_ptr(), to.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key is the same wherever it lies.
    #[test]
    fn a_hash_and_a_comparison_depend_on_bytes_and_not_on_their_place() {
        let bytes: Vec<u8> = (1..=40).collect();
        for length in 0..=24 {
            let mut hashes = Vec::new();
            for place in 0..8 {
                let cells = Cells::new(48);
                let at = cells.start().wrapping_add(place);
                // SAFETY: 48 bytes are there, and nobody else has them.
                unsafe {
                    copy(bytes.as_ptr(), at, length);
                    hashes.push(hash(at, length, 7));
                    for other in 0..8 {
                        let cells = Cells::new(48);
                        let beside = cells.start().wrapping_add(other);
                        copy(bytes.as_ptr(), beside, length);
                        assert!(equal(at, beside, length));
                        for (changed, byte) in bytes.iter().enumerate().take(length) {
                            beside.add(changed).write(99);
                            assert!(!equal(at, beside, length), "byte {changed} of {length}");
                            assert_ne!(hash(beside, length, 7), hashes[0], "byte {changed} of {length}");
                            beside.add(changed).write(*byte);
                        }
                    }
                }
            }
            assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{length} bytes");
        }
    }
}
