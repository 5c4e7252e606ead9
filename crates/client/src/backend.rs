//! The carriers of an established connection: the stack, or the two ends themselves. Sending and receiving are written
//! once, over [`Backend`]. Everything here is inlined, so that a call on one carrier tests for no other.

use crate::direct::Direct;
use crate::lock::{Alone, Guard, Locked};
use crate::private::{Private, flag};
use crate::session::Session;
use crate::socket::Socket;
use crate::{cork, doorbell, held, idle, memory, ring_growth, violation};
use core::sync::atomic::Ordering;
use towpath_ring::lines::{app_flags, status};
use towpath_ring::{AppLine, ByteRing, Slot, StackLine};

/// Two full segments: less free room than this and the peer may have stopped sending.
const TWO_SEGMENTS: u32 = 2 * 1460;

/// A socket's lines, looked up.
#[derive(Clone, Copy)]
pub struct Lines {
    /// The session that it belongs to.
    pub session: &'static Session,
    /// Its slot.
    pub slot: Slot,
    /// Its generation.
    pub generation: u32,
    /// The application's line.
    pub app: &'static AppLine,
    /// The stack's line.
    pub stack: &'static StackLine,
    /// The application's own words.
    pub private: &'static Private,
}

impl Lines {
    /// The lines of a slot in use.
    #[inline(always)]
    pub fn of(session: &'static Session, slot: Slot, generation: u32) -> Self {
        let (app, stack) = (session.region.app(slot), session.region.stack(slot));
        Self { session, slot, generation, app, stack, private: session.private(slot) }
    }

    /// The socket that they are of.
    #[inline(always)]
    pub fn socket(&self) -> Socket {
        Socket { session: self.session, slot: self.slot, generation: self.generation }
    }

    /// Has the slot been taken away (by the stack, or because the service died)?
    #[inline(always)]
    pub fn is_gone(&self) -> bool {
        self.session.is_dead() || self.stack.generation.load(Ordering::Acquire) != self.generation
    }

    /// `flag::*` of the private part.
    #[inline(always)]
    pub fn has(&self, flag: u32) -> bool {
        self.private.flags.load(Ordering::Relaxed) & flag != 0
    }

    /// Does the application's line have this flag?
    #[inline(always)]
    pub fn has_app(&self, flag: u32) -> bool {
        self.app.flags.load(Ordering::Relaxed) & flag != 0
    }
}

/// Exclusive access to the positions of one direction, given to the step that ends it.
pub trait Held {
    /// Ends the access, fences, and notifies the stack. Returns `count`, so that a call can end with it.
    fn notify(self, lines: &Lines, count: usize) -> usize;
    /// Does what is to be done about `count` bytes that have been read, of `unread`, up to `head`, if that is more than to store
    /// the head, and ends the access. Returns `count`, so that a call can end with it.
    fn consume(self, lines: &Lines, head: u32, count: usize, unread: u32) -> usize;
}

/// The fence is the unlocking, and the stack is notified without the lock.
impl Held for Guard<'_> {
    #[inline(always)]
    fn notify(self, lines: &Lines, count: usize) -> usize {
        self.unlock_and_fence();
        if doorbell::is_notified(lines.session, lines.app, lines.stack) {
            count
        } else {
            doorbell::notify_and_return(lines.session, lines.slot, count)
        }
    }
    #[inline(always)]
    fn consume(self, lines: &Lines, head: u32, count: usize, unread: u32) -> usize {
        self.leave();
        consume_and_return(lines.session, lines.slot, head, count, unread)
    }
}

impl Held for Alone<'_> {
    #[inline(always)]
    fn notify(self, lines: &Lines, count: usize) -> usize {
        self.into_fencing().notify(lines, count)
    }
    #[inline(always)]
    fn consume(self, lines: &Lines, head: u32, count: usize, unread: u32) -> usize {
        Held::consume(self.into_fencing(), lines, head, count, unread)
    }
}

/// The caller has more to do under its lock, or has the connection for itself.
pub struct StillLocked;

