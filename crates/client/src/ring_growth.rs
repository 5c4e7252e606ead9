//! Rings grow with their connection, when the stack asks for it. The application doubles its send ring as soon as all bytes lie
//! where they can stay. For the receive ring it touches the memory, which is charged to it, and the stack doubles the ring after
//! that.

use crate::private::Private;
use crate::session::Session;
use core::sync::atomic::Ordering;
use towpath_ring::ring_size::{self, RECEIVE_GRANTED, RECEIVE_WANTED, SEND, SEND_WANTED};
use towpath_ring::{AppLine, Slot, StackLine};

/// Looks at what the stack says of sizes, if that is new. The stack is notified afterwards. Under `receiving`.
#[inline(always)]
pub(crate) fn look(session: &Session, slot: Slot, stack: &StackLine, private: &Private) {
    let said = stack.flow_group.load(Ordering::Relaxed) & ring_size::SIZES;
    if said != private.sizes.load(Ordering::Relaxed) {
        changed(session, slot, said);
    }
}

#[cold]
#[inline(never)]
fn changed(session: &Session, slot: Slot, said: u32) {
    let app = session.region.app(slot);
    session.private(slot).sizes.store(said, Ordering::Relaxed);
    let (granted, wanted) = (RECEIVE_GRANTED.of(app.want.load(Ordering::Relaxed)), RECEIVE_WANTED.of(said));
    if wanted < granted {
        let bytes = |halvings| session.geometry.rx_space() >> halvings;
        if session.makes_memory() {
            session.region.touch_receive_ring(slot, bytes(granted)..bytes(wanted));
        }
        RECEIVE_GRANTED.set(&app.want, wanted);
    }
    limit_receive(session, slot);
}

/// Does the stack ask for a larger send ring?
#[inline(always)]
pub(crate) fn is_asked(session: &Session, app: &AppLine, stack: &StackLine) -> bool {
    // Most regions have no room for it, and are spared the rest.
    session.region.grows().0
        && SEND_WANTED.of(stack.flow_group.load(Ordering::Relaxed)) < SEND.of(app.want.load(Ordering::Relaxed))
}

/// Doubles the send ring, for which the stack asks, if that can be now. Under `sending`. No room goes beyond the next position at
/// which a ring may be doubled whatever is in it. So whoever asks before each piece comes to one.
#[cold]
#[inline(never)]
pub(crate) fn double_send_ring(session: &Session, slot: Slot) -> bool {
    let (app, stack) = (session.region.app(slot), session.region.stack(slot));
    let (head, tail) = (stack.tx_head.load(Ordering::Acquire), app.tx_tail.load(Ordering::Relaxed));
    let doubled = ring_size::may_double(session.region.tx(slot).capacity(), head, tail);
    if doubled {
        SEND.double(&app.want);
        limit_send(session, slot);
    }
    doubled
}

/// Puts `SO_RCVBUF` into effect on a receive ring of the size that it has now. Under `receiving`.
pub(crate) fn limit_receive(session: &Session, slot: Slot) {
    let (asked, ring) = (&session.region.options(slot).receive_buffer, session.region.rx(slot).capacity());
    session.private(slot).receive_limit.store(usable(asked.load(Ordering::Relaxed), ring), Ordering::Relaxed);
}

/// Puts `SO_SNDBUF` into effect on a send ring of the size that it has now.
pub(crate) fn limit_send(session: &Session, slot: Slot) {
    let (asked, limit) = (&session.region.options(slot).send_buffer, &session.private(slot).send_limit);
    loop {
        let now = (asked.load(Ordering::SeqCst), session.region.tx(slot).capacity());
        limit.store(usable(now.0, now.1), Ordering::SeqCst);
        // The option may have changed meanwhile, and a sender may have doubled the ring.
        if now == (asked.load(Ordering::SeqCst), session.region.tx(slot).capacity()) {
            return;
        }
    }
}

