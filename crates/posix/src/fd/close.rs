//! Closing and copying descriptors: `close`, `dup`, `close_range` and their relatives.

use crate::fd::table::{self, Descriptor};
use crate::fd::{passing, standard_streams, unshared};
use crate::io::hand_over;
use crate::lifecycle::leaving::Leaving;
use crate::lifecycle::{end, in_flight, pairs};
use crate::observe::measure;
use crate::ready::past::{self, bridge};
use crate::ready::{instance, nested, rewatch};
use libc::{c_int, c_uint};
use rustix::fs::FileType;
use std::sync::OnceLock;
use towpath_client::private::flag;
use towpath_client::process;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_hook::{Answer, outcome, real};

/// Functions to be called when a descriptor of an io_uring is copied or closed.
pub struct RingEvents {
    /// The ring of this number has one more descriptor.
    pub copied: fn(u32),
    /// The ring of this number has one descriptor less.
    pub closed: fn(u32),
}

static RING_EVENTS: OnceLock<RingEvents> = OnceLock::new();

/// Sets these functions. Only the first call has an effect.
pub fn set_ring_events(events: RingEvents) {
    let _ = RING_EVENTS.set(events);
}

/// What is to happen to a descriptor that the program closes.
#[must_use]
pub enum Closing {
    /// It is the library's, and stays open.
    No,
    /// The kernel closes it.
    Yes,
    /// The kernel closes it, and is asked then whether it was the last one of its connection.
    MayBeLast(Leaving),
}

/// Prepares for the kernel to close `fd`.
pub fn closing(fd: c_int, kind: Descriptor) -> Closing {
    match kind {
        Descriptor::Kernel => {}
        // A vfork child needs these until it executes a program. They are close-on-exec.
        Descriptor::Internal => return Closing::No,
        // A vfork child shares its parent's memory but has descriptors of its own.
        _ if process::in_vfork_child() => {}
        Descriptor::Pending(_) => {
            table::set(fd, Descriptor::Kernel);
            rewatch::forget_pending(fd);
        }
        Descriptor::Slot { slot, generation } => {
            let leaving = Socket::at(slot, generation).and_then(|socket| let_go(fd, &socket));
            table::set(fd, Descriptor::Kernel);
            if let Some(leaving) = leaving {
                return Closing::MayBeLast(leaving);
            }
        }
        Descriptor::Epoll(id) => {
            table::set(fd, Descriptor::Kernel);
            nested::forget(fd);
            if instance::is_last(id) {
                bridge::set_closed(id);
            }
            instance::closed(id, fd);
        }
        Descriptor::Ring(id) => {
            table::set(fd, Descriptor::Kernel);
            if let Some(events) = RING_EVENTS.get() {
                (events.closed)(id);
            }
        }
    }
    Closing::Yes
}

/// `close`.
#[inline]
pub fn close(fd: c_int) -> Answer<c_int> {
    if table::is_measured(fd) {
        measure::end(fd);
    }
    let kind = table::get(fd);
    if kind == Descriptor::Kernel {
        return None;
    }
    match closing(fd, kind) {
        Closing::No => Some(Err(libc::EBADF)),
        Closing::Yes => None,
        Closing::MayBeLast(leaving) => Some(close_leaving(fd, leaving)),
    }
}

/// Has the kernel close `fd`, and the connection end with the last descriptor.
fn close_leaving(fd: c_int, leaving: Leaving) -> Sys<c_int> {
    // SAFETY: integers only.
    let closed = outcome(unsafe { real::close(fd) });
    leaving.closed();
    closed
}

/// The descriptor `fd` of a socket is being closed. [`Leaving::closed`] of what this returns follows the close.
pub fn let_go(fd: c_int, socket: &Socket) -> Option<Leaving> {
    past::look(fd);
    table::set(fd, Descriptor::Kernel);
    rewatch::forget(fd, socket);
    if socket.has(flag::SPLICES) && !has_copy(socket) {
        hand_over::closed(socket);
    }
    if socket.has(flag::SHARED) {
        return Leaving::begin(fd, socket);
    }
    // If calls are in flight, the socket lives until they return.
    if !in_flight::keep(fd, socket) {
        let pair = pairs::candidate(fd, socket);
        end::end(fd, socket);
        if let Some(pair) = pair {
            pairs::keep(fd, pair);
        }
    }
    None
}

/// Has this process another descriptor of the socket?
fn has_copy(socket: &Socket) -> bool {
    let kind = table::kind_of(socket);
    socket.has(flag::SHARED) && table::within(0, u32::MAX).any(|(_, other)| other == kind)
}

