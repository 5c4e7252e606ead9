//! Telling the stack: data doorbells and commands.

use crate::private;
use crate::session::{self, Session};
use crate::socket::Socket;
use crate::sys::Sys;
use crate::view::View;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;
use towpath_ring::command::{Command, not_ours_because, op};
use towpath_ring::dirty::{DirtySet, full_fence, is_queued};
use towpath_ring::layout::QueueWords;
use towpath_ring::lines::state;
use towpath_ring::{AppLine, Geometry, Region, Slot, StackLine, lines, wake};

/// How long a command may take to be decided. It is answered by the slow path, which does nothing that takes time
/// before; longer than this and the service is stuck.
const COMMAND_TIME: Duration = Duration::from_secs(10);

/// What a sender looks at of a data queue, to see that others have said all there is to say.
pub struct Door {
    queue: NonNull<private::Queue>,
    words: NonNull<QueueWords>,
}

// SAFETY: both are shared references to atomics, without a lifetime.
unsafe impl Send for Door {}
// SAFETY: as above.
unsafe impl Sync for Door {}

impl Door {
    /// That of a number; those behind the last are the last. To be kept beside the region only.
    pub fn of(region: &Region, number: usize) -> Self {
        let number = number.min(region.geometry().cores as usize - 1);
        let header = session::header(region);
        Self { queue: NonNull::from(&header.queues[number]), words: NonNull::from(region.door_words(number)) }
    }

    /// That of a connection.
    #[inline(always)]
    fn at<'a>(session: &'a Session, stack: &StackLine) -> (&'a private::Queue, &'a QueueWords) {
        let door = &session.doors[named(stack)];
        // SAFETY: both lie in the session's region, which is mapped as long as the session is there, and hold atomics only.
        unsafe { (door.queue.as_ref(), door.words.as_ref()) }
    }
}

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
    if !is_told(view.session, view.app, view.stack) {
        ring_data(view.session, view.slot, view.app, view.stack);
    }
}

/// By a caller who has fenced since the change: does the stack know already, or will it? If the slot is queued, by whomever, that is all:
/// no lock, no other fence. A busy sender finds it so nearly always.
#[inline(always)]
pub fn is_told(session: &Session, app: &AppLine, stack: &StackLine) -> bool {
    let (queue, words) = Door::at(session, stack);
    is_queued(&app.door_seq, &stack.door_ack) && !may_be_stuck(queue, &words.armed, &words.tail)
}

/// Tells the stack. Returns `count`, so that a call that has sent so many bytes can end with this.
#[inline(never)]
pub fn ring_and_return(session: &Session, slot: Slot, count: usize) -> usize {
    ring_data(session, slot, session.region.app(slot), session.region.stack(slot));
    count
}

/// May a slot that counts as queued have nobody who looks at it, because who has queued it was killed, half way or before ringing? A
/// reader that has been rung for and is yet to wake has seen nothing, but will.
#[inline(always)]
fn may_be_stuck(queue: &private::Queue, armed: &AtomicU32, tail: &AtomicU32) -> bool {
    let rung_for_all = || queue.rung.load(Ordering::Relaxed) == tail.load(Ordering::Relaxed);
    queue.pushing.load(Ordering::Relaxed) != 0 || armed.load(Ordering::Relaxed) != 0 && !rung_for_all()
}

/// The data doorbell queue that the stack's line names. It is taken modulo what can be: an honest one is less.
#[inline(always)]
fn named(stack: &StackLine) -> usize {
    stack.queue.load(Ordering::Relaxed) as usize % Geometry::MAX_CORES as usize
}

/// The data doorbell queue of a slot.
#[inline(always)]
fn queue_of(session: &Session, stack: &StackLine) -> usize {
    named(stack).min(session.geometry.cores as usize - 1)
}

#[inline(never)]
fn ring_data(session: &Session, slot: Slot, app: &AppLine, stack: &StackLine) {
    let number = queue_of(session, stack);
    let queue = Queue { session, number, set: session.region.doors(number) };
    if queue.push(slot, &app.door_seq, &stack.door_ack) {
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
    /// Puts a slot with its words into it. Is the bell to be rung?
    #[inline(always)]
    fn push(self, slot: Slot, seq: &AtomicU32, ack: &AtomicU32) -> bool {
        let queue = &self.session.header().queues[self.number];
        // Held by this very thread: we are in a signal handler in the middle of a push. The bell rings anyway.
        let Some(locked) = queue.lock.lock() else { return self.set.must_ring() };
        // The fences of the protocol: the lock's.
        locked.fence();
        if locked.was_abandoned() {
            self.finish(queue.pushing.load(Ordering::Relaxed));
        }
        queue.pushing.store(slot.raw() + 1, Ordering::Relaxed);
        self.set.push_fenced(&mut self.set.written(), slot, seq, ack);
        queue.pushing.store(0, Ordering::Release);
        locked.unlock_and_fence();
        self.set.must_ring_fenced()
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
    if queue.push(slot, &session.region.app(slot).ctl_seq, &session.region.stack(slot).ctl_ack) {
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
        assert!(is_queued(&seq, &ack) && may_be_stuck(&queue, &armed, &tail), "killed in the middle of a push");
        seq.store(0, Ordering::Relaxed);
        queue.pushing.store(0, Ordering::Relaxed);
        set.arm();
        assert!(set.push(&mut set.written(), slot, &seq, &ack) && set.must_ring());
        assert!(is_queued(&seq, &ack) && may_be_stuck(&queue, &armed, &tail), "killed before it rang");
        queue.rung.store(set.written(), Ordering::Relaxed);
        assert!(!may_be_stuck(&queue, &armed, &tail), "rung for");
        set.disarm();
        queue.rung.store(0, Ordering::Relaxed);
        assert!(!may_be_stuck(&queue, &armed, &tail), "it does not sleep");
    }
}
