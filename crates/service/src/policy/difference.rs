//! What other rules would change, without changing anything (`towpath policy diff`).

use super::commands::words;
use super::decide::{Policy, judged};
use super::identity::Identity;
use super::list::{DefaultAction, Entry, RuleList, number};
use super::query::Query;
use super::request::{DefaultChange, Difference, DifferentSocket, NumberedRule, Replacement};
use std::collections::HashMap;
use std::collections::hash_map;
use towpath_runtime::{ClientId, SocketStatus, Verdict};

/// Most sockets that an answer names.
const MOST_NAMED: usize = 1000;

/// A list of rules, and those that are about each process of the clients that were asked for.
struct Side<'a> {
    list: RuleList,
    clients: &'a HashMap<ClientId, Vec<Identity>>,
    about: HashMap<ClientId, Vec<Vec<usize>>>,
}

impl<'a> Side<'a> {
    fn new(list: RuleList, clients: &'a HashMap<ClientId, Vec<Identity>>) -> Self {
        Self { list, clients, about: HashMap::new() }
    }

    /// The verdict on an attempt of a client, and the rule that decides. `None`: nobody knows the client any more.
    fn judge(&mut self, client: ClientId, query: &Query) -> Option<(Option<usize>, Verdict)> {
        let Self { list, clients, about } = self;
        let about = match about.entry(client) {
            hash_map::Entry::Occupied(known) => known.into_mut(),
            hash_map::Entry::Vacant(place) => {
                place.insert(clients.get(&client)?.iter().map(|identity| list.about(identity)).collect())
            }
        };
        judged(list, about.iter().map(Vec::as_slice), query).map(|(_, rule, verdict)| (rule, verdict))
    }
}

impl Policy {
    /// What these rules would change: the list, and how the sockets that there are would be decided if they began now. A slot
    /// from `app_slots` on is of an accepted connection. Nothing changes, and nothing is counted.
    pub fn difference(
        &self,
        new: &Replacement,
        sockets: &[SocketStatus],
        app_slots: u32,
    ) -> Result<Difference, String> {
        let (entries, default) = new.parsed()?;
        // All is copied, so that no attempt waits for the comparison.
        let (old, clients, (generation, hash)) = {
            let state = self.lock();
            state.may_become(&entries, default, new.if_generation)?;
            (state.list.clone(), state.identities(), (state.generation, state.hash.clone()))
        };
        let mut list = old.clone();
        list.replace(entries, default)?;
        let new_hash = list.hash();
        let of = |list: &RuleList| list.entries().iter().map(|counted| counted.entry.clone()).collect::<Vec<_>>();
        let (before, after) = (of(&old), of(&list));
        let (removed, added) = (beyond(&before, &after), beyond(&after, &before));
        let reordered = common(&before, &removed) != common(&after, &added);
        let change = |from: DefaultAction, to: DefaultAction| {
            (from != to).then(|| DefaultChange { from: from.name().into(), to: to.name().into() })
        };
        let default = change(old.default, list.default);
        let (mut before_side, mut after_side) = (Side::new(old, &clients), Side::new(list, &clients));
        let (mut different, mut more) = (Vec::new(), 0);
        for socket in sockets {
            let Some((client, query)) = attempt(socket, app_slots) else { continue };
            let (Some((_, was)), Some((rule, will))) =
                (before_side.judge(client, &query), after_side.judge(client, &query))
            else {
                continue;
            };
            if was == will {
                continue;
            }
            if different.len() == MOST_NAMED {
                more += 1;
                continue;
            }
            let said = |list: &RuleList, verdict| match words(list, query.attempt, verdict) {
                (verdict, Some(with)) => format!("{verdict} with {with}"),
                (verdict, None) => verdict,
            };
            different.push(DifferentSocket {
                state: socket.state.clone().into_owned(),
                local: socket.local,
                peer: socket.peer,
                program: socket.program.clone(),
                pid: socket.pid,
                uid: socket.uid,
                before: said(&before_side.list, was),
                after: said(&after_side.list, will),
                rule: rule.map(|at| numbered(at, &after[at])),
            });
        }
        let rules = |at: &[usize], list: &[Entry]| at.iter().map(|at| numbered(*at, &list[*at])).collect();
        Ok(Difference {
            generation,
            same: hash == new_hash,
            hash,
            new_hash,
            added: rules(&added, &after),
            removed: rules(&removed, &before),
            reordered,
            default,
            sockets: different,
            more,
        })
    }
}

fn numbered(at: usize, entry: &Entry) -> NumberedRule {
    NumberedRule { number: number(at), rule: entry.to_string() }
}

/// The positions of those entries of a list for which another list has none left. One that is there twice counts twice.
fn beyond(list: &[Entry], other: &[Entry]) -> Vec<usize> {
    let mut left: HashMap<String, usize> = HashMap::new();
    other.iter().for_each(|entry| *left.entry(entry.to_string()).or_default() += 1);
    let missing = |at: &usize| match left.get_mut(&list[*at].to_string()) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    (0..list.len()).filter(missing).collect()
}

/// A list without these positions, which are in their order.
fn common<'a>(list: &'a [Entry], without: &[usize]) -> Vec<&'a Entry> {
    (0..list.len()).filter(|at| without.binary_search(at).is_err()).map(|at| &list[at]).collect()
}

/// The attempt that has led to a socket. A listener on all IPv6 addresses is taken for one that has IPv4, too.
fn attempt(socket: &SocketStatus, app_slots: u32) -> Option<(ClientId, Query)> {
    let client = socket.client?;
    let query = match &*socket.state {
        "LISTEN" => Query::listen(socket.local, socket.local.is_ipv6() && socket.local.ip().is_unspecified()),
        "TIME-WAIT" => return None,
        _ if socket.slot >= app_slots => Query::accept(socket.local, socket.peer),
        _ => Query::connect(socket.peer),
    };
    Some((client, query))
}

#[cfg(test)]
#[path = "difference_tests.rs"]
mod tests;
