//! Queries to the stack, as commands on a free slot.

use crate::address::Address;
use crate::command::{self, Failure};
use crate::private::used;
use crate::session::Session;
use core::sync::atomic::Ordering;
use towpath_ring::command::{Command, V6ONLY, op};

/// Does the stack's network have this address?
pub fn has(session: &'static Session, (local_addr, _): Address) -> bool {
    ask(session, &Command { op: op::HAS, local_addr, ..Command::default() }) == Some(0)
}

/// Does a connection or a listener of the stack use this port, so that it cannot be bound? Only a stack with sockets of
/// its own can say yes.
pub fn is_taken(session: &'static Session, (local_addr, port): Address, six_only: bool) -> bool {
    let flags = if six_only { V6ONLY } else { 0 };
    let command = Command { op: op::BIND, local_addr, local_port: port.into(), flags, ..Command::default() };
    ask(session, &command) == Some(libc::EADDRINUSE)
}

/// The errno in the answer, 0 = yes; `None` = no answer.
fn ask(session: &'static Session, command: &Command) -> Option<i32> {
    let slot = session.claim_slot()?;
    let answer = command::post(session, slot, command);
    // Without an answer the state of the slot is unknown, so it is not used again.
    if answer != Err(Failure::Errno(libc::ETIMEDOUT)) {
        session.private(slot).used.store(used::NO, Ordering::Release);
    }
    match answer {
        Ok(()) => Some(0),
        Err(Failure::Errno(errno)) => Some(errno),
        Err(Failure::NotCarried) => None,
    }
}
