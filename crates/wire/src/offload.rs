//! Checksum and segmentation offload: work that a device has done, or has to do, on a frame.

use std::sync::atomic::AtomicU8;

/// How far a received frame's TCP checksum can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxChecksum {
    /// Unknown: it must be computed.
    #[default]
    Unknown,
    /// The port vouches for it (offload, or memory that never left the host).
    Valid,
    /// A virtual peer may have left only the pseudo-header sum in the field (CHECKSUM_PARTIAL over veth).
    /// Either that or a correct sum is accepted.
    MaybePartial,
}

/// A super-segment's payload where it lies: up to three pieces of memory that another process may write at any moment. So they
/// are no plain bytes. The pieces behind the last are empty.
pub type Payload<'a> = [&'a [AtomicU8]; 3];

/// Work that the port has to do on a frame before sending it (like virtio-net's header).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffload {
    /// 0 = one packet. Otherwise the frame is a super-segment, to be cut into TCP segments with this payload size.
    pub gso_bytes: u16,
    /// Where the sum of the checksum starts (offset of the TCP header), if `checksum_needed`.
    pub checksum_start: u16,
    /// Offset of the checksum field from `checksum_start`.
    pub checksum_offset: u16,
    /// The checksum field holds only the pseudo-header sum.
    pub checksum_needed: bool,
}
