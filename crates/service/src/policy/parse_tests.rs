#![allow(clippy::unwrap_used)]
use super::*;

#[test]
fn a_rule_reads_as_it_is_written() {
    for text in [
        "deny connect user daemon to 10.0.0.0/8 port 25",
        "allow connect user 0 group daemon program /usr/bin/curl cgroup /system.slice to fd00::/8 port 8000-8099 congestion dctcp",
        "kernel listen on 127.0.0.1 port 22",
        "deny listen program nginx with EPERM",
        "deny accept from 192.168.0.0/16 on 10.0.0.1 port 80 with reset",
        "deny accept with drop",
        "allow accept from 10.0.0.0/8 congestion cubic",
        "allow listen user 0 on 10.0.0.1 port 80-89 only accelerated",
        "deny all",
        "stack blue connect user 0 to 10.0.0.0/8 port 25",
        "join from blue to red on 10.1.0.2",
        "join from home to red user 0 cgroup /system.slice on 10.1.0.0/16 port 80-89",
        "stack guest all program nginx",
        "stack guest-2 listen on 10.0.0.1 port 80-89",
        "limit program nginx rate 1gbit weight 3 connections 10000 new 500",
        "limit weight 2",
    ] {
        assert_eq!(text.parse::<Entry>().unwrap().to_string(), text);
    }
    let spaced = "  deny   connect\tport 25 to 10.0.0.0/8 ".parse::<Entry>().unwrap();
    assert_eq!(spaced.to_string(), "deny connect to 10.0.0.0/8 port 25", "order and spaces do not matter");
}

#[test]
fn accounts_are_known_by_name_or_by_number() {
    let entry = "deny connect user daemon group 7 program x".parse().unwrap();
    let Entry::Rule(Rule { processes: ProcessFilter { user: Some(user), group: Some(group), .. }, .. }) = entry else {
        panic!("{entry}");
    };
    let daemon = User::from_name("daemon").unwrap().unwrap();
    assert_eq!((user.number, group.number), (daemon.uid.as_raw(), 7));
}

#[test]
fn the_longest_line_and_the_largest_values_are_accepted() {
    let padded = |length: usize| format!("deny all{}", " ".repeat(length - 8)).parse::<Entry>();
    assert!(padded(MAX_LINE).is_ok());
    assert_eq!(padded(MAX_LINE + 1).unwrap_err(), "a rule has at most 1024 bytes");
    assert!("limit weight 1000".parse::<Entry>().is_ok() && "limit weight 1001".parse::<Entry>().is_err());
    for one in ["rate 8bit", "weight 1", "connections 1", "new 1"] {
        assert!(format!("limit {one}").parse::<Entry>().is_ok(), "{one}");
    }
    assert!(
        "deny connect port 0-65535".parse::<Entry>().is_ok() && "deny connect port 65536".parse::<Entry>().is_err()
    );
}

#[test]
fn defaults_are_read_as_they_are_written() {
    for default in [DefaultAction::Allow, DefaultAction::Deny, DefaultAction::Kernel] {
        assert_eq!(format!(" {} ", default.name()).parse(), Ok(default));
        assert_eq!(serde_json::from_str::<DefaultAction>(&format!("{:?}", default.name())).unwrap(), default);
    }
    let entry: Entry = serde_json::from_str("\"deny connect port 25\"").unwrap();
    assert_eq!(entry.to_string(), "deny connect port 25");
    assert!(serde_json::from_str::<DefaultAction>("\"stack\"").is_err());
}

