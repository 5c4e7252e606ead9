//! Messages on the registration socket (`SOCK_SEQPACKET`, one fixed-size packet each, descriptors by `SCM_RIGHTS`).
//!
//! The application speaks first. Only `Hello`, `Region`, `Context`, `Pair`, `Doorbell`, `Adopt`, `File`, `Stack`, `StackOf` and
//! `Stats` have an answer. `Adopt` may also come before `Hello`, from a process that has received a socket before it has a
//! region. `Region` comes only as the answer to `Make`.
//!
//! A packet has [`MESSAGE_BYTES`] bytes: version (u32), kind (u32), the fields in the order of their declaration, then
//! zeros. Each field has 4 or 8 bytes in the machine's byte order, at a multiple of 4. Any other packet, or one without
//! exactly the descriptors of its kind, is an error of kind [`io::ErrorKind::InvalidData`]. Its descriptors are closed.

pub mod features;
mod transport;

pub use transport::{recv_reply, recv_request, send_reply, send_request};

use crate::layout::VERSION;
use crate::{Geometry, PairGeometry, address};
use core::net::Ipv6Addr;
use std::io;

/// Bytes of every message.
pub const MESSAGE_BYTES: usize = 128;
/// Most descriptors that one message carries: those of `Welcome` with all flow groups.
const MAX_FDS: usize = 2 + Geometry::MAX_FLOW_GROUPS as usize;

/// Application to service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// First message. `join` = 0 asks for a new region. After fork, `join` is the token of the parent process's region,
    /// and the reply carries the same region again.
    Hello {
        /// [`crate::layout::VERSION`] of the library.
        version: u32,
        /// Token of an existing region or 0.
        join: u64,
        /// Bits of [`features`] that the library knows.
        features: u32,
    },
    /// The memory of the client's new region (one descriptor), as `Make` has asked for it. It is answered by `Welcome`.
    Region,
    /// The stack's end of the socketpair of a slot (one descriptor). Its hang-up means that every descriptor of that
    /// socket, in every process, is closed.
    Attach {
        /// Slot number.
        slot: u32,
        /// Generation the descriptor belongs to.
        generation: u32,
        /// The sender's number of the pair, below 2^30. It names the end in `Reattach`. An end of that number is replaced.
        end: u32,
    },
    /// The end of this number belongs to another slot from now on. Its last socket is closed, and all other descriptors of
    /// that socket were, too. If it has hung up meanwhile, so has the new socket.
    Reattach {
        /// Slot number.
        slot: u32,
        /// Generation the descriptor belongs to.
        generation: u32,
        /// The number, as in `Attach`.
        end: u32,
    },
    /// A bound kernel TCP socket (one descriptor). It proves that the client has the port of the LISTEN or CONNECT command
    /// which follows on this slot. Both come on different ways, so either may arrive first. For LISTEN it listens already
    /// if the service [listens in the kernel](features::LISTENS_IN_KERNEL); else it does not listen.
    Reserve {
        /// Slot number.
        slot: u32,
        /// `seq` of that command.
        seq: u32,
        /// Is that command LISTEN?
        listens: bool,
    },
    /// A TCP socket of another network namespace that is not bound (one descriptor). It belongs to the JOIN command which
    /// follows on this slot, in the way of `Reserve`. The service looks for itself whether it may be joined.
    Join {
        /// Slot number.
        slot: u32,
        /// `seq` of that command.
        seq: u32,
        /// `remote_addr` of that command.
        remote_addr: Ipv6Addr,
        /// Its `remote_port`.
        remote_port: u32,
    },
    /// Asks for an event context.
    Context,
    /// Gives a context back.
    DropContext {
        /// Its number.
        context: u32,
    },
    /// Asks for a pair region.
    Pair {
        /// Its place among the client's.
        place: u32,
        /// Its number.
        pair: u32,
    },
    /// Asks for the doorbell of one of the other side's contexts.
    Doorbell {
        /// The pair's place among the client's.
        place: u32,
        /// The pair's number.
        pair: u32,
        /// The context of the other side.
        context: u32,
    },
    /// The application's end of the socketpair of a slot (one descriptor) is about to leave the process. Any process
    /// that shows the service a descriptor of the same end learns where the socket lives.
    Name {
        /// Slot number.
        slot: u32,
        /// Generation the descriptor belongs to.
        generation: u32,
    },
    /// Where does the socket of this descriptor (one descriptor) live?
    Adopt,
    /// Asks for the other stack that a command was given to ([`crate::command::given_to`]).
    Stack {
        /// The service's number of it.
        stack: u32,
    },
    /// Asks for the other stack that serves a network namespace. It is answered as `Stack`. For services that have
    /// [such stacks](features::OTHER_NAMESPACES).
    StackOf {
        /// The namespace, as SO_NETNS_COOKIE names it.
        namespace: u64,
    },
    /// As `Name`, but the socket lives in a region of the other stack of this number, which has been told its name. Any
    /// process that shows this service a descriptor of the same end is told to ask there.
    NameAt {
        /// The service's number of it.
        stack: u32,
    },
    /// Asks for the number of an open regular file (one descriptor, readable), by which it can be sent
    /// ([`crate::sideband`]). It is good for all processes of the client until this one ends.
    File {
        /// Number of a file of this process that it no longer needs; 0 = none.
        replaces: u32,
    },
    /// The process will measure its connections ([`crate::stats`]). The service chooses their carrier by that.
    Stats,
}

