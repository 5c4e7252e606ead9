//! Listeners whose descriptors stay listening sockets of the kernel. The kernel names one, by its cookie, for each SYN.

use crate::api::SynCounts;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use towpath_runtime::ListenerProof;
use towpath_runtime::named_counts::NamedCounts;
use towpath_tcp::flow::Owner;
use towpath_tcp::time::Micros;

/// The slow thread looks at least so often after its listeners, µs. SYNs are left to the kernel after three seconds without it.
const LOOK_US: u64 = 1_000_000;

/// A listener whose connections have waited for so long, and none of which has been accepted, is not served, µs.
const STALLED_US: u64 = 3_000_000;

/// The listeners, by cookie and by owner.
#[derive(Default)]
pub struct KernelListeners {
    by_cookie: HashMap<u64, Owner>,
    /// Ordered, so that all see them in the same order.
    by_owner: BTreeMap<u64, ListenerProof>,
    /// Those with connections that wait: up to where the application has accepted, and since when that is so.
    waiting: HashMap<u64, (u32, Micros)>,
    /// SYNs that named none of them.
    pub unknown: u64,
    /// The kernel has all SYNs again.
    pub given_back: bool,
    /// SYNs that the policy has refused to the kernel's halves.
    pub refused: u64,
    /// Of each listener, by cookie, when it was read last.
    refused_at: HashMap<u64, u64>,
    /// The rules about their peers that are set ([`towpath_runtime::AdmissionPolicy::peer_rules_version`]).
    pub rules_version: u64,
    /// Sockets about whose peers there are rules, by cookie. They outlive the listener while the socket listens.
    pub judged: HashMap<u64, ListenerProof>,
    /// The one of them whose listener has ended and for whose socket the kernel was asked last.
    pub asked_before: u64,
    /// Connections that the kernel's halves of listeners that have ended had accepted.
    pub accepted_before: u64,
}

