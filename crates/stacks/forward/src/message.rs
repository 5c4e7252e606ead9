//! The messages between the host and the kernel stack. On the byte stream each has its length and a number before it.
//! An answer has the number of its request; messages that are no answers have 0.

use crate::chunks::RecordChunk;
use crate::codec::Codec;
use crate::file_id::FileId;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use towpath_runtime::policy::Limit;
use towpath_runtime::{SocketStatus, Status, Verdict};

/// Most bytes of a message.
const LONGEST: usize = 4 << 20;

/// Host to stack. `index` says which client: the index of its region.
#[allow(missing_docs, reason = "the fields are described by their variant")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToStack {
    /// Serve a client. Answer: `Done`, `Failed`.
    Add { index: u32, uid: u32, pid: i32, name: String },
    /// Open or close an event context. Answer: `Done`.
    Context { index: u32, context: u32, open: bool },
    /// The host has reserved the port of a command, until `Freed`.
    Reserve { index: u32, slot: u32, seq: u32 },
    /// The last descriptor of a socket is gone.
    Hangup { index: u32, slot: u32, generation: u32 },
    /// A process of a client has ended.
    Departed { index: u32, process: u32 },
    /// All processes have ended. `Left` follows when the client's sockets are drained.
    Remove { index: u32 },
    /// The policy has changed. Answer: `Done`.
    Policy,
    /// Asks for all sockets. Answer: `Connections`.
    Connections,
    /// Asks for the counters. Answer: `Status`.
    Status,
    /// Answers `Ask`.
    Verdict(Verdict),
    /// Answers `Ask`.
    Limit(Option<Limit>),
    /// Repeat the shared word until it has not changed for this long, µs. Answer: `Done`.
    Echo { quiet_us: u32 },
    /// Take in a file that a client has shown, if it is still the same. Answer: `File`, `Failed`.
    File { index: u32, process: u32, replaces: u32, named: FileId },
    /// Run a program. Answer: `Ran`, `Failed`.
    Run { words: Vec<String> },
    /// Power off.
    Stop,
    /// Take over a client whose region another stack has served. `moved` lists its connections, by slot and local
    /// address; their records follow. Other connections are reset. Answer: `Done`, `Failed`.
    Adopt { index: u32, uid: u32, pid: i32, name: String, moved: Vec<(u32, SocketAddr)> },
    /// An adopted client is complete: let its packets in. Answer: `Done`.
    Open { index: u32 },
    /// Part of a connection record of an adopted client.
    Record(RecordChunk),
    /// Put the connections whose records have arrived into the kernel. Answer: `Put`.
    Put { index: u32 },
    /// Give the client up. Its connections come as `Record`, before the answer. Answer: `Given`.
    Give { index: u32 },
    /// Set the number of workers, if there is one. Answer: `Workers`, `Failed`.
    Workers { running: Option<u32> },
}

/// Stack to host.
#[allow(missing_docs, reason = "the fields are described by their variant")]
#[derive(Clone, Debug)]
pub enum ToHost {
    /// The stack is up: version of the contract, release of its kernel.
    Hello { version: u32, release: String },
    /// The stack cannot start, and why.
    Broken { why: String },
    /// The request was carried out.
    Done,
    /// The request failed.
    Failed { errno: i32 },
    /// All sockets. `client` is a client's index.
    Connections(Vec<SocketStatus>),
    /// The counters.
    Status(Box<Status>),
    /// A port need not be reserved any more.
    Freed { index: u32, slot: u32, seq: u32 },
    /// A client is forgotten. Its index can be reused.
    Left { index: u32 },
    /// Asks for the policy.
    Ask(Question),
    /// The number of a file.
    File { file: u32 },
    /// A program has ended.
    Ran { code: i32, out: Vec<u8>, err: Vec<u8> },
    /// Part of a connection record of a client that is given up.
    Record(RecordChunk),
    /// All records have been sent. `lost` connections could not be taken out.
    Given { lost: u32 },
    /// The connections are in the kernel, except for `failed` of them.
    Put { failed: u32 },
    /// Workers that run, and how many there may be.
    Workers { running: u32, most: u32 },
}

/// A question to the policy, about the client of an index.
#[allow(missing_docs, reason = "the fields are described by their variant")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// May the client connect to this address?
    Connect { index: u32, remote: SocketAddr },
    /// May the client listen there?
    Listen { index: u32, local: SocketAddr, dual: bool },
    /// May this peer reach the client's listener?
    Accept { index: u32, local: SocketAddr, remote: SocketAddr },
    /// Which limit does the client have?
    Limit { index: u32 },
    /// Not a question: the client, or a peer that wanted to reach it, has exceeded a limit.
    Exceeded { index: u32, limit: Limit, connections: bool },
}

