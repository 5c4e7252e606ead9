//! Moves the values of options: from a kernel socket to its slot (promotion), and from a slot to a fresh kernel socket
//! (demotion). An accepted connection gets those of its listener.

use crate::fd::table::Pending;
use crate::options::table::{self, Import, Place, Row, TABLE, mark};
use crate::options::values::{TIME_LIMITS, linger_of, microseconds, time_of};
use crate::options::{number, peek, stack};
use core::sync::atomic::Ordering::Relaxed;
use libc::{c_int, c_void, linger, socklen_t, timeval};
use towpath_client::private::flag;
use towpath_client::session::Session;
use towpath_client::socket::Socket;
use towpath_client::sys;
use towpath_client::wait;
use towpath_hook::real;
use towpath_ring::lines::app_flags;
use towpath_ring::options::{Options, option_flags};
use towpath_ring::{OptionsLine, Slot};

/// The value of a kernel socket's option, if that is a number.
fn kernels(fd: c_int, row: &Row) -> Option<c_int> {
    sys::getsockopt::<c_int>(fd, row.level, row.name, 0).ok()
}

/// The `app_flags` that a kernel socket's options ask for. `TCP_QUICKACK` is left out: it is on until a program
/// switches it off.
pub fn initial_flags(fd: c_int, pending: Pending) -> u32 {
    let may_be_on = |flag| match flag {
        app_flags::QUICKACK => false,
        app_flags::NODELAY => pending.options || pending.no_delay,
        _ => pending.options,
    };
    let on = |row: &Row| match row.place {
        Place::AppFlag(flag) if may_be_on(flag) && kernels(fd, row).is_some_and(|on| on != 0) => flag,
        _ => 0,
    };
    TABLE.iter().fold(0, |flags, row| flags | on(row))
}

/// Before the command that promotes a kernel socket: shows the stack the options that the program has set on it.
pub fn show_initial(fd: c_int, pending: Pending, session: &Session, slot: Slot) {
    let line = session.region.options(slot);
    let some = pending.steered | u32::from(pending.congestion) != 0 || pending.emulated;
    if some || line.seq.load(Relaxed) != 0 {
        line.post(&Options { congestion: pending.congestion.into(), ..Options::default() });
    }
    if pending.emulated {
        show_emulated(fd, line);
    }
    let shared = pending.options
        && sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 0).is_ok_and(|on| on != 0);
    mark(line, option_flags::REUSEPORT, shared);
    for (_, row) in table::imported_if_set().filter(|(bit, _)| pending.steered & bit != 0) {
        show(fd, row, line);
    }
    if pending.steered != 0 || shared || pending.emulated {
        line.post(&line.read().1);
    }
}

/// Copies an option on which the stack acts from the kernel socket to the options line.
fn show(fd: c_int, row: &Row, line: &OptionsLine) {
    let value = kernels(fd, row).unwrap_or(0);
    match row.place {
        Place::StackFlag(flag) => mark(line, flag, value != 0),
        Place::StackWord(word) => {
            if let Ok(value) = (word.accepts)(value) {
                word.store(line, value);
            }
        }
        Place::PacingRate => {
            let rate = sys::getsockopt::<u64>(fd, row.level, row.name, u64::MAX).unwrap_or(u64::MAX);
            stack::store_max_pacing(line, rate);
        }
        Place::Buffer(at) => at(line).store(value.cast_unsigned(), Relaxed),
        Place::AppFlag(_) | Place::OwnFlag(_) | Place::Peek | Place::Pair(_) | Place::Bit(_) => {}
    }
}

fn show_emulated(fd: c_int, line: &OptionsLine) {
    for row in table::emulated() {
        let Some(value) = kernels(fd, row) else { continue };
        match row.place {
            // The kernel's value is stored unchecked: a default may lie outside what a program can set.
            Place::StackWord(word) => word.store(line, value),
            Place::Pair(shown) => _ = shown.show(line, value),
            Place::Bit(bit) => _ = bit.shown.show(line, value),
            _ => {}
        }
    }
}

/// Promotion: gives the slot the values of the kernel socket `fd`, for options on which the library acts.
pub fn import(fd: c_int, pending: Pending, socket: &Socket) {
    let private = socket.private();
    let int = |level, name| sys::getsockopt::<c_int>(fd, level, name, 0).unwrap_or(0);
    for row in TABLE.iter().filter(|row| row.import == Import::Always) {
        let on = int(row.level, row.name) != 0;
        match row.place {
            Place::OwnFlag(flag @ flag::REUSEADDR) => socket.mark(flag, on || pending.reuse_hidden),
            Place::OwnFlag(flag) => socket.mark(flag, on),
            Place::AppFlag(app_flags::QUICKACK) => socket.mark(flag::QUICKACK_OFF, !on),
            _ => {}
        }
    }
    socket.mark(flag::CORKED, socket.has_app(app_flags::CORK));
    let off = linger { l_onoff: 0, l_linger: 0 };
    let linger = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, off).unwrap_or(off);
    private.linger_s.store(if linger.l_onoff == 0 { !linger.l_linger.max(0) } else { linger.l_linger }, Relaxed);
    let words = [&private.receive_timeout_us, &private.send_timeout_us];
    for ((name, no_wait), word) in TIME_LIMITS.into_iter().zip(pending.no_wait).zip(words) {
        let zero = timeval { tv_sec: 0, tv_usec: 0 };
        let time = sys::getsockopt(fd, libc::SOL_SOCKET, name, zero).unwrap_or(zero);
        word.store(if no_wait { wait::NO_WAIT } else { microseconds(time) }, Relaxed);
    }
    private.low_water.store(int(libc::SOL_SOCKET, libc::SO_RCVLOWAT) as u32, Relaxed);
}

