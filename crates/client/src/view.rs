//! A socket's lines, looked up once and then read as often as a call needs. A view of a connection that is still
//! being made says nothing about later, because the connection may become a direct one.

use crate::direct::{self, Direct};
use crate::held;
use crate::private::{Private, flag};
use crate::session::Session;
use crate::socket::Socket;
use core::sync::atomic::Ordering;
use towpath_ring::lines::{app_flags, state, status, want};
use towpath_ring::{AppLine, ByteRing, Slot, StackLine};

/// The lines of a socket. Rarely called functions look them up again, so that hot ones keep them in registers.
#[derive(Clone, Copy)]
pub struct View {
    /// The session that it belongs to.
    pub session: &'static Session,
    /// Its slot.
    pub slot: Slot,
    generation: u32,
    /// The application's line.
    pub app: &'static AppLine,
    /// The stack's line.
    pub stack: &'static StackLine,
    /// The application's own words.
    pub private: &'static Private,
    /// The other side, if the connection is direct and its region can be had.
    pub direct: Option<Direct>,
    /// It is direct, and its region cannot be had.
    out_of_reach: bool,
    /// The state before the lines were looked up; CLOSED if they cannot be had.
    found_in: u32,
}

impl View {
    /// The lines of a slot in use.
    #[inline(always)]
    pub fn of(session: &'static Session, slot: Slot, generation: u32) -> Self {
        let stack = session.region.stack(slot);
        // The stack says where the connection's words are before it says ESTABLISHED.
        let found_in = stack.state.load(Ordering::Acquire);
        let (direct, out_of_reach) = match stack.pair.load(Ordering::Relaxed) {
            0 => (None, false),
            pair => {
                let direct = direct::find(session, pair, stack.pair_slot.load(Ordering::Relaxed));
                (direct, direct.is_none())
            }
        };
        let (app, private) = (session.region.app(slot), session.private(slot));
        let found_in = if out_of_reach { state::CLOSED } else { found_in };
        Self { session, slot, generation, app, stack, private, direct, out_of_reach, found_in }
    }

    /// Was it an established connection when its lines were looked up, and is the slot still its own?
    #[inline(always)]
    pub fn is_established(&self) -> bool {
        self.found_in == state::ESTABLISHED && !self.is_gone()
    }

    /// Has the slot been taken away (by the stack, or because the service died)?
    #[inline(always)]
    pub fn is_gone(&self) -> bool {
        self.session.is_dead() || self.stack.generation.load(Ordering::Acquire) != self.generation
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
        let status = self.stack.status.load(Ordering::Acquire);
        match &self.direct {
            None => status,
            Some(direct) => match direct.peer_flags() & TOLD {
                0 if !self.has(flag::SENT_TO_NOBODY) => status,
                flags => status | status_of(flags, self.has(flag::SENT_TO_NOBODY)),
            },
        }
    }

