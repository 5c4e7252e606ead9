//! Admission control: a command of an application passes the operator's policy and its limits before a stack acts on
//! it.

use crate::client_setup::ClientId;
use crate::policy::{AdmissionPolicy, Exceeded, Limit, Verdict};
use crate::slots::ServedClient;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// New connections that a limit still allows at a time: one second's worth at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tokens {
    /// In millionths, so that slow rates add up, too.
    micro: u64,
    at_us: u64,
}

impl Tokens {
    const ONE: u64 = 1_000_000;

    fn full(now_us: u64, per_s: u32) -> Self {
        Self { micro: u64::from(per_s) * Self::ONE, at_us: now_us }
    }
    fn grown(self, now_us: u64, per_s: u32) -> Self {
        let most = u64::from(per_s) * Self::ONE;
        let grown = now_us.saturating_sub(self.at_us).saturating_mul(per_s.into());
        Self { micro: self.micro.saturating_add(grown).min(most), at_us: now_us }
    }
}

/// The connections of all clients under a limit, by its id.
#[derive(Default)]
pub struct ConnectionCounts(HashMap<u64, Arc<AtomicU64>>);

impl<C, S> ServedClient<C, S> {
    /// Puts the client under this limit. Its connections count together with those of all others in `under`.
    pub fn put_under(&mut self, limit: Option<Limit>, under: &mut ConnectionCounts) {
        self.limit = limit;
        self.under = limit.map(|limit| {
            let count = Arc::clone(under.0.entry(limit.id).or_default());
            count.fetch_add(self.connections.into(), Ordering::Relaxed);
            count
        });
    }
    /// The client as the policy knows it.
    pub fn subject(&self) -> Subject {
        Subject { id: self.shared.id, limit: self.limit }
    }
}

/// A client and the limit that it is under.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The client.
    pub id: ClientId,
    /// Its limit.
    pub limit: Option<Limit>,
}

/// A thread that asks the policy before it carries out clients' commands.
pub trait AdmissionControl {
    /// The policy.
    fn gate(&mut self) -> &mut AdmissionState;
    /// The client with this index, if there still is one.
    fn subject(&mut self, index: u32) -> Option<Subject>;
    /// The time, µs.
    fn now_us(&self) -> u64;

    /// May client `index` connect there? The rules come before its limits.
    fn permit_connect(&mut self, index: u32, remote: SocketAddr) -> Verdict {
        let Some(who) = self.subject(index) else { return Verdict::Kernel };
        match self.gate().guard.connect(who.id, remote) {
            Verdict::Allow(_) if !self.within_limits(index) => Verdict::Refuse(libc::EAGAIN),
            verdict => verdict,
        }
    }
    /// May it listen there? `dual`: on `::`, for IPv4, too.
    fn permit_listen(&mut self, index: u32, local: SocketAddr, dual: bool) -> Verdict {
        let Some(who) = self.subject(index) else { return Verdict::Kernel };
        self.gate().guard.listen(who.id, local, dual)
    }
    /// May a peer connect to a listener of it?
    fn permit_accept(&mut self, index: u32, local: SocketAddr, remote: SocketAddr) -> Verdict {
        let Some(who) = self.subject(index) else { return Verdict::Drop };
        self.gate().guard.accept(who.id, local, remote)
    }
    /// May it have one more connection now? If not, that is counted.
    fn within_limits(&mut self, index: u32) -> bool {
        let Some(who) = self.subject(index) else { return true };
        let now_us = self.now_us();
        self.gate().within(who, now_us)
    }
    /// Counts one more connection of it.
    fn spend_token(&mut self, index: u32) {
        let Some(limit) = self.subject(index).and_then(|who| who.limit) else { return };
        let now_us = self.now_us();
        self.gate().spend(&limit, now_us);
    }
}

/// The policy, and the state of its limits.
pub struct AdmissionState {
    /// The policy.
    pub guard: Box<dyn AdmissionPolicy>,
    tokens: HashMap<u64, Tokens>,
    under: ConnectionCounts,
}

