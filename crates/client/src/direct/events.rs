//! The events that the peers of direct connections post: a process's own side of the event bitmaps.

use super::{Direct, own_doorbell};
use crate::pair_place::Mapped;
use crate::session::Session;
use core::sync::atomic::{AtomicU32, Ordering};
use towpath_ring::event_bitmap::{Begun, EventBitmap, Only, Seen};
use towpath_ring::lines::{pair_slot, want};
use towpath_ring::pair::PLACES;
use towpath_ring::{AppLine, prefetch};

/// Passes each region of the session that is in use, with this client's sides of it, to `work`.
#[inline(always)]
fn each(session: &Session, mut work: impl FnMut(&'static Mapped, usize)) {
    let mut held = session.pairs.load(Ordering::SeqCst);
    while held != 0 {
        let place = held.trailing_zeros() as usize;
        held &= held - 1;
        let Some(mapped) = session.places[place % PLACES].mapped() else { continue };
        let sides = mapped.sides.load(Ordering::SeqCst);
        let mut sides = sides & 3;
        while sides != 0 {
            let side = sides.trailing_zeros() as usize;
            sides &= sides - 1;
            work(mapped, side);
        }
    }
}

/// [`Context::arm`](crate::context::Context::arm) for direct connections.
pub fn arm(session: &Session, context: u32) {
    each(session, |mapped, side| {
        let words = mapped.region.bitmap_words(side, context as usize);
        words.doorbell.store(own_doorbell(session, context), Ordering::Release);
        mapped.region.event_bitmap(side, context as usize).arm();
    });
}

/// [`Context::disarm`](crate::context::Context::disarm) for direct connections.
pub fn disarm(session: &Session, context: u32) {
    each(session, |mapped, side| mapped.region.event_bitmap(side, context as usize).disarm());
}

/// Does this process have direct connections in this session?
#[inline(always)]
pub fn is_used(session: &Session) -> bool {
    session.pairs.load(Ordering::SeqCst) != 0
}

/// Is there no event for this context?
#[inline]
pub fn is_empty(session: &Session, context: u32) -> bool {
    let mut empty = true;
    each(session, |mapped, side| empty &= mapped.region.event_bitmap(side, context as usize).is_empty());
    empty
}

/// An event of a direct connection.
#[derive(Clone, Copy)]
pub struct Raised {
    /// Whose event it is.
    owner: &'static AtomicU32,
    /// The line of this client's side.
    own: &'static AppLine,
    /// The line of the side that has raised it.
    pub(crate) by: &'static AppLine,
    /// How long ago, in units of the clock, if it matters.
    pub(crate) age: u32,
}

impl Raised {
    /// This client's slot.
    #[inline(always)]
    pub fn slot(&self) -> u32 {
        self.owner.load(Ordering::Acquire)
    }

    /// Has this client's side asked for room?
    #[inline(always)]
    pub fn wants_room(&self) -> bool {
        self.own.want.load(Ordering::Relaxed) & want::WRITABLE != 0
    }
}

/// What a look for the only event of a context has found.
pub enum OnlyEvent {
    /// There is none.
    Nothing,
    /// This one.
    One(Next),
    /// There may be more, or more places for them.
    Unclear,
}

/// The only event of this context in all bitmaps, which is still there.
pub struct Next {
    /// The connection that it seems to be of.
    direct: Direct,
    context: usize,
    seen: Seen,
    /// This client's slot, for which it is.
    of: u32,
}

impl Next {
    /// This client's slot.
    #[inline(always)]
    pub fn of(&self) -> u32 {
        self.of
    }

    /// Has this client's side asked for room?
    #[inline(always)]
    pub fn wants_room(&self) -> bool {
        self.direct.own.line.want.load(Ordering::Relaxed) & want::WRITABLE != 0
    }

    /// Asks for the lines that the call after the event needs, whose receive head is this. It comes before the bitmap's own line
    /// is taken, so that all come together.
    #[inline(always)]
    pub fn fetch_ahead(&self, head: u32) {
        prefetch::to_read(&self.direct.peer.line);
        prefetch::to_write(&self.direct.own.line);
        if let Some(bytes) = self.direct.mapped.region.byte_of(self.direct.end.other(), head) {
            prefetch::to_read(bytes);
        }
    }

    /// The other side of the connection in this place, as the stack's line says it, if the event is of that one.
    #[inline(always)]
    pub fn direct(&self, place: (u32, u32)) -> Option<Direct> {
        (place == (self.direct.pair, self.direct.word)).then_some(self.direct)
    }

    /// Takes it. False: there are more by now, all of which are in `others`.
    #[inline(always)]
    pub(crate) fn take(&self, others: &mut Vec<Raised>) -> bool {
        let Direct { mapped, word, .. } = self.direct;
        let (side, context) = (pair_slot::side(word), self.context);
        match mapped.region.event_bitmap(side, context).take_only(self.seen) {
            Ok(()) => true,
            Err(begun) => {
                take_rest(mapped, (side, context), begun, others);
                false
            }
        }
    }
}

/// [`Mapped::take_several`] of a context.
#[cold]
#[inline(never)]
fn take_rest(mapped: &'static Mapped, (side, context): (usize, usize), begun: Begun, others: &mut Vec<Raised>) {
    mapped.take_several(side, &mapped.region.event_bitmap(side, context), begun, others);
}

/// Looks for the only event of this context, in a process with one pair region that is on one side of it.
#[inline(always)]
pub(crate) fn only(session: &Session, context: u32) -> OnlyEvent {
    let held = session.pairs.load(Ordering::SeqCst);
    if !held.is_power_of_two() {
        return OnlyEvent::Unclear;
    }
    let number = held.trailing_zeros();
    let place = &session.places[number as usize % PLACES];
    // In this order, as in `find_mapped`.
    let pair = place.number.load(Ordering::Acquire);
    let Some(mapped) = place.mapped() else { return OnlyEvent::Unclear };
    let side = match mapped.sides.load(Ordering::SeqCst) & 3 {
        1 => 0,
        2 => 1,
        _ => return OnlyEvent::Unclear,
    };
    let seen = match mapped.region.event_bitmap(side, context as usize).only() {
        Only::Nothing => return OnlyEvent::Nothing,
        Only::Slot(seen) => seen,
        Only::Unclear => return OnlyEvent::Unclear,
    };
    let slot = seen.slot();
    let Some(owner) = mapped.owners[side].get(slot as usize) else { return OnlyEvent::Unclear };
    let direct = Direct::of(mapped, pair, pair_slot::of(slot, side as u32, number));
    OnlyEvent::One(Next { direct, context: context as usize, seen, of: owner.load(Ordering::Acquire) })
}

/// Empties this context's bitmaps. Returns one event, and puts the others into `others`.
#[inline(never)]
pub(crate) fn drain(session: &Session, context: u32, others: &mut Vec<Raised>) -> Option<Raised> {
    let mut one: Option<Raised> = None;
    each(session, |mapped, side| {
        let bitmap = mapped.region.event_bitmap(side, context as usize);
        let first = bitmap.first().and_then(|slot| Some((slot, mapped.event(side, slot)?)));
        // Before the bitmap's own line is taken: all come together.
        if let Some((slot, event)) = &first {
            let owner = session.region.slot(event.slot());
            let head = owner.map(|owner| session.region.app(owner).rx_head.load(Ordering::Relaxed));
            mapped.fetch_ahead(side, *slot, event, head);
        }
        let Some(begun) = bitmap.begin() else { return };
        match (begun.only(), first) {
            (Some(only), Some((slot, event))) if only == slot && one.is_none() => one = Some(event),
            _ => mapped.take_several(side, &bitmap, begun, others),
        }
    });
    one.or_else(|| others.pop())
}

impl Mapped {
    /// The event of a slot of the pair region on this client's side of it.
    #[inline(always)]
    fn event(&'static self, side: usize, slot: u32) -> Option<Raised> {
        let owner = self.owners[side].get(slot as usize)?;
        let end = self.region.end(slot, side);
        let (own, by) = (&self.region.lines_of(end).line, &self.region.lines_of(end.other()).line);
        Some(Raised { owner, own, by, age: 0 })
    }

    /// Takes what is left of a bitmap.
    #[cold]
    #[inline(never)]
    fn take_several(&'static self, side: usize, bitmap: &EventBitmap<'_>, begun: Begun, others: &mut Vec<Raised>) {
        bitmap.go_on(begun, |slot| others.extend(self.event(side, slot)));
    }

    /// Asks for the lines that the call after an event needs: the peer's words, the bytes, and this side's words, which it
    /// will write. `head`: the receive head.
    #[inline(always)]
    fn fetch_ahead(&self, side: usize, slot: u32, event: &Raised, head: Option<u32>) {
        prefetch::to_read(event.by);
        prefetch::to_write(event.own);
        if let Some(head) = head
            && let Some(bytes) = self.region.byte(slot, 1 - side, head)
        {
            prefetch::to_read(bytes);
        }
    }
}
