//! What goes out between the bytes of a send ring: parts of files, which never pass through the ring, TLS records that are no data, and
//! the keys of TLS. The kernel's socket is given them where their turn is.

use crate::group::ClientGroup;
use crate::sys;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towpath_ring::aside::{Aside, Secure};
use towpath_ring::command::Command;
use towpath_ring::{ByteRing, Slot};
use towpath_stack::ClientId;
use towpath_stack::files::SharedFile;
use towpath_stack::slots::Phase;

/// Most that wait on one connection.
const MOST: usize = 16;
/// Most files of a client at a time: each is a descriptor of the stack's.
const MOST_FILES: usize = 256;

/// One that waits for its turn.
enum Pending {
    File { at: u32, file: Arc<OwnedFd>, offset: u64, left: u32 },
    Record { at: u32, left: u32, kind: u8 },
}

impl Pending {
    fn at(&self) -> u32 {
        match self {
            Self::File { at, .. } | Self::Record { at, .. } => *at,
        }
    }
}

/// Those of a connection, in order.
#[derive(Default)]
pub struct Asides {
    queue: VecDeque<Pending>,
    /// The kernel encrypts.
    secured: bool,
}

/// What has gone of the first of them.
pub struct Gone {
    /// Bytes.
    pub count: usize,
    /// Were they in the ring?
    pub in_ring: bool,
}

impl Asides {
    /// Up to where the bytes of the ring from `sent` to `tail` go before the next of these.
    pub fn stop(&self, sent: u32, tail: u32) -> u32 {
        let next = self.queue.front().map(Pending::at);
        next.filter(|at| at.wrapping_sub(sent) < tail.wrapping_sub(sent)).unwrap_or(tail)
    }

    /// Is it the turn of one? The bytes of a record may still be missing.
    pub fn is_due(&self, sent: u32, tail: u32) -> bool {
        match self.queue.front() {
            None => false,
            Some(Pending::File { at, .. }) => *at == sent,
            Some(Pending::Record { at, left, .. }) => *at == sent && tail.wrapping_sub(sent) >= *left,
        }
    }

    /// Is all that is to be sent in the ring and the socket, and as it is?
    pub fn is_plain(&self) -> bool {
        self.queue.is_empty() && !self.secured
    }

    /// Bytes of files that have not gone.
    pub fn file_bytes(&self) -> u32 {
        let left = |pending: &Pending| match pending {
            Pending::File { left, .. } => *left,
            Pending::Record { .. } => 0,
        };
        self.queue.iter().map(left).sum()
    }

    /// Hands the kernel up to `most` bytes of the first, whose turn it is.
    pub fn go(&mut self, fd: BorrowedFd<'_>, ring: &ByteRing<'_>, most: u32) -> Result<Gone, i32> {
        let (gone, over) = match self.queue.front_mut() {
            None => return Ok(Gone { count: 0, in_ring: false }),
            Some(Pending::File { file, offset, left, .. }) => {
                let count = sys::send_file(fd, file.as_fd(), offset, most.min(*left))?;
                if count == 0 {
                    // It was longer when the application was told that this would be sent.
                    sys::abort_on_close(fd);
                    return Err(libc::EIO);
                }
                *left = left.saturating_sub(count as u32);
                (Gone { count, in_ring: false }, *left == 0)
            }
            Some(Pending::Record { at, left, kind }) => {
                let count = sys::send_record(fd, ring, *at, *left, *kind)?;
                *at = at.wrapping_add(count as u32);
                *left = left.saturating_sub(count as u32);
                (Gone { count, in_ring: true }, *left == 0)
            }
        };
        if over {
            self.queue.pop_front();
        }
        Ok(gone)
    }
}

/// Files that a client has shown, by number, with the number of the process that has.
#[derive(Default)]
pub struct ClientFiles {
    last: u32,
    files: HashMap<u32, (u32, Arc<OwnedFd>)>,
}

impl ClientFiles {
    /// Of a client that another stack has served, whose numbers it may still name: none of those is given again.
    pub fn of_another_life() -> Self {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        Self { last: (since as u32) << 7, ..Self::default() }
    }
    /// A process has ended.
    pub fn departed(&mut self, process: u32) {
        self.files.retain(|_, (owner, _)| *owner != process);
    }
}