macro_rules! message {
    ($name:ident { $($number:literal $variant:ident $({ $($field:ident),* })? $(($inner:ident))?),* $(,)? }) => {
        impl Codec for $name {
            fn store(&self, to: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(($inner))? => {
                        ($number as u8).store(to);
                        $($($field.store(to);)*)?
                        $($inner.store(to);)?
                    })*
                }
            }
            fn load(from: &mut &[u8]) -> Option<Self> {
                Some(match u8::load(from)? {
                    $($number => {
                        $($(let $field = Codec::load(from)?;)*)?
                        $(let $inner = Codec::load(from)?;)?
                        Self::$variant $({ $($field),* })? $(($inner))?
                    })*
                    _ => return None,
                })
            }
        }
    };
}
message!(ToStack {
    1 Add { index, uid, pid, name },
    2 Context { index, context, open },
    3 Reserve { index, slot, seq },
    4 Hangup { index, slot, generation },
    5 Departed { index, process },
    6 Remove { index },
    7 Policy,
    8 Connections,
    9 Status,
    10 Verdict(verdict),
    11 Limit(limit),
    12 Echo { quiet_us },
    13 Run { words },
    14 Stop,
    15 File { index, process, replaces, named },
    16 Adopt { index, uid, pid, name, moved },
    17 Open { index },
    18 Record(chunk),
    19 Put { index },
    20 Give { index },
    21 Workers { running },
});
message!(ToHost {
    1 Hello { version, release },
    2 Broken { why },
    3 Done,
    4 Failed { errno },
    5 Connections(connections),
    6 Status(status),
    7 Freed { index, slot, seq },
    8 Left { index },
    9 Ask(question),
    10 Ran { code, out, err },
    11 File { file },
    12 Record(chunk),
    13 Given { lost },
    14 Put { failed },
    15 Workers { running, most },
});
message!(Question {
    1 Connect { index, remote },
    2 Listen { index, local, dual },
    3 Accept { index, local, remote },
    4 Limit { index },
    5 Exceeded { index, limit, connections },
});

impl<T: Codec> Codec for Box<T> {
    fn store(&self, to: &mut Vec<u8>) {
        T::store(self, to);
    }
    fn load(from: &mut &[u8]) -> Option<Self> {
        T::load(from).map(Self::new)
    }
}

/// Writes a message.
pub fn send<M: Codec>(to: &mut impl Write, number: u32, message: &M) -> io::Result<()> {
    let mut bytes = vec![0; 4];
    number.store(&mut bytes);
    message.store(&mut bytes);
    let length = u32::try_from(bytes.len() - 4).ok().filter(|length| *length as usize <= LONGEST);
    let length = length.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    to.write_all(&bytes)
}

/// Reads a message and its number. An error means the end of the stream, or bytes that are no message.
pub fn receive<M: Codec>(from: &mut impl Read) -> io::Result<(u32, M)> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_ne_bytes(length) as usize;
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes)?;
    let mut rest = bytes.as_slice();
    let message = u32::load(&mut rest).zip(M::load(&mut rest));
    message.filter(|_| rest.is_empty() && bytes.len() == length).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_runtime::status::{FlowGroupStatus, Tally, WorkerStatus};

    fn there_and_back<M: Codec + std::fmt::Debug>(message: &M) -> M {
        let mut bytes = Vec::new();
        send(&mut bytes, 7, message).unwrap();
        let (number, got) = receive(&mut bytes.as_slice()).unwrap();
        assert_eq!(number, 7);
        for cut in 0..bytes.len() {
            assert!(receive::<M>(&mut &bytes[..cut]).is_err(), "cut at {cut}");
        }
        // Any byte may be changed. Nothing may panic, whatever the result.
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
            ToStack::Add { index: 1, uid: 2, pid: -3, name: "a name".into() },
            ToStack::Verdict(Verdict::Refuse(13)),
            ToStack::Limit(Some(limit)),
            ToStack::File {
                index: 1,
                process: 2,
                replaces: 3,
                named: FileId { path: "/a/b".into(), inode: 4, size: 5, modified_s: 6, modified_ns: 7 },
            },
            ToStack::Run { words: vec!["ss".into(), "-ti".into()] },
            ToStack::Workers { running: Some(3) },
            ToStack::Workers { running: None },
            ToStack::Stop,
        ];
        for message in messages {
            assert_eq!(there_and_back(&message), message);
        }
    }

    #[test]
    fn a_status_comes_out_as_it_went_in() {
        let tally = Tally {
            stages: [("commands", 3), ("sends", u64::MAX)].into_iter().collect(),
            opened: 9,
            ..Tally::default()
        };
        let core = FlowGroupStatus { tally, turns: 4, ..FlowGroupStatus::default() };
        let workers = vec![WorkerStatus { flow_groups: vec![0, 2], turns: 1, busy_us: 2, idle_us: 3, sleeps: 4 }];
        let status = Status { flow_groups: vec![core], workers, panics: 1, ..Status::default() };
        let ToHost::Status(got) = there_and_back(&ToHost::Status(Box::new(status.clone()))) else { panic!() };
        assert_eq!(got.flow_groups[0].tally, status.flow_groups[0].tally);
        assert_eq!((got.flow_groups[0].turns, got.panics), (4, 1));
        assert_eq!(got.workers, status.workers);
    }
}
