//! Direct connections. The other side's words, its event bitmap and its doorbells are in a pair region, and take the
//! place of the stack's.
//!
//! Positions that this side relies on stay in its own region, where the other side cannot write. Every word of the
//! other side is loaded once, and checked where it is used.

use crate::descriptor_reserve;
use crate::descriptors;
use crate::session::{SESSIONS, Session};
use crate::sys;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use rustix::fd::AsFd;
use towpath_ring::exclusive::notify_one;
use towpath_ring::lines::{app_flags, pair_slot, want};
use towpath_ring::pair::{CONTEXTS, PLACES, PairLines};
use towpath_ring::{ByteRing, PairGeometry, PairRegion, Slot, wake};

use crate::lock::Lock;

/// One of the other side's doorbells.
struct Doorbell {
    /// -1 = not asked for yet. The number is never closed, only replaced (`dup3`).
    fd: AtomicI32,
    /// Which doorbell it is.
    number: AtomicU32,
}

/// A pair region as this process has mapped it. Never unmapped; another pair may take its place.
struct Mapped {
    region: PairRegion,
    /// By side and slot: the slot in this client's own region.
    owners: [Box<[AtomicU32]>; 2],
    /// By the side that owns them, and context.
    doorbells: [[Doorbell; CONTEXTS]; 2],
    /// Which sides are this client's, by bit.
    sides: AtomicU32,
}

static REGIONS: [[AtomicPtr<Mapped>; PLACES]; SESSIONS] =
    [const { [const { AtomicPtr::new(core::ptr::null_mut()) }; PLACES] }; SESSIONS];
/// Number of the pair in each place, 0 = none.
static NUMBERS: [[AtomicU32; PLACES]; SESSIONS] = [const { [const { AtomicU32::new(0) }; PLACES] }; SESSIONS];
/// The places in use, by session and bit.
static HELD: [AtomicU64; SESSIONS] = [const { AtomicU64::new(0) }; SESSIONS];
/// Held while a region or a doorbell is asked for.
static ASKING: Lock = Lock::new();
/// The context after the one that was last woken alone: the next turn.
static TURN: AtomicU32 = AtomicU32::new(0);
/// Numbers of this process's own doorbells, by session and context.
static OWN_DOORBELLS: [[AtomicU32; CONTEXTS]; SESSIONS] = [const { [const { AtomicU32::new(0) }; CONTEXTS] }; SESSIONS];

/// In a forked child.
pub fn forked() {
    ASKING.reset();
}

/// The session of this number has ended. Another will have the number, with pair regions of its own.
pub fn forget_session(number: u32) {
    HELD[number as usize].store(0, Ordering::SeqCst);
    NUMBERS[number as usize].iter().for_each(|pair| pair.store(0, Ordering::Release));
}

/// The most waits that sleep at once after a spin in vain.
const LONGEST_REST: u32 = 63;
/// Waits that will sleep at once, and the number that was chosen after the last spin in vain.
static REST: AtomicU32 = AtomicU32::new(0);
static LAST_REST: AtomicU32 = AtomicU32::new(0);

