//! Values by key. Whoever looks a key up takes no lock. Who changes something locks one bucket, and does not wait long
//! for it: it gives up with EBUSY, as in the kernel.
//!
//! All elements are there from the start, and stay in this memory. So a program may still have a value whose element was
//! removed, and perhaps given to another key. It has a value of this map then, as in the kernel.

use super::cells::{self, Cells};
use super::codes;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// `next` with this bit is the end of a bucket's chain, whose number is in the others.
const END: u32 = 1 << 31;
/// No element.
const NONE: u32 = u32::MAX;
/// Attempts to lock a bucket, and to walk a chain that changes.
const SPINS: u32 = 4096;
const WALKS: u32 = 8;
/// Elements that were used lately, and are passed over by one eviction.
const SPARED: u32 = 64;

/// See the module.
#[derive(Debug)]
pub struct Hash {
    key_size: usize,
    value_size: usize,
    /// From one element's key to the next one's, from a key to its first value, and from a value to that of the next copy.
    stride: usize,
    value_at: usize,
    slot: usize,
    /// Values of a key: one, or one for each flow group.
    copies: u32,
    entries: u32,
    /// Does a full map forget elements?
    lru: bool,
    seed: u64,
    /// By bucket: its first element, and is it locked?
    heads: Box<[AtomicU32]>,
    locks: Box<[AtomicBool]>,
    /// By element: the next one of its bucket, the next free one, its bucket (`NONE` = it is free), and was it used?
    next: Box<[AtomicU32]>,
    next_free: Box<[AtomicU32]>,
    bucket: Box<[AtomicU32]>,
    used: Box<[AtomicBool]>,
    /// The first free element below a count of changes.
    free: AtomicU64,
    /// Elements from this one on were never used.
    fresh: AtomicU32,
    /// Where the search for an element to forget goes on.
    hand: AtomicU32,
    cells: Cells,
}

fn words(count: usize, value: u32) -> Box<[AtomicU32]> {
    (0..count).map(|_| AtomicU32::new(value)).collect()
}
fn bits(count: usize) -> Box<[AtomicBool]> {
    (0..count).map(|_| AtomicBool::new(false)).collect()
}

impl Hash {
    /// An empty one with this many copies of each value.
    pub fn new(key_size: u32, value_size: u32, entries: u32, lru: bool, copies: u32) -> Self {
        let (key_size, value_size, count) = (key_size as usize, value_size as usize, entries as usize);
        let (value_at, slot) = (key_size.next_multiple_of(8), value_size.next_multiple_of(8));
        let stride = value_at + slot * copies as usize;
        let buckets = count.next_power_of_two();
        Self {
            key_size,
            value_size,
            stride,
            value_at,
            slot,
            copies,
            entries,
            lru,
            seed: crate::clock::random(),
            heads: (0..buckets).map(|bucket| AtomicU32::new(END | bucket as u32)).collect(),
            locks: bits(buckets),
            next: words(count, END),
            next_free: words(count, NONE),
            bucket: words(count, NONE),
            used: bits(if lru { count } else { 0 }),
            free: AtomicU64::new(u64::from(NONE)),
            fresh: AtomicU32::new(0),
            hand: AtomicU32::new(0),
            cells: Cells::new(stride * count),
        }
    }

    /// Values of a key.
    pub fn copies(&self) -> u32 {
        self.copies
    }
    fn key(&self, element: u32) -> *mut u8 {
        self.cells.start().wrapping_add(self.stride * element as usize)
    }
    /// The value for a flow group.
    fn value(&self, element: u32, group: u32) -> *mut u8 {
        let first = self.key(element).wrapping_add(self.value_at);
        if self.copies == 1 { first } else { first.wrapping_add(self.slot * group.min(self.copies - 1) as usize) }
    }

    /// Do these bytes lie in one value?
    pub fn has_value(&self, at: usize, length: usize) -> bool {
        let Some(offset) = at.checked_sub(self.cells.start() as usize) else { return false };
        let Some(place) = (offset % self.stride).checked_sub(self.value_at) else { return false };
        offset < self.cells.bytes() && place % self.slot + length <= self.value_size
    }

