//! Commands on a slot and the accept records of a listener.

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
