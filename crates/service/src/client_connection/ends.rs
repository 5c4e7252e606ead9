//! The stack's ends of a client's sockets. When such an end hangs up, every descriptor of the socket is closed, in every
//! process.
//!
//! Most often the library has closed the socket before, or is about to: then the stack knows, or will in a moment. Such a
//! hang-up is not reported. It is looked at again later, because the process may have been killed before it could tell the stack.

use super::{ClientConnection, data, invalid, source};
use crate::broker_handle::BrokerRequest;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use towpath_ring::Region;
use towpath_ring::lines::{app_flags, state};

/// How long a stack may take to hear of a close that the library has told it of.
pub const HEARS_WITHIN: Duration = Duration::from_secs(1);
/// How long the library may take to tell, once it has closed a descriptor that it does not know to be the last one.
const TELLS_WITHIN: Duration = Duration::from_millis(10);

/// Ends that a client may have beyond its slots. They are of pairs that it keeps for later connections, and of sockets that it
/// closes at this moment.
const SPARE: usize = 256;

/// One end.
struct End {
    /// Which of the ends that have had its number, for the event of its hang-up.
    serial: u32,
    of: Socket,
    /// The reservation that was made for this socket.
    reservation: Option<u32>,
    end: OwnedFd,
}

/// A use of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    pub slot: u32,
    pub generation: u32,
}

/// A socket without descriptors, of which the stack is to hear by the library.
struct Unheard {
    socket: Socket,
    /// Has the library told it?
    told: bool,
    /// When the stack should have heard. The queue is in the order of these.
    due: Instant,
}

/// The ends, by the numbers that the client has given them.
#[derive(Default)]
pub struct Ends {
    by_number: HashMap<u32, End>,
    /// The numbers of the ends that were attached with a reservation, by the reservation.
    reserved: HashMap<u32, u32>,
    last_serial: u32,
    /// Sockets of which the stack is to hear by the library, and may not have heard yet.
    unheard: VecDeque<Unheard>,
}

