//! Commands on a slot and the accept records of a listener.

use crate::word::Word;
use crate::{CommandLine, address};
use core::net::Ipv6Addr;
use core::sync::atomic::{AtomicU32, Ordering};

/// Values of [`crate::CommandLine::op`].
pub mod op {
    /// Opens a connection to `remote_addr:remote_port`. With a local port it needs the proof of LISTEN.
    pub const CONNECT: u32 = 1;
    /// Listens on `local_addr:local_port`. A bound kernel socket proves that the client has the port
    /// ([`crate::control::Request::Reserve`]).
    pub const LISTEN: u32 = 2;
    /// Brings the information line of a connection up to date. It is for a slot in use, also one that the stack has allocated;
    /// `AppLine::generation` must be the slot's.
    pub const REFRESH: u32 = 3;
    /// Sends a part of a file. Like `REFRESH`, this and the next two are for established connections; see
    /// [`crate::sideband`].
    pub const FILE: u32 = 4;
    /// Sends a TLS record that is not application data.
    pub const RECORD: u32 = 5;
    /// Sets an option of kTLS.
    pub const SECURE: u32 = 6;
    /// Asks whether `local_addr` is an address of the stack's network. The answer is 0 if it is, else an error. A stack
    /// that does not know the command answers with an error, too. The answer frees the slot.
    pub const HAS: u32 = 7;
    /// Asks whether a socket may be bound to `local_addr:local_port`, given what the stack has there. [`super::V6ONLY`]
    /// counts. The answer is 0 if it may, or `-EADDRINUSE` if a connection or a listener of the stack has the port. Any
    /// other error means that the stack cannot tell. The answer frees the slot.
    pub const BIND: u32 = 8;
    /// Joins a socket of another network namespace to a listener at `remote_addr:remote_port`, both of them clients of this
    /// service. It needs a proof ([`crate::control::Request::Join`]). Any error means that the connection goes its usual way.
    pub const JOIN: u32 = 9;
    /// Splices this connection with that of the slot `remote_port` of the same region. Like `REFRESH` it is for connections in
    /// use. `-EAGAIN` means that there is something that the program has not passed on yet.
    pub const SPLICE: u32 = 10;
    /// [`SPLICE`] for a program that still counts. From then on [`crate::CountsLine::passed_on`] of both says how much
    /// has arrived at the other peer, with an event when it is more.
    pub const SPLICE_TOLD: u32 = 11;
}

/// Bit of [`crate::CommandLine::flags`], beside the `app_flags`: a listener on `::` does not take IPv4 (`IPV6_V6ONLY`).
pub const V6ONLY: u32 = 1 << 31;

/// Bit of [`crate::CommandLine::flags`], beside the `app_flags`: the answer to this CONNECT may be [`not_ours::JOIN`].
pub const MAY_JOIN: u32 = 1 << 30;

/// [`crate::StackLine::command_result`]: this stack does not carry that destination; use a kernel socket.
/// To it one of [`not_ours`] is added.
pub const NOT_OURS: i32 = i32::MIN;

/// Why the stack does not carry something. It is for people; nothing depends on it.
pub mod not_ours {
    /// No reason is given.
    pub const UNSAID: u32 = 0;
    /// An address of this host at which no client of the service listens.
    pub const NO_LISTENER: u32 = 1;
    /// No interface of the service leads there, or the service does not have the local address.
    pub const ELSEWHERE: u32 = 2;
    /// The operator's policy leaves it to the kernel.
    pub const POLICY: u32 = 3;
    /// TCP does not connect to such an address.
    pub const ADDRESS: u32 = 4;
    /// The operator's policy gives it to another stack, whose number stands above the reason ([`super::given_to`]). The
    /// command is to be repeated there ([`crate::control::Request::Stack`]), and nowhere else.
    pub const STACK: u32 = 5;
    /// The client, or the socket that it shows, belongs to another network namespace.
    pub const NAMESPACE: u32 = 6;
    /// The host's firewall refuses the first SYN, or changes its addresses.
    pub const FIREWALL: u32 = 7;
    /// The operator's policy lets it be joined to a listener of another network namespace. That one's stack, whose number
    /// stands above the reason ([`super::join_at`]), is to be asked by JOIN. If it refuses, CONNECT is to be repeated here
    /// without [`super::MAY_JOIN`].
    pub const JOIN: u32 = 8;
    /// How many reasons there are.
    pub const REASONS: usize = 9;
    /// Their names, for people and counters.
    pub const NAMES: [&str; REASONS] =
        ["unsaid", "no_listener", "elsewhere", "policy", "address", "stack", "namespace", "firewall", "join"];
}

