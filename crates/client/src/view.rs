//! A socket's lines, looked up once and then read as often as a call needs. A view of a connection that is still
//! being made says nothing about later, because the connection may become a direct one.

use crate::backend::{Backend, DirectBackend, Lines, StackBackend, StillLocked};
use crate::direct::{self, Direct};
use crate::private::flag;
use crate::ring_growth;
use crate::session::Session;
use crate::socket::Socket;
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering};
use towpath_ring::lines::{app_flags, state, status, want};
use towpath_ring::{ByteRing, Slot, wake};

/// The lines of a socket. Rarely called functions look them up again, so that hot ones keep them in registers.
#[derive(Clone, Copy)]
pub struct View {
    lines: Lines,
    /// The other side, if the connection is direct and its region can be had.
    pub direct: Option<Direct>,
    /// It is direct, and its region cannot be had.
    out_of_reach: bool,
    /// The state before the lines were looked up; CLOSED if they cannot be had.
    found_in: u32,
}

/// The backend that a view found.
enum Found<'a> {
    Stack(StackBackend<'a>),
    Direct(DirectBackend<'a>),
}

impl Deref for View {
    type Target = Lines;
    #[inline(always)]
    fn deref(&self) -> &Lines {
        &self.lines
    }
}

impl View {
    /// The lines of a slot in use.
    #[inline(always)]
    pub fn of(session: &'static Session, slot: Slot, generation: u32) -> Self {
        let stack = session.region.stack(slot);
        // The stack says where the connection's words are before it says ESTABLISHED.
        let found_in = stack.state.load(Ordering::Acquire);
        let (direct, out_of_reach) = match stack.pair.load(Ordering::Acquire) {
            0 => (None, false),
            pair => {
                let direct = direct::find(session, pair, stack.pair_slot.load(Ordering::Acquire));
                (direct, direct.is_none())
            }
        };
        let found_in = if out_of_reach { state::CLOSED } else { found_in };
        Self { lines: Lines::of(session, slot, generation), direct, out_of_reach, found_in }
    }

    #[inline(always)]
    fn backend(&self) -> Found<'_> {
        match &self.direct {
            None => Found::Stack(StackBackend(&self.lines)),
            Some(direct) => Found::Direct(DirectBackend { lines: &self.lines, direct }),
        }
    }

    /// The backend of an established direct connection.
    #[inline(always)]
    pub fn direct_backend(&self) -> Option<DirectBackend<'_>> {
        let direct = self.direct.as_ref().filter(|_| self.is_established())?;
        Some(DirectBackend { lines: &self.lines, direct })
    }

    /// Was it an established connection when its lines were looked up, and is the slot still its own?
    #[inline(always)]
    pub fn is_established(&self) -> bool {
        self.found_in == state::ESTABLISHED && !self.is_gone()
    }

    /// Is it an established connection, neither reset nor ended by the peer? To be asked before its bytes are looked at.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.is_established()
            && self.stack.state.load(Ordering::Acquire) == state::ESTABLISHED
            && self.status() & (status::RX_EOF | status::RESET) == 0
            && !self.has(flag::SENT_TO_NOBODY)
    }

    /// Is it an established connection on which this side may send and somebody wants bytes?
    #[inline(always)]
    pub fn may_send(&self) -> bool {
        self.is_established()
            && self.stack.state.load(Ordering::Acquire) == state::ESTABLISHED
            && match self.backend() {
                Found::Stack(stack) => stack.may_send(),
                Found::Direct(direct) => direct.may_send(),
            }
    }

    /// `state::*`; CLOSED if the slot is gone.
    #[inline(always)]
    pub fn state(&self) -> u32 {
        let state = self.stack.state.load(Ordering::Acquire);
        if self.is_gone() || state == state::FREE || self.is_cut() {
            return state::CLOSED;
        }
        // This view does not know where the words of a new connection are.
        if self.found_in == state::CONNECTING && state == state::ESTABLISHED { state::CONNECTING } else { state }
    }

    /// Is a direct connection over: reset, or closed in both directions?
    #[inline(always)]
    fn is_cut(&self) -> bool {
        match &self.direct {
            None => self.out_of_reach,
            Some(_) => {
                let ends = self.status() & (status::RESET | status::RX_EOF);
                ends & status::RESET != 0 || (ends != 0 && self.has_app(app_flags::SHUT_WR))
            }
        }
    }

    /// `status` bits. Load them before the positions they speak about.
    #[inline(always)]
    pub fn status(&self) -> u32 {
        match self.backend() {
            Found::Stack(stack) => stack.status(),
            Found::Direct(direct) => direct.status(),
        }
    }

    /// Position of the peer's newest urgent byte.
    pub fn urgent_position(&self) -> u32 {
        match &self.direct {
            Some(direct) => direct.peer().line.urgent.load(Ordering::Acquire).wrapping_sub(1),
            None => self.stack.urgent.load(Ordering::Acquire),
        }
    }

    /// Bytes of the send and of the receive ring.
    #[inline(always)]
    pub fn ring_bytes(&self) -> (u32, u32) {
        match &self.direct {
            Some(direct) => (direct.ring_bytes(), direct.ring_bytes()),
            None => (self.send_ring().capacity(), self.receive_ring().capacity()),
        }
    }

    /// The send ring.
    #[inline(always)]
    pub fn send_ring(&self) -> ByteRing<'static> {
        match self.backend() {
            Found::Stack(stack) => stack.send_ring(),
            Found::Direct(direct) => direct.send_ring(),
        }
    }

    /// The receive ring.
    #[inline(always)]
    pub fn receive_ring(&self) -> ByteRing<'static> {
        match self.backend() {
            Found::Stack(stack) => stack.receive_ring(),
            Found::Direct(direct) => direct.receive_ring(),
        }
    }

    /// Unread bytes. An impossible receive tail counts as nothing.
    #[inline(always)]
    pub fn readable(&self) -> u32 {
        match self.backend() {
            Found::Stack(stack) => stack.readable(),
            Found::Direct(direct) => direct.readable(),
        }
    }

    /// Free bytes of the send ring. An impossible send head counts as no room.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        match self.backend() {
            Found::Stack(stack) => stack.room(),
            Found::Direct(direct) => direct.room(),
        }
    }

    /// Free bytes of the send ring, which is doubled before if the stack asks for it. The caller keeps its exclusive access to the
    /// send tail.
    #[inline]
    pub fn room_after_growth(&self) -> u32 {
        if self.direct.is_none() && ring_growth::is_asked(self.session, self.app, self.stack) {
            ring_growth::double_send_ring(self.session, self.slot);
        }
        self.room()
    }

    /// Has this side asked to be notified of room?
    #[inline(always)]
    pub fn wants_room(&self) -> bool {
        let want = self.direct.as_ref().map_or(&self.app.want, |direct| &direct.own().line.want);
        want.load(Ordering::Relaxed) & want::WRITABLE != 0
    }

    /// Usable bytes of the send ring when it is empty.
    #[inline(always)]
    pub fn send_limit(&self) -> u32 {
        match self.backend() {
            Found::Stack(stack) => stack.send_limit(),
            Found::Direct(direct) => direct.send_limit(),
        }
    }

    /// Sends the `count` bytes of the ring after the tail. The caller keeps its exclusive access to the send tail.
    #[inline(always)]
    pub fn publish(&self, count: usize, urgent: bool) {
        let tail = self.app.tx_tail.load(Ordering::Relaxed).wrapping_add(count as u32);
        match self.backend() {
            Found::Stack(stack) => stack.publish(StillLocked, tail, count, urgent),
            Found::Direct(direct) => direct.publish(StillLocked, tail, count, urgent),
        };
    }

    /// Releases the first `count` unread bytes. The caller keeps its exclusive access to the receive head.
    #[inline(always)]
    pub fn consume(&self, count: u32) {
        self.consume_of(count, self.readable());
    }

    /// [`View::consume`], of so many unread bytes.
    #[inline(always)]
    pub fn consume_of(&self, count: u32, unread: u32) {
        let head = self.app.rx_head.load(Ordering::Relaxed).wrapping_add(count);
        match self.backend() {
            Found::Stack(stack) => stack.consume(StillLocked, head, count as usize, unread),
            Found::Direct(direct) => direct.consume(StillLocked, head, count as usize, unread),
        };
    }

    /// Bytes in the send ring that the stack has not taken out. An impossible send head counts as a full ring.
    pub fn queued(&self) -> u32 {
        let head = self.stack.tx_head.load(Ordering::Acquire);
        self.app.tx_tail.load(Ordering::Relaxed).wrapping_sub(head).min(self.session.geometry.tx_space())
    }

    /// The words that change with every event of the connection: bytes received, room to send, status and flags.
    pub fn words(&self) -> [u32; 4] {
        let received = self.app.rx_head.load(Ordering::Relaxed).wrapping_add(self.readable());
        let sent = self.app.tx_tail.load(Ordering::Relaxed).wrapping_add(self.room()).wrapping_add(self.files_sent());
        [received, sent, self.status(), self.app.flags.load(Ordering::Relaxed)]
    }

    /// Is there enough room to be writable? (The stack's rule for `want::WRITABLE`: a third.)
    #[inline(always)]
    pub fn writable(&self) -> bool {
        // At least 1, even if a hostile peer withholds everything.
        self.room() >= (self.send_limit() / 3).max(1) && !self.is_sending_file()
    }

    /// Is the stack sending a file?
    #[inline(always)]
    pub fn is_sending_file(&self) -> bool {
        self.has(flag::FILE) && self.file_bytes() != 0
    }

    /// Bytes of the file that have not gone.
    pub fn file_bytes(&self) -> u32 {
        self.session.region.info(self.slot).file_bytes.load(Ordering::Acquire)
    }

    /// Bytes of files that have gone since the start of the connection, modulo 2^32.
    fn files_sent(&self) -> u32 {
        if !self.has(flag::FILE) {
            return 0;
        }
        let left = self.file_bytes();
        (self.private.sent.load(Ordering::Relaxed) as u32).wrapping_sub(left)
    }

    /// May an error be pending although the connection is not over, by its status?
    #[inline]
    pub fn may_have_failed(&self, status: u32) -> bool {
        status & status::RESET != 0
            || self.has(flag::SENT_TO_NOBODY)
            || self.stack.error.load(Ordering::Acquire) != 0
            || self.soft_error().is_some()
    }

    /// The pending error, left in place.
    #[inline]
    pub fn error(&self) -> Option<i32> {
        if self.has(flag::ERROR_TAKEN) {
            return None;
        }
        self.end_error().or_else(|| self.soft_error())
    }

    /// The error that has ended the connection, if any.
    #[inline]
    pub fn end_error(&self) -> Option<i32> {
        if self.is_gone() {
            return Some(libc::ECONNRESET);
        }
        // The bytes before its end are lost, so it must not look like the end of the stream.
        if self.out_of_reach {
            return Some(libc::ECONNABORTED);
        }
        // A reset after the end of the peer's stream, as Linux reports it.
        if self.has(flag::SENT_TO_NOBODY) {
            return Some(libc::EPIPE);
        }
        match self.stack.error.load(Ordering::Acquire) {
            0 => (self.status() & status::RESET != 0).then_some(libc::ECONNRESET),
            errno => Some(errno.min(4095) as i32),
        }
    }

    /// An error that has not ended the connection and was not reported yet, as `IP_RECVERR` asks for it (RFC 9293
    /// §3.9.1.8).
    #[inline]
    fn soft_error(&self) -> Option<i32> {
        let word = self.stack.soft_error.load(Ordering::Acquire);
        soft_errno(word, self.private.soft_error.load(Ordering::Relaxed))
    }

    /// Can nothing be sent any more?
    #[inline]
    pub fn send_closed(&self) -> bool {
        self.send_closed_in(self.state())
    }

    /// As `send_closed`, for a state that the caller has loaded.
    #[inline(always)]
    pub fn send_closed_in(&self, state: u32) -> bool {
        self.has_app(app_flags::SHUT_WR)
            || self.status() & (status::TX_CLOSED | status::RESET) != 0
            || state == state::CLOSED
    }

    /// Will nothing come after the bytes in the ring?
    #[inline]
    pub fn receive_closed(&self) -> bool {
        self.receive_closed_in(self.state())
    }

    /// The end of what is received, if it has come.
    pub fn end(&self) -> End {
        let (closed, failed) = (self.receive_closed(), self.error().is_some());
        // Last, because a reset may come after the FIN, never before it.
        End { closed, fin: self.status() & status::RX_EOF != 0, failed }
    }

    /// As `receive_closed`, for a state that the caller has loaded.
    #[inline(always)]
    pub fn receive_closed_in(&self, state: u32) -> bool {
        self.status() & (status::RX_EOF | status::RESET) != 0 || self.has(flag::SHUT_RD) || state == state::CLOSED
    }
}

