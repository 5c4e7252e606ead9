//! The pages of a region are charged to whoever touches them first. So the library touches those of a slot before the stack
//! does, and gives back what a closed socket leaves. Only in memory that the library has made: a guest's is not charged to
//! its programs.

use crate::private::Private;
use crate::session::Session;
use crate::socket::Socket;
use core::sync::atomic::Ordering;
use towpath_ring::{Geometry, Slot};

/// How much of a receive ring is touched before the first byte comes: a request. Most connections are idle, and pay for it.
const FIRST: u32 = 8192;
/// How far ahead of the reader a receive ring is touched at least.
const AHEAD: u32 = FIRST / 2;
/// How many connections that the stack has not made yet have their memory.
const CHILDREN: u32 = 8;
/// The first slots of both ranges keep what they have when they are closed. The stack uses the one that was freed last, so a
/// program with few connections at a time gives nothing back that it needs at once.
const KEPT_SLOTS: u32 = 32;

/// A connection or listener of the application begins in a slot, or has just begun.
pub(crate) fn begin(session: &Session, slot: Slot) {
    // The rings of a direct connection are in the pair region.
    if session.makes_memory() && session.region.stack(slot).pair.load(Ordering::Relaxed) == 0 {
        touch_to(session, slot, FIRST);
    }
}

/// The application listens, or has accepted a connection in a slot of the stack's range (`accepted`). The stack will use the
/// next ones.
pub(crate) fn expect_children(session: &Session, accepted: Option<Slot>) {
    if !session.makes_memory() {
        return;
    }
    let Geometry { slots, app_slots, .. } = session.geometry;
    let done = accepted.map_or(0, |slot| slot.raw().saturating_sub(app_slots) + 1);
    let (children, to) = (&session.header().children_touched, (done + CHILDREN).min(slots - app_slots));
    // Those before were direct connections.
    let from = children.fetch_max(to, Ordering::Relaxed).max(done.saturating_sub(1));
    if from < to {
        session.region.touch_lines(app_slots + from..app_slots + to);
        for slot in (app_slots + from..app_slots + to).filter_map(|raw| session.region.slot(raw)) {
            touch_to(session, slot, FIRST);
        }
    }
}

/// Has the reader at `head` come near the end of what is touched? This is asked for every piece that is read.
#[inline(always)]
pub(crate) fn is_short(private: &Private, head: u32) -> bool {
    private.touched.load(Ordering::Relaxed) < head.saturating_add(AHEAD)
}

/// Touches the ring ahead of a reader at `head`. Once it has been all around the ring nothing is left to do.
#[cold]
#[inline(never)]
pub(crate) fn read_to(session: &Session, slot: Slot, head: u32) {
    let all = if session.makes_memory() { session.geometry.rx_bytes } else { 0 };
    let touched = session.private(slot).touched.load(Ordering::Relaxed);
    // By steps, so that not every page is a call. The stack that has come past what is touched will do so again.
    let tail = session.region.stack(slot).rx_tail.load(Ordering::Relaxed);
    let overtaken = if tail > touched { tail.saturating_mul(2) } else { 0 };
    touch_to(session, slot, head.saturating_add(2 * AHEAD + FIRST).max(overtaken).min(all));
}

fn touch_to(session: &Session, slot: Slot, to: u32) {
    let (touched, all) = (&session.private(slot).touched, session.geometry.rx_bytes);
    let from = touched.load(Ordering::Relaxed);
    if from < to {
        session.region.touch_receive_ring(slot, from..to);
    }
    let to = if to >= all || !session.makes_memory() { u32::MAX } else { to };
    touched.fetch_max(to, Ordering::Relaxed);
}

/// The last descriptor of a socket is being closed: gives back what its rings do not need any more.
pub(crate) fn close(socket: &Socket) {
    let (session, slot, private) = (socket.session, socket.slot, socket.private());
    let (raw, app_slots) = (slot.raw(), session.geometry.app_slots);
    let number = if raw < app_slots { raw } else { raw - app_slots };
    let touched = private.touched.load(Ordering::Relaxed);
    let much = touched > FIRST || socket.app().tx_tail.load(Ordering::Relaxed) > FIRST;
    // The rings of a direct connection are the service's to give back.
    let direct = socket.stack().pair.load(Ordering::Relaxed) != 0;
    if number < KEPT_SLOTS || !much || direct || !session.makes_memory() || socket.is_gone() {
        return;
    }
    // A thread that is still in a call has them; then the memory stays until the slot's next use ends.
    let (Some(_receiving), Some(_sending)) = (private.receiving.try_lock(true), private.sending.try_lock(true)) else {
        return;
    };
    session.region.give_back_rings(slot, FIRST);
    private.touched.store(FIRST.min(touched), Ordering::Relaxed);
}
