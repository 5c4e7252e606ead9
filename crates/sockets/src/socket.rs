//! A socket that lives in a slot: its lines, and what they say.

use crate::direct::{self, Direct};
use crate::doors;
use crate::private::{Private, flag, used};
use crate::session::{self, Session};
use crate::table::{self, Kind};
use core::sync::atomic::{AtomicU32, Ordering};
use towpath_ring::lines::{app_flags, state, status, want};
use towpath_ring::{AppLine, ByteRing, InfoLine, OptionsLine, Slot, StackLine};

/// A handle to it. Copies words, owns nothing.
#[derive(Clone, Copy)]
pub struct Socket {
    /// The session that it belongs to.
    pub session: &'static Session,
    /// Its slot.
    pub slot: Slot,
    /// Its generation.
    pub generation: u32,
}

impl Socket {
    /// The socket behind a descriptor, if it lives in a slot.
    #[inline]
    pub fn of(fd: i32) -> Option<Self> {
        match table::get(fd) {
            Kind::Slot { slot, generation } => Self::at(slot, generation),
            _ => None,
        }
    }

    /// The socket in a slot.
    #[inline]
    pub fn at(slot: u32, generation: u32) -> Option<Self> {
        let session = session::get()?;
        Some(Self { session, slot: session.region.slot(slot)?, generation })
    }

