//! Sockets that are passed to other processes, over `exec` or `SCM_RIGHTS`.
//!
//! A process names a socket before it passes the descriptor on. A process that shows the descriptor later is told in
//! which slot of which region the socket lives. Sockets are told apart by the kernel's cookie (`SO_COOKIE`): no two
//! sockets have the same one, and no program can choose one.

use rustix::fd::AsFd;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::collections::{HashMap, VecDeque};

/// The slot in which a socket lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The client's token.
    pub token: u64,
    /// Its slot.
    pub slot: u32,
    /// The slot's generation.
    pub generation: u32,
}

/// The sockets that have been named: at most one for each slot of each client.
#[derive(Debug, Default)]
pub struct PassedSockets {
    by_cookie: HashMap<u64, Location>,
    by_slot: HashMap<(u64, u32), u64>,
    /// Sockets of other stacks, by user: cookie and number of the stack, oldest first. This service does not see them
    /// close, but a cookie is never used again.
    elsewhere: HashMap<u32, VecDeque<(u64, u32)>>,
}

/// Most sockets of other stacks that are remembered for a user. They are asked for soon after they are named.
pub const MAX_ELSEWHERE: usize = 1024;

/// The kernel's cookie of this socket. `None` if it can be neither one end of a pair nor a listener.
pub fn cookie(shown: impl AsFd) -> Option<u64> {
    let stands_for_a_socket = match sockopt::socket_domain(&shown).ok()? {
        AddressFamily::UNIX => true,
        AddressFamily::INET | AddressFamily::INET6 => sockopt::socket_type(&shown).ok()? == SocketType::STREAM,
        _ => false,
    };
    if stands_for_a_socket { sockopt::socket_cookie(&shown).ok() } else { None }
}

impl PassedSockets {
    /// The socket with this cookie lives in this slot. A cookie that another client has named keeps its location: a
    /// receiver cannot redefine a descriptor.
    pub fn name(&mut self, cookie: u64, token: u64, slot: u32, generation: u32) {
        if self.by_cookie.get(&cookie).is_some_and(|location| location.token != token) {
            return;
        }
        if let Some(before) = self.by_slot.remove(&(token, slot)) {
            self.by_cookie.remove(&before);
        }
        if let Some(before) = self.by_cookie.insert(cookie, Location { token, slot, generation }) {
            self.by_slot.remove(&(token, before.slot));
        }
        self.by_slot.insert((token, slot), cookie);
    }

    /// The socket with this cookie, of a client of user `uid`, lives in a region of another stack.
    pub fn name_elsewhere(&mut self, cookie: u64, uid: u32, stack: u32) {
        let elsewhere = self.elsewhere.entry(uid).or_default();
        if elsewhere.len() >= MAX_ELSEWHERE {
            elsewhere.pop_front();
        }
        elsewhere.push_back((cookie, stack));
    }

    /// Where the socket with this cookie lives.
    pub fn location(&self, cookie: u64) -> Option<Location> {
        self.by_cookie.get(&cookie).copied()
    }

    /// The number of the other stack in which user `uid` has named the socket with this cookie.
    pub fn other_stack(&self, cookie: u64, uid: u32) -> Option<u32> {
        self.elsewhere.get(&uid)?.iter().rev().find(|(known, _)| *known == cookie).map(|(_, stack)| *stack)
    }

    /// All descriptors of the socket that lived in this generation of the slot are closed.
    pub fn forget(&mut self, token: u64, slot: u32, generation: u32) {
        let Some(cookie) = self.by_slot.get(&(token, slot)) else { return };
        if self.by_cookie.get(cookie).is_none_or(|location| location.generation == generation) {
            self.by_cookie.remove(cookie);
            self.by_slot.remove(&(token, slot));
        }
    }

    /// The listener with this cookie, of this client, has ended.
    pub fn forget_listener(&mut self, cookie: u64, token: u64) {
        let Some(location) = self.by_cookie.get(&cookie).filter(|location| location.token == token) else { return };
        self.by_slot.remove(&(token, location.slot));
        self.by_cookie.remove(&cookie);
    }

