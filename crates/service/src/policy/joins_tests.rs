//! A join needs a rule: for these namespaces, for each process, for this address and port.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::policy::Identity;
use crate::policy::list::DefaultAction;
use crate::policy::namespaces::{Namespaces, OtherNamespace};
use crate::policy::request::PolicyRequest;

const CLIENT: ClientId = ClientId(3);

/// The policy of the stack `own`, beside two others.
fn policy(own: &str, others: [&str; 2], rules: &[&str]) -> Result<Policy, String> {
    let other = |(number, name): (u8, &str)| OtherNamespace { name: name.into(), number, netns: None };
    let namespaces = Namespaces { own: own.into(), others: (4..).zip(others).map(other).collect() };
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let policy = Policy::with_namespaces(rules, DefaultAction::Allow, Vec::new(), namespaces)?;
    enter(&policy, 1000);
    Ok(policy)
}

fn enter(policy: &Policy, uid: u32) {
    let identity = Identity { uid, program: "/bin/client".into(), cgroup: "/".into(), ..Identity::default() };
    assert!(policy.enter(CLIENT, identity));
}

fn at(listener: &str) -> SocketAddr {
    listener.parse().unwrap()
}

#[test]
fn without_a_rule_nothing_is_joined_and_a_rule_joins_what_it_names() {
    let none = policy("red", ["blue", "green"], &["allow all"]).unwrap();
    assert!(!none.may_join(CLIENT, "blue", at("10.1.0.1:80")), "to allow everything is no rule about joins");
    assert_eq!(none.joins_to(CLIENT, at("10.1.0.1:80")), None);
    let rule = "join from blue to red user 1000 on 10.1.0.0/16 port 80-81";
    let red = policy("red", ["blue", "green"], &[rule]).unwrap();
    assert!(red.may_join(CLIENT, "blue", at("10.1.0.1:80")) && red.may_join(CLIENT, "blue", at("10.1.255.1:81")));
    assert!(!red.may_join(CLIENT, "green", at("10.1.0.1:80")), "another namespace");
    assert!(!red.may_join(CLIENT, "red", at("10.1.0.1:80")), "its own");
    assert!(!red.may_join(CLIENT, "blue", at("10.1.0.1:82")), "another port");
    assert!(!red.may_join(CLIENT, "blue", at("10.2.0.1:80")), "another address");
    assert!(!red.may_join(CLIENT, "blue", at("[fd00::1]:80")), "another family");
    assert!(!red.may_join(ClientId(9), "blue", at("10.1.0.1:80")), "a client that nobody knows");
    assert_eq!(red.listing().rules[0].hits, 2, "what is not allowed is no hit");
    assert_eq!(red.joins_to(CLIENT, at("10.1.0.1:80")), None, "its own clients are those of red");
    let blue = policy("blue", ["green", "red"], &[rule]).unwrap();
    assert_eq!(blue.joins_to(CLIENT, at("10.1.0.1:80")), Some(5));
    assert_eq!(blue.joins_to(CLIENT, at("10.1.0.1:82")), None);
    assert!(!blue.may_join(CLIENT, "red", at("10.1.0.1:80")), "the other way needs another rule");
}

#[test]
fn each_process_of_the_client_needs_a_rule() {
    let red = policy("red", ["blue", "green"], &["join from blue to red user 1000 on 10.1.0.0/16"]).unwrap();
    assert!(red.may_join(CLIENT, "blue", at("10.1.0.1:80")));
    enter(&red, 1001);
    assert!(!red.may_join(CLIENT, "blue", at("10.1.0.1:80")), "a process of another user has the rings, too");
    red.change(&PolicyRequest::Add { rule: "join from blue to red user 1001 on 10.1.0.0/16".into() }).unwrap();
    assert!(red.may_join(CLIENT, "blue", at("10.1.0.1:80")));
    red.drain();
    assert!(!red.may_join(CLIENT, "blue", at("10.1.0.1:80")), "a service that drains takes nothing new");
}

#[test]
fn a_rule_is_about_this_stack_and_one_that_there_is() {
    for (rule, why) in [
        ("join from blue to green on 10.1.0.0/16", "this is the policy of \"red\""),
        ("join from red to yellow on 10.1.0.0/16", "no fast stack \"yellow\""),
        ("join from yellow to red on 10.1.0.0/16", "there are blue, green"),
    ] {
        let error = policy("red", ["blue", "green"], &[rule]).unwrap_err();
        assert!(error.contains(why), "{rule}: {error}");
        let red = policy("red", ["blue", "green"], &[]).unwrap();
        assert_eq!(red.change(&PolicyRequest::Add { rule: rule.into() }).unwrap_err(), error);
    }
}