impl Ends {
    /// Has no socket a descriptor, and is nobody about to tell the stack of the last one's end?
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty() && self.unheard.iter().all(|unheard| unheard.told)
    }

    /// True if the client has more ends than `slots` plus the spare. Some have hung up then, or their pairs are kept.
    pub fn has_more_than(&self, slots: u32) -> bool {
        self.by_number.len() >= slots as usize + SPARE
    }

    /// Keeps the end of a socket, and lets `set` tell of its hang-up.
    pub fn attach(
        &mut self,
        set: &OwnedFd,
        number: u32,
        of: Socket,
        reservation: Option<u32>,
        end: OwnedFd,
    ) -> io::Result<()> {
        // A pair's end is of this kind, and a client's own connection is not. Kept here, it would never hang up.
        let (family, kind) = (sockopt::socket_domain(&end).ok(), sockopt::socket_type(&end).ok());
        if (family, kind) != (Some(AddressFamily::UNIX), Some(SocketType::STREAM)) {
            return Err(invalid("no end of a pair of AF_UNIX sockets"));
        }
        self.last_serial = self.last_serial.wrapping_add(1) & source::MOST;
        let serial = self.last_serial;
        // Only hang-ups matter, and epoll always reports them. A half-close is told in the ring.
        epoll::add(set, &end, data(source::SOCKET, serial, number), epoll::EventFlags::empty())?;
        self.forget(set, number);
        if let Some(reservation) = reservation {
            self.reserved.insert(reservation, number);
        }
        self.by_number.insert(number, End { serial, of, reservation, end });
        Ok(())
    }

    /// The end of this number is another socket's from now on. The one before is closed: it is looked at again later, as one
    /// whose end has hung up. False: the end has hung up meanwhile, or was never there.
    pub fn reattach(&mut self, region: &Region, number: u32, of: Socket) -> bool {
        let Some(end) = self.by_number.get_mut(&number) else { return false };
        let before = std::mem::replace(&mut end.of, of);
        if hears(region, before) != Hears::Has {
            self.look_again_at(region, before, true);
        }
        true
    }

    /// Of an honest client at most one socket for each slot is still unheard of. Another one loses its list.
    fn look_again_at(&mut self, region: &Region, socket: Socket, told: bool) {
        let slots = region.geometry().slots as usize;
        if self.unheard.len() >= 2 * slots {
            self.unheard.retain(|unheard| hears(region, unheard.socket) != Hears::Has);
            if self.unheard.len() > slots {
                self.unheard.clear();
            }
        }
        let due = Instant::now() + if told { HEARS_WITHIN } else { TELLS_WITHIN };
        let place = self.unheard.partition_point(|before| before.due <= due);
        self.unheard.insert(place, Unheard { socket, told, due });
    }

    /// An end has hung up. Returns the socket, unless the event belongs to an end that has been replaced since.
    pub fn hung_up(&mut self, set: &OwnedFd, serial: u32, number: u32) -> Option<Socket> {
        self.by_number.get(&number).filter(|end| end.serial == serial)?;
        self.forget(set, number)
    }

    /// Drops all ends that have hung up, and returns their sockets.
    pub fn all_hung_up(&mut self, set: &OwnedFd) -> Vec<Socket> {
        let numbers: Vec<u32> =
            self.by_number.iter().filter(|(_, end)| is_hung_up(&end.end)).map(|(n, _)| *n).collect();
        numbers.into_iter().filter_map(|number| self.forget(set, number)).collect()
    }

    /// Drops the end of the socket that this reservation was made for.
    pub fn drop_reserved(&mut self, set: &OwnedFd, reservation: u32) {
        if let Some(number) = self.reserved.remove(&reservation) {
            self.forget(set, number);
        }
    }

    fn forget(&mut self, set: &OwnedFd, number: u32) -> Option<Socket> {
        let End { of, reservation, end, .. } = self.by_number.remove(&number)?;
        // The client may have kept a copy. That keeps the set's entry, which would report the hang-up for ever.
        let _ = epoll::delete(set, &end);
        if let Some(reservation) = reservation {
            self.reserved.remove(&reservation);
        }
        Some(of)
    }

    /// Must the stack be told at once that this socket has no descriptor?
    pub fn is_news(&mut self, region: &Region, closed: Socket) -> bool {
        match hears(region, closed) {
            Hears::Has => false,
            Hears::Will { told } => {
                self.look_again_at(region, closed, told);
                false
            }
            Hears::Nothing => true,
        }
    }

    /// The next socket of which the stack should have heard by `now`, and has not.
    pub fn next_unheard(&mut self, region: &Region, now: Instant) -> Option<Socket> {
        while let Some(Unheard { socket, told, due }) = self.unheard.pop_front() {
            if due > now {
                self.unheard.push_front(Unheard { socket, told, due });
                return None;
            }
            match hears(region, socket) {
                Hears::Has => {}
                Hears::Will { told: true } if !told => self.look_again_at(region, socket, true),
                Hears::Will { .. } | Hears::Nothing => return Some(socket),
            }
        }
        None
    }

    /// How long until [`Ends::next_unheard`] is to be asked.
    pub fn next_look(&self) -> Option<Duration> {
        self.unheard.front().map(|unheard| unheard.due.saturating_duration_since(Instant::now()))
    }
}

