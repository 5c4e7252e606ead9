//! System calls by their numbers that wait with a set of blocked signals. The set and the time are at the program's addresses,
//! which may be wrong: the kernel is asked before they are read.

use crate::by_number::{answer, result, wide};
use crate::calls::Handler;
use crate::raw::raw;
use core::time::Duration;
use libc::{c_int, sigset_t, timespec};
use std::time::Instant;

/// Bytes of the kernel's signal set.
pub const SET_BYTES: u64 = 8;
/// SIGSYS in a set, where it is by that signal that system calls are caught. It is never blocked, because the kernel ends a thread to
/// which it cannot deliver a caught call.
pub const OURS: u64 = if cfg!(target_arch = "x86_64") { 1 << (libc::SIGSYS - 1) } else { 0 };

/// Can eight bytes be read at `address`? The kernel is asked by a system call that changes nothing.
pub(crate) fn is_there(address: u64) -> bool {
    const NOTHING: u64 = u32::MAX as u64;
    // SAFETY: the call reads a set or fails, and changes nothing.
    let asked = || unsafe { raw(libc::SYS_rt_sigprocmask, [NOTHING, address, 0, SET_BYTES, 0, 0]) };
    address != 0 && asked() == -i64::from(libc::EINVAL)
}

/// The program's set without [`OURS`]. `None`: there is none, or it has another size.
///
/// # Safety
/// `set` may be any address. Nobody writes there meanwhile.
pub(crate) unsafe fn without_ours(set: u64, bytes: u64) -> Option<u64> {
    if bytes != SET_BYTES || !is_there(set) {
        return None;
    }
    // SAFETY: `is_there` has just found it readable, and nobody writes there meanwhile.
    Some(unsafe { (set as *const u64).read_unaligned() } & !OURS)
}

/// The handler's answer to a system call, or the kernel's.
///
/// # Safety
/// The contract of the system call.
pub(crate) unsafe fn handled<H: Handler>(number: i64, arguments: [u64; 6]) -> i64 {
    // SAFETY: the caller keeps the contract of the system call.
    unsafe {
        match number {
            libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => {
                masked::<H>(number, arguments)
            }
            _ => answer::<H>(number, arguments).unwrap_or_else(|| raw(number, arguments)),
        }
    }
}

/// The calls that wait with a set of blocked signals. [`OURS`] must not be in it.
///
/// # Safety
/// The contract of the system call.
unsafe fn masked<H: Handler>(number: i64, arguments: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let fd = a as c_int;
    // SAFETY: the caller keeps the contract of this function.
    unsafe {
        // `pselect6` has the set and its size behind one pointer.
        let (set, bytes) = match number {
            libc::SYS_pselect6 if f == 0 => (0, 0),
            libc::SYS_pselect6 if !(is_there(f) && is_there(f + 8)) => {
                return -i64::from(libc::EFAULT);
            }
            libc::SYS_pselect6 => (f as *const [u64; 2]).read_unaligned().into(),
            libc::SYS_ppoll => (d, e),
            _ => (e, f),
        };
        let kept = without_ours(set, bytes);
        // Unlike libc's functions, the system calls write the remaining time back.
        let time = match number {
            libc::SYS_ppoll => c,
            libc::SYS_pselect6 => e,
            _ => 0,
        };
        let left = Left::new(time);
        let full = kept.map(wide);
        let mask: *const sigset_t = full.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // The set has another size, which the kernel refuses.
        let answer = if kept.is_none() && set != 0 {
            None
        } else {
            match number {
                libc::SYS_ppoll => result(H::ppoll(a as _, b as _, c as *const timespec, mask)),
                libc::SYS_pselect6 => result(H::pselect(fd, b as _, c as _, d as _, e as _, mask)),
                libc::SYS_epoll_pwait => result(H::epoll_pwait(fd, b as _, c as _, d as _, mask)),
                _ => result(H::epoll_pwait2(fd, b as _, c as _, d as _, mask)),
            }
        };
        if answer.is_some() {
            left.write();
        }
        let Some(kept) = kept else { return answer.unwrap_or_else(|| raw(number, arguments)) };
        let pair = [&raw const kept as u64, bytes];
        answer.unwrap_or_else(|| match number {
            libc::SYS_ppoll => raw(number, [a, b, c, pair[0], bytes, 0]),
            libc::SYS_pselect6 => raw(number, [a, b, c, d, e, pair.as_ptr() as u64]),
            _ => raw(number, [a, b, c, d, pair[0], bytes]),
        })
    }
}

/// The program's time limit, its address, and the time at which the call began.
struct Left(Option<(*mut timespec, Duration, Instant)>);

impl Left {
    /// # Safety
    /// Null or any address.
    unsafe fn new(time: u64) -> Self {
        if time == 0 || !is_there(time) || !is_there(time + 8) {
            return Self(None);
        }
        // SAFETY: the kernel has just read this time.
        let wanted = unsafe { (time as *const timespec).read_unaligned() };
        let parts = (u64::try_from(wanted.tv_sec), u32::try_from(wanted.tv_nsec));
        let (Ok(seconds), Ok(nanoseconds @ 0..1_000_000_000)) = parts else { return Self(None) };
        Self(Some((time as *mut timespec, Duration::new(seconds, nanoseconds), Instant::now())))
    }

    /// Writes the remaining time back.
    ///
    /// # Safety
    /// The kernel may write the program's time.
    unsafe fn write(self) {
        let Some((time, wanted, start)) = self.0 else { return };
        let left = wanted.saturating_sub(start.elapsed());
        let left = timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // SAFETY: the caller keeps the contract of this function.
        unsafe { time.write_unaligned(left) };
    }
}
