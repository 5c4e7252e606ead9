//! Decides which programs of different network namespaces may be joined. No rule that matches means no.

use super::decide::{Policy, PolicyState};
use super::join::JoinRule;
use super::list::{Entry, RuleList};
use super::query::JoinQuery;
use std::net::SocketAddr;
use towpath_runtime::ClientId;

impl Policy {
    /// The stack at which a connect of this client may be joined to a listener, by its number. The listener's stack asks its
    /// own policy, so this is no permission.
    pub fn joins_to(&self, client: ClientId, listener: SocketAddr) -> Option<u8> {
        let mut state = self.lock();
        let own = state.list.namespaces.own.clone();
        let rule = first_for_all(&mut state, client, |rule| rule.from == own && rule.covers(listener))?;
        let Entry::Join(JoinRule { to, .. }) = &state.list.entries()[rule].entry else { return None };
        state.list.namespaces.number(to)
    }

    /// May this client, whose namespace the stack `from` serves, be joined to a listener of this stack?
    pub fn may_join(&self, client: ClientId, from: &str, listener: SocketAddr) -> bool {
        let mut state = self.lock();
        let own = state.list.namespaces.own.clone();
        let matches = |rule: &JoinRule| rule.from == from && rule.to == own && rule.covers(listener);
        let rule = first_for_all(&mut state, client, matches);
        if rule.is_some() {
            state.list.hit(rule);
        }
        rule.is_some()
    }
}

/// The first of these rules that decides on a join, and whether it allows it. In the stack of the connecting program a rule for
/// another listener's stack decides if it stands first. That stack is asked, and no other.
pub(super) fn first_match(list: &RuleList, about: &[usize], query: &JoinQuery) -> (Option<usize>, bool) {
    let JoinQuery { from, to, listener } = query;
    let decides = |rule: &JoinRule| {
        rule.from == *from && rule.covers(*listener) && (*from == list.namespaces.own || rule.to == *to)
    };
    let rule = |at: usize| match &list.entries().get(at)?.entry {
        Entry::Join(rule) => Some(rule).filter(|rule| decides(rule)),
        Entry::Rule(_) | Entry::Limit(_) => None,
    };
    let found = about.iter().find_map(|at| Some((*at, rule(*at)?.to == *to)));
    found.map_or((None, false), |(at, allows)| (Some(at), allows))
}

/// The first rule that matches, if each process of the client has one. All of them can write its rings.
fn first_for_all(state: &mut PolicyState, client: ClientId, matches: impl Fn(&JoinRule) -> bool) -> Option<usize> {
    if state.drains {
        return None;
    }
    let PolicyState { list, clients, .. } = state;
    let mut first = None;
    for known in clients.get_mut(&client)? {
        let is_one = |at: &usize| matches!(&list.entries()[*at].entry, Entry::Join(rule) if matches(rule));
        let found = known.rules_about(list).iter().copied().find(is_one)?;
        first.get_or_insert(found);
    }
    first
}

#[cfg(test)]
#[path = "joins_tests.rs"]
mod tests;
