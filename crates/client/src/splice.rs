//! Splicing: the stack passes on what comes on one connection of the program to another one, and back. The program's rings
//! are not used for it any more.

use crate::command;
use crate::socket::Socket;
use crate::stack_info;
use crate::sys::Sys;
use core::time::Duration;
use std::time::Instant;
use towpath_ring::command::{Command, op};
use towpath_ring::lines::state;

/// How long a call that may wait gives the peers to acknowledge what was sent.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(20);
/// After this time such a call looks for them, then after twice the time, and so on. No event tells of an acknowledgement.
const LOOK: Duration = Duration::from_micros(100);

/// Splices two connections. EAGAIN: there are bytes that the program has not read, or that a peer has not acknowledged.
/// `may_wait`: the call waits a little for acknowledgements.
///
/// The stack is asked even if such bytes can be seen from here. Only its refusal makes it hold the peers back, so that the
/// next call finds nothing new. It also says at once if it splices nothing.
pub fn splice(one: &Socket, other: &Socket, may_wait: bool) -> Sys<()> {
    if one.number() == other.number() && one.generation == other.generation {
        return Err(libc::EINVAL);
    }
    let both = [one, other];
    both.into_iter().try_for_each(may_be_spliced)?;
    if !core::ptr::eq(one.session, other.session) {
        return Err(libc::EOPNOTSUPP);
    }
    let (until, mut look) = (Instant::now() + ACKNOWLEDGED_WITHIN, LOOK);
    loop {
        let answer = ask(op::SPLICE, one, other);
        if answer != Err(libc::EAGAIN) || !may_wait {
            return answer;
        }
        loop {
            if Instant::now() >= until || both.into_iter().any(|socket| socket.readable() != 0) {
                return answer;
            }
            std::thread::sleep(look.min(until.saturating_duration_since(Instant::now())));
            look *= 2;
            if both.into_iter().all(|socket| stack_info::queued(socket).0 == 0) {
                break;
            }
        }
    }
}

/// [`splice`], after which the stack shows how much has passed. It waits for nothing but the answer.
pub fn splice_told(one: &Socket, other: &Socket) -> Sys<()> {
    [one, other].into_iter().try_for_each(may_be_spliced)?;
    if !core::ptr::eq(one.session, other.session) {
        return Err(libc::EOPNOTSUPP);
    }
    ask(op::SPLICE_TOLD, one, other)
}

/// Is it a connection of a stack that may know of splicing?
fn may_be_spliced(socket: &Socket) -> Sys<()> {
    let view = socket.view();
    match view.state() {
        // A stack with buffers of its own has its connections in a kernel, and would not answer.
        state::ESTABLISHED if view.direct.is_some() || stack_info::has_buffers(socket) => Err(libc::EOPNOTSUPP),
        state::ESTABLISHED => Ok(()),
        state::LISTENING => Err(libc::EOPNOTSUPP),
        _ => Err(libc::ENOTCONN),
    }
}

/// Posts the command.
fn ask(op: u32, one: &Socket, other: &Socket) -> Sys<()> {
    let _commanding = one.private().commanding.lock().ok_or(libc::EAGAIN)?;
    if one.is_gone() {
        return Err(libc::ENOTCONN);
    }
    let command = Command { op, remote_port: other.slot.raw(), ..Command::default() };
    command::post(one.session, one.slot, &command).map_err(|failure| failure.errno_or(libc::EOPNOTSUPP))
}
