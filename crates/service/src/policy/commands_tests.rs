//! Requests of `towpath policy`: what they change, and what is said where they change nothing.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::policy::Identity;
use crate::policy::query::Query;
use crate::policy::request::Replacement;
use towpath_runtime::ClientId;

const CLIENT: ClientId = ClientId(3);
const RULES: [&str; 3] = ["deny connect port 25", "limit user 1 connections 5", "allow connect user 1"];

fn entries(rules: &[&str]) -> Vec<Entry> {
    rules.iter().map(|rule| rule.parse().unwrap()).collect()
}

fn policy(rules: &[&str], default: DefaultAction) -> Policy {
    Policy::with_stacks(entries(rules), default, vec!["blue".into(), "red".into()]).unwrap()
}

fn rules(policy: &Policy) -> Vec<String> {
    policy.listing().rules.into_iter().map(|line| line.rule).collect()
}

fn add(rule: &str) -> PolicyRequest {
    PolicyRequest::Add { rule: rule.into() }
}

fn insert(number: usize, rule: &str) -> PolicyRequest {
    PolicyRequest::Insert { number, rule: rule.into() }
}

fn delete(rule: &str) -> PolicyRequest {
    PolicyRequest::Delete { rule: rule.into() }
}

fn default(default: &str) -> PolicyRequest {
    PolicyRequest::Default { default: default.into() }
}

/// A connect of the client, counted.
fn decide(policy: &Policy, port: u16) -> Verdict {
    policy.decide(CLIENT, &Query::connect(([10, 0, 0, 1], port).into()))
}

#[test]
fn a_rule_goes_to_the_end_or_before_a_number() {
    let policy = policy(&RULES, DefaultAction::Allow);
    assert_eq!(policy.change(&add("deny listen port 1")), Ok(true));
    assert_eq!(policy.change(&insert(1, "deny listen port 2")), Ok(true));
    assert_eq!(policy.change(&insert(3, "deny listen port 3")), Ok(true));
    // One behind the last is the end.
    assert_eq!(policy.change(&insert(7, "deny listen port 4")), Ok(true));
    let [one, two, three] = RULES;
    let listen = [1, 2, 3, 4].map(|port| format!("deny listen port {port}"));
    assert_eq!(rules(&policy), [&listen[1], one, &listen[2], two, three, &listen[0], &listen[3]]);
    for (number, most) in [(0, 8), (9, 8), (usize::MAX, 8)] {
        let error = format!("there is no place {number}; write 1 to {most}");
        assert_eq!(policy.change(&insert(number, "deny all")), Err(error));
    }
    assert_eq!(rules(&policy).len(), 7);
}

#[test]
fn a_rule_goes_by_its_number_or_by_its_text() {
    let policy = policy(&RULES, DefaultAction::Allow);
    for gone in ["0", "4", "deny connect port 26"] {
        assert_eq!(policy.change(&delete(gone)), Err(format!("there is no rule {gone:?}")));
    }
    assert!(policy.change(&delete("permit all")).unwrap_err().contains("begins no rule"));
    assert_eq!(rules(&policy), RULES);
    assert_eq!(policy.change(&delete(" 3 ")), Ok(true));
    assert_eq!(rules(&policy), RULES[..2]);
    assert_eq!(policy.change(&delete("deny  connect port 25")), Ok(true), "spaces do not matter");
    assert_eq!(rules(&policy), RULES[1..2]);
}

#[test]
fn a_default_that_stays_keeps_its_count() {
    let policy = policy(&[], DefaultAction::Deny);
    assert_eq!(decide(&policy, 80), Verdict::Refuse(libc::EPERM));
    let listed = || (policy.listing().default, policy.listing().default_hits);
    assert_eq!(policy.change(&default("deny")), Ok(false));
    assert_eq!(listed(), ("deny".into(), 1));
    assert_eq!(policy.change(&default("kernel")), Ok(true));
    assert_eq!(listed(), ("kernel".into(), 0), "another one has decided nothing yet");
    assert_eq!(decide(&policy, 80), Verdict::Kernel);
    assert!(policy.change(&default("perhaps")).unwrap_err().contains("write allow, deny or kernel"));
    assert_eq!(listed(), ("kernel".into(), 1));
}

#[test]
fn all_rules_are_replaced_or_none() {
    let policy = policy(&RULES, DefaultAction::Allow);
    let replace = |rules: &[&str], default: &str| {
        let rules = rules.iter().map(ToString::to_string).collect();
        PolicyRequest::Replace(Replacement { rules, default: default.into(), if_generation: None })
    };
    let error = policy.change(&replace(&["deny all", "deny some"], "deny")).unwrap_err();
    assert!(error.starts_with("rule 2: \"some\" is nothing"), "{error}");
    assert!(policy.change(&replace(&["deny all"], "no")).is_err());
    assert!(policy.change(&replace(&["stack green all"], "deny")).is_err());
    assert!(policy.is(&entries(&RULES), DefaultAction::Allow));
    assert_eq!(policy.change(&replace(&["deny all"], "deny")), Ok(true));
    assert!(policy.is(&entries(&["deny all"]), DefaultAction::Deny));
    assert_eq!(policy.change(&PolicyRequest::Flush), Ok(true));
    assert!(policy.is(&[], DefaultAction::Allow));
}

