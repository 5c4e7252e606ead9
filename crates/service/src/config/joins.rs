//! Rules about joins. One rule is about two stacks, so it stands in the file's first table, and each of the two takes it.

use super::{Config, StackKind};
use crate::policy::namespaces::OtherNamespace;
use crate::policy::{Entry, Namespaces};
use towpath_ring::command::HOME;

/// The name of the stack of the first table.
const HOME_NAME: &str = "home";

impl Config {
    /// The name of this configuration's stack, and the namespaces of the others.
    pub fn namespaces(&self) -> Namespaces {
        self.of.clone().unwrap_or_else(|| self.namespaces_beside(HOME_NAME))
    }

    /// The rules of the first table about this stack.
    pub(super) fn joins_about(&self, stack: &str) -> Vec<Entry> {
        let about = |entry: &&Entry| matches!(entry, Entry::Join(join) if join.is_about(stack));
        self.policy.iter().filter(about).cloned().collect()
    }

    /// The namespaces beside that of a stack of this file. A stack that serves none of its own has none.
    pub(super) fn namespaces_beside(&self, own: &str) -> Namespaces {
        let home = (HOME_NAME, HOME, self);
        let tables = (0u8..).zip(&self.stacks).map(|(number, (name, table))| (name.as_str(), number, table));
        let named = |table: &Self| table.stack == StackKind::Fast && table.netns.is_some();
        let serves = |(name, _, table): &(&str, u8, &Self)| match *name {
            HOME_NAME => table.stack == StackKind::Fast,
            _ => named(table),
        };
        let all: Vec<_> = std::iter::once(home).chain(tables).filter(serves).collect();
        let is_one = all.iter().any(|(name, ..)| *name == own);
        let other = |(name, number, table): &(&str, u8, &Self)| OtherNamespace {
            name: (*name).to_owned(),
            number: *number,
            netns: table.netns.clone(),
        };
        let others = all.iter().filter(|(name, ..)| is_one && *name != own).map(other).collect();
        Namespaces { own: own.to_owned(), others }
    }

    /// The rules for this configuration's own policy: those about joins of other stacks are not for it.
    pub fn own_policy(&self) -> Vec<Entry> {
        let own = self.namespaces().own;
        let is_own = |entry: &&Entry| !matches!(entry, Entry::Join(join) if !join.is_about(&own));
        self.policy.iter().filter(is_own).cloned().collect()
    }

    /// Checks that the rules about joins name stacks that there are.
    pub(super) fn check_joins(&self) -> Result<(), (&'static str, String)> {
        let tables = self.stacks.iter().map(|(name, table)| (name.as_str(), table));
        for (own, table) in std::iter::once(("", self)).chain(tables) {
            for entry in &table.policy {
                let Entry::Join(join) = entry else { continue };
                let known = match own {
                    // The first table's rules may be about any two.
                    "" => self.of.clone().unwrap_or_else(|| self.namespaces_beside(&join.from)).knows(join),
                    own => self.namespaces_beside(own).knows(join),
                };
                known.map_err(|why| ("policy", format!("{entry}: {why}")))?;
            }
        }
        Ok(())
    }
}
