//! The messages between the host and the card. They go through a byte stream (a serial line of the card), each with its length and a
//! number before it: an answer has the number of its question, and what answers nothing has 0.

use crate::named::Named;
use crate::part::Part;
use crate::pieces::Piece;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use towpath_stack::guard::Limit;
use towpath_stack::{Connection, Status, Verdict};

/// Most bytes of a message.
const LONGEST: usize = 4 << 20;

/// Host to card. `place` is the client's: that of its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToCard {
    /// Serve a client. Answer: `Done`, `Failed`.
    Add { place: u32, uid: u32, pid: i32, name: String },
    /// Open or close an event context. Answer: `Done`.
    Context { place: u32, context: u32, open: bool },
    /// The port of a command is reserved on the host, until `Freed`.
    Reserve { place: u32, slot: u32, seq: u32 },
    /// The last descriptor of a socket is gone.
    Hangup { place: u32, slot: u32, generation: u32 },
    /// One process of a client is gone.
    Departed { place: u32, process: u32 },
    /// All are. `Left` follows when its sockets are drained.
    Remove { place: u32 },
    /// The policy has changed. Answer: `Done`.
    Policy,
    /// Answer: `Connections`.
    Connections,
    /// Answer: `Status`.
    Status,
    /// Answers to `Ask`, by its number.
    Verdict(Verdict),
    /// See `Verdict`.
    Limit(Option<Limit>),
    /// Repeat what stands in the shared word until this many µs have passed without anything new there. Answer: `Done`.
    Echo { quiet_us: u32 },
    /// Take in a file that a client has shown, if it is this one there. Answer: `File`, `Failed`.
    File { place: u32, process: u32, replaces: u32, named: Named },
    /// Run a program. Answer: `Ran`, `Failed`.
    Run { words: Vec<String> },
    /// Power off.
    Stop,
    /// Take over a client whose region another stack has served. Its connections are those of `moved` (slot, local address), which
    /// `Record`s bring; others are reset. Answer: `Done`, `Failed`.
    Adopt { place: u32, uid: u32, pid: i32, name: String, moved: Vec<(u32, SocketAddr)> },
    /// All of an adopted client is there: let its packets in. Answer: `Done`.
    Open { place: u32 },
    /// A connection of an adopted client.
    Record(Piece),
    /// Put those that have come into the kernel. Answer: `Put`.
    Put { place: u32 },
    /// Give the client up with its connections, each of which comes as `Record`. Answer: `Given`.
    Give { place: u32 },
    /// So many threads run from now on; none: say how many do. Answer: `Cores`, `Failed`.
    Cores { running: Option<u32> },
}

/// Card to host.
#[derive(Clone, Debug)]
pub enum FromCard {
    /// It is up: version of the contract, its kernel's release.
    Hello { version: u32, release: String },
    /// It is not, and why.
    Broken { why: String },
    /// Yes.
    Done,
    /// No.
    Failed { errno: i32 },
    /// All sockets; `client` is a place.
    Connections(Vec<Connection>),
    /// Counters.
    Status(Box<Status>),
    /// What reserves a port is not needed any more.
    Freed { place: u32, slot: u32, seq: u32 },
    /// A client is forgotten: its place can be used again.
    Left { place: u32 },
    /// The policy is asked.
    Ask(Question),
    /// The number of a file.
    File { file: u32 },
    /// A program has ended.
    Ran { code: i32, out: Vec<u8>, err: Vec<u8> },
    /// A connection of a client that is given up.
    Record(Piece),
    /// All of them have been sent; so many could not be taken out.
    Given { lost: u32 },
    /// They are in the kernel, but for so many.
    Put { failed: u32 },
    /// So many threads run, of at most so many.
    Cores { running: u32, most: u32 },
}

/// What the policy is asked, for the client in a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// May it connect there?
    Connect { place: u32, remote: SocketAddr },
    /// May it listen there?
    Listen { place: u32, local: SocketAddr, dual: bool },
    /// May it hear from this peer?
    Accept { place: u32, local: SocketAddr, remote: SocketAddr },
    /// Its limit?
    Limit { place: u32 },
    /// (No question.) It, or somebody who wanted to reach it, has failed because of a limit.
    Exceeded { place: u32, limit: Limit, connections: bool },
}

