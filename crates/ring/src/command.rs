//! Commands on a slot and the accept records of a listener.

use crate::CommandLine;
use crate::dirty::Word;
use core::sync::atomic::Ordering;

/// Values of [`crate::CommandLine::op`].
pub mod op {
    /// Open a connection to `remote_addr:remote_port`.
    pub const CONNECT: u32 = 1;
    /// Listen on `local_addr:local_port`. The bound kernel socket that reserves the port was passed before by
    /// [`crate::control::Request::Reserve`].
    pub const LISTEN: u32 = 2;
}

/// [`crate::StackLine::command_result`]: this stack does not carry that destination; use a kernel socket.
pub const NOT_OURS: i32 = i32::MIN;

/// The fields of a [`CommandLine`], copied once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// `op::*` (unchecked).
    pub op: u32,
    /// IPv4 address of the peer (connect), host byte order.
    pub remote_addr: u32,
    /// Port of the peer (connect); a port only if it is below 65,536.
    pub remote_port: u32,
    /// Local IPv4 address, host byte order; 0 = any.
    pub local_addr: u32,
    /// Local port; 0 = let the stack choose (connect only).
    pub local_port: u32,
    /// Backlog (listen).
    pub backlog: u32,
    /// Initial `app_flags`.
    pub flags: u32,
}

impl CommandLine {
    /// Application: writes a command and returns its sequence number, which the answer's `command_done` will show. The
    /// slot's last command must have been answered.
    pub fn post(&self, command: &Command) -> u32 {
        let Command { op, remote_addr, remote_port, local_addr, local_port, backlog, flags } = *command;
        publish(&self.seq, self.fields(), [op, remote_addr, remote_port, local_addr, local_port, backlog, flags])
    }

    /// Stack: copies the command once, with its sequence number. Whole if the application keeps to the protocol, and
    /// else some mixture of values, each of which is checked anyway.
    pub fn read(&self) -> (u32, Command) {
        let (seq, fields) = consume(&self.seq, self.fields());
        let [op, remote_addr, remote_port, local_addr, local_port, backlog, flags] = fields;
        (seq, Command { op, remote_addr, remote_port, local_addr, local_port, backlog, flags })
    }

    fn fields(&self) -> [&core::sync::atomic::AtomicU32; 7] {
        let Self { op, remote_addr, remote_port, local_addr, local_port, backlog, flags, .. } = self;
        [op, remote_addr, remote_port, local_addr, local_port, backlog, flags]
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

/// One accepted connection, 16 bytes, in the listener's receive ring (which holds nothing else).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The slot of the new connection (checked against the layout by the reader).
    pub slot: u32,
    /// Its generation, to be stored into `AppLine::generation` by the acceptor.
    pub generation: u32,
    /// Peer IPv4 address, host byte order.
    pub remote_addr: u32,
    /// Peer port.
    pub remote_port: u16,
}

impl Accepted {
    /// Bytes of one record.
    pub const BYTES: usize = 16;

    /// The record as it stands in the ring (little-endian words; the last two bytes are zero).
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..4].copy_from_slice(&self.slot.to_le_bytes());
        out[4..8].copy_from_slice(&self.generation.to_le_bytes());
        out[8..12].copy_from_slice(&self.remote_addr.to_le_bytes());
        out[12..14].copy_from_slice(&self.remote_port.to_le_bytes());
        out
    }

    /// Reads a record.
    pub fn from_bytes(b: &[u8; Self::BYTES]) -> Self {
        let word = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        Self {
            slot: word(0),
            generation: word(4),
            remote_addr: word(8),
            remote_port: u16::from_le_bytes([b[12], b[13]]),
        }
    }
}
