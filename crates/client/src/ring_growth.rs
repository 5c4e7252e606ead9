//! Rings grow with their connection. The application doubles its send ring when that is full and the stack says that the
//! network would make use of more. For the receive ring the stack asks: the application touches the memory, which is charged to
//! it, and the stack doubles the ring after that.
//!
//! Rings do not shrink while their connection is open. So that many connections that were busy once do not hold more and more
//! memory, all rings of a program together grow by [`MOST_KIB`].

use crate::private::Private;
use crate::session::Session;
use core::sync::atomic::Ordering;
use towpath_ring::ring_size::{self, RECEIVE_GRANTED, RECEIVE_WANTED, SEND, SEND_WANTED};
use towpath_ring::{Slot, StackLine};

/// How much all rings of a program have beyond their first sizes at most.
const MOST_KIB: u32 = 256 << 10;

/// May this slot have `bytes` more? Then they are counted.
fn take(session: &Session, slot: Slot, bytes: u32) -> bool {
    let more = |grown: u32| (grown + bytes / 1024 <= MOST_KIB).then_some(grown + bytes / 1024);
    let taken = session.header().grown.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
    if taken {
        session.private(slot).grown.fetch_add(bytes / 1024, Ordering::Relaxed);
    }
    taken
}

/// The slot's rings have their first sizes again.
pub(crate) fn forget(session: &Session, slot: Slot) {
    match session.private(slot).grown.load(Ordering::Relaxed) {
        0 => {}
        _ => {
            let grown = session.private(slot).grown.swap(0, Ordering::Relaxed);
            session.header().grown.fetch_sub(grown, Ordering::Relaxed);
        }
    }
}

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
    let (app, options) = (session.region.app(slot), session.region.options(slot));
    session.private(slot).sizes.store(said, Ordering::Relaxed);
    let (granted, wanted) = (RECEIVE_GRANTED.of(app.want.load(Ordering::Relaxed)), RECEIVE_WANTED.of(said));
    let bytes = |halvings| session.geometry.rx_space() >> halvings;
    let is_of_use = is_of_use(options.receive_buffer.load(Ordering::Relaxed), bytes(granted), true);
    if wanted < granted && is_of_use && take(session, slot, bytes(wanted) - bytes(granted)) {
        if session.makes_memory() {
            session.region.touch_receive_ring(slot, bytes(granted)..bytes(wanted));
        }
        RECEIVE_GRANTED.set(&app.want, wanted);
    }
    limit_receive(session, slot);
}

/// Does a program with this `SO_SNDBUF` or `SO_RCVBUF` make use of more than `bytes`? `otherwise`: if it has set none.
fn is_of_use(buffer: u32, bytes: u32, otherwise: bool) -> bool {
    if buffer == 0 { otherwise } else { usable(buffer, u32::MAX) > bytes }
}

/// Doubles the send ring if that is of use now. Under `sending`. No room goes beyond the next position at which a ring may be
/// doubled whatever is in it, so whoever fills the ring comes to one.
#[cold]
#[inline(never)]
pub(crate) fn double_send_ring(session: &Session, slot: Slot) -> bool {
    let (app, stack) = (session.region.app(slot), session.region.stack(slot));
    let halvings = SEND.of(app.want.load(Ordering::Relaxed));
    let network = SEND_WANTED.of(stack.flow_group.load(Ordering::Relaxed)) < halvings;
    let (asked, bytes) = (&session.region.options(slot).send_buffer, session.region.tx(slot).capacity());
    if halvings == 0 || !is_of_use(asked.load(Ordering::Relaxed), bytes, network) {
        return false;
    }
    let (head, tail) = (stack.tx_head.load(Ordering::Acquire), app.tx_tail.load(Ordering::Relaxed));
    let doubled = ring_size::may_double(bytes, head, tail) && take(session, slot, bytes);
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
        let ring = session.region.tx(slot).capacity();
        limit.store(usable(asked.load(Ordering::Relaxed), ring), Ordering::Relaxed);
        // A sender may have doubled it meanwhile.
        if session.region.tx(slot).capacity() == ring {
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
        assert_eq!(view.room_for(1), 0, "nobody wants more");
        SEND_WANTED.double(&view.stack.flow_group);
        assert_eq!(view.room_for(1), RING);
        assert_eq!((capacity(), view.send_limit(), view.room()), (2 * RING, 2 * RING, RING));
        assert_eq!(view.room_for(usize::MAX), RING, "once");
        // Now it is full from a position at which it cannot be doubled.
        put(RING / 2);
        view.stack.tx_head.store(RING / 2, Ordering::Release);
        put(RING);
        SEND_WANTED.double(&view.stack.flow_group);
        assert_eq!(view.room_for(1), 0);
        view.stack.tx_head.store(3 * RING / 2, Ordering::Release);
        assert_eq!(view.room(), RING);
        put(RING);
        assert_eq!((view.room(), view.room_for(1)), (0, 0));
        view.stack.tx_head.store(3 * RING, Ordering::Release);
        assert_eq!(view.room_for(usize::MAX), 3 * RING / 2, "as much as it has room for");
        put(3 * RING / 2);
        view.stack.tx_head.store(4 * RING, Ordering::Release);
        assert_eq!(view.room_for(usize::MAX), 3 * RING, "from 4 to 5 rings all lies where it will lie");
        assert_eq!(capacity(), 4 * RING);
        put(3 * RING);
        assert_eq!(view.room_for(1), 0, "it is as large as it may be");
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
                let free = view.room_for(usize::MAX);
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
    fn all_rings_together_have_a_limit_and_those_of_closed_sockets_do_not_count() {
        let (view, session, _memfd) = connection();
        let all = &session.header().grown;
        all.store(MOST_KIB - RING / 1024, Ordering::Relaxed);
        view.app.tx_tail.store(RING, Ordering::Relaxed);
        SEND_WANTED.set(&view.stack.flow_group, 0);
        RECEIVE_WANTED.set(&view.stack.flow_group, 0);
        assert_eq!(view.room_for(1), RING);
        view.app.tx_tail.store(2 * RING, Ordering::Relaxed);
        assert_eq!(view.room_for(1), 0);
        look(view.session, view.slot, view.stack, view.private);
        assert_eq!(RECEIVE_GRANTED.of(view.app.want.load(Ordering::Relaxed)), 2);
        assert_eq!(all.load(Ordering::Relaxed), MOST_KIB);
        for _ in 0..2 {
            forget(session, view.slot);
            assert_eq!(all.load(Ordering::Relaxed), MOST_KIB - RING / 1024);
        }
        all.store(0, Ordering::Relaxed);
        assert_eq!(view.room_for(1), 2 * RING);
    }

    #[test]
    fn a_program_that_has_set_its_buffers_has_what_it_asked_for() {
        let (view, ..) = connection();
        let options = view.session.region.options(view.slot);
        options.send_buffer.store(4 * RING, Ordering::Relaxed);
        view.app.tx_tail.store(RING, Ordering::Relaxed);
        assert_eq!(view.room_for(1), RING, "the network does not matter");
        view.app.tx_tail.store(2 * RING, Ordering::Relaxed);
        SEND_WANTED.set(&view.stack.flow_group, 0);
        assert_eq!(view.room_for(1), 0);
        options.receive_buffer.store(2 * RING, Ordering::Relaxed);
        RECEIVE_WANTED.set(&view.stack.flow_group, 0);
        look(view.session, view.slot, view.stack, view.private);
        assert_eq!(RECEIVE_GRANTED.of(view.app.want.load(Ordering::Relaxed)), 2);
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