/// Most other stacks that a service may name.
pub const MAX_STACKS: usize = 15;
/// In [`not_ours::JOIN`]: the stack of the service itself.
pub const HOME: u8 = MAX_STACKS as u8;
/// Where the number of a stack begins in a `command_result`, bits.
const STACK_SHIFT: u32 = 8;

/// The reason in a `command_result`; `None` = it is not [`NOT_OURS`] with a reason.
pub fn not_ours_because(result: i32) -> Option<u32> {
    let word = result.wrapping_sub(NOT_OURS) as u32;
    let (reason, stack) = (word & ((1 << STACK_SHIFT) - 1), word >> STACK_SHIFT);
    let whole = match reason {
        not_ours::STACK => (stack as usize) < MAX_STACKS,
        not_ours::JOIN => stack <= u32::from(HOME),
        _ => stack == 0,
    };
    ((reason as usize) < not_ours::REASONS && whole).then_some(reason)
}

/// The `command_result` that gives a command to the stack of this number (below [`MAX_STACKS`]).
pub fn give_to(stack: u8) -> i32 {
    NOT_OURS + not_ours::STACK as i32 + (i32::from(stack) << STACK_SHIFT)
}

/// The stack that a `command_result` gives the command to, by the service's number of it.
pub fn given_to(result: i32) -> Option<u32> {
    let stack = || (result.wrapping_sub(NOT_OURS) as u32) >> STACK_SHIFT;
    (not_ours_because(result) == Some(not_ours::STACK)).then(stack)
}

/// The `command_result` that lets a connection be joined at the stack of this number (at most [`HOME`]).
pub fn join_at(stack: u8) -> i32 {
    NOT_OURS + not_ours::JOIN as i32 + (i32::from(stack) << STACK_SHIFT)
}

/// The stack at which a `command_result` lets the connection be joined, by the service's number of it or [`HOME`].
pub fn joined_at(result: i32) -> Option<u32> {
    let stack = || (result.wrapping_sub(NOT_OURS) as u32) >> STACK_SHIFT;
    (not_ours_because(result) == Some(not_ours::JOIN)).then(stack)
}

/// The fields of a [`CommandLine`], copied once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// `op::*` (unchecked).
    pub op: u32,
    /// Address of the peer (connect).
    pub remote_addr: Ipv6Addr,
    /// Port of the peer (connect); a port only if it is below 65,536.
    pub remote_port: u32,
    /// Local address; `::` = any, `::ffff:0.0.0.0` = any of IPv4.
    pub local_addr: Ipv6Addr,
    /// Local port; 0 = let the stack choose (connect only).
    pub local_port: u32,
    /// Backlog (listen).
    pub backlog: u32,
    /// Initial `app_flags`, and [`V6ONLY`].
    pub flags: u32,
}

impl Default for Command {
    fn default() -> Self {
        let any = Ipv6Addr::UNSPECIFIED;
        Self { op: 0, remote_addr: any, remote_port: 0, local_addr: any, local_port: 0, backlog: 0, flags: 0 }
    }
}

impl CommandLine {
    /// Application: writes a command and returns its sequence number, which the answer's `command_done` will show. The
    /// slot's last command must have been answered.
    pub fn post(&self, command: &Command) -> u32 {
        let Command { op, remote_addr, remote_port, local_addr, local_port, backlog, flags } = *command;
        let ([r0, r1, r2, r3], [l0, l1, l2, l3]) = (address::words(remote_addr), address::words(local_addr));
        let values = [op, r0, r1, r2, r3, remote_port, l0, l1, l2, l3, local_port, backlog, flags];
        publish(&self.seq, self.fields(), values)
    }

    /// Stack: copies the command once, with its sequence number. The copy is whole if the application keeps to the
    /// protocol. Else it is a mixture of values, each of which is checked anyway.
    pub fn read(&self) -> (u32, Command) {
        let (seq, fields) = consume(&self.seq, self.fields());
        let [op, r0, r1, r2, r3, remote_port, l0, l1, l2, l3, local_port, backlog, flags] = fields;
        let remote_addr = address::of_words([r0, r1, r2, r3]);
        let local_addr = address::of_words([l0, l1, l2, l3]);
        (seq, Command { op, remote_addr, remote_port, local_addr, local_port, backlog, flags })
    }

