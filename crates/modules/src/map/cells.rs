//! Memory that programs of several flow groups read and write at the same time, as they do in the kernel. So each access
//! of ours is atomic: in words where both ends are aligned, else in bytes.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

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

/// Are they the same?
///
/// # Safety
/// Both have `length` bytes, which may be read.
#[inline]
pub unsafe fn equal(one: *const u8, other: *const u8, length: usize) -> bool {
    let aligned = (one as usize | other as usize) & 7 == 0;
    let mut differ = 0u64;
    let mut byte_differs = 0u8;
    each(
        aligned,
        length,
        // SAFETY: `at` lies within both, as the caller promises, and both are aligned.
        |at| unsafe {
            differ |= word(one.add(at)).load(Ordering::Relaxed) ^ word(other.add(at)).load(Ordering::Relaxed);
        },
        // SAFETY: `at` lies within both, as the caller promises.
        |at| unsafe {
            byte_differs |= byte(one.add(at)).load(Ordering::Relaxed) ^ byte(other.add(at)).load(Ordering::Relaxed);
        },
    );
    differ | u64::from(byte_differs) == 0
}

/// A number for these bytes that who does not know the seed cannot choose.
///
/// # Safety
/// There are `length` bytes, which may be read.
#[inline]
pub unsafe fn hash(at: *const u8, length: usize, seed: u64) -> u64 {
    let mix = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
        (product as u64) ^ (product >> 64) as u64
    };
    let mut hash = seed;
    for start in (0..length).step_by(8) {
        let mut word = 0u64;
        for place in start..length.min(start + 8) {
            // SAFETY: it lies within the bytes, as the caller promises.
            word = word << 8 | u64::from(unsafe { byte(at.add(place)) }.load(Ordering::Relaxed));
        }
        hash = mix(hash.rotate_left(23), word);
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
