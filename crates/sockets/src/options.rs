//! Socket options of sockets in slots. Some steer the stack (see `steer` too), some this library; the rest of what programs
//! usually set is stored and read back, and what is not known fails with ENOPROTOOPT.

use crate::private::{Private, flag};
use crate::session::Session;
use crate::socket::Socket;
use crate::sys::{self, Sys};
use crate::table::{self, Undecided};
use crate::{block, buffers, cork, fallback, kept, listen, secure, send, steer, tcp_info, user};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use libc::{c_int, c_void, linger, socklen_t, timeval};
use towpath_hook::{outcome, real};
use towpath_ring::lines::{app_flags, state};
use towpath_ring::report::Count;

/// TCP_INFO and others are cut to what the caller has room for, as on Linux.
///
/// # Safety
/// `len` is null or valid, and `out` is null or has `*len` writable bytes.
unsafe fn give<T: Copy>(value: T, out: *mut c_void, len: *mut socklen_t) -> Sys<c_int> {
    // SAFETY: the caller of `getsockopt` gives `*len` writable bytes.
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

/// # Safety
/// `value` is null or has `len` readable bytes, and every pattern of bits is a `T`.
unsafe fn given<T: Copy>(value: *const c_void, len: socklen_t) -> Sys<T> {
    if (len as i32) < 0 || (len as usize) < size_of::<T>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the program's memory; only used with plain integers and C structs.
    unsafe { user::read(value.cast::<T>()) }
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

/// Options that are flags of the library's own.
fn flagged(level: c_int, name: c_int) -> Option<u32> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => Some(flag::REUSEADDR),
        (libc::SOL_SOCKET, libc::SO_REUSEPORT) => Some(flag::REUSEPORT),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => Some(flag::OOBINLINE),
        _ => None,
    }
}

/// `setsockopt` on a socket in a slot.
///
/// # Safety
/// The contract of `setsockopt`: `value` is null or has `len` readable bytes.
pub unsafe fn set(
    fd: c_int,
    socket: &Socket,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Sys<c_int> {
    let private = socket.private();
    if let Some(what) = secure::option(level, name) {
        // SAFETY: the caller vouches for `value`.
        return unsafe { secure::set(socket, what, value, len) };
    }
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            // SAFETY: the caller vouches for `value`; any bits are two integers.
            let linger: linger = unsafe { given(value, len)? };
            // Switched off, the time stays and reads as before.
            let before = private.linger_s.load(Relaxed);
            let seconds = if linger.l_onoff == 0 { before.min(!before) } else { linger.l_linger.max(0) };
            private.linger_s.store(seconds, Relaxed);
            return Ok(0);
        }
        // SAFETY: as above.
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => return unsafe { set_time(&private.receive_timeout_us, value, len) },
        // SAFETY: as above.
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => return unsafe { set_time(&private.send_timeout_us, value, len) },
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
            // SAFETY: as above.
            let number = unsafe { congestion(value, len)? };
            steer::set_congestion(socket, number);
            return Ok(0);
        }
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
            // SAFETY: as above.
            steer::set_max_pacing(socket, unsafe { pacing(value, len)? });
            return Ok(0);
        }
        // The family of a socket that has an address is settled.
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) if socket.has(flag::SIX) => return Err(libc::EINVAL),
        (libc::IPPROTO_IPV6, _) if !socket.has(flag::SIX) => return Err(libc::ENOPROTOOPT),
        _ => {}
    }
    // SAFETY: as above.
    let number: c_int = unsafe {
        // Linux takes a single byte for these.
        if level == libc::IPPROTO_IP && len > 0 && (len as usize) < size_of::<c_int>() {
            given::<u8>(value, len)?.into()
        } else {
            given(value, len)?
        }
    };
    let tos = steer::get(socket, libc::IPPROTO_IP, libc::IP_TOS);
    if let Some(outcome) = steer::set(socket, level, name, number) {
        let now = steer::get(socket, libc::IPPROTO_IP, libc::IP_TOS);
        if let (libc::IPPROTO_IP, Some(tos), true) = (level, now, now != tos) {
            // As Linux's `rt_tos2priority`.
            let priority = [0, 1, 0, 0, 2, 2, 2, 2, 6, 6, 6, 6, 4, 4, 4, 4][(tos as usize & 0x1e) / 2];
            let _ = kept::set(fd, socket, libc::SOL_SOCKET, libc::SO_PRIORITY, priority);
        }
        return outcome;
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_QUICKACK) {
        socket.mark(flag::QUICKACK_OFF, number == 0);
    }
    if let Some(flag) = steering(level, name) {
        let on = number != 0;
        match flag {
            app_flags::CORK => socket.mark(flag::CORKED, on),
            // What is held is sent when Nagle's algorithm is switched off.
            app_flags::NODELAY if on => send::let_go(socket),
            _ => {}
        }
        if socket.has_app(flag) != on || (flag, on) == (app_flags::NODELAY, true) {
            socket.mark_app(flag, on);
        }
        if (flag, on) == (app_flags::CORK, false) {
            cork::release(socket);
        }
    } else if let Some(flag) = flagged(level, name) {
        socket.mark(flag, number != 0);
    } else if let Some(outcome) = kept::set(fd, socket, level, name, number) {
        outcome?;
    } else {
        return set_number(fd, socket, level, name, number);
    }
    Ok(0)
}