impl ClientGroup {
    /// Takes a file in; its number.
    pub fn add_file(&mut self, id: ClientId, shared: SharedFile) -> io::Result<u32> {
        let gone = || io::Error::from_raw_os_error(libc::ENOTCONN);
        let SharedFile { process, replaces, file } = shared;
        self.forget_file(id, process, replaces);
        let index = self.index_of(id).ok_or_else(gone)?;
        let known = &mut self.client(index).ok_or_else(gone)?.own.files;
        if known.files.len() >= MOST_FILES {
            return Err(io::Error::from_raw_os_error(libc::ENFILE));
        }
        known.last = known.last.checked_add(1).ok_or_else(|| io::Error::from_raw_os_error(libc::ENFILE))?;
        known.files.insert(known.last, (process, Arc::new(file)));
        Ok(known.last)
    }

    /// A process does not need a file of its any more. What is to be sent of it is sent.
    pub fn forget_file(&mut self, id: ClientId, process: u32, file: u32) {
        let Some(client) = self.index_of(id).and_then(|index| self.client(index)) else { return };
        if client.own.files.files.get(&file).is_some_and(|(owner, _)| *owner == process) {
            client.own.files.files.remove(&file);
        }
    }

    /// The application says that something goes out of line.
    pub fn aside(&mut self, index: u32, slot: Slot, seq: u32, command: &Command) {
        // The options may have changed by the same entry of the queue.
        self.options(index, slot);
        let result = self.take_aside(index, slot, command);
        let Some(client) = self.client(index) else { return };
        client.slot(slot).command_seq = seq;
        client.answer(slot, seq, result.map_or_else(|errno| -errno, |()| 0));
        if result.is_ok() {
            self.notice(index, slot);
        }
    }

    fn take_aside(&mut self, index: u32, slot: Slot, command: &Command) -> Result<(), i32> {
        let words = self.believe(index, slot).map_err(|()| libc::EINVAL)?;
        let client = self.client(index).ok_or(libc::ENOTCONN)?;
        let aside = Aside::of(command).ok_or(libc::EINVAL)?;
        let file = match aside {
            // It does not know it any more: the process that had shown it has ended, or has given it back.
            Aside::File { file, .. } => {
                Some(Arc::clone(client.own.files.files.get(&file).map(|(_, file)| file).ok_or(libc::ESTALE)?))
            }
            _ => None,
        };
        let region = Arc::clone(&client.shared.region);
        let entry = client.slot(slot);
        if words.is_none() || entry.phase != Phase::Open || entry.own.closing || entry.own.shut {
            return Err(libc::ENOTCONN);
        }
        let own = &mut entry.own;
        let queue = &mut own.asides.queue;
        match (aside, file) {
            (Aside::File { at, .. } | Aside::Record { at, .. }, _) if at != own.tx_tail => return Err(libc::EINVAL),
            _ if queue.len() >= MOST => return Err(libc::EAGAIN),
            (Aside::File { at, offset, length, .. }, Some(file)) => {
                queue.push_back(Pending::File { at, file, offset, left: length });
                region.info(slot).file_bytes.store(own.asides.file_bytes(), Ordering::Release);
            }
            (Aside::Record { at, length, kind }, _) => queue.push_back(Pending::Record { at, left: length, kind }),
            (Aside::Secure { at, length, what }, _) => {
                if !queue.is_empty() || at != own.sent || at != own.tx_tail {
                    return Err(libc::EAGAIN);
                }
                let mut value = vec![0; length as usize];
                region.tx(slot).read(at, &mut value);
                let fd = own.fd.as_ref().ok_or(libc::ENOTCONN)?;
                secure(fd.as_fd(), what, &value)?;
                own.asides.secured = true;
            }
            (Aside::File { .. }, None) => return Err(libc::ESTALE),
        }
        Ok(())
    }
}

/// Linux's option of that level.
const TLS_TX: i32 = 1;

fn secure(fd: BorrowedFd<'_>, what: Secure, value: &[u8]) -> Result<(), i32> {
    let (level, name) = match what {
        Secure::Protocol => (libc::IPPROTO_TCP, libc::TCP_ULP),
        Secure::Send => (sys::SOL_TLS, TLS_TX),
        // What has been received is in the ring already, as it came.
        Secure::Receive => return Err(libc::EOPNOTSUPP),
    };
    if sys::set_bytes(fd, level, name, value) { Ok(()) } else { Err(sys::last_error()) }
}
