//! Parses rules, limits and questions. This file holds their whole grammar; blocks of addresses are in [`super::cidr`]
//! and rates in [`super::limit`].

use super::identity::Identity;
use super::join::JoinRule;
use super::limit::{LimitRule, parse_rate};
use super::list::{DefaultAction, Entry};
use super::process_filter::{Account, ProcessFilter};
use super::query::{Attempt, JoinQuery, Query, Question};
use super::rule::{Action, Denial, ERRNOS, Rule};
use crate::config::stack_kind::stack_name;
use nix::unistd::{Group, User};
use serde::de::{self, Deserialize, Deserializer};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use towpath_tcp::slow::congestion::Algorithm;

/// Longest line, bytes.
const MAX_LINE: usize = 1024;

/// The words that are left.
struct Words<'a> {
    left: std::str::SplitWhitespace<'a>,
}

impl<'a> Words<'a> {
    fn value(&mut self, of: &str) -> Result<&'a str, String> {
        self.left.next().ok_or_else(|| format!("{of:?} needs a value behind it"))
    }
    fn number<T: FromStr + PartialEq + Default>(&mut self, of: &str) -> Result<T, String> {
        let text = self.value(of)?;
        let number = text.parse().ok().filter(|number| *number != T::default());
        number.ok_or_else(|| format!("{of}: {text:?} is no number that fits; it must be at least 1"))
    }
}

/// Sets a value that may be given once.
fn once<T>(place: &mut Option<T>, of: &str, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{of:?} is there twice")),
    }
}

