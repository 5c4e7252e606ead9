//! Moves the watches of a socket that is promoted, demoted, left to the kernel, or closed.

use crate::fd::table;
use crate::ready::epoll_ctl;
use crate::ready::instance::{self, waits};
use crate::ready::interest::{EntryName, Interest};
use crate::ready::past::bridge;
use core::sync::atomic::Ordering;
use libc::{c_int, epoll_event};
use towpath_client::private::flag;
use towpath_client::session;
use towpath_client::socket::Socket;
use towpath_hook::real;

/// A pending socket is left to the kernel, or has been closed: the instances that watch it forget it.
pub fn forget_pending(fd: c_int) {
    instance::each(|_, interest| interest.pending.retain(|(watched, _)| *watched != fd));
}

/// Takes a pending socket that is about to be promoted out of the native sets. Returns each instance with its event.
pub fn take_pending(fd: c_int) -> Vec<(u32, epoll_event)> {
    let mut watchers = Vec::new();
    instance::each(|id, interest| {
        if let Some(at) = interest.pending.iter().position(|(watched, _)| *watched == fd) {
            let (_, event) = interest.pending.swap_remove(at);
            // SAFETY: for EPOLL_CTL_DEL the kernel reads no event, so null is allowed.
            unsafe { real::epoll_ctl(instance::descriptor(id), libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut()) };
            interest.native = interest.native.saturating_sub(1);
            watchers.push((id, event));
        }
    });
    watchers
}

/// Takes the slot of a socket that is about to be demoted out of all instances. Returns each instance, descriptor and
/// event.
pub fn take_slot(socket: &Socket) -> Vec<(u32, c_int, epoll_event)> {
    let mut watchers = bridge::take(socket, false);
    instance::each(|id, interest| {
        let ours = interest.pid == towpath_client::process::pid();
        for (name, event) in interest.watching(socket) {
            // A kernel socket is watched by its descriptor only.
            if let EntryName::Descriptor(fd) = name {
                let _ = interest.remove(name, socket, ours);
                withdraw(id, interest, fd);
                watchers.push((id, fd, event));
            } else {
                let _ = interest.give_up(name, socket, ours);
            }
        }
    });
    watchers
}

/// A descriptor is no longer watched as one of a slot.
fn withdraw(id: u32, interest: &mut Interest, fd: c_int) {
    let instance = instance::instance(id);
    if instance.waits() == waits::UNSEEN {
        interest.withdraw(instance.descriptor(), fd);
    }
}

fn withdraw_all(id: u32, interest: &mut Interest, watched: &[(EntryName, epoll_event)]) {
    for (name, _) in watched {
        if let EntryName::Descriptor(fd) = name {
            withdraw(id, interest, *fd);
        }
    }
}

/// Lets an instance watch a pending socket, through the kernel.
pub fn watch_pending(id: u32, fd: c_int, mut event: epoll_event) {
    // SAFETY: `event` lives until the call returns.
    if unsafe { real::epoll_ctl(instance::descriptor(id), libc::EPOLL_CTL_ADD, fd, &raw mut event) } == 0 {
        instance::instance(id).with(|interest| {
            interest.native += 1;
            interest.pending.push((fd, event));
        });
    }
}

/// Lets the instances that watched a pending socket watch its slot.
pub fn watch_promoted(fd: c_int, socket: &Socket, watchers: Vec<(u32, epoll_event)>) {
    for (id, event) in watchers {
        let _ = epoll_ctl::control_slot(id, libc::EPOLL_CTL_ADD, fd, socket, Some(&event));
    }
}

/// The slot of a listener with a kernel half has ended, and its descriptors are the kernel's from now on. The kernel goes on
/// with the program's own data.
pub fn leave_half(socket: &Socket) {
    bridge::take(socket, true);
    instance::each(|id, interest| {
        let ours = interest.pid == towpath_client::process::pid();
        let watched = interest.watching(socket);
        interest.leave_half(socket, ours);
        withdraw_all(id, interest, &watched);
    });
}

/// [`leave_half`] of a listener whose service has gone. `copies`: its descriptors, which are pending sockets from now on.
pub fn lose_half(socket: &Socket, copies: &[c_int]) {
    for (id, fd, event) in bridge::take(socket, true) {
        instance::instance(id).with(|interest| interest.pending.push((fd, event)));
    }
    instance::each(|id, interest| {
        let ours = interest.pid == towpath_client::process::pid();
        let watched = interest.watching(socket);
        interest.leave_half(socket, ours);
        withdraw_all(id, interest, &watched);
        for (name, event) in watched {
            if let EntryName::Descriptor(fd) = name
                && copies.contains(&fd)
            {
                interest.pending.push((fd, event));
            }
        }
    });
}

/// Has the program an epoll instance?
pub fn is_used() -> bool {
    instance::numbers().next().is_some()
}

/// A socket may be ready, although the stack has told nothing.
pub fn look_at(socket: &Socket) {
    instance::each_subscribed(socket.app().ctx_mask.load(Ordering::SeqCst), |_, interest| interest.look_at(socket));
}

/// The descriptor `fd` of a socket is being closed.
pub fn forget(fd: c_int, socket: &Socket) {
    // The bits of a socket of another session do not stand for contexts of this process.
    let own = session::get().is_some_and(|own| core::ptr::eq(own, socket.session));
    let contexts = if own { socket.app().ctx_mask.load(Ordering::SeqCst) } else { u64::MAX };
    let kind = table::kind_of(socket);
    let copies = socket.has(flag::SHARED) && table::within(0, u32::MAX).any(|(other, is)| other != fd && is == kind);
    bridge::closed(fd, socket, copies);
    instance::each_subscribed(contexts, |id, interest| {
        let ours = interest.pid == towpath_client::process::pid();
        interest.closed(fd, socket, copies, ours);
        withdraw(id, interest, fd);
    });
}