    /// The socket that they are of.
    #[inline(always)]
    pub fn socket(&self) -> Socket {
        Socket { session: self.session, slot: self.slot, generation: self.generation }
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
            None => (self.session.geometry.tx_bytes, self.session.geometry.rx_bytes),
        }
    }

    /// The send ring.
    #[inline(always)]
    pub fn send_ring(&self) -> ByteRing<'static> {
        let direct = self.direct.as_ref().and_then(Direct::send_ring);
        direct.unwrap_or_else(|| self.session.region.tx(self.slot))
    }

    /// The receive ring.
    #[inline(always)]
    pub fn receive_ring(&self) -> ByteRing<'static> {
        let direct = self.direct.as_ref().and_then(Direct::receive_ring);
        direct.unwrap_or_else(|| self.session.region.rx(self.slot))
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

    /// Unread bytes. An impossible receive tail counts as nothing.
    #[inline(always)]
    pub fn readable(&self) -> u32 {
        let (tail, most) = match &self.direct {
            Some(direct) => (self.sent_by(direct), direct.ring_bytes()),
            None => (self.stack.rx_tail.load(Ordering::Acquire), self.session.geometry.rx_bytes),
        };
        let unread = tail.wrapping_sub(self.app.rx_head.load(Ordering::Relaxed));
        if unread > most { 0 } else { unread }
    }

    /// How far the other side of a direct connection has sent.
    #[inline(always)]
    fn sent_by(&self, direct: &Direct) -> u32 {
        let line = &direct.peer().line;
        // The held bytes are looked at after the tail.
        let shown = line.tx_tail.load(Ordering::Acquire);
        if line.held_ms.load(Ordering::Relaxed) == 0 { shown } else { sent_with_held(self.socket(), line, shown) }
    }

    /// Free bytes of the send ring. An impossible send head counts as no room.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        let (head, most) = match &self.direct {
            // Bytes that the other side withholds count as queued.
            Some(direct) => (
                direct.peer().line.rx_head.load(Ordering::Acquire).wrapping_sub(direct.withheld()),
                self.private.send_limit.load(Ordering::Relaxed),
            ),
            None => (self.stack.tx_head.load(Ordering::Acquire), self.private.send_limit.load(Ordering::Relaxed)),
        };
        let queued = self.app.tx_tail.load(Ordering::Relaxed).wrapping_sub(head);
        most.saturating_sub(queued)
    }

    /// Usable bytes of the send ring when it is empty.
    #[inline(always)]
    pub fn send_limit(&self) -> u32 {
        let limit = self.private.send_limit.load(Ordering::Relaxed);
        self.direct.as_ref().map_or(limit, |direct| limit.saturating_sub(direct.withheld()))
    }

    /// Bytes in the send ring that the stack has not taken out. An impossible send head counts as a full ring.
    pub fn queued(&self) -> u32 {
        let head = self.stack.tx_head.load(Ordering::Acquire);
        self.app.tx_tail.load(Ordering::Relaxed).wrapping_sub(head).min(self.session.geometry.tx_bytes)
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
            || self.soft_error() != 0
    }

    /// The pending error, left in place. 0 = none.
    #[inline]
    pub fn error(&self) -> i32 {
        if self.has(flag::ERROR_TAKEN) {
            return 0;
        }
        match self.end_error() {
            0 => self.soft_error(),
            errno => errno,
        }
    }

    /// The error that has ended the connection, if any.
    #[inline]
    pub fn end_error(&self) -> i32 {
        if self.is_gone() {
            return libc::ECONNRESET;
        }
        // A reset after the end of the peer's stream, as Linux reports it.
        if self.has(flag::SENT_TO_NOBODY) {
            return libc::EPIPE;
        }
        match self.stack.error.load(Ordering::Acquire) {
            0 if self.status() & status::RESET != 0 => libc::ECONNRESET,
            errno => errno.min(4095) as i32,
        }
    }

    /// An error that has not ended the connection and was not reported yet, as `IP_RECVERR` asks for it (RFC 9293
    /// §3.9.1.8). 0 = none.
    #[inline]
    fn soft_error(&self) -> i32 {
        let word = self.stack.soft_error.load(Ordering::Acquire);
        if word == self.private.soft_error.load(Ordering::Relaxed) { 0 } else { (word & 0xfff) as i32 }
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
        let (closed, failed) = (self.receive_closed(), self.error() != 0);
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
            core::sync::atomic::fence(Ordering::SeqCst);
            if !self.writable() {
                self.want_room();
            }
        }
    }

    /// The pending error, reported only once.
    pub fn take_error(&self) -> i32 {
        let error = if self.has(flag::ERROR_TAKEN) { 0 } else { self.view().end_error() };
        if error == 0 {
            return self.take_soft_error();
        }
        if self.private().flags.fetch_or(flag::ERROR_TAKEN, Ordering::AcqRel) & flag::ERROR_TAKEN != 0 {
            return 0;
        }
        error
    }

    fn take_soft_error(&self) -> i32 {
        let word = self.stack().soft_error.load(Ordering::Acquire);
        let before = self.private().soft_error.swap(word, Ordering::AcqRel);
        if word == before { 0 } else { (word & 0xfff) as i32 }
    }

    /// Can nothing be sent any more?
    pub fn send_closed(&self) -> bool {
        self.view().send_closed()
    }
}

/// How far the other side of a direct connection has sent while it holds bytes back. It takes the socket by value, so
/// that the caller's view stays in registers.
#[cold]
fn sent_with_held(socket: Socket, line: &AppLine, shown: u32) -> u32 {
    held::sent(line, shown, socket.status() & status::RX_EOF != 0)
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

/// The other side's flags of a direct connection as `status` bits. `to_nobody`: bytes were sent after its end.
#[cold]
fn status_of(flags: u32, to_nobody: bool) -> u32 {
    let has = |bits| flags & bits != 0;
    let aborted = has(app_flags::ABORT) && has(app_flags::CLOSED);
    // A reset is no end of the stream, but one may have come before it.
    let ended = has(app_flags::SHUT_WR) || has(app_flags::CLOSED) && !aborted;
    (if ended { status::RX_EOF } else { 0 })
        | (if has(app_flags::CLOSED | app_flags::SHUT_RD) { status::PEER_CLOSED } else { 0 })
        | (if aborted || to_nobody { status::RESET | status::TX_CLOSED } else { 0 })
        | (if has(app_flags::URGENT) { status::URGENT } else { 0 })
}

/// The flags of the other side of a direct connection that stand for a status.
const TOLD: u32 = app_flags::ABORT | app_flags::CLOSED | app_flags::SHUT_WR | app_flags::SHUT_RD | app_flags::URGENT;
