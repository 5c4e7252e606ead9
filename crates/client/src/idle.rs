//! An open connection without data gives back what its rings hold: see `towpath_ring::ring_size::IDLE`. A thread that waits
//! looks at the sockets of its process now and then, as it looks whether the service lives. So no thread is woken for it, and the
//! program notices nothing. A program that never waits in the library keeps its memory.

use crate::private::flag;
use crate::session::{Session, coarse_ms};
use crate::socket::Socket;
use crate::tid::tid;
use crate::{doorbell, memory};
use core::sync::atomic::Ordering;
use towpath_ring::lines::state;
use towpath_ring::ring_size::{GIVING, IDLE, IDLE_BYTES, RECEIVE_GRANTED};
use towpath_ring::{AppLine, Slot, StackLine};

/// So much is read before all memory is brought back. A sign of life now and then is no reason for that.
const LITTLE: u32 = IDLE_BYTES / 4;

/// Positions of both rings in one word. Different ones are equal once in 2^32 times. Then memory goes a little early.
fn place(app: &AppLine, stack: &StackLine) -> u32 {
    let words = [&app.rx_head, &app.tx_tail, &stack.rx_tail, &stack.tx_head];
    words.iter().fold(0, |all: u32, word| all.wrapping_mul(0x9e37_79b1) ^ word.load(Ordering::Acquire))
}

/// What both sides say: is the memory to go, and does the stack agree?
fn words(socket: &Socket) -> (bool, bool) {
    let (app, stack) = (socket.app().want.load(Ordering::Relaxed), socket.stack().flow_group.load(Ordering::Acquire));
    (app & IDLE != 0, stack & IDLE != 0)
}

/// The number of both sides: is all memory to go, and has the stack answered?
fn giving(socket: &Socket) -> (bool, bool) {
    let (app, stack) = (socket.app().want.load(Ordering::Relaxed), socket.stack().flow_group.load(Ordering::Acquire));
    (GIVING.of(app) & 1 != 0, GIVING.of(app) == GIVING.of(stack))
}

/// Under `receiving`.
fn count_giving(app: &AppLine) {
    GIVING.set(&app.want, GIVING.of(app.want.load(Ordering::Relaxed)) + 1);
}

fn is_carried_by_stack(socket: &Socket) -> bool {
    let stack = socket.stack();
    stack.state.load(Ordering::Acquire) == state::ESTABLISHED
        && stack.pair.load(Ordering::Acquire) == 0
        && !socket.is_gone()
}

/// Looks at a socket, and does the next step if it has been idle for long enough. True: the next one is [`ask_for_all`].
pub fn look_at(socket: &Socket) -> bool {
    let Some(after_ms) = socket.session.idle.after_ms().filter(|_| is_carried_by_stack(socket)) else { return false };
    let (app, stack, private) = (socket.app(), socket.stack(), socket.private());
    unread_seen(socket);
    if giving(socket).0 {
        // A thread that looked before may have ended, and the stack fills nothing.
        return true;
    }
    let (place, now_ms) = (place(app, stack), coarse_ms() as u32);
    if private.idle_at.swap(place, Ordering::Relaxed) != place {
        private.idle_since.store(now_ms, Ordering::Relaxed);
        socket.mark(flag::GAVE_BACK, false);
        return false;
    }
    if now_ms.wrapping_sub(private.idle_since.load(Ordering::Relaxed)) < after_ms {
        return false;
    }
    match words(socket) {
        (false, false) => ask(socket),
        // The stack has not seen yet that the last time is over.
        (false, true) => {}
        (true, false) => doorbell::notify_stack(socket.session, socket.slot, app, stack),
        (true, true) => return !socket.has(flag::GAVE_BACK),
    }
    false
}

/// Asks the stack to fill nothing until the memory has gone, unless that is so already. True: [`wait_for_stack`], then [`give_back`]
/// or [`keep`], and that soon, as bytes that come meanwhile are dropped. False: a thread is in a call, or the stack has not seen
/// yet that the last time is over.
pub fn ask_for_all(socket: &Socket) -> bool {
    if giving(socket).0 {
        return true;
    }
    let Some(_receiving) = socket.private().receiving.try_lock() else { return false };
    if words(socket) != (true, true) || giving(socket) != (false, true) {
        return false;
    }
    count_giving(socket.app());
    doorbell::notify_stack(socket.session, socket.slot, socket.app(), socket.stack());
    true
}

/// Waits a little until the stack has answered for all these sockets. False: it has not. Then it has other work than theirs, and
/// nobody waits for it again soon.
pub fn wait_for_stack(sockets: impl Iterator<Item = Socket> + Clone) -> bool {
    const WAITS: u32 = 20;
    const WAIT: core::time::Duration = core::time::Duration::from_micros(50);
    let answered = |socket: Socket| giving(&socket) != (true, false);
    (0..WAITS).any(|_| {
        let all = sockets.clone().all(answered);
        if !all {
            std::thread::sleep(WAIT);
        }
        all
    })
}

