//! The list, compared with a model that does no preselection.
#![allow(clippy::unwrap_used)]
use super::*;
use std::net::IpAddr;

fn list(lines: &[&str]) -> RuleList {
    let mut list = RuleList::default();
    list.replace(lines.iter().map(|line| line.parse().unwrap()).collect(), DefaultAction::Allow).unwrap();
    list
}

fn connect(to: &str) -> Query {
    Query::connect(to.parse().unwrap())
}

fn decide(list: &RuleList, identity: &Identity, query: &Query) -> (Option<usize>, Verdict) {
    list.first_match(&list.about(identity), query)
}

fn user(uid: u32) -> Identity {
    Identity { uid, ..Identity::default() }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let list = list(&[
        "allow connect user 1000 to 10.1.0.0/16",
        "deny connect to 10.0.0.0/8 port 25",
        "kernel connect to 10.0.0.0/8",
        "deny connect user 7 with ECONNREFUSED",
    ]);
    let (alice, bob) = (user(1000), user(7));
    assert_eq!(decide(&list, &alice, &connect("10.1.2.3:25")), (Some(0), Verdict::Allow(0)));
    assert_eq!(decide(&list, &bob, &connect("10.1.2.3:25")), (Some(1), Verdict::Refuse(libc::EPERM)));
    assert_eq!(decide(&list, &bob, &connect("10.1.2.3:26")), (Some(2), Verdict::Kernel));
    assert_eq!(decide(&list, &bob, &connect("[fd00::1]:25")), (Some(3), Verdict::Refuse(libc::ECONNREFUSED)));
    assert_eq!(decide(&list, &alice, &connect("1.1.1.1:25")), (None, Verdict::Allow(0)));
}

#[test]
fn a_rule_gives_to_a_stack_by_its_number_and_leaves_loopback_alone_unless_it_names_it() {
    let mut list = RuleList { stacks: vec!["blue".into(), "red".into()], ..RuleList::default() };
    let rules =
        ["stack red connect to 127.0.0.2", "stack blue connect user 7", "stack red listen port 80", "deny accept"];
    list.replace(rules.iter().map(|rule| rule.parse().unwrap()).collect(), DefaultAction::Allow).unwrap();
    let seven = user(7);
    for (to, verdict) in [
        ("10.0.0.1:1", Verdict::Stack(0)),
        ("[fd00::1]:1", Verdict::Stack(0)),
        ("127.0.0.2:1", Verdict::Stack(1)),
        ("127.0.0.1:1", Verdict::Allow(0)),
        ("[::1]:1", Verdict::Allow(0)),
        ("[::ffff:127.0.0.1]:1", Verdict::Allow(0)),
    ] {
        assert_eq!(decide(&list, &seven, &connect(to)).1, verdict, "{to}");
    }
    let listen = |at: &str, dual| decide(&list, &seven, &Query::listen(at.parse().unwrap(), dual)).1;
    assert_eq!(listen("0.0.0.0:80", false), Verdict::Stack(1));
    assert_eq!(listen("[::]:80", true), Verdict::Stack(1));
    assert_eq!(listen("127.0.0.1:80", false), Verdict::Allow(0));
    let error = list.insert(0, "stack green all".parse().unwrap()).unwrap_err();
    assert_eq!(error, "there is no stack \"green\"; the configuration names blue, red ([stacks.NAME])");
}

#[test]
fn no_rule_gives_a_peers_syn_to_a_stack() {
    let mut list = RuleList { stacks: vec!["blue".into()], ..RuleList::default() };
    list.insert(0, "stack blue all".parse().unwrap()).unwrap();
    let query = Query::accept("10.0.0.1:80".parse().unwrap(), "10.0.0.2:5".parse().unwrap());
    assert_eq!(decide(&list, &user(7), &query), (None, Verdict::Allow(0)));
}

