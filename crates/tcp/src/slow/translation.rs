//! What becomes of the segments of spliced connections, as the host carries it out.

use crate::flow::{FourTuple, Link};
use crate::seq::Seq;

/// What becomes of the segments of one connection's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The connection that they come on, and the one that they go on.
    pub from: FourTuple,
    /// See `from`.
    pub to: FourTuple,
    /// Their way out. Its port is named even if our own segments to `from`'s peer take the same: its segments may come by another.
    pub link: Link,
    /// What is added to the sequence number,
    pub seq: u32,
    /// to the acknowledgement,
    pub ack: u32,
    /// to the timestamp's value
    pub tsval: u32,
    /// and to its echo.
    pub tsecr: u32,
    /// By how much the window's field is shifted to the left; negative: to the right.
    pub shift: i8,
    /// What the peer has acknowledged so far.
    pub acked: Seq,
}

/// What has become of the segments of one connection's peer. Sequence numbers are as the peer has sent them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// The number after its FIN.
    pub fin: Option<Seq>,
    /// The number of its RST.
    pub rst: Option<Seq>,
    /// Its last acknowledgement, unless one overtook it that is not much newer.
    pub acked: Seq,
    /// The newest one that a far older one came after: one of the two was forged, or the other was long on its way.
    pub newest: Seq,
    /// How many there were.
    pub segments: u64,
    /// Their payload, with what has come again.
    pub bytes: u64,
}