/// The program sees bytes, and may wait for more before it takes any (FIONREAD, MSG_PEEK, SO_RCVLOWAT). If there are many for an idle
/// connection, all memory comes back.
pub fn unread_seen(socket: &Socket) {
    let app = socket.app();
    let unread = || socket.stack().rx_tail.load(Ordering::Acquire).wrapping_sub(app.rx_head.load(Ordering::Relaxed));
    if app.want.load(Ordering::Relaxed) & IDLE == 0 || unread() <= LITTLE {
        return;
    }
    // Whoever has no id yet locks nothing at one look.
    tid();
    // A thread in a call comes there itself.
    if let Some(_receiving) = socket.private().receiving.try_lock() {
        is_over(socket.session, socket.slot);
    }
}

/// Tells the stack that memory is to go. With unread bytes it stays: who does not read them may not want to wait for more. So may
/// one that is woken for many only.
fn ask(socket: &Socket) {
    let (app, stack, private, session) = (socket.app(), socket.stack(), socket.private(), socket.session);
    // A thread in a call has them.
    let Some(_receiving) = private.receiving.try_lock() else { return };
    let head = app.rx_head.load(Ordering::Relaxed);
    let unread = stack.rx_tail.load(Ordering::Acquire) != head;
    let much = memory::has_much(private, app.tx_tail.load(Ordering::Relaxed))
        && private.low_water.load(Ordering::Relaxed) <= LITTLE;
    // A kernel that cannot touch memory for us would charge the service later.
    if unread || !much || !session.region.touch_next(socket.slot, head, IDLE_BYTES) {
        return;
    }
    memory::be_short_after(private, head, LITTLE);
    app.want.fetch_or(IDLE, Ordering::AcqRel);
    doorbell::notify_stack(session, socket.slot, app, stack);
}

/// Gives back what the rings of a socket hold, if nothing has changed: all of it, or all but the places of the next bytes, if the
/// stack has not agreed to fill none. The caller has the socket kept open meanwhile, so that its slot gets no other connection.
pub fn give_back(socket: &Socket) {
    let (private, session, app) = (socket.private(), socket.session, socket.app());
    // Nobody keeps it for longer than a copy takes, and the stack must not wait for the next look.
    let Some(_receiving) = private.receiving.lock() else { return };
    let (asked, answered) = giving(socket);
    if !asked {
        return;
    }
    if let Some(_sending) = private.sending.try_lock()
        && is_carried_by_stack(socket)
        && words(socket) == (true, true)
    {
        session.region.give_back_idle_rings(socket.slot, if answered { 0 } else { IDLE_BYTES });
        socket.mark(flag::GAVE_BACK, true);
    }
    count_giving(app);
    doorbell::notify_stack(session, socket.slot, app, socket.stack());
}

/// All memory stays after all, and the stack fills the next bytes again. Nothing happens if it fills them.
pub fn keep(socket: &Socket) {
    let Some(_receiving) = socket.private().receiving.lock() else { return };
    if giving(socket).0 && !socket.is_gone() {
        count_giving(socket.app());
        socket.mark(flag::GAVE_BACK, true);
        doorbell::notify_stack(socket.session, socket.slot, socket.app(), socket.stack());
    }
}

/// The reader at `head` comes near the end of what is touched, or of what an idle connection keeps. Under `receiving`.
#[cold]
#[inline(never)]
pub(crate) fn read_to(session: &Session, slot: Slot, head: u32) {
    if !is_over(session, slot) {
        memory::read_to(session, slot, head);
    }
}

