//! Reads the values of options from the program's memory and writes them there, in their C types.

use crate::io::user;
use crate::options::stack;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use libc::{c_int, c_void, linger, socklen_t, timeval};
use towpath_client::private::Private;
use towpath_client::sys::Sys;
use towpath_client::wait;

/// The options of time limits: receiving first, then sending.
pub const TIME_LIMITS: [c_int; 2] = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO];

/// Writes a value to the program's memory, cut to its room, as Linux does.
///
/// # Safety
/// `len` is null or valid, and `out` is null or has `*len` writable bytes.
pub unsafe fn give<T: Copy>(value: T, out: *mut c_void, len: *mut socklen_t) -> Sys<c_int> {
    // SAFETY: `user::read` and `user::copy` accept any address of the program.
    unsafe {
        let room = user::read(len)?;
        if (room as i32) < 0 {
            return Err(libc::EINVAL);
        }
        let count = (room as usize).min(size_of::<T>());
        user::copy(out.cast(), (&raw const value).cast(), count)?;
        user::write(len, count as socklen_t)?;
    }
    Ok(0)
}

/// Reads the value that the program gives.
///
/// # Safety
/// `value` is null or has `len` readable bytes, and every pattern of bits is a `T`.
pub unsafe fn given<T: Copy>(value: *const c_void, len: socklen_t) -> Sys<T> {
    if (len as i32) < 0 || (len as usize) < size_of::<T>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `user::read` accepts any address, and the caller says that any bytes are a `T`.
    unsafe { user::read(value.cast::<T>()) }
}

/// Reads a number. For options of IPv4 Linux also accepts a single byte.
///
/// # Safety
/// `value` is null or has `len` readable bytes.
pub unsafe fn number(level: c_int, value: *const c_void, len: socklen_t) -> Sys<c_int> {
    // SAFETY: the caller vouches for `value`, and any bytes are a number.
    unsafe {
        if level == libc::IPPROTO_IP && len > 0 && (len as usize) < size_of::<c_int>() {
            given::<u8>(value, len).map(c_int::from)
        } else {
            given(value, len)
        }
    }
}

/// Reads the name of a congestion control algorithm, and gives its number.
///
/// # Safety
/// `value` is null or has `len` readable bytes.
pub unsafe fn congestion(value: *const c_void, len: socklen_t) -> Sys<u32> {
    if len == 0 {
        return Err(libc::EINVAL);
    }
    let mut text = [0; 16];
    // SAFETY: `user::copy` accepts any address of the program, and `text` has room for the length.
    unsafe { user::copy(text.as_mut_ptr(), value.cast(), len.min(15) as usize)? };
    stack::congestion_of(&text)
}

/// `SO_MAX_PACING_RATE` in its 32-bit and 64-bit forms.
///
/// # Safety
/// `value` is null or has `len` readable bytes.
pub unsafe fn pacing_rate(value: *const c_void, len: socklen_t) -> Sys<u64> {
    // SAFETY: the caller vouches for `value`, and any bytes are a number.
    unsafe { if len as usize == size_of::<u64>() { given(value, len) } else { given(value, len).map(stack::rate_of) } }
}

/// Writes `SO_MAX_PACING_RATE` in its 64-bit form if there is room for that, else in its 32-bit form.
///
/// # Safety
/// As [`give`].
pub unsafe fn give_pacing_rate(rate: u64, out: *mut c_void, len: *mut socklen_t) -> Sys<c_int> {
    // SAFETY: the caller vouches for `out` and `len`.
    unsafe {
        match user::read(len)? as usize {
            8.. => give(rate, out, len),
            _ => give(rate.min(u32::MAX.into()) as u32, out, len),
        }
    }
}

/// Sets `SO_LINGER`.
pub fn set_linger(private: &Private, value: linger) {
    // Switching it off keeps the time, which `getsockopt` still shows.
    let before = private.linger_s.load(Relaxed);
    let seconds = if value.l_onoff == 0 { before.min(!before) } else { value.l_linger.max(0) };
    private.linger_s.store(seconds, Relaxed);
}

/// `SO_LINGER` as it reads.
pub fn linger_of(private: &Private) -> linger {
    let seconds = private.linger_s.load(Relaxed);
    linger { l_onoff: (seconds >= 0).into(), l_linger: seconds.max(!seconds) }
}

/// Sets a time limit.
pub fn set_time(word: &AtomicU64, time: timeval) -> Sys<c_int> {
    if !(0..1_000_000).contains(&time.tv_usec) {
        return Err(libc::EDOM);
    }
    word.store(microseconds(time), Relaxed);
    Ok(0)
}

/// A time limit in µs, 0 = none. A negative time means, as on Linux, not to wait at all.
pub fn microseconds(time: timeval) -> u64 {
    match u64::try_from(time.tv_sec) {
        Ok(seconds) => seconds.saturating_mul(1_000_000).saturating_add(time.tv_usec as u64).min(wait::NO_WAIT - 1),
        Err(_) => wait::NO_WAIT,
    }
}

/// A time limit as it reads. One that means not to wait reads as 0, as none does.
pub fn time_of(word: &AtomicU64) -> timeval {
    let us = match word.load(Relaxed) {
        wait::NO_WAIT => 0,
        us => us,
    };
    timeval { tv_sec: (us / 1_000_000) as libc::time_t, tv_usec: (us % 1_000_000) as libc::suseconds_t }
}