impl KernelListeners {
    /// Adds a listener. No other one has its cookie.
    pub fn insert(&mut self, owner: Owner, proof: ListenerProof) {
        self.by_cookie.insert(proof.cookie, owner);
        self.by_owner.insert(owner.0, proof);
    }
    /// Removes a listener, if `owner` is one, and returns its cookie.
    pub fn remove(&mut self, owner: Owner) -> Option<u64> {
        let proof = self.by_owner.remove(&owner.0)?;
        self.by_cookie.remove(&proof.cookie);
        self.refused_at.remove(&proof.cookie);
        self.waiting.remove(&owner.0);
        Some(proof.cookie)
    }
    /// Do connections wait that nobody accepts? `accepted`: up to where the application has accepted; `None`: none waits.
    pub fn has_stalled(&mut self, now: Micros, owner: Owner, accepted: Option<u32>) -> bool {
        let Some(accepted) = accepted else {
            self.waiting.remove(&owner.0);
            return false;
        };
        let (before, since) = self.waiting.entry(owner.0).or_insert((accepted, now));
        if *before != accepted {
            (*before, *since) = (accepted, now);
        }
        now.since(*since) >= STALLED_US
    }
    /// The cookies.
    pub fn cookies(&self) -> impl Iterator<Item = u64> {
        self.by_cookie.keys().copied()
    }
    /// The listener with this cookie, for a connection to this address and port. A client may have bound the socket anew
    /// since it was accepted as a listener: then it is none.
    pub fn find(&self, cookie: u64, addr: IpAddr, port: u16) -> Option<Owner> {
        let owner = *self.by_cookie.get(&cookie)?;
        self.by_owner.get(&owner.0).filter(|proof| proof.covers(addr, port)).map(|_| owner)
    }
    /// Are there rules about the peers of this listener?
    pub fn is_judged(&self, owner: Owner) -> bool {
        self.by_owner.get(&owner.0).is_some_and(|proof| self.judged.contains_key(&proof.cookie))
    }
    /// Sockets with rules whose listeners have ended.
    pub fn judged_before(&self) -> Vec<ListenerProof> {
        let before = self.judged.values().filter(|proof| !self.by_cookie.contains_key(&proof.cookie));
        let mut before: Vec<_> = before.copied().collect();
        before.sort_unstable_by_key(|proof| (proof.cookie <= self.asked_before, proof.cookie));
        before
    }
    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }
    /// Is `owner` one?
    pub fn has(&self, owner: Owner) -> bool {
        self.by_owner.contains_key(&owner.0)
    }
    /// The listeners from this owner on, in order.
    pub fn from(&self, first: Owner) -> impl Iterator<Item = (Owner, &ListenerProof)> {
        self.by_owner.range(first.0..).map(|(owner, proof)| (Owner(*owner), proof))
    }
    /// Reads for each listener how many SYNs have been refused.
    pub fn note_refused(&mut self, mut read: impl FnMut(u64) -> u64) {
        let counts = self.by_cookie.keys().map(|cookie| (*cookie, read(*cookie)));
        self.refused_at = counts.filter(|(_, refused)| *refused > 0).collect();
    }
    /// How many SYNs had been refused for this listener when they were read last.
    pub fn refused_at(&self, owner: Owner) -> u64 {
        let proof = self.by_owner.get(&owner.0);
        proof.and_then(|proof| self.refused_at.get(&proof.cookie)).copied().unwrap_or(0)
    }
    /// When the slow thread must look at them next.
    pub fn next_deadline(&self, now: Micros) -> Option<Micros> {
        (!self.is_empty() || !self.judged.is_empty()).then(|| now.after(LOOK_US))
    }
    /// The counts of their SYNs, by name.
    pub fn counts(
        &self,
        SynCounts { taken, limited, passed_stale, passed_full }: SynCounts,
        accepted: u64,
    ) -> NamedCounts {
        let counts = [
            ("accepted_by_kernel", self.accepted_before + accepted),
            ("taken", taken),
            ("limited", limited),
            ("passed_stale", passed_stale),
            ("passed_full", passed_full),
            ("refused", self.refused),
            ("unknown_listener", self.unknown),
        ];
        counts.into_iter().collect()
    }
}

/// How often the kernel is asked for each listener, µs.
const ROUND_US: u64 = 1_000_000;
/// The slow thread rests so many times as long as it has asked. Clients decide how many questions there are, and how long
/// the kernel takes for one.
const REST: u64 = 19;

/// The round of questions that goes on.
#[derive(Debug)]
pub struct ListenerCheck {
    /// When the next question is due.
    at: Micros,
    /// When the next round begins.
    round_at: Micros,
    /// No question is asked before.
    rests_until: Micros,
    /// The first listener that has not been asked for in this round; 0: the round begins.
    from: u64,
}

impl Default for ListenerCheck {
    fn default() -> Self {
        Self { at: Micros(0), round_at: Micros(0), rests_until: Micros(0), from: 0 }
    }
}