macro_rules! message {
    ($name:ident { $($number:literal $variant:ident $({ $($field:ident),* })? $(($inner:ident))?),* $(,)? }) => {
        impl Part for $name {
            fn put(&self, to: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(($inner))? => {
                        ($number as u8).put(to);
                        $($($field.put(to);)*)?
                        $($inner.put(to);)?
                    })*
                }
            }
            fn get(from: &mut &[u8]) -> Option<Self> {
                Some(match u8::get(from)? {
                    $($number => {
                        $($(let $field = Part::get(from)?;)*)?
                        $(let $inner = Part::get(from)?;)?
                        Self::$variant $({ $($field),* })? $(($inner))?
                    })*
                    _ => return None,
                })
            }
        }
    };
}
message!(ToCard {
    1 Add { place, uid, pid, name },
    2 Context { place, context, open },
    3 Reserve { place, slot, seq },
    4 Hangup { place, slot, generation },
    5 Departed { place, process },
    6 Remove { place },
    7 Policy,
    8 Connections,
    9 Status,
    10 Verdict(verdict),
    11 Limit(limit),
    12 Echo { quiet_us },
    13 Run { words },
    14 Stop,
    15 File { place, process, replaces, named },
    16 Adopt { place, uid, pid, name, moved },
    17 Open { place },
    18 Record(piece),
    19 Put { place },
    20 Give { place },
    21 Cores { running },
});
message!(FromCard {
    1 Hello { version, release },
    2 Broken { why },
    3 Done,
    4 Failed { errno },
    5 Connections(connections),
    6 Status(status),
    7 Freed { place, slot, seq },
    8 Left { place },
    9 Ask(question),
    10 Ran { code, out, err },
    11 File { file },
    12 Record(piece),
    13 Given { lost },
    14 Put { failed },
    15 Cores { running, most },
});
message!(Question {
    1 Connect { place, remote },
    2 Listen { place, local, dual },
    3 Accept { place, local, remote },
    4 Limit { place },
    5 Exceeded { place, limit, connections },
});

impl<T: Part> Part for Box<T> {
    fn put(&self, to: &mut Vec<u8>) {
        T::put(self, to);
    }
    fn get(from: &mut &[u8]) -> Option<Self> {
        T::get(from).map(Self::new)
    }
}

/// Writes a message.
pub fn send<M: Part>(to: &mut impl Write, number: u32, message: &M) -> io::Result<()> {
    let mut bytes = vec![0; 4];
    number.put(&mut bytes);
    message.put(&mut bytes);
    let length = u32::try_from(bytes.len() - 4).ok().filter(|length| *length as usize <= LONGEST);
    let length = length.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    to.write_all(&bytes)
}

/// Reads a message and its number; an error for the end of the stream and for what is no message.
pub fn receive<M: Part>(from: &mut impl Read) -> io::Result<(u32, M)> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_ne_bytes(length) as usize;
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes)?;
    let mut rest = bytes.as_slice();
    let message = u32::get(&mut rest).zip(M::get(&mut rest));
    message.filter(|_| rest.is_empty() && bytes.len() == length).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_stack::status::{CoreStatus, Tally, ThreadStatus};

    fn there_and_back<M: Part + std::fmt::Debug>(message: &M) -> M {
        let mut bytes = Vec::new();
        send(&mut bytes, 7, message).unwrap();
        let (number, got) = receive(&mut bytes.as_slice()).unwrap();
        assert_eq!(number, 7);
        for cut in 0..bytes.len() {
            assert!(receive::<M>(&mut &bytes[..cut]).is_err(), "cut at {cut}");
        }
        // Any byte may be another; nothing may panic, whatever comes out.
        for at in 4..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0xff;
            let _ = receive::<M>(&mut other.as_slice());
        }
        got
    }

    #[test]
    fn messages_come_out_as_they_went_in() {
        let limit = Limit { id: 1, number: 2, weight: 3, rate: 4, connections: 5, new_per_s: 6 };
        let messages = [
            ToCard::Add { place: 1, uid: 2, pid: -3, name: "a name".into() },
            ToCard::Verdict(Verdict::Refuse(13)),
            ToCard::Limit(Some(limit)),
            ToCard::File {
                place: 1,
                process: 2,
                replaces: 3,
                named: Named { path: "/a/b".into(), inode: 4, size: 5, modified_s: 6, modified_ns: 7 },
            },
            ToCard::Run { words: vec!["ss".into(), "-ti".into()] },
            ToCard::Cores { running: Some(3) },
            ToCard::Cores { running: None },
            ToCard::Stop,
        ];
        for message in messages {
            assert_eq!(there_and_back(&message), message);
        }
    }

    #[test]
    fn a_status_comes_out_as_it_went_in() {
        let tally = Tally { stages: vec![("commands", 3), ("sends", u64::MAX)], opened: 9, ..Tally::default() };
        let core = CoreStatus { tally, turns: 4, ..CoreStatus::default() };
        let threads = vec![ThreadStatus { groups: vec![0, 2], turns: 1, busy_us: 2, idle_us: 3, sleeps: 4 }];
        let status = Status { cores: vec![core], threads, panics: 1, ..Status::default() };
        let FromCard::Status(got) = there_and_back(&FromCard::Status(Box::new(status.clone()))) else { panic!() };
        assert_eq!(got.cores[0].tally, status.cores[0].tally);
        assert_eq!((got.cores[0].turns, got.panics), (4, 1));
        assert_eq!(got.threads, status.threads);
    }
}