/// Parses a condition on the process. False if the keyword is none.
fn process(keyword: &str, words: &mut Words<'_>, filter: &mut ProcessFilter) -> Result<bool, String> {
    match keyword {
        "user" => once(&mut filter.user, keyword, user(words.value(keyword)?)?)?,
        "group" => once(&mut filter.group, keyword, group(words.value(keyword)?)?)?,
        "program" => {
            let program = words.value(keyword)?;
            if program.contains('/') && !program.starts_with('/') {
                return Err(format!("program {program:?} is neither a whole path nor a name"));
            }
            once(&mut filter.program, keyword, program.to_owned())?;
        }
        "cgroup" => {
            let cgroup = words.value(keyword)?;
            if !cgroup.starts_with('/') {
                return Err(format!("cgroup {cgroup:?} does not begin with \"/\"; see /proc/PID/cgroup"));
            }
            once(&mut filter.cgroup, keyword, cgroup.to_owned())?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn user(text: &str) -> Result<Account, String> {
    let known = || User::from_name(text).ok().flatten().map(|user| user.uid.as_raw());
    let number = text.parse().ok().or_else(known);
    let number = number.ok_or_else(|| format!("there is no user {text:?} on this machine (see `getent passwd`)"))?;
    Ok(Account { text: text.into(), number })
}

fn group(text: &str) -> Result<Account, String> {
    let known = || Group::from_name(text).ok().flatten().map(|group| group.gid.as_raw());
    let number = text.parse().ok().or_else(known);
    let number = number.ok_or_else(|| format!("there is no group {text:?} on this machine (see `getent group`)"))?;
    Ok(Account { text: text.into(), number })
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse::<u16>(), last.parse::<u16>()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err(format!("port {text:?} is neither a port nor a range like \"8000-8099\"")),
    }
}

fn denial(text: &str) -> Result<Denial, String> {
    match text {
        "drop" => Ok(Denial::Drop),
        "reset" => Ok(Denial::Reset),
        _ => ERRNOS.iter().find(|(name, _)| *name == text).map(|(_, errno)| Denial::Errno(*errno)).ok_or_else(|| {
            format!("with {text:?}: write EACCES, EPERM or ECONNREFUSED, for an accept \"drop\" or \"reset\"")
        }),
    }
}

fn attempt(text: &str) -> Result<Option<Attempt>, String> {
    let known = [Attempt::Connect, Attempt::Listen, Attempt::Accept].into_iter().find(|known| known.name() == text);
    match (known, text) {
        (Some(known), _) => Ok(Some(known)),
        (None, "all") => Ok(None),
        _ => Err(format!("{text:?} is nothing that can be attempted; write connect, listen, accept or all")),
    }
}

fn rule(action: Action, words: &mut Words<'_>) -> Result<Rule, String> {
    let stack = match action {
        Action::Stack => Some(stack_name(words.value(action.name())?)?),
        _ => None,
    };
    let attempt = attempt(words.value(stack.as_deref().unwrap_or(action.name()))?)?;
    let mut rule = Rule {
        action,
        stack,
        attempt,
        processes: ProcessFilter::default(),
        remote: None,
        local: None,
        ports: None,
        denial: None,
        congestion: None,
        only_accelerated: false,
    };
    while let Some(keyword) = words.left.next() {
        match (keyword, attempt) {
            ("to", Some(Attempt::Connect)) | ("from", Some(Attempt::Accept)) => {
                once(&mut rule.remote, keyword, words.value(keyword)?.parse()?)?;
            }
            ("on", Some(Attempt::Listen | Attempt::Accept)) => {
                once(&mut rule.local, keyword, words.value(keyword)?.parse()?)?;
            }
            ("to" | "from" | "on", _) => {
                return Err(format!(
                    "{keyword:?} is out of place: \"to\" is for connect, \"from\" for accept, \"on\" for both listen and accept"
                ));
            }
            ("port", _) => once(&mut rule.ports, keyword, ports(words.value(keyword)?)?)?,
            ("with", _) => once(&mut rule.denial, keyword, denial(words.value(keyword)?)?)?,
            ("congestion", _) => {
                let name = words.value(keyword)?;
                let algorithm = Algorithm::parse(name).ok_or_else(|| {
                    let names: Vec<String> = Algorithm::NAMED.iter().map(ToString::to_string).collect();
                    format!("there is no congestion control {name:?}; there are {}", names.join(", "))
                })?;
                once(&mut rule.congestion, keyword, algorithm)?;
            }
            ("only", _) => match words.value(keyword)? {
                _ if rule.only_accelerated => return Err("\"only\" is there twice".into()),
                "accelerated" => rule.only_accelerated = true,
                other => return Err(format!("only {other:?}: write \"only accelerated\"")),
            },
            _ if process(keyword, words, &mut rule.processes)? => {}
            _ => return Err(unknown(keyword)),
        }
    }
    check(rule)
}

/// Refuses combinations that have no meaning.
fn check(rule: Rule) -> Result<Rule, String> {
    if rule.denial.is_some() && rule.action != Action::Deny {
        return Err("\"with\" is for deny".into());
    }
    let fits = match rule.denial {
        None => true,
        Some(Denial::Errno(_)) => rule.attempt != Some(Attempt::Accept) && rule.attempt.is_some(),
        Some(Denial::Drop | Denial::Reset) => rule.attempt == Some(Attempt::Accept),
    };
    if !fits {
        return Err("\"with\" takes an errno for connect and listen, \"drop\" or \"reset\" for accept".into());
    }
    if rule.congestion.is_some()
        && (rule.action != Action::Allow || !matches!(rule.attempt, Some(Attempt::Connect | Attempt::Accept)))
    {
        return Err("\"congestion\" is for allow connect and allow accept".into());
    }
    if rule.only_accelerated && (rule.action, rule.attempt) != (Action::Allow, Some(Attempt::Listen)) {
        return Err("\"only accelerated\" is for allow listen".into());
    }
    if rule.action == Action::Kernel && rule.attempt == Some(Attempt::Accept) {
        return Err("a peer's SYN for a listener of ours cannot be left to the kernel; write \"deny accept\"".into());
    }
    if rule.action == Action::Stack && rule.attempt == Some(Attempt::Accept) {
        return Err("peers come to a listener where it is; write \"stack NAME listen\"".into());
    }
    Ok(rule)
}

/// `from NAME to NAME`, behind `join`.
fn two_stacks(words: &mut Words<'_>) -> Result<(String, String), String> {
    let form = || "write \"join from NAME to NAME\", both of them stacks of the configuration".to_owned();
    let mut name = |keyword: &str| match words.left.next() {
        Some(word) if word == keyword => stack_name(words.value(keyword)?),
        _ => Err(form()),
    };
    let (from, to) = (name("from")?, name("to")?);
    if from == to {
        return Err(format!("{from:?} is one namespace; connections within it need no rule"));
    }
    Ok((from, to))
}

/// What is behind `join`.
fn join(words: &mut Words<'_>) -> Result<JoinRule, String> {
    let (from, to) = two_stacks(words)?;
    let (mut processes, mut local, mut range) = (ProcessFilter::default(), None, None);
    while let Some(keyword) = words.left.next() {
        match keyword {
            "on" => once(&mut local, keyword, words.value(keyword)?.parse()?)?,
            "port" => once(&mut range, keyword, ports(words.value(keyword)?)?)?,
            _ if process(keyword, words, &mut processes)? => {}
            _ => {
                return Err(format!("{keyword:?} is no keyword here; join has user, group, program, cgroup, on, port"));
            }
        }
    }
    let local = local.ok_or("write \"on\" and the listener's addresses, such as \"on 10.0.0.2\"")?;
    Ok(JoinRule { from, to, processes, local, ports: range })
}

fn limit(words: &mut Words<'_>) -> Result<LimitRule, String> {
    let mut limit = LimitRule::default();
    while let Some(keyword) = words.left.next() {
        match keyword {
            "rate" => once(&mut limit.rate, keyword, parse_rate(words.value(keyword)?)?)?,
            "weight" => once(&mut limit.weight, keyword, words.number(keyword)?)?,
            "connections" => once(&mut limit.connections, keyword, words.number(keyword)?)?,
            "new" => once(&mut limit.new_per_s, keyword, words.number(keyword)?)?,
            _ if process(keyword, words, &mut limit.processes)? => {}
            _ => return Err(unknown(keyword)),
        }
    }
    if limit.weight.is_some_and(|weight| weight > 1000) {
        return Err("weight: at most 1000".into());
    }
    let LimitRule { rate, weight, connections, new_per_s, .. } = &limit;
    if rate.is_none() && weight.is_none() && connections.is_none() && new_per_s.is_none() {
        return Err("a limit needs at least one of rate, weight, connections, new".into());
    }
    Ok(limit)
}

fn unknown(keyword: &str) -> String {
    format!(
        "{keyword:?} is no keyword; rules have user, group, program, cgroup, to, from, on, port, with, congestion, only, and \
         limits \
         user, group, program, cgroup, rate, weight, connections, new"
    )
}

impl FromStr for Entry {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > MAX_LINE {
            return Err(format!("a rule has at most {MAX_LINE} bytes"));
        }
        let mut words = Words { left: text.split_whitespace() };
        match words.left.next() {
            Some("allow") => rule(Action::Allow, &mut words).map(Entry::Rule),
            Some("deny") => rule(Action::Deny, &mut words).map(Entry::Rule),
            Some("kernel") => rule(Action::Kernel, &mut words).map(Entry::Rule),
            Some("stack") => rule(Action::Stack, &mut words).map(Entry::Rule),
            Some("limit") => limit(&mut words).map(Entry::Limit),
            Some("join") => join(&mut words).map(Entry::Join),
            Some(other) => Err(format!("{other:?} begins no rule; write allow, deny, kernel, stack, join or limit")),
            None => Err("an empty rule; write allow, deny, kernel, stack, join or limit".into()),
        }
    }
}

impl FromStr for ProcessFilter {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > MAX_LINE {
            return Err(format!("a selector has at most {MAX_LINE} bytes"));
        }
        let (mut words, mut filter) = (Words { left: text.split_whitespace() }, Self::default());
        while let Some(keyword) = words.left.next() {
            if !process(keyword, &mut words, &mut filter)? {
                return Err(format!("{keyword:?} is no keyword here; a selector has user, group, program, cgroup"));
            }
        }
        if filter == Self::default() {
            return Err("an empty selector; write user, group, program or cgroup, and a value behind it".into());
        }
        Ok(filter)
    }
}