#[test]
fn a_question_about_a_join_is_answered_as_the_join_is() {
    let rules = [
        "limit user 7 connections 5",
        "limit user 8 rate 1gbit",
        "join from blue to green on 10.1.9.0/24",
        "join from blue to red user 1000 on 10.1.0.0/16 port 80",
        "join from blue to red user 8 on 10.1.0.0/16",
        "join from red to blue user 1000 on 10.3.0.0/16",
        "join from blue to red user 7 on 10.1.7.0/24",
    ];
    // A stack has the rules that are about it.
    let about = |own: &str| rules.into_iter().filter(|rule| !rule.starts_with("join") || rule.contains(own)).collect();
    let (of_red, of_blue): (Vec<_>, Vec<_>) = (about("red"), about("blue"));
    let red = policy("red", ["blue", "green"], &of_red).unwrap();
    let blue = policy("blue", ["green", "red"], &of_blue).unwrap();
    let asked = |policy: &Policy, question: &str| policy.test(question).unwrap();
    let at = |ip: &str, port: u16| format!("join from blue to red user 1000 on {ip} port {port}");
    for (ip, port, to_red, by_red) in
        [("10.1.0.2", 80, true, true), ("10.1.0.2", 81, false, false), ("10.2.0.2", 80, false, false)]
            .into_iter()
            // Red allows it, but its client is sent to green, where the first rule leads.
            .chain([("10.1.9.2", 80, false, true)])
    {
        let (question, listener) = (at(ip, port), SocketAddr::new(ip.parse().unwrap(), port));
        let word = |yes| if yes { "join" } else { "no join" };
        assert_eq!(asked(&blue, &question).verdict, word(to_red), "{question}");
        assert_eq!(asked(&red, &question).verdict, word(by_red), "{question}");
        assert_eq!(blue.joins_to(CLIENT, listener) == Some(5), to_red, "the stack is asked the same: {question}");
        let hits = red.listing().rules[2].hits;
        assert_eq!(red.may_join(CLIENT, "blue", listener), by_red, "{question}");
        assert_eq!(red.listing().rules[2].hits, hits + u64::from(by_red), "and a question is no hit");
    }
    let no = "no rule matches, and without one nothing is joined";
    for (policy, question, rule, why) in [
        (&red, at("10.1.0.2", 80), Some(3), "the first that matches: join from blue to red user 1000"),
        (&blue, at("10.1.0.2", 80), Some(4), "; red asks its own policy, too"),
        (&blue, at("10.1.9.2", 80), Some(3), "which leads to another stack"),
        (&red, at("10.1.0.2", 81), None, no),
        (&red, "join from blue to red user 7 on 10.1.0.2 port 80".into(), None, no),
        (&red, "join from blue to red on 10.1.0.2 port 80".into(), None, no),
        (&red, "join from blue to red user 8 on 10.1.0.2 port 80".into(), Some(2), "has a rate"),
        (&red, "join from red to blue user 1000 on 10.3.0.1 port 80".into(), Some(5), "blue asks its own policy, too"),
        (&red, "join from blue to red user 7 on 10.1.7.2 port 80".into(), Some(6), "the first that matches"),
    ] {
        let tested = asked(policy, &question);
        assert_eq!(tested.rule.map(|line| line.number), rule, "{question}");
        assert!(tested.why.contains(why), "{question}: {}", tested.why);
        let asks_again = "asks its own policy, too";
        assert_eq!(tested.why.contains(asks_again), why.contains(asks_again), "{question}: {}", tested.why);
    }
    let limited = asked(&red, "join from blue to red user 7 on 10.1.7.2 port 80");
    assert_eq!(limited.verdict, "join", "a limit without a rate keeps nothing apart");
    assert_eq!(asked(&red, "join from blue to red user 7 on 10.1.0.2 port 80").limit.map(|line| line.number), Some(1));
    red.drain();
    let drains = asked(&red, &at("10.1.0.2", 80));
    assert_eq!((drains.verdict.as_str(), drains.rule), ("no join", None));
    assert!(drains.why.contains("drains"), "{}", drains.why);
}

#[test]
fn a_question_about_a_join_of_others_is_refused() {
    let red = policy("red", ["blue", "green"], &[]).unwrap();
    for (question, why) in [
        ("join from blue to green on 10.1.0.2 port 80", "this is the policy of \"red\"; ask one of the two"),
        ("join from red to yellow on 10.1.0.2 port 80", "no fast stack \"yellow\""),
        ("join from yellow to red on 10.1.0.2 port 80", "there are blue, green"),
    ] {
        let error = red.test(question).unwrap_err();
        assert!(error.contains(why), "{question}: {error}");
    }
}
