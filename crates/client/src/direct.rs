//! Direct connections. The peer's words, its event bitmap and its doorbells are in a pair region, in place of the
//! stack's.
//!
//! Positions that this side relies on are in its own region, where the peer cannot write. Every word of the peer is
//! loaded once, and checked where it is used.

use crate::descriptor_reserve;
use crate::descriptors;
use crate::session::{SESSIONS, Session};
use crate::sys;
use crate::without_sigpipe;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::fd::AsFd;
use towpath_ring::dirty::full_fence;
use towpath_ring::exclusive::notify_one;
use towpath_ring::lines::{app_flags, pair_slot};
use towpath_ring::pair::{CONTEXTS, End, PLACES, PairLines};
use towpath_ring::{ByteRing, PairGeometry, PairRegion, Slot, wake};

use crate::lock::Lock;
use crate::pair_place::{Doorbell, Mapped, Place};

mod events;

pub use events::{Next, OnlyEvent, Raised, arm, disarm, is_empty, is_used};
pub(crate) use events::{drain, only};

/// Held while the service is asked for a region or a doorbell.
static ASKING: Lock = Lock::new();
/// Whose turn it is: the context after the one that was last woken alone.
static TURN: AtomicU32 = AtomicU32::new(0);
/// The numbers of this process's own doorbells, by session and context.
static OWN_DOORBELLS: [[AtomicU32; CONTEXTS]; SESSIONS] = [const { [const { AtomicU32::new(0) }; CONTEXTS] }; SESSIONS];

/// In a forked child.
pub fn forked() {
    ASKING.reset();
}

/// The session has ended: its pair regions' memory goes. Their addresses stay taken, as those of the session itself do, until
/// pairs of another session take their places.
pub(crate) fn forget_session(session: &Session) {
    session.pairs.store(0, Ordering::SeqCst);
    session.places.iter().for_each(|place| place.number.store(0, Ordering::Release));
    for mapped in session.places.iter().filter_map(Place::mapped) {
        // Without it the memory stays, too.
        let _ = mapped.region.retire();
        for doorbell in mapped.doorbells.iter().flatten() {
            doorbell.number.store(0, Ordering::Release);
            let fd = doorbell.fd.swap(-1, Ordering::AcqRel);
            if fd >= 0 {
                descriptors::unprotect(fd);
            }
        }
        mapped.spare();
    }
}

/// The most waits in a row that sleep without spinning, after spins that failed.
const LONGEST_REST: u32 = 63;
/// How many waits are still to sleep without spinning, and how many that were after the last spin that failed.
static REST: AtomicU32 = AtomicU32::new(0);
static LAST_REST: AtomicU32 = AtomicU32::new(0);

/// Before a sleep: spins for a limited time until `ready` holds.
///
/// Spinning pays more with a direct connection than with a stack: no third thread needs the CPU, and both sides save a
/// wake-up. It fails if the peer has no CPU of its own. Each failure makes it rarer, down to every 64th wait.
pub fn spin(session: &Session, mut ready: impl FnMut() -> bool) -> bool {
    if session.pairs.load(Ordering::Relaxed) == 0 {
        return wake::spin_until(session.spin_us, ready);
    }
    if ready() {
        return true;
    }
    let rest = REST.load(Ordering::Relaxed);
    if rest > 0 {
        REST.store(rest - 1, Ordering::Relaxed);
        return false;
    }
    let came = wake::spin_until(session.direct_spin_us, ready);
    let rest = if came { 0 } else { (2 * LAST_REST.load(Ordering::Relaxed) + 1).min(LONGEST_REST) };
    REST.store(rest, Ordering::Relaxed);
    LAST_REST.store(rest, Ordering::Relaxed);
    came
}

/// One end of a direct connection.
#[derive(Clone, Copy)]
pub struct Direct {
    mapped: &'static Mapped,
    own: &'static PairLines,
    peer: &'static PairLines,
    end: End,
    pair: u32,
    word: u32,
}

/// The place that a stack line names.
#[inline(always)]
fn place_of(session: &Session, word: u32) -> &Place {
    // No word has a higher place.
    &session.places[pair_slot::place(word) as usize % PLACES]
}

/// The end that a stack line names. Maps the pair region if this process has not mapped it yet; `None` if that fails.
#[inline(always)]
pub fn find(session: &Session, pair: u32, word: u32) -> Option<Direct> {
    if place_of(session, word).number.load(Ordering::Acquire) != pair {
        map(session, pair, word)?;
    }
    found(session, pair, word)
}