impl Held for StillLocked {
    #[inline(always)]
    fn notify(self, lines: &Lines, count: usize) -> usize {
        doorbell::notify_stack(lines.session, lines.slot, lines.app, lines.stack);
        count
    }
    #[inline(always)]
    fn consume(self, lines: &Lines, head: u32, count: usize, unread: u32) -> usize {
        if has_news(lines.session, lines.slot, head, unread) { self.notify(lines, count) } else { count }
    }
}

/// [`Held::consume`] of a caller that has [left](Guard::leave) `receiving` locked.
#[inline(never)]
fn consume_and_return(session: &'static Session, slot: Slot, head: u32, count: usize, unread: u32) -> usize {
    let receiving = session.private(slot).receiving.left_locked();
    if !has_news(session, slot, head, unread) {
        return count;
    }
    receiving.unlock_and_fence();
    let (app, stack) = (session.region.app(slot), session.region.stack(slot));
    if doorbell::is_notified(session, app, stack) {
        return count;
    }
    doorbell::notify_and_return(session, slot, count)
}

/// Stores the receive head, and makes the memory that the stack needs next. True: the stack is to be notified. Under `receiving`.
#[inline(never)]
fn has_news(session: &Session, slot: Slot, head: u32, unread: u32) -> bool {
    let (app, stack, private) = (session.region.app(slot), session.region.stack(slot), session.private(slot));
    if memory::is_short(private, head) {
        idle::read_to(session, slot, head);
    }
    app.rx_head.store(head, Ordering::Release);
    if !is_news(unread, head, private) {
        return false;
    }
    ring_growth::look(session, slot, stack, private);
    private.notified_head.store(head, Ordering::Relaxed);
    true
}

/// The carrier of an established connection.
pub trait Backend: Copy {
    /// The socket's lines.
    fn lines(&self) -> &Lines;
    /// `status` bits. Load them before the positions they speak about.
    fn status(&self) -> u32;
    /// The position that the other side has sent to, unchecked.
    fn received_to(&self) -> u32;
    /// The position from which bytes count as queued in the send ring, unchecked.
    fn taken_to(&self) -> u32;
    /// The send ring.
    fn send_ring(&self) -> ByteRing<'static>;
    /// The receive ring. Load the position that the other side has sent to first.
    fn receive_ring(&self) -> ByteRing<'static>;
    /// The size of the receive ring. Load the position that the other side has sent to first.
    fn receive_bytes(&self) -> u32;
    /// Where `len` bytes from this position on lie in the send ring. `None`: they are not in one piece there, or something is
    /// to be done before.
    fn send_span(&self, at: u32, len: usize) -> Option<*mut u8>;
    /// The next `unread` bytes of the receive ring from this position on, but no more than `most`: where they lie, and how many
    /// they are. `None`: there are none, there cannot be so many, or they are not in one piece. Load the position that the
    /// other side has sent to first.
    fn receive_piece(&self, at: u32, unread: u32, most: usize) -> Option<(*mut u8, usize)>;
    /// Usable bytes of the send ring when it is empty.
    fn send_limit(&self) -> u32;
    /// Moves the send tail by `count` bytes to `tail` and notifies the reader. `urgent`: the last byte is. Returns
    /// `count`.
    fn publish(self, sending: impl Held, tail: u32, count: usize, urgent: bool) -> usize;
    /// Moves the receive head by `count` bytes to `head` and notifies the sender if that matters to it. `unread` bytes
    /// were unread before. Returns `count`.
    fn consume(self, receiving: impl Held, head: u32, count: usize, unread: u32) -> usize;

    /// Does anybody want bytes, and has this side not ended its stream?
    #[inline(always)]
    fn may_send(&self) -> bool {
        let over = self.status() & (status::TX_CLOSED | status::RESET | status::PEER_CLOSED) != 0;
        !(over || self.lines().has_app(app_flags::SHUT_WR))
    }

