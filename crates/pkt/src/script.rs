//! A script as it was read: a list of events.

use crate::notation::{Endpoint, Segment};

/// When an event is to happen, in µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At any time (`*`).
    Any,
    /// At a moment or in a range, counted from the script's start or (`+`) from the event before.
    At {
        /// Counted from the event before?
        relative: bool,
        /// Beginning.
        from: u64,
        /// End; the same as `from` if only one moment is given.
        to: u64,
    },
}

/// A value in a system call's arguments.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `...`: whatever fits.
    Any,
    /// A number, or constants joined by `|`.
    Number(i64),
    /// A name that is no constant that the runner knows.
    Name(String),
    /// `"..."`.
    Text(String),
    /// `[a, b]`.
    List(Vec<Value>),
    /// `{a=1, b=2}`.
    Struct(Vec<(String, Value)>),
    /// `htons(80)`, `msg_iov(1)=...`.
    Call(String, Vec<Value>),
}

impl Value {
    /// The number, if it is one.
    pub fn number(&self) -> Option<i64> {
        match self {
            Self::Number(n) => Some(*n),
            Self::Call(name, args) if matches!(name.as_str(), "htons" | "htonl") => args.first()?.number(),
            Self::List(items) if items.len() == 1 => items.first()?.number(),
            _ => None,
        }
    }

    /// A member of a struct; `msg_iov(1)=` counts as `msg_iov`.
    pub fn member(&self, wanted: &str) -> Option<&Value> {
        let Self::Struct(members) = self else { return None };
        members.iter().find(|(name, _)| name == wanted).map(|(_, value)| value)
    }
}

/// What a system call is expected to return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Returns {
    /// This number.
    Number(i64),
    /// -1 with this errno.
    Error(i32),
    /// Anything.
    Any,
}

/// A system call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub args: Vec<Value>,
    /// Its result.
    pub returns: Returns,
}

/// What kind of ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Next-hop MTU (RFC 1191), 0 = none.
    pub mtu: u16,
    /// The segment that it complains about: our sequence number, as in the script, and length.
    pub seq: u32,
    /// See `seq`.
    pub len: u32,
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A segment from the peer.
    Inbound(Endpoint, Segment),
    /// A segment that the stack must send.
    Outbound(Endpoint, Segment),
    /// An ICMP error from a router.
    Icmp(Icmp),
    /// A system call of the application.
    Call(Call),
    /// Shell commands.
    Command(String),
    /// `%{ }%`.
    Code(String),
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Line of the script.
    pub line: usize,
    /// Moment.
    pub when: When,
    /// What.
    pub action: Action,
}

/// A whole script.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// `--name=value` before the first event.
    pub options: Vec<(usize, String, String)>,
    /// Events in order.
    pub events: Vec<Event>,
}

/// Why a script did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// It is not in the notation.
    #[error("line {line}: {what}")]
    Syntax {
        /// Line of the script.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// It asks for something that this runner or the stack does not have.
    #[error("line {line}: not supported: {what}")]
    Unsupported {
        /// Line of the script.
        line: usize,
        /// What it asks for.
        what: String,
    },
    /// The stack did something else.
    #[error("line {line}: {what}")]
    Failed {
        /// Line of the script.
        line: usize,
        /// What was expected and what happened.
        what: String,
    },
}