/// [`find`], if the region is mapped already. It may have been replaced since.
#[inline(always)]
pub fn find_mapped(session: &Session, pair: u32, word: u32) -> Option<Direct> {
    if place_of(session, word).number.load(Ordering::Acquire) != pair {
        return None;
    }
    found(session, pair, word)
}

#[inline(always)]
fn found(session: &Session, pair: u32, word: u32) -> Option<Direct> {
    Some(Direct::of(place_of(session, word).mapped()?, pair, word))
}

#[cold]
#[inline(never)]
fn map(session: &Session, pair: u32, word: u32) -> Option<()> {
    let (number, place) = (pair_slot::place(word), place_of(session, word));
    let _asking = ASKING.lock()?;
    if place.number.load(Ordering::Acquire) == pair {
        return Some(());
    }
    let ask = || session.request_pair(number, pair);
    let (geometry, memfd) = ask().or_else(|| {
        // The program may have no descriptor left for the region.
        let _room = descriptor_reserve::Room::make();
        ask()
    })?;
    place.number.store(0, Ordering::Release);
    // A pair that this one takes the place of: one of the session, or of a session that has ended.
    let former = place.mapped().filter(|mapped| mapped.region.geometry() == geometry);
    let mapped = match former.or_else(|| Mapped::take_spare(geometry)) {
        Some(mapped) => {
            if mapped.region.replace(memfd.as_fd(), geometry, pair).is_err() {
                if former.is_none() {
                    mapped.spare();
                }
                return None;
            }
            mapped.sides.store(0, Ordering::Release);
            mapped.doorbells.iter().flatten().for_each(|doorbell| doorbell.number.store(0, Ordering::Release));
            mapped
        }
        None => Box::leak(Box::new(Mapped::new(PairRegion::map(memfd.as_fd(), geometry, pair).ok()?))),
    };
    place.mapped.store(core::ptr::from_ref(mapped).cast_mut(), Ordering::Release);
    drop(memfd);
    descriptor_reserve::refill(session.control());
    place.number.store(pair, Ordering::Release);
    // Only sessions of this process itself can subscribe.
    if session.can_subscribe {
        session.pairs.fetch_or(1 << number, Ordering::SeqCst);
    }
    Some(())
}

