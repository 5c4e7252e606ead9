//! The program's own `brk` area. The kernel's area belongs to the allocator of the library's libc. If both used it,
//! each would free the other's memory.

use crate::raw::raw;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The sizes that are tried, largest first: a limit on address space may forbid the larger ones.
const SIZES: [u64; 4] = [64 << 30, 4 << 30, 256 << 20, 16 << 20];
const PAGE: u64 = 4096;

static BEGIN: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);
static BREAK: AtomicU64 = AtomicU64::new(0);
/// Has the program called `mlockall` for what it maps in future?
static IS_LOCKED: AtomicBool = AtomicBool::new(false);

/// The part of the area that the program has not asked for. `None`: there is no area.
pub fn reserved() -> Option<Range<usize>> {
    let (now, end) = (BREAK.load(Ordering::Relaxed).next_multiple_of(PAGE), END.load(Ordering::Relaxed));
    (end != 0).then_some(now as usize..end as usize)
}

/// The program has called `mlockall` or `munlockall`. From now on is what it asks for to be locked?
pub fn lock_in_future(is_locked: bool) {
    IS_LOCKED.store(is_locked, Ordering::Relaxed);
}

/// Maps anonymous memory; `None` = there is none.
pub fn map(hint: u64, bytes: u64, protection: i32, flags: i32) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags;
    // SAFETY: the memory is new: a hint with MAP_FIXED_NOREPLACE replaces no mapping.
    let at = unsafe { raw(libc::SYS_mmap, [hint, bytes, protection as u64, flags as u64, u64::MAX, 0]) };
    (at > 0).then_some(at as u64)
}

/// Reserves the area.
pub fn init() {
    for bytes in SIZES {
        if let Some(at) = map(0, bytes, libc::PROT_NONE, 0) {
            BEGIN.store(at, Ordering::Relaxed);
            BREAK.store(at, Ordering::Relaxed);
            END.store(at + bytes, Ordering::Relaxed);
            return;
        }
    }
}

/// `brk`. Programs call it one at a time, as they must with the kernel's.
pub fn brk(wanted: u64) -> u64 {
    let (begin, end, now) = (BEGIN.load(Ordering::Relaxed), END.load(Ordering::Relaxed), BREAK.load(Ordering::Relaxed));
    if wanted < begin || wanted > end || begin == 0 {
        return now;
    }
    let (old, new) = (now.next_multiple_of(PAGE), wanted.next_multiple_of(PAGE));
    if new > old {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        // SAFETY: the range lies inside the reserved area.
        if unsafe { raw(libc::SYS_mprotect, [old, new - old, protection, 0, 0, 0]) } != 0 {
            return now;
        }
        // An error is one of the limit, which the program's own memory keeps elsewhere.
        if IS_LOCKED.load(Ordering::Relaxed) {
            // SAFETY: what is locked stays what it is.
            unsafe { raw(libc::SYS_mlock, [old, new - old, 0, 0, 0, 0]) };
        }
    } else if new < old {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the range lies inside the reserved area, and the program has given it back.
        unsafe { raw(libc::SYS_mmap, [new, old - new, libc::PROT_NONE as u64, flags as u64, u64::MAX, 0]) };
    }
    BREAK.store(wanted, Ordering::Relaxed);
    wanted
}
