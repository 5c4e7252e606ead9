//! The requests of `towpath policy`, carried out on the policy in force.

use super::decide::{Policy, PolicyState, seen};
use super::identity::Identity;
use super::joins;
use super::list::{DefaultAction, Entry, RuleList, number};
use super::parse::question;
use super::query::Attempt;
use super::query::{JoinQuery, Query, Question};
use super::request::{Listing, PolicyRequest, RuleLine, Tested};
use towpath_runtime::Verdict;
use towpath_tcp::slow::congestion::Algorithm;

impl Policy {
    /// Carries out a request that changes the list. True if the list has changed. A refused request changes nothing.
    pub fn change(&self, request: &PolicyRequest) -> Result<bool, String> {
        let mut state = self.lock();
        let list = &mut state.list;
        match request {
            PolicyRequest::List | PolicyRequest::Test { .. } | PolicyRequest::Diff(_) => return Ok(false),
            PolicyRequest::Add { rule } => list.insert(usize::MAX, rule.parse()?)?,
            PolicyRequest::Insert { number, rule } => {
                let most = list.entries().len() + 1;
                let at = number.checked_sub(1).filter(|at| *at < most);
                list.insert(
                    at.ok_or_else(|| format!("there is no place {number}; write 1 to {most}"))?,
                    rule.parse()?,
                )?;
            }
            PolicyRequest::Delete { rule } => {
                let at = match rule.trim().parse::<usize>() {
                    Ok(number) => number.checked_sub(1),
                    Err(_) => {
                        let entry: Entry = rule.parse()?;
                        list.entries().iter().position(|counted| counted.entry == entry)
                    }
                };
                at.and_then(|at| list.remove(at)).ok_or_else(|| format!("there is no rule {rule:?}"))?;
            }
            PolicyRequest::Default { default } => {
                let default: DefaultAction = default.parse()?;
                if list.default == default {
                    return Ok(false);
                }
                (list.default, list.default_hits) = (default, 0);
            }
            PolicyRequest::Replace(new) => {
                let (entries, default) = new.parsed()?;
                return state.become_list(entries, default, new.if_generation);
            }
            PolicyRequest::Flush => return state.become_list(Vec::new(), DefaultAction::Allow, None),
        }
        state.changed();
        Ok(true)
    }

    /// Replaces the list. A refused list changes nothing, nor does the one that is there.
    pub fn replace(&self, entries: Vec<Entry>, default: DefaultAction) -> Result<(), String> {
        self.lock().become_list(entries, default, None).map(|_| ())
    }

    /// Is this the list?
    pub fn is(&self, entries: &[Entry], default: DefaultAction) -> bool {
        self.lock().list.is(entries, default)
    }

    /// The list with its counts.
    pub fn listing(&self) -> Listing {
        let state = self.lock();
        let list = &state.list;
        Listing {
            rules: (0..list.entries().len()).filter_map(|at| line(list, at)).collect(),
            default: list.default.name().into(),
            default_hits: list.default_hits,
            generation: state.generation,
            hash: state.hash.clone(),
            changed: None,
        }
    }

    /// Finds the rule that would decide an attempt or a join, without counting it.
    pub fn test(&self, text: &str) -> Result<Tested, String> {
        let (identity, question) = question(text)?;
        let state = self.lock();
        match question {
            Question::Attempt(query) => Ok(test_attempt(&state.list, &identity, &query)),
            Question::Join(query) => test_join(&state, &identity, &query),
        }
    }
}

/// A verdict in words, and the effect of a refusal, or the congestion control that comes with it.
pub(super) fn words(list: &RuleList, attempt: Attempt, verdict: Verdict) -> (String, Option<String>) {
    match verdict {
        Verdict::Allow(id) => {
            ("allow".into(), Algorithm::from_id(id).map(|algorithm| format!("congestion {algorithm}")))
        }
        Verdict::Kernel => ("kernel".into(), None),
        Verdict::Stack(number) => {
            let name = list.stacks.get(usize::from(number)).map_or("?", String::as_str);
            (format!("stack {name}"), None)
        }
        refused => ("deny".into(), Some(seen(attempt, refused).to_owned())),
    }
}

fn test_attempt(list: &RuleList, identity: &Identity, query: &Query) -> Tested {
    let about = list.about(identity);
    let (at, verdict) = list.first_match(&about, query);
    let why = match at {
        Some(at) => first_that_matches(list, at),
        None => format!("no rule matches; the default is {}", list.default.name()),
    };
    let (verdict, with) = words(list, query.attempt, verdict);
    let with = with.filter(|_| verdict == "deny");
    let limit = list.limit(&about).and_then(|(at, _)| line(list, at));
    Tested { verdict, with, rule: at.and_then(|at| line(list, at)), limit, why }
}

fn test_join(state: &PolicyState, identity: &Identity, query: &JoinQuery) -> Result<Tested, String> {
    let list = &state.list;
    list.namespaces.can_answer(&query.from, &query.to)?;
    let about = list.about(identity);
    let limit = list.limit(&about);
    let (at, joins) = joins::first_match(list, &about, query);
    let (verdict, decides, why) = match (at, limit) {
        _ if state.drains => (APART, None, "the service drains, and joins nothing new".into()),
        (None, _) => (APART, None, "no rule matches, and without one nothing is joined".into()),
        // No stack joins a client whose bytes per second it limits.
        (Some(_), Some((at, limit))) if limit.rate != 0 => {
            (APART, Some(at), format!("rule {} has a rate, which the stack keeps", number(at)))
        }
        (Some(at), _) if !joins => {
            (APART, Some(at), format!("{}, which leads to another stack", first_that_matches(list, at)))
        }
        (Some(at), _) if list.namespaces.own == query.from => {
            let others = format!("; {} asks its own policy, too", query.to);
            (JOIN, Some(at), first_that_matches(list, at) + &others)
        }
        (Some(at), _) => (JOIN, Some(at), first_that_matches(list, at)),
    };
    let [rule, limit] = [decides, limit.map(|(at, _)| at)].map(|at| at.and_then(|at| line(list, at)));
    Ok(Tested { verdict: verdict.into(), with: None, rule, limit, why })
}

/// The verdicts on a join.
const JOIN: &str = "join";
const APART: &str = "no join";

fn first_that_matches(list: &RuleList, at: usize) -> String {
    let others = match at {
        0 => String::new(),
        1 => "; the one before it does not match".into(),
        n => format!("; the {n} before it do not match"),
    };
    let rule = line(list, at).map_or_else(String::new, |line| line.rule);
    format!("rule {} is the first that matches: {rule}{others}", number(at))
}

fn line(list: &RuleList, at: usize) -> Option<RuleLine> {
    let counted = list.entries().get(at)?;
    Some(RuleLine { number: number(at), rule: counted.entry.to_string(), hits: counted.hits })
}

#[cfg(test)]
#[path = "commands_tests.rs"]
mod tests;
