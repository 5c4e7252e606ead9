//! The messages between `towpath policy` and the service.

use serde::{Deserialize, Serialize};

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
    Replace {
        /// The rules, one text each.
        rules: Vec<String>,
        /// The action where no rule matches.
        default: String,
    },
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
            Self::Replace { .. } => "replace".into(),
            Self::Flush => "flush".into(),
            Self::Test { question } => format!("test {question:?}"),
        }
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

/// Answer to every request but [`PolicyRequest::Test`]: the list as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The rules, in their order.
    pub rules: Vec<RuleLine>,
    /// The action where no rule matches.
    pub default: String,
    /// Attempts that the default has decided.
    pub default_hits: u64,
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_what_was_asked_for() {
        let rule = || "deny all".to_owned();
        for (request, words) in [
            (PolicyRequest::List, "list"),
            (PolicyRequest::Add { rule: rule() }, "add \"deny all\""),
            (PolicyRequest::Insert { number: 2, rule: rule() }, "insert 2 \"deny all\""),
            (PolicyRequest::Delete { rule: rule() }, "delete \"deny all\""),
            (PolicyRequest::Default { default: "kernel".into() }, "default \"kernel\""),
            (PolicyRequest::Replace { rules: vec![rule()], default: "deny".into() }, "replace"),
            (PolicyRequest::Flush, "flush"),
            (PolicyRequest::Test { question: "listen port 1".into() }, "test \"listen port 1\""),
        ] {
            assert_eq!(request.words(), words);
        }
    }
}
