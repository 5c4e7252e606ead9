//! Commands to the stack, and its answers.

use crate::doorbell;
use crate::liveness::LIFE_CHECK;
use crate::memory;
use crate::private::used;
use crate::session::Session;
use crate::socket::Socket;
use crate::sys::Sys;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use libc::c_int;
use std::time::Instant;
use towpath_ring::command::{Command, given_to, joined_at, not_ours, not_ours_because, op};
use towpath_ring::control::Request;
use towpath_ring::lines::{app_flags, state};
use towpath_ring::report::Count;
use towpath_ring::{Slot, lines, wake};

/// How long a command may stay without an answer. The slow path answers at once, so after this time the service is
/// stuck.
const COMMAND_TIME: Duration = Duration::from_secs(10);

/// Why the stack does not take a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The call fails.
    Failed(i32),
    /// The kernel has to serve it, for this reason.
    Kernel(Count),
    /// The service's other stack of this number has to serve it.
    OtherStack(u32),
    /// The service's stack of this number may join it to a listener of another network namespace.
    Join(u32),
}

/// Why a command was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The stack does not carry that.
    NotCarried,
    /// An errno.
    Errno(i32),
}

impl Failure {
    /// The errno; `not_carried` if the stack does not carry that.
    pub fn errno_or(self, not_carried: i32) -> i32 {
        match self {
            Self::NotCarried => not_carried,
            Self::Errno(errno) => errno,
        }
    }
}

/// Posts a command for a claimed slot and waits until the stack has decided.
pub fn post(session: &Session, slot: Slot, command: &Command) -> Result<(), Failure> {
    let seq = session.region.command(slot).post(command);
    doorbell::notify_commands(session, slot);
    decided(session, slot, seq).map_err(Failure::Errno)?;
    match session.region.stack(slot).command_result.load(Ordering::Relaxed) {
        0 => Ok(()),
        result if not_ours_because(result).is_some() => Err(Failure::NotCarried),
        errno => Err(Failure::Errno(errno.saturating_neg().clamp(1, 4095))),
    }
}

/// Has the stack update the information line of a connection. If it cannot, the line stays as it is.
pub fn refresh(socket: &Socket) {
    let Some(_commanding) = socket.private().commanding.lock() else { return };
    if !socket.is_gone() && socket.direct().is_none() && socket.state() == state::ESTABLISHED {
        let _ = post(socket.session, socket.slot, &Command { op: op::REFRESH, ..Command::default() });
    }
}

/// `listen` on a listener: it has this backlog from now on.
pub fn change_backlog(socket: &Socket, backlog: u32) -> Sys<()> {
    let _commanding = socket.private().commanding.lock().ok_or(libc::EAGAIN)?;
    // All else stays as it was: the stack may take the command for the listener as a whole.
    let (_, listening) = socket.session.region.command(socket.slot).read();
    let command = Command { op: op::LISTEN, backlog, ..listening };
    post(socket.session, socket.slot, &command).map_err(|failure| failure.errno_or(libc::EINVAL))
}

/// Sequence number of the next command for a claimed slot.
pub fn next_seq(session: &Session, slot: Slot) -> u32 {
    session.region.command(slot).seq.load(Ordering::Relaxed).wrapping_add(1).max(1)
}

/// Waits for the answer. Signals do not interrupt it: the stack answers at once, only the handshake takes long.
fn decided(session: &Session, slot: Slot, seq: u32) -> Sys<()> {
    let (app, stack): (&lines::AppLine, &lines::StackLine) = (session.region.app(slot), session.region.stack(slot));
    let done = || stack.command_done.load(Ordering::Acquire) == seq;
    if wake::spin_until(session.spin_us, done) {
        return Ok(());
    }
    let give_up = Instant::now() + COMMAND_TIME;
    app.sleepers.fetch_add(1, Ordering::SeqCst);
    wake::about_to_sleep::<AtomicU32>();
    let result = loop {
        let seen = stack.event_seq.load(Ordering::Acquire);
        if done() {
            break Ok(());
        }
        let woken = wake::futex_wait(&stack.event_seq, seen, Some(LIFE_CHECK));
        if matches!(woken, Ok(wake::Woken::TimedOut)) && !session.check_alive() {
            break Err(libc::ENETDOWN);
        }
        if Instant::now() > give_up {
            break Err(libc::ETIMEDOUT);
        }
    };
    app.sleepers.fetch_sub(1, Ordering::SeqCst);
    result
}