#[test]
fn a_listener_on_all_addresses_is_denied_with_any_and_allowed_only_with_all() {
    let at = |text: &str, dual| Query::listen(text.parse().unwrap(), dual);
    let denied = list(&["deny listen on 10.0.0.0/8 port 80"]);
    let somebody = user(1);
    for (query, refused) in [
        (at("10.0.0.1:80", false), true),
        (at("11.0.0.1:80", false), false),
        (at("0.0.0.0:80", false), true),
        (at("[::]:80", true), true),
        (at("[::]:80", false), false),
        (at("0.0.0.0:81", false), false),
    ] {
        assert_eq!(decide(&denied, &somebody, &query).1 == Verdict::Refuse(libc::EACCES), refused, "{query:?}");
    }
    let mut allowed = list(&["allow listen on 127.0.0.0/8"]);
    allowed.default = DefaultAction::Deny;
    for (query, fine) in [(at("127.0.0.1:80", false), true), (at("0.0.0.0:80", false), false)] {
        assert_eq!(decide(&allowed, &somebody, &query).1 == Verdict::Allow(0), fine, "{query:?}");
    }
    let mut whole = list(&["allow listen on 0.0.0.0/0"]);
    whole.default = DefaultAction::Deny;
    assert_eq!(decide(&whole, &somebody, &at("0.0.0.0:80", false)).1, Verdict::Allow(0));
    assert_eq!(decide(&whole, &somebody, &at("[::]:80", true)).1, Verdict::Refuse(libc::EACCES));
    assert_eq!(decide(&whole, &somebody, &at("[::]:80", false)).1, Verdict::Refuse(libc::EACCES));
    let mut whole = list(&["allow listen on ::/0"]);
    whole.default = DefaultAction::Deny;
    assert_eq!(decide(&whole, &somebody, &at("[::]:80", false)).1, Verdict::Allow(0));
    assert_eq!(decide(&whole, &somebody, &at("[::]:80", true)).1, Verdict::Refuse(libc::EACCES), "IPv4 is not allowed");
    assert_eq!(decide(&whole, &somebody, &at("0.0.0.0:80", false)).1, Verdict::Refuse(libc::EACCES));
    let denied = list(&["deny listen on fd00::/8"]);
    for (query, refused) in
        [(at("[::]:80", true), true), (at("[::]:80", false), true), (at("0.0.0.0:80", false), false)]
    {
        assert_eq!(decide(&denied, &somebody, &query).1 == Verdict::Refuse(libc::EACCES), refused, "{query:?}");
    }
}

#[test]
fn a_process_that_hides_its_program_is_denied_and_limited_but_not_allowed_by_it() {
    let hidden = user(5);
    let mut rules = list(&["allow connect program nginx", "allow connect cgroup /a"]);
    rules.default = DefaultAction::Deny;
    assert_eq!(decide(&rules, &hidden, &connect("10.0.0.1:1")), (None, Verdict::Refuse(libc::EPERM)));
    let rules =
        list(&["deny connect program nginx port 1", "deny connect cgroup /a port 2", "limit program nginx rate 1mbit"]);
    assert_eq!(decide(&rules, &hidden, &connect("10.0.0.1:1")).0, Some(0));
    assert_eq!(decide(&rules, &hidden, &connect("10.0.0.1:2")).0, Some(1));
    assert!(rules.limit(&rules.about(&hidden)).is_some());
}

#[test]
fn a_replaced_list_keeps_the_counts_and_numbers_of_what_stays() {
    let mut list = list(&["limit user 1 rate 1mbit", "deny connect", "limit user 2 rate 1mbit"]);
    list.hit(Some(1));
    let limit = |list: &RuleList, uid| list.limit(&list.about(&user(uid))).unwrap().1;
    let (one, two) = (limit(&list, 1), limit(&list, 2));
    let lines = ["limit user 3 rate 2mbit", "limit user 2 rate 1mbit", "deny connect"];
    list.replace(lines.iter().map(|line| line.parse().unwrap()).collect(), DefaultAction::Deny).unwrap();
    assert_eq!(list.entries().iter().map(|counted| counted.hits).collect::<Vec<_>>(), [0, 0, 1]);
    assert_eq!(limit(&list, 2), two);
    let three = limit(&list, 3);
    assert!(three.id != one.id && three.id != two.id && three.number != two.number);
    assert_eq!(three.number, one.number, "small numbers are used again");
}