#[test]
fn a_question_is_about_one_attempt_of_one_process() {
    let asked = |text: &str| question(text).unwrap();
    let (own, any) = ("10.0.0.9".parse::<IpAddr>().unwrap(), IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
    let peer = || Some("10.0.0.1".parse().unwrap());
    let query = |attempt, remote, local, port, dual| Query { attempt, remote, local, port, dual };
    for (text, expected) in [
        ("connect to 10.0.0.1 port 25", query(Attempt::Connect, peer(), None, 25, false)),
        ("accept from 10.0.0.1 port 25", query(Attempt::Accept, peer(), Some(any), 25, false)),
        ("accept from 10.0.0.1 on 10.0.0.9 port 25", query(Attempt::Accept, peer(), Some(own), 25, false)),
        ("listen port 80", query(Attempt::Listen, None, Some(any), 80, false)),
        ("listen on 10.0.0.9 port 80", query(Attempt::Listen, None, Some(own), 80, false)),
        ("listen on :: port 80", query(Attempt::Listen, None, Some("::".parse().unwrap()), 80, true)),
        ("listen on ::1 port 80", query(Attempt::Listen, None, Some("::1".parse().unwrap()), 80, false)),
        ("accept from fd00::1 on :: port 80", {
            let (peer, own) = ("fd00::1".parse().unwrap(), "::".parse().unwrap());
            query(Attempt::Accept, Some(peer), Some(own), 80, false)
        }),
    ] {
        assert_eq!(asked(text).1, Question::Attempt(expected), "{text}");
    }
    let identity = |words: &str| asked(&format!("listen {words} port 1")).0;
    let nobody = identity("");
    assert_eq!((nobody.uid, nobody.groups.len(), nobody.program.as_str()), (u32::MAX, 0, "?"));
    assert_eq!((nobody.cgroup.as_str(), nobody.pid), ("?", 0));
    let somebody = identity("user daemon group 70000 program nginx cgroup /a");
    let daemon = User::from_name("daemon").unwrap().unwrap();
    assert_eq!((somebody.uid, somebody.groups), (daemon.uid.as_raw(), vec![70_000, daemon.gid.as_raw()]));
    assert_eq!((somebody.program.as_str(), somebody.cgroup.as_str()), ("nginx", "/a"));
    assert_eq!(identity("user 4000000000").groups, [0; 0], "a number that nobody has");
    let own = std::process::id();
    assert_eq!(Some(identity(&format!("pid {own}"))), Identity::running(own.cast_signed()));
}

#[test]
fn a_question_about_a_join_names_two_stacks_and_a_listener() {
    for (on, listener) in [("10.1.0.2", "10.1.0.2:80"), ("fd00::2", "[fd00::2]:80"), ("::ffff:10.1.0.2", "10.1.0.2:80")]
    {
        let (identity, asked) = question(&format!("join from home to red user 7 on {on} port 80")).unwrap();
        let listener = listener.parse().unwrap();
        assert_eq!(asked, Question::Join(JoinQuery { from: "home".into(), to: "red".into(), listener }));
        assert_eq!(identity.uid, 7);
    }
}

#[test]
fn what_is_wrong_with_a_question_is_said() {
    for (text, error) in [
        ("", "\"test\" needs a value behind it"),
        ("all port 1", "write connect, listen, accept or join"),
        ("send port 1", "\"send\" is no question; write connect, listen, accept or join"),
        ("join", "write \"join from NAME to NAME\""),
        ("join from blue to blue on 10.1.0.2 port 80", "is one namespace"),
        ("join from blue to red port 80", "a join goes to a listener \"on\" an address"),
        ("join from blue to red on 10.1.0.2", "which \"port\"?"),
        ("join from blue to red on 10.1.0.0/16 port 80", "\"10.1.0.0/16\" is no address"),
        ("join from blue to red to 10.1.0.2 port 80", "have pid, user, group, program, cgroup, on, port"),
        ("connect port 25", "a connect goes \"to\" an address"),
        ("accept port 25", "an accept comes \"from\" an address"),
        ("connect to 10.0.0.1", "which \"port\"?"),
        ("connect to 10.0.0.0/8 port 1", "\"10.0.0.0/8\" is no address"),
        ("listen on somewhere port 1", "\"somewhere\" is no address"),
        ("listen port 0", "at least 1"),
        ("listen port 65536", "no number that fits"),
        ("listen port 1 port 2", "\"port\" is there twice"),
        ("listen colour blue", "\"colour\" is no keyword here"),
        ("listen pid 2147483647 port 1", "there is no process 2147483647"),
    ] {
        let said = question(text).unwrap_err();
        assert!(said.contains(error), "{text:?}: {said}");
    }
}

#[test]
fn what_is_wrong_with_a_rule_is_said() {
    for (text, error) in [
        ("", "an empty rule"),
        ("permit connect", "\"permit\" begins no rule; write allow, deny, kernel, stack, join or limit"),
        ("deny", "\"deny\" needs a value behind it"),
        ("deny send", "write connect, listen, accept or all"),
        ("deny connect to", "\"to\" needs a value behind it"),
        ("deny connect from 10.0.0.0/8", "\"from\" is out of place"),
        ("deny all to 10.0.0.0/8", "\"to\" is out of place"),
        ("deny connect to 10.0.0.1/8", "write \"10.0.0.0/8\""),
        ("deny connect port 80-79", "a range like \"8000-8099\""),
        ("deny connect port 80 port 81", "\"port\" is there twice"),
        ("deny connect user no-such-user", "there is no user \"no-such-user\""),
        ("deny connect group no-such-group", "there is no group \"no-such-group\""),
        ("deny connect program bin/nginx", "neither a whole path nor a name"),
        ("deny connect cgroup system.slice", "does not begin with \"/\""),
        ("deny connect with ENOENT", "write EACCES, EPERM or ECONNREFUSED"),
        ("deny accept with EPERM", "\"with\" takes an errno for connect and listen"),
        ("allow connect with EPERM", "\"with\" is for deny"),
        ("allow listen congestion dctcp", "is for allow connect and allow accept"),
        ("allow connect congestion vegas", "there is no congestion control \"vegas\"; there are "),
        ("allow listen only", "\"only\" needs a value behind it"),
        ("allow listen only fast", "write \"only accelerated\""),
        ("allow listen only accelerated only accelerated", "\"only\" is there twice"),
        ("allow accept only accelerated", "is for allow listen"),
        ("deny listen only accelerated", "is for allow listen"),
        ("allow all only accelerated", "is for allow listen"),
        ("kernel accept", "cannot be left to the kernel"),
        ("stack", "\"stack\" needs a value behind it"),
        ("stack blue", "\"blue\" needs a value behind it"),
        ("stack no/name connect", "is no name for a stack"),
        ("stack blue accept", "write \"stack NAME listen\""),
        ("stack blue connect with EPERM", "\"with\" is for deny"),
        ("join", "write \"join from NAME to NAME\""),
        ("join from blue", "write \"join from NAME to NAME\""),
        ("join to red from blue", "write \"join from NAME to NAME\""),
        ("join from blue to", "\"to\" needs a value behind it"),
        ("join from blue to blue", "is one namespace"),
        ("join from no/name to red", "is no name for a stack"),
        ("join from blue to red port 80", "write \"on\" and the listener's addresses"),
        ("join from blue to red to 10.0.0.0/8", "\"to\" is no keyword here"),
        ("join from blue to red port 1 port 2", "\"port\" is there twice"),
        ("limit program nginx", "a limit needs at least one of"),
        ("limit rate 1", "is no rate"),
        ("limit connections 0", "at least 1"),
        ("limit weight 2000", "at most 1000"),
        ("deny connect colour blue", "\"colour\" is no keyword"),
    ] {
        let said = text.parse::<Entry>().unwrap_err();
        assert!(said.contains(error), "{text:?}: {said}");
    }
}

#[test]
fn a_selector_has_the_words_of_a_rule_about_processes_and_no_others() {
    let selector = |text: &str| text.parse::<ProcessFilter>().map(|filter| filter.to_string());
    for text in ["user 0", "group daemon", "program nginx", "user 0 group 5 program /usr/bin/curl cgroup /system.slice"]
    {
        assert_eq!(selector(text).unwrap().trim_start(), text);
    }
    assert_eq!(selector("  program nginx\tuser 0 ").unwrap(), " user 0 program nginx");
    for (text, error) in [
        ("", "an empty selector; write user, group, program or cgroup"),
        ("user", "\"user\" needs a value behind it"),
        ("user no-such-user", "there is no user \"no-such-user\""),
        ("nginx", "\"nginx\" is no keyword here; a selector has user, group, program, cgroup"),
        ("user 0 port 80", "\"port\" is no keyword here"),
        ("user 0 user 1", "\"user\" is there twice"),
        ("program bin/nginx", "neither a whole path nor a name"),
    ] {
        let said = selector(text).unwrap_err();
        assert!(said.contains(error), "{text:?}: {said}");
    }
    assert!(selector(&"user 0 ".repeat(200)).unwrap_err().contains("at most 1024 bytes"));
}
