//! The messages between `towpath policy` and the service.

use super::list::{DefaultAction, Entry, number};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A request: `{"command":"policy","action":"add","rule":"deny connect port 25"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "lowercase")]
pub enum PolicyRequest {
    /// Lists all rules with their counts.
    List,
    /// Appends a rule.
    Add {
        /// The rule.
        rule: String,
    },
    /// Inserts a rule before another.
    Insert {
        /// The number of the rule before which it goes, from 1.
        number: usize,
        /// The rule.
        rule: String,
    },
    /// Deletes a rule.
    Delete {
        /// Its text, or its number, from 1.
        rule: String,
    },
    /// Sets the action where no rule matches.
    Default {
        /// `allow`, `deny` or `kernel`.
        default: String,
    },
    /// Replaces all rules.
    Replace(Replacement),
    /// Asks what that would change.
    Diff(Replacement),
    /// Removes all rules and allows everything.
    Flush,
    /// Asks which rule would decide an attempt or a join.
    Test {
        /// `connect user alice to 10.1.2.3 port 25`, `join from blue to red on 10.1.0.2 port 80`.
        question: String,
    },
}

impl PolicyRequest {
    /// The request in words, for the log.
    pub fn words(&self) -> String {
        match self {
            Self::List => "list".into(),
            Self::Add { rule } => format!("add {rule:?}"),
            Self::Insert { number, rule } => format!("insert {number} {rule:?}"),
            Self::Delete { rule } => format!("delete {rule:?}"),
            Self::Default { default } => format!("default {default:?}"),
            Self::Replace(_) => "replace".into(),
            Self::Diff(_) => "diff".into(),
            Self::Flush => "flush".into(),
            Self::Test { question } => format!("test {question:?}"),
        }
    }
}

/// All rules of a new list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// The rules, one text each.
    pub rules: Vec<String>,
    /// The action where no rule matches.
    pub default: String,
    /// Only if the list that is replaced has this generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_generation: Option<u64>,
}

impl Replacement {
    /// The entries. The error names the rule.
    pub fn parsed(&self) -> Result<(Vec<Entry>, DefaultAction), String> {
        let parse =
            |(at, rule): (usize, &String)| rule.parse::<Entry>().map_err(|e| format!("rule {}: {e}", number(at)));
        let entries: Result<Vec<Entry>, String> = self.rules.iter().enumerate().map(parse).collect();
        Ok((entries?, self.default.parse()?))
    }
}

/// One rule of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleLine {
    /// Its number, from 1.
    pub number: usize,
    /// Its text.
    pub rule: String,
    /// Attempts that it has decided. Of a limit: attempts that it has refused.
    pub hits: u64,
}

/// Answer to every request but [`PolicyRequest::Test`] and [`PolicyRequest::Diff`]: the list as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The rules, in their order.
    pub rules: Vec<RuleLine>,
    /// The action where no rule matches.
    pub default: String,
    /// Attempts that the default has decided.
    pub default_hits: u64,
    /// Grows with each change ([`crate::fingerprint::first_generation`]).
    #[serde(default)]
    pub generation: u64,
    /// SHA-256 of the rules, as a file for `towpath policy replace` has them.
    #[serde(default)]
    pub hash: String,
    /// Of a request that may change the list: it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<bool>,
}

/// A rule that is not counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedRule {
    /// Its number, from 1.
    pub number: usize,
    /// Its text.
    pub rule: String,
}

/// Another action where no rule matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultChange {
    /// The one in force.
    pub from: String,
    /// The new one.
    pub to: String,
}

/// A socket that there is, and that would be decided otherwise if it began now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DifferentSocket {
    /// Its state, as `ss` names it.
    pub state: String,
    /// Its own address and port.
    pub local: SocketAddr,
    /// Its peer's.
    pub peer: SocketAddr,
    /// Its program.
    pub program: String,
    /// The client's process.
    pub pid: i32,
    /// The client's user.
    pub uid: u32,
    /// The verdict of the rules in force.
    pub before: String,
    /// The verdict of the new ones.
    pub after: String,
    /// The new rule that decides. `None`: the default does.
    pub rule: Option<NumberedRule>,
}

/// Answer to [`PolicyRequest::Diff`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The generation of the list in force.
    pub generation: u64,
    /// The hash of the list in force.
    pub hash: String,
    /// The hash of the new one.
    pub new_hash: String,
    /// They are the same.
    pub same: bool,
    /// Rules that are new.
    pub added: Vec<NumberedRule>,
    /// Rules that would go.
    pub removed: Vec<NumberedRule>,
    /// The rules that both have are in another order.
    pub reordered: bool,
    /// The action where no rule matches, if that would change.
    pub default: Option<DefaultChange>,
    /// Sockets that would be decided otherwise.
    pub sockets: Vec<DifferentSocket>,
    /// So many more.
    pub more: usize,
}

/// Answer to [`PolicyRequest::Test`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tested {
    /// `allow`, `deny`, `kernel` or `stack NAME`; of a join `join` or `no join`.
    pub verdict: String,
    /// The effect of a refusal on the application or the peer.
    pub with: Option<String>,
    /// The rule that decides. `None`: the default does. No join is allowed by default.
    pub rule: Option<RuleLine>,
    /// The limit that the process is under.
    pub limit: Option<RuleLine>,
    /// The reason, in words.
    pub why: String,
}

/// The policy's totals in `towpath status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyTotals {
    /// Rules and limits.
    pub rules: usize,
    /// Attempts refused by a rule or the default.
    pub denied: u64,
    /// Attempts refused by a limit.
    pub limited: u64,
    /// See [`Listing::generation`]. Operators alone are told.
    #[serde(default)]
    pub generation: Option<u64>,
    /// See [`Listing::hash`]. Operators alone are told: a user could try which rules have it.
    #[serde(default)]
    pub hash: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_what_was_asked_for() {
        let rule = || "deny all".to_owned();
        let replacement = || Replacement { rules: vec![rule()], default: "deny".into(), if_generation: None };
        for (request, words) in [
            (PolicyRequest::List, "list"),
            (PolicyRequest::Add { rule: rule() }, "add \"deny all\""),
            (PolicyRequest::Insert { number: 2, rule: rule() }, "insert 2 \"deny all\""),
            (PolicyRequest::Delete { rule: rule() }, "delete \"deny all\""),
            (PolicyRequest::Default { default: "kernel".into() }, "default \"kernel\""),
            (PolicyRequest::Replace(replacement()), "replace"),
            (PolicyRequest::Diff(replacement()), "diff"),
            (PolicyRequest::Flush, "flush"),
            (PolicyRequest::Test { question: "listen port 1".into() }, "test \"listen port 1\""),
        ] {
            assert_eq!(request.words(), words);
        }
    }
}
