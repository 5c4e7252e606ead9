//! Socket options of sockets in slots. Some steer the stack, some this library; the rest of what programs usually set
//! is stored and read back, and what is not known fails with ENOPROTOOPT.

use crate::private::{Private, flag};
use crate::session::Session;
use crate::socket::Socket;
use crate::sys::{self, Sys};
use crate::table::Undecided;
use crate::tcp_info;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use libc::{c_int, c_void, linger, socklen_t, timeval};
use towpath_ring::lines::{app_flags, state};

/// TCP_INFO and others are cut to what the caller has room for, as on Linux.
unsafe fn give<T: Copy>(value: T, out: *mut c_void, len: *mut socklen_t) -> Sys<c_int> {
    // SAFETY: the caller of `getsockopt` gives `*len` writable bytes.
    unsafe {
        if out.is_null() || len.is_null() {
            return Err(libc::EFAULT);
        }
        if (*len as i32) < 0 {
            return Err(libc::EINVAL);
        }
        let count = (*len as usize).min(size_of::<T>());
        core::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), out.cast::<u8>(), count);
        *len = count as socklen_t;
    }
    Ok(0)
}

unsafe fn given<T: Copy>(value: *const c_void, len: socklen_t) -> Sys<T> {
    if value.is_null() {
        return Err(libc::EFAULT);
    }
    if (len as usize) < size_of::<T>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller of `setsockopt` gives `len` bytes; only used with plain integers and C structs.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// Integer options that are only stored: where, and the lowest and highest value.
fn stored(private: &Private, level: c_int, name: c_int) -> Option<(&AtomicU32, c_int, c_int)> {
    Some(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => (&private.low_water, 0, c_int::MAX),
        (libc::SOL_SOCKET, libc::SO_PRIORITY) => (&private.priority, 0, 6),
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => (&private.receive_buffer, 0, c_int::MAX / 2),
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => (&private.send_buffer, 0, c_int::MAX / 2),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => (&private.keep_idle_s, 1, 32_767),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => (&private.keep_interval_s, 1, 32_767),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => (&private.keep_count, 1, 127),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => (&private.user_timeout_ms, 0, c_int::MAX),
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => (&private.defer_accept_s, 0, c_int::MAX),
        (libc::IPPROTO_IP, libc::IP_TOS) => (&private.tos, 0, 255),
        _ => return None,
    })
}

/// Options that the application's line carries to the stack.
fn steering(level: c_int, name: c_int) -> Option<u32> {
    Some(match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => app_flags::NODELAY,
        (libc::IPPROTO_TCP, libc::TCP_CORK) => app_flags::CORK,
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => app_flags::QUICKACK,
        _ => return None,
    })
}

/// Options that read back as they were set and mean nothing here.
fn flagged(level: c_int, name: c_int) -> Option<u32> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => Some(flag::REUSEADDR),
        (libc::SOL_SOCKET, libc::SO_REUSEPORT) => Some(flag::REUSEPORT),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => Some(flag::KEEPALIVE),
        _ => None,
    }
}

/// Options that may be set without effect: what they ask for is so anyway, or is only a hint.
fn harmless(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(name, libc::SO_OOBINLINE | libc::SO_BUSY_POLL | libc::SO_INCOMING_CPU),
        libc::IPPROTO_TCP => matches!(
            name,
            libc::TCP_MAXSEG
                | libc::TCP_FASTOPEN
                | libc::TCP_NOTSENT_LOWAT
                | libc::TCP_THIN_LINEAR_TIMEOUTS
                | libc::TCP_WINDOW_CLAMP
                | libc::TCP_SYNCNT
                | libc::TCP_LINGER2
        ),
        libc::IPPROTO_IP => matches!(name, libc::IP_TTL | libc::IP_BIND_ADDRESS_NO_PORT),
        _ => false,
    }
}

/// `setsockopt` on a socket in a slot.
pub unsafe fn set(socket: &Socket, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> Sys<c_int> {
    let private = socket.private();
    // SAFETY (all below): the caller keeps the contract of `setsockopt`.
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            // SAFETY: as above.
            let linger: linger = unsafe { given(value, len)? };
            let seconds = if linger.l_onoff == 0 { -1 } else { linger.l_linger.max(0) };
            private.linger_s.store(seconds, Relaxed);
            return Ok(0);
        }
        // SAFETY: as above.
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => return unsafe { set_time(&private.receive_timeout_us, value, len) },
        // SAFETY: as above.
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => return unsafe { set_time(&private.send_timeout_us, value, len) },
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
            // SAFETY: as above.
            let name = unsafe { core::slice::from_raw_parts(value.cast::<u8>(), len.min(16) as usize) };
            let known =
                [&b"reno"[..], b"cubic", b"dctcp"].contains(&name.split(|b| *b == 0).next().unwrap_or_default());
            return if known { Ok(0) } else { Err(libc::ENOENT) };
        }
        _ => {}
    }
    // SAFETY: as above.
    let number: c_int = unsafe { given(value, len) }?;
    if let Some(flag) = steering(level, name) {
        let on = number != 0;
        if socket.has_app(flag) != on {
            socket.mark_app(flag, on);
        }
    } else if let Some(flag) = flagged(level, name) {
        socket.mark(flag, number != 0);
    } else if let Some((word, low, high)) = stored(private, level, name) {
        if !(low..=high).contains(&number) {
            return Err(libc::EINVAL);
        }
        word.store(number as u32, Relaxed);
    } else if !harmless(level, name) {
        return Err(libc::ENOPROTOOPT);
    }
    Ok(0)
}

