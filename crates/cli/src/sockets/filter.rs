//! Which sockets to list, in the words of `ss`: `state established '( sport = :6379 or dst 10.0.0.0/8 )'`.

use std::net::{IpAddr, SocketAddr};
use towpath_service::api::SocketStatus;

/// Most parentheses and `not`s in each other.
const DEEPEST: usize = 64;

/// A filter.
#[derive(Debug, Default, PartialEq)]
pub struct Filter {
    /// The states that are wanted. `None`: the filter does not say.
    states: Option<Vec<&'static str>>,
    condition: Option<Condition>,
}

#[derive(Debug, PartialEq)]
enum Condition {
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
    Address(Side, Address),
    Port(Side, Comparison, u16),
    Program(String),
    User(u32),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Local,
    Peer,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A block of addresses, and a port.
#[derive(Debug, PartialEq)]
struct Address {
    block: Option<(IpAddr, u8)>,
    port: Option<u16>,
}

/// States by the words of `ss` for them, and by those that it shows.
const STATES: [(&str, &[&str]); 11] = [
    ("ESTAB", &["established"]),
    ("SYN-SENT", &["syn-sent"]),
    ("SYN-RECV", &["syn-recv", "syn-rcv"]),
    ("FIN-WAIT-1", &["fin-wait-1"]),
    ("FIN-WAIT-2", &["fin-wait-2"]),
    ("TIME-WAIT", &["time-wait"]),
    ("UNCONN", &["closed", "close", "unconnected"]),
    ("CLOSE-WAIT", &["close-wait"]),
    ("LAST-ACK", &["last-ack"]),
    ("LISTEN", &["listening"]),
    ("CLOSING", &["closing"]),
];

impl Filter {
    /// From the words of the command line.
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let tokens = tokens(words);
        let mut parser = Parser { tokens: &tokens, depth: 0 };
        let mut filter = Self::default();
        loop {
            let wanted = match parser.tokens.first().map(String::as_str) {
                Some("state") => true,
                Some("exclude" | "excl") => false,
                _ => break,
            };
            parser.next();
            let word = parser.next().ok_or("a state is missing; write e.g. `state established`")?;
            let named = states(word)?;
            let before = filter.states.take();
            filter.states = Some(if wanted {
                before.into_iter().flatten().chain(named).collect()
            } else {
                let all = before.unwrap_or_else(|| STATES.map(|(shown, _)| shown).to_vec());
                all.into_iter().filter(|state| !named.contains(state)).collect()
            });
        }
        if !parser.tokens.is_empty() {
            filter.condition = Some(parser.any()?);
            if let Some(word) = parser.tokens.first() {
                return Err(format!("{word:?} is one word too much"));
            }
        }
        Ok(filter)
    }

    /// Is a socket in this state wanted? `None`: the filter does not say.
    pub fn wants_state(&self, state: &str) -> Option<bool> {
        self.states.as_ref().map(|states| states.contains(&state))
    }

    /// Whether the rest of the filter matches.
    pub fn matches(&self, socket: &SocketStatus) -> bool {
        self.condition.as_ref().is_none_or(|condition| condition.matches(socket))
    }
}

/// Words, and each parenthesis and operator alone.
fn tokens(words: &[String]) -> Vec<String> {
    let mut tokens = Vec::new();
    for word in words.iter().flat_map(|word| word.split_whitespace()) {
        let mut rest = word;
        while !rest.is_empty() {
            let double = ["==", "!=", ">=", "<=", "&&", "||"].iter().find(|sign| rest.starts_with(**sign));
            let length = match double {
                Some(sign) => sign.len(),
                None if rest.starts_with(['(', ')', '=', '>', '<', '!', '&', '|']) => 1,
                None => rest.find(['(', ')', '=', '>', '<', '!', '&', '|']).unwrap_or(rest.len()),
            };
            tokens.push(rest[..length].to_owned());
            rest = &rest[length..];
        }
    }
    tokens
}

