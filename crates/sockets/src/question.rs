//! Questions to the stack, by a slot that nobody uses.

use crate::address::Address;
use crate::doors;
use crate::private::used;
use crate::session::Session;
use core::sync::atomic::Ordering;
use towpath_ring::command::{Command, V6ONLY, op};

/// Is this an address of the stack's network?
pub fn has(session: &'static Session, (local_addr, _): Address) -> bool {
    ask(session, &Command { op: op::HAS, local_addr, ..Command::default() }) == Some(0)
}

/// Has a connection or a listener of the stack this port, so that nobody may bind it? Only a stack that has sockets of its own says so.
pub fn is_taken(session: &'static Session, (local_addr, port): Address, six_only: bool) -> bool {
    let flags = if six_only { V6ONLY } else { 0 };
    let command = Command { op: op::BIND, local_addr, local_port: port.into(), flags, ..Command::default() };
    ask(session, &command) == Some(libc::EADDRINUSE)
}

/// The errno that is the answer, 0 = yes; `None` = there is none.
fn ask(session: &'static Session, command: &Command) -> Option<i32> {
    let slot = session.claim_slot()?;
    let answer = doors::command(session, slot, command);
    // Without an answer nobody knows what the slot is; it is not used again.
    if answer != Err(Some(libc::ETIMEDOUT)) {
        session.private(slot).used.store(used::NO, Ordering::Release);
    }
    answer.map_or_else(|errno| errno, |()| Some(0))
}