/// How much of a ring of `ring` bytes a program uses that has set its option to `buffer`; 0 = it has not. As many bytes as it
/// has asked for: on Linux the other half of the value goes to bookkeeping.
fn usable(buffer: u32, ring: u32) -> u32 {
    if buffer == 0 { ring } else { (buffer / 2).clamp(1, ring) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::limits;
    use crate::memory::tests::{RING, session};
    use crate::socket::Socket;
    use crate::view::View;
    use towpath_ring::control::features;
    use towpath_ring::lines::state;
    use towpath_ring::ring_size::RECEIVE;

    /// An established connection in slot 7, whose rings may be doubled twice.
    fn connection() -> (View, &'static Session, std::os::fd::OwnedFd) {
        let (session, region, memfd) = session(features::CLIENT_MEMORY, 4 * RING);
        let slot = region.slot(7).unwrap();
        Socket::reset(session, slot, 0);
        region
            .stack(slot)
            .flow_group
            .store(RECEIVE.word(2) | RECEIVE_WANTED.word(2) | SEND_WANTED.word(2), Ordering::Relaxed);
        region.stack(slot).state.store(state::ESTABLISHED, Ordering::Release);
        let socket = Socket { session, slot, generation: 0 };
        limits::apply(&socket);
        (socket.view(), session, memfd)
    }

    #[test]
    fn the_send_ring_is_doubled_when_it_is_full_and_the_network_wants_more() {
        let (view, ..) = connection();
        let put = |count: u32| view.app.tx_tail.fetch_add(count, Ordering::Relaxed);
        let capacity = || view.session.region.tx(view.slot).capacity();
        assert_eq!((capacity(), view.send_limit()), (RING, RING));
        put(RING);
        assert_eq!(view.room_after_growth(), 0, "nobody wants more");
        SEND_WANTED.double(&view.stack.flow_group);
        assert_eq!(view.room_after_growth(), RING);
        assert_eq!((capacity(), view.send_limit(), view.room()), (2 * RING, 2 * RING, RING));
        assert_eq!(view.room_after_growth(), RING, "once");
        // Now it is full from a position at which it cannot be doubled.
        put(RING / 2);
        view.stack.tx_head.store(RING / 2, Ordering::Release);
        put(RING);
        SEND_WANTED.double(&view.stack.flow_group);
        assert_eq!(view.room_after_growth(), 0);
        view.stack.tx_head.store(3 * RING / 2, Ordering::Release);
        assert_eq!(view.room(), RING);
        put(RING);
        assert_eq!((view.room(), view.room_after_growth()), (0, 0));
        view.stack.tx_head.store(3 * RING, Ordering::Release);
        assert_eq!(view.room_after_growth(), 3 * RING / 2, "as much as it has room for");
        put(3 * RING / 2);
        view.stack.tx_head.store(4 * RING, Ordering::Release);
        assert_eq!(view.room_after_growth(), 3 * RING, "from 4 to 5 rings all lies where it will lie");
        assert_eq!(capacity(), 4 * RING);
        put(3 * RING);
        assert_eq!(view.room_after_growth(), 0, "it is as large as it may be");
    }

    #[test]
    fn whoever_writes_as_much_as_there_is_room_for_comes_to_where_the_ring_is_doubled() {
        for begin in (0..8).map(|part| part * RING / 4) {
            let (view, ..) = connection();
            view.app.tx_tail.store(begin, Ordering::Relaxed);
            view.stack.tx_head.store(begin, Ordering::Relaxed);
            let put = |count: u32| view.app.tx_tail.fetch_add(count, Ordering::Relaxed);
            put(RING);
            SEND_WANTED.double(&view.stack.flow_group);
            let mut turns = 0;
            while view.session.region.tx(view.slot).capacity() == RING {
                let free = view.room_after_growth();
                if view.session.region.tx(view.slot).capacity() == RING {
                    put(free);
                    view.stack.tx_head.fetch_add(RING / 4, Ordering::Release);
                }
                turns += 1;
                assert!(turns < 20, "from {begin}");
            }
        }
    }

    #[test]
    fn a_writer_of_small_pieces_comes_there_too() {
        for piece in [RING / 32, RING / 8, 3 * RING / 16 + 100] {
            let (view, ..) = connection();
            SEND_WANTED.double(&view.stack.flow_group);
            let (mut tail, mut turns) = (0, 0);
            while view.session.region.tx(view.slot).capacity() == RING {
                tail += view.room_after_growth().min(piece);
                view.app.tx_tail.store(tail, Ordering::Relaxed);
                // A third of the ring is always in flight.
                view.stack.tx_head.store(tail.saturating_sub(RING / 3), Ordering::Release);
                turns += 1;
                assert!(turns < 100, "by {piece}");
            }
        }
    }

    #[test]
    fn a_program_that_has_set_its_buffers_uses_no_more_of_a_ring() {
        let (view, ..) = connection();
        let options = view.session.region.options(view.slot);
        for (asked, ring, usable) in [(0, RING, RING), (RING, RING, RING / 2), (1, RING, 1), (u32::MAX, RING, RING)] {
            options.send_buffer.store(asked, Ordering::Relaxed);
            options.receive_buffer.store(asked, Ordering::Relaxed);
            limits::apply(&Socket { session: view.session, slot: view.slot, generation: 0 });
            assert_eq!(view.send_limit(), usable, "{asked} of {ring}");
            assert_eq!(view.private.receive_limit.load(Ordering::Relaxed), usable, "{asked} of {ring}");
        }
    }

    #[test]
    fn memory_for_a_larger_receive_ring_is_touched_before_it_is_granted() {
        let (view, session, memfd) = connection();
        let pages = || rustix::fs::fstat(&memfd).unwrap().st_blocks as u64 / 8;
        let granted = || RECEIVE_GRANTED.of(view.app.want.load(Ordering::Relaxed));
        let before = pages();
        look(view.session, view.slot, view.stack, view.private);
        assert_eq!((granted(), pages()), (2, before), "nobody asks");
        RECEIVE_WANTED.double(&view.stack.flow_group);
        look(view.session, view.slot, view.stack, view.private);
        assert_eq!((granted(), pages() - before), (1, u64::from(RING) / 4096));
        assert!(session.region.has_memory(view.slot, RING..2 * RING));
        assert!(!session.region.has_memory(view.slot, RING..4 * RING));
        assert_eq!(view.private.receive_limit.load(Ordering::Relaxed), RING, "as long as the stack has not doubled it");
        RECEIVE.double(&view.stack.flow_group);
        look(view.session, view.slot, view.stack, view.private);
        assert_eq!(view.private.receive_limit.load(Ordering::Relaxed), 2 * RING);
        assert_eq!((granted(), view.ring_bytes().1), (1, 2 * RING));
    }
}