/// The rest of the numbers of SOL_SOCKET.
fn set_number(fd: c_int, socket: &Socket, level: c_int, name: c_int, number: c_int) -> Sys<c_int> {
    if level != libc::SOL_SOCKET {
        return Err(libc::ENOPROTOOPT);
    }
    if let Some(outcome) = buffers::set(fd, socket, name, number) {
        return outcome;
    }
    match name {
        libc::SO_RCVLOWAT => {
            let asked = if number < 0 { c_int::MAX } else { number } as u32;
            let limit = socket.private().receive_limit.load(Relaxed);
            // As on Linux: more than `SO_RCVBUF` has room for never comes.
            let most = if socket.options().receive_buffer.load(Relaxed) == 0 { asked } else { limit };
            socket.private().low_water.store(asked.min(most), Relaxed)
        }
        libc::SO_INCOMING_CPU => {}
        libc::SO_PASSCRED => return Err(libc::EOPNOTSUPP),
        _ => return Err(libc::ENOPROTOOPT),
    }
    Ok(0)
}

/// The algorithm that `TCP_CONGESTION` names.
///
/// # Safety
/// As [`set`].
unsafe fn congestion(value: *const c_void, len: socklen_t) -> Sys<u32> {
    if len == 0 {
        return Err(libc::EINVAL);
    }
    let mut text = [0; 16];
    // SAFETY: the program's memory, and `text` has the room.
    unsafe { user::copy(text.as_mut_ptr(), value.cast(), len.min(15) as usize)? };
    steer::congestion_of(&text)
}

/// `SO_MAX_PACING_RATE` in its 32-bit and 64-bit forms.
///
/// # Safety
/// As [`set`].
unsafe fn pacing(value: *const c_void, len: socklen_t) -> Sys<u64> {
    // SAFETY: the caller keeps the contract of `setsockopt`.
    unsafe {
        if len as usize == size_of::<u64>() {
            return given(value, len);
        }
        Ok(match given::<u32>(value, len)? {
            u32::MAX => u64::MAX,
            rate => rate.into(),
        })
    }
}

/// `setsockopt` on a kernel socket that may become ours: the kernel answers, except for what only the stack knows.
///
/// # Safety
/// As [`set`].
pub unsafe fn set_undecided(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> towpath_hook::Answer<c_int> {
    // SAFETY: the caller keeps the contract of `setsockopt`.
    let set = outcome(unsafe { real::setsockopt(fd, level, name, value, len) });
    table::update_undecided(fd, |undecided| {
        undecided.options = true;
        undecided.kept |= kept::is_kept(level, name);
        undecided.steered |= if set.is_ok() { steer::carried(level, name) } else { 0 };
        let limit = TIME_LIMITS.iter().position(|limit| (level, *limit) == (libc::SOL_SOCKET, name));
        if let (Some(limit), Ok(_)) = (limit, set) {
            // SAFETY: the kernel has just read a time there.
            undecided.no_wait[limit] = unsafe { given::<timeval>(value, len) }.is_ok_and(|time| time.tv_sec < 0);
        }
    });
    // Source routes and the like (RFC 9293 §3.9.2.1, MUST-51, MUST-52): the kernel sends IP options, the stack does not.
    if (level, name) == (libc::IPPROTO_IP, libc::IP_OPTIONS)
        && set.is_ok()
        && let table::Kind::Undecided(undecided) = table::get(fd)
    {
        fallback::count(Count::IpOptions);
        listen::leave(fd, undecided);
    }
    if (level, name) != (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
        return Some(set);
    }
    // SAFETY: as above.
    Some(match unsafe { congestion(value, len) } {
        Ok(number) => {
            table::update_undecided(fd, |undecided| undecided.congestion = number as u8);
            Ok(0)
        }
        Err(errno) => Err(errno),
    })
}

/// `TCP_CONGESTION` of a socket that is not decided.
///
/// # Safety
/// As [`get`].
pub unsafe fn get_congestion(undecided: Undecided, out: *mut c_void, len: *mut socklen_t) -> Sys<c_int> {
    // SAFETY: the caller keeps the contract of `getsockopt`.
    unsafe { give(steer::name_of(undecided.congestion.into()), out, len) }
}

/// # Safety
/// As [`set`].
unsafe fn set_time(word: &AtomicU64, value: *const c_void, len: socklen_t) -> Sys<c_int> {
    // SAFETY: the caller keeps the contract of `setsockopt`.
    let time: timeval = unsafe { given(value, len)? };
    if !(0..1_000_000).contains(&time.tv_usec) {
        return Err(libc::EDOM);
    }
    word.store(microseconds(time), Relaxed);
    Ok(0)
}

/// 0 is no limit; a negative time, as on Linux, is not to wait at all.
fn microseconds(time: timeval) -> u64 {
    match u64::try_from(time.tv_sec) {
        Ok(seconds) => seconds.saturating_mul(1_000_000).saturating_add(time.tv_usec as u64).min(block::NO_WAIT - 1),
        Err(_) => block::NO_WAIT,
    }
}

const TIME_LIMITS: [c_int; 2] = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO];

