//! The rules about the peers of one listener, for the filter that judges those whom the kernel would accept.
//!
//! User, program and port of a listener are known when it listens. So of each rule only the addresses are left. The filter
//! finds what [`Policy::decide`] would: of each process's rules the first that matches decides, and no process's rules
//! may refuse the peer.

use super::decide::{KnownProcess, Policy, PolicyState};
use super::identity::Identity;
use super::list::{self, DefaultAction, Entry, RuleList};
use super::query::{Attempt, Query};
use super::rule::{Action, Rule};
use std::net::{IpAddr, SocketAddr};
use towpath_runtime::{Block, ClientId, MAX_PEER_RULES, PeerRule, PeerRules, PeerVerdict};

/// Counts refusals by the default. Numbers of rules are small.
const BY_DEFAULT: u64 = u64::MAX;
/// Counts refusals because there are too many rules.
const BY_NUMBER: u64 = u64::MAX - 1;

/// The address of a listener, and whether it gets IPv4 connections, too.
#[derive(Clone, Copy)]
struct Listener {
    addr: IpAddr,
    dual: bool,
}

impl Listener {
    /// Can a connection to it have an address of this family?
    fn has(self, ipv4: bool) -> bool {
        self.addr.is_ipv4() == ipv4 || self.dual
    }
}

/// One process's rules. [`PeerVerdict::GoOn`] with 0 leads to the next process's rules.
fn of_process(list: &RuleList, about: &[usize], listener: Listener, port: u16) -> Vec<PeerRule> {
    let mut rules = Vec::new();
    let entries = about.iter().filter_map(|at| list.entries().get(*at));
    for counted in entries {
        let Entry::Rule(rule) = &counted.entry else { continue };
        if let Some((remote, local)) = addresses(rule, listener, port) {
            let verdict = match rule.action {
                Action::Deny => PeerVerdict::Refuse(counted.id()),
                Action::Allow | Action::Kernel | Action::Stack => PeerVerdict::GoOn(0),
            };
            rules.push(PeerRule { remote, local, verdict });
            if remote.is_none() && local.is_none() {
                return without_last_passes(rules);
            }
        }
    }
    if list.default == DefaultAction::Deny {
        rules.push(PeerRule { remote: None, local: None, verdict: PeerVerdict::Refuse(BY_DEFAULT) });
    }
    without_last_passes(rules)
}

/// A peer that matches no rule passes anyway.
fn without_last_passes(mut rules: Vec<PeerRule>) -> Vec<PeerRule> {
    let refusing = rules.iter().rposition(|rule| rule.verdict != PeerVerdict::GoOn(0));
    rules.truncate(refusing.map_or(0, |last| last + 1));
    rules
}

/// The addresses about which a rule is, if it can match a peer of this listener.
fn addresses(rule: &Rule, listener: Listener, port: u16) -> Option<(Option<Block>, Option<Block>)> {
    let about_peers = rule.attempt.is_none_or(|attempt| attempt == Attempt::Accept) && rule.action != Action::Stack;
    let on_port = rule.ports.as_ref().is_none_or(|ports| ports.contains(&port));
    let from = rule.remote.is_none_or(|remote| listener.has(remote.is_ipv4()));
    if !about_peers || !on_port || !from {
        return None;
    }
    let remote = rule.remote.map(|remote| remote.block());
    match rule.local {
        Some(local) if listener.addr.is_unspecified() => {
            listener.has(local.is_ipv4()).then(|| (remote, Some(local.block())))
        }
        Some(local) => local.contains(listener.addr).then_some((remote, None)),
        None => Some((remote, None)),
    }
}

/// All processes' rules in one list.
fn joined(lists: Vec<Vec<PeerRule>>) -> Vec<PeerRule> {
    let mut all = Vec::new();
    for list in lists {
        let next = all.len() + list.len();
        all.extend(list.into_iter().map(|rule| match rule.verdict {
            PeerVerdict::GoOn(_) => PeerRule { verdict: PeerVerdict::GoOn(next), ..rule },
            PeerVerdict::Refuse(_) => rule,
        }));
    }
    all
}

impl Policy {
    /// See [`towpath_runtime::AdmissionPolicy::peer_rules`].
    pub fn peer_rules(&self, client: ClientId, local: SocketAddr, dual: bool) -> PeerRules {
        let mut state = self.lock();
        let PolicyState { list, clients, throttle, .. } = &mut *state;
        let listener = Listener { addr: local.ip().to_canonical(), dual };
        let query = Query::listen(local, dual);
        let mut unknown = [KnownProcess::new(Identity { uid: u32::MAX, ..Identity::default() })];
        let processes = clients.get_mut(&client).map_or(&mut unknown[..], |known| &mut known[..]);
        let mut lists: Vec<Vec<PeerRule>> = Vec::new();
        for known in processes {
            let about = known.rules_about(list);
            if let (Some(at), _) = list.first_match(about, &query)
                && let Some(counted) = list.entries().get(at)
                && matches!(&counted.entry, Entry::Rule(Rule { only_accelerated: true, .. }))
            {
                return PeerRules { only_accelerated: true, ..PeerRules::nobody(counted.id()) };
            }
            let rules = of_process(list, about, listener, local.port());
            if !rules.is_empty() && !lists.contains(&rules) {
                lists.push(rules);
            }
        }
        let rules = joined(lists);
        if rules.len() <= MAX_PEER_RULES {
            return PeerRules { rules, only_accelerated: false };
        }
        if throttle.allows() {
            tracing::warn!(
                "policy: {} rules are about the peers of the listener on {local}; the kernel's filter takes \
                 {MAX_PEER_RULES}, so its kernel half accepts nobody",
                rules.len()
            );
        }
        PeerRules::nobody(BY_NUMBER)
    }

    /// A number that changes with the answers of [`Policy::peer_rules`].
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// Counts and logs SYNs that the filter has refused, by the numbers in its rules.
    pub fn peers_refused(&self, refused: &[(u64, u64)]) {
        let mut state = self.lock();
        let PolicyState { list, totals, throttle, .. } = &mut *state;
        for (number, more) in refused {
            totals.denied += more;
            let by = match *number {
                BY_DEFAULT => {
                    list.default_hits += more;
                    "the default".to_owned()
                }
                BY_NUMBER => "the number of rules".to_owned(),
                id => match list.hit_by(id, *more) {
                    Some(at) => format!("rule {}", list::number(at)),
                    None => "a rule that has gone".to_owned(),
                },
            };
            if throttle.allows() {
                tracing::warn!("policy: {more} SYNs for the kernel half of listeners denied by {by} (drop)");
            }
        }
    }
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