unsafe fn set_time(word: &AtomicU64, value: *const c_void, len: socklen_t) -> Sys<c_int> {
    // SAFETY: the caller keeps the contract of `setsockopt`.
    let time: timeval = unsafe { given(value, len)? };
    if !(0..1_000_000).contains(&time.tv_usec) {
        return Err(libc::EDOM);
    }
    let us = if time.tv_sec < 0 { 0 } else { (time.tv_sec as u64).saturating_mul(1_000_000) + time.tv_usec as u64 };
    word.store(us, Relaxed);
    Ok(0)
}

fn time_of(word: &AtomicU64) -> timeval {
    let us = word.load(Relaxed);
    timeval { tv_sec: (us / 1_000_000) as libc::time_t, tv_usec: (us % 1_000_000) as libc::suseconds_t }
}

/// `getsockopt` on a socket in a slot.
pub unsafe fn get(socket: &Socket, level: c_int, name: c_int, out: *mut c_void, len: *mut socklen_t) -> Sys<c_int> {
    let private = socket.private();
    // SAFETY: the caller keeps the contract of `getsockopt`.
    unsafe {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let seconds = private.linger_s.load(Relaxed);
                let value = linger { l_onoff: (seconds >= 0).into(), l_linger: seconds.max(0) };
                return give(value, out, len);
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => return give(time_of(&private.receive_timeout_us), out, len),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => return give(time_of(&private.send_timeout_us), out, len),
            (libc::IPPROTO_TCP, libc::TCP_INFO) => return give(tcp_info::tcp_info(socket), out, len),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => return give(*b"reno\0\0\0\0\0\0\0\0\0\0\0\0", out, len),
            _ => {}
        }
        give(number(socket, level, name)?, out, len)
    }
}

fn number(socket: &Socket, level: c_int, name: c_int) -> Sys<c_int> {
    let (private, session): (&Private, &Session) = (socket.private(), socket.session);
    if let Some(flag) = steering(level, name) {
        return Ok(socket.has_app(flag).into());
    }
    if let Some(flag) = flagged(level, name) {
        return Ok(socket.has(flag).into());
    }
    // Linux shows twice what was asked for; what was not asked for is what there is.
    let buffer = |word: &AtomicU32, there_is: u32| match word.load(Relaxed) {
        0 => there_is as c_int,
        asked => (asked as c_int).saturating_mul(2),
    };
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => socket.take_error(),
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => libc::AF_INET,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => (socket.state() == state::LISTENING).into(),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => buffer(&private.receive_buffer, session.geometry.rx_bytes),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => buffer(&private.send_buffer, session.geometry.tx_bytes),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => private.low_water.load(Relaxed).max(1) as c_int,
        (libc::SOL_SOCKET, libc::SO_SNDLOWAT) => 1,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => socket.info().mss.load(Relaxed) as c_int,
        // Linux's defaults, if nothing was set.
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => or(&private.keep_idle_s, 7200),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => or(&private.keep_interval_s, 75),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => or(&private.keep_count, 9),
        (libc::IPPROTO_IP, libc::IP_TTL) => 64,
        _ => match stored(private, level, name) {
            Some((word, ..)) => word.load(Relaxed) as c_int,
            None if harmless(level, name) => 0,
            None => return Err(libc::ENOPROTOOPT),
        },
    })
}

fn or(word: &AtomicU32, default: c_int) -> c_int {
    match word.load(Relaxed) {
        0 => default,
        value => value as c_int,
    }
}

/// The `app_flags` that a kernel socket's options ask for.
pub fn initial_flags(fd: c_int) -> u32 {
    let on = |level, name| sys::getsockopt::<c_int>(fd, level, name, 0).is_ok_and(|value| value != 0);
    let mut flags = 0;
    if on(libc::IPPROTO_TCP, libc::TCP_NODELAY) {
        flags |= app_flags::NODELAY;
    }
    if on(libc::IPPROTO_TCP, libc::TCP_CORK) {
        flags |= app_flags::CORK;
    }
    flags
}

/// Carries the other options of a kernel socket over to the slot that takes its place.
pub fn carry(fd: c_int, undecided: Undecided, socket: &Socket) {
    let private = socket.private();
    let int = |level, name| sys::getsockopt::<c_int>(fd, level, name, 0).unwrap_or(0);
    socket.mark(flag::REUSEADDR, undecided.reuse_hidden || int(libc::SOL_SOCKET, libc::SO_REUSEADDR) != 0);
    socket.mark(flag::KEEPALIVE, int(libc::SOL_SOCKET, libc::SO_KEEPALIVE) != 0);
    socket.mark(flag::REUSEPORT, int(libc::SOL_SOCKET, libc::SO_REUSEPORT) != 0);
    let off = linger { l_onoff: 0, l_linger: 0 };
    let linger = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, off).unwrap_or(off);
    private.linger_s.store(if linger.l_onoff == 0 { -1 } else { linger.l_linger }, Relaxed);
    for (name, word) in
        [(libc::SO_RCVTIMEO, &private.receive_timeout_us), (libc::SO_SNDTIMEO, &private.send_timeout_us)]
    {
        let zero = timeval { tv_sec: 0, tv_usec: 0 };
        let time = sys::getsockopt(fd, libc::SOL_SOCKET, name, zero).unwrap_or(zero);
        word.store(time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64, Relaxed);
    }
    for (level, name) in [
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
        (libc::SOL_SOCKET, libc::SO_PRIORITY),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
        (libc::IPPROTO_IP, libc::IP_TOS),
    ] {
        if let Some((word, low, high)) = stored(private, level, name) {
            word.store(int(level, name).clamp(low.min(0), high) as u32, Relaxed);
        }
    }
}
