//! The policy in force: the rules, the clients that they are about, and the decision on each attempt.

use super::identity::Identity;
use super::list::{DefaultAction, Entry, RuleList, number};
use super::namespaces::Namespaces;
use super::process_filter::ProcessFilter;
use super::query::{Attempt, Query};
use super::request::PolicyTotals;
use super::rule::Denial;
use crate::fingerprint;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_runtime::log_throttle::LogThrottle;
use towpath_runtime::{ClientId, Exceeded, Limit, Verdict};

/// Most different processes of one client. More are not admitted.
const MAX_PROCESSES: usize = 64;

/// One process of a client, with the rules that are about it.
pub(super) struct KnownProcess {
    identity: Identity,
    /// Positions in the list. `None` until they are found.
    about: Option<Vec<usize>>,
}

impl KnownProcess {
    /// Its rules have not been found yet.
    pub fn new(identity: Identity) -> Self {
        Self { identity, about: None }
    }
    /// The positions of the rules that are about it.
    pub fn rules_about(&mut self, list: &RuleList) -> &[usize] {
        self.about.get_or_insert_with(|| list.about(&self.identity))
    }
}

/// Everything that changes.
pub(super) struct PolicyState {
    /// The rules.
    pub list: RuleList,
    /// The clients' processes.
    pub clients: HashMap<ClientId, Vec<KnownProcess>>,
    /// Counts for `towpath status`.
    pub totals: PolicyTotals,
    /// Of refusals: others decide how many there are.
    pub throttle: LogThrottle,
    /// New sockets are the kernel's, whatever the list says.
    pub drains: bool,
    /// Counts changes of the rules about listeners that there are.
    pub version: u64,
    /// Counts changes of the list, for operators ([`fingerprint::first_generation`]).
    pub generation: u64,
    /// [`RuleList::hash`].
    pub hash: String,
}

impl PolicyState {
    /// The list has changed: the rules about each process must be found anew.
    pub fn changed(&mut self) {
        self.version += 1;
        self.generation += 1;
        self.hash = self.list.hash();
        self.clients.values_mut().flatten().for_each(|known| known.about = None);
    }

    /// May these rules replace the list? Those that are there already always may.
    pub fn may_become(
        &self,
        entries: &[Entry],
        default: DefaultAction,
        if_generation: Option<u64>,
    ) -> Result<(), String> {
        match if_generation {
            Some(asked) if asked != self.generation && !self.list.is(entries, default) => Err(format!(
                "the policy has generation {}, not {asked}: it has been changed, or the service has begun again; see what it is \
                 (`towpath policy diff`), and name that generation",
                self.generation
            )),
            _ => Ok(()),
        }
    }

    /// Replaces the list in one step. True if that has changed anything.
    pub fn become_list(
        &mut self,
        entries: Vec<Entry>,
        default: DefaultAction,
        if_generation: Option<u64>,
    ) -> Result<bool, String> {
        self.may_become(&entries, default, if_generation)?;
        if self.list.is(&entries, default) {
            return Ok(false);
        }
        self.list.replace(entries, default)?;
        self.changed();
        Ok(true)
    }

    /// The processes of each client.
    pub fn identities(&self) -> HashMap<ClientId, Vec<Identity>> {
        let of = |known: &Vec<KnownProcess>| known.iter().map(|known| known.identity.clone()).collect();
        self.clients.iter().map(|(client, known)| (*client, of(known))).collect()
    }
}

/// Judges an attempt of a client by the rules about each of its processes. The first verdict that does not allow it counts.
/// Returns the number of the process whose verdict that is, and the rule.
pub(super) fn judged<'a>(
    list: &RuleList,
    processes: impl Iterator<Item = &'a [usize]>,
    query: &Query,
) -> Option<(usize, Option<usize>, Verdict)> {
    let mut decision = None;
    for (process, about) in processes.enumerate() {
        let (rule, verdict) = list.first_match(about, query);
        if !matches!(verdict, Verdict::Allow(_)) {
            return Some((process, rule, verdict));
        }
        decision = decision.or(Some((process, rule, verdict)));
    }
    decision
}

/// See the module. A clone is another handle of the same policy.
#[derive(Clone)]
pub struct Policy(Arc<Mutex<PolicyState>>);

impl std::fmt::Debug for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.lock().list.entries()).finish()
    }
}

impl Policy {
    /// The policy of a service without other stacks.
    pub fn new(entries: Vec<Entry>, default: DefaultAction) -> Result<Self, String> {
        Self::with_stacks(entries, default, Vec::new())
    }

    /// The policy of a service with these other stacks, by number.
    pub fn with_stacks(entries: Vec<Entry>, default: DefaultAction, stacks: Vec<String>) -> Result<Self, String> {
        Self::with_namespaces(entries, default, stacks, Namespaces::default())
    }

    /// [`Policy::with_stacks`], for a stack with these namespaces beside its own.
    pub fn with_namespaces(
        entries: Vec<Entry>,
        default: DefaultAction,
        stacks: Vec<String>,
        namespaces: Namespaces,
    ) -> Result<Self, String> {
        let mut list = RuleList::of_stacks(stacks, namespaces);
        list.replace(entries, default)?;
        let (clients, totals, throttle) = (HashMap::new(), PolicyTotals::default(), LogThrottle::default());
        let (generation, hash) = (fingerprint::first_generation(), list.hash());
        let state = PolicyState { list, clients, totals, throttle, drains: false, version: 0, generation, hash };
        Ok(Self(Arc::new(Mutex::new(state))))
    }