/// Spins until `ready` holds, for a limited time, before a sleep.
///
/// Spinning pays more with a direct connection than with a stack: no third thread needs the CPU, and both sides save
/// a wake-up. If the other side has no CPU of its own it is in vain. Each failure makes it rarer, down to every 64th
/// wait.
pub fn spin(session: &Session, mut ready: impl FnMut() -> bool) -> bool {
    if HELD[session.number as usize].load(Ordering::Relaxed) == 0 {
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
    pair: u32,
    word: u32,
}

/// The end that a stack line names. Maps the pair region if this process has not seen it yet; `None` if that fails.
#[inline]
pub fn find(session: &Session, pair: u32, word: u32) -> Option<Direct> {
    let place = pair_slot::place(word) as usize;
    if NUMBERS[session.number as usize][place].load(Ordering::Acquire) != pair {
        map(session, pair, place)?;
    }
    // SAFETY: null or a leaked box that is never changed back.
    let mapped = unsafe { REGIONS[session.number as usize][place].load(Ordering::Acquire).as_ref() }?;
    let (slot, side) = (pair_slot::slot(word), pair_slot::side(word));
    let (own, peer) = (mapped.region.lines(slot, side), mapped.region.lines(slot, 1 - side));
    Some(Direct { mapped, own, peer, pair, word })
}

#[cold]
fn map(session: &Session, pair: u32, place: usize) -> Option<()> {
    let _asking = ASKING.lock()?;
    if NUMBERS[session.number as usize][place].load(Ordering::Acquire) == pair {
        return Some(());
    }
    let ask = || session.request_pair(place as u32, pair);
    let (geometry, memfd) = ask().or_else(|| {
        // There may have been no descriptor left for it.
        let _room = descriptor_reserve::Room::make();
        ask()
    })?;
    // SAFETY: as in `find`.
    match unsafe { REGIONS[session.number as usize][place].load(Ordering::Acquire).as_ref() } {
        Some(mapped) => {
            NUMBERS[session.number as usize][place].store(0, Ordering::Release);
            mapped.region.replace(memfd.as_fd(), geometry, pair).ok()?;
            mapped.sides.store(0, Ordering::Release);
            mapped.doorbells.iter().flatten().for_each(|doorbell| doorbell.number.store(0, Ordering::Release));
        }
        None => {
            let region = PairRegion::map(memfd.as_fd(), geometry, pair).ok()?;
            let owners = || (0..geometry.slots).map(|_| AtomicU32::new(0)).collect();
            let doorbell = || Doorbell { fd: AtomicI32::new(-1), number: AtomicU32::new(0) };
            let doorbells = core::array::from_fn(|_| core::array::from_fn(|_| doorbell()));
            let mapped = Mapped { region, owners: [owners(), owners()], doorbells, sides: AtomicU32::new(0) };
            REGIONS[session.number as usize][place].store(Box::into_raw(Box::new(mapped)), Ordering::Release);
        }
    }
    drop(memfd);
    descriptor_reserve::refill(session.control());
    NUMBERS[session.number as usize][place].store(pair, Ordering::Release);
    // Only sessions of this process itself can subscribe.
    if session.can_subscribe {
        HELD[session.number as usize].fetch_or(1 << place, Ordering::SeqCst);
    }
    Some(())
}

impl Direct {
    #[inline]
    fn slot(&self) -> u32 {
        pair_slot::slot(self.word)
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
    /// The other side's lines.
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
    /// Tells the other side how much of both rings this side withholds.
    pub fn withhold(&self, send: u32, receive: u32) {
        self.own().send_withheld.store(send, Ordering::Release);
        self.own().receive_withheld.store(receive, Ordering::Release);
    }
    /// Bytes of the send ring that the other side withholds because of its `SO_RCVBUF`.
    #[inline]
    pub fn withheld(&self) -> u32 {
        self.peer().receive_withheld.load(Ordering::Relaxed)
    }
    /// The ring that this side writes.
    #[inline]
    pub fn send_ring(&self) -> Option<ByteRing<'static>> {
        self.mapped.region.ring(self.slot(), self.side())
    }
    /// The ring that the other side writes.
    #[inline]
    pub fn receive_ring(&self) -> Option<ByteRing<'static>> {
        self.mapped.region.ring(self.slot(), 1 - self.side())
    }
    /// `app_flags` of the other side.
    #[inline]
    pub fn peer_flags(&self) -> u32 {
        self.peer().line.flags.load(Ordering::Acquire)
    }

    /// Publishes the send tail and notifies the other side. Under `sending`.
    #[inline(always)]
    pub fn show_sent(&self, session: &Session, tail: u32) {
        let line = &self.own().line;
        line.tx_tail.store(tail, Ordering::Release);
        if line.held_ms.load(Ordering::Relaxed) != 0 {
            line.held_ms.store(0, Ordering::Release);
        }
        self.notify(session);
    }

    /// Publishes the receive head, and notifies the other side if it waits for room. Under `receiving`.
    #[inline(always)]
    pub fn show_read(&self, session: &Session, head: u32) {
        // The other side asks for room, then looks at the head again. Either it sees this head, or this side sees the
        // request.
        self.own().line.rx_head.store(head, Ordering::SeqCst);
        let peer_lines = self.peer();
        let peer = &peer_lines.line;
        if peer.want.load(Ordering::SeqCst) & want::WRITABLE != 0 {
            let queued = peer.tx_tail.load(Ordering::Acquire).wrapping_sub(head);
            let withheld = peer_lines.send_withheld.load(Ordering::Relaxed);
            let most = self.ring_bytes().saturating_sub(withheld);
            let most = most.saturating_sub(self.own().receive_withheld.load(Ordering::Relaxed));
            if most.saturating_sub(queued) >= most / 3 {
                notify_room(session, self.pair, self.word);
            }
        }
    }

    /// Publishes those flags that concern the other side and are never taken back, and notifies it of new ones.
    pub fn show_flags(&self, session: &Session, flags: u32) {
        let shown = &self.own().line.flags;
        let flags = flags & (app_flags::SHUT_WR | app_flags::SHUT_RD | app_flags::CLOSED | app_flags::ABORT);
        if shown.fetch_or(flags, Ordering::AcqRel) & flags != flags {
            self.notify(session);
        }
    }

    /// Announces an urgent byte that ends at `tail`, before the tail that covers it is published. Under `sending`.
    pub fn show_urgent(&self, tail: u32) {
        let line = &self.own().line;
        line.urgent.store(tail, Ordering::Release);
        line.flags.fetch_or(app_flags::URGENT, Ordering::AcqRel);
    }

    /// Notifies the doorbell that the other side has named for urgent bytes.
    pub fn announce(&self, session: &Session) {
        let context = self.peer().line.urgent_doorbell.load(Ordering::Acquire).wrapping_sub(1) as usize;
        if context < CONTEXTS {
            notify_doorbell(self.mapped, self.pair, self.word, session, context);
        }
    }

    /// Notifies the other side of a change: threads that sleep on the socket, and contexts that subscribe to it.
    #[inline(always)]
    pub fn notify(&self, session: &Session) {
        fence(Ordering::SeqCst);
        let peer = self.peer();
        if peer.line.sleepers.load(Ordering::Relaxed) != 0 {
            peer.event_seq.fetch_add(1, Ordering::SeqCst);
            wake::futex_wake(&peer.event_seq);
        }
        let mut contexts = peer.line.ctx_mask.load(Ordering::Relaxed);
        let exclusive = peer.line.exclusive.load(Ordering::Relaxed);
        if exclusive & contexts != 0 {
            contexts = notify_exclusive(self.mapped, self.pair, self.word, session, (contexts, exclusive));
        }
        while contexts != 0 {
            let context = contexts.trailing_zeros() as usize;
            contexts &= contexts - 1;
            let bitmap = self.mapped.region.event_bitmap(1 - self.side(), context);
            if !bitmap.is_posted(self.slot()) {
                peer.raised.store(sys::ticks(), Ordering::Relaxed);
            }
            bitmap.post(self.slot());
            if bitmap.must_notify() {
                notify_doorbell(self.mapped, self.pair, self.word, session, context);
            }
        }
    }

    /// Events of this end, which is `slot` in this client's own region, go to these contexts (bits), too.
    pub fn subscribe(&self, slot: Slot, contexts: u64) {
        self.mapped.sides.fetch_or(1 << self.side(), Ordering::SeqCst);
        if let Some(owner) = self.mapped.owners[self.side()].get(self.slot() as usize) {
            owner.store(slot.raw(), Ordering::Release);
        }
        self.own().line.ctx_mask.fetch_or(contexts, Ordering::SeqCst);
    }

    /// Events of this end go to these contexts (bits) no more.
    pub fn unsubscribe(&self, contexts: u64) {
        self.share(contexts, false);
        self.own().line.ctx_mask.fetch_and(!contexts, Ordering::SeqCst);
    }

    /// As `Socket::share`.
    pub fn share(&self, contexts: u64, on: bool) {
        let mask = &self.own().line.exclusive;
        if on {
            mask.fetch_or(contexts, Ordering::SeqCst)
        } else {
            mask.fetch_and(!contexts, Ordering::SeqCst)
        };
    }

    /// Names the context whose doorbell is notified of urgent bytes.
    pub fn name_urgent_doorbell(&self, session: &Session, context: Option<u32>) {
        if let Some(context) = context {
            let words = self.mapped.region.bitmap_words(self.side(), context as usize);
            words.doorbell.store(own_doorbell(session, context), Ordering::Release);
        }
        self.own().line.urgent_doorbell.store(context.map_or(0, |context| context + 1), Ordering::Release);
    }
}