/// Promotion: gives the slot the values of the kernel socket `from`, for emulated options. `pair` is the slot's
/// socketpair.
pub fn import_emulated(from: c_int, pair: c_int, socket: &Socket) {
    for row in table::emulated() {
        if let Some(value) = kernels(from, row)
            && number::get(pair, socket, row) != Ok(value)
        {
            let _ = number::set(pair, socket, row, row.name, value);
        }
    }
}

/// Demotion: gives the kernel socket `fresh` the values of the slot behind `fd`, where a program could set them.
pub fn export(fd: c_int, socket: &Socket, fresh: c_int, pending: &mut Pending) {
    for row in &TABLE {
        let on = |flag_is_set: bool| flag_is_set.then_some(1);
        let value = match (row.import, row.place) {
            (_, Place::AppFlag(app_flags::QUICKACK) | Place::PacingRate | Place::Buffer(_)) => None,
            (_, Place::AppFlag(_) | Place::OwnFlag(_)) => {
                number::get(fd, socket, row).ok().and_then(|value| on(value != 0))
            }
            (Import::Alias, _) => None,
            _ => number::get(fd, socket, row).ok(),
        };
        let Some(value) = value else { continue };
        let now = kernels(fresh, row);
        // An emulated option that the fresh socket lacks is not set on it.
        let differs = if row.is_emulated() { now.is_some_and(|now| now != value) } else { now != Some(value) };
        if differs && sys::setsockopt(fresh, row.level, row.name, value).is_ok() {
            pending.steered |= row.if_set_bit();
        }
    }
    let private = socket.private();
    note(socket, pending);
    let words = [&private.receive_timeout_us, &private.send_timeout_us];
    for ((name, word), no_wait) in TIME_LIMITS.into_iter().zip(words).zip(&pending.no_wait) {
        set_value(fresh, name, if *no_wait { timeval { tv_sec: -1, tv_usec: 0 } } else { time_of(word) });
    }
    set_value(fresh, libc::SO_LINGER, linger_of(private));
}

/// Notes in the record of a pending socket what its kernel socket does not tell of the slot's options.
pub fn note(socket: &Socket, pending: &mut Pending) {
    let (line, private) = (socket.options(), socket.private());
    let words = [&private.receive_timeout_us, &private.send_timeout_us];
    for (word, no_wait) in words.into_iter().zip(&mut pending.no_wait) {
        *no_wait = word.load(Relaxed) == wait::NO_WAIT;
    }
    for (bit, row) in table::imported_if_set() {
        let is_set = match row.place {
            Place::StackFlag(flag) => line.flags.load(Relaxed) & flag != 0,
            Place::StackWord(word) => word.is_set(line),
            Place::PacingRate => stack::max_pacing(socket) != u64::MAX,
            Place::Buffer(at) => at(line).load(Relaxed) != 0,
            _ => false,
        };
        pending.steered |= if is_set { bit } else { 0 };
    }
    pending.congestion = line.congestion.load(Relaxed) as u8;
    pending.emulated = true;
    pending.options = true;
}

fn set_value<T: Copy>(fd: c_int, name: c_int, value: T) {
    let len = size_of::<T>() as socklen_t;
    // SAFETY: `value` has `len` bytes and lives until the call returns.
    let _ = unsafe { real::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const value).cast::<c_void>(), len) };
}

/// Gives an accepted connection the emulated options of its listener, except the priority. Its options line has the
/// listener's numbers already.
pub fn inherit_emulated(listener_fd: c_int, listener: &Socket, fd: c_int, socket: &Socket) {
    socket.private().emulated.store(listener.private().emulated.load(Relaxed), Relaxed);
    peek::set(socket.private(), 0, peek::get(listener.private(), 0));
    if !listener.has(flag::EMULATED_ON_PAIR) {
        return;
    }
    for row in table::emulated().filter(|row| !row.is(libc::SOL_SOCKET, libc::SO_PRIORITY)) {
        if let Place::Pair(_) = row.place
            && let Some(value) = kernels(listener_fd, row)
        {
            let _ = number::set(fd, socket, row, row.name, value);
        }
    }
}
