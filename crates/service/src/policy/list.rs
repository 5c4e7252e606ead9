//! The list of rules in its order; the first that matches decides.

use super::identity::Identity;
use super::limit::Share;
use super::query::Query;
use super::rule::{Action, Attempt, Rule, denial};
use std::fmt;
use towpath_stack::{Limit, Verdict};

/// Most rules and limits.
pub const MAX_ENTRIES: usize = 4096;

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Who may do what.
    Rule(Rule),
    /// What an application may take.
    Limit(Share),
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => rule.fmt(f),
            Self::Limit(share) => share.fmt(f),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Entry {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as serde::Deserialize>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What happens where no rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Default {
    /// It is carried.
    #[default]
    Allow,
    /// It fails as usual.
    Deny,
    /// It is left to the kernel; a peer's SYN is not answered.
    Kernel,
}

impl Default {
    /// As written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Kernel => "kernel",
        }
    }
    /// What it says to this attempt.
    pub fn verdict(self, attempt: Attempt) -> Verdict {
        match self {
            Self::Allow => Verdict::Allow(0),
            Self::Deny => denial(attempt, None),
            Self::Kernel => Verdict::Kernel,
        }
    }
}

impl<'de> serde::Deserialize<'de> for Default {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as serde::Deserialize>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// An entry with what has become of it.
#[derive(Clone, Debug)]
pub struct Counted {
    /// The entry.
    pub entry: Entry,
    /// Attempts that it has decided, or refused as a limit.
    pub hits: u64,
    /// Never used again for another.
    id: u64,
    /// Of a limit: a small number that no other has at this time.
    number: u16,
}

/// The list.
#[derive(Debug, std::default::Default)]
pub struct List {
    entries: Vec<Counted>,
    /// What happens where no rule matches.
    pub default: Default,
    /// How often that was.
    pub default_hits: u64,
    /// Names of the service's other stacks, in the order of their numbers.
    pub stacks: Vec<String>,
    last_id: u64,
}

impl List {
    /// In their order.
    pub fn entries(&self) -> &[Counted] {
        &self.entries
    }

    /// Puts an entry before the one at `at` (from 0), or at the end.
    pub fn insert(&mut self, at: usize, entry: Entry) -> Result<(), String> {
        self.knows_stack(&entry)?;
        if self.entries.len() >= MAX_ENTRIES {
            return Err(format!("there are {MAX_ENTRIES} rules already, which is the most"));
        }
        let used = |number| self.entries.iter().any(|e| e.number == number && matches!(e.entry, Entry::Limit(_)));
        let number = match entry {
            Entry::Rule(_) => 0,
            Entry::Limit(_) => (0..=u16::MAX).find(|number| !used(*number)).unwrap_or(u16::MAX),
        };
        self.last_id += 1;
        let counted = Counted { entry, hits: 0, id: self.last_id, number };
        self.entries.insert(at.min(self.entries.len()), counted);
        Ok(())
    }

    fn knows_stack(&self, entry: &Entry) -> Result<(), String> {
        let Entry::Rule(Rule { stack: Some(stack), .. }) = entry else { return Ok(()) };
        if self.stacks.contains(stack) {
            return Ok(());
        }
        let known = if self.stacks.is_empty() { "none".into() } else { self.stacks.join(", ") };
        Err(format!("there is no stack {stack:?}; the configuration names {known} ([stacks.NAME])"))
    }

    /// Takes the entry at `at` (from 0) out.
    pub fn remove(&mut self, at: usize) -> Option<Entry> {
        (at < self.entries.len()).then(|| self.entries.remove(at).entry)
    }

    /// These instead of all. An entry that was there before keeps its count, and a limit what it remembers.
    pub fn replace(&mut self, entries: Vec<Entry>, default: Default) -> Result<(), String> {
        if entries.len() > MAX_ENTRIES {
            return Err(format!("{} rules are too many; {MAX_ENTRIES} is the most", entries.len()));
        }
        entries.iter().try_for_each(|entry| self.knows_stack(entry))?;
        let mut before = std::mem::take(&mut self.entries);
        // First those that stay, so that none of their numbers is given to another.
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

    /// The entries, by position, that can ever decide about this process.
    pub fn about(&self, identity: &Identity) -> Vec<usize> {
        let about = |counted: &Counted| match &counted.entry {
            Entry::Rule(rule) => rule.who.matches(identity, rule.action == Action::Deny),
            Entry::Limit(share) => share.who.matches(identity, true),
        };
        (0..self.entries.len()).filter(|at| about(&self.entries[*at])).collect()
    }

    /// The first rule of these positions that matches, and what it says; `None` = the default does.
    pub fn decide(&self, about: &[usize], query: &Query) -> (Option<usize>, Verdict) {
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
            let Entry::Limit(share) = &counted.entry else { return None };
            let limit = Limit {
                id: counted.id,
                number: counted.number,
                weight: share.weight.unwrap_or(1),
                rate: share.rate.unwrap_or(0),
                connections: share.connections.unwrap_or(0),
                new_per_s: share.new_per_s.unwrap_or(0),
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

    /// Counts a refusal by the limit with this `id`; its position.
    pub fn hit_limit(&mut self, id: u64) -> Option<usize> {
        let at = self.entries.iter().position(|counted| counted.id == id)?;
        self.entries[at].hits += 1;
        Some(at)
    }
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
