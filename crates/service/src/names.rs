//! Which socket a descriptor is. A process that is about to let a socket go elsewhere names it; who then shows a descriptor of it is
//! told in which slot of which region it lives. The kernel's cookie of the socket is what cannot be forged: no two have the same,
//! ever, and no program can choose one.

use crate::shared::Registry;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};
use std::collections::{HashMap, VecDeque};
use towpath_ring::control::Reply;

/// Where a socket lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    token: u64,
    slot: u32,
    generation: u32,
}

/// The sockets that have been named, at most one for each slot of each client.
#[derive(Debug, Default)]
pub struct Names {
    by_cookie: HashMap<u64, Place>,
    by_slot: HashMap<(u64, u32), u64>,
    /// Sockets of other stacks, by user: their cookies and the stacks' numbers, the oldest first. No end of them is seen here; but a cookie
    /// is never used again.
    away: HashMap<u32, VecDeque<(u64, u32)>>,
}

/// Sockets of other stacks that are known of a user at most. They are asked for soon after they were named.
const MAX_AWAY: usize = 1024;

/// What the kernel calls this socket, if it can be the end of a pair.
pub fn cookie(end: impl AsFd) -> Option<u64> {
    let unix = sockopt::socket_domain(&end).ok() == Some(AddressFamily::UNIX);
    if unix { sockopt::socket_cookie(&end).ok() } else { None }
}

impl Names {
    /// The socket with this cookie lives in this slot. What another client has named stays what it is: a receiver cannot give a
    /// descriptor a new meaning.
    pub fn name(&mut self, cookie: u64, token: u64, slot: u32, generation: u32) {
        if self.by_cookie.get(&cookie).is_some_and(|place| place.token != token) {
            return;
        }
        if let Some(before) = self.by_slot.remove(&(token, slot)) {
            self.by_cookie.remove(&before);
        }
        if let Some(before) = self.by_cookie.insert(cookie, Place { token, slot, generation }) {
            self.by_slot.remove(&(token, before.slot));
        }
        self.by_slot.insert((token, slot), cookie);
    }

    /// The socket with this cookie, of a client of user `uid`, lives in a region of the other stack of this number.
    pub fn name_at(&mut self, cookie: u64, uid: u32, stack: u32) {
        let away = self.away.entry(uid).or_default();
        if away.len() >= MAX_AWAY {
            away.pop_front();
        }
        away.push_back((cookie, stack));
    }

    fn is_at(&self, cookie: u64, uid: u32) -> Option<u32> {
        self.away.get(&uid)?.iter().rev().find(|(known, _)| *known == cookie).map(|(_, stack)| *stack)
    }

    /// The socket that lived in the slot in this generation is closed everywhere.
    pub fn forget(&mut self, token: u64, slot: u32, generation: u32) {
        let Some(cookie) = self.by_slot.get(&(token, slot)) else { return };
        if self.by_cookie.get(cookie).is_none_or(|place| place.generation == generation) {
            self.by_cookie.remove(cookie);
            self.by_slot.remove(&(token, slot));
        }
    }

    /// The client is gone.
    pub fn forget_client(&mut self, token: u64) {
        self.by_cookie.retain(|_, place| place.token != token);
        self.by_slot.retain(|(of, _), _| *of != token);
    }
}

impl Registry {
    /// The answer to a process of user `uid` that shows the socket with this cookie. EAGAIN: nobody has named it, yet; EPERM: it is
    /// another user's, whose region must stay out of this one's reach.
    pub fn whose(&self, cookie: Option<u64>, uid: u32) -> Reply {
        let refused = |errno: Errno| Reply::Refused { errno: errno.raw_os_error() };
        let Some(cookie) = cookie else { return refused(Errno::INVAL) };
        let Some(place) = self.names.by_cookie.get(&cookie) else {
            let stack = self.names.is_at(cookie, uid);
            return stack.map_or(refused(Errno::AGAIN), |stack| Reply::AdoptedAt { stack });
        };
        match self.clients.get(&place.token) {
            Some(client) if client.uid == uid => {
                Reply::Adopted { token: place.token, slot: place.slot, generation: place.generation }
            }
            Some(_) => refused(Errno::PERM),
            None => refused(Errno::NOENT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_one_name_and_a_slot_one_socket() {
        let mut names = Names::default();
        names.name(7, 1, 3, 1);
        names.name(8, 1, 3, 2);
        assert_eq!(names.by_cookie.keys().copied().collect::<Vec<_>>(), [8], "the slot has a new socket");
        names.name(8, 1, 4, 1);
        assert_eq!(names.by_slot.keys().copied().collect::<Vec<_>>(), [(1, 4)], "the socket has a new slot");
        names.forget(1, 4, 9);
        assert_eq!(names.by_cookie.len(), 1, "an older socket's end is no news");
        names.forget(1, 4, 1);
        assert!(names.by_cookie.is_empty() && names.by_slot.is_empty());
    }

    #[test]
    fn sockets_of_other_stacks_are_known_to_their_user_until_many_have_come() {
        let mut registry = Registry::default();
        registry.names.name_at(7, 1000, 2);
        assert_eq!(registry.whose(Some(7), 1000), Reply::AdoptedAt { stack: 2 });
        assert_eq!(registry.whose(Some(7), 1001), Reply::Refused { errno: libc::EAGAIN }, "another user's");
        (0..MAX_AWAY as u64).for_each(|cookie| registry.names.name_at(100 + cookie, 1000, 0));
        assert_eq!(registry.whose(Some(7), 1000), Reply::Refused { errno: libc::EAGAIN });
        assert_eq!(registry.names.away[&1000].len(), MAX_AWAY);
    }

    #[test]
    fn a_receiver_gives_no_other_meaning_to_what_it_got() {
        let mut names = Names::default();
        names.name(7, 1, 3, 1);
        names.name(7, 2, 5, 1);
        assert_eq!(names.by_cookie[&7], Place { token: 1, slot: 3, generation: 1 });
        names.forget_client(1);
        names.name(7, 2, 5, 1);
        assert_eq!(names.by_cookie[&7].token, 2);
        names.forget_client(2);
        assert!(names.by_cookie.is_empty() && names.by_slot.is_empty());
    }
}
