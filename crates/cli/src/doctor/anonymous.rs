//! Addresses in a text, under other names.

use serde_json::{Deserializer, Value};
use std::collections::HashMap;
use std::net::IpAddr;

/// Characters of the longest address.
const LONGEST: usize = "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255".len();

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Address {
    Ip(IpAddr),
    Hardware([u8; 6]),
}

/// Gives each address a name. The same address has the same name in all texts.
#[derive(Debug, Default)]
pub struct Names(HashMap<Address, usize>);

impl Names {
    /// The text, with a name in place of each address but those that every host has. In doubt it is an address: one that is
    /// shown cannot be taken back.
    pub fn replace(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(is_part) {
            let (before, word) = rest.split_at(at);
            let end = word.find(|c| !is_part(c)).unwrap_or(word.len());
            let (word, after) = word.split_at(end);
            out += before;
            // Letters before or behind belong to a name, unless they stand for the end of a line.
            let escaped = ["\\n", "\\r", "\\t"].iter().any(|escape| before.ends_with(escape));
            let begins = escaped || !before.ends_with(char::is_alphabetic);
            self.word(word, begins, !after.starts_with(char::is_alphabetic), &mut out);
            rest = after;
        }
        out + rest
    }

    /// The same for a JSON document: its strings are looked at as they were before they were escaped.
    pub fn replace_in_json(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('"') {
            let (before, from) = rest.split_at(at);
            let mut strings = Deserializer::from_str(from).into_iter::<String>();
            let Some(Ok(string)) = strings.next() else { break };
            out += before;
            out += &Value::String(self.replace(&string)).to_string();
            rest = &from[strings.byte_offset()..];
        }
        out + &self.replace(rest)
    }

    /// Adds a word that has only characters of addresses. `begins`, `ends`: an address may begin and end where it does.
    fn word(&mut self, word: &str, begins: bool, ends: bool, out: &mut String) {
        let (mut start, mut copied) = (0, 0);
        loop {
            let found = if start > 0 || begins { longest(&word[start..], ends) } else { None };
            let end = found.map_or(start, |(length, _)| start + length);
            if let Some(name) = found.and_then(|(_, address)| self.name(address)) {
                *out += &word[copied..start];
                *out += &name;
                copied = end;
            }
            // `tcp:10.0.0.1`, `10.0.0.1..10.0.0.9`.
            let Some(next) = word[end..].find([':', '.']) else { break };
            start = end + next + 1;
        }
        *out += &word[copied..];
    }

    fn name(&mut self, address: Address) -> Option<String> {
        let known = match address {
            Address::Ip(address) => address.is_loopback() || address.is_unspecified(),
            Address::Hardware(bytes) => bytes == [0; 6] || bytes == [0xff; 6],
        };
        let number = self.0.len() + 1;
        (!known).then(|| format!("address-{}", self.0.entry(address).or_insert(number)))
    }
}

/// The longest address that begins a word, and its length. A port, or what is no part of it, stands behind `:` or `.`.
fn longest(word: &str, ends: bool) -> Option<(usize, Address)> {
    let may_end = |end: usize| word.as_bytes().get(end).map_or(ends, |next| matches!(next, b':' | b'.'));
    let mut lengths = (2..=word.len().min(LONGEST)).rev().filter(|end| may_end(*end));
    lengths.find_map(|length| Some((length, parse(&word[..length])?)))
}

fn parse(text: &str) -> Option<Address> {
    // An address of IPv4 is the same when it is written as one of IPv6.
    let ip = text.parse::<IpAddr>().ok().map(|address| Address::Ip(address.to_canonical()));
    ip.or_else(|| hardware(text).map(Address::Hardware))
}

/// Six bytes, as Linux writes them.
fn hardware(text: &str) -> Option<[u8; 6]> {
    let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2));
    bytes.collect::<Option<Vec<_>>>()?.try_into().ok()
}

