//! `epoll_create` and `epoll_ctl`.

use crate::fd::table::{self, Descriptor};
use crate::io::user;
use crate::ready::instance::{self, waits};
use crate::ready::interest::EntryName;
use crate::ready::past::{self, bridge};
use crate::ready::{nested, service_death, watch};
use libc::{c_int, epoll_event};
use towpath_client::session;
use towpath_client::socket::Socket;
use towpath_client::sys::Sys;
use towpath_hook::{Answer, outcome, real};

/// Makes an instance of a new epoll descriptor of the kernel.
pub fn created(fd: c_int) {
    if let Some(id) = instance::claimed(fd) {
        table::set(fd, Descriptor::Epoll(id));
    }
}

/// `epoll_ctl`.
///
/// # Safety
/// The contract of `epoll_ctl`: `event` is null or valid.
pub unsafe fn control(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Answer<c_int> {
    let (Descriptor::Epoll(id), mut kind) = (table::get(epfd), table::get(fd)) else { return None };
    if table::socket(fd).is_some_and(|socket| service_death::is_left_alone(&socket)) {
        service_death::give_back();
        kind = table::get(fd);
    }
    if kind == Descriptor::Internal {
        return Some(Err(libc::EBADF));
    }
    if let Descriptor::Slot { slot, generation } = kind {
        // SAFETY: `user::read` accepts any address, and any bytes are a valid event.
        let event = unsafe { user::read(event) }.ok();
        let socket = Socket::at(slot, generation)?;
        if op != libc::EPOLL_CTL_ADD {
            past::look(fd);
        }
        return Some(control_slot(id, op, fd, &socket, event.as_ref()));
    }
    if let (Descriptor::Epoll(inner), true) = (kind, session::get().is_some()) {
        // SAFETY: `user::read` accepts any address, and any bytes are a valid event.
        let event = unsafe { user::read(event) }.ok();
        return Some(nested::control(id, op, fd, inner, event.as_ref()));
    }
    // SAFETY: the caller keeps the contract of `epoll_ctl`, and the kernel checks the event's address.
    let done = outcome(unsafe { real::epoll_ctl(epfd, op, fd, event) });
    if done.is_ok() {
        instance::instance(id).with(|interest| {
            interest.pending.retain(|(watched, _)| *watched != fd);
            match op {
                libc::EPOLL_CTL_ADD => interest.native += 1,
                libc::EPOLL_CTL_DEL => interest.native = interest.native.saturating_sub(1),
                _ => {}
            }
            if let (Descriptor::Pending(_) | Descriptor::Epoll(_), false) = (kind, op == libc::EPOLL_CTL_DEL) {
                // SAFETY: the kernel has just read the event there.
                interest.pending.push((fd, unsafe { event.read_unaligned() }));
            }
        });
    }
    Some(done)
}

/// `epoll_ctl` on a socket in a slot, for the program.
pub fn control_slot(id: u32, op: c_int, fd: c_int, socket: &Socket, event: Option<&epoll_event>) -> Sys<c_int> {
    if instance::instance(id).waits() != waits::OWN {
        match watch::control(id, op, EntryName::Descriptor(fd), fd, socket, event) {
            // Another thread has found meanwhile that the program waits by system calls of its own.
            Err(watch::GIVEN_UP) => {}
            done => return done,
        }
    }
    bridge::control(id, op, fd, socket, event)
}
