//! Telling the stack: data doorbells and commands.

use crate::lock::Guard;
use crate::session::Session;
use crate::socket::Socket;
use crate::sys::Sys;
use crate::view::View;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::time::Instant;
use towpath_ring::command::{Command, not_ours_because, op};
use towpath_ring::dirty::DirtySet;
use towpath_ring::lines::state;
use towpath_ring::{Slot, lines, wake};

/// How long a command may take to be decided. It is answered by the slow path, which does nothing that takes time
/// before; longer than this and the service is stuck.
const COMMAND_TIME: Duration = Duration::from_secs(10);

/// Tells the stack that the application's line of the socket has changed; of a direct connection, the other side, and the stack
/// only that it is over.
pub fn ring(socket: &Socket) {
    let session = socket.session;
    if let Some(direct) = socket.direct() {
        let flags = socket.app().flags.load(Ordering::Acquire);
        direct.show_flags(session, flags);
        if flags & lines::app_flags::CLOSED != 0 {
            ring_commands(session, socket.slot);
        }
        return;
    }
    ring_stack(&socket.view(), None);
}

/// The same of a connection that is not direct. `held` is any lock that the calling thread has.
pub fn ring_stack(view: &View, held: Option<&Guard<'_>>) {
    let session = view.session;
    let cores = session.geometry.cores as usize;
    let queue = (view.stack.queue.load(Ordering::Relaxed) as usize).min(cores - 1);
    let doors = session.region.doors(queue);
    let writer = &session.header().queues[queue];
    let pushing = held.map_or_else(|| writer.lock.lock(), |held| held.and(&writer.lock));
    // Held by this very thread: we are in a signal handler in the middle of a push. The bell rings anyway.
    if let Some(pushing) = pushing {
        push(session, queue, doors, &pushing, view.slot);
    }
    if doors.must_ring() {
        session.ring_bell(queue);
    }
}

/// Puts a slot into a queue, under its writer's lock. All processes of the client write it, and each may be killed in the middle.
#[inline]
fn push(session: &Session, queue: usize, set: DirtySet<'_>, locked: &Guard<'_>, slot: Slot) {
    let words = |slot| {
        let (app, stack) = (session.region.app(slot), session.region.stack(slot));
        let commands = queue == session.geometry.cores as usize;
        if commands { (&app.ctl_seq, &stack.ctl_ack) } else { (&app.door_seq, &stack.door_ack) }
    };
    let pushing = &session.header().queues[queue].pushing;
    let mut tail = set.written();
    if locked.was_abandoned()
        && let Some(unfinished) = session.region.slot(pushing.load(Ordering::Relaxed).wrapping_sub(1))
    {
        // Counted as queued, it may not be; a second entry does no harm.
        let (seq, ack) = words(unfinished);
        if seq.load(Ordering::Relaxed) != ack.load(Ordering::Acquire) {
            set.push_again(&mut tail, unfinished);
        }
    }
    pushing.store(slot.raw() + 1, Ordering::Relaxed);
    let (seq, ack) = words(slot);
    set.push(&mut tail, slot, seq, ack);
    pushing.store(0, Ordering::Release);
}

/// Gives a command for a claimed slot and waits until it is decided: `Ok` = accepted, `Err` = a positive errno or
/// `None` = the stack does not carry that.
pub fn command(session: &Session, slot: Slot, command: &Command) -> Result<(), Option<i32>> {
    let seq = session.region.command(slot).post(command);
    ring_commands(session, slot);
    decided(session, slot, seq).map_err(Some)?;
    match session.region.stack(slot).command_result.load(Ordering::Relaxed) {
        0 => Ok(()),
        result if not_ours_because(result).is_some() => Err(None),
        errno => Err(Some(errno.saturating_neg().clamp(1, 4095))),
    }
}

/// Has the stack bring the information line of a connection up to date. If it cannot, the line stays as old as it is.
pub fn refresh(socket: &Socket) {
    let Some(_commanding) = socket.private().commanding.lock() else { return };
    if !socket.is_gone() && socket.direct().is_none() && socket.state() == state::ESTABLISHED {
        let _ = command(socket.session, socket.slot, &Command { op: op::REFRESH, ..Command::default() });
    }
}

/// Sequence number of the next command for a claimed slot.
pub fn next_seq(session: &Session, slot: Slot) -> u32 {
    session.region.command(slot).seq.load(Ordering::Relaxed).wrapping_add(1).max(1)
}

/// Tells the stack that a slot's command or options have changed.
pub fn ring_commands(session: &Session, slot: Slot) {
    let queue = session.geometry.cores as usize;
    let commands = session.region.commands();
    let writer = &session.header().queues[queue];
    if let Some(pushing) = writer.lock.lock() {
        push(session, queue, commands, &pushing, slot);
    }
    if commands.must_ring() {
        session.ring_bell(queue);
    }
}

/// Waits for the answer. Signals do not interrupt: the answer comes at once, only the handshake may take long.
fn decided(session: &Session, slot: Slot, seq: u32) -> Sys<()> {
    let (app, stack): (&lines::AppLine, &lines::StackLine) = (session.region.app(slot), session.region.stack(slot));
    let done = || stack.command_done.load(Ordering::Acquire) == seq;
    if wake::spin_until(session.spin_us, done) {
        return Ok(());
    }
    let give_up = Instant::now() + COMMAND_TIME;
    app.sleepers.fetch_add(1, Ordering::SeqCst);
    wake::about_to_sleep::<core::sync::atomic::AtomicU32>();
    let result = loop {
        let seen = stack.event_seq.load(Ordering::Acquire);
        if done() {
            break Ok(());
        }
        let woken = wake::futex_wait(&stack.event_seq, seen, Some(crate::session::LIFE_CHECK));
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

/// After a change by this side that others of the program may be waiting for (`shutdown`): wakes those who sleep on the
/// socket. Only the stack changes the event word, so they wake, look, and sleep on if it is not for them.
pub fn wake_own(socket: &Socket) {
    if let Some(direct) = socket.direct() {
        if wake::must_wake(&direct.own().line.sleepers) {
            wake::futex_wake(&direct.own().event_seq);
        }
        return;
    }
    if wake::must_wake(&socket.app().sleepers) {
        wake::futex_wake(&socket.stack().event_seq);
    }
}