fn states(word: &str) -> Result<Vec<&'static str>, String> {
    let all = STATES.map(|(shown, _)| shown);
    let but = |not: &[&str]| all.into_iter().filter(|state| !not.contains(state)).collect();
    Ok(match word.to_ascii_lowercase().as_str() {
        "all" => all.to_vec(),
        "connected" => but(&["LISTEN", "UNCONN"]),
        "synchronized" => but(&["LISTEN", "UNCONN", "SYN-SENT"]),
        "bucket" => vec!["SYN-RECV", "TIME-WAIT"],
        "big" => but(&["SYN-RECV", "TIME-WAIT"]),
        _ => {
            let known = |(shown, words): &&(&'static str, &[&str])| {
                shown.eq_ignore_ascii_case(word) || words.contains(&word.to_ascii_lowercase().as_str())
            };
            let found = STATES.iter().find(known).map(|(shown, _)| *shown);
            let names = || STATES.iter().map(|(_, words)| words[0]).collect::<Vec<_>>().join(", ");
            vec![found.ok_or_else(|| {
                format!("there is no state {word:?}; write {}, or all, connected, synchronized, bucket, big", names())
            })?]
        }
    })
}

struct Parser<'a> {
    tokens: &'a [String],
    depth: usize,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first)
    }
    fn take(&mut self, of: &[&str]) -> bool {
        let found = self.tokens.first().is_some_and(|word| of.contains(&word.as_str()));
        if found {
            self.next();
        }
        found
    }

    /// Conditions from left to right. As in `ss`, `and` does not bind closer than `or`.
    fn any(&mut self) -> Result<Condition, String> {
        let mut found = self.one()?;
        loop {
            if self.take(&["or", "|", "||"]) {
                found = Condition::Any(vec![found, self.one()?]);
            // Two conditions beside each other must both hold.
            } else if self.take(&["and", "&", "&&"]) || self.tokens.first().is_some_and(|word| word != ")") {
                found = Condition::All(vec![found, self.one()?]);
            } else {
                return Ok(found);
            }
        }
    }

    fn one(&mut self) -> Result<Condition, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("the filter is too deep".into());
        }
        let found = match self.next().ok_or("the filter ends too early")? {
            "(" => {
                let inside = self.any()?;
                if !self.take(&[")"]) {
                    return Err("a `)` is missing".into());
                }
                inside
            }
            "not" | "!" => Condition::Not(Box::new(self.one()?)),
            "src" => self.address(Side::Local)?,
            "dst" => self.address(Side::Peer)?,
            "sport" => self.port(Side::Local)?,
            "dport" => self.port(Side::Peer)?,
            "program" => Condition::Program(self.value("program", "a name")?.to_owned()),
            "uid" => {
                let word = self.value("uid", "a number")?;
                Condition::User(word.parse().map_err(|_| format!("uid: {word:?} is no number"))?)
            }
            word => {
                return Err(format!(
                    "{word:?} is no condition; write src, dst (an address), sport, dport (a port), program or uid, or `state` before all of them"
                ));
            }
        };
        self.depth -= 1;
        Ok(found)
    }

    /// The word after an optional `=`.
    fn value(&mut self, name: &str, what: &str) -> Result<&'a str, String> {
        self.take(&["=", "==", "eq"]);
        self.next().ok_or_else(|| format!("{name}: {what} is missing"))
    }

    fn address(&mut self, side: Side) -> Result<Condition, String> {
        let name = if side == Side::Local { "src" } else { "dst" };
        let differs = self.take(&["!=", "ne", "neq"]);
        let address = Address::parse(self.value(name, "an address")?)?;
        let found = Condition::Address(side, address);
        Ok(if differs { Condition::Not(Box::new(found)) } else { found })
    }

    fn port(&mut self, side: Side) -> Result<Condition, String> {
        let name = if side == Side::Local { "sport" } else { "dport" };
        const COMPARISONS: [(&[&str], Comparison); 5] = [
            (&["!=", "ne", "neq"], Comparison::NotEqual),
            (&["<", "lt"], Comparison::Less),
            (&["<=", "le", "leq"], Comparison::LessOrEqual),
            (&[">", "gt"], Comparison::Greater),
            (&[">=", "ge", "geq"], Comparison::GreaterOrEqual),
        ];
        let found = COMPARISONS.iter().find(|(words, _)| self.take(words));
        let comparison = found.map_or(Comparison::Equal, |(_, comparison)| *comparison);
        let word = self.value(name, "a port")?;
        Ok(Condition::Port(side, comparison, port(word.strip_prefix(':').unwrap_or(word))?))
    }
}

