//! Instances on which nobody has waited through the library yet. The program may be about to wait by system calls of its
//! own, of which the library sees nothing.
//!
//! So the kernel tells of the first event. The context is armed, and its doorbell stands in the native set with the data of one
//! of the program's sockets. The library's first wait ends that before it asks the kernel. If the kernel has
//! given the event away without such a wait, the program has waited past the library. That is found out when the program
//! accepts from that socket, finds nothing to receive, or changes or closes it. Calls that move bytes at once are not
//! looked at: programs that do not wait at all must not pay for this.
//!
//! The event may be that of another socket of the instance, so the program must bear that it has come too early.

use super::{EntryName, Interest, swap};
use crate::fd::table;
use crate::ready::readiness;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use libc::{c_int, epoll_event};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use towpath_client::process;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_hook::{outcome, real};

/// How many instances have a notice.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The notice of one instance.
pub struct Notice {
    /// The sockets that have been added.
    fds: BTreeSet<c_int>,
    /// The one whose data the doorbell has, and whose calls are looked at.
    told: Option<c_int>,
    /// The program does not ask whether that one is readable, and may overlook an event that says so.
    deaf: bool,
}

impl Notice {
    pub const fn new() -> Self {
        Self { fds: BTreeSet::new(), told: None, deaf: false }
    }
}

/// Has any instance a notice?
#[inline]
pub fn is_any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

fn modify(epfd: c_int, fd: c_int, events: c_int, data: u64) -> Sys<c_int> {
    let mut event = epoll_event { events: events as u32, u64: data };
    // SAFETY: `event` lives until the call returns.
    outcome(unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, &raw mut event) })
}

impl Interest {
    /// A socket has been added or modified in an instance that nobody has waited on through the library. True: the
    /// library's next wait must ask the kernel first.
    pub fn give_notice(&mut self, epfd: c_int, fd: c_int, socket: &Socket, event: &epoll_event) -> bool {
        // Events of other stacks ring other doorbells.
        let own = self.context.as_ref().filter(|context| core::ptr::eq(context.session, socket.session));
        let Some(wake) = own.map(|context| context.wake) else { return false };
        self.notice.fds.insert(fd);
        self.rename_halves(Some(fd), true);
        let is_first = self.notice.told.is_none();
        if is_first {
            COUNT.fetch_add(1, Ordering::Relaxed);
            // The context may have been another instance's.
            towpath_ring::wake::drain(sys::borrow(&wake));
        }
        let hears = event.events & readiness::IN != 0;
        if is_first || (self.notice.deaf && hears) {
            self.notice.told = Some(fd);
        }
        if self.notice.told == Some(fd) {
            self.notice.deaf = !hears;
        }
        if let Some(context) = &self.context {
            context.arm();
        }
        let ready = readiness::events_for(socket, event.events);
        if self.notice.told == Some(fd) {
            // An eventfd is always writable, so this is only asked for if it is true of the socket.
            let events = libc::EPOLLIN | libc::EPOLLONESHOT | (ready & readiness::OUT) as c_int;
            let _ = modify(epfd, wake, events, event.u64);
        }
        // Most events that have come before say no more than that a socket has become a connection.
        self.drain(socket.session);
        if ready != 0 || self.any_ready() {
            towpath_ring::wake::notify(sys::borrow(&wake));
        }
        is_first
    }

    /// A socket has been removed or closed. If the doorbell has its data, it gets that of another one.
    pub fn withdraw(&mut self, epfd: c_int, fd: c_int) {
        self.notice.fds.remove(&fd);
        if self.notice.told != Some(fd) {
            return;
        }
        self.notice.told = None;
        COUNT.fetch_sub(1, Ordering::Relaxed);
        for other in self.notice.fds.clone() {
            if let Some((socket, event)) = self.named(other) {
                self.give_notice(epfd, other, &socket, &event);
                if self.has_notice() {
                    return;
                }
            }
        }
        if let Some(context) = &self.context {
            let _ = modify(epfd, context.wake, 0, 0);
        }
    }

    /// The socket of a descriptor that is watched, and its event.
    fn named(&self, fd: c_int) -> Option<(Socket, epoll_event)> {
        let socket = table::socket(fd)?;
        let found = self.watching(&socket).into_iter().find(|(name, _)| *name == EntryName::Descriptor(fd));
        found.map(|(_, event)| (socket, event))
    }

