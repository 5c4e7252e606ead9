//! One rule: who may do what.

use super::cidr::Cidr;
use super::query::Query;
use super::who::Who;
use std::fmt;
use std::ops::RangeInclusive;
use towpath_stack::Verdict;
use towpath_tcp::slow::congestion::Algorithm;

/// What is attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// An application connects.
    Connect,
    /// An application listens.
    Listen,
    /// A peer's SYN for a listener.
    Accept,
}

impl Attempt {
    /// As written in rules.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Listen => "listen",
            Self::Accept => "accept",
        }
    }
}

/// What a rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is carried.
    Allow,
    /// It fails.
    Deny,
    /// It is left to the kernel.
    Kernel,
    /// It is for another stack ([`Rule::stack`]).
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
pub enum How {
    /// The command fails with this errno.
    Errno(i32),
    /// The SYN is not answered.
    Drop,
    /// The SYN is answered with RST.
    Reset,
}

/// The errnos that a rule can name.
pub const ERRNOS: [(&str, i32); 3] =
    [("EACCES", libc::EACCES), ("EPERM", libc::EPERM), ("ECONNREFUSED", libc::ECONNREFUSED)];

impl How {
    /// As written in rules.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Reset => "reset",
            Self::Errno(errno) => ERRNOS.iter().find(|(_, value)| *value == errno).map_or("?", |(name, _)| name),
        }
    }
    /// Where a rule says nothing: what connect(2) says of a local firewall rule, what bind(2) says of a protected address, and
    /// silence for peers.
    pub fn usual(attempt: Attempt) -> Self {
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
    /// What it decides.
    pub action: Action,
    /// The name of the stack that it is for; only with [`Action::Stack`].
    pub stack: Option<String>,
    /// About what; `None` = everything.
    pub attempt: Option<Attempt>,
    /// About whom.
    pub who: Who,
    /// Peers (`to` of a connect, `from` of an accept).
    pub remote: Option<Cidr>,
    /// Own addresses (`on` of a listen or accept).
    pub local: Option<Cidr>,
    /// The peer's port of a connect, else the listener's.
    pub ports: Option<RangeInclusive<u16>>,
    /// How a denied attempt fails, if not as usual.
    pub how: Option<How>,
    /// The congestion control of what it allows.
    pub congestion: Option<Algorithm>,
}

impl Rule {
    /// Does it decide about this attempt, but for whose it is?
    pub fn covers(&self, query: &Query) -> bool {
        self.attempt.is_none_or(|attempt| attempt == query.attempt)
            && (self.action != Action::Stack || self.may_lead_away(query))
            && self.ports.as_ref().is_none_or(|ports| ports.contains(&query.port))
            && self.remote.is_none_or(|block| query.remote.is_some_and(|remote| block.contains(remote)))
            && self.local.is_none_or(|block| self.covers_local(block, query))
    }

    /// Loopback addresses are this host's, whatever stacks there are, unless a rule names them; and peers come to a listener where
    /// it is.
    fn may_lead_away(&self, query: &Query) -> bool {
        let (address, block) = match query.attempt {
            Attempt::Connect => (query.remote, self.remote),
            Attempt::Listen => (query.local, self.local),
            Attempt::Accept => return false,
        };
        !address.is_some_and(|address| address.to_canonical().is_loopback()) || block.is_some_and(|b| b.is_loopback())
    }

    /// A listener on all addresses listens on those of the block too: it is denied with them, and allowed only with all of them.
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

    /// What it says to this attempt, if it decides. `stacks` are the names of the service's other stacks, in their order.
    pub fn verdict(&self, attempt: Attempt, stacks: &[String]) -> Verdict {
        match self.action {
            Action::Allow => Verdict::Allow(self.congestion.map_or(0, Algorithm::id)),
            Action::Kernel => Verdict::Kernel,
            Action::Deny => denial(attempt, self.how),
            Action::Stack => {
                let number = stacks.iter().position(|name| Some(name) == self.stack.as_ref());
                // There is none without a number: names are checked when a rule is taken into the list.
                number.map_or(denial(attempt, None), |number| Verdict::Stack(number as u8))
            }
        }
    }
}

/// What a denied attempt comes to.
pub fn denial(attempt: Attempt, how: Option<How>) -> Verdict {
    match how.unwrap_or(How::usual(attempt)) {
        How::Errno(errno) => Verdict::Refuse(errno),
        How::Reset => Verdict::Refuse(libc::ECONNREFUSED),
        How::Drop => Verdict::Drop,
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.action.name())?;
        if let Some(stack) = &self.stack {
            write!(f, " {stack}")?;
        }
        write!(f, " {}{}", self.attempt.map_or("all", Attempt::name), self.who)?;
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
        if let Some(how) = self.how {
            write!(f, " with {}", how.name())?;
        }
        match self.congestion {
            Some(algorithm) => write!(f, " congestion {algorithm}"),
            None => Ok(()),
        }
    }
}