    /// # Safety
    /// The key has as many bytes as this map's.
    unsafe fn bucket_of(&self, key: *const u8) -> u32 {
        // SAFETY: as promised by the caller.
        (unsafe { cells::hash(key, self.key_size, self.seed) }) as u32 & (self.heads.len() as u32 - 1)
    }

    /// The element of this key, and that before it in the bucket.
    ///
    /// # Safety
    /// The key has as many bytes as this map's.
    unsafe fn find(&self, bucket: u32, key: *const u8) -> Option<(u32, Option<u32>)> {
        for _ in 0..WALKS {
            let (mut at, mut before) = (self.heads[bucket as usize].load(Ordering::Acquire), None);
            for _ in 0..=self.entries {
                if at & END != 0 {
                    break;
                }
                // SAFETY: the element's key is in our memory, and the other one as the caller promises.
                if unsafe { cells::equal(self.key(at), key, self.key_size) } {
                    return Some((at, before));
                }
                before = Some(at);
                at = self.next[at as usize].load(Ordering::Acquire);
            }
            // The end of another bucket: an element was moved there meanwhile.
            if at == END | bucket {
                return None;
            }
        }
        None
    }

    /// The value of a key for a flow group; null if there is none.
    ///
    /// # Safety
    /// The key has as many bytes as this map's.
    #[inline]
    pub unsafe fn lookup(&self, key: *const u8, group: u32) -> *mut u8 {
        // SAFETY: as promised by the caller.
        match unsafe { self.find(self.bucket_of(key), key) } {
            Some((element, _)) => {
                if self.lru {
                    self.used[element as usize].store(true, Ordering::Relaxed);
                }
                self.value(element, group)
            }
            None => std::ptr::null_mut(),
        }
    }

    /// Sets a value for a flow group; for the others a new key begins with zeros. 0, or an errno below 0.
    ///
    /// # Safety
    /// Key and value have as many bytes as this map's.
    pub unsafe fn update(&self, key: *const u8, value: *const u8, flags: u64, group: u32) -> i64 {
        // SAFETY: as promised by the caller.
        let (bucket, there) = unsafe {
            let bucket = self.bucket_of(key);
            (bucket, self.find(bucket, key).is_some())
        };
        if there && flags == codes::NO_EXIST {
            return codes::error(libc::EEXIST);
        }
        if !there && flags == codes::EXIST {
            return codes::error(libc::ENOENT);
        }
        // Taken before the lock, as an eviction locks another bucket.
        let taken = if there { None } else { self.take() };
        if !there && taken.is_none() {
            return codes::error(libc::E2BIG);
        }
        if !self.lock(bucket) {
            taken.into_iter().for_each(|element| self.give_back(element));
            return codes::error(libc::EBUSY);
        }
        // SAFETY: as promised by the caller; elements lie in our memory.
        let done = unsafe { self.put(bucket, (key, value), flags, group, taken) };
        self.locks[bucket as usize].store(false, Ordering::Release);
        done
    }

    /// # Safety
    /// The bucket is locked. Key and value have as many bytes as this map's.
    unsafe fn put(
        &self,
        bucket: u32,
        (key, value): (*const u8, *const u8),
        flags: u64,
        group: u32,
        taken: Option<u32>,
    ) -> i64 {
        // SAFETY: as promised by the caller.
        let found = unsafe { self.find(bucket, key) };
        if let Some((element, _)) = found {
            taken.into_iter().for_each(|element| self.give_back(element));
            if flags == codes::NO_EXIST {
                return codes::error(libc::EEXIST);
            }
            // SAFETY: both have the bytes of a value.
            unsafe { cells::copy(value, self.value(element, group), self.value_size) };
            return 0;
        }
        // It was there a moment ago, and is not.
        let Some(element) = taken.or_else(|| self.pop()) else { return codes::error(libc::E2BIG) };
        // SAFETY: both have the bytes of a key or value. The element is ours until it is in a bucket.
        unsafe {
            cells::copy(key, self.key(element), self.key_size);
            if self.copies > 1 {
                cells::clear(self.value(element, 0), self.slot * self.copies as usize);
            }
            cells::copy(value, self.value(element, group), self.value_size);
        }
        let head = &self.heads[bucket as usize];
        self.next[element as usize].store(head.load(Ordering::Relaxed), Ordering::Release);
        self.bucket[element as usize].store(bucket, Ordering::Release);
        head.store(element, Ordering::Release);
        0
    }