/// Service to application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Answer to `Hello` or `Region`: descriptors are the region memfd, then one doorbell eventfd per data queue, then the
    /// command queue's doorbell eventfd.
    Welcome {
        /// The region's sizes.
        geometry: Geometry,
        /// For `Hello { join }` of a forked child.
        token: u64,
        /// Number of the process, never 0: for `CommandLine::holder`.
        process: u32,
        /// Where the region begins in the memfd, bytes; 0 = the memfd holds nothing else.
        offset: u64,
        /// Bits of [`features`].
        features: u32,
        /// With [`features::ONE_NAMESPACE`]: that namespace, as SO_NETNS_COOKIE names it; else 0.
        namespace: u64,
        /// After how long without data an open connection gives back what its rings hold, ms; 0 = never.
        idle_ms: u32,
    },
    /// Answer to `Hello` without a `join`, of services with [`features::CLIENT_MEMORY`]. The library makes the memory of a
    /// region of these sizes ([`crate::memory::new_memory`]) and sends it as `Region`.
    Make {
        /// The region's sizes.
        geometry: Geometry,
    },
    /// Answer to `Context`: one descriptor, the end to wait on of the context's doorbell
    /// ([`crate::wake::doorbell_pipe`]).
    Context {
        /// Its number, below `geometry.contexts`.
        context: u32,
    },
    /// Answer to `Pair`: one descriptor, the region's memfd.
    Pair {
        /// Its number.
        pair: u32,
        /// Its sizes.
        geometry: PairGeometry,
    },
    /// Answer to `Doorbell`: one descriptor, the end to notify through, an open file of its own.
    Doorbell {
        /// The context.
        context: u32,
    },
    /// Answer to `Adopt`. The region can be had by `Hello`.
    Adopted {
        /// Token of the region.
        token: u64,
        /// Slot number.
        slot: u32,
        /// Generation the descriptor belongs to.
        generation: u32,
    },
    /// Answer to `Adopt`: the socket lives in a region of the other stack of this number.
    AdoptedAt {
        /// The service's number of it.
        stack: u32,
    },
    /// Answer to `Stack` and `StackOf`: one descriptor, that stack's registration socket as a file (O_PATH), to be connected to.
    Stack {
        /// Its number.
        stack: u32,
    },
    /// Answer to `File`.
    File {
        /// Its number. It is never 0 and never given twice.
        file: u32,
    },
    /// Answer to `Stats`: one descriptor, the memfd of a [`crate::stats::StatsRegion`].
    Stats,
    /// The process is not admitted (the connection is closed after it), or no context is left, or the requested thing
    /// is not there. In the last two cases the connection stays open.
    Refused {
        /// A fitting errno (EPERM, ENFILE, EPROTO ...).
        errno: i32,
    },
}

