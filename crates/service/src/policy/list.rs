//! The list of rules in its order. The first rule that matches decides.

use super::identity::Identity;
use super::join::JoinRule;
use super::limit::LimitRule;
use super::namespaces::Namespaces;
use super::query::{Attempt, Query};
use super::rule::{Action, Rule, denied};
use crate::fingerprint;
use std::fmt::{self, Write};
use towpath_runtime::{Limit, Verdict};

/// Most rules and limits.
pub const MAX_ENTRIES: usize = 4096;

/// What is said of every rule that names a program. A process is known by who opened its connection to the service, and
/// by that process's executable when it registered. A user's process can open it, fork, become any program by exec and
/// register from the child. Or it can have any program load its code.
pub const PROGRAM_IS_NO_BOUNDARY: &str = "\"program\" tells programs apart and confines nobody: a user can run code of \
                                          his own as any program that he may execute; to confine, name a user or a \
                                          control group";

/// The number of the entry at this position (from 0), as people count.
pub fn number(at: usize) -> usize {
    at + 1
}

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A rule about attempts.
    Rule(Rule),
    /// A limit on what a program may use.
    Limit(LimitRule),
    /// What may be joined across network namespaces.
    Join(JoinRule),
}

impl Entry {
    /// Does it depend on the program ([`PROGRAM_IS_NO_BOUNDARY`])?
    pub fn names_a_program(&self) -> bool {
        let processes = match self {
            Self::Rule(rule) => &rule.processes,
            Self::Limit(limit) => &limit.processes,
            Self::Join(join) => &join.processes,
        };
        processes.program.is_some()
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => rule.fmt(f),
            Self::Limit(limit) => limit.fmt(f),
            Self::Join(join) => join.fmt(f),
        }
    }
}

/// The action where no rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultAction {
    /// The stack carries the connection.
    #[default]
    Allow,
    /// The attempt fails, in the default way.
    Deny,
    /// The socket is left to the kernel. A peer's SYN is not answered.
    Kernel,
}

impl DefaultAction {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Kernel => "kernel",
        }
    }
    /// Its verdict on an attempt.
    pub fn verdict(self, attempt: Attempt) -> Verdict {
        match self {
            Self::Allow => Verdict::Allow(0),
            Self::Deny => denied(attempt, None),
            Self::Kernel => Verdict::Kernel,
        }
    }
}

/// An entry and its count.
#[derive(Clone, Debug)]
pub struct Counted {
    /// The entry.
    pub entry: Entry,
    /// Attempts that it has decided. Of a limit: attempts that it has refused.
    pub hits: u64,
    /// Never used again for another entry.
    id: u64,
    /// Of a limit: a small number that no other limit has at this time.
    number: u16,
}

impl Counted {
    /// Its number, which no other entry has ever had.
    pub fn id(&self) -> u64 {
        self.id
    }
}

/// The list.
#[derive(Clone, Debug, Default)]
pub struct RuleList {
    entries: Vec<Counted>,
    /// The action where no rule matches.
    pub default: DefaultAction,
    /// Attempts that the default has decided.
    pub default_hits: u64,
    /// Names of the service's other stacks, by number.
    pub stacks: Vec<String>,
    /// The network namespaces that rules about joins may name.
    pub namespaces: Namespaces,
    last_id: u64,
}

impl RuleList {
    /// An empty list of a service with these other stacks, by number, and these namespaces.
    pub fn of_stacks(stacks: Vec<String>, namespaces: Namespaces) -> Self {
        Self { stacks, namespaces, ..Self::default() }
    }

    /// The entries in their order.
    pub fn entries(&self) -> &[Counted] {
        &self.entries
    }

    /// Inserts an entry before position `at` (from 0), or at the end.
    pub fn insert(&mut self, at: usize, entry: Entry) -> Result<(), String> {
        self.knows_stack(&entry)?;
        if self.entries.len() >= MAX_ENTRIES {
            return Err(format!("there are {MAX_ENTRIES} rules already, which is the most"));
        }
        let used = |number| self.entries.iter().any(|e| e.number == number && matches!(e.entry, Entry::Limit(_)));
        let number = match entry {
            Entry::Rule(_) | Entry::Join(_) => 0,
            Entry::Limit(_) => (0..=u16::MAX).find(|number| !used(*number)).unwrap_or(u16::MAX),
        };
        self.last_id += 1;
        let counted = Counted { entry, hits: 0, id: self.last_id, number };
        self.entries.insert(at.min(self.entries.len()), counted);
        Ok(())
    }

