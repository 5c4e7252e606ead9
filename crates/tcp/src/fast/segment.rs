//! A received segment, as far as the state machine reads it.

use super::context::FastState;
use towpath_wire::segment::{self, SackBlocks};

/// The variables of a received segment (RFC 9293 §3.3.1). Addresses and ports have done their work when its flow is
/// found.
///
/// Numbers that are turned around do not stand side by side: turned together, in a vector register, they take more
/// instructions.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Segment {
    /// SEG.SEQ.
    pub seq: u32,
    /// Bytes of payload.
    pub payload_len: u32,
    /// SEG.ACK.
    pub ack: u32,
    /// Offset of the payload in the frame.
    pub payload_offset: u32,
    /// TSval of the timestamp option; 0 if it has none.
    pub stamp: u32,
    /// Number in [`FastState::sacks`] plus one; 0 = without blocks.
    sack: u32,
    /// TSecr of the timestamp option.
    pub echo: u32,
    /// SEG.WND, unscaled.
    pub window: u16,
    /// SEG.UP.
    pub urgent: u16,
    /// Control bits.
    pub flags: u8,
    /// IPv4 type of service or IPv6 traffic class.
    pub tos: u8,
    /// It has the timestamp option.
    pub stamped: bool,
}

impl Segment {
    /// The variables of a parsed segment. Its SACK blocks, if it has any, go to `sacks`.
    #[inline(always)]
    pub fn of(s: &segment::Segment, sacks: &mut Vec<SackBlocks>) -> Self {
        let stamps = s.options.timestamps.unwrap_or_default();
        if !s.options.sack.is_empty() {
            sacks.push(s.options.sack);
        }
        Self {
            seq: s.seq,
            ack: s.ack,
            payload_offset: s.payload_offset,
            payload_len: s.payload_len,
            window: s.window,
            urgent: s.urgent,
            flags: s.flags,
            tos: s.tos,
            stamped: s.options.timestamps.is_some(),
            stamp: stamps.value,
            echo: stamps.echo,
            sack: if s.options.sack.is_empty() { 0 } else { sacks.len() as u32 },
        }
    }

    /// It has SACK blocks.
    #[inline(always)]
    pub fn reports(&self) -> bool {
        self.sack != 0
    }

    /// Its SACK blocks, if it has any, stand at the end of this list from now on.
    #[inline]
    pub fn put_sack(&mut self, blocks: &SackBlocks, sacks: &mut Vec<SackBlocks>) {
        if self.reports() {
            sacks.push(*blocks);
            self.sack = sacks.len() as u32;
        }
    }

    /// Its SACK blocks.
    pub fn sack(&self, state: &FastState) -> SackBlocks {
        let number = (self.sack as usize).checked_sub(1);
        number.and_then(|number| state.sacks.get(number)).copied().unwrap_or(SackBlocks::NONE)
    }
}
