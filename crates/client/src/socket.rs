//! A socket in a slot: a handle to its lines. The questions that need more than one of its words are in
//! [`view`](crate::view).

use crate::direct::{self, Direct};
use crate::private::{Private, flag};
use crate::session::{self, Session};
use core::sync::atomic::{AtomicU32, Ordering};
use towpath_ring::lines::want;
use towpath_ring::{AppLine, InfoLine, OptionsLine, Slot, StackLine, ring_size, wake};

/// Bits of a slot's number within its session.
pub const SLOT_BITS: u32 = 21;

/// A handle to a socket in a slot. It owns nothing.
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
    /// The socket of a [`Socket::number`].
    #[inline]
    pub fn at(slot: u32, generation: u32) -> Option<Self> {
        let session = session::numbered(slot >> SLOT_BITS)?;
        Some(Self { session, slot: session.region.slot(slot & ((1 << SLOT_BITS) - 1))?, generation })
    }

    /// The number of its slot; the bits from [`SLOT_BITS`] on are the number of its session.
    #[inline]
    pub fn number(&self) -> u32 {
        self.session.number << SLOT_BITS | self.slot.raw()
    }

    /// Can contexts of this process get its events? Not if the socket is in another client's region.
    #[inline]
    pub fn can_subscribe(&self) -> bool {
        self.session.can_subscribe
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

    /// The peer's words, if the connection is direct and its region is mapped or can be.
    #[inline]
    pub fn direct(&self) -> Option<Direct> {
        let stack = self.stack();
        match stack.pair.load(Ordering::Relaxed) {
            0 => None,
            pair => direct::find(self.session, pair, stack.pair_slot.load(Ordering::Relaxed)),
        }
    }

    /// Is the connection in a pair region that this process cannot map?
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

    /// Resets the words of a claimed slot for a connection or listener. The generation, the dirty-set words and the
    /// sleepers stay.
    pub fn reset(session: &Session, slot: Slot, app_flags: u32) {
        let app = session.region.app(slot);
        app.tx_tail.store(0, Ordering::Relaxed);
        app.rx_head.store(0, Ordering::Relaxed);
        app.flags.store(app_flags, Ordering::Relaxed);
        app.ctx_mask.store(0, Ordering::Relaxed);
        app.exclusive.store(0, Ordering::Relaxed);
        if app.want.load(Ordering::Relaxed) & ring_size::IDLE != 0 {
            // The last connection may have ended while it was idle. Nothing of the ring is known to be touched then.
            session.private(slot).touched.store(0, Ordering::Relaxed);
        }
        let (send, receive) = session.geometry.first_halvings();
        let sizes = ring_size::SEND.word(send) | ring_size::RECEIVE_GRANTED.word(receive);
        app.want.store(sizes, Ordering::Relaxed);
        app.urgent_doorbell.store(0, Ordering::Relaxed);
        let private = session.private(slot);
        private.flags.store(0, Ordering::Relaxed);
        private.notified_head.store(0, Ordering::Relaxed);
        private.low_water.store(0, Ordering::Relaxed);
        private.receive_timeout_us.store(0, Ordering::Relaxed);
        private.send_timeout_us.store(0, Ordering::Relaxed);
        private.linger_s.store(-1, Ordering::Relaxed);
        private.urgent_read.store(0, Ordering::Relaxed);
        private.urgent_passed.store(0, Ordering::Relaxed);
        private.peek.store(0, Ordering::Relaxed);
        for word in [&private.send_limit, &private.receive_limit, &private.emulated, &private.users, &private.accepts] {
            word.store(0, Ordering::Relaxed);
        }
        // No stack says so.
        private.sizes.store(u32::MAX, Ordering::Relaxed);
        private.sent.store(0, Ordering::Relaxed);
        private.read.store(0, Ordering::Relaxed);
    }

    /// Has the slot been taken away, by the stack or by the death of the service?
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.session.is_dead() || self.stack().generation.load(Ordering::Acquire) != self.generation
    }

    /// Is its descriptor the kernel's own socket, which listens too? Then connections come to both halves.
    #[inline]
    pub fn kernel_half(&self) -> bool {
        self.has(flag::KERNEL_HALF)
    }

    /// Events of the socket also go to these contexts (bits).
    pub fn subscribe(&self, contexts: u64) {
        if !self.can_subscribe() {
            return;
        }
        self.app().ctx_mask.fetch_or(contexts, Ordering::SeqCst);
        if let Some(direct) = self.direct() {
            direct.subscribe(self.slot, contexts);
        }
    }

    /// Events of the socket no longer go to these contexts (bits).
    pub fn unsubscribe(&self, contexts: u64) {
        if !self.can_subscribe() {
            return;
        }
        self.app().exclusive.fetch_and(!contexts, Ordering::SeqCst);
        self.app().ctx_mask.fetch_and(!contexts, Ordering::SeqCst);
        if let Some(direct) = self.direct() {
            direct.unsubscribe(contexts);
        }
    }

    /// Sets whether these contexts are woken one at a time (`EPOLLEXCLUSIVE`), for new connections and for data.
    pub fn share(&self, contexts: u64, on: bool) {
        if !self.can_subscribe() {
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

    /// Does the application's line have this flag?
    #[inline]
    pub fn has_app(&self, flag: u32) -> bool {
        self.app().flags.load(Ordering::Relaxed) & flag != 0
    }

    /// The word in which this side asks for events.
    #[inline]
    pub(crate) fn want(&self) -> &'static AtomicU32 {
        self.direct().map_or(&self.app().want, |direct| &direct.own().line.want)
    }

    /// Has this side asked to be notified of room?
    #[inline]
    pub fn wants_room(&self) -> bool {
        self.want().load(Ordering::Relaxed) & want::WRITABLE != 0
    }

    /// Asks to be notified when there is room again. The caller must look at the room once more afterwards.
    pub fn want_room(&self) {
        self.want().fetch_or(want::WRITABLE, Ordering::SeqCst);
        wake::has_asked_for_room::<AtomicU32>();
    }
}