/// Notifies the other side that there is room.
#[cold]
fn notify_room(session: &Session, pair: u32, word: u32) {
    if let Some(direct) = find(session, pair, word) {
        direct.notify(session);
    }
}

/// Notifies those contexts of the other side that share the socket (`EPOLLEXCLUSIVE`): all that are awake and, in
/// turn, one that sleeps. An end notifies all. Returns the contexts that are still to be notified.
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
        if !bitmap.is_posted(slot) {
            mapped.region.lines(slot, 1 - side).raised.store(sys::ticks(), Ordering::Relaxed);
        }
        bitmap.post(slot);
        bitmap.must_notify() && notify_doorbell(mapped, pair, word, session, context)
    });
    TURN.store(next, Ordering::Relaxed);
    contexts & !exclusive
}

/// Notifies a doorbell of the other side. False if nobody listens to it any more.
fn notify_doorbell(mapped: &Mapped, pair: u32, word: u32, session: &Session, context: usize) -> bool {
    let owner = 1 - pair_slot::side(word);
    let wanted = mapped.region.bitmap_words(owner, context).doorbell.load(Ordering::Acquire);
    let doorbell = &mapped.doorbells[owner][context];
    if doorbell.number.load(Ordering::Acquire) != wanted {
        fetch_doorbell(session, pair, word, doorbell, context as u32, wanted);
    }
    let fd = doorbell.fd.load(Ordering::Acquire);
    fd >= 0 && wanted != 0 && sys::notify_quietly(fd)
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
        // The number stays, because another thread may be about to notify through it.
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

/// Every region of the session in use, with the sides of it that are ours.
#[inline]
fn each(session: &Session, mut work: impl FnMut(&'static Mapped, usize)) {
    let number = session.number as usize;
    let mut held = HELD[number].load(Ordering::SeqCst);
    while held != 0 {
        let place = held.trailing_zeros() as usize;
        held &= held - 1;
        // SAFETY: as in `find`.
        let Some(mapped) = (unsafe { REGIONS[number][place].load(Ordering::Acquire).as_ref() }) else { continue };
        let sides = mapped.sides.load(Ordering::SeqCst);
        (0..2).filter(|side| sides & 1 << side != 0).for_each(|side| work(mapped, side));
    }
}

/// `Context::arm` for direct connections.
pub fn arm(session: &Session, context: u32) {
    each(session, |mapped, side| {
        let words = mapped.region.bitmap_words(side, context as usize);
        words.doorbell.store(own_doorbell(session, context), Ordering::Release);
        mapped.region.event_bitmap(side, context as usize).arm();
    });
}

/// `Context::disarm` for direct connections.
pub fn disarm(session: &Session, context: u32) {
    each(session, |mapped, side| mapped.region.event_bitmap(side, context as usize).disarm());
}

/// Has this process any direct connections of the session?
#[inline]
pub fn is_used(session: &Session) -> bool {
    HELD[session.number as usize].load(Ordering::SeqCst) != 0
}

/// Is there no event for this context?
#[inline]
pub fn is_empty(session: &Session, context: u32) -> bool {
    let mut empty = true;
    each(session, |mapped, side| empty &= mapped.region.event_bitmap(side, context as usize).is_empty());
    empty
}

/// Takes all events for this context. `work` gets the time and this client's slot.
#[inline]
pub fn drain(session: &Session, context: u32, mut work: impl FnMut(u64, u32)) {
    each(session, |mapped, side| {
        mapped.region.event_bitmap(side, context as usize).take(|slot| {
            if let Some(owner) = mapped.owners[side].get(slot as usize) {
                let raised = mapped.region.lines(slot, side).raised.load(Ordering::Relaxed);
                work(raised, owner.load(Ordering::Acquire));
            }
        });
    });
}
