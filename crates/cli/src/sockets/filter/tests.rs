#![allow(clippy::unwrap_used)]
use super::*;
use crate::samples::listener;

fn socket(local: &str, peer: &str) -> SocketStatus {
    SocketStatus { state: "ESTAB".into(), local: local.parse().unwrap(), peer: peer.parse().unwrap(), ..listener() }
}

fn parse(text: &str) -> Result<Filter, String> {
    Filter::parse(&[text.to_owned()])
}

#[test]
fn conditions_are_those_of_ss() {
    let of = socket("10.0.0.1:6379", "192.168.7.9:40000");
    for (text, matches) in [
        ("", true),
        ("sport = :6379", true),
        ("sport=6379", true),
        ("sport eq 6379 and dport gt :39999", true),
        ("sport != :6379", false),
        ("sport >= :6379 dport <= :40000", true),
        ("sport < 6379 or dport > 40000", false),
        ("src 10.0.0.1", true),
        ("src 10.0.0.1:6379", true),
        ("src 10.0.0.1:80", false),
        ("src = 10.0.0.0/8", true),
        ("src != 10.0.0.0/8", false),
        ("dst 192.168.0.0/16:40000", true),
        ("dst 192.168.8.0/23", false),
        ("dst 192.168.6.0/23", true),
        ("dst :40000", true),
        ("dst *:40000", true),
        ("dst 0.0.0.0/0", true),
        ("dst ::/0", false),
        ("( sport = :80 or sport = :6379 ) and dst 192.168.7.9", true),
        ("(sport=:80||sport=:6379)&&!dst 192.168.7.9", false),
        ("not ( sport = :80 )", true),
        ("not sport = :80 sport = :6379", true),
        // From left to right, as ss does it: (a or b) and c.
        ("sport = :6379 or sport = :80 dst 10.0.0.0/8", false),
        ("sport = :80 dst 10.0.0.0/8 or sport = :6379", true),
        ("sport :6379 dport :40000", true),
        ("sport :80", false),
        ("program redis-server uid 1000", true),
        ("program = redis uid = 1000", false),
    ] {
        assert_eq!(parse(text).unwrap().matches(&of), matches, "{text}");
    }
    let v6 = socket("[fe80::1]:80", "[2001:db8::7]:4000");
    for (text, matches) in [
        ("src fe80::/10", true),
        ("src [fe80::1]:80", true),
        ("src [fe80::1]:81", false),
        ("dst [2001:db8::]/32:4000", true),
        ("dst [2001:db8::/32]:4000", true),
        ("dst 2001:db8::8", false),
        ("dst inet6:[2001:db8::7]", true),
        ("src 0.0.0.0/0", false),
        ("sport = :http", true),
    ] {
        assert_eq!(parse(text).unwrap().matches(&v6), matches, "{text}");
    }
}

#[test]
fn states_are_those_of_ss() {
    let wants = |text: &str| {
        let filter = parse(text).unwrap();
        ["ESTAB", "LISTEN", "SYN-SENT", "TIME-WAIT"].map(|state| filter.wants_state(state).unwrap_or_default())
    };
    assert_eq!(parse("sport = 80").unwrap().wants_state("ESTAB"), None);
    assert_eq!(wants("state established"), [true, false, false, false]);
    assert_eq!(wants("state ESTAB sport = 80"), [true, false, false, false]);
    assert_eq!(wants("state ALL"), [true; 4]);
    assert_eq!(wants("state connected"), [true, false, true, true]);
    assert_eq!(wants("state synchronized"), [true, false, false, true]);
    assert_eq!(wants("state bucket"), [false, false, false, true]);
    assert_eq!(wants("state big"), [true, true, true, false]);
    assert_eq!(wants("state listening state time-wait"), [false, true, false, true]);
    assert_eq!(wants("exclude time-wait"), [true, true, true, false]);
    assert_eq!(wants("state all exclude listening"), [true, false, true, true]);
}

#[test]
fn what_is_wrong_is_said() {
    for (text, why) in [
        ("state", "a state is missing"),
        ("state open", "there is no state \"open\"; write established, syn-sent"),
        ("colour red", "\"colour\" is no condition; write src, dst"),
        ("sport", "sport: a port is missing"),
        ("sport =", "sport: a port is missing"),
        ("sport = :70000", "is no port"),
        ("sport = :nosuchthing", "no name of one in /etc/services"),
        ("dst", "dst: an address is missing"),
        ("dst 10.0.0", "\"10.0.0\" is no address; write 10.0.0.1"),
        ("dst 10.0.0.0/33", "is no address"),
        ("dst [::1", "is no address"),
        ("( sport = 80", "a `)` is missing"),
        ("sport = 80 )", "\")\" is one word too much"),
        ("sport = 80 or", "the filter ends too early"),
        ("uid redis", "uid: \"redis\" is no number"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
    assert_eq!(parse(&"( ".repeat(100_000)).unwrap_err(), "the filter is too deep");
}

#[test]
fn fuzz_filters() {
    const WORDS: [&str; 20] = [
        "state",
        "exclude",
        "all",
        "established",
        "(",
        ")",
        "and",
        "or",
        "not",
        "!",
        "sport",
        "dst",
        "=",
        "<",
        ":80",
        "10.0.0.0/8",
        "[::1]:1",
        "::/0",
        "program",
        "*",
    ];
    let of = socket("10.0.0.1:80", "[::1]:1");
    bolero::check!().with_type::<(Vec<u8>, String)>().with_iterations(10_000).for_each(|(words, noise)| {
        let words = words.iter().take(64).map(|word| WORDS[usize::from(*word) % WORDS.len()].to_owned());
        let words: Vec<String> = words.chain([noise.clone()]).collect();
        if let Ok(filter) = Filter::parse(&words) {
            let _ = filter.matches(&of);
        }
    });
}
