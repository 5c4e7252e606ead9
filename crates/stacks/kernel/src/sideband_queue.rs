//! The sideband entries of one connection: parts of files and TLS records that go out between the bytes of its send
//! ring.

use crate::client_files::ShownFile;
use crate::sys;
use rustix::fd::BorrowedFd;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use towpath_ring::ByteRing;

/// An entry that waits for its position.
pub enum Pending {
    File { at: u32, file: Arc<ShownFile>, offset: u64, left: u32 },
    ConnectionRecord { at: u32, left: u32, kind: u8 },
}

impl Pending {
    fn at(&self) -> u32 {
        match self {
            Self::File { at, .. } | Self::ConnectionRecord { at, .. } => *at,
        }
    }
}

/// The entries of a connection, in order.
#[derive(Default)]
pub struct SidebandQueue {
    pub queue: VecDeque<Pending>,
    /// The kernel encrypts what the socket sends.
    pub secured: bool,
}

/// The part of an entry that was sent.
pub struct SentPart {
    /// Bytes.
    pub count: usize,
    /// True if these bytes were in the ring.
    pub in_ring: bool,
}

impl SidebandQueue {
    /// End of the ring's bytes that go before the next entry, within `sent..tail`.
    pub fn next_stop(&self, sent: u32, tail: u32) -> u32 {
        let next = self.queue.front().map(Pending::at);
        next.filter(|at| at.wrapping_sub(sent) < tail.wrapping_sub(sent)).unwrap_or(tail)
    }

    /// True if the next entry is due at `sent` and complete.
    pub fn is_due(&self, sent: u32, tail: u32) -> bool {
        match self.queue.front() {
            None => false,
            Some(Pending::File { at, .. }) => *at == sent,
            Some(Pending::ConnectionRecord { at, left, .. }) => *at == sent && tail.wrapping_sub(sent) >= *left,
        }
    }

    /// True if the ring and the socket hold everything that is to be sent, unencrypted.
    pub fn is_plain(&self) -> bool {
        self.queue.is_empty() && !self.secured
    }

    /// Bytes of files that have not been sent.
    pub fn file_bytes(&self) -> u32 {
        let left = |pending: &Pending| match pending {
            Pending::File { left, .. } => *left,
            Pending::ConnectionRecord { .. } => 0,
        };
        self.queue.iter().map(left).sum()
    }

    /// Hands the kernel up to `most` bytes of the first entry, which must be due.
    pub fn send_next(&mut self, fd: BorrowedFd<'_>, ring: &ByteRing<'_>, most: u32) -> Result<SentPart, i32> {
        let (sent, over) = match self.queue.front_mut() {
            None => return Ok(SentPart { count: 0, in_ring: false }),
            Some(Pending::File { file, offset, left, .. }) => {
                let count = sys::send_file(fd, file.fd.as_fd(), offset, most.min(*left))?;
                if count == 0 {
                    // The file was longer when the stack promised the application to send this part.
                    sys::abort_on_close(fd);
                    return Err(libc::EIO);
                }
                *left = left.saturating_sub(count as u32);
                (SentPart { count, in_ring: false }, *left == 0)
            }
            Some(Pending::ConnectionRecord { at, left, kind }) => {
                let count = sys::send_record(fd, ring, *at, *left, *kind)?;
                *at = at.wrapping_add(count as u32);
                *left = left.saturating_sub(count as u32);
                (SentPart { count, in_ring: true }, *left == 0)
            }
        };
        if over {
            self.queue.pop_front();
        }
        Ok(sent)
    }
}
