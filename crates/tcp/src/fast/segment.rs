//! A received segment, as far as the state machine reads it.

use super::context::FastState;
use towpath_wire::segment::{self, SackBlocks, UsualSegment, flags};

/// The variables of a received segment (RFC 9293 §3.3.1). Addresses and ports have done their work when its flow is
/// found.
///
/// Numbers that stand side by side in a frame are turned around together: so the first is the second here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Segment {
    /// SEG.ACK.
    pub ack: u32,
    /// SEG.SEQ.
    pub seq: u32,
    /// TSecr of the timestamp option.
    pub echo: u32,
    /// TSval of the timestamp option; 0 if it has none.
    pub stamp: u32,
    /// Bytes of payload.
    pub payload_len: u32,
    /// From the low byte up: control bits; one bit ([`STAMPED`]); then the number in [`FastState::sacks`] plus one, 0 = without
    /// blocks. One word, as they are looked at together.
    shape: u32,
    /// SEG.WND, unscaled.
    pub window: u16,
    /// IPv4 type of service or IPv6 traffic class.
    pub tos: u8,
    /// Offset of the payload in the frame. IPv6 allows for 16 KiB of headers.
    pub payload_offset: u16,
    /// SEG.UP; it means something only with [`flags::URG`].
    pub urgent: u16,
}

/// It has the timestamp option.
const STAMPED: u32 = 1 << 8;
/// Where the number of the SACK option begins.
const SACK_SHIFT: u32 = 9;

impl Segment {
    /// The variables of a parsed segment. Its SACK blocks, if it has any, go to `sacks`.
    #[inline(always)]
    pub fn of(s: &segment::Segment, sacks: &mut Vec<SackBlocks>) -> Self {
        let stamps = s.options.timestamps.unwrap_or_default();
        let mut shape = u32::from(s.flags);
        if s.options.timestamps.is_some() {
            shape |= STAMPED;
        }
        if !s.options.sack.is_empty() {
            sacks.push(s.options.sack);
            shape |= (sacks.len() as u32) << SACK_SHIFT;
        }
        Self {
            seq: s.seq,
            ack: s.ack,
            payload_offset: s.payload_offset as u16,
            payload_len: s.payload_len,
            window: s.window,
            urgent: s.urgent,
            tos: s.tos,
            stamp: stamps.value,
            echo: stamps.echo,
            shape,
        }
    }

    /// The same of a segment in the usual layout, without [`flags::URG`].
    #[inline(always)]
    pub fn usual(s: &UsualSegment<'_>) -> Self {
        let (numbers, stamps) = (s.numbers(), s.stamps());
        let usual = Self {
            ack: numbers as u32,
            seq: (numbers >> 32) as u32,
            echo: stamps as u32,
            stamp: (stamps >> 32) as u32,
            payload_len: s.payload_len(),
            shape: u32::from(s.flags()) | STAMPED,
            window: s.window(),
            tos: s.tos(),
            payload_offset: UsualSegment::HEADERS as u16,
            urgent: 0,
        };
        debug_assert_eq!(usual, Self { urgent: 0, ..Self::of(&s.read(), &mut Vec::new()) });
        usual
    }

    /// Control bits.
    #[inline(always)]
    pub fn flags(&self) -> u8 {
        self.shape as u8
    }

    /// It has the timestamp option.
    #[inline(always)]
    pub fn stamped(&self) -> bool {
        self.shape & STAMPED != 0
    }

    /// It has SACK blocks.
    #[inline(always)]
    pub fn reports(&self) -> bool {
        self.shape >> SACK_SHIFT != 0
    }

    /// It has the timestamp option, no SACK blocks, and of the control bits ACK, perhaps PSH.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.shape & !u32::from(flags::PSH) == u32::from(flags::ACK) | STAMPED
    }

    /// Its SACK blocks, if it has any, stand at the end of this list from now on.
    #[inline]
    pub fn put_sack(&mut self, blocks: &SackBlocks, sacks: &mut Vec<SackBlocks>) {
        if self.reports() {
            sacks.push(*blocks);
            self.shape = self.shape & ((1 << SACK_SHIFT) - 1) | (sacks.len() as u32) << SACK_SHIFT;
        }
    }

    /// Its SACK blocks.
    pub fn sack(&self, state: &FastState) -> SackBlocks {
        let number = ((self.shape >> SACK_SHIFT) as usize).checked_sub(1);
        number.and_then(|number| state.sacks.get(number)).copied().unwrap_or(SackBlocks::NONE)
    }
}