impl ClientConnection<'_> {
    /// All descriptors of the socket with this end are closed, in every process.
    pub(super) fn hung_up(&mut self, serial: u32, end: u32) {
        if let Some(closed) = self.ends.hung_up(&self.epoll, serial, end) {
            self.closed(closed);
        }
    }

    fn closed(&mut self, closed: Socket) {
        self.state.registry().passed_sockets.forget(self.client.token, closed.slot, closed.generation);
        if self.ends.is_news(&self.client.region, closed) {
            self.report(closed);
        }
    }

    /// Reports sockets of which the stack should have heard by `now`, and has not.
    pub(super) fn report_unheard(&mut self, now: Instant) {
        while let Some(closed) = self.ends.next_unheard(&self.client.region, now) {
            self.report(closed);
        }
    }

    fn report(&self, Socket { slot, generation }: Socket) {
        self.state.broker.post(BrokerRequest::Hangup { id: self.client.id, slot, generation });
    }

    pub(super) fn attach(&mut self, number: u32, of: Socket, end: OwnedFd) -> io::Result<()> {
        let slots = self.check(number, of)?;
        if self.ends.has_more_than(slots) && !std::mem::replace(&mut self.has_swept, true) {
            self.ends.all_hung_up(&self.epoll).into_iter().for_each(|closed| self.closed(closed));
        }
        // Twice as many, because processes that may not register use their parent's connection, and each keeps pairs.
        if self.ends.has_more_than(slots.saturating_mul(2)) {
            return Err(invalid("more ends of pairs than slots"));
        }
        let reservation = self.unattached.remove(&of.slot);
        self.ends.attach(&self.epoll, number, of, reservation, end)
    }

    pub(super) fn reattach(&mut self, number: u32, of: Socket) -> io::Result<()> {
        self.check(number, of)?;
        if !self.ends.reattach(&self.client.region, number, of) {
            self.closed(of);
        }
        Ok(())
    }

    /// Checks the numbers of an attach, and returns how many slots the client has.
    fn check(&self, number: u32, of: Socket) -> io::Result<u32> {
        self.client.region.slot(of.slot).ok_or_else(|| invalid("no such slot"))?;
        if number > source::MOST {
            return Err(invalid("no number of an end"));
        }
        Ok(self.client.region.geometry().slots)
    }
}