/// A port by its number, or by its name in /etc/services.
fn port(word: &str) -> Result<u16, String> {
    if let Ok(number) = word.parse() {
        return Ok(number);
    }
    let services = std::fs::read_to_string("/etc/services").unwrap_or_default();
    let found = services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (name, port) = (words.next()?, words.next()?.strip_suffix("/tcp")?);
        (name == word || words.any(|alias| alias == word)).then(|| port.parse().ok())?
    });
    found.ok_or_else(|| format!("{word:?} is no port, and no name of one in /etc/services"))
}

impl Address {
    fn parse(word: &str) -> Result<Self, String> {
        let word = word.strip_prefix("inet:").or(word.strip_prefix("inet6:")).unwrap_or(word);
        let wrong = || format!("{word:?} is no address; write 10.0.0.1, 10.0.0.0/8, [::1]:80 or :80");
        let (host, port_word) = match word.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or_else(wrong)?;
                // The length of a block stands inside or behind.
                let (length, port) = after.split_once(':').map_or((after, None), |(length, port)| (length, Some(port)));
                (format!("{host}{length}"), port)
            }
            // A colon alone is before the port; several are an address.
            None => match word.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') => (host.to_owned(), Some(port)),
                _ => (word.to_owned(), None),
            },
        };
        let block = match host.as_str() {
            "" | "*" => None,
            host => {
                let (address, length) = host.split_once('/').map_or((host, None), |(a, l)| (a, Some(l)));
                let address: IpAddr = address.parse().map_err(|_| wrong())?;
                let whole = if address.is_ipv4() { 32 } else { 128 };
                let length = length.map_or(Ok(whole), str::parse).map_err(|_| wrong())?;
                if length > whole {
                    return Err(wrong());
                }
                Some((address, length))
            }
        };
        let port = port_word.filter(|word| *word != "*").map(port).transpose()?;
        Ok(Self { block, port })
    }

    fn has(&self, of: SocketAddr) -> bool {
        let inside = |(block, length): (IpAddr, u8)| match (block, of.ip().to_canonical()) {
            (IpAddr::V4(block), IpAddr::V4(ip)) => {
                (block.to_bits() ^ ip.to_bits()).checked_shr(32 - u32::from(length)).unwrap_or(0) == 0
            }
            (IpAddr::V6(block), IpAddr::V6(ip)) => {
                (block.to_bits() ^ ip.to_bits()).checked_shr(128 - u32::from(length)).unwrap_or(0) == 0
            }
            _ => false,
        };
        self.block.is_none_or(inside) && self.port.is_none_or(|port| port == of.port())
    }
}

impl Condition {
    fn matches(&self, socket: &SocketStatus) -> bool {
        let end = |side: &Side| if *side == Side::Local { socket.local } else { socket.peer };
        match self {
            Self::All(all) => all.iter().all(|one| one.matches(socket)),
            Self::Any(any) => any.iter().any(|one| one.matches(socket)),
            Self::Not(one) => !one.matches(socket),
            Self::Address(side, address) => address.has(end(side)),
            Self::Port(side, comparison, port) => {
                let of = end(side).port();
                match comparison {
                    Comparison::Equal => of == *port,
                    Comparison::NotEqual => of != *port,
                    Comparison::Less => of < *port,
                    Comparison::LessOrEqual => of <= *port,
                    Comparison::Greater => of > *port,
                    Comparison::GreaterOrEqual => of >= *port,
                }
            }
            Self::Program(name) => socket.program == *name,
            Self::User(uid) => socket.uid == *uid,
        }
    }
}

#[cfg(test)]
mod tests;
