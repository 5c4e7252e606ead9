//! Descriptors that clients have sent are closed without waiting.
//!
//! The last close of a TCP socket waits for its peer as long as `SO_LINGER` says, and the client sets that. A connection
//! that is closed closes the descriptors in it that nobody has received, in the thread that closes it. So what is left
//! in a connection is thrown away first, by a thread that no close can keep ([`crate::interrupted`]).

use crate::interrupted::Interrupted;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvFlags, Shutdown, SocketFlags, SocketType, sockopt};
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes received at a time.
const CHUNK: usize = 4096;

/// The close of this descriptor no longer waits, if it is a TCP socket.
pub fn end_linger(descriptor: impl AsFd) {
    if matches!(sockopt::socket_domain(&descriptor), Ok(AddressFamily::INET | AddressFamily::INET6)) {
        let _ = sockopt::set_socket_linger(&descriptor, None);
    }
}

/// A client's socket whose close does not wait.
#[derive(Debug)]
pub struct HeldSocket(OwnedFd);

impl HeldSocket {
    /// Holds the socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }
    /// The socket.
    pub fn socket(&self) -> &OwnedFd {
        &self.0
    }
}

impl Drop for HeldSocket {
    fn drop(&mut self) {
        // The client may have set it again since.
        end_linger(&self.0);
    }
}

/// Closes a connection for its peer, and whatever it still holds. What has been sent to the peer arrives. Descriptors in
/// it are not received. The close of a received one may wait for the server of its file system; the end of one that
/// nobody has received does not.
pub fn finish(connection: BorrowedFd<'_>) {
    let _ = rustix::net::shutdown(connection, Shutdown::Both);
    // A packet has a sender, the end has none. So an empty packet does not look like the end.
    let packets = sockopt::socket_type(connection) == Ok(SocketType::SEQPACKET);
    let _ = sockopt::set_socket_passcred(connection, packets);
    let _interrupted = Interrupted::begin();
    let (mut bytes, mut space) = ([0; CHUNK], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))]);
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(connection, into, &mut control, RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC) {
            Ok(received) if received.bytes > 0 || packets && control.drain().next().is_some() => {}
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

/// Most threads that close connections at one time.
const MOST_CLOSING: usize = 64;

/// Connections to be closed, and the threads that do it.
#[derive(Debug)]
struct Closing {
    threads: usize,
    waiting: VecDeque<Arc<OwnedFd>>,
}

static CLOSING: Mutex<Closing> = Mutex::new(Closing { threads: 0, waiting: VecDeque::new() });

fn closing() -> MutexGuard<'static, Closing> {
    CLOSING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// [`finish`] and close in another thread, for a thread that must not wait: a message with many sockets that linger takes
/// a millisecond for each. The peer is told at once. The connection waits for a thread if there are too many.
pub fn finish_apart(connection: Arc<OwnedFd>) {
    let _ = rustix::net::shutdown(&*connection, Shutdown::Both);
    let mut all = closing();
    all.waiting.push_back(connection);
    if all.threads >= MOST_CLOSING {
        return;
    }
    all.threads += 1;
    drop(all);
    // Without a thread it waits for the next one.
    if std::thread::Builder::new().name("refused".into()).spawn(close_all).is_err() {
        closing().threads -= 1;
    }
}

/// Closes what waits.
fn close_all() {
    loop {
        let mut all = closing();
        let Some(connection) = all.waiting.pop_front() else {
            all.threads -= 1;
            return;
        };
        drop(all);
        finish(connection.as_fd());
        drop(connection);
    }
}

/// Ends a listening socket: nobody connects any more, and those that wait are finished.
pub fn end_listening(listener: &OwnedFd) {
    let _ = rustix::net::shutdown(listener, Shutdown::Both);
    while let Ok(connection) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
        finish(connection.as_fd());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::net::socketpair;
    use std::time::{Duration, Instant};

    #[test]
    fn many_connections_at_once_are_all_closed() {
        let pair = || socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let (peers, weak): (Vec<OwnedFd>, Vec<_>) = (0..10 * MOST_CLOSING)
            .map(|_| {
                let (ours, theirs) = pair();
                let ours = Arc::new(ours);
                let weak = Arc::downgrade(&ours);
                finish_apart(ours);
                (theirs, weak)
            })
            .unzip();
        for peer in &peers {
            assert_eq!(rustix::io::read(peer, &mut [0; 1]), Ok(0), "it is told");
        }
        let end = Instant::now() + Duration::from_secs(60);
        while weak.iter().any(|one| one.strong_count() > 0) {
            assert!(Instant::now() < end, "they are closed");
            std::thread::yield_now();
        }
    }
}