    /// The state. Every change of it is one step, so a thread that panicked with the lock has left it consistent.
    pub(super) fn lock(&self) -> MutexGuard<'_, PolicyState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a process to a client. An attempt must be allowed for each of the client's processes. False if there are
    /// too many.
    pub fn enter(&self, client: ClientId, identity: Identity) -> bool {
        let mut state = self.lock();
        let PolicyState { clients, version, .. } = &mut *state;
        let processes = clients.entry(client).or_default();
        let same = |a: &Identity, b: &Identity| Identity { pid: 0, ..a.clone() } == Identity { pid: 0, ..b.clone() };
        if processes.iter().any(|known| same(&known.identity, &identity)) {
            return true;
        }
        let room = processes.len() < MAX_PROCESSES;
        if room {
            // The first one has no listeners yet.
            *version += u64::from(!processes.is_empty());
            processes.push(KnownProcess::new(identity));
        }
        room
    }

    /// From now on new sockets are the kernel's. What a rule denies stays denied.
    pub fn drain(&self) {
        self.lock().drains = true;
    }

    /// Are they?
    pub fn drains(&self) -> bool {
        self.lock().drains
    }

    /// The client is gone.
    pub fn leave(&self, client: ClientId) {
        self.lock().clients.remove(&client);
    }

    /// The totals that `towpath status` shows.
    pub fn totals(&self) -> PolicyTotals {
        let state = self.lock();
        let (generation, hash) = (Some(state.generation), Some(state.hash.clone()));
        PolicyTotals { rules: state.list.entries().len(), generation, hash, ..state.totals.clone() }
    }

    /// Decides on an attempt ([`judged`]), and counts that.
    pub fn decide(&self, client: ClientId, query: &Query) -> Verdict {
        let mut state = self.lock();
        let PolicyState { list, clients, totals, throttle, drains, .. } = &mut *state;
        let mut unknown = [KnownProcess::new(Identity { uid: u32::MAX, ..Identity::default() })];
        let processes = clients.get_mut(&client).map_or(&mut unknown[..], |known| &mut known[..]);
        let rules = processes.iter_mut().map(|known| known.rules_about(list));
        let Some((process, rule, verdict)) = judged(list, rules, query) else { return Verdict::Kernel };
        let identity = &processes[process].identity;
        list.hit(rule);
        if *drains && query.attempt != Attempt::Accept && matches!(verdict, Verdict::Allow(_)) {
            return Verdict::Kernel;
        }
        if matches!(verdict, Verdict::Refuse(_) | Verdict::Drop) {
            totals.denied += 1;
            if throttle.allows() {
                let by = rule.map_or("the default".to_owned(), |at| format!("rule {}", number(at)));
                let (what, how) = (query.words(), seen(query.attempt, verdict));
                let Identity { uid, pid, .. } = identity;
                tracing::warn!(uid, pid, program = identity.name(), "policy: {what} denied by {by} ({how})");
            }
        }
        verdict
    }

    /// The limit that a client is under.
    pub fn limit(&self, client: ClientId) -> Option<Limit> {
        let state = self.lock();
        let first = state.clients.get(&client)?.first()?;
        state.list.limit(&state.list.about(&first.identity)).map(|(_, limit)| limit)
    }

    /// The bits of those filters that choose a client: by the process that it registered with. One whose program or control
    /// group is unknown is chosen, as by a rule that denies.
    pub fn selected_by(&self, client: ClientId, filters: &[(u32, ProcessFilter)]) -> u32 {
        let state = self.lock();
        let unknown = Identity { uid: u32::MAX, ..Identity::default() };
        let known = state.clients.get(&client).and_then(|known| known.first());
        let identity = known.map_or(&unknown, |known| &known.identity);
        let chosen = filters.iter().filter(|(_, filter)| filter.matches(identity, true));
        chosen.fold(0, |bits, (bit, _)| bits | bit)
    }

    /// Counts and logs an attempt that a limit has refused.
    pub fn exceeded(&self, client: ClientId, limit: &Limit, what: Exceeded) {
        let mut state = self.lock();
        let PolicyState { list, clients, totals, throttle, .. } = &mut *state;
        totals.limited += 1;
        let Some(at) = list.hit_limit(limit.id) else { return };
        let known = clients.get(&client).and_then(|known| known.first());
        if let Some(KnownProcess { identity, .. }) = known.filter(|_| throttle.allows()) {
            let what = match what {
                Exceeded::Connections => format!("{} connections", limit.connections),
                Exceeded::NewPerSecond => format!("{} new connections per second", limit.new_per_s),
            };
            let Identity { uid, pid, .. } = identity;
            tracing::warn!(
                uid,
                pid,
                program = identity.name(),
                "policy: rule {} allows no more than {what}",
                number(at)
            );
        }
    }
}

/// The effect of a refusal, as the application or the peer sees it.
pub fn seen(attempt: Attempt, verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Refuse(_) if attempt == Attempt::Accept => Denial::Reset.name(),
        Verdict::Refuse(errno) => Denial::Errno(errno).name(),
        _ => Denial::Drop.name(),
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