/// Posts the command for a slot that has been claimed and reset, with the kernel socket that reserves its port. On
/// any failure the slot is let go.
pub fn open_socket(
    session: &'static Session,
    slot: Slot,
    command: &Command,
    reservation: Option<c_int>,
) -> Result<Socket, Refusal> {
    let release = |slot: Slot| session.private(slot).used.store(used::NO, Ordering::Release);
    if let Some(fd) = reservation
        && let Err(_dead) = {
            let (slot, seq) = (slot.raw(), next_seq(session, slot));
            let Command { remote_addr, remote_port, .. } = *command;
            let request = match command.op {
                op::JOIN => Request::Join { slot, seq, remote_addr, remote_port },
                op => Request::Reserve { slot, seq, listens: op == op::LISTEN },
            };
            session.send(&request, &[fd])
        }
    {
        release(slot);
        return Err(Refusal::Kernel(Count::ServiceGone));
    }
    // From the stack's answer until the service has the socketpair, only this process knows of the socket.
    session.region.command(slot).holder.store(session.process(), Ordering::Relaxed);
    if command.op == op::LISTEN {
        memory::expect_children(session, None);
    }
    match post(session, slot, command) {
        Ok(()) => {}
        // No answer for too long. The state of the slot is unknown, so it is not used again.
        Err(Failure::Errno(libc::ETIMEDOUT))
            if session.region.stack(slot).command_done.load(Ordering::Acquire)
                != session.region.command(slot).seq.load(Ordering::Relaxed) =>
        {
            return Err(Refusal::Failed(libc::ETIMEDOUT));
        }
        Err(_) if session.is_dead() => return Err(Refusal::Kernel(Count::ServiceGone)),
        Err(why) => {
            let result = session.region.stack(slot).command_result.load(Ordering::Relaxed);
            release(slot);
            return Err(match why {
                Failure::NotCarried => why_not_ours(result),
                Failure::Errno(errno) => Refusal::Failed(errno),
            });
        }
    }
    let generation = session.region.stack(slot).generation.load(Ordering::Acquire);
    let socket = Socket { session, slot, generation };
    socket.adopt();
    memory::begin(session, slot);
    if socket.is_out_of_reach() {
        socket.app().flags.store(app_flags::CLOSED | app_flags::ABORT, Ordering::Release);
        release(slot);
        doorbell::notify_commands(session, slot);
        return Err(Refusal::Failed(libc::ENOBUFS));
    }
    Ok(socket)
}

/// The stack no longer ends the socket when this process exits.
pub fn release_holder(socket: &Socket) {
    socket.session.region.command(socket.slot).holder.store(0, Ordering::Release);
}

/// The reason in the stack's answer for not carrying something.
fn why_not_ours(result: i32) -> Refusal {
    if let Some(stack) = given_to(result) {
        return Refusal::OtherStack(stack);
    }
    if let Some(stack) = joined_at(result) {
        return Refusal::Join(stack);
    }
    Refusal::Kernel(match not_ours_because(result) {
        Some(not_ours::NO_LISTENER) => Count::NoListener,
        Some(not_ours::POLICY) => Count::Policy,
        Some(not_ours::FIREWALL) => Count::Firewall,
        Some(not_ours::ADDRESS) => Count::Address,
        Some(not_ours::NAMESPACE) => Count::Namespace,
        _ => Count::Elsewhere,
    })
}