#[test]
fn a_list_has_a_most_of_entries() {
    let entry = |number: usize| -> Entry { format!("deny connect user {number}").parse().unwrap() };
    let mut list = RuleList::default();
    let error = list.replace((0..=MAX_ENTRIES).map(entry).collect(), DefaultAction::Deny).unwrap_err();
    assert_eq!((error.as_str(), list.entries().len()), ("4097 rules are too many; 4096 is the most", 0));
    list.replace((1..MAX_ENTRIES).map(entry).collect(), DefaultAction::Allow).unwrap();
    list.insert(0, entry(0)).unwrap();
    assert_eq!(list.insert(0, entry(0)).unwrap_err(), "there are 4096 rules already, which is the most");
    list.replace((0..MAX_ENTRIES).map(entry).collect(), DefaultAction::Allow).unwrap();
    assert_eq!((list.remove(MAX_ENTRIES), list.remove(MAX_ENTRIES - 1)), (None, Some(entry(MAX_ENTRIES - 1))));
}

#[test]
fn a_limit_has_a_number_of_its_own_and_a_rule_none() {
    let list =
        list(&["deny connect", "limit user 1 rate 8mbit", "limit user 2 weight 3 connections 4 new 5", "deny all"]);
    let limit = |uid| list.limit(&list.about(&user(uid)));
    let (one, two) = (limit(1).unwrap(), limit(2).unwrap());
    assert_eq!(one, (1, Limit { id: 2, number: 0, weight: 1, rate: 1_000_000, connections: 0, new_per_s: 0 }));
    assert_eq!(two, (2, Limit { id: 3, number: 1, weight: 3, rate: 0, connections: 4, new_per_s: 5 }));
    assert_eq!(limit(3), None);
}

#[test]
fn a_replaced_list_keeps_the_count_of_its_default_if_that_stays() {
    let mut list = RuleList::default();
    list.hit(None);
    list.hit(Some(0));
    list.replace(Vec::new(), DefaultAction::Allow).unwrap();
    assert_eq!(list.default_hits, 1, "a position that is not there counts nowhere");
    list.replace(Vec::new(), DefaultAction::Kernel).unwrap();
    assert_eq!((list.default, list.default_hits), (DefaultAction::Kernel, 0));
}

#[test]
fn hits_count_for_the_entry_of_a_number() {
    let mut list = list(&["deny connect", "limit user 1 rate 1mbit"]);
    assert_eq!(
        (list.hit_by(2, 3), list.hit_by(2, 4), list.hit_limit(2), list.hit_by(3, 1)),
        (Some(1), Some(1), Some(1), None)
    );
    assert_eq!(list.entries().iter().map(|counted| counted.hits).collect::<Vec<_>>(), [0, 8]);
}

#[test]
fn rules_and_limits_say_whether_they_name_a_program() {
    for (line, names) in [
        ("deny connect program nginx", true),
        ("limit program nginx rate 1mbit", true),
        ("deny connect user 1", false),
        ("limit cgroup /a rate 1mbit", false),
    ] {
        assert_eq!(line.parse::<Entry>().unwrap().names_a_program(), names, "{line}");
    }
}

#[test]
fn an_unknown_stack_is_refused_with_those_that_there_are() {
    let error = RuleList::default().insert(0, "stack green all".parse().unwrap()).unwrap_err();
    assert_eq!(error, "there is no stack \"green\"; the configuration names none ([stacks.NAME])");
}

