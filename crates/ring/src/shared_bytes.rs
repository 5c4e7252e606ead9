//! The way to copy bytes that another process may be writing at the same time. `ports/src/gather.rs` has its own, for memory that it
//! knows as atomics.
//!
//! Rust's memory model makes a plain load that races with a store undefined behaviour. It speaks of the threads of one
//! program; another process is to it like a device. Copying here is sound for these reasons:
//!
//! - No Rust reference to these bytes exists in any process but as `AtomicU8`, which may change at any time. All else are
//!   raw pointers that came from `mmap`. So the compiler may not assume that the bytes keep their values.
//! - Between correct sides nothing races: a position is stored with release after its bytes, and loaded with acquire
//!   before them.
//! - A side that breaks this contract writes while the other copies. The copy then holds arbitrary bytes. Any value is
//!   a valid `u8`, and the payload was that side's own.
//! - Decisions that depend on copied bytes (a slot number in an accept record) use the private copy. The compiler fence
//!   keeps the compiler from loading the shared bytes a second time instead.
//!
//! It compiles to `memcpy` alone: the fence is no instruction. `posix` copies to and from a program's memory by an
//! assembler routine, which catches faults. The compiler cannot look into that, either.

use core::ptr;
use core::sync::atomic::{Ordering, compiler_fence};

/// Copies `count` bytes, of which one side may be shared with another process.
///
/// # Safety
/// Both sides have `count` mapped bytes, `to` is writable, and they do not overlap. No Rust reference to the shared
/// side exists.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: the caller vouches for both sides; the module's documentation says why a race does no harm.
    unsafe { ptr::copy_nonoverlapping(from, to, count) };
    compiler_fence(Ordering::AcqRel);
}

/// [`copy`] between two parts of shared memory, which may overlap.
///
/// # Safety
/// As [`copy`], but the sides may overlap.
#[inline(always)]
pub unsafe fn copy_overlapping(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: the caller vouches for both sides; the module's documentation says why a race does no harm.
    unsafe { ptr::copy(from, to, count) };
    compiler_fence(Ordering::AcqRel);
}
