//! Accepting connections, also where descriptors have run out.
//!
//! Without a descriptor a connection cannot even be refused, and its listener stays readable. So one is held spare: it
//! makes room for the connection, which is refused with an answer. Where that fails as well, the listeners rest.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::time::{Duration, Instant};

/// How long the listeners rest when nothing can be accepted.
const REST: Duration = Duration::from_millis(100);

/// Connections accepted from one listener before the others are looked at.
pub const BATCH: usize = 64;

/// What a listener has given.
#[derive(Debug)]
pub enum Accepted {
    /// A connection.
    Connection(OwnedFd),
    /// A connection in the place of the spare descriptor. It must be refused and closed.
    ToRefuse(OwnedFd),
    /// Nothing waits, or nothing can be accepted now.
    Nothing,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Acceptor {
    spare: Option<OwnedFd>,
    rests_until: Option<Instant>,
}

impl Acceptor {
    /// Opens the spare descriptor.
    pub fn new() -> Self {
        Self { spare: open_spare(), rests_until: None }
    }

    /// Accepts one connection from a listener that does not block.
    pub fn accept(&mut self, listener: &impl AsFd, flags: SocketFlags) -> Accepted {
        if self.spare.is_none() {
            self.spare = open_spare();
        }
        loop {
            match rustix::net::accept_with(listener, flags) {
                Ok(socket) => return Accepted::Connection(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return Accepted::Nothing,
                // The kernel takes a descriptor before it looks whether a connection waits.
                Err(Errno::MFILE | Errno::NFILE) if self.spare.take().is_some() => break,
                Err(_) => return self.rest(),
            }
        }
        match rustix::net::accept_with(listener, flags) {
            Ok(socket) => Accepted::ToRefuse(socket),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Accepted::Nothing,
            // Another thread has taken the descriptor that was free for a moment.
            Err(_) => self.rest(),
        }
    }

    fn rest(&mut self) -> Accepted {
        self.rests_until = Some(Instant::now() + REST);
        Accepted::Nothing
    }

    /// The time for which the listeners must not be waited for. `None` if they can accept.
    pub fn rests(&mut self) -> Option<Duration> {
        let left = self.rests_until?.saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.rests_until = None;
            return None;
        }
        Some(left)
    }
}

fn open_spare() -> Option<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}
