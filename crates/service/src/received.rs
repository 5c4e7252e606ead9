//! Descriptors that clients have sent are closed without waiting.
//!
//! The last close of a TCP socket waits for its peer as long as `SO_LINGER` says, and the client sets that. A connection
//! that is closed closes the descriptors in it that nobody has received, in the thread that closes it. So what is left
//! in a connection is thrown away first, by a thread that no close can keep ([`crate::interrupted`]).

use crate::interrupted::Interrupted;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvFlags, Shutdown, SocketFlags, SocketType, sockopt};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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
/// it are not received: the close of a received one may wait for the server of its file system, the end of one that
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

/// Most connections that are closed at one time by threads of their own.
const MOST_CLOSING: usize = 64;

static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// [`finish`] and close in a thread of its own, for a thread that must not wait: a message with many sockets that linger
/// takes a millisecond for each. If there are too many such threads, the connection stays open.
pub fn finish_apart(connection: Arc<OwnedFd>) {
    let connection = Arc::new(Mutex::new(Some(connection)));
    let closing = CLOSING.fetch_add(1, Ordering::Relaxed);
    let taken = Arc::clone(&connection);
    let close = move || {
        let connection = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(connection) = connection {
            finish(connection.as_fd());
        }
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    };
    if closing >= MOST_CLOSING || std::thread::Builder::new().name("refused".into()).spawn(close).is_err() {
        CLOSING.fetch_sub(1, Ordering::Relaxed);
        std::mem::forget(connection);
    }
}

/// Ends a listening socket: nobody connects any more, and those that wait are finished.
pub fn end_listening(listener: &OwnedFd) {
    let _ = rustix::net::shutdown(listener, Shutdown::Both);
    while let Ok(connection) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
        finish(connection.as_fd());
    }
}