/// Questions to a socket whose lines are looked up each time.
impl Socket {
    /// Its lines, looked up.
    #[inline]
    pub fn view(&self) -> View {
        View::of(self.session, self.slot, self.generation)
    }

    /// `state::*`; CLOSED if the slot is gone.
    pub fn state(&self) -> u32 {
        self.view().state()
    }

    /// `status` bits. Load them before the positions they speak about.
    pub fn status(&self) -> u32 {
        self.view().status()
    }

    /// See [`View::words`].
    #[inline(never)]
    pub fn words(&self) -> [u32; 4] {
        self.view().words()
    }

    /// Unread bytes. An impossible receive tail counts as nothing.
    pub fn readable(&self) -> u32 {
        self.view().readable()
    }

    /// Is there enough room to be writable?
    pub fn writable(&self) -> bool {
        self.view().writable()
    }

    /// After an event: room is not asked for any more, unless there still is none.
    #[cold]
    pub fn event_seen(&self) {
        if self.wants_room() && self.writable() {
            self.want().fetch_and(!want::WRITABLE, Ordering::SeqCst);
            wake::has_asked_for_room::<AtomicU32>();
            if !self.writable() {
                self.want_room();
            }
        }
    }

    /// The pending error, reported only once.
    pub fn take_error(&self) -> Option<i32> {
        let error = if self.has(flag::ERROR_TAKEN) { None } else { self.view().end_error() };
        if error.is_none() {
            return self.take_soft_error();
        }
        let before = self.private().flags.fetch_or(flag::ERROR_TAKEN, Ordering::AcqRel);
        error.filter(|_| before & flag::ERROR_TAKEN == 0)
    }

    fn take_soft_error(&self) -> Option<i32> {
        let word = self.stack().soft_error.load(Ordering::Acquire);
        soft_errno(word, self.private().soft_error.swap(word, Ordering::AcqRel))
    }

    /// Can nothing be sent any more?
    pub fn send_closed(&self) -> bool {
        self.view().send_closed()
    }
}

/// The errno in `StackLine::soft_error`, unless `reported` is the same word.
#[inline]
fn soft_errno(word: u32, reported: u32) -> Option<i32> {
    let errno = (word & 0xfff) as i32;
    (word != reported && errno != 0).then_some(errno)
}

/// Receive-side end state. Load it before the data, so that no byte is missed.
#[derive(Clone, Copy)]
pub struct End {
    /// Nothing will come after the bytes in the ring.
    pub closed: bool,
    /// The peer has sent a FIN. It precedes a later reset.
    pub fin: bool,
    /// An error was pending.
    pub failed: bool,
}
