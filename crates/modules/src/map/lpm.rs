//! Values by the longest prefix. One hash map has all prefixes; a lookup asks it for each length that there is, the
//! longest first.

use super::cells;
use super::codes;
use super::hash::Hash;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most bytes of a key: the length of its prefix, and what it is one of.
const KEY_MAX: usize = 4 + 256;

/// See the module.
#[derive(Debug)]
pub struct Lpm {
    hash: Hash,
    /// By length in bits: how many prefixes there are.
    lengths: Box<[AtomicU32]>,
    bytes: usize,
}

/// A key, aligned so that it is compared in words.
#[repr(align(8))]
struct Key([u8; KEY_MAX]);

impl Lpm {
    /// An empty one.
    pub fn new(key_size: u32, value_size: u32, entries: u32) -> Self {
        let bytes = (key_size as usize - 4).min(KEY_MAX - 4);
        let lengths = (0..=bytes * 8).map(|_| AtomicU32::new(0)).collect();
        Self { hash: Hash::new(key_size, value_size, entries, false, 1), lengths, bytes }
    }

    /// Do these bytes lie in one value?
    pub fn has_value(&self, at: usize, length: usize) -> bool {
        self.hash.has_value(at, length)
    }

    /// The key, and the length of its prefix.
    ///
    /// # Safety
    /// The key has as many bytes as this map's.
    unsafe fn key(&self, at: *const u8) -> (Key, usize) {
        let mut key = Key([0; KEY_MAX]);
        // SAFETY: as promised by the caller.
        unsafe { cells::read(at, &mut key.0[..4 + self.bytes]) };
        let length = u32::from_ne_bytes([key.0[0], key.0[1], key.0[2], key.0[3]]);
        (key, length as usize)
    }

    /// Leaves of a key what belongs to a prefix of this length.
    fn cut(&self, key: &mut Key, length: usize) {
        key.0[..4].copy_from_slice(&(length as u32).to_ne_bytes());
        let (whole, bits) = (4 + length / 8, length % 8);
        if whole < 4 + self.bytes {
            key.0[whole] &= !(0xff >> bits);
            key.0[whole + 1..4 + self.bytes].fill(0);
        }
    }

    /// The value of the longest prefix of this key; null if there is none.
    ///
    /// # Safety
    /// The key has as many bytes as this map's.
    pub unsafe fn lookup(&self, at: *const u8) -> *mut u8 {
        // SAFETY: as promised by the caller.
        let (mut key, most) = unsafe { self.key(at) };
        if most > self.bytes * 8 {
            return std::ptr::null_mut();
        }
        for length in (0..=most).rev() {
            if self.lengths[length].load(Ordering::Relaxed) == 0 {
                continue;
            }
            self.cut(&mut key, length);
            // SAFETY: the key has the bytes of this map's.
            let value = unsafe { self.hash.lookup(key.0.as_ptr(), 0) };
            if !value.is_null() {
                return value;
            }
        }
        std::ptr::null_mut()
    }

    /// Sets the value of a prefix. 0, or an errno below 0.
    ///
    /// # Safety
    /// Key and value have as many bytes as this map's.
    pub unsafe fn update(&self, at: *const u8, value: *const u8, flags: u64) -> i64 {
        // SAFETY: as promised by the caller.
        let (mut key, length) = unsafe { self.key(at) };
        if length > self.bytes * 8 {
            return codes::error(libc::EINVAL);
        }
        self.cut(&mut key, length);
        // SAFETY: the key has the bytes of this map's, and the value as the caller promises.
        unsafe {
            let changes = flags == codes::EXIST || !self.hash.lookup(key.0.as_ptr(), 0).is_null();
            if changes && flags != codes::NO_EXIST {
                let done = self.hash.update(key.0.as_ptr(), value, codes::EXIST, 0);
                // It was there a moment ago, and is not.
                if done != codes::error(libc::ENOENT) || flags == codes::EXIST {
                    return done;
                }
            }
            // Before it is there, so that none is there that no lookup asks for.
            self.lengths[length].fetch_add(1, Ordering::AcqRel);
            let done = self.hash.update(key.0.as_ptr(), value, codes::NO_EXIST, 0);
            if done != 0 {
                self.lengths[length].fetch_sub(1, Ordering::AcqRel);
            }
            if done == codes::error(libc::E2BIG) { codes::error(libc::ENOSPC) } else { done }
        }
    }

    /// Removes a prefix. 0, or an errno below 0.
    ///
    /// # Safety
    /// The key has as many bytes as this map's.
    pub unsafe fn delete(&self, at: *const u8) -> i64 {
        // SAFETY: as promised by the caller.
        let (mut key, length) = unsafe { self.key(at) };
        if length > self.bytes * 8 {
            return codes::error(libc::EINVAL);
        }
        self.cut(&mut key, length);
        // SAFETY: the key has the bytes of this map's.
        let done = unsafe { self.hash.delete(key.0.as_ptr()) };
        if done == 0 {
            self.lengths[length].fetch_sub(1, Ordering::AcqRel);
        }
        done
    }

    /// All prefixes, each with its value.
    pub fn entries(&self) -> Vec<(Vec<u8>, Vec<Vec<u8>>)> {
        self.hash.entries()
    }
}
