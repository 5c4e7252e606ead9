//! What is said of rules that are not in force yet.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::policy::PolicyRequest;

const CLIENT: ClientId = ClientId(3);
const APP_SLOTS: u32 = 8;
const RULES: [&str; 3] = ["deny connect port 25", "limit user 1 connections 5", "allow connect user 1"];

fn policy(rules: &[&str]) -> Policy {
    let entries = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let policy = Policy::new(entries, DefaultAction::Allow).unwrap();
    assert!(policy.enter(CLIENT, Identity { uid: 1, ..Identity::default() }));
    policy
}

fn new(rules: &[&str], default: &str) -> Replacement {
    let rules = rules.iter().map(ToString::to_string).collect();
    Replacement { rules, default: default.into(), if_generation: None }
}

fn socket(state: &'static str, local: &str, peer: &str, slot: u32) -> SocketStatus {
    SocketStatus {
        state: state.into(),
        recv_q: 0,
        send_q: 0,
        local: local.parse().unwrap(),
        peer: peer.parse().unwrap(),
        program: "redis".into(),
        pid: 42,
        uid: 1,
        client: Some(CLIENT),
        slot,
        flow_group: None,
        direct: false,
        tcp: None,
        halves: None,
    }
}

fn texts(rules: &[NumberedRule]) -> Vec<(usize, &str)> {
    rules.iter().map(|line| (line.number, line.rule.as_str())).collect()
}

#[test]
fn rules_are_added_removed_or_in_another_order() {
    let policy = policy(&RULES);
    let [one, two, three] = RULES;
    let of = |rules: &[&str]| policy.difference(&new(rules, "allow"), &[], APP_SLOTS).unwrap();
    let same = of(&RULES);
    assert!(same.same && !same.reordered && same.new_hash == same.hash && same.default.is_none());
    let other = of(&[one, "deny all port 7", one, two]);
    assert_eq!(texts(&other.added), [(2, "deny all port 7"), (3, one)], "the second of two counts, too");
    assert_eq!(texts(&other.removed), [(3, three)]);
    assert!(!other.same && !other.reordered);
    let turned = of(&[three, two, one]);
    assert!(turned.reordered && turned.added.is_empty() && turned.removed.is_empty() && !turned.same);
    let default = policy.difference(&new(&RULES, "deny"), &[], APP_SLOTS).unwrap();
    assert_eq!(default.default, Some(DefaultChange { from: "allow".into(), to: "deny".into() }));
    assert!(policy.difference(&new(&["deny some"], "deny"), &[], APP_SLOTS).is_err());
    assert!(policy.difference(&new(&["stack green all"], "deny"), &[], APP_SLOTS).is_err());
    assert_eq!(texts(&of(&[]).removed), [(1, one), (2, two), (3, three)]);
    assert!(policy.listing().rules.iter().map(|line| line.rule.as_str()).eq(RULES), "nothing has changed");
}

#[test]
fn sockets_that_would_be_decided_otherwise_are_named_with_the_rule_that_would() {
    let policy = policy(&[]);
    let sockets = [
        socket("LISTEN", "[::]:80", "0.0.0.0:0", 0),
        socket("ESTAB", "10.0.0.1:5000", "10.0.0.2:25", 1),
        socket("ESTAB", "10.0.0.1:5001", "10.0.0.2:80", 2),
        socket("ESTAB", "10.0.0.1:80", "10.0.0.3:25", APP_SLOTS),
        SocketStatus { client: None, ..socket("TIME-WAIT", "10.0.0.1:5002", "10.0.0.2:25", 0) },
        SocketStatus { client: Some(ClientId(9)), ..socket("ESTAB", "10.0.0.1:5003", "10.0.0.2:25", 1) },
    ];
    let of = |rules: &[&str]| policy.difference(&new(rules, "allow"), &sockets, APP_SLOTS).unwrap().sockets;
    let said = |rules: &[&str]| -> Vec<(u16, String, String)> {
        of(rules).into_iter().map(|one| (one.local.port(), one.before, one.after)).collect()
    };
    let only = |port, after: &str| vec![(port, "allow".to_owned(), after.to_owned())];
    assert_eq!(said(&["deny connect port 25"]), only(5000, "deny with EPERM"));
    assert_eq!(said(&["deny accept from 10.0.0.0/8 port 80"]), only(80, "deny with drop"));
    assert_eq!(said(&["kernel listen port 80"]), only(80, "kernel"));
    assert_eq!(said(&["allow connect port 25 congestion dctcp"]), only(5000, "allow with congestion dctcp"));
    assert_eq!(said(&["deny connect user 2"]), []);
    let decided = of(&["limit user 1 connections 5", "deny connect port 25"]);
    let rule = decided[0].rule.as_ref().map(|rule| (rule.number, rule.rule.as_str()));
    assert_eq!(rule, Some((2, "deny connect port 25")));
    let by_default = policy.difference(&new(&[], "deny"), &sockets, APP_SLOTS).unwrap().sockets;
    assert_eq!(by_default.len(), 4);
    assert!(by_default.iter().all(|one| one.rule.is_none()));
    assert_eq!(policy.listing().default_hits, 0, "a question is no attempt");
}

#[test]
fn an_answer_names_so_many_sockets_and_counts_the_others() {
    let policy = policy(&[]);
    let sockets = vec![socket("ESTAB", "10.0.0.1:5000", "10.0.0.2:25", 1); MOST_NAMED + 7];
    let all = policy.difference(&new(&["deny all"], "allow"), &sockets, APP_SLOTS).unwrap();
    assert_eq!((all.sockets.len(), all.more), (MOST_NAMED, 7));
}

#[test]
fn a_replacement_is_for_one_generation_and_the_same_rules_are_always_there() {
    let policy = policy(&RULES);
    let first = policy.listing();
    let replace = |rules: &[&str], generation| {
        let replacement = Replacement { if_generation: Some(generation), ..new(rules, "deny") };
        let told = policy.difference(&replacement, &[], APP_SLOTS).map(|_| ());
        (told, policy.change(&PolicyRequest::Replace(replacement)))
    };
    let (told, done) = replace(&["deny all"], first.generation);
    assert_eq!((told, done), (Ok(()), Ok(true)));
    let second = policy.listing();
    assert!(second.generation == first.generation + 1 && second.hash != first.hash);
    // The answer may have been lost, so that it is asked again.
    let (told, done) = replace(&["deny  all"], first.generation);
    assert_eq!((told, done), (Ok(()), Ok(false)), "the same file twice changes nothing");
    assert_eq!(policy.listing(), second);
    let (told, done) = replace(&["deny all port 1"], first.generation);
    let why = done.unwrap_err();
    assert_eq!(told, Err(why.clone()));
    let [now, asked] = [second.generation, first.generation];
    assert!(why.starts_with(&format!("the policy has generation {now}, not {asked}: ")), "{why}");
    assert_eq!(policy.listing(), second);
    policy.replace(vec!["deny all".parse().unwrap()], DefaultAction::Deny).unwrap();
    assert_eq!(policy.listing(), second, "nor does the file of a reload");
}

#[test]
fn the_hash_is_that_of_the_rules_as_a_file_has_them() {
    let policy = policy(&["deny connect  port 25"]);
    assert_eq!(policy.listing().hash, crate::fingerprint::hash("deny connect port 25\ndefault allow\n"));
}