    /// The library is about to wait: the doorbells are its own from now on.
    pub fn end_notice(&mut self, epfd: c_int, mark: u64) {
        for context in self.context.iter().chain(&self.others) {
            let _ = modify(epfd, context.wake, libc::EPOLLIN | libc::EPOLLET, mark);
        }
        self.rename_halves(None, false);
        self.forget_notice();
    }

    /// Does the kernel tell of the first event?
    pub fn has_notice(&self) -> bool {
        self.notice.told.is_some()
    }

    /// Forgets the notice.
    pub fn forget_notice(&mut self) {
        self.notice.fds.clear();
        if self.notice.told.take().is_some() {
            COUNT.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Has the kernel given the first event away, with the data of the socket `fd`? Then the program has waited past the
    /// library.
    pub fn is_noticed(&self, epfd: c_int, fd: c_int) -> bool {
        let Some(context) = self.context.as_ref().filter(|_| self.notice.told == Some(fd)) else { return false };
        // The queues do not say so: the stack may ring for an event of the context's former instance.
        self.pid == process::pid() && has_rung(context.wake) && is_disabled(epfd, context.wake)
    }

    /// Takes all sockets out, each with its descriptor (-1 = closed, but copies are open) and its event. The kernel goes on
    /// watching the kernel halves, with the program's own data.
    pub fn take_all(&mut self) -> Vec<(c_int, Socket, epoll_event)> {
        self.forget_notice();
        let taken: Vec<_> = (0..self.entries.len()).filter_map(|at| self.taken(at)).collect();
        for (at, _, socket, _) in &taken {
            if socket.kernel_half() {
                self.leave_half(socket, true);
            } else {
                self.end(*at, socket, true);
            }
        }
        taken.into_iter().map(|(_, fd, socket, event)| (fd, socket, event)).collect()
    }

    fn taken(&self, at: usize) -> Option<(usize, c_int, Socket, epoll_event)> {
        let entry = &self.entries[at];
        let fd = match entry.name {
            EntryName::Descriptor(fd) => fd,
            EntryName::Closed => -1,
            EntryName::Library => return None,
        };
        let socket = Socket::at(swap(entry.slot, self.own), entry.generation).filter(|_| entry.is_used())?;
        Some((at, fd, socket, epoll_event { events: entry.events, u64: entry.data }))
    }
}

/// Is a notification in this doorbell?
fn has_rung(wake: c_int) -> bool {
    let mut wake = [libc::pollfd { fd: wake, events: libc::POLLIN, revents: 0 }];
    sys::ppoll(&mut wake, Some(Duration::ZERO), core::ptr::null()) == Ok(1)
}

/// Is this descriptor's entry in the native set one with EPOLLONESHOT whose event has been given away? The kernel's list
/// of the set shows it.
fn is_disabled(epfd: c_int, fd: c_int) -> bool {
    let path = format!("/proc/self/fdinfo/{epfd}");
    let Ok(list) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return false };
    let (mut text, mut length) = ([0; 4096], 0);
    while let Ok(count @ 1..) = rustix::io::read(&list, &mut text[length..]) {
        length += count;
        let mut begin = 0;
        while let Some(end) = text[begin..length].iter().position(|byte| *byte == b'\n') {
            if let Some(events) = events_of(&text[begin..begin + end], fd) {
                return events & libc::EPOLLIN as u32 == 0;
            }
            begin += end + 1;
        }
        text.copy_within(begin..length, 0);
        length -= begin;
    }
    false
}

/// The events of this descriptor in a line of the list: `tfd: FD events: HEX data: HEX ...`.
fn events_of(line: &[u8], fd: c_int) -> Option<u32> {
    let mut words = core::str::from_utf8(line).ok()?.split_ascii_whitespace();
    if words.next() != Some("tfd:") || words.next()?.parse() != Ok(fd) || words.next() != Some("events:") {
        return None;
    }
    u32::from_str_radix(words.next()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_names_descriptors_and_events() {
        let line = b"tfd:      905 events: 40000001 data:               7b  pos:0 ino:8 sdev:f";
        assert_eq!(events_of(line, 905), Some(0x4000_0001));
        assert_eq!(events_of(line, 90), None);
        for other in [&b"flags: 02"[..], b"", b"tfd:", b"tfd: x events: 1", b"tfd: 905 data: 1"] {
            assert_eq!(events_of(other, 905), None);
        }
    }
}