    /// The client is gone.
    pub fn forget_client(&mut self, token: u64) {
        self.by_cookie.retain(|_, location| location.token != token);
        self.by_slot.retain(|(of, _), _| *of != token);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_socket_has_one_location_and_a_slot_one_socket() {
        let mut sockets = PassedSockets::default();
        sockets.name(7, 1, 3, 1);
        sockets.name(8, 1, 3, 2);
        assert_eq!(sockets.by_cookie.keys().copied().collect::<Vec<_>>(), [8], "the slot has a new socket");
        sockets.name(8, 1, 4, 1);
        assert_eq!(sockets.by_slot.keys().copied().collect::<Vec<_>>(), [(1, 4)], "the socket has a new slot");
        sockets.forget(1, 4, 9);
        assert_eq!(sockets.by_cookie.len(), 1, "an older socket's end changes nothing");
        sockets.forget(1, 4, 1);
        assert!(sockets.by_cookie.is_empty() && sockets.by_slot.is_empty());
    }

    #[test]
    fn only_one_end_of_a_pair_or_a_stream_socket_stands_for_a_socket() {
        let make = |family, kind| rustix::net::socket(family, kind, None).unwrap();
        let (stream, packets) = (SocketType::STREAM, SocketType::DGRAM);
        for (family, kind, stands) in [
            (AddressFamily::UNIX, stream, true),
            (AddressFamily::UNIX, packets, true),
            (AddressFamily::INET, stream, true),
            (AddressFamily::INET6, stream, true),
            (AddressFamily::INET, packets, false),
            (AddressFamily::INET6, packets, false),
            (AddressFamily::NETLINK, SocketType::RAW, false),
        ] {
            let (one, other) = (make(family, kind), make(family, kind));
            assert_eq!(cookie(&one).is_some(), stands, "{family:?} {kind:?}");
            assert_eq!(cookie(&one), stands.then(|| sockopt::socket_cookie(&one).unwrap()));
            assert!(!stands || cookie(&one) != cookie(&other));
        }
        assert_eq!(cookie(std::fs::File::open("/dev/null").unwrap()), None);
    }

    #[test]
    fn the_last_word_of_a_user_on_a_socket_elsewhere_counts() {
        let mut sockets = PassedSockets::default();
        sockets.name_elsewhere(7, 1000, 1);
        sockets.name_elsewhere(8, 1000, 2);
        sockets.name_elsewhere(7, 1000, 3);
        assert_eq!((sockets.other_stack(7, 1000), sockets.other_stack(8, 1000)), (Some(3), Some(2)));
        assert_eq!((sockets.other_stack(9, 1000), sockets.other_stack(7, 1001)), (None, None));
        (3..MAX_ELSEWHERE as u64).for_each(|cookie| sockets.name_elsewhere(100 + cookie, 1000, 0));
        assert_eq!(sockets.other_stack(8, 1000), Some(2), "as many as are remembered");
        sockets.name_elsewhere(99, 1000, 0);
        sockets.name_elsewhere(98, 1000, 0);
        assert_eq!((sockets.other_stack(8, 1000), sockets.other_stack(7, 1000)), (None, Some(3)), "the oldest goes");
    }

    #[test]
    fn a_client_that_has_gone_takes_its_own_sockets_only() {
        let mut sockets = PassedSockets::default();
        sockets.name(7, 1, 3, 1);
        sockets.name(8, 2, 3, 1);
        sockets.forget_client(1);
        assert_eq!((sockets.location(7), sockets.by_slot.len()), (None, 1));
        assert_eq!(sockets.location(8), Some(Location { token: 2, slot: 3, generation: 1 }));
    }

    #[test]
    fn a_user_has_a_bounded_number_of_sockets_elsewhere() {
        let mut sockets = PassedSockets::default();
        (0..=MAX_ELSEWHERE as u64).for_each(|cookie| sockets.name_elsewhere(cookie, 1000, 0));
        assert_eq!(sockets.elsewhere[&1000].len(), MAX_ELSEWHERE);
    }

    #[test]
    fn a_listener_that_has_ended_is_nowhere() {
        let mut sockets = PassedSockets::default();
        sockets.name(7, 1, 3, 1);
        sockets.forget_listener(7, 2);
        assert!(sockets.location(7).is_some(), "another client's word changes nothing");
        sockets.forget_listener(7, 1);
        assert!(sockets.by_cookie.is_empty() && sockets.by_slot.is_empty());
    }

    #[test]
    fn a_receiver_cannot_redefine_a_descriptor() {
        let mut sockets = PassedSockets::default();
        sockets.name(7, 1, 3, 1);
        sockets.name(7, 2, 5, 1);
        assert_eq!(sockets.by_cookie[&7], Location { token: 1, slot: 3, generation: 1 });
        sockets.forget_client(1);
        sockets.name(7, 2, 5, 1);
        assert_eq!(sockets.by_cookie[&7].token, 2);
        sockets.forget_client(2);
        assert!(sockets.by_cookie.is_empty() && sockets.by_slot.is_empty());
    }
}
