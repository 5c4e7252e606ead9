//! Telling the stack: data doorbells and commands.

use crate::lock::Guard;
use crate::private;
use crate::session::Session;
use crate::socket::Socket;
use crate::sys::Sys;
use crate::view::View;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;
use towpath_ring::command::{Command, not_ours_because, op};
use towpath_ring::dirty::{DirtySet, full_fence, is_queued};
use towpath_ring::lines::state;
use towpath_ring::{AppLine, Slot, StackLine, lines, wake};

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
    ring_stack(&socket.view());
}

/// The same of a connection that is not direct.
#[inline(always)]
pub fn ring_stack(view: &View) {
    if !is_queued(&view.app.door_seq, &view.stack.door_ack) {
        // Queueing fences by itself.
        return ring_data(view.session, view.slot, view.app, view.stack);
    }
    full_fence();
    ring_fenced(view);
}

/// The same by a caller who has fenced since the change. If the slot is queued already, by whomever, that is all: no lock, no other
/// fence. A busy sender finds it so nearly always.
#[inline(always)]
pub fn ring_fenced(view: &View) {
    let number = queue_of(view.session, view.stack);
    let (queue, set) = (&view.session.header().queues[number], view.session.region.doors(number));
    if !is_queued(&view.app.door_seq, &view.stack.door_ack) || may_be_stuck(queue, set) {
        ring_data(view.session, view.slot, view.app, view.stack);
    }
}

/// May a slot that counts as queued have nobody who looks at it, because who has queued it was killed, half way or before ringing? A
/// reader that has been rung for and is yet to wake has seen nothing, but will.
#[inline(always)]
fn may_be_stuck(queue: &private::Queue, set: DirtySet<'_>) -> bool {
    queue.pushing.load(Ordering::Relaxed) != 0 || set.is_armed() && queue.rung.load(Ordering::Relaxed) != set.written()
}

/// The data doorbell queue of a slot.
#[inline(always)]
fn queue_of(session: &Session, stack: &StackLine) -> usize {
    let last = session.geometry.cores as usize - 1;
    (stack.queue.load(Ordering::Relaxed) as usize).min(last)
}

#[inline(never)]
fn ring_data(session: &Session, slot: Slot, app: &AppLine, stack: &StackLine) {
    let number = queue_of(session, stack);
    let queue = Queue { session, number, set: session.region.doors(number) };
    // Held by this very thread: we are in a signal handler in the middle of a push. The bell rings anyway.
    if let Some(pushing) = session.header().queues[number].lock.lock() {
        queue.push(&pushing, slot, &app.door_seq, &stack.door_ack);
    }
    if queue.set.must_ring() {
        let pushed = queue.set.written();
        session.ring_bell(number);
        session.header().queues[number].rung.store(pushed, Ordering::Relaxed);
    }
}

/// A queue that all processes of the client write. Each of them may be killed in the middle.
#[derive(Clone, Copy)]
struct Queue<'a> {
    session: &'a Session,
    number: usize,
    set: DirtySet<'a>,
}

impl Queue<'_> {
    /// Puts a slot with its words into it, under its writer's lock.
    #[inline(always)]
    fn push(self, locked: &Guard<'_>, slot: Slot, seq: &AtomicU32, ack: &AtomicU32) {
        let pushing = &self.session.header().queues[self.number].pushing;
        if locked.was_abandoned() {
            self.finish(pushing.load(Ordering::Relaxed));
        }
        pushing.store(slot.raw() + 1, Ordering::Relaxed);
        self.set.push(&mut self.set.written(), slot, seq, ack);
        pushing.store(0, Ordering::Release);
    }

    /// What a killed process was about to queue: counted as queued, it may not be; a second entry does no harm.
    #[cold]
    fn finish(self, pushing: u32) {
        let Some(unfinished) = self.session.region.slot(pushing.wrapping_sub(1)) else { return };
        let (app, stack) = (self.session.region.app(unfinished), self.session.region.stack(unfinished));
        let commands = self.number == self.session.geometry.cores as usize;
        let (seq, ack) = if commands { (&app.ctl_seq, &stack.ctl_ack) } else { (&app.door_seq, &stack.door_ack) };
        if seq.load(Ordering::Relaxed) != ack.load(Ordering::Acquire) {
            self.set.push_again(&mut self.set.written(), unfinished);
        }
    }
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
    let number = session.geometry.cores as usize;
    let queue = Queue { session, number, set: session.region.commands() };
    if let Some(pushing) = session.header().queues[number].lock.lock() {
        queue.push(&pushing, slot, &session.region.app(slot).ctl_seq, &session.region.stack(slot).ctl_ack);
    }
    if queue.set.must_ring() {
        session.ring_bell(number);
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
    wake::about_to_sleep::<AtomicU32>();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Lock;
    use towpath_ring::{Geometry, Layout};

    #[test]
    fn a_sleeping_stack_is_rung_for_once_and_again_after_a_writer_that_was_killed_before_it_rang() {
        let geometry = Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, contexts: 1, cores: 1 };
        let slot = Layout::new(geometry).expect("a good geometry").slot(0).expect("inside");
        let [tail, head, armed, seq, ack] = [const { AtomicU32::new(0) }; 5];
        let entries = [const { AtomicU32::new(0) }; 16];
        let set = DirtySet::over(&entries, &tail, &head, &armed).expect("a power of two");
        let queue =
            private::Queue { lock: Lock::new(), pushing: AtomicU32::new(slot.raw() + 1), rung: AtomicU32::new(0) };
        seq.store(1, Ordering::Relaxed);
        assert!(is_queued(&seq, &ack) && may_be_stuck(&queue, set), "killed in the middle of a push");
        seq.store(0, Ordering::Relaxed);
        queue.pushing.store(0, Ordering::Relaxed);
        set.arm();
        assert!(set.push(&mut set.written(), slot, &seq, &ack) && set.must_ring());
        assert!(is_queued(&seq, &ack) && may_be_stuck(&queue, set), "killed before it rang");
        queue.rung.store(set.written(), Ordering::Relaxed);
        assert!(!may_be_stuck(&queue, set), "rung for");
        set.disarm();
        queue.rung.store(0, Ordering::Relaxed);
        assert!(!may_be_stuck(&queue, set), "it does not sleep");
    }
}
