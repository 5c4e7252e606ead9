//! The bytes of a [`Stream`](crate::link::stream::Stream), in both directions: [`Plain`] is the socket itself,
//! [`Tls`](crate::link::tls::Tls) encrypts everything.

use crate::link::Broken;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::io;
use std::time::Duration;

/// How long the peer may take nothing.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes in both directions. One thread sends, another receives.
pub trait ByteStream: Send + Sync {
    /// Sends all of these bytes.
    fn send(&self, bytes: &[u8]) -> Result<(), Broken>;
    /// Receives bytes, and waits for them for this long at most. Returns how many have come, which may be none.
    fn receive(&self, to: &mut [u8], timeout: Duration) -> Result<usize, Broken>;
    /// Ends both directions. A thread that waits here returns.
    fn close(&self);
}

/// A connected socket, or any other descriptor to read from and write to, as it is.
pub struct Plain(OwnedFd);

impl Plain {
    /// Over this descriptor, which becomes non-blocking.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self(fd))
    }
    /// The descriptor.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }
    /// Waits until the descriptor is ready. False if it is not in time.
    pub(crate) fn await_event(&self, what: PollFlags, timeout: Duration) -> Result<bool, Broken> {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.0, what)], Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(Broken::Io(error.into())),
        }
    }
}

impl ByteStream for Plain {
    fn send(&self, bytes: &[u8]) -> Result<(), Broken> {
        let mut sent = 0;
        while sent < bytes.len() {
            match rustix::io::write(&self.0, &bytes[sent..]) {
                Ok(0) => return Err(Broken::Ended),
                Ok(count) => sent += count,
                Err(Errno::AGAIN) if !self.await_event(PollFlags::OUT, SEND_TIMEOUT)? => return Err(Broken::Stuck),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Broken::Ended),
                Err(error) => return Err(Broken::Io(error.into())),
            }
        }
        Ok(())
    }
    fn receive(&self, to: &mut [u8], timeout: Duration) -> Result<usize, Broken> {
        if !self.await_event(PollFlags::IN, timeout)? {
            return Ok(0);
        }
        match rustix::io::read(&self.0, to) {
            Ok(0) | Err(Errno::CONNRESET) => Err(Broken::Ended),
            Ok(count) => Ok(count),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(Broken::Io(error.into())),
        }
    }
    fn close(&self) {
        // A descriptor that is no socket ends when it is closed.
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }
}
