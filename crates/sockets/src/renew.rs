//! A socket that has been connected or has listened, and is to be used anew: a fresh kernel socket, not decided yet, takes the
//! place of the slot behind all its descriptors, with the options that the old one had.

use crate::private::flag;
use crate::socket::Socket;
use crate::sys::{self, Sys};
use crate::table::{self, Kind, Undecided};
use crate::{address, block, close, interest, kept, options, steer};
use core::net::Ipv4Addr;
use core::sync::atomic::Ordering::Relaxed;
use libc::{c_int, c_void, linger, socklen_t, timeval};
use towpath_hook::{outcome, real};
use towpath_ring::lines::app_flags;

/// Lets the slot behind `fd` go and puts a fresh socket in its place, bound to `local` if that is given.
pub fn renew(fd: c_int, socket: &Socket, local: Option<address::Address>) -> Sys<Undecided> {
    let six = socket.has(flag::SIX);
    let domain = if six { libc::AF_INET6 } else { libc::AF_INET };
    put_fresh(fd, socket, sys::socket(domain)?, local)
}

/// As [`renew`], after a connection was given up: the fresh socket has a pending ECONNRESET, as Linux's own.
pub fn renew_reset(fd: c_int, socket: &Socket) -> Sys<Undecided> {
    let six = socket.has(flag::SIX);
    let fresh = sys::socket(if six { libc::AF_INET6 } else { libc::AF_INET })?;
    // If that cannot be had, none is pending.
    let _ = give_up_a_connection(fresh, six);
    put_fresh(fd, socket, fresh, None)
}

/// Only a connection of its own that the kernel's socket gives up leaves the error behind.
fn give_up_a_connection(fresh: c_int, six: bool) -> Sys<()> {
    let listener = sys::socket(libc::AF_INET)?;
    let given_up = || {
        let loopback = (Ipv4Addr::LOCALHOST.to_ipv6_mapped(), 0);
        address::bind(listener, false, loopback)?;
        // SAFETY: integers only.
        outcome(unsafe { real::listen(listener, 1) })?;
        address::connect(fresh, six, address::of_kernel(listener, false)?)?;
        address::disconnect(fresh)
    };
    let done = given_up();
    sys::close(listener);
    done
}

fn put_fresh(fd: c_int, socket: &Socket, fresh: c_int, local: Option<address::Address>) -> Sys<Undecided> {
    let six = socket.has(flag::SIX);
    if socket.has(flag::NONBLOCK) {
        sys::fcntl(fresh, libc::F_SETFL, libc::O_NONBLOCK)?;
    }
    let mut undecided = Undecided { six, ..Undecided::default() };
    carry(fd, socket, fresh, &mut undecided);
    let copies = table::copies(fd);
    let watchers = interest::take_slot(socket);
    close::end(fd, socket);
    if let Some(local) = local {
        undecided.bound = address::bind(fresh, six, local).is_ok();
    }
    if copies.len() > 1 {
        undecided.family = table::new_family();
    }
    for copy in &copies {
        sys::put_over(fresh, *copy)?;
        table::set(*copy, Kind::Undecided(undecided));
    }
    sys::close(fresh);
    for (id, fd, event) in watchers {
        interest::watch_undecided(id, fd, event);
    }
    Ok(undecided)
}

/// Sets what is set on the slot's socket on the kernel's.
fn carry(fd: c_int, socket: &Socket, fresh: c_int, undecided: &mut Undecided) {
    for (level, name) in steer::CARRIED {
        let Some(value) = steer::get(socket, level, name) else { continue };
        if sys::getsockopt::<c_int>(fresh, level, name, 0) != Ok(value)
            && sys::setsockopt(fresh, level, name, value).is_ok()
        {
            undecided.steered |= steer::carried(level, name);
        }
    }
    let numbers = [
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, socket.has_app(app_flags::NODELAY)),
        (libc::IPPROTO_TCP, libc::TCP_CORK, socket.has(flag::CORKED)),
        (libc::SOL_SOCKET, libc::SO_REUSEADDR, socket.has(flag::REUSEADDR)),
        (libc::SOL_SOCKET, libc::SO_REUSEPORT, socket.has(flag::REUSEPORT)),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE, socket.has(flag::OOBINLINE)),
    ];
    for (level, name, on) in numbers {
        if on {
            let _ = sys::setsockopt(fresh, level, name, 1);
        }
    }
    let private = socket.private();
    let limits = [(libc::SO_RCVTIMEO, &private.receive_timeout_us), (libc::SO_SNDTIMEO, &private.send_timeout_us)];
    for ((name, word), no_wait) in limits.into_iter().zip(&mut undecided.no_wait) {
        *no_wait = word.load(Relaxed) == block::NO_WAIT;
        set(fresh, name, if *no_wait { timeval { tv_sec: -1, tv_usec: 0 } } else { options::time_of(word) });
    }
    let seconds = private.linger_s.load(Relaxed);
    set(fresh, libc::SO_LINGER, linger { l_onoff: (seconds >= 0).into(), l_linger: seconds.max(!seconds) });
    kept::give_back(fd, socket, fresh);
    undecided.kept = true;
    undecided.options = true;
}

fn set<T: Copy>(fresh: c_int, name: c_int, value: T) {
    let len = size_of::<T>() as socklen_t;
    // SAFETY: `value` has `len` bytes.
    let _ = unsafe { real::setsockopt(fresh, libc::SOL_SOCKET, name, (&raw const value).cast::<c_void>(), len) };
}
