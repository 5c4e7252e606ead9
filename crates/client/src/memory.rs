//! The pages of a region are charged to whoever touches them first. So the library touches those of a slot before the stack
//! does, and gives back what a closed socket leaves. Only in memory that the library has made: a guest's is not charged to
//! its programs.

use crate::private::Private;
use crate::session::Session;
use crate::socket::Socket;
use crate::tid::tid;
use core::sync::atomic::Ordering;
use towpath_ring::{Geometry, Slot, ring_size};

/// How much of a receive ring is touched before the first byte comes: a request. Most connections are idle, and pay for it.
const FIRST: u32 = 8192;
/// How far ahead of the reader a receive ring is touched at least.
const AHEAD: u32 = FIRST / 2;
/// How many connections that the stack has not made yet have their memory.
const CHILDREN: u32 = 8;
/// The first slots of both ranges keep what they have when they are closed. The stack uses the one that was freed last. So a
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
    if let Some(slot) = accepted {
        touch_to(session, slot, FIRST);
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

/// Has the reader at `head` come near the end of what is touched?
pub(crate) fn is_short(private: &Private, head: u32) -> bool {
    private.touched.load(Ordering::Relaxed) < head.saturating_add(AHEAD)
}

/// [`is_short`] in fewer instructions. It is true also just before positions wrap around, and false once behind that.
#[inline(always)]
pub(crate) fn may_be_short(private: &Private, head: u32) -> bool {
    private.touched.load(Ordering::Relaxed) < head.wrapping_add(AHEAD)
}

/// Touches the ring ahead of a reader at `head`. Once it has been all around the ring nothing is left to do.
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

/// More than any ring has.
const BEYOND_ANY_RING: u32 = 32 << 20;

/// From now on [`is_short`] is true once the reader is more than `bytes`, a few KiB, beyond `head`; if positions wrap around soon, at
/// once.
pub(crate) fn be_short_after(private: &Private, head: u32, bytes: u32) {
    let is_far_from_wrapping = head.checked_add(BEYOND_ANY_RING).is_some();
    private.touched.store(if is_far_from_wrapping { head + bytes + AHEAD } else { 0 }, Ordering::Relaxed);
}

/// Does a connection in this slot hold more than it began with?
pub(crate) fn has_much(private: &Private, sent: u32) -> bool {
    private.touched.load(Ordering::Relaxed) > FIRST || sent > FIRST
}

/// All of the ring is touched.
pub(crate) fn all_touched(private: &Private) {
    private.touched.store(u32::MAX, Ordering::Relaxed);
}

/// The last descriptor of a socket is being closed: gives back what its rings do not need any more.
pub(crate) fn close(socket: &Socket) {
    let (session, slot, private) = (socket.session, socket.slot, socket.private());
    let (raw, app_slots) = (slot.raw(), session.geometry.app_slots);
    let number = if raw < app_slots { raw } else { raw - app_slots };
    let much = has_much(private, socket.app().tx_tail.load(Ordering::Relaxed));
    // The rings of a direct connection are the service's to give back.
    let direct = socket.stack().pair.load(Ordering::Relaxed) != 0;
    // What it has grown by is given back in any case.
    let Geometry { tx_bytes, rx_bytes, .. } = session.geometry;
    let kept = if number < KEPT_SLOTS { (tx_bytes, rx_bytes) } else { (FIRST, FIRST) };
    let word = socket.app().want.load(Ordering::Relaxed);
    let now = (ring_size::SEND.of(word), ring_size::RECEIVE_GRANTED.of(word));
    let grown = now != session.geometry.first_halvings();
    if word & ring_size::IDLE != 0 && session.makes_memory() {
        // The next connection in this slot finds what every one finds.
        session.region.touch_receive_ring(slot, 0..FIRST);
        private.touched.store(FIRST, Ordering::Relaxed);
    }
    if !(much && number >= KEPT_SLOTS || grown) || direct || !session.makes_memory() || socket.is_gone() {
        return;
    }
    // Whoever has no id yet locks nothing at one look.
    tid();
    // A thread that is still in a call has them; then the memory stays until the slot's next use ends.
    let (Some(_receiving), Some(_sending)) = (private.receiving.try_lock(), private.sending.try_lock()) else {
        return;
    };
    session.region.give_back_rings(slot, kept);
    if number >= KEPT_SLOTS {
        private.touched.fetch_min(FIRST, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::private::used;
    use rustix::fd::{AsFd, OwnedFd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use towpath_ring::control::{Reply, Request, features, recv_request, send_reply};
    use towpath_ring::{Region, wake};

    pub const RING: u32 = 65_536;
    const GEOMETRY: Geometry =
        Geometry { slots: 256, app_slots: 128, tx_bytes: RING, rx_bytes: RING, contexts: 1, ..Geometry::DEFAULT };

    /// A session, and what its service has of it: its region and the file.
    pub fn session(features: u32, most: u32) -> (&'static Session, Region, OwnedFd) {
        let geometry = Geometry { tx_most: most, rx_most: most, ..GEOMETRY };
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let service = std::thread::spawn(move || {
            assert!(matches!(recv_request(theirs.as_fd()), Ok(Some((Request::Hello { join: 0, .. }, _)))));
            let (region, memfd) = if features & features::CLIENT_MEMORY == 0 {
                Region::create(geometry).unwrap()
            } else {
                send_reply(theirs.as_fd(), &Reply::Make { geometry }, &[]).unwrap();
                let (request, mut memory) = recv_request(theirs.as_fd()).unwrap().unwrap();
                assert_eq!(request, Request::Region);
                let memfd = memory.pop().unwrap();
                (Region::create_on(memfd.as_fd(), geometry).unwrap(), memfd)
            };
            let doorbells = [wake::doorbell().unwrap(), wake::doorbell().unwrap()];
            let (token, idle_ms) = (region.token(), 1);
            let welcome = Reply::Welcome { geometry, token, process: 1, offset: 0, features, namespace: 0, idle_ms };
            send_reply(theirs.as_fd(), &welcome, &[memfd.as_fd(), doorbells[0].as_fd(), doorbells[1].as_fd()]).unwrap();
            (region, memfd)
        });
        let session = Session::register(b"/nowhere", ours, 0).unwrap();
        let (region, memfd) = service.join().unwrap();
        // So that only rings are counted.
        region.touch_lines(0..geometry.slots);
        (0..geometry.slots).for_each(|raw| session.private(region.slot(raw).unwrap()).used.store(0, Ordering::Relaxed));
        (Box::leak(Box::new(session)), region, memfd)
    }

    fn pages(memfd: &OwnedFd) -> u64 {
        rustix::fs::fstat(memfd).unwrap().st_blocks as u64 / 8
    }

    const FIRST_PAGES: u64 = FIRST as u64 / 4096;

    #[test]
    fn a_ring_is_touched_once_and_stays_ahead_of_its_reader() {
        let (session, region, memfd) = session(features::CLIENT_MEMORY, 0);
        let slot = region.slot(7).unwrap();
        let private = session.private(slot);
        let before = pages(&memfd);
        begin(session, slot);
        assert_eq!(pages(&memfd) - before, FIRST_PAGES);
        begin(session, slot);
        assert_eq!(pages(&memfd) - before, FIRST_PAGES, "nothing twice");
        let (mut head, mut calls) = (0u32, 0);
        while head < 3 * RING {
            head += 1000;
            // What the stack writes until it hears of this.
            let tail = head + 1000;
            if is_short(private, head) {
                read_to(session, slot, head);
                calls += 1;
            }
            assert!(private.touched.load(Ordering::Relaxed) >= tail.min(RING), "at {head}");
        }
        assert_eq!(pages(&memfd) - before, u64::from(RING) / 4096, "the ring and no more");
        assert!(calls <= RING / FIRST, "{calls} calls");
        assert!(!is_short(private, u32::MAX), "it is never asked for again");
    }

    #[test]
    fn a_ring_that_the_stack_has_come_past_grows_faster() {
        let (session, region, memfd) = session(features::CLIENT_MEMORY, 0);
        let slot = region.slot(7).unwrap();
        begin(session, slot);
        region.rx(slot).write(0, &[1; 20_000]);
        region.stack(slot).rx_tail.store(20_000, Ordering::Release);
        let before = pages(&memfd);
        read_to(session, slot, 100);
        assert_eq!(pages(&memfd) - before, 40_000u64.div_ceil(4096) - 5, "twice as much as came at once");
    }

    #[test]
    fn the_next_connections_of_a_listener_have_their_memory_and_direct_ones_none() {
        let (session, region, memfd) = session(features::CLIENT_MEMORY, 0);
        let child = |nth: u32| region.slot(GEOMETRY.app_slots + nth).unwrap();
        let before = pages(&memfd);
        expect_children(session, None);
        assert_eq!(pages(&memfd) - before, u64::from(CHILDREN) * FIRST_PAGES);
        let before = pages(&memfd);
        for nth in [0, 1, 0, 1] {
            expect_children(session, Some(child(nth)));
        }
        assert_eq!(pages(&memfd) - before, 2 * FIRST_PAGES, "two more");
        // A hundred direct connections later.
        let before = pages(&memfd);
        expect_children(session, Some(child(100)));
        assert_eq!(pages(&memfd) - before, u64::from(CHILDREN + 1) * FIRST_PAGES);
        let before = pages(&memfd);
        expect_children(session, Some(child(127)));
        assert_eq!(pages(&memfd) - before, FIRST_PAGES, "there are no more slots");
    }

    #[test]
    fn a_closed_socket_gives_its_rings_back_unless_its_slot_is_used_again_at_once() {
        let (session, region, memfd) = session(features::CLIENT_MEMORY, 0);
        for (raw, given) in [(KEPT_SLOTS - 1, false), (KEPT_SLOTS, true), (128, false), (128 + KEPT_SLOTS, true)] {
            let slot = region.slot(raw).unwrap();
            let socket = Socket { session, slot, generation: 0 };
            session.private(slot).used.store(used::LIVE, Ordering::Relaxed);
            read_to(session, slot, RING);
            region.tx(slot).write(0, &[1; RING as usize]);
            for word in [&region.app(slot).tx_tail, &region.stack(slot).tx_head] {
                word.store(RING, Ordering::Relaxed);
            }
            let before = pages(&memfd);
            close(&socket);
            let expected = if given { 2 * u64::from((RING - FIRST) / 4096) } else { 0 };
            assert_eq!(before - pages(&memfd), expected, "slot {raw}");
            assert_eq!(is_short(session.private(slot), FIRST), given, "slot {raw}");
        }
    }

    #[test]
    fn memory_of_the_service_is_left_alone() {
        let (session, region, memfd) = session(0, 0);
        let slot = region.slot(KEPT_SLOTS).unwrap();
        let before = pages(&memfd);
        begin(session, slot);
        expect_children(session, None);
        read_to(session, slot, 100);
        region.app(slot).tx_tail.store(RING, Ordering::Relaxed);
        close(&Socket { session, slot, generation: 0 });
        assert_eq!(pages(&memfd), before);
        assert!(!is_short(session.private(slot), 1 << 20), "it is asked for once");
    }
}
