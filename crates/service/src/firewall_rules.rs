//! The firewall's rules that accelerated connections pass by: those about packets and bytes, and about the sender's socket.
//! Only first SYNs pass the firewall. This is for people; nothing depends on it.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Where the program that lists rules may be. It runs as root, so no variable names it.
const PLACES: [&str; 3] = ["/usr/sbin/nft", "/sbin/nft", "/usr/local/sbin/nft"];
/// A list of rules that takes longer is not awaited.
const LONGEST: Duration = Duration::from_secs(2);
/// Most bytes of a list.
const MOST: u64 = 16 << 20;

/// The tables of this network namespace with such rules, in one line; `None`: there are none, or they cannot be listed.
pub fn passed_by() -> Option<String> {
    line(&tables(&listed()?))
}

/// `nft -j list ruleset`, without the elements of sets.
fn listed() -> Option<Value> {
    let nft = PLACES.iter().find(|place| std::fs::exists(place).unwrap_or(false))?;
    let mut command = Command::new(nft);
    command.args(["-j", "-t", "list", "ruleset"]).env_clear();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let output = child.stdout.take()?;
    let (done, text) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = output.take(MOST).read_to_end(&mut text);
        let _ = done.send(text);
    });
    let text = text.recv_timeout(LONGEST);
    let _ = child.kill();
    let _ = (child.wait(), reader.join());
    serde_json::from_slice(&text.ok()?).ok()
}

/// The tables, and which kinds of such rules they have.
fn tables(listed: &Value) -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut tables = BTreeMap::<_, BTreeSet<_>>::new();
    let rules = listed["nftables"].as_array().into_iter().flatten().filter_map(|entry| entry.get("rule"));
    for rule in rules {
        let parts = rule["expr"].as_array().into_iter().flatten();
        let kinds: Vec<_> = parts.filter_map(kind).collect();
        if let (false, Some(family), Some(table)) = (kinds.is_empty(), rule["family"].as_str(), rule["table"].as_str())
        {
            tables.entry(format!("{family} {table}")).or_default().extend(kinds);
        }
    }
    tables
}

/// What a part of a rule asks or does that no SYN can show.
fn kind(part: &Value) -> Option<&'static str> {
    let (name, body) = part.as_object()?.iter().next()?;
    match name.as_str() {
        "limit" => Some("limit"),
        "quota" => Some("quota"),
        "counter" => Some("counter"),
        "meter" => Some("meter"),
        "ct count" => Some("ct count"),
        "queue" => Some("queue"),
        "mangle" => ["meta", "ct"].iter().any(|of| body["key"][of]["key"] == "mark").then_some("mark"),
        "match" if body["left"].get("socket").is_some() => Some("socket"),
        "match" => match body["left"]["meta"]["key"].as_str()? {
            "skuid" => Some("skuid"),
            "skgid" => Some("skgid"),
            "cgroup" => Some("cgroup"),
            _ => None,
        },
        _ => None,
    }
}

fn line(tables: &BTreeMap<String, BTreeSet<&'static str>>) -> Option<String> {
    let named = |(table, kinds): (&String, &BTreeSet<&str>)| {
        format!("{table} ({})", kinds.iter().copied().collect::<Vec<_>>().join(", "))
    };
    let tables: Vec<_> = tables.iter().map(named).collect();
    (!tables.is_empty()).then(|| {
        format!(
            "only first SYNs of accelerated connections pass the firewall, sent by the service: rules of {} do not see the rest",
            tables.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(table: &str, parts: &str) -> Value {
        let text = format!("{{\"rule\": {{\"family\": \"inet\", \"table\": \"{table}\", \"expr\": [{parts}]}}}}");
        serde_json::from_str(&text).expect("JSON")
    }

    #[test]
    fn rules_about_packets_and_senders_are_named_by_table() {
        let of = |rules: &[Value]| line(&tables(&serde_json::json!({ "nftables": rules })));
        let port =
            r#"{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}}"#;
        let drop = r#"{"drop": null}"#;
        assert_eq!(of(&[rule("a", port), rule("a", drop)]), None);
        let owner = r#"{"match": {"op": "==", "left": {"meta": {"key": "skuid"}}, "right": 33}}"#;
        let cgroup = r#"{"match": {"op": "==", "left": {"socket": {"key": "cgroupv2"}}, "right": "a"}}"#;
        let mark = r#"{"mangle": {"key": {"meta": {"key": "mark"}}, "value": 1}}"#;
        let rules = [
            rule("b", &format!("{port}, {{\"limit\": {{\"rate\": 1}}}}, {{\"counter\": {{}}}}")),
            rule("a", owner),
            rule("a", &format!("{cgroup}, {drop}")),
            rule("b", mark),
            rule("c", port),
        ];
        let said = of(&rules).expect("a line");
        assert!(said.contains("rules of inet a (skuid, socket), inet b (counter, limit, mark) do not"), "{said}");
        for other in ["{}", "[]", "{\"nftables\": [1, {\"rule\": 2}, {\"rule\": {\"expr\": [3, {}]}}]}"] {
            assert_eq!(line(&tables(&serde_json::from_str(other).expect("JSON"))), None);
        }
    }
}