impl Direct {
    #[inline(always)]
    fn of(mapped: &'static Mapped, pair: u32, word: u32) -> Self {
        let end = mapped.region.end(pair_slot::slot(word), pair_slot::side(word));
        let (own, peer) = (mapped.region.lines_of(end), mapped.region.lines_of(end.other()));
        Self { mapped, own, peer, end, pair, word }
    }
    #[inline]
    fn slot(&self) -> u32 {
        pair_slot::slot(self.word)
    }
    /// Number of the pair.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.pair
    }
    #[inline]
    fn side(&self) -> usize {
        pair_slot::side(self.word)
    }
    /// This side's lines.
    #[inline]
    pub fn own(&self) -> &'static PairLines {
        self.own
    }
    /// The peer's lines.
    #[inline]
    pub fn peer(&self) -> &'static PairLines {
        self.peer
    }
    /// Bytes of each ring.
    #[inline]
    pub fn ring_bytes(&self) -> u32 {
        self.geometry().ring_bytes
    }
    /// The sizes of the region.
    #[inline]
    pub fn geometry(&self) -> PairGeometry {
        self.mapped.region.geometry()
    }
    /// Tells the peer how much of both rings this side withholds.
    pub fn withhold(&self, send: u32, receive: u32) {
        self.own().send_withheld.store(send, Ordering::Release);
        self.own().receive_withheld.store(receive, Ordering::Release);
    }
    /// How many bytes of the send ring the peer withholds because of its `SO_RCVBUF`.
    #[inline]
    pub fn withheld(&self) -> u32 {
        self.peer().receive_withheld.load(Ordering::Relaxed)
    }
    /// The ring into which this side writes.
    #[inline]
    pub fn send_ring(&self) -> Option<ByteRing<'static>> {
        self.mapped.region.ring_of(self.end)
    }
    /// [`ByteRing::span`] of that ring.
    #[inline(always)]
    pub(crate) fn send_span(&self, at: u32, len: usize) -> Option<*mut u8> {
        self.mapped.region.span(self.end, at, len)
    }
    /// The ring into which the peer writes.
    #[inline]
    pub fn receive_ring(&self) -> Option<ByteRing<'static>> {
        self.mapped.region.ring_of(self.end.other())
    }
    /// [`PairRegion::piece`] of that ring.
    #[inline(always)]
    pub(crate) fn receive_piece(&self, at: u32, unread: u32, most: usize) -> Option<(*mut u8, usize)> {
        self.mapped.region.piece(self.end.other(), at, unread, most)
    }
    /// The peer's `app_flags`.
    #[inline]
    pub fn peer_flags(&self) -> u32 {
        self.peer().line.flags.load(Ordering::Acquire)
    }

    /// Publishes the send tail and notifies the peer. The caller holds `sending`.
    #[inline(always)]
    pub fn show_sent(&self, session: &Session, tail: u32) {
        let line = &self.own().line;
        line.tx_tail.store(tail, Ordering::Release);
        if line.held_ms.load(Ordering::Relaxed) != 0 {
            line.held_ms.store(0, Ordering::Release);
        }
        self.notify(session);
    }

    /// Publishes the receive head, and notifies the peer if it waits for room. The caller holds `receiving`.
    #[inline(always)]
    pub fn show_read(&self, session: &Session, head: u32) {
        self.own().line.rx_head.store(head, Ordering::Release);
        let peer_lines = self.peer();
        let peer = &peer_lines.line;
        if wake::asks_for_room(&peer.want) {
            let queued = peer.tx_tail.load(Ordering::Acquire).wrapping_sub(head);
            let withheld = peer_lines.send_withheld.load(Ordering::Relaxed);
            let most = self.ring_bytes().saturating_sub(withheld);
            let most = most.saturating_sub(self.own().receive_withheld.load(Ordering::Relaxed));
            if most.saturating_sub(queued) >= most / 3 {
                notify_room(session, self.pair, self.word);
            }
        }
    }

    /// Publishes the flags that the peer needs and that are never cleared. Notifies it of new ones.
    pub fn show_flags(&self, session: &Session, flags: u32) {
        let shown = &self.own().line.flags;
        let flags = flags & (app_flags::SHUT_WR | app_flags::SHUT_RD | app_flags::CLOSED | app_flags::ABORT);
        if shown.fetch_or(flags, Ordering::AcqRel) & flags != flags {
            self.notify(session);
        }
    }

    /// Announces an urgent byte that ends at `tail`, before that tail is published. The caller holds `sending`.
    pub fn show_urgent(&self, tail: u32) {
        let line = &self.own().line;
        line.urgent.store(tail, Ordering::Release);
        line.flags.fetch_or(app_flags::URGENT, Ordering::AcqRel);
    }

    /// Notifies the doorbell that the peer has named for urgent bytes.
    pub fn announce(&self, session: &Session) {
        let context = self.peer().line.urgent_doorbell.load(Ordering::Acquire).wrapping_sub(1) as usize;
        if context < CONTEXTS {
            notify_doorbell(self.mapped, self.pair, self.word, session, context);
        }
    }

    /// Notifies the peer of a change: threads that sleep on its socket, and contexts that subscribe to it.
    #[inline(always)]
    pub fn notify(&self, session: &Session) {
        let peer = self.peer();
        if wake::must_wake(&peer.line.sleepers) {
            peer.event_seq.fetch_add(1, Ordering::SeqCst);
            wake::futex_wake(&peer.event_seq);
        }
        // Who takes the event knows by then what was stored before the context was put there.
        let mut contexts = peer.line.ctx_mask.load(Ordering::Acquire);
        if contexts == 0 {
            return;
        }
        self.own().line.raised().store(stamp(), Ordering::Relaxed);
        let exclusive = peer.line.exclusive.load(Ordering::Relaxed);
        if exclusive & contexts != 0 {
            contexts = notify_exclusive(self.mapped, self.pair, self.word, session, (contexts, exclusive));
        }
        while contexts != 0 {
            let context = contexts.trailing_zeros() as usize;
            contexts &= contexts - 1;
            let bitmap = self.mapped.region.event_bitmap(1 - self.side(), context);
            bitmap.post(self.slot());
            if bitmap.must_notify() {
                notify_doorbell(self.mapped, self.pair, self.word, session, context);
            }
        }
    }

    /// Events of this end, whose slot in this client's own region is `slot`, also go to these contexts (bits).
    pub fn subscribe(&self, slot: Slot, contexts: u64) {
        self.mapped.sides.fetch_or(1 << self.side(), Ordering::SeqCst);
        if let Some(owner) = self.mapped.owners[self.side()].get(self.slot() as usize) {
            owner.store(slot.raw(), Ordering::Release);
        }
        self.own().line.ctx_mask.fetch_or(contexts, Ordering::SeqCst);
        // The caller looks for events once more after it. The peer fences, too, before it reads the mask.
        full_fence();
    }

    /// Events of this end no longer go to these contexts (bits).
    pub fn unsubscribe(&self, contexts: u64) {
        self.share(contexts, false);
        self.own().line.ctx_mask.fetch_and(!contexts, Ordering::SeqCst);
    }

    /// [`Socket::share`](crate::socket::Socket::share) for a direct connection.
    pub fn share(&self, contexts: u64, on: bool) {
        let mask = &self.own().line.exclusive;
        if on {
            mask.fetch_or(contexts, Ordering::SeqCst)
        } else {
            mask.fetch_and(!contexts, Ordering::SeqCst)
        };
    }

    /// Names the context whose doorbell is to be notified of urgent bytes.
    pub fn name_urgent_doorbell(&self, session: &Session, context: Option<u32>) {
        if let Some(context) = context {
            let words = self.mapped.region.bitmap_words(self.side(), context as usize);
            words.doorbell.store(own_doorbell(session, context), Ordering::Release);
        }
        self.own().line.urgent_doorbell.store(context.map_or(0, |context| context + 1), Ordering::Release);
    }
}