/// The model: the documented meaning of rules, for connects and accepts.
fn naive(list: &RuleList, identity: &Identity, query: &Query) -> (Option<usize>, Verdict) {
    for (at, counted) in list.entries().iter().enumerate() {
        let Entry::Rule(rule) = &counted.entry else { continue };
        let text = counted.entry.to_string();
        let words: Vec<&str> = text.split(' ').collect();
        let after = |keyword: &str| words.iter().position(|word| *word == keyword).map(|at| words[at + 1]);
        let inside = |block: &str, addr: Option<IpAddr>| {
            let (base, prefix) =
                block.split_once('/').unwrap_or((block, if block.contains(':') { "128" } else { "32" }));
            let bits = |addr: IpAddr| match addr {
                IpAddr::V4(v4) => {
                    v4.octets().iter().flat_map(|b| (0..8).rev().map(move |i| b >> i & 1)).collect::<Vec<u8>>()
                }
                IpAddr::V6(v6) => v6.octets().iter().flat_map(|b| (0..8).rev().map(move |i| b >> i & 1)).collect(),
            };
            let (base, addr, prefix) = (bits(base.parse().unwrap()), bits(addr.unwrap()), prefix.parse().unwrap());
            base.len() == addr.len() && base[..prefix] == addr[..prefix]
        };
        let matches = (words[1] == "all" || words[1] == query.attempt.name())
            && after("user").is_none_or(|uid| uid.parse() == Ok(identity.uid))
            && after("group").is_none_or(|gid| identity.groups.contains(&gid.parse().unwrap()))
            && after("program").is_none_or(|p| {
                let hidden = identity.program.is_empty() && words[0] == "deny";
                hidden || p == identity.program || identity.program.ends_with(&format!("/{p}"))
            })
            && after("to").or(after("from")).is_none_or(|block| inside(block, query.remote))
            && after("on").is_none_or(|block| inside(block, query.local))
            && after("port").is_none_or(|ports| {
                let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
                (first.parse().unwrap()..=last.parse().unwrap()).contains(&query.port)
            });
        if matches {
            return (Some(at), rule.verdict(query.attempt, &[]));
        }
    }
    (None, list.default.verdict(query.attempt))
}

mod random {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::select;

    const BLOCKS: [&str; 8] =
        ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "0.0.0.0/0", "::/0", "fd00::/8", "fd00:1::/32", "fd00:1::1"];
    const ADDRESSES: [&str; 6] = ["10.1.2.3", "10.1.2.4", "10.9.9.9", "192.168.0.1", "fd00:1::1", "fe80::1"];

    prop_compose! {
        fn line()(
            action in select(vec!["allow", "deny"]),
            attempt in select(vec!["connect", "accept", "all"]),
            user in prop::option::of(1u32..4),
            group in prop::option::of(1u32..4),
            program in prop::option::of(select(vec!["nginx", "/usr/bin/nginx", "curl"])),
            remote in prop::option::of(select(BLOCKS.to_vec())),
            local in prop::option::of(select(BLOCKS.to_vec())),
            ports in prop::option::of((1u16..6, 0u16..3)),
        ) -> String {
            let mut line = format!("{action} {attempt}");
            let mut add = |keyword: &str, value: Option<String>| {
                if let Some(value) = value { line += &format!(" {keyword} {value}"); }
            };
            add("user", user.map(|n| n.to_string()));
            add("group", group.map(|n| n.to_string()));
            add("program", program.map(str::to_owned));
            match attempt {
                "connect" => add("to", remote.map(str::to_owned)),
                "accept" => {
                    add("from", remote.map(str::to_owned));
                    add("on", local.map(str::to_owned));
                }
                _ => {}
            }
            add("port", ports.map(|(first, more)| format!("{first}-{}", first + more)));
            line
        }
    }

    prop_compose! {
        fn attempt()(
            connect in any::<bool>(),
            (remote, local) in (select(ADDRESSES.to_vec()), select(ADDRESSES.to_vec())),
            port in 1u16..9,
        ) -> Query {
            let attempt = if connect { Attempt::Connect } else { Attempt::Accept };
            let local = (!connect).then(|| local.parse().unwrap());
            Query { attempt, remote: Some(remote.parse().unwrap()), local, port, dual: false }
        }
    }

    proptest! {
        #[test]
        fn first_match_equals_the_naive_model(
            lines in prop::collection::vec(line(), 0..12),
            (uid, gid, program) in (1u32..4, 1u32..4, select(vec!["/usr/bin/nginx", "/tmp/nginx", "/usr/bin/curl", ""])),
            queries in prop::collection::vec(attempt(), 1..8),
        ) {
            let list = list(&lines.iter().map(String::as_str).collect::<Vec<_>>());
            let identity = Identity { uid, groups: vec![gid], program: program.into(), ..Identity::default() };
            for query in &queries {
                prop_assert_eq!(decide(&list, &identity, query), naive(&list, &identity, query), "{:?} {:?}", lines, query);
            }
        }
    }
}
