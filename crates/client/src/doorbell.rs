//! Notifying the stack, or the peer of a direct connection, that a slot's words have changed.

use crate::data_queue::DataQueue;
use crate::direct::Direct;
use crate::private;
use crate::session::Session;
use crate::socket::Socket;
use core::sync::atomic::{AtomicU32, Ordering};
use towpath_ring::command::op;
use towpath_ring::dirty::{DirtySet, full_fence, is_queued};
use towpath_ring::{AppLine, Geometry, Slot, StackLine, lines, wake};

impl Socket {
    /// Sets or clears `app_flags` bits and notifies the stack.
    pub fn mark_app(&self, flag: u32, on: bool) {
        let flags = &self.app().flags;
        if on {
            flags.fetch_or(flag, Ordering::AcqRel)
        } else {
            flags.fetch_and(!flag, Ordering::AcqRel)
        };
        notify(self);
    }

    /// [`Socket::mark_app`], for a flag that matters only to bytes that are not sent. Without any the stack is not woken:
    /// whoever puts bytes into the send ring notifies it, and it reads the flags then.
    pub fn mark_app_for_bytes(&self, flag: u32, on: bool) {
        let flags = &self.app().flags;
        if on {
            flags.fetch_or(flag, Ordering::SeqCst);
        } else {
            flags.fetch_and(!flag, Ordering::SeqCst);
        }
        full_fence();
        // Some stacks hold bytes that are in the ring no more.
        let holds = self.info().held.load(Ordering::Relaxed) != 0;
        let elsewhere = self.direct().is_some() || holds || self.view().is_sending_file();
        if elsewhere || self.view().queued() > 0 {
            notify(self);
        }
    }
}

/// Notifies the stack that the application's line of the socket has changed. For a direct connection the peer is
/// notified, and the stack only of its end.
pub fn notify(socket: &Socket) {
    match socket.direct() {
        Some(direct) => notify_directly(socket, &direct, socket.app().flags.load(Ordering::Acquire)),
        None => notify_stack(socket.session, socket.slot, socket.app(), socket.stack()),
    }
}

/// [`notify`] for a direct connection whose line has these flags.
pub(crate) fn notify_directly(socket: &Socket, direct: &Direct, flags: u32) {
    let session = socket.session;
    direct.show_flags(session, flags);
    if flags & lines::app_flags::CLOSED != 0 {
        // The peer knows by now. The stack has to free the slot, which can wait. A port that was reserved cannot.
        let (_, command) = session.region.command(socket.slot).read();
        let can_wait = command.local_port == 0 && command.op != op::JOIN;
        if push_command(session, socket.slot, can_wait) {
            session.notify_queue(session.geometry.flow_groups as usize);
        }
    }
}

/// [`notify`] for a connection that the stack carries.
#[inline(always)]
pub fn notify_stack(session: &Session, slot: Slot, app: &AppLine, stack: &StackLine) {
    if !is_queued(&app.data_seq, &stack.data_ack) {
        // Queueing also fences.
        return notify_by_queue(session, slot, app, stack);
    }
    full_fence();
    if !is_notified(session, app, stack) {
        notify_by_queue(session, slot, app, stack);
    }
}

/// True: an entry that is already in the queue covers this change. The caller must have fenced since the change. A busy
/// sender nearly always finds one, and so needs no lock and no further fence.
#[inline(always)]
pub fn is_notified(session: &Session, app: &AppLine, stack: &StackLine) -> bool {
    let queue = &session.data_queues[named(stack)];
    is_queued(&app.data_seq, &stack.data_ack) && !may_be_stuck(queue.queue(), &queue.words().armed, &queue.words().tail)
}

/// Notifies the stack and returns `count`, so that a call that has sent `count` bytes can end with it.
///
/// It is [`Queue::push`] at one look. What it calls itself, it ends with, so that it saves no register.
#[inline(never)]
pub fn notify_and_return(session: &Session, slot: Slot, count: usize) -> usize {
    let lines = session.region.lines(slot);
    let data = &session.data_queues[named(&lines.stack)];
    let queue = data.queue();
    let Some(locked) = queue.lock.try_lock() else { return notify_slowly(session, slot, count) };
    locked.fence();
    let set = data.set();
    if !push_uninterrupted(queue, set, slot, &lines.app.data_seq, &lines.stack.data_ack) {
        locked.leave();
        return repair_and_notify(session, data, slot, count);
    }
    queue.pushing.store(0, Ordering::Release);
    locked.unlock_and_fence();
    if set.must_notify_fenced() { notify_pushed_and_return(session, data, count) } else { count }
}

/// [`notify_and_return`], waiting for the lock.
#[cold]
#[inline(never)]
fn notify_slowly(session: &Session, slot: Slot, count: usize) -> usize {
    push_data(session, slot, session.region.app(slot), session.region.stack(slot));
    count
}

