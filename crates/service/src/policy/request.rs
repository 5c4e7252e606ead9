//! What `towpath policy` and the service say to each other.

use super::enforce::Policy;
use super::list::{Default, Entry};
use super::parse::question;
use serde::{Deserialize, Serialize};
use towpath_stack::Verdict;

/// A request: `{"command":"policy","action":"add","rule":"deny connect port 25"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "lowercase")]
pub enum Request {
    /// All rules with their counts.
    List,
    /// One more at the end.
    Add {
        /// The rule.
        rule: String,
    },
    /// One more before another.
    Insert {
        /// Before which, from 1.
        number: usize,
        /// The rule.
        rule: String,
    },
    /// One less.
    Delete {
        /// Its text, or its number from 1.
        rule: String,
    },
    /// What happens where no rule matches.
    Default {
        /// `allow`, `deny` or `kernel`.
        default: String,
    },
    /// These instead of all.
    Replace {
        /// The rules, one each.
        rules: Vec<String>,
        /// What happens where none matches.
        default: String,
    },
    /// No rules, and everything allowed.
    Flush,
    /// Which rule would decide?
    Test {
        /// `connect user alice to 10.1.2.3 port 25`.
        question: String,
    },
}

impl Request {
    /// In words, for the log.
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

/// One line of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Its number, from 1.
    pub number: usize,
    /// The rule.
    pub rule: String,
    /// Attempts that it has decided; of a limit: refused.
    pub hits: u64,
}

/// Answer to everything but [`Request::Test`]: the list as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// In their order.
    pub rules: Vec<Line>,
    /// What happens where none matches.
    pub default: String,
    /// How often that was.
    pub default_hits: u64,
}

/// Answer to [`Request::Test`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tested {
    /// `allow`, `deny` or `kernel`.
    pub verdict: String,
    /// What the application or the peer would see of a refusal.
    pub with: Option<String>,
    /// The rule that decides; none = the default.
    pub rule: Option<Line>,
    /// The limit that it is under.
    pub limit: Option<Line>,
    /// Why, in words.
    pub why: String,
}

/// The totals in `towpath status`.
#[derive(Clone, Debug, std::default::Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Rules and limits.
    pub rules: usize,
    /// Attempts refused by a rule or the default.
    pub denied: u64,
    /// Attempts refused by a limit.
    pub limited: u64,
}

impl Policy {
    /// Does what is asked for, if that changes the list. True = it has changed. A refused change changes nothing.
    pub fn change(&self, request: &Request) -> Result<bool, String> {
        let mut state = self.lock();
        let list = &mut state.list;
        match request {
            Request::List | Request::Test { .. } => return Ok(false),
            Request::Add { rule } => list.insert(usize::MAX, rule.parse()?)?,
            Request::Insert { number, rule } => {
                let most = list.entries().len() + 1;
                let at = number.checked_sub(1).filter(|at| *at < most);
                list.insert(
                    at.ok_or_else(|| format!("there is no place {number}; write 1 to {most}"))?,
                    rule.parse()?,
                )?;
            }
            Request::Delete { rule } => {
                let at = match rule.trim().parse::<usize>() {
                    Ok(number) => number.checked_sub(1),
                    Err(_) => {
                        let entry: Entry = rule.parse()?;
                        list.entries().iter().position(|counted| counted.entry == entry)
                    }
                };
                at.and_then(|at| list.remove(at)).ok_or_else(|| format!("there is no rule {rule:?}"))?;
            }
            Request::Default { default } => {
                let default: Default = default.parse()?;
                if list.default != default {
                    (list.default, list.default_hits) = (default, 0);
                }
            }
            Request::Replace { rules, default } => {
                let parse =
                    |(at, rule): (usize, &String)| rule.parse::<Entry>().map_err(|e| format!("rule {}: {e}", at + 1));
                let entries: Result<Vec<Entry>, String> = rules.iter().enumerate().map(parse).collect();
                list.replace(entries?, default.parse()?)?;
            }
            Request::Flush => list.replace(Vec::new(), Default::Allow)?,
        }
        state.forget_matches();
        Ok(true)
    }

    /// The list with its counts.
    pub fn listing(&self) -> Listing {
        let state = self.lock();
        let list = &state.list;
        Listing {
            rules: (0..list.entries().len()).filter_map(|at| line(list, at)).collect(),
            default: list.default.name().into(),
            default_hits: list.default_hits,
        }
    }

    /// Which rule would decide, without counting it.
    pub fn test(&self, text: &str) -> Result<Tested, String> {
        let (identity, query) = question(text)?;
        let state = self.lock();
        let about = state.list.about(&identity);
        let (at, verdict) = state.list.decide(&about, &query);
        let rule = at.and_then(|at| line(&state.list, at));
        let limit = state.list.limit(&about).and_then(|(at, _)| line(&state.list, at));
        let passed = at.unwrap_or(state.list.entries().len());
        let others = match passed {
            0 => String::new(),
            1 => "; the one before it does not match".into(),
            n => format!("; the {n} before it do not match"),
        };
        let why = match &rule {
            Some(rule) => format!("rule {} is the first that matches: {}{others}", rule.number, rule.rule),
            None => format!("no rule matches; the default is {}", state.list.default.name()),
        };
        let (verdict, with) = match verdict {
            Verdict::Allow(_) => ("allow".to_owned(), None),
            Verdict::Kernel => ("kernel".into(), None),
            Verdict::Stack(number) => {
                let name = state.list.stacks.get(usize::from(number)).map_or("?", String::as_str);
                (format!("stack {name}"), None)
            }
            refused => ("deny".into(), Some(super::enforce::seen(query.attempt, refused).to_owned())),
        };
        Ok(Tested { verdict, with, rule, limit, why })
    }
}

fn line(list: &super::list::List, at: usize) -> Option<Line> {
    let counted = list.entries().get(at)?;
    Some(Line { number: at + 1, rule: counted.entry.to_string(), hits: counted.hits })
}
