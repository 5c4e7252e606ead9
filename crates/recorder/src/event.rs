//! What is recorded, and how it reads.

use crate::{Entry, NONE, reasons};
use std::fmt;
use std::ops::Deref;

/// Declares an enum whose values are numbers, with the names that users see.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($(#[$value_meta:meta])* $value:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name { $($(#[$value_meta])* $value,)* }
        impl $name {
            /// All, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$value),*];
            /// The one of this number.
            pub fn of(number: u8) -> Option<Self> {
                Self::ALL.get(usize::from(number)).copied()
            }
            /// As users see it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$value => $text,)* }
            }
        }
    };
}

named! {
/// What has happened. A *socket* is the number of a client, in the high 32 bits, and of a slot.
Kind {
    /// An application has called `connect`. Key: its socket.
    Connect = "connect",
    /// A connection is established. Key: its socket. Flag: 1 if the peer has opened it. Value: its flow.
    Established = "established",
    /// The application is done with a socket. Key: the socket. Flag: 1 if without an orderly end.
    Close = "close",
    /// A connection is over. Key: its socket. Flag: [`End`]. Value: its flow, and an errno or 0.
    End = "end",
    /// A client has come. Key: its number. Value: its process.
    Client = "client",
    /// A client has gone. Key: its number.
    ClientGone = "client_gone",
    /// A client has broken the contract. Key: its number.
    Violation = "violation",
    /// Data are sent again. Key: the flow. Flag: why. Value: the first sequence number, and bytes.
    Retransmit = "retransmit",
    /// A retransmission timer has run out. Key: the flow. Value: a sequence number, and bytes outstanding.
    Timeout = "timeout",
    /// A tail probe. Key: the flow. Flag: 1 if it repeats. Value: a sequence number, and bytes.
    TailProbe = "tail_probe",
    /// A message about a flow between the paths. Key: the flow, and the message in the bits above. Flag: [`Message`].
    Message = "message",
    /// A turn that took long. Key: when it began. Value: µs, and its work.
    LongTurn = "long_turn",
    /// A mailbox between the paths is full: what it should take waits. Key: the flow group.
    Full = "full",
    /// A turn that ended by a panic. Key: when.
    Panic = "panic",
    /// A received frame that was dropped. Key: the reason.
    Drop = "drop",
    /// Threads of a client were woken. Key: its number. Value: its process.
    Wake = "wake",
}
}

named! {
/// How a connection has ended.
End {
    /// In order: both ends have closed.
    Orderly = "both ends have closed",
    /// The peer has reset it.
    PeerReset = "the peer has reset it",
    /// The application has, by an abort, unread data or a violation of the contract.
    Aborted = "the application has reset it",
    /// The stack has given it up, with an errno.
    GivenUp = "the stack has ended it",
    /// It was never established.
    Failed = "it was never established",
}
}

named! {
/// Messages between the two paths that are about one flow and rare.
Message {
    /// To the fast path: forget it.
    Remove = "the slow path removes it",
    /// To the fast path: end it.
    Abort = "the slow path aborts it",
    /// To the fast path: probe the peer's closed window.
    ProbeWindow = "the peer's window is closed, and probed",
    /// To the fast path: probe its tail.
    ProbeTail = "the tail is probed",
    /// To the fast path: probe a silent peer.
    KeepAlive = "the silent peer is probed (keepalive)",
    /// To the fast path: a challenge ACK.
    Challenge = "the peer is challenged",
    /// To the fast path: other sizes of packets.
    SetMss = "packets of the path have another size",
    /// To the fast path: another next hop.
    Relink = "the next hop has another address",
    /// To the fast path: a step of a splice.
    Splice = "a step of a splice",
    /// To the slow path: segments are lost.
    Loss = "segments are lost",
    /// To the slow path: none were lost.
    Undone = "the last loss was none",
    /// To the slow path: a FIN came, or was acknowledged.
    Closing = "a FIN came, or was acknowledged",
    /// To the slow path: a valid RST came.
    Reset = "a valid RST came",
    /// To the slow path: the application has closed it.
    AppClosed = "the application has closed it",
    /// To the slow path: the application aborts it.
    Aborted = "the application aborts it, and a RST goes",
    /// To the slow path: the application has broken the contract.
    Violated = "the application has broken the contract, and a RST goes",
}
}

