//! The policy in force: what the engine asks, and what the control interface changes.

use super::identity::Identity;
use super::list::{Default, Entry, List};
use super::query::Query;
use super::request::Totals;
use super::rule::{Attempt, How};
use crate::server::Throttle;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_stack::{ClientId, Exceeded, Guard, Limit, Verdict};

/// Most different processes of one client that are told apart; more are not taken in.
const MAX_PROCESSES: usize = 64;

/// One process of a client, with the rules that are about it.
struct Known {
    identity: Identity,
    /// Positions in the list; `None` = to be found anew.
    about: Option<Vec<usize>>,
}

/// Everything that changes.
pub(super) struct State {
    /// The rules.
    pub list: List,
    clients: HashMap<ClientId, Vec<Known>>,
    totals: Totals,
    throttle: Throttle,
}

impl State {
    /// The list has changed: which rules are about whom is found anew.
    pub fn forget_matches(&mut self) {
        self.clients.values_mut().flatten().for_each(|known| known.about = None);
    }
}

/// See the module. Cheap to hand on.
#[derive(Clone)]
pub struct Policy(Arc<Mutex<State>>);

impl std::fmt::Debug for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.lock().list.entries()).finish()
    }
}

impl Policy {
    /// With these rules, of a service without other stacks.
    pub fn new(entries: Vec<Entry>, default: Default) -> Result<Self, String> {
        Self::with_stacks(entries, default, Vec::new())
    }

    /// With these rules. `stacks` are the names of the service's other stacks, in the order of their numbers.
    pub fn with_stacks(entries: Vec<Entry>, default: Default, stacks: Vec<String>) -> Result<Self, String> {
        let mut list = List::default();
        list.stacks = stacks;
        list.replace(entries, default)?;
        let (clients, totals, throttle) = (HashMap::new(), Totals::default(), Throttle::default());
        Ok(Self(Arc::new(Mutex::new(State { list, clients, totals, throttle }))))
    }

    /// The state. A thread that panicked while it held the lock has left it whole: every change is one step.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process belongs to this client from now on. Several different ones are each asked about: what is forbidden to one of
    /// them is forbidden to the client. False = there are too many.
    pub fn enter(&self, client: ClientId, identity: Identity) -> bool {
        let mut state = self.lock();
        let processes = state.clients.entry(client).or_default();
        let same = |a: &Identity, b: &Identity| Identity { pid: 0, ..a.clone() } == Identity { pid: 0, ..b.clone() };
        if processes.iter().any(|known| same(&known.identity, &identity)) {
            return true;
        }
        let room = processes.len() < MAX_PROCESSES;
        if room {
            processes.push(Known { identity, about: None });
        }
        room
    }

    /// The client is gone.
    pub fn leave(&self, client: ClientId) {
        self.lock().clients.remove(&client);
    }

    /// For `towpath status`.
    pub fn totals(&self) -> Totals {
        let state = self.lock();
        Totals { rules: state.list.entries().len(), ..state.totals.clone() }
    }

    fn decide(&self, client: ClientId, query: &Query) -> Verdict {
        let mut state = self.lock();
        let State { list, clients, totals, throttle } = &mut *state;
        let mut unknown = [Known { identity: Identity { uid: u32::MAX, ..Identity::default() }, about: None }];
        let processes = clients.get_mut(&client).map_or(&mut unknown[..], |known| &mut known[..]);
        let mut decision = None;
        for known in processes {
            let about = known.about.get_or_insert_with(|| list.about(&known.identity));
            let (rule, verdict) = list.decide(about, query);
            if decision.is_none() || !matches!(verdict, Verdict::Allow(_)) {
                decision = Some((rule, verdict, &known.identity));
            }
            if !matches!(verdict, Verdict::Allow(_)) {
                break;
            }
        }
        let Some((rule, verdict, identity)) = decision else { return Verdict::Kernel };
        list.hit(rule);
        if matches!(verdict, Verdict::Refuse(_) | Verdict::Drop) {
            totals.denied += 1;
            if throttle.allows() {
                let by = rule.map_or("the default".to_owned(), |at| format!("rule {}", at + 1));
                let (what, how) = (query.words(), seen(query.attempt, verdict));
                let Identity { uid, pid, .. } = identity;
                tracing::warn!(uid, pid, program = identity.name(), "policy: {what} denied by {by} ({how})");
            }
        }
        verdict
    }
}

/// What the application or the peer sees of a refusal.
pub fn seen(attempt: Attempt, verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Refuse(_) if attempt == Attempt::Accept => How::Reset.name(),
        Verdict::Refuse(errno) => How::Errno(errno).name(),
        _ => How::Drop.name(),
    }
}

impl Guard for Policy {
    fn connect(&mut self, client: ClientId, remote: SocketAddr) -> Verdict {
        self.decide(client, &Query::connect(remote))
    }
    fn listen(&mut self, client: ClientId, local: SocketAddr, dual: bool) -> Verdict {
        match self.decide(client, &Query::listen(local, dual)) {
            Verdict::Drop => Verdict::Refuse(libc::EACCES),
            verdict => verdict,
        }
    }
    fn accept(&mut self, client: ClientId, local: SocketAddr, remote: SocketAddr) -> Verdict {
        self.decide(client, &Query::accept(local, remote))
    }
    fn limit(&mut self, client: ClientId) -> Option<Limit> {
        let state = self.lock();
        let first = state.clients.get(&client)?.first()?;
        state.list.limit(&state.list.about(&first.identity)).map(|(_, limit)| limit)
    }
    fn exceeded(&mut self, client: ClientId, limit: &Limit, what: Exceeded) {
        let mut state = self.lock();
        let State { list, clients, totals, throttle } = &mut *state;
        totals.limited += 1;
        let Some(at) = list.hit_limit(limit.id) else { return };
        if !throttle.allows() {
            return;
        }
        if let Some(Known { identity, .. }) = clients.get(&client).and_then(|known| known.first()) {
            let what = match what {
                Exceeded::Connections => format!("{} connections", limit.connections),
                Exceeded::NewPerSecond => format!("{} new connections per second", limit.new_per_s),
            };
            let Identity { uid, pid, .. } = identity;
            tracing::warn!(uid, pid, program = identity.name(), "policy: rule {} allows no more than {what}", at + 1);
        }
    }
}
