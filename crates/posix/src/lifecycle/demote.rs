//! Demotion: a socket that has connected or listened becomes a pending one again. A fresh kernel socket with the same
//! options replaces the slot behind all its descriptors. It belongs to the same network namespace, so a thread that is in
//! another one cannot demote.

use crate::fd::table::{self, Descriptor, Pending};
use crate::lifecycle::{address, end};
use crate::options::handover;
use crate::ready::rewatch;
use core::net::Ipv4Addr;
use libc::c_int;
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_hook::{outcome, real};

/// Gives the slot behind `fd` up and puts a fresh kernel socket in its place, bound to `local` if given.
pub fn demote(fd: c_int, socket: &Socket, local: Option<address::Address>) -> Sys<Pending> {
    let six = socket.has(flag::SIX);
    let domain = if six { libc::AF_INET6 } else { libc::AF_INET };
    put_fresh(fd, socket, sys::socket(domain)?, local)
}

/// [`demote`] after a connection was dissolved: the fresh socket has a pending ECONNRESET, as on Linux.
pub fn demote_reset(fd: c_int, socket: &Socket) -> Sys<Pending> {
    let six = socket.has(flag::SIX);
    let fresh = sys::socket(if six { libc::AF_INET6 } else { libc::AF_INET })?;
    // If that fails, no error is pending.
    let _ = give_up_a_connection(fresh, six);
    put_fresh(fd, socket, fresh, None)
}

/// Lets the fresh socket connect and dissolve the connection: only that leaves ECONNRESET behind.
fn give_up_a_connection(fresh: c_int, six: bool) -> Sys<()> {
    let listener = sys::socket(libc::AF_INET)?;
    let given_up = || {
        let loopback = (Ipv4Addr::LOCALHOST.to_ipv6_mapped(), 0);
        address::bind(listener, false, loopback)?;
        // SAFETY: `listen` takes numbers and no memory.
        outcome(unsafe { real::listen(listener, 1) })?;
        address::connect(fresh, six, address::of_kernel(listener, false)?)?;
        address::disconnect(fresh)
    };
    let done = given_up();
    sys::close(listener);
    done
}

fn put_fresh(fd: c_int, socket: &Socket, fresh: c_int, local: Option<address::Address>) -> Sys<Pending> {
    if socket.session.is_foreign(fresh) {
        sys::close(fresh);
        return Err(libc::ECONNABORTED);
    }
    let six = socket.has(flag::SIX);
    if socket.has(flag::NONBLOCK) {
        sys::fcntl(fresh, libc::F_SETFL, libc::O_NONBLOCK)?;
    }
    let mut pending = Pending { six, ..Pending::default() };
    handover::export(fd, socket, fresh, &mut pending);
    let copies = table::copies(fd);
    let watchers = rewatch::take_slot(socket);
    end::end(fd, socket);
    if let Some(local) = local {
        pending.bound = address::bind(fresh, six, local).is_ok();
    }
    if copies.len() > 1 {
        pending.family = table::new_family();
    }
    for copy in &copies {
        sys::put_over(fresh, *copy)?;
        table::set(*copy, Descriptor::Pending(pending));
    }
    sys::close(fresh);
    for (id, fd, event) in watchers {
        rewatch::watch_pending(id, fd, event);
    }
    Ok(pending)
}