    fn fields(&self) -> [&AtomicU32; 13] {
        let Self { op, remote_addr: [r0, r1, r2, r3], remote_port, local_addr, local_port, backlog, flags, .. } = self;
        let [l0, l1, l2, l3] = local_addr;
        [op, r0, r1, r2, r3, remote_port, l0, l1, l2, l3, local_port, backlog, flags]
    }
}

/// Stores the fields, then the next sequence number (never 0), which makes them valid; returns it.
pub fn publish<W: Word, const N: usize>(seq: &W, fields: [&W; N], values: [u32; N]) -> u32 {
    for (field, value) in fields.into_iter().zip(values) {
        field.store(value, Ordering::Relaxed);
    }
    let next = match seq.load(Ordering::Relaxed).wrapping_add(1) {
        0 => 1,
        next => next,
    };
    seq.store(next, Ordering::Release);
    next
}

/// Loads the sequence number, then the fields that belong to it.
pub fn consume<W: Word, const N: usize>(seq: &W, fields: [&W; N]) -> (u32, [u32; N]) {
    let seq = seq.load(Ordering::Acquire);
    (seq, fields.map(|field| field.load(Ordering::Relaxed)))
}

/// One accepted connection, 32 bytes, in the listener's receive ring (which holds nothing else).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The slot of the new connection (checked against the layout by the reader).
    pub slot: u32,
    /// Its generation, to be stored into `AppLine::generation` by the acceptor.
    pub generation: u32,
    /// Peer's address.
    pub remote_addr: Ipv6Addr,
    /// Peer port.
    pub remote_port: u16,
}

impl Accepted {
    /// Bytes of one record.
    pub const BYTES: usize = 32;

    /// The record as it stands in the ring (numbers little-endian, the address in network order; the last six bytes are
    /// zero).
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..4].copy_from_slice(&self.slot.to_le_bytes());
        out[4..8].copy_from_slice(&self.generation.to_le_bytes());
        out[8..24].copy_from_slice(&self.remote_addr.octets());
        out[24..26].copy_from_slice(&self.remote_port.to_le_bytes());
        out
    }

    /// Reads a record.
    pub fn from_bytes(b: &[u8; Self::BYTES]) -> Self {
        let word = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let mut octets = [0; 16];
        octets.copy_from_slice(&b[8..24]);
        Self {
            slot: word(0),
            generation: word(4),
            remote_addr: Ipv6Addr::from_octets(octets),
            remote_port: u16::from_le_bytes([b[24], b[25]]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_an_accepted_connection_is_read_as_it_was_written() {
        let accepted = Accepted {
            slot: 0x0403_0201,
            generation: 0x0807_0605,
            remote_addr: Ipv6Addr::from_octets(core::array::from_fn(|at| 9 + at as u8)),
            remote_port: 0x1a19,
        };
        let mut bytes = accepted.to_bytes();
        assert_eq!(bytes[..26], core::array::from_fn::<u8, 26, _>(|at| 1 + at as u8));
        assert_eq!(bytes[26..], [0; 6]);
        bytes[26..].fill(0xff);
        assert_eq!(Accepted::from_bytes(&bytes), accepted);
    }

    #[test]
    fn a_result_names_a_reason_and_where_it_goes_a_stack() {
        for reason in (0..not_ours::REASONS as u32).filter(|reason| ![not_ours::STACK, not_ours::JOIN].contains(reason))
        {
            let result = NOT_OURS + reason as i32;
            assert_eq!((not_ours_because(result), given_to(result), joined_at(result)), (Some(reason), None, None));
        }
        for stack in 0..=HOME {
            let result = join_at(stack);
            assert_eq!((not_ours_because(result), joined_at(result)), (Some(not_ours::JOIN), Some(stack.into())));
            assert_eq!(given_to(result), None);
        }
        for stack in 0..MAX_STACKS as u8 {
            let result = give_to(stack);
            assert_eq!((not_ours_because(result), given_to(result)), (Some(not_ours::STACK), Some(stack.into())));
        }
        for other in
            [0, -libc::EPERM, NOT_OURS + 9, NOT_OURS + 0x100, give_to(15), join_at(16), NOT_OURS.wrapping_sub(1)]
        {
            assert_eq!((not_ours_because(other), given_to(other), joined_at(other)), (None, None, None), "{other:#x}");
        }
    }
}
