//! A received segment, as far as the state machine reads it.

use towpath_wire::segment::{self, SackBlocks, Timestamps};

/// The variables of a received segment (RFC 9293 §3.3.1). Addresses and ports have done their work when its flow is
/// found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// SEG.SEQ.
    pub seq: u32,
    /// SEG.ACK.
    pub ack: u32,
    /// Offset of the payload in the frame.
    pub payload_offset: u32,
    /// Bytes of payload.
    pub payload_len: u32,
    /// SEG.WND, unscaled.
    pub window: u16,
    /// SEG.UP.
    pub urgent: u16,
    /// Control bits.
    pub flags: u8,
    /// IPv4 type of service or IPv6 traffic class.
    pub tos: u8,
    /// The timestamp option.
    pub timestamps: Option<Timestamps>,
    /// The SACK option.
    pub sack: SackBlocks,
}

impl Segment {
    /// The variables of a parsed segment.
    #[inline(always)]
    pub fn of(s: &segment::Segment) -> Self {
        Self {
            seq: s.seq,
            ack: s.ack,
            payload_offset: s.payload_offset,
            payload_len: s.payload_len,
            window: s.window,
            urgent: s.urgent,
            flags: s.flags,
            tos: s.tos,
            timestamps: s.options.timestamps,
            sack: s.options.sack,
        }
    }
}