#[test]
fn a_list_is_the_same_with_all_its_rules_in_order_and_its_default() {
    let policy = policy(&RULES, DefaultAction::Kernel);
    let [one, two, three] = RULES;
    assert!(policy.is(&entries(&RULES), DefaultAction::Kernel));
    assert!(!policy.is(&entries(&RULES), DefaultAction::Allow));
    for others in [&[one, two][..], &[one, three, two], &[one, two, three, three], &[]] {
        assert!(!policy.is(&entries(others), DefaultAction::Kernel), "{others:?}");
    }
}

#[test]
fn a_new_list_is_in_force_for_the_clients_that_are_there() {
    let policy = policy(&[], DefaultAction::Allow);
    assert!(policy.enter(CLIENT, Identity { uid: 1, ..Identity::default() }));
    assert_eq!(decide(&policy, 25), Verdict::Allow(0));
    let before = policy.version();
    policy.replace(entries(&["kernel connect user 1"]), DefaultAction::Deny).unwrap();
    assert_eq!(decide(&policy, 25), Verdict::Kernel);
    assert!(policy.version() > before);
    let after = policy.version();
    assert!(policy.replace(entries(&["stack green all"]), DefaultAction::Deny).is_err());
    assert_eq!((policy.version(), rules(&policy)), (after, vec!["kernel connect user 1".to_owned()]));
}

#[test]
fn questions_change_nothing() {
    let policy = policy(&RULES, DefaultAction::Allow);
    let question = "connect to 10.0.0.1 port 25".to_owned();
    for request in [PolicyRequest::List, PolicyRequest::Test { question }] {
        assert_eq!(policy.change(&request), Ok(false));
    }
    policy.test("connect to 10.0.0.1 port 25").unwrap();
    let totals = policy.totals();
    assert_eq!((policy.version(), totals.rules, totals.denied, totals.limited), (0, 3, 0, 0));
    assert!(policy.listing().rules.iter().all(|line| line.hits == 0));
}

#[test]
fn a_listing_numbers_the_rules_from_1_and_counts_their_decisions() {
    let policy = policy(&["kernel connect port 1", "deny connect port 2"], DefaultAction::Allow);
    for port in [2, 2, 1, 3] {
        decide(&policy, port);
    }
    let line = |number, rule: &str, hits| RuleLine { number, rule: rule.into(), hits };
    let rules = vec![line(1, "kernel connect port 1", 1), line(2, "deny connect port 2", 2)];
    let listing = policy.listing();
    assert_eq!((listing.rules, listing.default.as_str(), listing.default_hits), (rules, "allow", 1));
}

#[test]
fn a_question_is_answered_with_the_rule_that_decides_and_the_reason() {
    let lines = [
        "limit user 1 connections 5",
        "deny connect port 25",
        "deny accept port 80 with reset",
        "deny accept port 81",
        "kernel listen port 22",
        "stack red connect port 99",
        "deny listen port 70 with ECONNREFUSED",
    ];
    let policy = policy(&lines, DefaultAction::Deny);
    let asked = |question: &str| {
        let Tested { verdict, with, rule, why, .. } = policy.test(question).unwrap();
        (verdict, with, rule.map(|line| line.number), why)
    };
    for (question, verdict, with, number) in [
        ("connect to 10.0.0.1 port 25", "deny", Some("EPERM"), Some(2)),
        ("accept from 10.0.0.1 port 80", "deny", Some("reset"), Some(3)),
        ("accept from 10.0.0.1 port 81", "deny", Some("drop"), Some(4)),
        ("listen port 22", "kernel", None, Some(5)),
        ("connect to 10.0.0.1 port 99", "stack red", None, Some(6)),
        ("listen port 70", "deny", Some("ECONNREFUSED"), Some(7)),
        ("listen port 71", "deny", Some("EACCES"), None),
        ("accept from 10.0.0.1 port 71", "deny", Some("drop"), None),
    ] {
        let (said, how, at, why) = asked(question);
        assert_eq!((said.as_str(), how.as_deref(), at), (verdict, with, number), "{question}");
        let reason = match number {
            Some(2) => {
                "rule 2 is the first that matches: deny connect port 25; the one before it does not match".into()
            }
            Some(at) => {
                format!("rule {at} is the first that matches: {}; the {} before it do not match", lines[at - 1], at - 1)
            }
            None => "no rule matches; the default is deny".to_owned(),
        };
        assert_eq!(why, reason);
    }
    assert_eq!(policy.change(&insert(1, "allow all")), Ok(true));
    let first = asked("listen port 70");
    assert_eq!(first, ("allow".into(), None, Some(1), "rule 1 is the first that matches: allow all".into()));
    let limit = |user: &str| policy.test(&format!("listen user {user} port 1")).unwrap().limit.map(|line| line.number);
    assert_eq!((limit("1"), limit("7")), (Some(2), None));
}