impl ListenerCheck {
    /// A process has ended, which may have had the only copy of a listener. A round that goes on is completed first: there
    /// may be an end of that kind at any time.
    pub fn soon(&mut self, now: Micros) {
        self.round_at = now;
        if self.from == 0 {
            self.at = now.max(self.rests_until);
        }
    }
    /// The listener from which on the kernel is to be asked now.
    pub fn due(&mut self, now: Micros) -> Option<Owner> {
        if now < self.at {
            return None;
        }
        if self.from == 0 {
            self.round_at = now.after(ROUND_US);
        }
        Some(Owner(self.from))
    }
    /// The kernel has been asked for so long. `next`: the first listener that has not been asked for; `None`: the round is
    /// over.
    pub fn asked(&mut self, now: Micros, spent_us: u64, next: Option<Owner>) {
        self.from = next.map_or(0, |next| next.0);
        self.rests_until = now.after(spent_us * REST);
        self.at = if next.is_some() { self.rests_until } else { self.round_at.max(self.rests_until) };
    }
    /// When the slow thread must ask again.
    pub fn next_deadline(&self) -> Micros {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn sockets_whose_listeners_have_ended_have_their_turns() {
        let mut listeners = KernelListeners::default();
        for cookie in 1..5 {
            let proof = ListenerProof { cookie, addr: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 9, dual: false };
            listeners.judged.insert(cookie, proof);
            if cookie == 3 {
                listeners.insert(Owner(1), proof);
            }
        }
        for (asked, expected) in [(0, [1, 2, 4]), (1, [2, 4, 1]), (2, [4, 1, 2]), (4, [1, 2, 4])] {
            listeners.asked_before = asked;
            let order: Vec<_> = listeners.judged_before().iter().map(|proof| proof.cookie).collect();
            assert_eq!(order, expected);
        }
    }

    #[test]
    fn a_listener_has_stalled_if_nobody_accepts_for_seconds() {
        let (mut listeners, owner) = (KernelListeners::default(), Owner(1));
        let mut stalled = |ms: u64, accepted| listeners.has_stalled(Micros(ms * 1000), owner, accepted);
        assert_eq!(
            [(0, Some(0)), (2999, Some(0)), (3000, Some(0))].map(|(ms, at)| stalled(ms, at)),
            [false, false, true]
        );
        assert_eq!(
            [(3001, Some(32)), (6000, Some(32)), (6001, Some(32))].map(|(ms, at)| stalled(ms, at)),
            [false, false, true]
        );
        assert_eq!([(6002, None), (9000, Some(64)), (11_999, Some(64))].map(|(ms, at)| stalled(ms, at)), [false; 3]);
    }

    #[test]
    fn questions_take_a_small_part_of_the_time_and_each_listener_has_its_turn() {
        let mut check = ListenerCheck::default();
        let due = |check: &mut ListenerCheck, at| check.due(Micros(at)).map(|from| from.0);
        assert_eq!(due(&mut check, 5), Some(0));
        check.asked(Micros(1005), 1000, Some(Owner(7)));
        // Clients let processes end all the time.
        check.soon(Micros(1006));
        assert_eq!(
            (due(&mut check, 20_004), due(&mut check, 20_005)),
            (None, Some(7)),
            "neither sooner nor from the first"
        );
        check.asked(Micros(20_025), 20, None);
        check.soon(Micros(20_030));
        assert_eq!((due(&mut check, 20_404), due(&mut check, 20_405)), (None, Some(0)));
        check.asked(Micros(20_406), 1, None);
        assert_eq!((due(&mut check, 1_020_404), due(&mut check, 1_020_405)), (None, Some(0)));
        check.asked(Micros(1_020_405), 0, None);
        check.soon(Micros(1_030_000));
        assert_eq!(due(&mut check, 1_030_000), Some(0));
    }

    #[test]
    fn a_listener_is_found_by_its_cookie_until_it_ends() {
        let mut listeners = KernelListeners::default();
        assert_eq!(listeners.next_deadline(Micros(5)), None);
        let addr = IpAddr::V4(Ipv4Addr::LOCALHOST);
        for (owner, cookie) in [(1, 70), (2, 80)] {
            listeners.insert(Owner(owner), ListenerProof { cookie, addr, port: 9, dual: false });
        }
        assert_eq!([70, 80, 90].map(|cookie| listeners.find(cookie, addr, 9)), [Some(Owner(1)), Some(Owner(2)), None]);
        assert_eq!(listeners.next_deadline(Micros(5)), Some(Micros(1_000_005)));
        assert_eq!((listeners.remove(Owner(1)), listeners.remove(Owner(1))), (Some(70), None));
        assert_eq!(listeners.find(80, addr, 10), None, "bound anew");
        assert_eq!((listeners.find(70, addr, 9), listeners.from(Owner(0)).count()), (None, 1));
    }
}
