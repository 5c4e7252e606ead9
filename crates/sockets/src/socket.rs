//! A socket that lives in a slot: its lines, and what they say.

use crate::buffers;
use crate::direct::{self, Direct};
use crate::doors;
use crate::private::{Private, flag, used};
use crate::session::{self, Session};
use crate::table::{self, Kind};
use crate::view::View;
use core::sync::atomic::{AtomicU32, Ordering};
use towpath_ring::lines::want;
use towpath_ring::{AppLine, InfoLine, OptionsLine, Slot, StackLine};

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

/// What a call that moves bytes is on.
pub enum Look {
    /// A socket in a slot.
    Ours(Socket),
    /// A descriptor whose calls are counted, be it a slot's or the kernel's.
    Watched,
    /// Something else.
    Other,
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

    /// As [`Socket::of`], for calls that move bytes.
    #[inline(always)]
    pub fn look(fd: i32) -> Look {
        match table::look(fd) {
            table::Look::Slot { slot, generation } => Self::at(slot, generation).map_or(Look::Other, Look::Ours),
            table::Look::Watched => Look::Watched,
            table::Look::Other => Look::Other,
        }
    }

    /// The socket in a slot.
    #[inline]
    pub fn at(slot: u32, generation: u32) -> Option<Self> {
        let session = session::numbered(slot >> table::SLOT_BITS)?;
        Some(Self { session, slot: session.region.slot(slot & ((1 << table::SLOT_BITS) - 1))?, generation })
    }

    /// The number of its slot and session, as in [`Kind::Slot`].
    #[inline]
    pub fn number(&self) -> u32 {
        self.session.number << table::SLOT_BITS | self.slot.raw()
    }

    /// Is it of another family's region, on which no context of this process tells of events?
    #[inline]
    pub fn is_foreign(&self) -> bool {
        !self.session.tells
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
        Kind::Slot { slot: self.number(), generation: self.generation }
    }

    /// Makes the words of a fresh slot ready for a connection or listener: all but the generation, and the dirty-set
    /// words and the sleepers, which go on.
    pub fn reset(session: &Session, slot: Slot, app_flags: u32) {
        let app = session.region.app(slot);
        app.tx_tail.store(0, Ordering::Relaxed);
        app.rx_head.store(0, Ordering::Relaxed);
        app.flags.store(app_flags, Ordering::Relaxed);
        app.ctx_mask.store(0, Ordering::Relaxed);
        app.exclusive.store(0, Ordering::Relaxed);
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
        for word in [&private.send_limit, &private.receive_limit, &private.kept, &private.users] {
            word.store(0, Ordering::Relaxed);
        }
        private.sent.store(0, Ordering::Relaxed);
        private.read.store(0, Ordering::Relaxed);
    }

    /// Takes possession: the stack looks at the application's line from now on.
    pub fn adopt(&self) {
        self.app().generation.store(self.generation, Ordering::Release);
        self.private().used.store(used::LIVE, Ordering::Release);
        buffers::apply(self);
    }

    /// Its lines, looked up.
    #[inline]
    pub fn view(&self) -> View {
        View::of(self.session, self.slot, self.generation)
    }

    /// Has the slot been taken away (by the stack, or because the service died)?
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.session.is_dead() || self.stack().generation.load(Ordering::Acquire) != self.generation
    }

    /// `state::*`; CLOSED if the slot is gone.
    pub fn state(&self) -> u32 {
        self.view().state()
    }

    /// `status` bits. To be loaded before the positions they speak about.
    pub fn status(&self) -> u32 {
        self.view().status()
    }

    /// Events of the socket go to these contexts (bits) too / no more.
    pub fn watch(&self, contexts: u64, on: bool) {
        if self.is_foreign() {
            return;
        }
        let mask = &self.app().ctx_mask;
        if on {
            mask.fetch_or(contexts, Ordering::SeqCst)
        } else {
            self.app().exclusive.fetch_and(!contexts, Ordering::SeqCst);
            mask.fetch_and(!contexts, Ordering::SeqCst)
        };
        if let Some(direct) = self.direct() {
            direct.watch(self, contexts, on);
        }
    }

    /// Are these contexts to be woken one at a time (`EPOLLEXCLUSIVE`): for new connections, and for data?
    pub fn share(&self, contexts: u64, on: bool) {
        if self.is_foreign() {
            return;
        }
        let mask = &self.app().exclusive;
        if on {
            mask.fetch_or(contexts, Ordering::SeqCst)
        } else {
            mask.fetch_and(!contexts, Ordering::SeqCst)
        };
        if let Some(direct) = self.direct() {
            direct.share(contexts, on);
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

    /// See [`View::words`].
    #[inline(never)]
    pub fn words(&self) -> [u32; 4] {
        self.view().words()
    }

    /// Unread bytes. A receive tail that cannot be is taken as nothing.
    pub fn readable(&self) -> u32 {
        self.view().readable()
    }

    /// Is there room enough to call the socket writable?
    pub fn writable(&self) -> bool {
        self.view().writable()
    }

    /// Where this side says which events it asks for.
    #[inline]
    fn want(&self) -> &'static AtomicU32 {
        self.direct().map_or(&self.app().want, |direct| &direct.own().line.want)
    }

    /// Has an event been asked for when there is room again?
    #[inline]
    pub fn wants_room(&self) -> bool {
        self.want().load(Ordering::Relaxed) & want::WRITABLE != 0
    }

    /// Asks for an event when there is room again. The caller looks at the room once more afterwards.
    pub fn want_room(&self) {
        self.want().fetch_or(want::WRITABLE, Ordering::SeqCst);
        // The stack frees room, fences, looks at `want`; we store `want`, fence, look at the room.
        core::sync::atomic::fence(Ordering::SeqCst);
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
