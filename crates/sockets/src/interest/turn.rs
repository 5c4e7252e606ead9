//! What becomes of the watches of a socket that turns into another thing: promoted, undecided again, the kernel's for good, or closed.

use crate::epoll;
use crate::private::flag;
use crate::socket::Socket;
use crate::table;
use core::sync::atomic::Ordering;
use libc::{c_int, epoll_event};
use towpath_hook::real;

/// An undecided socket is the kernel's for good or closed.
pub fn forget_undecided(fd: c_int) {
    epoll::each(|_, interest| interest.undecided.retain(|(watched, _)| *watched != fd));
}

/// Takes an undecided socket, which is about to be promoted, out of the native sets; returns who watched it.
pub fn take_undecided(fd: c_int) -> Vec<(u32, epoll_event)> {
    let mut watchers = Vec::new();
    epoll::each(|id, interest| {
        if let Some(at) = interest.undecided.iter().position(|(watched, _)| *watched == fd) {
            let (_, event) = interest.undecided.swap_remove(at);
            // SAFETY: a deletion reads no event.
            unsafe { real::epoll_ctl(epoll::descriptor(id), libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut()) };
            watchers.push((id, event));
        }
    });
    watchers
}

/// Takes the slot of a socket that is to be undecided again out of all instances; returns who watched it, by which descriptor.
pub fn take_slot(socket: &Socket) -> Vec<(u32, c_int, epoll_event)> {
    let mut watchers = Vec::new();
    epoll::each(|id, interest| {
        let ours = interest.pid == crate::fork::pid();
        for (fd, event) in interest.watching(socket) {
            let _ = interest.remove(fd, socket, ours);
            watchers.push((id, fd, event));
        }
    });
    watchers
}

/// Lets an instance watch an undecided socket as the kernel's.
pub fn watch_undecided(id: u32, fd: c_int, mut event: epoll_event) {
    // SAFETY: a valid event.
    if unsafe { real::epoll_ctl(epoll::descriptor(id), libc::EPOLL_CTL_ADD, fd, &raw mut event) } == 0 {
        epoll::instance(id).with(|interest| {
            interest.native += 1;
            interest.undecided.push((fd, event));
        });
    }
}

/// Lets the instances that watched an undecided socket watch the slot that it has become.
pub fn watch_promoted(fd: c_int, socket: &Socket, watchers: Vec<(u32, epoll_event)>) {
    for (id, event) in watchers {
        let _ = epoll::control_slot(id, libc::EPOLL_CTL_ADD, fd, socket, Some(&event));
    }
}

/// The descriptor `fd` of a socket is being closed: nobody watches it any more.
pub fn forget(fd: c_int, socket: &Socket) {
    // The bits of other families' sockets and other stacks' say nothing about contexts here.
    let own = socket.session.number == 0;
    let contexts = if own { socket.app().ctx_mask.load(Ordering::SeqCst) } else { u64::MAX };
    let kind = socket.kind();
    let copies = socket.has(flag::SHARED) && table::within(0, u32::MAX).any(|(other, is)| other != fd && is == kind);
    epoll::each_told(contexts, |interest| {
        let ours = interest.pid == crate::fork::pid();
        interest.closed(fd, socket, copies, ours);
    });
}
