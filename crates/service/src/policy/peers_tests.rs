//! The filter's rules decide as the policy does.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::policy::request::PolicyRequest;
use towpath_runtime::Verdict;

const CLIENT: ClientId = ClientId(3);
const PORT: u16 = 80;

fn policy(rules: &[&str], default: &str) -> Policy {
    Policy::new(rules.iter().map(|rule| rule.parse().unwrap()).collect(), default.parse().unwrap()).unwrap()
}

fn enter(policy: &Policy, uid: u32) {
    let identity = Identity { uid, program: "/bin/server".into(), cgroup: "/".into(), ..Identity::default() };
    assert!(policy.enter(CLIENT, identity));
}

fn rules(policy: &Policy, local: &str, dual: bool) -> PeerRules {
    policy.peer_rules(CLIENT, SocketAddr::new(local.parse().unwrap(), PORT), dual)
}

fn contains(block: Option<Block>, addr: IpAddr) -> bool {
    block.is_none_or(|Block { addr: first, bits }| match (first, addr) {
        (IpAddr::V4(first), IpAddr::V4(addr)) => {
            (first.to_bits() ^ addr.to_bits()).checked_shr(32 - u32::from(bits)).unwrap_or(0) == 0
        }
        (IpAddr::V6(first), IpAddr::V6(addr)) => {
            (first.to_bits() ^ addr.to_bits()).checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
        }
        _ => false,
    })
}

/// As the filter does it: the number under which a peer is refused.
fn refused(rules: &[PeerRule], remote: IpAddr, local: IpAddr) -> Option<u64> {
    let mut at = 0;
    while let Some(rule) = rules.get(at) {
        at += 1;
        if contains(rule.remote, remote) && contains(rule.local, local) {
            match rule.verdict {
                PeerVerdict::Refuse(number) => return Some(number),
                PeerVerdict::GoOn(next) => {
                    assert!(next >= at, "it never goes back");
                    at = next;
                }
            }
        }
    }
    None
}

/// Lists of rules, about processes of users 1 and 2, and the default.
const LISTS: [(&[&str], &str); 14] = [
    (&[], "allow"),
    (&[], "deny"),
    (&[], "kernel"),
    (&["deny accept from 10.0.0.0/8"], "allow"),
    (&["allow accept from 10.1.0.0/16", "deny accept from 10.0.0.0/8 with reset", "allow accept"], "deny"),
    (&["deny accept on 10.9.0.1", "deny accept from ::/0"], "allow"),
    (&["deny accept from 127.0.0.0/8 port 81", "deny accept from 10.1.2.3 port 79-80"], "allow"),
    (&["allow accept user 1 from 10.0.0.0/8", "allow accept user 2 from 10.1.0.0/16"], "deny"),
    (&["deny accept user 2 from 10.0.0.0/8", "allow accept user 1", "deny accept user 1"], "allow"),
    (&["deny all port 80"], "allow"),
    (&["kernel all", "deny accept"], "allow"),
    (&["deny accept user 7"], "allow"),
    (&["deny connect", "deny listen", "allow accept from 0.0.0.0/0", "deny accept from fd00::/8"], "deny"),
    (&["allow accept from fd00::/8 on fd00::9", "deny accept on ::/0", "deny accept from 10.1.2.3/32"], "allow"),
];

#[test]
fn the_filter_refuses_whom_the_policy_denies() {
    let listeners = [
        ("0.0.0.0", false, ["10.9.0.1", "127.0.0.1"]),
        ("10.9.0.1", false, ["10.9.0.1", "10.9.0.1"]),
        ("::", false, ["fd00::9", "::1"]),
        ("::", true, ["fd00::9", "10.9.0.1"]),
        ("fd00::9", false, ["fd00::9", "fd00::9"]),
    ];
    let peers = ["10.1.2.3", "10.1.9.9", "10.200.0.1", "127.0.0.1", "192.0.2.1", "::1", "fd00::1", "2001:db8::1"];
    for (texts, default) in LISTS {
        for users in [&[1][..], &[2], &[1, 2], &[2, 1], &[]] {
            let policy = policy(texts, default);
            users.iter().for_each(|uid| enter(&policy, *uid));
            for (addr, dual, own) in listeners {
                let PeerRules { rules, only_accelerated } = rules(&policy, addr, dual);
                assert!(!only_accelerated);
                for (local, remote) in own.iter().flat_map(|local| peers.iter().map(move |remote| (local, remote))) {
                    let (local, remote): (IpAddr, IpAddr) = (local.parse().unwrap(), remote.parse().unwrap());
                    if local.is_ipv4() != remote.is_ipv4() {
                        continue;
                    }
                    let query = Query::accept(SocketAddr::new(local, PORT), SocketAddr::new(remote, 5555));
                    let denied = matches!(policy.decide(CLIENT, &query), Verdict::Refuse(_) | Verdict::Drop);
                    let found = refused(&rules, remote, local).is_some();
                    assert_eq!(found, denied, "{texts:?} {default} {users:?} {addr} {dual}: {remote} to {local}");
                }
            }
        }
    }
}