impl AdmissionState {
    /// No limit has been used yet.
    pub fn new(guard: Box<dyn AdmissionPolicy>) -> Self {
        Self { guard, tokens: HashMap::new(), under: ConnectionCounts::default() }
    }
    fn within(&mut self, Subject { id, limit }: Subject, now_us: u64) -> bool {
        let Some(limit) = &limit else { return true };
        let what = if limit.connections != 0 && self.connections_under(limit) >= u64::from(limit.connections) {
            Exceeded::Connections
        } else if limit.new_per_s != 0 && self.tokens_of(limit, now_us).micro < Tokens::ONE {
            Exceeded::NewPerSecond
        } else {
            return true;
        };
        self.guard.exceeded(id, limit, what);
        false
    }
    fn spend(&mut self, limit: &Limit, now_us: u64) {
        if limit.new_per_s == 0 {
            return;
        }
        let mut tokens = self.tokens_of(limit, now_us);
        tokens.micro = tokens.micro.saturating_sub(Tokens::ONE);
        self.tokens.insert(limit.id, tokens);
    }
    /// Puts these limits in force, with the connections under each.
    pub fn set_limits(&mut self, under: ConnectionCounts) {
        let ids: HashSet<u64> = under.0.keys().copied().collect();
        self.tokens.retain(|id, _| ids.contains(id));
        self.under = under;
    }
    fn tokens_of(&self, limit: &Limit, now_us: u64) -> Tokens {
        let known = self.tokens.get(&limit.id).copied();
        known.map_or(Tokens::full(now_us, limit.new_per_s), |tokens| tokens.grown(now_us, limit.new_per_s))
    }
    fn connections_under(&self, limit: &Limit) -> u64 {
        self.under.0.get(&limit.id).map_or(0, |under| under.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::AllowAll;

    /// A thread with one client under a limit.
    struct Gate {
        gate: AdmissionState,
        limit: Limit,
        now_us: u64,
    }

    impl AdmissionControl for Gate {
        fn gate(&mut self) -> &mut AdmissionState {
            &mut self.gate
        }
        fn subject(&mut self, _: u32) -> Option<Subject> {
            Some(Subject { id: ClientId(1), limit: Some(self.limit) })
        }
        fn now_us(&self) -> u64 {
            self.now_us
        }
    }

    #[test]
    fn a_connection_costs_one_token_and_asking_none() {
        let limit = Limit { id: 1, number: 1, weight: 1, rate: 0, connections: 0, new_per_s: 3 };
        let mut gate = Gate { gate: AdmissionState::new(Box::new(AllowAll)), limit, now_us: 7 };
        let to: SocketAddr = ([10, 0, 0, 1], 80).into();
        for _ in 0..3 {
            // It is asked several times, and spent once.
            assert_eq!(
                (gate.permit_connect(0, to), gate.permit_connect(0, to)),
                (Verdict::Allow(0), Verdict::Allow(0))
            );
            gate.spend_token(0);
        }
        assert_eq!(gate.permit_connect(0, to), Verdict::Refuse(libc::EAGAIN));
        gate.now_us += 333_333;
        assert_eq!(gate.permit_connect(0, to), Verdict::Refuse(libc::EAGAIN), "a millionth is missing");
        gate.now_us += 1;
        assert_eq!(gate.permit_connect(0, to), Verdict::Allow(0));
        gate.spend_token(0);
        assert_eq!(gate.permit_connect(0, to), Verdict::Refuse(libc::EAGAIN));
    }

    #[test]
    fn tokens_grow_with_time_up_to_one_second_of_them() {
        let empty = Tokens { micro: 0, at_us: 0 };
        assert_eq!(empty.grown(500_000, 10).micro, 5 * Tokens::ONE);
        assert_eq!(empty.grown(60_000_000, 10).micro, 10 * Tokens::ONE);
        assert_eq!(empty.grown(400_000, 1).micro, 400_000);
        assert_eq!(Tokens::full(7, 3), Tokens { micro: 3 * Tokens::ONE, at_us: 7 });
    }
}
