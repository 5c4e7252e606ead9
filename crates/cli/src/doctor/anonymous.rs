//! Addresses in a text, under other names.

use std::collections::HashMap;
use std::net::IpAddr;

/// Gives each address a name. The same address has the same name in all texts.
#[derive(Debug, Default)]
pub struct Names(HashMap<IpAddr, usize>);

impl Names {
    /// The text, with a name in place of each address but those that every host has.
    pub fn replace(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(is_part) {
            let (before, word) = rest.split_at(at);
            let end = word.find(|c| !is_part(c)).unwrap_or(word.len());
            let (word, after) = word.split_at(end);
            out += before;
            // Letters before or behind: a part of a name.
            let alone = !before.ends_with(is_of_name) && !after.starts_with(is_of_name);
            match self.named(word).filter(|_| alone) {
                Some(name) => out += &name,
                None => out += word,
            }
            rest = after;
        }
        out + rest
    }

    /// The same word, if an address begins it.
    fn named(&mut self, word: &str) -> Option<String> {
        let whole = word.trim_end_matches([':', '.']);
        let (address, port) = match whole.parse::<IpAddr>() {
            Ok(address) => (address, ""),
            // Of IPv6 an address with a port stands in brackets.
            Err(_) => {
                let (address, _) = whole.split_once(':')?;
                (address.parse().ok()?, &whole[address.len()..])
            }
        };
        let known = address.is_loopback() || address.is_unspecified();
        let number = self.0.len() + 1;
        (!known).then(|| {
            let number = *self.0.entry(address).or_insert(number);
            format!("address-{number}{port}{}", &word[whole.len()..])
        })
    }
}

/// May it be a part of an address?
fn is_part(c: char) -> bool {
    c.is_ascii_hexdigit() || c == ':' || c == '.'
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
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
    }

    #[test]
    fn what_is_no_address_stays() {
        for text in [
            "2026-11-29 23:01:46.123456 serving",
            "version 0.1.0, Linux 6.12.30, 127.0.0.1:80, 0.0.0.0:*, [::1]:9, [::]:80",
            "face.b00c deadbeef 00:11:22:33:44:55 crates::cli lib1.2.3.4.so",
            "",
            "::::: ....",
        ] {
            assert_eq!(Names::default().replace(text), text);
        }
    }
}