    /// Bytes in the send ring of this tail. After an impossible head there may be any number.
    #[inline(always)]
    fn queued(&self, tail: u32) -> u32 {
        tail.wrapping_sub(self.taken_to())
    }

    /// Unread bytes after this head. After an impossible tail there may be any number.
    #[inline(always)]
    fn unread(&self, head: u32) -> u32 {
        self.received_to().wrapping_sub(head)
    }

    /// Free bytes of the send ring. An impossible send head counts as no room.
    #[inline(always)]
    fn room(&self) -> u32 {
        let lines = self.lines();
        let taken_to = self.taken_to();
        let most = lines.private.send_limit.load(Ordering::Relaxed);
        most.saturating_sub(lines.app.tx_tail.load(Ordering::Relaxed).wrapping_sub(taken_to))
    }

    /// Unread bytes. An impossible receive tail counts as nothing.
    #[inline(always)]
    fn readable(&self) -> u32 {
        let (tail, most) = (self.received_to(), self.receive_bytes());
        let unread = tail.wrapping_sub(self.lines().app.rx_head.load(Ordering::Relaxed));
        if unread > most { 0 } else { unread }
    }
}

/// The stack carries the connection of these lines. `GROWS`: its rings may grow.
#[derive(Clone, Copy)]
pub struct StackBackend<'a, const GROWS: bool = true>(pub &'a Lines);

impl<const GROWS: bool> Backend for StackBackend<'_, GROWS> {
    #[inline(always)]
    fn lines(&self) -> &Lines {
        self.0
    }

    #[inline(always)]
    fn status(&self) -> u32 {
        self.0.stack.status.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn received_to(&self) -> u32 {
        self.0.stack.rx_tail.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn taken_to(&self) -> u32 {
        self.0.stack.tx_head.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn send_ring(&self) -> ByteRing<'static> {
        self.0.session.region.tx(self.0.slot)
    }

    #[inline(always)]
    fn receive_ring(&self) -> ByteRing<'static> {
        self.0.session.region.rx(self.0.slot)
    }

    #[inline(always)]
    fn receive_bytes(&self) -> u32 {
        let region = &self.0.session.region;
        if region.grows().1 { self.receive_ring().capacity() } else { region.geometry().rx_bytes }
    }

    #[inline(always)]
    fn send_span(&self, at: u32, len: usize) -> Option<*mut u8> {
        let Lines { session, slot, app, stack, .. } = *self.0;
        if !GROWS {
            return session.region.first_tx_span(slot, at, len);
        }
        // Before the next piece the ring is to be doubled.
        if ring_growth::is_asked(session, app, stack) {
            return None;
        }
        session.region.tx_span(slot, at, len)
    }

    #[inline(always)]
    fn receive_piece(&self, at: u32, unread: u32, most: usize) -> Option<(*mut u8, usize)> {
        let region = &self.0.session.region;
        if GROWS {
            region.rx_piece(self.0.slot, at, unread, most)
        } else {
            region.first_rx_piece(self.0.slot, at, unread, most)
        }
    }

    #[inline(always)]
    fn send_limit(&self) -> u32 {
        self.0.private.send_limit.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn publish(self, sending: impl Held, tail: u32, count: usize, _: bool) -> usize {
        let Lines { app, private, .. } = *self.0;
        app.tx_tail.store(tail, Ordering::Release);
        // The stack reads the receive head, too, when it looks at the line.
        private.notified_head.store(app.rx_head.load(Ordering::Relaxed), Ordering::Relaxed);
        sending.notify(self.0, count)
    }

    #[inline(always)]
    fn consume(self, receiving: impl Held, head: u32, count: usize, unread: u32) -> usize {
        let Lines { app, private, .. } = *self.0;
        if memory::may_be_short(private, head) || may_be_news(unread, head, private) {
            return Held::consume(receiving, self.0, head, count, unread);
        }
        app.rx_head.store(head, Ordering::Release);
        count
    }
}

/// [`is_news`] in fewer instructions, but true also of some heads that are none.
#[inline(always)]
fn may_be_news(unread: u32, head: u32, private: &Private) -> bool {
    let limit = private.receive_limit.load(Ordering::Relaxed);
    let grown = head.wrapping_sub(private.notified_head.load(Ordering::Relaxed));
    unread.wrapping_add(TWO_SEGMENTS) > limit || grown >= limit / 4
}

/// Does this receive head change the window that the stack offers? `unread` bytes were unread before.
fn is_news(unread: u32, head: u32, private: &Private) -> bool {
    let limit = private.receive_limit.load(Ordering::Relaxed);
    let grown = head.wrapping_sub(private.notified_head.load(Ordering::Relaxed));
    // More may be unread than the limit, if that has become lower since. No ring is so large that the sum overflows.
    unread.wrapping_add(TWO_SEGMENTS) > limit || grown >= (limit / 4).max(TWO_SEGMENTS)
}

/// The two ends carry the connection themselves, through a pair region.
#[derive(Clone, Copy)]
pub struct DirectBackend<'a> {
    /// The socket's lines in this client's own region, with the positions that this side relies on.
    pub lines: &'a Lines,
    /// The words of the pair region.
    pub direct: &'a Direct,
}

