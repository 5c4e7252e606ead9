//! The kernel halves of the listeners that an interest list watches.
//!
//! A listener with a kernel half has an entry like any slot. Its descriptor is in the native set too, under a word of
//! the library's. Both stand for one registration of the program. What the kernel tells becomes an event of the entry.
//! An entry with EPOLLONESHOT is served once, by either half.

use super::{EXCLUSIVE, EntryName, EntryState, Interest, ONESHOT, swap};
use crate::ready::{hints, readiness, words};
use libc::{c_int, epoll_event};
use towpath_client::socket::Socket;
use towpath_client::sys::Sys;
use towpath_hook::{outcome, real};

/// The place of a half whose entry has ended, while the kernel may still tell of it. As on Linux a closed descriptor
/// stays watched while another process has its file.
const ENDED: u32 = u32::MAX;

/// The kernel half of one entry.
struct Half {
    /// Its word in the native set.
    word: u64,
    /// The place of its entry.
    at: u32,
    /// The descriptor by which the native set knows it.
    fd: c_int,
}

/// The kernel halves of all entries.
pub struct Halves {
    /// The native set.
    epfd: c_int,
    all: Vec<Half>,
}

fn native(epfd: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> Sys<c_int> {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: `event` lives until the call returns.
    outcome(unsafe { real::epoll_ctl(epfd, op, fd, &raw mut event) })
}

impl Halves {
    pub const fn new() -> Self {
        Self { epfd: -1, all: Vec::new() }
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The descriptor of the native set has changed.
    pub fn moved(&mut self, epfd: c_int) {
        self.epfd = epfd;
    }

    fn of(&self, at: usize) -> Option<&Half> {
        self.all.iter().find(|half| half.at == at as u32)
    }

    /// The entry at this place is another one's from now on, or no one's.
    pub fn entry_ended(&mut self, at: usize) {
        self.all.iter_mut().filter(|half| half.at == at as u32).for_each(|half| half.at = ENDED);
    }

    /// The entries have other places from now on.
    pub fn moved_entries(&mut self, place: impl Fn(u32) -> Option<u32>) {
        self.all.iter_mut().for_each(|half| half.at = place(half.at).unwrap_or(ENDED));
    }

    /// All descriptors of the native set are closed.
    pub fn release_all(&mut self) {
        self.all.drain(..).for_each(|half| words::release(half.word));
    }
}

impl Interest {
    /// Has the kernel watch the other half of a listener that has just been added. `fd` is its descriptor.
    pub fn add_half(&mut self, epfd: c_int, name: EntryName, socket: &Socket, fd: c_int) -> Sys<()> {
        let at = self.find(name, socket).ok_or(libc::ENOENT)?;
        let word = words::claim(self.entries[at].data).ok_or(libc::ENOSPC)?;
        native(epfd, libc::EPOLL_CTL_ADD, fd, self.entries[at].events, word).inspect_err(|_| words::release(word))?;
        self.halves.epfd = epfd;
        self.halves.all.push(Half { word, at: at as u32, fd });
        self.native += 1;
        Ok(())
    }

    /// The interest in a listener has changed: both halves are armed.
    pub fn modify_half(&mut self, name: EntryName, socket: &Socket, fd: c_int) -> Sys<()> {
        let at = self.find(name, socket).ok_or(libc::ENOENT)?;
        let epfd = self.halves.epfd;
        let Some(half) = self.halves.all.iter_mut().find(|half| half.at == at as u32) else { return Ok(()) };
        let entry = &self.entries[at];
        words::set_data(half.word, entry.data);
        match native(epfd, libc::EPOLL_CTL_MOD, half.fd, entry.events, half.word) {
            // The library's own watch goes on under another descriptor of the socket.
            Err(libc::ENOENT | libc::EBADF) => {
                half.fd = fd;
                native(epfd, libc::EPOLL_CTL_ADD, fd, entry.events, half.word).map(drop)
            }
            done => done.map(drop),
        }
    }

    /// Has the kernel tell of the half of `fd`, or of all halves, with the program's own data, or with the library's
    /// words.
    pub(super) fn rename_halves(&self, fd: Option<c_int>, programs: bool) {
        for half in self.halves.all.iter().filter(|half| fd.is_none_or(|fd| fd == half.fd)) {
            let Some(entry) = self.entries.get(half.at as usize) else { continue };
            let data = if programs { entry.data } else { half.word };
            let mut op = libc::EPOLL_CTL_MOD;
            // An entry with EPOLLEXCLUSIVE cannot be modified.
            if entry.events & EXCLUSIVE != 0 {
                let _ = native(self.halves.epfd, libc::EPOLL_CTL_DEL, half.fd, 0, 0);
                op = libc::EPOLL_CTL_ADD;
            }
            let _ = native(self.halves.epfd, op, half.fd, entry.events, data);
        }
    }

    /// Ends the half of an entry that is being removed.
    pub fn remove_half(&mut self, at: usize) {
        let Some(place) = self.halves.all.iter().position(|half| half.at == at as u32) else { return };
        // The number of a closed descriptor may be another's by now.
        if self.entries[at].name == EntryName::Closed {
            return self.halves.entry_ended(at);
        }
        let half = self.halves.all.swap_remove(place);
        let _ = native(self.halves.epfd, libc::EPOLL_CTL_DEL, half.fd, 0, 0);
        words::release(half.word);
        self.native = self.native.saturating_sub(1);
    }

    /// The last descriptor of this process is being closed. If no other process has one, the kernel forgets it too.
    pub fn close_half(&mut self, at: usize, shared: bool) {
        if shared {
            return self.halves.entry_ended(at);
        }
        if let Some(place) = self.halves.all.iter().position(|half| half.at == at as u32) {
            words::release(self.halves.all.swap_remove(place).word);
            self.native = self.native.saturating_sub(1);
        }
    }

    /// The event of the program for what the kernel tells under a word. `None`: it is not for the program.
    pub fn half_event(&mut self, word: u64, events: u32) -> Option<epoll_event> {
        let entry = self.halves.all.iter().find(|half| half.word == word);
        let Some(entry) = entry.and_then(|half| self.entries.get_mut(half.at as usize)) else {
            // Another process has registered it in a native set that both have.
            return words::data_of(word).map(|data| epoll_event { events, u64: data });
        };
        if entry.state != EntryState::Watching {
            return None;
        }
        if entry.events & ONESHOT != 0 {
            entry.state = EntryState::Served;
        }
        if events & readiness::IN != 0
            && let Some(socket) = Socket::at(swap(entry.slot, self.own), entry.generation)
        {
            hints::kernel_said_ready(&socket);
        }
        Some(epoll_event { events, u64: entry.data })
    }

    /// EPOLLONESHOT: the slot has been reported, so the kernel half must not be. Without this the kernel would still
    /// show the native set as readable.
    #[cold]
    pub(super) fn disarm_half(&self, at: usize) {
        if let Some(half) = self.halves.of(at)
            && self.entries[at].name != EntryName::Closed
        {
            // The kernel reports errors and hang-ups unasked, so that one of them at most is told.
            let _ = native(self.halves.epfd, libc::EPOLL_CTL_MOD, half.fd, ONESHOT, half.word);
        }
    }

    /// The data of the entries that have a kernel half.
    pub fn data_of_halves(&self) -> impl Iterator<Item = u64> {
        self.halves.all.iter().filter_map(|half| self.entries.get(half.at as usize)).map(|entry| entry.data)
    }

    /// The slot of a listener has ended and its descriptors are the kernel's. From now on the kernel tells of them with
    /// the program's own data.
    pub fn leave_half(&mut self, socket: &Socket, ours: bool) {
        let current: Vec<_> = self.of_slot(self.key(socket)).filter(|at| self.is_current(*at, socket)).collect();
        for at in current {
            let (entry, epfd) = (self.entries[at], self.halves.epfd);
            if let Some(place) = self.halves.all.iter().position(|half| half.at == at as u32)
                && matches!(entry.name, EntryName::Descriptor(_))
            {
                let half = self.halves.all.swap_remove(place);
                let events = if entry.state == EntryState::Served { ONESHOT } else { entry.events };
                // An entry with EPOLLEXCLUSIVE cannot be modified.
                let _ = native(epfd, libc::EPOLL_CTL_DEL, half.fd, 0, 0);
                let _ = native(epfd, libc::EPOLL_CTL_ADD, half.fd, events, entry.data);
                words::release(half.word);
            }
            self.end(at, socket, ours);
        }
    }
}
