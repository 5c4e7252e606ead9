//! One rule: an action for certain attempts of certain processes.

use super::cidr::Cidr;
use super::process_filter::ProcessFilter;
use super::query::{Attempt, Query};
use std::fmt;
use std::ops::RangeInclusive;
use towpath_runtime::Verdict;
use towpath_tcp::slow::congestion::Algorithm;

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The stack carries the connection.
    Allow,
    /// The attempt fails.
    Deny,
    /// The socket is left to the kernel.
    Kernel,
    /// The socket goes to another stack ([`Rule::stack`]).
    Stack,
}

impl Action {
    /// As written in rules.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Kernel => "kernel",
            Self::Stack => "stack",
        }
    }
}

/// How a denied attempt fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The application's call fails with this errno.
    Errno(i32),
    /// The SYN is not answered.
    Drop,
    /// The SYN is answered with RST.
    Reset,
}

/// The errnos that a rule can name.
pub const ERRNOS: [(&str, i32); 3] =
    [("EACCES", libc::EACCES), ("EPERM", libc::EPERM), ("ECONNREFUSED", libc::ECONNREFUSED)];

impl Denial {
    /// As written in rules.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Reset => "reset",
            Self::Errno(errno) => ERRNOS.iter().find(|(_, value)| *value == errno).map_or("?", |(name, _)| name),
        }
    }
    /// The denial of a rule that names none. It is the errno of connect(2) for a local firewall rule, that of bind(2)
    /// for a protected address, and silence for peers.
    pub fn default_of(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Connect => Self::Errno(libc::EPERM),
            Attempt::Listen => Self::Errno(libc::EACCES),
            Attempt::Accept => Self::Drop,
        }
    }
}

/// A rule of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its action.
    pub action: Action,
    /// The name of the stack of [`Action::Stack`].
    pub stack: Option<String>,
    /// The attempts that it is about. `None`: all.
    pub attempt: Option<Attempt>,
    /// The processes that it is about.
    pub processes: ProcessFilter,
    /// Peers (`to` of a connect, `from` of an accept).
    pub remote: Option<Cidr>,
    /// The listener's addresses (`on` of a listen or accept).
    pub local: Option<Cidr>,
    /// The peer's port of a connect; otherwise the listener's.
    pub ports: Option<RangeInclusive<u16>>,
    /// How a denied attempt fails, if not by default.
    pub denial: Option<Denial>,
    /// The congestion control of the connections that it allows.
    pub congestion: Option<Algorithm>,
    /// The listeners that it allows have accelerated connections only. The kernel accepts none for them.
    pub only_accelerated: bool,
}

impl Rule {
    /// Does it match this attempt? The process is not checked here.
    pub fn covers(&self, query: &Query) -> bool {
        self.attempt.is_none_or(|attempt| attempt == query.attempt)
            && (self.action != Action::Stack || self.may_lead_away(query))
            && self.ports.as_ref().is_none_or(|ports| ports.contains(&query.port))
            && self.remote.is_none_or(|block| query.remote.is_some_and(|remote| block.contains(remote)))
            && self.local.is_none_or(|block| self.covers_local(block, query))
    }

    /// May the rule give this attempt to another stack? Loopback addresses stay on this stack unless the rule names
    /// them. A peer's SYN stays with its listener.
    fn may_lead_away(&self, query: &Query) -> bool {
        let (address, block) = match query.attempt {
            Attempt::Connect => (query.remote, self.remote),
            Attempt::Listen => (query.local, self.local),
            Attempt::Accept => return false,
        };
        !address.is_some_and(|address| address.to_canonical().is_loopback()) || block.is_some_and(|b| b.is_loopback())
    }

    /// Does the rule's `on` match? A listener on all addresses is denied if any of its addresses is, and allowed only
    /// if all are.
    fn covers_local(&self, block: Cidr, query: &Query) -> bool {
        let Some(local) = query.local else { return false };
        if !local.is_unspecified() || query.attempt != Attempt::Listen {
            return block.contains(local);
        }
        let shares = block.is_ipv4() == local.is_ipv4() || query.dual && block.is_ipv4();
        match self.action {
            Action::Deny => shares,
            Action::Allow | Action::Kernel | Action::Stack => {
                block.is_everything() && block.is_ipv4() == local.is_ipv4() && !query.dual
            }
        }
    }

    /// Its verdict on an attempt that it matches. `stacks` are the names of the service's other stacks, by number.
    pub fn verdict(&self, attempt: Attempt, stacks: &[String]) -> Verdict {
        match self.action {
            Action::Allow => Verdict::Allow(self.congestion.map_or(0, Algorithm::id)),
            Action::Kernel => Verdict::Kernel,
            Action::Deny => denied(attempt, self.denial),
            Action::Stack => {
                let number = stacks.iter().position(|name| Some(name) == self.stack.as_ref());
                // Every name has a number: the list refuses rules with unknown names.
                number.map_or(denied(attempt, None), |number| Verdict::Stack(number as u8))
            }
        }
    }
}

/// The verdict on a denied attempt.
pub fn denied(attempt: Attempt, denial: Option<Denial>) -> Verdict {
    match denial.unwrap_or(Denial::default_of(attempt)) {
        Denial::Errno(errno) => Verdict::Refuse(errno),
        Denial::Reset => Verdict::Refuse(libc::ECONNREFUSED),
        Denial::Drop => Verdict::Drop,
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.action.name())?;
        if let Some(stack) = &self.stack {
            write!(f, " {stack}")?;
        }
        write!(f, " {}{}", self.attempt.map_or("all", Attempt::name), self.processes)?;
        if let Some(remote) = self.remote {
            write!(f, " {} {remote}", if self.attempt == Some(Attempt::Accept) { "from" } else { "to" })?;
        }
        if let Some(local) = self.local {
            write!(f, " on {local}")?;
        }
        if let Some(ports) = &self.ports {
            write!(f, " port {}", ports.start())?;
            if ports.start() != ports.end() {
                write!(f, "-{}", ports.end())?;
            }
        }
        if let Some(denial) = self.denial {
            write!(f, " with {}", denial.name())?;
        }
        if let Some(algorithm) = self.congestion {
            write!(f, " congestion {algorithm}")?;
        }
        f.write_str(if self.only_accelerated { " only accelerated" } else { "" })
    }
}
