//! What a device has done, or has to do, to a frame.

/// How far a received frame's TCP checksum can be relied on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxChecksum {
    /// Nothing is known: it must be computed.
    #[default]
    Unknown,
    /// The port vouches for it (offload, or memory that never left the host).
    Valid,
    /// A virtual peer may have left only the pseudo-header sum in the field (CHECKSUM_PARTIAL over veth); accept either
    /// that or a correct sum.
    MaybePartial,
}

/// What the port has to do to a frame before it is on the wire (as virtio-net's header).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffload {
    /// 0 = one packet; else the frame is a super-segment to be cut into TCP segments of this payload size.
    pub gso_bytes: u16,
    /// Where the sum of the checksum starts (offset of the TCP header), if `checksum_needed`.
    pub checksum_start: u16,
    /// Offset of the checksum field from `checksum_start`.
    pub checksum_offset: u16,
    /// The checksum field holds only the pseudo-header sum.
    pub checksum_needed: bool,
}