impl FromStr for DefaultAction {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "allow" => Ok(Self::Allow),
            "deny" => Ok(Self::Deny),
            "kernel" => Ok(Self::Kernel),
            other => Err(format!("default {other:?}: write allow, deny or kernel")),
        }
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for DefaultAction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Parses a question: `connect user alice program /usr/bin/curl to 10.1.2.3 port 25`, or `join from blue to red on 10.1.0.2
/// port 80`. `pid N` stands for the identity of that process.
pub fn question(text: &str) -> Result<(Identity, Question), String> {
    let mut words = Words { left: text.split_whitespace() };
    match words.value("test")? {
        "join" => {
            let (from, to) = two_stacks(&mut words)?;
            let details = details(&mut words, &["on"])?;
            let local = details.local.ok_or("a join goes to a listener \"on\" an address")?;
            let listener = SocketAddr::new(local.to_canonical(), details.port.ok_or("which \"port\"?")?);
            Ok((details.identity, Question::Join(JoinQuery { from, to, listener })))
        }
        other => {
            let attempt = attempt(other)
                .map_err(|_| format!("{other:?} is no question; write connect, listen, accept or join"))?
                .ok_or("write connect, listen, accept or join")?;
            let details = details(&mut words, &["to", "from", "on"])?;
            let (identity, query) = about_attempt(attempt, details)?;
            Ok((identity, Question::Attempt(query)))
        }
    }
}

