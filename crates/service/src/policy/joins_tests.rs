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