/// Kinds of message as they stand in packets. Requests and replies share no number.
mod kind {
    pub const HELLO: u32 = 1;
    pub const ATTACH: u32 = 2;
    pub const RESERVE: u32 = 3;
    pub const CONTEXT: u32 = 4;
    pub const DROP_CONTEXT: u32 = 5;
    pub const PAIR: u32 = 6;
    pub const DOORBELL: u32 = 7;
    pub const NAME: u32 = 8;
    pub const ADOPT: u32 = 9;
    pub const STACK: u32 = 10;
    pub const NAME_AT: u32 = 11;
    pub const FILE: u32 = 12;
    pub const STATS: u32 = 13;
    pub const STACK_OF: u32 = 14;
    pub const JOIN: u32 = 15;
    pub const REGION: u32 = 16;
    pub const REATTACH: u32 = 17;
    pub const WELCOME: u32 = 101;
    pub const CONTEXT_REPLY: u32 = 102;
    pub const REFUSED: u32 = 103;
    pub const PAIR_REPLY: u32 = 104;
    pub const DOORBELL_REPLY: u32 = 105;
    pub const ADOPTED: u32 = 106;
    pub const STACK_REPLY: u32 = 107;
    pub const ADOPTED_AT: u32 = 108;
    pub const FILE_REPLY: u32 = 109;
    pub const STATS_REPLY: u32 = 110;
    pub const MAKE: u32 = 111;
}

impl Request {
    /// How many descriptors go with it.
    pub fn descriptors(&self) -> usize {
        match self {
            Request::Attach { .. } | Request::Reserve { .. } | Request::Name { .. } => 1,
            Request::Adopt | Request::NameAt { .. } | Request::File { .. } => 1,
            Request::Join { .. } | Request::Region => 1,
            Request::Hello { .. } | Request::Context | Request::DropContext { .. } => 0,
            Request::Pair { .. } | Request::Doorbell { .. } | Request::Stats => 0,
            Request::Stack { .. } | Request::StackOf { .. } | Request::Reattach { .. } => 0,
        }
    }