/// A call has made `new`, a copy of `old`. `kind` is the kind of `old`.
fn copied(kind: Descriptor, old: c_int, new: c_int) {
    match kind {
        Descriptor::Slot { slot, generation } => {
            if let Some(socket) = Socket::at(slot, generation) {
                socket.mark(flag::SHARED, true);
            }
            table::set(new, kind);
        }
        // Copies of a pending socket are counted, because promotion replaces all of them.
        Descriptor::Pending(pending) => {
            let family = if pending.family == 0 { table::new_family() } else { pending.family };
            table::update_pending(old, |pending| pending.family = family);
            table::set(new, table::get(old));
        }
        Descriptor::Epoll(id) => {
            instance::copied(id);
            table::set(new, kind);
        }
        Descriptor::Ring(id) => {
            if let Some(events) = RING_EVENTS.get() {
                (events.copied)(id);
            }
            table::set(new, kind);
        }
        Descriptor::Kernel | Descriptor::Internal => table::set(new, Descriptor::Kernel),
    }
    standard_streams::follow(new);
}

/// `pidfd_getfd` has made `new`, a copy of a descriptor of this process or of another one. A descriptor that this process
/// has shares its inode. An epoll instance has none of its own, and stays the kernel's.
pub fn taken(new: c_int) {
    let is_socket = |stat: &rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
    let stat = |fd| rustix::fs::fstat(sys::borrow(&fd)).ok().filter(is_socket);
    let inode = |fd| stat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    let found = inode(new);
    let known = |fd: &c_int| *fd != new && found.is_some() && inode(*fd) == found;
    match table::within(0, u32::MAX).find(|(fd, kind)| *kind != Descriptor::Internal && known(fd)) {
        Some((old, kind)) => copied(kind, old, new),
        None => passing::take(new),
    }
}

/// A call that makes a copy of `fd` and chooses its number.
pub fn duplicate(fd: c_int, make: impl FnOnce() -> c_int) -> Answer<c_int> {
    let kind = table::get(fd);
    match kind {
        Descriptor::Kernel => None,
        Descriptor::Internal => Some(Err(libc::EBADF)),
        _ if process::in_vfork_child() => {
            passing::unseen_copy(fd);
            None
        }
        _ => Some(outcome(make()).inspect(|new| copied(kind, fd, *new))),
    }
}

/// `dup2` and `dup3`, which close `new` first.
pub fn duplicate_over(fd: c_int, new: c_int, make: impl FnOnce() -> c_int) -> Answer<c_int> {
    if fd != new && table::is_measured(new) {
        measure::end(new);
    }
    let (from, over) = (table::get(fd), table::get(new));
    if (from, over) == (Descriptor::Kernel, Descriptor::Kernel) || fd == new {
        return None;
    }
    if process::in_vfork_child() {
        passing::unseen_copy(fd);
        return None;
    }
    if from == Descriptor::Internal {
        return Some(Err(libc::EBADF));
    }
    // Programs do not choose the numbers of the library's own descriptors. One that does must choose another.
    if over == Descriptor::Internal {
        return Some(Err(libc::EBUSY));
    }
    if let Err(errno) = sys::fcntl(fd, libc::F_GETFD, 0) {
        return Some(Err(errno));
    }
    let closing = closing(new, over);
    let made = outcome(make()).inspect(|new| copied(from, fd, *new));
    if let Closing::MayBeLast(leaving) = closing {
        leaving.closed();
    }
    Some(made)
}

/// `close_range`, without the library's own descriptors.
pub fn close_range(first: c_uint, last: c_uint, flags: c_uint) -> Answer<c_int> {
    let known = libc::CLOSE_RANGE_UNSHARE | libc::CLOSE_RANGE_CLOEXEC;
    // The kernel refuses a wrong call. The library's own descriptors are close-on-exec already.
    if flags & !known != 0 || flags & libc::CLOSE_RANGE_CLOEXEC != 0 || first > last {
        return None;
    }
    if flags & libc::CLOSE_RANGE_UNSHARE != 0
        && let Some(refused) = unshared::refused()
    {
        return Some(refused);
    }
    measure::end_range(first, last);
    let mut ours = false;
    for (fd, kind) in table::within(first, last) {
        ours = true;
        if let Closing::MayBeLast(leaving) = closing(fd, kind) {
            let _ = close_leaving(fd, leaving);
        }
    }
    // The end of a socket may leave the library with one more descriptor of its own, in this range.
    let mut next = first;
    for (fd, _) in table::within(first, last).filter(|(_, kind)| *kind == Descriptor::Internal) {
        if fd as c_uint > next
            && let Err(errno) = close_between(next, fd as c_uint - 1, flags)
        {
            return Some(Err(errno));
        }
        next = fd as c_uint + 1;
    }
    if !ours {
        return None;
    }
    Some(if next > last { Ok(0) } else { close_between(next, last, flags) })
}

fn close_between(first: c_uint, last: c_uint, flags: c_uint) -> Sys<c_int> {
    // SAFETY: `close_range` takes numbers and no memory.
    outcome(unsafe { real::close_range(first, last, flags as c_int) })
}