/// The end of [`notify_and_return`], which has left the lock taken and has been interrupted.
#[cold]
#[inline(never)]
fn repair_and_notify(session: &Session, data: &DataQueue, slot: Slot, count: usize) -> usize {
    let queue = data.queue();
    let locked = queue.lock.left_locked();
    repair(session, data.number, slot.raw() + 1);
    queue.pushing.store(0, Ordering::Release);
    locked.unlock_and_fence();
    if data.set().must_notify_fenced() {
        notify_pushed(session, data);
    }
    count
}

/// [`notify_pushed`]; returns `count`.
#[inline(never)]
fn notify_pushed_and_return(session: &Session, data: &DataQueue, count: usize) -> usize {
    notify_pushed(session, data);
    count
}

/// Could the slot be marked as queued although its producer died before it notified? Not if the reader has been
/// notified and is still asleep: it will see the slot.
#[inline(always)]
fn may_be_stuck(queue: &private::Queue, armed: &AtomicU32, tail: &AtomicU32) -> bool {
    let rung_for_all = || queue.notified.load(Ordering::Relaxed) == tail.load(Ordering::Relaxed);
    // In this order: of a push that is over all has been stored, so what follows is at least as new as its end.
    queue.pushing.load(Ordering::Acquire) != 0 || armed.load(Ordering::Relaxed) != 0 && !rung_for_all()
}

/// The number of the data queue in the stack's line. The modulo keeps a wrong number inside the table.
#[inline(always)]
fn named(stack: &StackLine) -> usize {
    stack.flow_group.load(Ordering::Relaxed) as usize % Geometry::MAX_FLOW_GROUPS as usize
}

#[inline(never)]
fn notify_by_queue(session: &Session, slot: Slot, app: &AppLine, stack: &StackLine) {
    push_data(session, slot, app, stack);
}

#[inline(always)]
fn push_data(session: &Session, slot: Slot, app: &AppLine, stack: &StackLine) {
    let data = &session.data_queues[named(stack)];
    let queue = Queue { session, number: &data.number, words: data.queue(), set: data.set() };
    if queue.push(slot, &app.data_seq, &stack.data_ack, false) {
        notify_pushed(session, data);
    }
}

/// Notifies the stack of what has been pushed into a data queue.
#[inline]
fn notify_pushed(session: &Session, data: &DataQueue) {
    let pushed = data.set().written();
    session.notify_queue(data.number as usize);
    data.queue().notified.store(pushed, Ordering::Relaxed);
}

/// A queue that all processes of the client write. Any of them may be killed at any point.
#[derive(Clone, Copy)]
struct Queue<'a> {
    session: &'a Session,
    /// Its number, which is only needed when something has gone wrong.
    number: &'a u32,
    words: &'a private::Queue,
    set: DirtySet<'a>,
}

impl<'a> Queue<'a> {
    /// The data queue of this number, or the command queue, which has the number after the last.
    fn of(session: &'a Session, number: &'a u32) -> Self {
        let at = *number as usize;
        let commands = *number == session.geometry.flow_groups;
        let set = if commands { session.region.commands() } else { session.region.data_queue(at) };
        Self { session, number, words: &session.header().queues[at], set }
    }

    /// Queues a slot with its words. True: the stack is to be notified. `can_wait`: for [`towpath_ring::dirty::NAP_US`].
    #[inline(always)]
    fn push(self, slot: Slot, seq: &AtomicU32, ack: &AtomicU32, can_wait: bool) -> bool {
        let queue = self.words;
        let Some(locked) = queue.lock.lock() else { return push_within_a_push(self.session, *self.number, slot) };
        // Taking and releasing the lock are the fences of the protocol.
        locked.fence();
        if locked.was_abandoned() {
            repair(self.session, *self.number, queue.pushing.load(Ordering::Relaxed));
        }
        if !push_uninterrupted(queue, self.set, slot, seq, ack) {
            repair(self.session, *self.number, slot.raw() + 1);
        }
        queue.pushing.store(0, Ordering::Release);
        locked.unlock_and_fence();
        if can_wait { self.set.must_notify_unless_napping_fenced() } else { self.set.must_notify_fenced() }
    }

    /// A slot's words for this queue.
    fn words(&self, slot: Slot) -> (&'a AtomicU32, &'a AtomicU32) {
        let (app, stack) = (self.session.region.app(slot), self.session.region.stack(slot));
        let commands = *self.number == self.session.geometry.flow_groups;
        if commands { (&app.ctl_seq, &stack.ctl_ack) } else { (&app.data_seq, &stack.data_ack) }
    }

