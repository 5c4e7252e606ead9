//! Descriptors that clients have sent are closed without waiting.
//!
//! The last close of a TCP socket waits for its peer as long as `SO_LINGER` says, and the client sets that. A connection
//! that is closed closes the descriptors in it that nobody has received, in the thread that closes it. So what is left
//! in a connection is received first, and no socket lingers when it is closed.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, Shutdown, SocketFlags, sockopt,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most descriptors of one message (Linux: `SCM_MAX_FD`).
const MAX_FDS: usize = 253;
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
}

impl Drop for HeldSocket {
    fn drop(&mut self) {
        // The client may have set it again since.
        end_linger(&self.0);
    }
}

/// Closes a connection for its peer, and whatever it still holds. What has been sent to the peer arrives.
pub fn finish(connection: BorrowedFd<'_>) {
    let _ = rustix::net::shutdown(connection, Shutdown::Both);
    let (mut bytes, mut space) = ([0; CHUNK], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))]);
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(connection, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptors.for_each(|descriptor| drop(HeldSocket::new(descriptor)));
            }
        }
        match received {
            Ok(received) if received.bytes > 0 => {}
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

/// Most connections that are closed at one time by threads of their own.
const MOST_CLOSING: usize = 64;

static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// [`finish`] and close in a thread of its own, for a thread that must not wait: a call on a descriptor in the connection
/// may never return. If too many such threads hang, the connection stays open.
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
