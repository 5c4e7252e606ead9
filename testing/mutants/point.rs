//! Which one of the changes in a program is active: `TOWPATH_MUTANT` has its number. With `note:FILE` none is, and the byte of
//! each change that the program comes to is set in the file.

#![feature(core_intrinsics, const_eval_select)]
#![allow(internal_features)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed};

const UNKNOWN: u32 = u32::MAX;
const NOTES: u32 = u32::MAX - 1;

static ACTIVE: AtomicU32 = AtomicU32::new(UNKNOWN);
static NOTED: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
static NOTED_LENGTH: AtomicUsize = AtomicUsize::new(0);

// SAFETY: libc declares them so.
unsafe extern "C" {
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn lseek(file: c_int, offset: i64, whence: c_int) -> i64;
    fn close(file: c_int) -> c_int;
    fn mmap(at: *mut c_void, length: usize, protection: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void;
}

/// Is the change with this number active? While the compiler computes, none is.
#[inline(always)]
pub const fn on(number: u32) -> bool {
    core::intrinsics::const_eval_select((number,), never, now)
}

const fn never(_: u32) -> bool {
    false
}

#[inline(always)]
fn now(number: u32) -> bool {
    let active = ACTIVE.load(Relaxed);
    active == number || active >= NOTES && rare(number)
}

#[cold]
#[inline(never)]
fn rare(number: u32) -> bool {
    if ACTIVE.load(Relaxed) == UNKNOWN {
        let wanted = std::env::var("TOWPATH_MUTANT").unwrap_or_default();
        let noted = wanted.strip_prefix("note:").is_some_and(share);
        ACTIVE.store(if noted { NOTES } else { wanted.parse().unwrap_or(0) }, Relaxed);
    }
    let noted = NOTED.load(Relaxed);
    if (number as usize) < NOTED_LENGTH.load(Relaxed) && !noted.is_null() {
        // SAFETY: the mapping has this length and is never removed.
        unsafe { (*noted.add(number as usize)).store(1, Relaxed) };
    }
    ACTIVE.load(Relaxed) == number
}

/// Maps the file of notes. A store in it outlives the process, however that ends, and processes that it forks store there too.
fn share(path: &str) -> bool {
    const READ_WRITE: c_int = 2;
    const CLOSE_ON_EXEC: c_int = 0o2000000;
    let Ok(path) = CString::new(path) else { return false };
    // SAFETY: the path is a string with an end; the mapping is new memory of the file's length.
    unsafe {
        let file = open(path.as_ptr(), READ_WRITE | CLOSE_ON_EXEC);
        let length = if file >= 0 { lseek(file, 0, 2) } else { 0 };
        if length <= 0 {
            return false;
        }
        let at = mmap(null_mut(), length as usize, 3, 1, file, 0);
        close(file);
        if at as isize == -1 {
            return false;
        }
        NOTED.store(at.cast(), Relaxed);
        NOTED_LENGTH.store(length as usize, Relaxed);
    }
    true
}