/// May it be a part of an address?
fn is_part(c: char) -> bool {
    c.is_ascii_hexdigit() || c == ':' || c == '.'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_name_wherever_it_stands() {
        let mut names = Names::default();
        let text = "10.1.2.3:7000 - [fd77::2]:80, \"peer\":\"10.1.2.3:1\" via 10.1.2.3.";
        let expected = "address-1:7000 - [address-2]:80, \"peer\":\"address-1:1\" via address-1.";
        assert_eq!(names.replace(text), expected);
        assert_eq!(names.replace("dst 10.0.0.0/8 fd77::2"), "dst address-3/8 address-2");
        for (text, expected) in [
            // The same, written otherwise.
            ("FD77:0::2 ::ffff:10.1.2.3 ::ffff:a01:203", "address-2 address-1 address-1"),
            ("[::ffff:10.1.2.3]:80 fd77::2: reset, fd77::2. Then", "[address-1]:80 address-2: reset, address-2. Then"),
            ("to 2001:db8:1234::/48, 2001:db8:1234::.", "to address-4/48, address-4."),
            ("tcp:10.1.2.3:7000 rdma:10.1.2.3:7000", "tcp:address-1:7000 rdma:address-1:7000"),
            ("tcp:[fd77::2]:7000 rdma:fd77::2 face:10.1.2.3", "tcp:[address-2]:7000 rdma:address-2 face:address-1"),
            ("10.1.2.3-10.0.0.0 10.1.2.3..10.0.0.0", "address-1-address-3 address-1..address-3"),
            ("10.1.2.3:7000:10.0.0.0:80", "address-1:7000:address-3:80"),
            ("IP 10.1.2.3.7000 > 3.2.1.10.in-addr.arpa", "IP address-1.7000 > address-5.in-addr.arpa"),
            ("fe80::1%eth0 [fe80::1%eth0]:80 2001:db8:1234::", "address-6%eth0 [address-6%eth0]:80 address-4"),
            ("link 52:54:00:12:34:56, brd ff:ff:ff:ff:ff:ff", "link address-7, brd ff:ff:ff:ff:ff:ff"),
            ("52:54:00:12:34:56: peer_10.1.2.3=10.1.2.3", "address-7: peer_address-1=address-1"),
            ("said \"a\\n10.1.2.3\\tfd77::2\\r\"", "said \"a\\naddress-1\\taddress-2\\r\""),
            ("(10.1.2.3) <10.1.2.3> 'fd77::2', x@10.1.2.3", "(address-1) <address-1> 'address-2', x@address-1"),
        ] {
            assert_eq!(names.replace(text), expected);
        }
    }

    #[test]
    fn strings_of_json_are_looked_at_as_they_were_before_they_were_escaped() {
        let told = "a\n10.1.2.3 \"b\"\u{c}fd77::2\u{1b}[1;31m\té\\n10.1.2.3";
        let text = serde_json::json!({ "10.1.2.3": [1.5, told, ""], "n": null }).to_string() + "\n";
        let told = "a\naddress-1 \"b\"\u{c}address-2\u{1b}[1;31m\té\\naddress-1";
        let expected = serde_json::json!({ "address-1": [1.5, told, ""], "n": null }).to_string() + "\n";
        assert_eq!(Names::default().replace_in_json(&text), expected);
        assert_eq!(Names::default().replace_in_json("{\"a\":\"10.1.2.3"), "{\"a\":\"address-1", "a part of a document");
    }

    #[test]
    fn what_is_no_address_stays() {
        for text in [
            "2026-11-29 23:01:46.123456 serving",
            "version 0.1.0, Linux 6.12.30, 127.0.0.1:80, 0.0.0.0:*, [::1]:9, [::]:80, tcp:127.0.0.1:1, ::ffff:127.0.0.1",
            "face.b00c deadbeef 00:00:00:00:00:00 crates::cli crates::cafe towpath_posix::fd::close lib1.2.3.4.so",
            "00:11:22:33:44 0:1 ff:ff 1.2.3",
            "",
            "::::: ....",
        ] {
            assert_eq!(Names::default().replace(text), text);
        }
    }
}