impl DirectBackend<'_> {
    /// Does the other side hold bytes back? To be asked after the position that it has sent to.
    #[inline(always)]
    pub fn holds_back(&self) -> bool {
        self.direct.peer().line.held_ms.load(Ordering::Relaxed) != 0
    }
}

impl Backend for DirectBackend<'_> {
    #[inline(always)]
    fn lines(&self) -> &Lines {
        self.lines
    }

    #[inline(always)]
    fn status(&self) -> u32 {
        let status = self.lines.stack.status.load(Ordering::Acquire);
        match self.direct.peer_flags() & TOLD {
            0 if !self.lines.has(flag::SENT_TO_NOBODY) => status,
            flags => {
                // After the flags: the stack stores the error of both sides before either can close because of it.
                let cut = self.lines.stack.error.load(Ordering::Acquire) != 0;
                status | status_of(flags, self.lines.has(flag::SENT_TO_NOBODY), cut)
            }
        }
    }

    #[inline(always)]
    fn received_to(&self) -> u32 {
        let line = &self.direct.peer().line;
        // The held bytes are looked at after the tail.
        let shown = line.tx_tail.load(Ordering::Acquire);
        if line.held_ms.load(Ordering::Relaxed) == 0 { shown } else { sent_with_held(self.lines.socket(), line, shown) }
    }

    #[inline(always)]
    fn taken_to(&self) -> u32 {
        // Bytes that the other side withholds count as queued.
        self.direct.peer().line.rx_head.load(Ordering::Acquire).wrapping_sub(self.direct.withheld())
    }

    #[inline(always)]
    fn send_ring(&self) -> ByteRing<'static> {
        self.direct.send_ring().unwrap_or_else(|| self.lines.session.region.tx(self.lines.slot))
    }

    #[inline(always)]
    fn receive_ring(&self) -> ByteRing<'static> {
        self.direct.receive_ring().unwrap_or_else(|| self.lines.session.region.rx(self.lines.slot))
    }

    #[inline(always)]
    fn receive_bytes(&self) -> u32 {
        self.direct.ring_bytes()
    }

    #[inline(always)]
    fn send_span(&self, at: u32, len: usize) -> Option<*mut u8> {
        self.direct.send_span(at, len)
    }

    #[inline(always)]
    fn receive_piece(&self, at: u32, unread: u32, most: usize) -> Option<(*mut u8, usize)> {
        self.direct.receive_piece(at, unread, most)
    }

    #[inline(always)]
    fn send_limit(&self) -> u32 {
        self.lines.private.send_limit.load(Ordering::Relaxed).saturating_sub(self.direct.withheld())
    }

    /// An impossible send head counts as no room, and ends the connection.
    #[inline(always)]
    fn room(&self) -> u32 {
        let Lines { app, private, .. } = *self.lines;
        let (head, withheld) = (self.direct.peer().line.rx_head.load(Ordering::Acquire), self.direct.withheld());
        let queued = app.tx_tail.load(Ordering::Relaxed).wrapping_sub(head);
        let most = self.direct.ring_bytes();
        if queued > most || !violation::may_withhold(withheld, most) {
            violation::judge(self.lines.socket(), self.direct);
            return 0;
        }
        private.send_limit.load(Ordering::Relaxed).saturating_sub(queued + withheld)
    }

    /// An impossible receive tail counts as nothing, and ends the connection.
    #[inline(always)]
    fn readable(&self) -> u32 {
        let tail = self.received_to();
        let unread = tail.wrapping_sub(self.lines.app.rx_head.load(Ordering::Relaxed));
        if unread > self.direct.ring_bytes() {
            violation::judge(self.lines.socket(), self.direct);
            return 0;
        }
        unread
    }

    #[inline(always)]
    fn publish(self, _sending: impl Held, tail: u32, count: usize, urgent: bool) -> usize {
        let Lines { session, app, private, .. } = *self.lines;
        app.tx_tail.store(tail, Ordering::Release);
        private.sent.store(private.sent.load(Ordering::Relaxed) + count as u64, Ordering::Relaxed);
        // Urgent bytes do not wait.
        if cork::holds(app.flags.load(Ordering::Relaxed)) && !urgent {
            cork::show_held(self.lines.socket(), tail, self.send_limit());
        } else {
            self.direct.show_sent(session, tail);
        }
        count
    }

    #[inline(always)]
    fn consume(self, _receiving: impl Held, head: u32, count: usize, _: u32) -> usize {
        let Lines { session, app, private, .. } = *self.lines;
        app.rx_head.store(head, Ordering::Release);
        private.read.store(private.read.load(Ordering::Relaxed) + count as u64, Ordering::Relaxed);
        self.direct.show_read(session, head);
        count
    }
}