    /// The packet.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        match *self {
            // The version stands in every packet; here it is the announced one.
            Request::Hello { version, join, features } => {
                Packet::of(version, kind::HELLO).long(join).word(features).bytes
            }
            Request::Attach { slot, generation, end } => {
                Packet::new(kind::ATTACH).word(slot).word(generation).word(end).bytes
            }
            Request::Reattach { slot, generation, end } => {
                Packet::new(kind::REATTACH).word(slot).word(generation).word(end).bytes
            }
            Request::Reserve { slot, seq, listens } => {
                Packet::new(kind::RESERVE).word(slot).word(seq).word(listens.into()).bytes
            }
            Request::Join { slot, seq, remote_addr, remote_port } => {
                let packet = Packet::new(kind::JOIN).word(slot).word(seq);
                address::words(remote_addr).into_iter().fold(packet, Packet::word).word(remote_port).bytes
            }
            Request::Context => Packet::new(kind::CONTEXT).bytes,
            Request::DropContext { context } => Packet::new(kind::DROP_CONTEXT).word(context).bytes,
            Request::Pair { place, pair } => Packet::new(kind::PAIR).word(place).word(pair).bytes,
            Request::Doorbell { place, pair, context } => {
                Packet::new(kind::DOORBELL).word(place).word(pair).word(context).bytes
            }
            Request::Name { slot, generation } => Packet::new(kind::NAME).word(slot).word(generation).bytes,
            Request::Adopt => Packet::new(kind::ADOPT).bytes,
            Request::Stack { stack } => Packet::new(kind::STACK).word(stack).bytes,
            Request::StackOf { namespace } => Packet::new(kind::STACK_OF).long(namespace).bytes,
            Request::NameAt { stack } => Packet::new(kind::NAME_AT).word(stack).bytes,
            Request::File { replaces } => Packet::new(kind::FILE).word(replaces).bytes,
            Request::Stats => Packet::new(kind::STATS).bytes,
            Request::Region => Packet::new(kind::REGION).bytes,
        }
    }

    /// Reads a packet. `Hello` of another version is well formed; the service answers it with `Refused`.
    pub fn decode(packet: &[u8; MESSAGE_BYTES]) -> io::Result<Self> {
        let mut fields = Fields { packet, at: 0 };
        let (version, kind) = (fields.word(), fields.word());
        if kind != kind::HELLO && version != VERSION {
            return Err(invalid("message of another version"));
        }
        Ok(match kind {
            kind::HELLO => Request::Hello { version, join: fields.long(), features: fields.word() },
            kind::ATTACH => Request::Attach { slot: fields.word(), generation: fields.word(), end: fields.word() },
            kind::REATTACH => Request::Reattach { slot: fields.word(), generation: fields.word(), end: fields.word() },
            kind::RESERVE => Request::Reserve { slot: fields.word(), seq: fields.word(), listens: fields.word() != 0 },
            kind::JOIN => {
                let (slot, seq) = (fields.word(), fields.word());
                let remote_addr = address::of_words(core::array::from_fn(|_| fields.word()));
                Request::Join { slot, seq, remote_addr, remote_port: fields.word() }
            }
            kind::CONTEXT => Request::Context,
            kind::DROP_CONTEXT => Request::DropContext { context: fields.word() },
            kind::PAIR => Request::Pair { place: fields.word(), pair: fields.word() },
            kind::DOORBELL => Request::Doorbell { place: fields.word(), pair: fields.word(), context: fields.word() },
            kind::NAME => Request::Name { slot: fields.word(), generation: fields.word() },
            kind::ADOPT => Request::Adopt,
            kind::STACK => Request::Stack { stack: fields.word() },
            kind::STACK_OF => Request::StackOf { namespace: fields.long() },
            kind::NAME_AT => Request::NameAt { stack: fields.word() },
            kind::FILE => Request::File { replaces: fields.word() },
            kind::STATS => Request::Stats,
            kind::REGION => Request::Region,
            _ => return Err(invalid("unknown request")),
        })
    }
}

impl Reply {
    /// How many descriptors go with it.
    pub fn descriptors(&self) -> usize {
        match self {
            Reply::Welcome { geometry, .. } => (geometry.flow_groups as usize).saturating_add(2),
            Reply::Context { .. } | Reply::Pair { .. } | Reply::Doorbell { .. } => 1,
            Reply::Stack { .. } | Reply::Stats => 1,
            Reply::Make { .. } => 0,
            Reply::Adopted { .. } | Reply::AdoptedAt { .. } | Reply::File { .. } | Reply::Refused { .. } => 0,
        }
    }