fn is_hung_up(end: &OwnedFd) -> bool {
    let mut waiting = [PollFd::new(end, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut waiting, Some(&now)).is_ok() && waiting[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// What a stack hears of the end of a socket by the client's memory. A client that writes something else there keeps its own
/// connection until its last process ends.
#[derive(Debug, PartialEq, Eq)]
enum Hears {
    /// The stack has freed the slot.
    Has,
    /// The library has closed the socket there, or is about to (not `told`).
    Will {
        told: bool,
    },
    Nothing,
}

fn hears(region: &Region, Socket { slot, generation }: Socket) -> Hears {
    let Some(slot) = region.slot(slot) else { return Hears::Nothing };
    let (stack, app) = (region.stack(slot), region.app(slot));
    if stack.generation.load(Ordering::Acquire) != generation || stack.state.load(Ordering::Acquire) == state::FREE {
        return Hears::Has;
    }
    if app.generation.load(Ordering::Acquire) != generation {
        return Hears::Nothing;
    }
    let flags = app.flags.load(Ordering::Acquire);
    let told = flags & app_flags::CLOSED != 0;
    if told || flags & app_flags::CLOSERS != 0 { Hears::Will { told } } else { Hears::Nothing }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::buffer::spare_capacity;
    use rustix::event::epoll::CreateFlags;
    use rustix::net::{SocketFlags, socketpair};
    use std::sync::atomic::Ordering::Relaxed;
    use towpath_ring::Geometry;

    const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn events(set: &OwnedFd) -> Vec<u64> {
        let mut events = Vec::with_capacity(8);
        epoll::wait(set, spare_capacity(&mut events), Some(&NOW)).unwrap();
        events.iter().map(|event| event.data.u64()).collect()
    }

    fn socket(slot: u32, generation: u32) -> Socket {
        Socket { slot, generation }
    }

    #[test]
    fn an_end_hangs_up_once_even_if_the_client_keeps_a_copy() {
        let (set, mut ends) = (epoll::create(CreateFlags::CLOEXEC).unwrap(), Ends::default());
        let (ours, theirs) = pair();
        let kept = theirs.try_clone().unwrap();
        ends.attach(&set, 9, socket(3, 1), None, theirs).unwrap();
        assert!(events(&set).is_empty());
        drop(ours);
        assert_eq!(events(&set), [data(source::SOCKET, 1, 9).u64()]);
        assert_eq!(ends.hung_up(&set, 1, 9), Some(socket(3, 1)));
        assert!(events(&set).is_empty(), "the copy would be reported for ever");
        drop(kept);
    }

    #[test]
    fn an_event_of_an_end_that_was_replaced_closes_nothing() {
        let (set, mut ends) = (epoll::create(CreateFlags::CLOEXEC).unwrap(), Ends::default());
        let ((_first, theirs), (_second, next)) = (pair(), pair());
        ends.attach(&set, 9, socket(3, 1), None, theirs).unwrap();
        ends.attach(&set, 9, socket(3, 2), None, next).unwrap();
        assert_eq!(ends.hung_up(&set, 1, 9), None);
        assert_eq!(ends.hung_up(&set, 2, 9), Some(socket(3, 2)));
        assert!(ends.is_empty());
    }

    #[test]
    fn an_end_belongs_to_the_last_socket_that_it_was_attached_to() {
        let (region, _memfd) = Region::create(Geometry::default()).unwrap();
        let (set, mut ends) = (epoll::create(CreateFlags::CLOEXEC).unwrap(), Ends::default());
        let (ours, theirs) = pair();
        ends.attach(&set, 9, socket(3, 1), None, theirs).unwrap();
        assert!(ends.reattach(&region, 9, socket(5, 2)) && !ends.reattach(&region, 8, socket(6, 1)));
        assert!(ends.all_hung_up(&set).is_empty());
        drop(ours);
        assert_eq!(ends.all_hung_up(&set), [socket(5, 2)]);
        assert!(!ends.reattach(&region, 9, socket(3, 2)), "it has hung up");
    }

    /// The library may have been killed, or interrupted by a handler that closed it, before the stack could hear.
    #[test]
    fn a_socket_whose_pair_serves_another_is_looked_at_again() {
        let (region, _memfd) = Region::create(Geometry::default()).unwrap();
        let (set, mut ends) = (epoll::create(CreateFlags::CLOEXEC).unwrap(), Ends::default());
        let (_ours, theirs) = pair();
        let slot = region.slot(3).unwrap();
        region.stack(slot).generation.store(7, Relaxed);
        region.stack(slot).state.store(state::ESTABLISHED, Relaxed);
        ends.attach(&set, 9, socket(3, 7), None, theirs).unwrap();
        assert!(ends.reattach(&region, 9, socket(5, 2)));
        let later = Instant::now() + HEARS_WITHIN;
        assert_eq!(ends.next_unheard(&region, Instant::now()), None, "later");
        assert_eq!(ends.next_unheard(&region, later), Some(socket(3, 7)));
        region.stack(slot).state.store(state::FREE, Relaxed);
        assert!(ends.reattach(&region, 9, socket(3, 7)) && ends.reattach(&region, 9, socket(6, 1)));
        assert_eq!(ends.next_unheard(&region, later + HEARS_WITHIN), None, "the stack has heard");
        // A client that says so again and again takes no more memory.
        region.stack(slot).state.store(state::ESTABLISHED, Relaxed);
        for _ in 0..3 * region.geometry().slots {
            assert!(ends.reattach(&region, 9, socket(3, 7)));
            assert!(ends.unheard.len() <= 2 * region.geometry().slots as usize);
        }
    }

    #[test]
    fn an_end_goes_with_the_reservation_of_its_socket() {
        let (set, mut ends) = (epoll::create(CreateFlags::CLOEXEC).unwrap(), Ends::default());
        let ((_first, theirs), (_second, next)) = (pair(), pair());
        ends.attach(&set, 9, socket(3, 1), Some(7), theirs).unwrap();
        ends.attach(&set, 9, socket(3, 2), Some(8), next).unwrap();
        ends.drop_reserved(&set, 7);
        assert!(!ends.is_empty(), "its end has been replaced");
        ends.drop_reserved(&set, 8);
        assert!(ends.is_empty());
    }

    #[test]
    fn a_hang_up_is_news_unless_the_stack_hears_of_it_in_the_memory() {
        let geometry = Geometry {
            slots: 64,
            app_slots: 32,
            tx_bytes: 4096,
            rx_bytes: 4096,
            tx_most: 0,
            rx_most: 0,
            contexts: 1,
            flow_groups: 1,
        };
        let (region, _memfd) = Region::create(geometry).unwrap();
        let (mut ends, closed) = (Ends::default(), Socket { slot: 3, generation: 7 });
        let slot = region.slot(3).unwrap();
        let (stack, app) = (region.stack(slot), region.app(slot));
        assert!(!ends.is_news(&region, closed), "another generation");
        stack.generation.store(7, Relaxed);
        assert!(!ends.is_news(&region, closed), "free");
        stack.state.store(state::ESTABLISHED, Relaxed);
        assert!(ends.is_news(&region, closed));
        app.flags.store(app_flags::CLOSED, Relaxed);
        assert!(ends.is_news(&region, closed), "the flag is another connection's");
        app.generation.store(7, Relaxed);
        let now = Instant::now();
        assert_eq!((ends.is_news(&region, closed), ends.next_unheard(&region, now)), (false, None), "later");
        assert!(ends.next_look().is_some_and(|look| look > TELLS_WITHIN));
        let due = Instant::now() + HEARS_WITHIN;
        assert_eq!((ends.next_unheard(&region, due), ends.next_look()), (Some(closed), None));
        assert!(!ends.is_news(&region, closed));
        stack.state.store(state::FREE, Relaxed);
        assert_eq!((ends.next_unheard(&region, due + HEARS_WITHIN), ends.next_look()), (None, None));
    }

    /// The library has to ask the kernel first whether the descriptor was the last one.
    #[test]
    fn whoever_is_closing_the_last_descriptor_is_waited_for_a_moment() {
        let (region, _memfd) = Region::create(Geometry::default()).unwrap();
        let (mut ends, socket) = (Ends::default(), socket(3, 7));
        let slot = region.slot(3).unwrap();
        let (stack, app) = (region.stack(slot), region.app(slot));
        for generation in [&stack.generation, &app.generation] {
            generation.store(7, Relaxed);
        }
        stack.state.store(state::ESTABLISHED, Relaxed);
        for then in [app_flags::CLOSERS, 0] {
            app.flags.store(app_flags::CLOSER, Relaxed);
            assert!(!ends.is_news(&region, socket));
            let due = Instant::now() + TELLS_WITHIN;
            assert!(ends.next_look().is_some_and(|look| look <= TELLS_WITHIN) && !ends.is_empty());
            // It has been killed, or another process has held the last one.
            app.flags.store(then, Relaxed);
            assert_eq!((ends.next_unheard(&region, due), ends.next_look()), (Some(socket), None));
        }
        // It has told the stack, which may not have heard.
        app.flags.store(app_flags::CLOSER, Relaxed);
        assert!(!ends.is_news(&region, socket));
        let due = Instant::now() + TELLS_WITHIN;
        app.flags.store(app_flags::CLOSED, Relaxed);
        assert_eq!(ends.next_unheard(&region, due), None);
        assert!(ends.next_look().is_some_and(|look| look > TELLS_WITHIN) && ends.is_empty());
        // Whatever is due sooner comes first.
        let other = Socket { slot: 3, generation: 7 };
        ends.look_again_at(&region, other, false);
        assert!(ends.next_look().is_some_and(|look| look <= TELLS_WITHIN) && ends.unheard.len() == 2);
        assert_eq!(ends.next_unheard(&region, Instant::now() + 2 * HEARS_WITHIN), Some(socket));
    }
}