/// What is said behind the kind of a question.
struct Details {
    identity: Identity,
    remote: Option<IpAddr>,
    local: Option<IpAddr>,
    port: Option<u16>,
}

/// Parses the rest of a question. `addresses`: the keywords of the addresses that it has.
fn details(words: &mut Words<'_>, addresses: &[&str]) -> Result<Details, String> {
    let (mut said, mut pid) = (ProcessFilter::default(), None);
    let (mut remote, mut local, mut port) = (None::<IpAddr>, None::<IpAddr>, None);
    while let Some(keyword) = words.left.next() {
        let address = |text: &str| text.parse::<IpAddr>().map_err(|_| format!("{text:?} is no address"));
        match keyword {
            "to" | "from" if addresses.contains(&keyword) => {
                once(&mut remote, keyword, address(words.value(keyword)?)?)?;
            }
            "on" => once(&mut local, keyword, address(words.value(keyword)?)?)?,
            "port" => once(&mut port, keyword, words.number(keyword)?)?,
            "pid" => once(&mut pid, keyword, words.number::<u32>(keyword)?)?,
            _ if process(keyword, words, &mut said)? => {}
            _ => {
                return Err(format!(
                    "{keyword:?} is no keyword here; questions have pid, user, group, program, cgroup, {}, port",
                    addresses.join(", ")
                ));
            }
        }
    }
    let identity = match pid {
        None => said_to_be(&said),
        Some(pid) => {
            super::identity::Identity::running(pid as i32).ok_or_else(|| format!("there is no process {pid}"))?
        }
    };
    Ok(Details { identity, remote, local, port })
}

fn about_attempt(attempt: Attempt, details: Details) -> Result<(Identity, Query), String> {
    let Details { identity, mut remote, mut local, port } = details;
    match attempt {
        Attempt::Connect => remote = Some(remote.ok_or("a connect goes \"to\" an address")?),
        Attempt::Accept => {
            remote = Some(remote.ok_or("an accept comes \"from\" an address")?);
            local.get_or_insert(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
        }
        Attempt::Listen => local = Some(local.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED))),
    }
    let port = port.ok_or("which \"port\"?")?;
    let dual = attempt == Attempt::Listen && local.is_some_and(|local| local.is_ipv6() && local.is_unspecified());
    Ok((identity, Query { attempt, remote, local, port, dual }))
}

/// A process of which only the given conditions are known.
fn said_to_be(said: &ProcessFilter) -> Identity {
    let group = said.group.as_ref().map(|group| group.number);
    let own = said.user.as_ref().map(|user| {
        let known = User::from_uid(nix::unistd::Uid::from_raw(user.number)).ok().flatten();
        (user.number, known.map(|user| user.gid.as_raw()))
    });
    Identity {
        uid: own.map_or(u32::MAX, |(uid, _)| uid),
        groups: group.into_iter().chain(own.and_then(|(_, gid)| gid)).collect(),
        // An empty text would be a process that hides them.
        program: said.program.clone().unwrap_or_else(|| "?".into()),
        cgroup: said.cgroup.clone().unwrap_or_else(|| "?".into()),
        pid: 0,
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