    fn knows_stack(&self, entry: &Entry) -> Result<(), String> {
        let stack = match entry {
            Entry::Rule(Rule { stack: Some(stack), .. }) => stack,
            Entry::Join(join) => return self.namespaces.knows(join),
            Entry::Rule(_) | Entry::Limit(_) => return Ok(()),
        };
        if self.stacks.contains(stack) {
            return Ok(());
        }
        let known = if self.stacks.is_empty() { "none".into() } else { self.stacks.join(", ") };
        Err(format!("there is no stack {stack:?}; the configuration names {known} ([stacks.NAME])"))
    }

    /// Removes the entry at position `at` (from 0).
    pub fn remove(&mut self, at: usize) -> Option<Entry> {
        (at < self.entries.len()).then(|| self.entries.remove(at).entry)
    }

    /// Replaces all entries. An entry that was there before keeps its count and its number.
    pub fn replace(&mut self, entries: Vec<Entry>, default: DefaultAction) -> Result<(), String> {
        if entries.len() > MAX_ENTRIES {
            return Err(format!("{} rules are too many; {MAX_ENTRIES} is the most", entries.len()));
        }
        entries.iter().try_for_each(|entry| self.knows_stack(entry))?;
        let mut before = std::mem::take(&mut self.entries);
        // The entries that stay come first, so that none of their numbers is given to another.
        let mut kept: Vec<Option<Counted>> = Vec::new();
        for entry in &entries {
            let at = before.iter().position(|old| old.entry == *entry);
            kept.push(at.map(|at| before.swap_remove(at)));
        }
        self.entries = kept.iter().flatten().cloned().collect();
        let mut all = Vec::new();
        for (entry, kept) in entries.into_iter().zip(kept) {
            match kept {
                Some(kept) => all.push(kept),
                None => {
                    self.insert(usize::MAX, entry)?;
                    all.extend(self.entries.last().cloned());
                }
            }
        }
        self.entries = all;
        if self.default != default {
            (self.default, self.default_hits) = (default, 0);
        }
        Ok(())
    }

    /// Are these the entries, in this order, and the default?
    pub fn is(&self, entries: &[Entry], default: DefaultAction) -> bool {
        self.default == default && self.entries.iter().map(|counted| &counted.entry).eq(entries)
    }

    /// The hash of the list, as a file for `towpath policy replace` has it.
    pub fn hash(&self) -> String {
        let mut text = String::new();
        for Counted { entry, .. } in &self.entries {
            // Memory takes everything.
            let _ = writeln!(text, "{entry}");
        }
        let _ = writeln!(text, "default {}", self.default.name());
        fingerprint::hash(&text)
    }

    /// The positions of all entries that are about this process.
    pub fn about(&self, identity: &Identity) -> Vec<usize> {
        let about = |counted: &Counted| match &counted.entry {
            Entry::Rule(rule) => rule.processes.matches(identity, rule.action == Action::Deny),
            Entry::Limit(limit) => limit.processes.matches(identity, true),
            Entry::Join(join) => join.processes.matches(identity, false),
        };
        (0..self.entries.len()).filter(|at| about(&self.entries[*at])).collect()
    }

    /// The first rule of these positions that matches, and its verdict. `None`: the default decides.
    pub fn first_match(&self, about: &[usize], query: &Query) -> (Option<usize>, Verdict) {
        for at in about {
            if let Some(Entry::Rule(rule)) = self.entries.get(*at).map(|counted| &counted.entry)
                && rule.covers(query)
            {
                return (Some(*at), rule.verdict(query.attempt, &self.stacks));
            }
        }
        (None, self.default.verdict(query.attempt))
    }

    /// The first limit of these positions.
    pub fn limit(&self, about: &[usize]) -> Option<(usize, Limit)> {
        about.iter().find_map(|at| {
            let counted = self.entries.get(*at)?;
            let Entry::Limit(rule) = &counted.entry else { return None };
            let limit = Limit {
                id: counted.id,
                number: counted.number,
                weight: rule.weight.unwrap_or(1),
                rate: rule.rate.unwrap_or(0),
                connections: rule.connections.unwrap_or(0),
                new_per_s: rule.new_per_s.unwrap_or(0),
            };
            Some((*at, limit))
        })
    }

    /// Counts a decision.
    pub fn hit(&mut self, rule: Option<usize>) {
        match rule.map(|at| self.entries.get_mut(at)) {
            Some(Some(counted)) => counted.hits += 1,
            Some(None) => {}
            None => self.default_hits += 1,
        }
    }

    /// Counts decisions of the rule with this `id`, and returns the rule's position.
    pub fn hit_by(&mut self, id: u64, hits: u64) -> Option<usize> {
        let at = self.entries.iter().position(|counted| counted.id == id)?;
        self.entries[at].hits += hits;
        Some(at)
    }

    /// Counts a refusal by the limit with this `id`, and returns the limit's position.
    pub fn hit_limit(&mut self, id: u64) -> Option<usize> {
        self.hit_by(id, 1)
    }
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