#[test]
fn there_are_no_rules_where_nobody_is_refused_and_few_elsewhere() {
    let count = |texts: &[&str], default: &str, local: &str| {
        let policy = policy(texts, default);
        [1, 2, 3].iter().for_each(|uid| enter(&policy, *uid));
        rules(&policy, local, false).rules.len()
    };
    assert_eq!(count(&[], "allow", "0.0.0.0"), 0);
    assert_eq!(count(&["deny connect", "allow accept from 10.0.0.0/8"], "kernel", "0.0.0.0"), 0);
    assert_eq!(count(&["deny accept from 10.0.0.0/8"], "allow", "0.0.0.0"), 1, "the same for all processes");
    assert_eq!(count(&["deny accept from 10.0.0.0/8"], "allow", "::1"), 0, "of another family");
    assert_eq!(count(&["deny accept on 10.0.0.1"], "allow", "10.0.0.2"), 0);
    assert_eq!(count(&["deny accept", "deny accept from 10.0.0.0/8"], "deny", "0.0.0.0"), 1, "all that follows");
    assert_eq!(count(&["allow accept from 10.0.0.0/8"], "deny", "0.0.0.0"), 2);
}

#[test]
fn too_many_rules_refuse_everybody_and_say_so() {
    let many = |count: usize| {
        let texts: Vec<String> = (0..count).map(|n| format!("deny accept from 10.{}.{}.1", n / 250, n % 250)).collect();
        let policy = policy(&texts.iter().map(String::as_str).collect::<Vec<_>>(), "allow");
        enter(&policy, 1);
        policy
    };
    let most = many(MAX_PEER_RULES);
    let (nobodys, stranger) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([10, 0, 5, 1]));
    let few = rules(&most, "0.0.0.0", false).rules;
    assert_eq!((few.len(), refused(&few, nobodys, nobodys)), (MAX_PEER_RULES, None));
    assert_eq!(refused(&few, stranger, nobodys), Some(6));
    let policy = many(MAX_PEER_RULES + 1);
    assert_eq!(rules(&policy, "0.0.0.0", false), PeerRules::nobody(BY_NUMBER));
    assert!(rules(&policy, "::1", false).rules.is_empty(), "none of them is about it");
    policy.peers_refused(&[(BY_NUMBER, 2)]);
    assert_eq!((policy.totals().denied, policy.listing().default_hits), (2, 0), "the default has decided nothing");
}

#[test]
fn a_listener_that_may_have_accelerated_connections_only_has_none_of_the_kernels() {
    let policy = policy(&["allow listen user 1 port 80 only accelerated", "allow accept"], "allow");
    enter(&policy, 1);
    assert_eq!(rules(&policy, "0.0.0.0", false), PeerRules { only_accelerated: true, ..PeerRules::nobody(1) });
    let beside = SocketAddr::new([0; 4].into(), 81);
    assert_eq!(policy.peer_rules(CLIENT, beside, false), PeerRules::default());
    enter(&policy, 2);
    assert!(rules(&policy, "0.0.0.0", false).only_accelerated, "what holds for one process of a client holds for it");
    policy.change(&PolicyRequest::Insert { number: 1, rule: "allow listen".into() }).unwrap();
    assert!(!rules(&policy, "0.0.0.0", false).only_accelerated, "the first rule decides");
}

#[test]
fn refusals_count_as_hits_of_their_rules() {
    let policy = policy(&["deny accept from 10.0.0.0/8"], "deny");
    enter(&policy, 1);
    let rules = rules(&policy, "0.0.0.0", false).rules;
    let number = |remote: [u8; 4]| refused(&rules, remote.into(), remote.into()).unwrap();
    policy.peers_refused(&[(number([10, 0, 0, 1]), 3), (number([192, 0, 2, 1]), 4), (4711, 5)]);
    let listing = policy.listing();
    assert_eq!((listing.rules[0].hits, listing.default_hits, policy.totals().denied), (3, 4, 12));
}

#[test]
fn the_version_changes_with_the_rules_and_with_another_kind_of_process() {
    let policy = policy(&[], "allow");
    let versions = || policy.version();
    enter(&policy, 1);
    let first = versions();
    enter(&policy, 1);
    assert_eq!(versions(), first, "the same once more");
    enter(&policy, 2);
    let second = versions();
    policy.change(&PolicyRequest::Add { rule: "deny accept".into() }).unwrap();
    assert!(first < second && second < versions());
    policy.listing();
    let _ = policy.change(&PolicyRequest::Add { rule: "wrong".into() });
    assert_eq!(versions(), second + 1);
}
