//! A parsed script: a list of events.

use crate::notation::{Endpoint, Segment};

/// The time of an event, in µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At any time (`*`).
    Any,
    /// At a time or in a range, counted from the script's start or (`+`) from the previous event.
    At {
        /// Is it counted from the previous event?
        relative: bool,
        /// Start.
        from: u64,
        /// End; equal to `from` if only one time is given.
        to: u64,
    },
}

/// A value in a system call's arguments.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `...`: any value.
    Any,
    /// A number, or constants joined by `|`.
    Number(i64),
    /// A name that is not a known constant.
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

    /// A member of a struct; `msg_iov(1)=` matches `msg_iov`.
    pub fn member(&self, wanted: &str) -> Option<&Value> {
        let Self::Struct(members) = self else { return None };
        members.iter().find(|(name, _)| name == wanted).map(|(_, value)| value)
    }
}

/// The expected result of a system call.
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

/// An ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Next-hop MTU (RFC 1191), 0 = none.
    pub mtu: u16,
    /// Sequence number of the quoted segment, in the script's numbers.
    pub seq: u32,
    /// Length of the quoted segment.
    pub len: u32,
}

/// The action of an event.
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
    /// Time.
    pub when: When,
    /// Action.
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
pub enum ScriptError {
    /// A syntax error.
    #[error("line {line}: {what}")]
    Syntax {
        /// Line of the script.
        line: usize,
        /// The error.
        what: String,
    },
    /// It uses a feature that the runner or the stack lacks.
    #[error("line {line}: not supported: {what}")]
    Unsupported {
        /// Line of the script.
        line: usize,
        /// The feature.
        what: String,
    },
    /// The stack behaved differently.
    #[error("line {line}: {what}")]
    Failed {
        /// Line of the script.
        line: usize,
        /// The expected and the actual behaviour.
        what: String,
    },
}
