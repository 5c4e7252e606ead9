//! Messages on the registration socket (`SOCK_SEQPACKET`, one fixed-size packet each, descriptors by `SCM_RIGHTS`).
//!
//! The application speaks first. Only `Hello` and `Context` have an answer.

use rustix::fd::{BorrowedFd, OwnedFd};
use std::io;

/// Application to service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// First message. `join` = 0 asks for a new region; else it is the token of the region of the parent process
    /// (after fork) and the reply carries the same region again.
    Hello {
        /// [`crate::layout::VERSION`] of the library.
        version: u32,
        /// Token of an existing region or 0.
        join: u64,
    },
    /// The stack's end of the socketpair of a slot (one descriptor). Its hang-up means that every descriptor of that
    /// socket, in every process, is closed.
    Attach {
        /// Slot number.
        slot: u32,
        /// Generation the descriptor belongs to.
        generation: u32,
    },
    /// The bound, not listening kernel TCP socket that reserves the port of the LISTEN or CONNECT command which follows
    /// on this slot (one descriptor).
    Reserve {
        /// Slot number.
        slot: u32,
    },
    /// Asks for an event context.
    Context,
    /// Gives a context back.
    DropContext {
        /// Its number.
        context: u32,
    },
}

/// Service to application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Answer to `Hello`: descriptors are the region memfd, then one doorbell eventfd per data queue (core), then the
    /// command queue's doorbell eventfd.
    Welcome {
        /// The region's sizes.
        geometry: crate::Geometry,
        /// For `Hello { join }` of a forked child.
        token: u64,
    },
    /// Answer to `Context`: one descriptor, the context's wake-up eventfd (non-blocking).
    Context {
        /// Its number, below `geometry.contexts`.
        context: u32,
    },
    /// Not admitted, or no room; the connection is closed after it.
    Refused {
        /// errno that fits (EPERM, ENFILE, EPROTO ...).
        errno: i32,
    },
}

/// Sends one request with its descriptors.
pub fn send_request(socket: BorrowedFd<'_>, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let _ = (socket, request, fds);
    todo!()
}
/// Receives one request; `Ok(None)` at end of file.
pub fn recv_request(socket: BorrowedFd<'_>) -> io::Result<Option<(Request, Vec<OwnedFd>)>> {
    let _ = socket;
    todo!()
}
/// Sends one reply with its descriptors.
pub fn send_reply(socket: BorrowedFd<'_>, reply: &Reply, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let _ = (socket, reply, fds);
    todo!()
}
/// Receives one reply (blocking).
pub fn recv_reply(socket: BorrowedFd<'_>) -> io::Result<(Reply, Vec<OwnedFd>)> {
    let _ = socket;
    todo!()
}
