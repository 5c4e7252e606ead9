//! A client whose processes differ needs the permission of each.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::policy::request::PolicyRequest;

const CLIENT: ClientId = ClientId(3);

fn policy(rules: &[&str], default: &str) -> Policy {
    let entries = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    Policy::new(entries, default.parse().unwrap()).unwrap()
}

fn user(uid: u32) -> Identity {
    Identity { uid, groups: vec![uid], program: format!("/bin/{uid}"), cgroup: "/".into(), pid: uid as i32 }
}

/// The verdict on a connect by a client of these processes, in the order in which they have entered.
fn verdict(policy: &Policy, users: &[u32], port: u16) -> Verdict {
    policy.leave(CLIENT);
    users.iter().for_each(|uid| assert!(policy.enter(CLIENT, user(*uid))));
    policy.decide(CLIENT, &Query::connect(([10, 0, 0, 1], port).into()))
}

#[test]
fn what_one_process_of_a_client_may_not_do_none_may() {
    let policy = policy(&["deny connect user 7 port 25", "kernel connect user 8 port 25"], "allow");
    assert_eq!(verdict(&policy, &[1, 2], 25), Verdict::Allow(0));
    for users in [&[7][..], &[1, 7], &[7, 1], &[1, 2, 7], &[1, 7, 2]] {
        assert_eq!(verdict(&policy, users, 25), Verdict::Refuse(libc::EPERM), "{users:?}");
        assert_eq!(verdict(&policy, users, 26), Verdict::Allow(0), "{users:?}");
    }
    assert_eq!((verdict(&policy, &[8, 7], 25), verdict(&policy, &[7, 8], 25)), (Verdict::Kernel, Verdict::Refuse(1)));
}

#[test]
fn what_is_permitted_to_some_is_permitted_to_a_client_of_only_those() {
    let policy = policy(&["allow connect user 1 congestion dctcp", "allow connect user 2"], "deny");
    assert!(matches!(verdict(&policy, &[1], 25), Verdict::Allow(congestion) if congestion != 0));
    // The rule about the first process decides how.
    assert_eq!(verdict(&policy, &[1, 2], 25), verdict(&policy, &[1], 25));
    assert_eq!(verdict(&policy, &[2, 1], 25), Verdict::Allow(0));
    for users in [&[3][..], &[1, 3], &[3, 1], &[2, 1, 3]] {
        assert_eq!(verdict(&policy, users, 25), Verdict::Refuse(libc::EPERM), "{users:?}");
    }
}

#[test]
fn a_process_that_enters_later_counts_at_once_and_one_that_left_with_its_client_does_not() {
    let policy = policy(&["deny connect user 7"], "allow");
    assert_eq!(verdict(&policy, &[1], 25), Verdict::Allow(0));
    policy.enter(CLIENT, user(7));
    let again = || policy.decide(CLIENT, &Query::connect(([10, 0, 0, 1], 25).into()));
    assert_eq!(again(), Verdict::Refuse(libc::EPERM));
    policy.change(&PolicyRequest::Flush).unwrap();
    assert_eq!(again(), Verdict::Allow(0), "a changed list is asked anew");
    policy.change(&PolicyRequest::Add { rule: "deny connect user 1".into() }).unwrap();
    assert_eq!(again(), Verdict::Refuse(libc::EPERM));
    policy.leave(CLIENT);
    assert_eq!(again(), Verdict::Allow(0), "a client that nobody knows has no user");
    assert_eq!(policy.totals().denied, 2);
}

#[test]
fn a_client_has_no_more_than_64_different_processes() {
    let policy = policy(&[], "allow");
    for uid in 0..64 {
        assert!(policy.enter(CLIENT, user(uid)) && policy.enter(CLIENT, user(uid)), "the same twice is one");
    }
    assert!(!policy.enter(CLIENT, user(64)));
    assert!(policy.enter(CLIENT, Identity { pid: 9999, ..user(5) }), "another process of the same kind");
    assert!(!policy.enter(CLIENT, Identity { program: "/bin/other".into(), ..user(5) }));
    assert!(policy.enter(ClientId(4), user(64)), "another client");
}

/// The limit is that of the process that came first.
#[test]
fn a_client_is_under_the_limit_of_its_first_process() {
    let policy = policy(&["limit user 1 connections 5", "limit user 2 connections 9"], "allow");
    verdict(&policy, &[2, 1], 25);
    assert_eq!(policy.limit(CLIENT).map(|limit| limit.connections), Some(9));
    verdict(&policy, &[1, 2], 25);
    assert_eq!(policy.limit(CLIENT).map(|limit| limit.connections), Some(5));
    verdict(&policy, &[3, 1], 25);
    assert_eq!(policy.limit(CLIENT), None);
}

/// So is who has the frames of its connections. Where its program is unknown, a module for a program has them, too.
#[test]
fn selectors_choose_a_client_by_its_first_process() {
    let policy = policy(&[], "allow");
    let of = |text: &str| text.parse().unwrap();
    let filters = [(1, of("user 1")), (2, of("user 2")), (4, of("program /bin/2 group 2")), (8, of("user 1 group 2"))];
    let chosen = |users: &[u32]| {
        verdict(&policy, users, 25);
        policy.selected_by(CLIENT, &filters)
    };
    assert_eq!((chosen(&[1]), chosen(&[1, 2]), chosen(&[2, 1]), chosen(&[3])), (1, 1, 2 | 4, 0));
    policy.leave(CLIENT);
    policy.enter(CLIENT, Identity { program: String::new(), ..user(2) });
    assert_eq!(policy.selected_by(CLIENT, &filters), 2 | 4);
    policy.leave(CLIENT);
    assert_eq!(policy.selected_by(CLIENT, &[(1, of("user 1")), (2, of("program nginx"))]), 2, "nobody knows it");
    assert_eq!(policy.selected_by(CLIENT, &[]), 0);
}

#[test]
fn what_a_limit_refuses_is_counted_under_its_rule_and_in_total() {
    let policy = policy(&["deny connect user 9", "limit user 1 connections 5"], "allow");
    verdict(&policy, &[1], 25);
    let limit = policy.limit(CLIENT).unwrap();
    for what in [Exceeded::Connections, Exceeded::NewPerSecond, Exceeded::Connections] {
        policy.exceeded(CLIENT, &limit, what);
    }
    let hits: Vec<u64> = policy.listing().rules.iter().map(|line| line.hits).collect();
    assert_eq!((hits, policy.totals().limited, policy.totals().rules), (vec![0, 3], 3, 2));
    policy.change(&PolicyRequest::Delete { rule: "2".into() }).unwrap();
    policy.exceeded(CLIENT, &limit, Exceeded::Connections);
    assert_eq!((policy.totals().limited, policy.listing().rules[0].hits), (4, 0), "a rule that is gone has no count");
}

#[test]
fn while_the_service_drains_what_is_allowed_is_the_kernels() {
    let policy = policy(&["deny connect port 25"], "allow");
    assert!(!policy.drains());
    policy.drain();
    assert_eq!((policy.drains(), verdict(&policy, &[1], 26)), (true, Verdict::Kernel));
    assert_eq!(verdict(&policy, &[1], 25), Verdict::Refuse(libc::EPERM));
    let (local, remote) = (([10, 0, 0, 1], 80).into(), ([10, 0, 0, 2], 4000).into());
    let listen = policy.decide(CLIENT, &Query::listen(local, false));
    let accept = policy.decide(CLIENT, &Query::accept(local, remote));
    assert_eq!((listen, accept), (Verdict::Kernel, Verdict::Allow(0)), "a peer that has come is served");
}
