//! The events that the peers of direct connections post: a process's own side of the event bitmaps.

use super::{ALL, HELD, Mapped, own_doorbell};
use crate::session::{SESSIONS, Session};
use core::sync::atomic::{AtomicU32, Ordering};
use towpath_ring::event_bitmap::{Begun, EventBitmap};
use towpath_ring::lines::want;
use towpath_ring::pair::PLACES;
use towpath_ring::{AppLine, prefetch};

/// Passes each region of the session that is in use, with this client's sides of it, to `work`.
#[inline(always)]
fn each(session: &Session, mut work: impl FnMut(&'static Mapped, usize)) {
    let number = session.number as usize % SESSIONS;
    let mut held = HELD[number].load(Ordering::SeqCst);
    while held != 0 {
        let place = held.trailing_zeros() as usize;
        held &= held - 1;
        let Some(mapped) = ALL[number][place % PLACES].mapped() else { continue };
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
    HELD[session.number as usize % SESSIONS].load(Ordering::SeqCst) != 0
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

/// Empties this context's bitmaps. Returns one event, and puts the others into `others`.
#[inline(never)]
pub(crate) fn drain(session: &Session, context: u32, others: &mut Vec<Raised>) -> Option<Raised> {
    let mut one: Option<Raised> = None;
    each(session, |mapped, side| {
        let bitmap = mapped.region.event_bitmap(side, context as usize);
        let first = bitmap.first().and_then(|slot| Some((slot, mapped.event(side, slot)?)));
        // Before the bitmap's own line is taken: all come together.
        if let Some((slot, event)) = &first {
            mapped.fetch_ahead(session, side, *slot, event);
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
    /// will write.
    #[inline(always)]
    fn fetch_ahead(&self, session: &Session, side: usize, slot: u32, event: &Raised) {
        prefetch::to_read(event.by);
        prefetch::to_write(event.own);
        if let Some(owner) = session.region.slot(event.slot())
            && let head = session.region.app(owner).rx_head.load(Ordering::Relaxed)
            && let Some(bytes) = self.region.byte(slot, 1 - side, head)
        {
            prefetch::to_read(bytes);
        }
    }
}