/// All memory is there again before the stack is told. False: the connection has not been idle. Under `receiving`.
fn is_over(session: &Session, slot: Slot) -> bool {
    let (app, stack) = (session.region.app(slot), session.region.stack(slot));
    let word = app.want.load(Ordering::Relaxed);
    if word & IDLE == 0 {
        return false;
    }
    // What cannot be had now is left to whoever touches it first.
    session.region.touch_receive_ring(slot, 0..session.geometry.rx_space() >> RECEIVE_GRANTED.of(word));
    memory::all_touched(session.private(slot));
    if GIVING.of(word) & 1 != 0 {
        count_giving(app);
    }
    app.want.fetch_and(!IDLE, Ordering::AcqRel);
    doorbell::notify_stack(session, slot, app, stack);
    true
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::memory::tests::{RING, session};
    use crate::private::{Private, used};
    use crate::view::View;
    use core::time::Duration;
    use std::os::fd::OwnedFd;
    use towpath_ring::Region;
    use towpath_ring::control::features;

    /// An established connection in slot 7 that has received, read and sent so many bytes.
    struct Connection {
        socket: Socket,
        region: Region,
        memfd: OwnedFd,
    }

    impl Connection {
        fn new(moved: u32) -> Self {
            let (session, region, memfd) = session(features::CLIENT_MEMORY, 0);
            let slot = region.slot(7).unwrap();
            Socket::reset(session, slot, 0);
            region.stack(slot).state.store(state::ESTABLISHED, Ordering::Release);
            let socket = Socket { session, slot, generation: 0 };
            crate::limits::apply(&socket);
            session.private(slot).used.store(used::LIVE, Ordering::Relaxed);
            memory::begin(session, slot);
            let c = Self { socket, region, memfd };
            c.moves(moved);
            c
        }
        fn view(&self) -> View {
            self.socket.view()
        }
        fn private(&self) -> &'static Private {
            self.socket.private()
        }
        /// Bytes come and are read, and as many are sent and acknowledged.
        fn moves(&self, count: u32) {
            let (slot, view) = (self.socket.slot, self.view());
            let mut left = count;
            while left > 0 {
                let piece = left.min(RING / 2);
                let (rx, tx) = (view.app.rx_head.load(Ordering::Relaxed), view.app.tx_tail.load(Ordering::Relaxed));
                self.region.rx(slot).write(rx, &vec![1; piece as usize]);
                view.stack.rx_tail.fetch_add(piece, Ordering::Release);
                view.consume(piece);
                self.region.tx(slot).write(tx, &vec![1; piece as usize]);
                view.app.tx_tail.fetch_add(piece, Ordering::Release);
                view.stack.tx_head.fetch_add(piece, Ordering::Release);
                left -= piece;
            }
        }
        fn pages(&self) -> u64 {
            rustix::fs::fstat(&self.memfd).unwrap().st_blocks as u64 / 8
        }
        /// Looks twice, with more than the idle time in between.
        fn look(&self) -> bool {
            let first = look_at(&self.socket);
            std::thread::sleep(Duration::from_millis(20));
            first | (look_at(&self.socket) && ask_for_all(&self.socket))
        }
        fn says(&self) -> bool {
            self.view().app.want.load(Ordering::Relaxed) & IDLE != 0
        }
        fn agree(&self, agreed: bool) {
            let word = &self.view().stack.flow_group;
            if agreed {
                word.fetch_or(IDLE, Ordering::Release)
            } else {
                word.fetch_and(!IDLE, Ordering::Release)
            };
        }
        /// The stack answers as it stands.
        fn answer(&self) {
            GIVING.set(&self.view().stack.flow_group, GIVING.of(self.view().app.want.load(Ordering::Relaxed)));
        }
        fn gives_back(&self) {
            assert!(!self.look());
            assert!(self.says());
            self.agree(true);
            assert!(self.look());
            assert!(!wait_for_stack([self.socket].into_iter()));
            self.answer();
            assert!(wait_for_stack([self.socket].into_iter()));
            give_back(&self.socket);
            self.answer();
        }
    }

    const KEPT_PAGES: u64 = IDLE_BYTES as u64 / 4096;

    #[test]
    fn an_idle_connection_gives_back_all_once_the_stack_agrees_to_fill_nothing() {
        let c = Connection::new(5 * RING);
        let before = c.pages();
        c.gives_back();
        assert_eq!(before - c.pages(), 2 * u64::from(RING) / 4096);
        assert!(!c.look() && giving(&c.socket) == (false, true), "once");
        // A little that comes and goes is given back again.
        c.moves(4000);
        assert!(c.look() && c.pages() > before - 2 * u64::from(RING) / 4096);
        c.answer();
        give_back(&c.socket);
        assert_eq!(before - c.pages(), 2 * u64::from(RING) / 4096);
        assert!(!c.look(), "the stack has not seen that it is over");
        c.moves(10);
        assert!(!c.look() && giving(&c.socket) == (false, false), "so it is not asked again");
        // Who has asked may have ended since.
        c.answer();
        assert!(look_at(&c.socket));
        let other = c.socket;
        assert!(look_at(&other), "another thread goes on at once");
        give_back(&other);
        give_back(&c.socket);
        assert!(!giving(&c.socket).0, "the stack may fill the ring again");
        // More than a little brings all back, also while it goes.
        c.answer();
        c.moves(10);
        assert!(c.look());
        c.answer();
        c.moves(4200);
        assert!(!c.says() && !giving(&c.socket).0 && c.region.has_memory(c.socket.slot, 0..RING));
        let given = c.pages();
        give_back(&c.socket);
        assert_eq!(c.pages(), given);
    }

    #[test]
    fn an_idle_connection_keeps_the_next_bytes_if_the_stack_has_no_time_for_it() {
        let c = Connection::new(5 * RING);
        let before = c.pages();
        assert!(!c.look() && c.says());
        assert!(!c.look(), "the stack has not answered");
        give_back(&c.socket);
        assert!(!giving(&c.socket).0);
        assert_eq!(c.pages(), before);
        c.agree(true);
        assert!(c.look());
        give_back(&c.socket);
        assert_eq!(before - c.pages(), 2 * u64::from(RING) / 4096 - KEPT_PAGES);
        c.answer();
        assert!(!c.look(), "once");
        // A little that comes and goes changes nothing, and what was sent goes back again.
        let given = c.pages();
        c.moves(4000);
        assert!(c.says());
        assert!(c.look());
        give_back(&c.socket);
        assert!(c.pages() <= given + 1, "{} pages", c.pages());
        // More does, at the next byte.
        c.moves(200);
        assert!(!c.says());
        assert!(c.pages() >= given + u64::from(RING) / 4096 - KEPT_PAGES);
        assert!(!c.look() && !c.says(), "the stack has not seen it");
        c.agree(false);
        assert!(!c.look() && c.says(), "and again");
    }

    #[test]
    fn wherever_the_positions_stand_the_memory_is_back_before_the_kept_bytes_are_used_up() {
        for start in [0, RING / 2, u32::MAX - 3 * RING, u32::MAX - 3 * IDLE_BYTES, u32::MAX - 4000, u32::MAX - 10] {
            for piece in [100, 4000, 4097, IDLE_BYTES] {
                let c = Connection::new(RING);
                let view = c.view();
                for word in [&view.app.rx_head, &view.stack.rx_tail, &view.app.tx_tail, &view.stack.tx_head] {
                    word.store(start, Ordering::Relaxed);
                }
                c.gives_back();
                let mut came = 0;
                while c.says() {
                    came += piece;
                    assert!(came <= IDLE_BYTES, "pieces of {piece} from {start}");
                    c.moves(piece);
                }
                assert!(c.region.has_memory(c.socket.slot, 0..RING), "pieces of {piece} from {start}");
            }
        }
    }

    #[test]
    fn who_has_little_or_unread_bytes_or_is_in_a_call_keeps_it() {
        let c = Connection::new(1000);
        assert!(!c.look() && !c.says(), "no more than it began with");
        let c = Connection::new(RING);
        c.view().stack.rx_tail.fetch_add(1, Ordering::Relaxed);
        assert!(!c.look() && !c.says(), "unread");
        c.view().app.rx_head.fetch_add(1, Ordering::Relaxed);
        let (locked, done) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _receiving = c.private().receiving.lock();
                locked.wait();
                done.wait();
            });
            locked.wait();
            assert!(!c.look() && !c.says(), "another thread reads");
            done.wait();
        });
        assert!(!c.look() && c.says());
        c.agree(true);
        c.view().stack.state.store(state::CLOSED, Ordering::Release);
        let before = c.pages();
        give_back(&c.socket);
        assert_eq!(c.pages(), before, "it is over");
    }

    #[test]
    fn a_program_that_waits_for_many_bytes_before_it_takes_any_gets_them() {
        let c = Connection::new(2 * RING);
        c.gives_back();
        let comes = |count| c.view().stack.rx_tail.fetch_add(count, Ordering::Release);
        comes(LITTLE);
        unread_seen(&c.socket);
        assert!(c.says(), "little");
        comes(1);
        unread_seen(&c.socket);
        assert!(!c.says() && c.region.has_memory(c.socket.slot, 0..RING));
        let c = Connection::new(2 * RING);
        c.private().low_water.store(LITTLE + 1, Ordering::Relaxed);
        assert!(!c.look() && !c.says(), "it is not woken before");
    }

    #[test]
    fn bytes_that_are_not_acknowledged_stay() {
        let c = Connection::new(2 * RING);
        let (view, slot) = (c.view(), c.socket.slot);
        c.region.tx(slot).write(2 * RING, &[7; 10_000]);
        view.app.tx_tail.fetch_add(10_000, Ordering::Release);
        c.gives_back();
        let mut got = [0; 10_000];
        c.region.tx(slot).read(2 * RING, &mut got);
        assert_eq!(got, [7; 10_000]);
    }

    #[test]
    fn the_next_connection_in_the_slot_finds_what_every_one_finds() {
        let c = Connection::new(2 * RING);
        c.gives_back();
        memory::close(&c.socket);
        assert!(c.region.has_memory(c.socket.slot, 0..8192));
        Socket::reset(c.socket.session, c.socket.slot, 0);
        memory::begin(c.socket.session, c.socket.slot);
        assert!(!c.says());
        assert_eq!(c.private().touched.load(Ordering::Relaxed), 8192);
    }
}