/// What a limit reads as: not to wait reads as 0, too.
pub fn time_of(word: &AtomicU64) -> timeval {
    let us = match word.load(Relaxed) {
        block::NO_WAIT => 0,
        us => us,
    };
    timeval { tv_sec: (us / 1_000_000) as libc::time_t, tv_usec: (us % 1_000_000) as libc::suseconds_t }
}

/// `getsockopt` on a socket in a slot.
///
/// # Safety
/// The contract of `getsockopt`: `len` is null or valid, `out` is null or has `*len` writable bytes.
pub unsafe fn get(
    fd: c_int,
    socket: &Socket,
    level: c_int,
    name: c_int,
    out: *mut c_void,
    len: *mut socklen_t,
) -> Sys<c_int> {
    let private = socket.private();
    // SAFETY: the caller keeps the contract of `getsockopt`.
    unsafe {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let seconds = private.linger_s.load(Relaxed);
                let value = linger { l_onoff: (seconds >= 0).into(), l_linger: seconds.max(!seconds) };
                return give(value, out, len);
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => return give(time_of(&private.receive_timeout_us), out, len),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => return give(time_of(&private.send_timeout_us), out, len),
            (libc::IPPROTO_TCP, libc::TCP_INFO) => return give(tcp_info::tcp_info(socket), out, len),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => return give(steer::congestion_name(socket), out, len),
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
                let rate = steer::max_pacing(socket);
                return match user::read(len)? as usize {
                    8.. => give(rate, out, len),
                    _ => give(rate.min(u32::MAX.into()) as u32, out, len),
                };
            }
            _ => {}
        }
        give(number(fd, socket, level, name)?, out, len)
    }
}

fn number(fd: c_int, socket: &Socket, level: c_int, name: c_int) -> Sys<c_int> {
    let (private, session): (&Private, &Session) = (socket.private(), socket.session);
    if level == libc::IPPROTO_IPV6 && !socket.has(flag::SIX) {
        return Err(libc::EOPNOTSUPP);
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_QUICKACK) {
        return Ok((!socket.has(flag::QUICKACK_OFF)).into());
    }
    if let Some(value) = steer::get(socket, level, name) {
        return Ok(value);
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_CORK) {
        return Ok(socket.has(flag::CORKED).into());
    }
    if let Some(flag) = steering(level, name) {
        return Ok(socket.has_app(flag).into());
    }
    if let Some(value) = kept::get(fd, socket, level, name) {
        return value;
    }
    if let Some(flag) = flagged(level, name) {
        return Ok(socket.has(flag).into());
    }
    if let (libc::SOL_SOCKET, Some(bytes)) = (level, buffers::get(socket, session, name)) {
        return Ok(bytes);
    }
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => socket.take_error(),
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) if socket.has(flag::SIX) => libc::AF_INET6,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => libc::AF_INET,
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => socket.has(flag::V6ONLY).into(),
        // No CPU has received for it (the cores are none of the program's).
        (libc::SOL_SOCKET, libc::SO_INCOMING_CPU) => -1,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => (socket.state() == state::LISTENING).into(),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => private.low_water.load(Relaxed).max(1) as c_int,
        (libc::SOL_SOCKET, libc::SO_SNDLOWAT) => 1,
        (libc::SOL_SOCKET, libc::SO_PASSCRED) => return Err(libc::EOPNOTSUPP),
        (libc::SOL_SOCKET | libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6, _) => {
            return Err(libc::ENOPROTOOPT);
        }
        _ => return Err(libc::EOPNOTSUPP),
    })
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
    socket.mark(flag::OOBINLINE, int(libc::SOL_SOCKET, libc::SO_OOBINLINE) != 0);
    socket.mark(flag::QUICKACK_OFF, int(libc::IPPROTO_TCP, libc::TCP_QUICKACK) == 0);
    socket.mark(flag::REUSEPORT, int(libc::SOL_SOCKET, libc::SO_REUSEPORT) != 0);
    let off = linger { l_onoff: 0, l_linger: 0 };
    let linger = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, off).unwrap_or(off);
    private.linger_s.store(if linger.l_onoff == 0 { !linger.l_linger.max(0) } else { linger.l_linger }, Relaxed);
    let words = [&private.receive_timeout_us, &private.send_timeout_us];
    for ((name, no_wait), word) in TIME_LIMITS.into_iter().zip(undecided.no_wait).zip(words) {
        let zero = timeval { tv_sec: 0, tv_usec: 0 };
        let time = sys::getsockopt(fd, libc::SOL_SOCKET, name, zero).unwrap_or(zero);
        word.store(if no_wait { block::NO_WAIT } else { microseconds(time) }, Relaxed);
    }
    private.low_water.store(int(libc::SOL_SOCKET, libc::SO_RCVLOWAT) as u32, Relaxed);
    socket.mark(flag::CORKED, socket.has_app(app_flags::CORK));
}