    /// Queues a slot once more if it is marked as queued. A second entry does no harm. `pushing`: its number plus one, 0 =
    /// none.
    fn push_again(&self, pushing: u32, tail: &mut u32) {
        let Some(slot) = self.session.region.slot(pushing.wrapping_sub(1)) else { return };
        let (seq, ack) = self.words(slot);
        if is_queued(seq, ack) {
            self.set.push_again(tail, slot);
        }
    }
}

/// Under the lock: queues a slot with its words. False: a signal handler has interrupted this, so the queue needs [`repair`].
#[inline(always)]
fn push_uninterrupted(queue: &private::Queue, set: DirtySet<'_>, slot: Slot, seq: &AtomicU32, ack: &AtomicU32) -> bool {
    queue.pushing.store(slot.raw() + 1, Ordering::Relaxed);
    set.push_fenced(&mut set.written(), slot, seq, ack);
    queue.nested.load(Ordering::Relaxed) == 0
}

/// This thread holds the queue's lock: a signal handler has interrupted a push. The stack sees the handler's entry at once.
///
/// The interrupted push may still store its entry at the present tail, and a tail just behind that. So this one leaves that
/// place out; what stands there is an old slot, at which the stack looks for nothing. Then it has the interrupted push
/// [`repair`] the tail.
#[cold]
#[inline(never)]
fn push_within_a_push(session: &Session, number: u32, slot: Slot) -> bool {
    let queue = Queue::of(session, &number);
    let words = queue.words;
    let mut tail = queue.set.written().wrapping_add(1);
    // The interrupted push may have marked its slot as queued. This handler may wait for what becomes of it.
    queue.push_again(words.pushing.load(Ordering::Relaxed), &mut tail);
    let (seq, ack) = queue.words(slot);
    queue.set.push(&mut tail, slot, seq, ack);
    words.nested.store(u64::from(queue.set.written()) | 1 << 32, Ordering::Relaxed);
    queue.set.must_notify()
}

/// Under the lock, after a push that was interrupted, or never finished because its process was killed. `pushing`: its slot
/// plus one, 0 = none. The slot may be marked as queued without being so.
#[cold]
#[inline(never)]
fn repair(session: &Session, number: u32, pushing: u32) {
    let queue = Queue::of(session, &number);
    let words = queue.words;
    loop {
        let nested = words.nested.load(Ordering::Relaxed);
        if nested != 0 {
            queue.set.go_on_from(nested as u32);
        }
        queue.push_again(pushing, &mut queue.set.written());
        // Another handler may have interrupted this.
        if words.nested.compare_exchange(nested, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            break;
        }
    }
}

/// Notifies the stack that a slot's command or options have changed.
pub fn notify_commands(session: &Session, slot: Slot) {
    if push_command(session, slot, false) {
        session.notify_queue(session.geometry.flow_groups as usize);
    }
}

/// Queues a slot's command. True: the stack is to be notified.
fn push_command(session: &Session, slot: Slot, can_wait: bool) -> bool {
    let queue = Queue::of(session, &session.geometry.flow_groups);
    queue.push(slot, &session.region.app(slot).ctl_seq, &session.region.stack(slot).ctl_ack, can_wait)
}

/// Wakes the threads of this program that sleep on the socket, after a change by this side such as `shutdown`. Only
/// the stack changes the event word, so others just look and sleep on.
pub fn wake_sleepers(socket: &Socket) {
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
    fn a_sleeping_stack_is_notified_once_and_again_after_a_writer_was_killed_before_it_notified() {
        let geometry =
            Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, contexts: 1, ..Geometry::DEFAULT };
        let slot = Layout::new(geometry).expect("a good geometry").slot(0).expect("inside");
        let [tail, head, armed, seq, ack] = [const { AtomicU32::new(0) }; 5];
        let entries = [const { AtomicU32::new(0) }; 16];
        let set = DirtySet::over(&entries, &tail, &head, &armed).expect("a power of two");
        let queue =
            private::Queue { lock: Lock::new(), pushing: AtomicU32::new(slot.raw() + 1), ..private::Queue::default() };
        seq.store(1, Ordering::Relaxed);
        assert!(is_queued(&seq, &ack) && may_be_stuck(&queue, &armed, &tail), "killed in the middle of a push");
        seq.store(0, Ordering::Relaxed);
        queue.pushing.store(0, Ordering::Relaxed);
        set.arm();
        assert!(set.push(&mut set.written(), slot, &seq, &ack) && set.must_notify());
        assert!(is_queued(&seq, &ack) && may_be_stuck(&queue, &armed, &tail), "killed before it notified");
        queue.notified.store(set.written(), Ordering::Relaxed);
        assert!(!may_be_stuck(&queue, &armed, &tail), "notified for");
        set.disarm();
        queue.notified.store(0, Ordering::Relaxed);
        assert!(!may_be_stuck(&queue, &armed, &tail), "the reader does not sleep");
    }
}