    /// The application's line.
    #[inline]
    pub fn app(&self) -> &'static AppLine {
        self.session.region.app(self.slot)
    }

    /// The stack's line.
    #[inline]
    pub fn stack(&self) -> &'static StackLine {
        self.session.region.stack(self.slot)
    }

    /// The other side's words, if the connection is direct and its region can be had.
    #[inline]
    pub fn direct(&self) -> Option<Direct> {
        let stack = self.stack();
        match stack.pair.load(Ordering::Relaxed) {
            0 => None,
            pair => direct::find(self.session, pair, stack.pair_slot.load(Ordering::Relaxed)),
        }
    }

    /// Does the connection lie in a region that this process cannot have?
    pub fn is_out_of_reach(&self) -> bool {
        self.stack().pair.load(Ordering::Relaxed) != 0 && self.direct().is_none()
    }

    /// The information line.
    pub fn info(&self) -> &'static InfoLine {
        self.session.region.info(self.slot)
    }

    /// The options line.
    pub fn options(&self) -> &'static OptionsLine {
        self.session.region.options(self.slot)
    }

    /// The library's own words.
    #[inline]
    pub fn private(&self) -> &'static Private {
        self.session.private(self.slot)
    }

    /// What `table` has for a descriptor of this socket.
    pub fn kind(&self) -> Kind {
        Kind::Slot { slot: self.slot.raw(), generation: self.generation }
    }

    /// Makes the words of a fresh slot ready for a connection or listener: all but the generation, and the dirty-set
    /// words and the sleepers, which go on.
    pub fn reset(session: &Session, slot: Slot, app_flags: u32) {
        let app = session.region.app(slot);
        app.tx_tail.store(0, Ordering::Relaxed);
        app.rx_head.store(0, Ordering::Relaxed);
        app.flags.store(app_flags, Ordering::Relaxed);
        app.ctx_mask.store(0, Ordering::Relaxed);
        app.want.store(0, Ordering::Relaxed);
        app.urgent_bell.store(0, Ordering::Relaxed);
        let private = session.private(slot);
        private.flags.store(0, Ordering::Relaxed);
        private.told_head.store(0, Ordering::Relaxed);
        private.low_water.store(0, Ordering::Relaxed);
        private.receive_timeout_us.store(0, Ordering::Relaxed);
        private.send_timeout_us.store(0, Ordering::Relaxed);
        private.linger_s.store(-1, Ordering::Relaxed);
        private.urgent_read.store(0, Ordering::Relaxed);
        private.urgent_passed.store(0, Ordering::Relaxed);
        for word in [
            &private.receive_buffer,
            &private.send_buffer,
            &private.kept,
            &private.users,
            &private.not_sent_low_water,
            &private.send_delay,
            &private.fast_open,
            &private.window_clamp,
            &private.path_mtu_discovery,
            &private.least_hops,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        private.sent.store(0, Ordering::Relaxed);
        private.read.store(0, Ordering::Relaxed);
    }

    /// Takes possession: the stack looks at the application's line from now on.
    pub fn adopt(&self) {
        self.app().generation.store(self.generation, Ordering::Release);
        self.private().used.store(used::LIVE, Ordering::Release);
    }

    /// Has the slot been taken away (by the stack, or because the service died)?
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.session.is_dead() || self.stack().generation.load(Ordering::Acquire) != self.generation
    }

    /// `state::*`; CLOSED if the slot is gone.
    #[inline]
    pub fn state(&self) -> u32 {
        let state = self.stack().state.load(Ordering::Acquire);
        if self.is_gone() || state == state::FREE || self.is_cut() { state::CLOSED } else { state }
    }

    /// Is a direct connection over: reset, or closed in both directions?
    #[inline]
    fn is_cut(&self) -> bool {
        if self.stack().pair.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let status = self.status();
        status & status::RESET != 0
            || (status & status::RX_EOF != 0 && self.has_app(app_flags::SHUT_WR))
            || self.direct().is_none()
    }

    /// `status` bits. To be loaded before the positions they speak about.
    #[inline]
    pub fn status(&self) -> u32 {
        let status = self.stack().status.load(Ordering::Acquire);
        self.direct().map_or(status, |direct| status | self.status_of(&direct))
    }

    /// What the other side's flags say of a direct connection, in the stack's words.
    #[inline]
    fn status_of(&self, direct: &Direct) -> u32 {
        let flags = direct.peer_flags();
        let has = |bits| flags & bits != 0;
        let aborted = has(app_flags::ABORT) && has(app_flags::CLOSED);
        let reset = aborted || self.has(flag::SENT_TO_NOBODY);
        // A reset is no end of the stream, but one may have come before it.
        let ended = has(app_flags::SHUT_WR) || has(app_flags::CLOSED) && !aborted;
        (if ended { status::RX_EOF } else { 0 })
            | (if has(app_flags::CLOSED | app_flags::SHUT_RD) { status::PEER_CLOSED } else { 0 })
            | (if reset { status::RESET | status::TX_CLOSED } else { 0 })
            | (if has(app_flags::URGENT) { status::URGENT } else { 0 })
    }

    /// Position of the peer's newest urgent byte.
    pub fn urgent_position(&self) -> u32 {
        match self.direct() {
            Some(direct) => direct.peer().line.urgent.load(Ordering::Acquire).wrapping_sub(1),
            None => self.stack().urgent.load(Ordering::Acquire),
        }
    }

    /// Bytes of the send and of the receive ring.
    #[inline]
    pub fn ring_bytes(&self) -> (u32, u32) {
        let geometry = &self.session.geometry;
        self.direct()
            .map_or((geometry.tx_bytes, geometry.rx_bytes), |direct| (direct.ring_bytes(), direct.ring_bytes()))
    }

    /// The send ring.
    #[inline]
    pub fn send_ring(&self) -> ByteRing<'static> {
        self.direct().and_then(|direct| direct.send_ring()).unwrap_or_else(|| self.session.region.tx(self.slot))
    }

    /// The receive ring.
    #[inline]
    pub fn receive_ring(&self) -> ByteRing<'static> {
        self.direct().and_then(|direct| direct.receive_ring()).unwrap_or_else(|| self.session.region.rx(self.slot))
    }

    /// Events of the socket go to these contexts (bits) too / no more.
    pub fn watch(&self, contexts: u64, on: bool) {
        let mask = &self.app().ctx_mask;
        if on {
            mask.fetch_or(contexts, Ordering::SeqCst)
        } else {
            mask.fetch_and(!contexts, Ordering::SeqCst)
        };
        if let Some(direct) = self.direct() {
            direct.watch(self, contexts, on);
        }
    }

    /// `flag::*` of the private part.
    #[inline]
    pub fn has(&self, flag: u32) -> bool {
        self.private().flags.load(Ordering::Relaxed) & flag != 0
    }

    /// Sets or clears `flag::*` bits.
    pub fn mark(&self, flag: u32, on: bool) {
        let flags = &self.private().flags;
        if on {
            flags.fetch_or(flag, Ordering::AcqRel)
        } else {
            flags.fetch_and(!flag, Ordering::AcqRel)
        };
    }

    /// Sets or clears `app_flags` bits and tells the stack.
    pub fn mark_app(&self, flag: u32, on: bool) {
        let flags = &self.app().flags;
        if on {
            flags.fetch_or(flag, Ordering::AcqRel)
        } else {
            flags.fetch_and(!flag, Ordering::AcqRel)
        };
        doors::ring(self);
    }

    /// Does the application's line have this flag?
    #[inline]
    pub fn has_app(&self, flag: u32) -> bool {
        self.app().flags.load(Ordering::Relaxed) & flag != 0
    }

    /// Unread bytes. A receive tail that cannot be is taken as nothing.
    #[inline]
    pub fn readable(&self) -> u32 {
        let (tail, most) = match self.direct() {
            Some(direct) => (direct.peer().line.tx_tail.load(Ordering::Acquire), direct.ring_bytes()),
            None => (self.stack().rx_tail.load(Ordering::Acquire), self.session.geometry.rx_bytes),
        };
        let unread = tail.wrapping_sub(self.app().rx_head.load(Ordering::Relaxed));
        if unread > most { 0 } else { unread }
    }

    /// Free bytes of the send ring. A send head that cannot be is taken as no room.
    #[inline]
    pub fn room(&self) -> u32 {
        let (head, most) = match self.direct() {
            Some(direct) => (direct.peer().line.rx_head.load(Ordering::Acquire), direct.ring_bytes()),
            None => (self.stack().tx_head.load(Ordering::Acquire), self.session.geometry.tx_bytes),
        };
        let queued = self.app().tx_tail.load(Ordering::Relaxed).wrapping_sub(head);
        most.saturating_sub(queued)
    }

    /// Is there room enough to call the socket writable? (The stack's rule for `want::WRITABLE`: a third.)
    #[inline]
    pub fn writable(&self) -> bool {
        self.room() >= self.ring_bytes().0 / 3
    }

    /// Where this side says which events it asks for.
    #[inline]
    fn want(&self) -> &'static AtomicU32 {
        self.direct().map_or(&self.app().want, |direct| &direct.own().line.want)
    }

    /// Asks for an event when there is room again. The caller looks at the room once more afterwards.
    pub fn want_room(&self) {
        self.want().fetch_or(want::WRITABLE, Ordering::SeqCst);
        // The stack frees room, fences, looks at `want`; we store `want`, fence, look at the room.
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    /// After an event: room is not asked for any more, unless there still is none.
    #[inline]
    pub fn event_seen(&self) {
        if self.want().load(Ordering::Relaxed) & want::WRITABLE != 0 && self.writable() {
            self.want().fetch_and(!want::WRITABLE, Ordering::SeqCst);
            core::sync::atomic::fence(Ordering::SeqCst);
            if !self.writable() {
                self.want_room();
            }
        }
    }

    /// The pending error, left in place. 0 = none.
    pub fn error(&self) -> i32 {
        if self.has(flag::ERROR_TAKEN) {
            return 0;
        }
        match self.end_error() {
            0 => self.soft_error(),
            errno => errno,
        }
    }

    /// Why the connection has ended, if by an error.
    fn end_error(&self) -> i32 {
        if self.is_gone() {
            return libc::ECONNRESET;
        }
        // A reset after the end of the peer's stream, as Linux reports it.
        if self.has(flag::SENT_TO_NOBODY) {
            return libc::EPIPE;
        }
        match self.stack().error.load(Ordering::Acquire) {
            0 if self.status() & status::RESET != 0 => libc::ECONNRESET,
            errno => errno.min(4095) as i32,
        }
    }

    /// The pending error, reported only once.
    pub fn take_error(&self) -> i32 {
        let error = if self.has(flag::ERROR_TAKEN) { 0 } else { self.end_error() };
        if error == 0 {
            return self.take_soft_error();
        }
        if self.private().flags.fetch_or(flag::ERROR_TAKEN, Ordering::AcqRel) & flag::ERROR_TAKEN != 0 {
            return 0;
        }
        error
    }

    /// An error that has not ended the connection and was not reported yet, as `IP_RECVERR` asks for it (RFC 9293 §3.9.1.8). 0 = none.
    fn soft_error(&self) -> i32 {
        let word = self.stack().soft_error.load(Ordering::Acquire);
        if word == self.private().soft_error.load(Ordering::Relaxed) { 0 } else { (word & 0xfff) as i32 }
    }

    fn take_soft_error(&self) -> i32 {
        let word = self.stack().soft_error.load(Ordering::Acquire);
        let before = self.private().soft_error.swap(word, Ordering::AcqRel);
        if word == before { 0 } else { (word & 0xfff) as i32 }
    }

    /// Can nothing be sent any more?
    pub fn send_closed(&self) -> bool {
        self.has_app(app_flags::SHUT_WR)
            || self.status() & (status::TX_CLOSED | status::RESET) != 0
            || self.state() == state::CLOSED
    }

    /// Will nothing come any more after what is in the ring?
    #[inline]
    pub fn receive_closed(&self) -> bool {
        self.status() & (status::RX_EOF | status::RESET) != 0
            || self.has(flag::SHUT_RD)
            || self.state() == state::CLOSED
    }
}