/// Names of the ways in which data come to be sent again, by [`Entry::flag`].
const AGAIN: [&str; 3] = ["acknowledgements tell of a loss", "after a time-out", "a probe, or smaller packets"];

/// An event as it was recorded. Its words come from memory that another process has written: all of them may be anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it happened last, µs of the monotonic clock.
    pub at_us: u64,
    /// When it happened first.
    pub since_us: u64,
    /// How often.
    pub times: u32,
    /// What.
    pub entry: Entry,
}

impl Deref for Event {
    type Target = Entry;
    fn deref(&self) -> &Entry {
        &self.entry
    }
}

impl Event {
    /// The socket that it concerns: client and slot.
    pub fn socket(&self) -> Option<(u32, u32)> {
        let is = matches!(self.kind, Kind::Connect | Kind::Established | Kind::Close | Kind::End);
        is.then_some(((self.key >> 32) as u32, self.key as u32))
    }

    /// The flow that it concerns.
    pub fn flow(&self) -> Option<u32> {
        let flow = match self.kind {
            Kind::Retransmit | Kind::Timeout | Kind::TailProbe | Kind::Message => self.key as u32,
            Kind::Established | Kind::End => self.value.0,
            _ => NONE,
        };
        (flow != NONE).then_some(flow)
    }

    /// The client that it concerns.
    pub fn client(&self) -> Option<u32> {
        let alone = matches!(self.kind, Kind::Client | Kind::ClientGone | Kind::Violation | Kind::Wake);
        self.socket().map(|(client, _)| client).or(alone.then_some(self.key as u32))
    }

    /// Why, for kinds that have a reason.
    pub fn reason(&self) -> Option<&'static str> {
        match self.kind {
            Kind::End => End::of(self.flag).map(End::name),
            Kind::Message => Message::of(self.flag).map(Message::name),
            Kind::Drop => Some(reasons::name(self.key)),
            Kind::Retransmit => AGAIN.get(usize::from(self.flag)).copied(),
            _ => None,
        }
    }
}

/// An errno in words.
fn error(errno: u32) -> String {
    let text = std::io::Error::from_raw_os_error(errno.cast_signed()).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// What happened, without the time.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, second) = self.value;
        let reason = self.reason().unwrap_or("?");
        match self.kind {
            Kind::Connect => write!(f, "connect")?,
            Kind::Established if self.flag == 1 => write!(f, "accepted")?,
            Kind::Established => write!(f, "connected")?,
            Kind::Close if self.flag == 1 => write!(f, "closed by the application, without an orderly end")?,
            Kind::Close => write!(f, "closed by the application")?,
            Kind::End if second == 0 => write!(f, "over: {reason}")?,
            Kind::End => write!(f, "over: {reason} ({})", error(second))?,
            Kind::Client => write!(f, "client {} (process {first}) has come", self.key)?,
            Kind::ClientGone => write!(f, "client {} has gone", self.key)?,
            Kind::Violation => write!(f, "client {} has broken the contract", self.key)?,
            Kind::Retransmit => write!(f, "{second} bytes from {first} sent again: {reason}")?,
            Kind::Timeout => write!(f, "retransmission time-out at {first}, {second} bytes outstanding")?,
            Kind::TailProbe => write!(f, "tail probe of {second} bytes from {first}")?,
            Kind::Message => write!(f, "{reason}")?,
            Kind::LongTurn => write!(f, "a turn took {first} us, with {second} items of work")?,
            Kind::Full => write!(f, "the mailbox to the slow path is full")?,
            Kind::Panic if self.flow_group == NONE => write!(f, "PANIC in the slow path")?,
            Kind::Panic => write!(f, "PANIC in the flow group")?,
            Kind::Drop => write!(f, "dropped: {reason}")?,
            Kind::Wake => write!(f, "client {} (process {first}) woken", self.key)?,
        }
        if let Some((client, slot)) = self.socket() {
            write!(f, ", client {client} slot {slot}")?;
        }
        if let Some(flow) = self.flow() {
            write!(f, ", flow {flow}")?;
        }
        if let Some((local, remote)) = self.ends {
            write!(f, ", {local} - {remote}")?;
        }
        if self.times > 1 {
            write!(f, ", {} times in {} us", self.times, self.at_us.saturating_sub(self.since_us))?;
        }
        Ok(())
    }
}