/// A time for an application line's `raised`: times of the last half minute can be compared.
#[inline(always)]
pub fn stamp() -> u32 {
    (sys::ticks() >> 5) as u32
}

/// Notifies the peer that there is room.
#[cold]
fn notify_room(session: &Session, pair: u32, word: u32) {
    if let Some(direct) = find(session, pair, word) {
        direct.notify(session);
    }
}

/// Notifies those contexts of the peer that share the socket (`EPOLLEXCLUSIVE`): all that are awake and, in turn, one
/// that sleeps. The end of a stream notifies all. Returns the contexts that are still to be notified.
#[cold]
fn notify_exclusive(
    mapped: &Mapped,
    pair: u32,
    word: u32,
    session: &Session,
    (contexts, exclusive): (u64, u64),
) -> u64 {
    let (slot, side) = (pair_slot::slot(word), pair_slot::side(word));
    let ended = app_flags::SHUT_WR | app_flags::SHUT_RD | app_flags::CLOSED | app_flags::ABORT;
    if mapped.region.lines(slot, side).line.flags.load(Ordering::Relaxed) & ended != 0 {
        return contexts;
    }
    let next = notify_one(exclusive & contexts, TURN.load(Ordering::Relaxed), |context| {
        let bitmap = mapped.region.event_bitmap(1 - side, context);
        bitmap.post(slot);
        bitmap.must_notify() && notify_doorbell(mapped, pair, word, session, context)
    });
    TURN.store(next, Ordering::Relaxed);
    contexts & !exclusive
}

/// Notifies a doorbell of the peer. False: nobody listens to it any more.
fn notify_doorbell(mapped: &Mapped, pair: u32, word: u32, session: &Session, context: usize) -> bool {
    let owner = 1 - pair_slot::side(word);
    let wanted = mapped.region.bitmap_words(owner, context).doorbell.load(Ordering::Acquire);
    let doorbell = &mapped.doorbells[owner][context];
    if doorbell.number.load(Ordering::Acquire) != wanted {
        fetch_doorbell(session, pair, word, doorbell, context as u32, wanted);
    }
    let fd = doorbell.fd.load(Ordering::Acquire);
    fd >= 0 && wanted != 0 && without_sigpipe::notify(fd)
}

#[cold]
fn fetch_doorbell(session: &Session, pair: u32, word: u32, doorbell: &Doorbell, context: u32, wanted: u32) {
    let Some(_asking) = ASKING.lock() else { return };
    if doorbell.number.load(Ordering::Acquire) == wanted {
        return;
    }
    let Some(fresh) =
        session.request_doorbell(pair_slot::place(word), pair, context).and_then(|fd| descriptors::protect(fd).ok())
    else {
        return;
    };
    let known = doorbell.fd.load(Ordering::Acquire);
    if known < 0 {
        doorbell.fd.store(fresh, Ordering::Release);
    } else {
        // The descriptor keeps its number, because another thread may be notifying through it.
        let _ = sys::dup3(fresh, known, libc::O_CLOEXEC);
        descriptors::unprotect(fresh);
    }
    doorbell.number.store(wanted, Ordering::Release);
}

fn own_doorbell(session: &Session, context: u32) -> u32 {
    OWN_DOORBELLS[session.number as usize][context as usize % CONTEXTS].load(Ordering::Acquire)
}

/// A context of this process has a new doorbell.
pub fn new_doorbell(session: &Session, context: u32) {
    let number = session.header().next_doorbell.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
    OWN_DOORBELLS[session.number as usize][context as usize % CONTEXTS].store(number, Ordering::Release);
}