    /// The packet.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        match *self {
            Reply::Welcome { geometry, token, process, offset, features, namespace, idle_ms } => {
                let packet = Packet::new(kind::WELCOME).geometry(geometry).long(token).word(process);
                packet.long(offset).word(features).long(namespace).word(idle_ms).bytes
            }
            Reply::Make { geometry } => Packet::new(kind::MAKE).geometry(geometry).bytes,
            Reply::Context { context } => Packet::new(kind::CONTEXT_REPLY).word(context).bytes,
            Reply::Pair { pair, geometry: PairGeometry { slots, ring_bytes } } => {
                Packet::new(kind::PAIR_REPLY).word(pair).word(slots).word(ring_bytes).bytes
            }
            Reply::Doorbell { context } => Packet::new(kind::DOORBELL_REPLY).word(context).bytes,
            Reply::Adopted { token, slot, generation } => {
                Packet::new(kind::ADOPTED).long(token).word(slot).word(generation).bytes
            }
            Reply::AdoptedAt { stack } => Packet::new(kind::ADOPTED_AT).word(stack).bytes,
            Reply::Stack { stack } => Packet::new(kind::STACK_REPLY).word(stack).bytes,
            Reply::File { file } => Packet::new(kind::FILE_REPLY).word(file).bytes,
            Reply::Stats => Packet::new(kind::STATS_REPLY).bytes,
            Reply::Refused { errno } => Packet::new(kind::REFUSED).word(errno as u32).bytes,
        }
    }

    /// Reads a packet. A refusal is understood whatever the service's version.
    pub fn decode(packet: &[u8; MESSAGE_BYTES]) -> io::Result<Self> {
        let mut fields = Fields { packet, at: 0 };
        let (version, kind) = (fields.word(), fields.word());
        if kind != kind::REFUSED && version != VERSION {
            return Err(invalid("message of another version"));
        }
        Ok(match kind {
            kind::WELCOME => {
                let geometry = fields.geometry();
                let (token, process, offset) = (fields.long(), fields.word(), fields.long());
                let (features, namespace, idle_ms) = (fields.word(), fields.long(), fields.word());
                Reply::Welcome { geometry, token, process, offset, features, namespace, idle_ms }
            }
            kind::MAKE => Reply::Make { geometry: fields.geometry() },
            kind::CONTEXT_REPLY => Reply::Context { context: fields.word() },
            kind::PAIR_REPLY => {
                let pair = fields.word();
                Reply::Pair { pair, geometry: PairGeometry { slots: fields.word(), ring_bytes: fields.word() } }
            }
            kind::DOORBELL_REPLY => Reply::Doorbell { context: fields.word() },
            kind::ADOPTED => Reply::Adopted { token: fields.long(), slot: fields.word(), generation: fields.word() },
            kind::ADOPTED_AT => Reply::AdoptedAt { stack: fields.word() },
            kind::STACK_REPLY => Reply::Stack { stack: fields.word() },
            kind::FILE_REPLY => Reply::File { file: fields.word() },
            kind::STATS_REPLY => Reply::Stats,
            kind::REFUSED => Reply::Refused { errno: fields.word() as i32 },
            _ => return Err(invalid("unknown reply")),
        })
    }
}

/// A packet being written. No message has more fields than fit.
struct Packet {
    bytes: [u8; MESSAGE_BYTES],
    at: usize,
}

impl Packet {
    fn new(kind: u32) -> Self {
        Self::of(VERSION, kind)
    }
    fn of(version: u32, kind: u32) -> Self {
        Self { bytes: [0; MESSAGE_BYTES], at: 0 }.word(version).word(kind)
    }
    fn word(mut self, value: u32) -> Self {
        self.bytes[self.at..self.at + 4].copy_from_slice(&value.to_ne_bytes());
        self.at += 4;
        self
    }
    fn geometry(self, g: Geometry) -> Self {
        let sizes = [g.slots, g.app_slots, g.tx_bytes, g.rx_bytes, g.tx_most, g.rx_most, g.contexts, g.flow_groups];
        sizes.into_iter().fold(self, Self::word)
    }
    fn long(mut self, value: u64) -> Self {
        self.bytes[self.at..self.at + 8].copy_from_slice(&value.to_ne_bytes());
        self.at += 8;
        self
    }
}

/// A packet being read. No message has more fields than fit.
struct Fields<'a> {
    packet: &'a [u8; MESSAGE_BYTES],
    at: usize,
}

impl Fields<'_> {
    fn word(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }
    fn geometry(&mut self) -> Geometry {
        Geometry {
            slots: self.word(),
            app_slots: self.word(),
            tx_bytes: self.word(),
            rx_bytes: self.word(),
            tx_most: self.word(),
            rx_most: self.word(),
            contexts: self.word(),
            flow_groups: self.word(),
        }
    }
    fn long(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.packet[self.at..self.at + N]);
        self.at += N;
        out
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