/// How far the other side has sent while it holds bytes back. It takes the socket by value, so that the caller's lines
/// stay in registers.
#[cold]
fn sent_with_held(socket: Socket, line: &AppLine, shown: u32) -> u32 {
    held::sent(line, shown, socket.status() & status::RX_EOF != 0)
}

/// The flags of the other side of a direct connection that stand for a status.
const TOLD: u32 = app_flags::ABORT | app_flags::CLOSED | app_flags::SHUT_WR | app_flags::SHUT_RD | app_flags::URGENT;

/// The other side's flags of a direct connection as `status` bits. `to_nobody`: bytes were sent after its end. `cut`: the
/// stack has ended the connection, so that a close after it is no end of the stream.
#[cold]
fn status_of(flags: u32, to_nobody: bool, cut: bool) -> u32 {
    let has = |bits| flags & bits != 0;
    let aborted = has(app_flags::ABORT) && has(app_flags::CLOSED);
    // A reset is no end of the stream, but one may have come before it.
    let ended = has(app_flags::SHUT_WR) || has(app_flags::CLOSED) && !aborted && !cut;
    (if ended { status::RX_EOF } else { 0 })
        | (if has(app_flags::CLOSED | app_flags::SHUT_RD) { status::PEER_CLOSED } else { 0 })
        | (if aborted || to_nobody { status::RESET | status::TX_CLOSED } else { 0 })
        | (if has(app_flags::URGENT) { status::URGENT } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_is_the_end_of_the_stream_unless_the_connection_was_cut_before() {
        let ended = |flags, cut| status_of(flags, false, cut) & status::RX_EOF != 0;
        assert!(ended(app_flags::CLOSED, false));
        assert!(!ended(app_flags::CLOSED, true));
        assert!(!ended(app_flags::CLOSED | app_flags::ABORT, false));
        // A FIN that came before it stays.
        assert!(ended(app_flags::CLOSED | app_flags::SHUT_WR, true));
        assert!(ended(app_flags::CLOSED | app_flags::SHUT_WR | app_flags::ABORT, false));
    }
}