    /// Removes a key. 0, or an errno below 0.
    ///
    /// # Safety
    /// The key has as many bytes as this map's.
    pub unsafe fn delete(&self, key: *const u8) -> i64 {
        // SAFETY: as promised by the caller.
        let bucket = unsafe { self.bucket_of(key) };
        if !self.lock(bucket) {
            return codes::error(libc::EBUSY);
        }
        // SAFETY: as promised by the caller.
        let found = unsafe { self.find(bucket, key) };
        if let Some((element, before)) = found {
            self.unlink(bucket, element, before);
        }
        self.locks[bucket as usize].store(false, Ordering::Release);
        match found {
            Some((element, _)) => {
                self.give_back(element);
                0
            }
            None => codes::error(libc::ENOENT),
        }
    }

    fn unlink(&self, bucket: u32, element: u32, before: Option<u32>) {
        let after = self.next[element as usize].load(Ordering::Relaxed);
        let from = before.map_or(&self.heads[bucket as usize], |before| &self.next[before as usize]);
        from.store(after, Ordering::Release);
        self.bucket[element as usize].store(NONE, Ordering::Release);
    }

    fn lock(&self, bucket: u32) -> bool {
        let lock = &self.locks[bucket as usize];
        for _ in 0..SPINS {
            if lock.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// A free element.
    fn pop(&self) -> Option<u32> {
        let mut free = self.free.load(Ordering::Acquire);
        while free as u32 != NONE {
            let next = self.next_free[free as u32 as usize].load(Ordering::Relaxed);
            let after = ((free >> 32) + 1) << 32 | u64::from(next);
            match self.free.compare_exchange_weak(free, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(free as u32),
                Err(now) => free = now,
            }
        }
        self.fresh
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |fresh| (fresh < self.entries).then_some(fresh + 1))
            .ok()
    }

    fn give_back(&self, element: u32) {
        let mut free = self.free.load(Ordering::Acquire);
        loop {
            self.next_free[element as usize].store(free as u32, Ordering::Relaxed);
            let after = ((free >> 32) + 1) << 32 | u64::from(element);
            match self.free.compare_exchange_weak(free, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }

    /// An element for a new key: a free one, or that of a key that is forgotten for it.
    fn take(&self) -> Option<u32> {
        let free = self.pop();
        if free.is_some() || !self.lru {
            return free;
        }
        for attempt in 0..self.entries.min(1 << 16).saturating_mul(2) + SPARED {
            let element = self.hand.fetch_add(1, Ordering::Relaxed) % self.entries;
            let spared = self.used[element as usize].swap(false, Ordering::Relaxed);
            let bucket = self.bucket[element as usize].load(Ordering::Acquire);
            if (spared && attempt < SPARED) || bucket == NONE || !self.lock(bucket) {
                continue;
            }
            let removed = self.remove(bucket, element);
            self.locks[bucket as usize].store(false, Ordering::Release);
            if removed {
                return Some(element);
            }
        }
        None
    }

    /// Takes an element out of the bucket, which is locked, if it stands there.
    fn remove(&self, bucket: u32, element: u32) -> bool {
        let (mut at, mut before) = (self.heads[bucket as usize].load(Ordering::Acquire), None);
        while at & END == 0 {
            if at == element {
                self.unlink(bucket, element, before);
                return true;
            }
            before = Some(at);
            at = self.next[at as usize].load(Ordering::Acquire);
        }
        false
    }

    /// All keys, each with its values by flow group.
    pub fn entries(&self) -> Vec<(Vec<u8>, Vec<Vec<u8>>)> {
        let there = (0..self.entries).filter(|at| self.bucket[*at as usize].load(Ordering::Acquire) != NONE);
        let read = |at: *mut u8, length| {
            let mut bytes = vec![0; length];
            // SAFETY: it is a key or a value in our memory, of this many bytes.
            unsafe { cells::read(at, &mut bytes) };
            bytes
        };
        let values = |at| (0..self.copies).map(|group| read(self.value(at, group), self.value_size)).collect();
        there.map(|at| (read(self.key(at), self.key_size), values(at))).collect()
    }
}
