//! `bind`: the kernel reserves the port.

use crate::fd::table::{self, Descriptor, Pending};
use crate::lifecycle::address::{self, Address};
use crate::lifecycle::{pending, registration, stack_address};
use libc::{c_int, sockaddr, socklen_t};
use towpath_client::query;
use towpath_client::sys::{self, Sys};
use towpath_hook::{Answer, outcome, real};

/// `bind` on a pending socket. The kernel reserves the port unless the stack uses it.
///
/// # Safety
/// The contract of `bind`: `addr` has `len` readable bytes, or cannot be read at all.
pub unsafe fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Answer<c_int> {
    let kind = table::get(fd);
    if let Descriptor::Slot { .. } = kind {
        return Some(Err(libc::EINVAL));
    }
    let Descriptor::Pending(pending) = kind else { return None };
    // SAFETY: `read` accepts any address.
    let local = unsafe { address::read(pending.six, addr, len) }.ok().flatten();
    if local.is_some_and(|local| is_taken(fd, pending, local)) {
        return Some(Err(libc::EADDRINUSE));
    }
    // SAFETY: the kernel checks the program's address.
    let bound = reserve(fd, pending, local, || outcome(unsafe { real::bind(fd, addr, len) }));
    if bound.is_ok() {
        let any_port = local.is_some_and(|(_, port)| port == 0);
        table::update_pending(fd, |u| (u.bound, u.any_port) = (true, any_port));
    }
    Some(bound)
}

/// Binds without SO_REUSEADDR, with which another program could bind the same port. The option is set again only if the
/// port is not to be had without it.
fn reserve(fd: c_int, pending: Pending, local: Option<Address>, bind: impl Fn() -> Sys<c_int>) -> Sys<c_int> {
    let reuse = pending.options
        && sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 0).is_ok_and(|reuse| reuse != 0);
    let hide = reuse && sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 0).is_ok();
    let mut bound = bind();
    if bound == Err(libc::EADDRNOTAVAIL) && local.is_some_and(|local| stack_address::allow(fd, pending.six, local)) {
        table::update_pending(fd, |u| u.foreign = true);
        bound = bind();
    }
    if bound.is_err() && hide {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        if bound == Err(libc::EADDRINUSE) {
            bound = bind();
        }
    } else if hide {
        table::update_pending(fd, |u| u.reuse_hidden = true);
    }
    bound
}

/// Does the stack use this port? The kernel must be asked too.
fn is_taken(fd: c_int, pending: Pending, local: Address) -> bool {
    let asked_for = !pending.bound && local.1 != 0 && !address::is_kernels(local.0);
    let six_only = || pending.six && pending::is_v6only(fd);
    asked_for
        && registration::start()
            .is_some_and(|session| !session.is_foreign(fd) && query::is_taken(session, local, six_only()))
}
