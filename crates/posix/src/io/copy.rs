//! Copying between a ring and the program's buffers.

use crate::io::user;
use libc::{c_int, c_void, iovec};
use towpath_client::sys::Sys;
use towpath_ring::ByteRing;

/// The most that a call moves (Linux's MAX_RW_COUNT).
const MOST: usize = 0x7fff_f000;
/// The end of a program's memory.
const END: usize = 0x7fff_ffff_f000;

/// Bytes that the vectors have room for, at most as many as a call moves. EINVAL: a length cannot be returned. EFAULT:
/// a vector is null or reaches beyond a program's memory. With MSG_TRUNC a vector may be null, because nothing is
/// written.
#[inline]
pub fn total(iov: &[iovec], flags: c_int) -> Sys<usize> {
    match iov {
        [one] if !one.iov_base.is_null() && is_usual(one.iov_base, one.iov_len) => Ok(one.iov_len),
        _ => total_of_all(iov, flags),
    }
}

fn total_of_all(iov: &[iovec], flags: c_int) -> Sys<usize> {
    if iov.iter().any(|v| v.iov_len > isize::MAX as usize) {
        return Err(libc::EINVAL);
    }
    if iov.iter().any(|v| (v.iov_base as usize).saturating_add(v.iov_len) > END) {
        return Err(libc::EFAULT);
    }
    if flags & libc::MSG_TRUNC == 0 && iov.iter().any(|v| v.iov_base.is_null() && v.iov_len > 0) {
        return Err(libc::EFAULT);
    }
    Ok(iov.iter().fold(0, |sum: usize, v| sum.saturating_add(v.iov_len)).min(MOST))
}

/// Has the buffer 1 to `MOST` bytes, all below the end of a program's memory?
#[inline(always)]
fn is_usual(buf: *const c_void, len: usize) -> bool {
    len.wrapping_sub(1) < MOST && buf as usize <= END - MOST
}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the ring to the caller.
    Out,
    /// From the caller to the ring.
    In,
}

/// Copies `count` bytes between the ring at `at` and the vectors after their first `skip` bytes. EFAULT: fewer may have
/// been copied.
///
/// # Safety
/// The vectors must be memory of the program that is read (In) or written (Out), `skip + count` bytes at least.
#[inline(always)]
pub unsafe fn copy(way: Direction, ring: ByteRing<'_>, at: u32, iov: &[iovec], skip: usize, count: usize) -> Sys<()> {
    let [(span, len), ..] = ring.spans(at, count as u32);
    match iov {
        // SAFETY: the span is in the ring, and the vector, which the caller vouches for, has `skip + len` bytes.
        [one] if len == count && one.iov_len >= skip + count => unsafe {
            copy_span(way, span, one.iov_base.cast::<u8>().wrapping_add(skip), len)
        },
        // SAFETY: the caller vouches for `skip + count` bytes of the vectors.
        _ => unsafe { copy_all(way, ring, at, iov, skip, count) },
    }
}

/// # Safety
/// The span must lie in a ring, and the other side must be the program's memory.
#[inline]
unsafe fn copy_span(way: Direction, span: *mut u8, at_user: *mut u8, len: usize) -> Sys<()> {
    // SAFETY: the caller vouches that the span is in a ring and that the other side is the program's memory.
    unsafe {
        match way {
            Direction::Out => user::copy(at_user, span, len),
            Direction::In => user::copy(span, at_user, len),
        }
    }
}

/// # Safety
/// As [`copy`].
unsafe fn copy_all(way: Direction, ring: ByteRing<'_>, at: u32, iov: &[iovec], skip: usize, count: usize) -> Sys<()> {
    let (mut skip, mut left, mut at) = (skip, count, at);
    for vector in iov {
        if skip >= vector.iov_len {
            skip -= vector.iov_len;
            continue;
        }
        let piece = left.min(vector.iov_len - skip);
        if piece == 0 {
            break;
        }
        let mut at_user = vector.iov_base.cast::<u8>().wrapping_add(skip);
        for (span, len) in ring.spans(at, piece as u32) {
            // SAFETY: `spans` returns pieces of the ring, and the caller vouches for the vector, of which `piece` bytes
            // are left.
            unsafe { copy_span(way, span, at_user, len)? };
            at_user = at_user.wrapping_add(len);
        }
        at = at.wrapping_add(piece as u32);
        left -= piece;
        skip = 0;
    }
    Ok(())
}
