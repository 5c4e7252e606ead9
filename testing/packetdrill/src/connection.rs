//! One connection, with the mapping between the script's sequence numbers and timestamps, and those on the wire.

use crate::frame::Frame;
use crate::notation::{SYN, Segment, TcpOption};

/// Offset added to the script's inbound sequence numbers. It makes them wrap after 512 bytes, in every script.
const REMOTE_OFFSET: u32 = 0xffff_fe00;

/// The byte of the payload at a position of the stream, so that reads and retransmissions can be checked.
pub fn pattern(position: u32) -> u8 {
    (position % 251) as u8 ^ (position / 251) as u8
}

/// A connection of a script.
#[derive(Clone, Debug)]
pub struct ScriptedConnection {
    /// Our port.
    pub local: u16,
    /// The peer's.
    pub remote: u16,
    /// Our numbers on the wire minus the script's, known after our first SYN.
    offset: Option<u32>,
    /// The peer's last initial sequence number.
    irs: Option<u32>,
    /// A SYN has arrived for an ended connection, so our SYN may start a new incarnation.
    reborn: bool,
    /// Pairs of the script's timestamps and ours on the wire.
    stamps: Vec<(u32, u32)>,
}

impl ScriptedConnection {
    /// A connection without segments yet.
    pub fn new(local: u16, remote: u16) -> Self {
        Self { local, remote, offset: None, irs: None, reborn: false, stamps: Vec::new() }
    }

    fn ours(&self, script: u32) -> u32 {
        script.wrapping_add(self.offset.unwrap_or(0))
    }

    /// The number on the wire for one of ours in the script.
    pub fn wire_seq(&self, script: u32) -> u32 {
        self.ours(script)
    }

    /// The peer's SYN may start a new incarnation, with another initial number of ours.
    pub fn rebirth(&mut self) {
        self.reborn = true;
    }

    /// The frame for a segment of the peer.
    pub fn inbound(&mut self, script: &Segment) -> Frame {
        if script.has(SYN) && (self.reborn || self.irs.is_none()) {
            self.irs = Some(script.seq);
        }
        let mut segment = script.clone();
        segment.seq = script.seq.wrapping_add(REMOTE_OFFSET);
        segment.ack = script.ack.map(|ack| self.ours(ack));
        for option in segment.options.iter_mut().flatten() {
            match option {
                TcpOption::Sack(blocks) => {
                    for block in blocks {
                        *block = (self.ours(block.0), self.ours(block.1));
                    }
                }
                TcpOption::Timestamps { echo, .. } => *echo = self.live_stamp(*echo),
                _ => {}
            }
        }
        let first = script.seq.wrapping_add(u32::from(script.has(SYN)));
        let payload = (0..script.len).map(|i| pattern(first.wrapping_add(i))).collect();
        Frame { source: self.remote, destination: self.local, segment, payload }
    }

    /// The timestamp on the wire for one of ours in the script.
    fn live_stamp(&self, script: u32) -> u32 {
        let exact = self.stamps.iter().rev().find(|(value, _)| *value == script);
        match (exact, self.stamps.first()) {
            (Some((_, live)), _) => *live,
            (None, Some((value, live))) if script != 0 => live.wrapping_add(script.wrapping_sub(*value)),
            _ => script,
        }
    }

    /// Learns our first number from our first SYN, if the script's line `expected` has a SYN, too.
    pub fn learn(&mut self, frame: &Frame, expected: &Segment) {
        let first = self.offset.is_none() || self.reborn;
        if frame.segment.has(SYN) && expected.has(SYN) && first {
            self.offset = Some(frame.segment.seq.wrapping_sub(expected.seq));
            self.reborn = false;
        }
    }

    /// Converts a frame of ours to the script's numbers, except for timestamps.
    pub fn outbound(&self, frame: &Frame) -> Segment {
        let mut segment = frame.segment.clone();
        segment.seq = segment.seq.wrapping_sub(self.offset.unwrap_or(0));
        segment.ack = segment.ack.map(|ack| ack.wrapping_sub(REMOTE_OFFSET));
        for option in segment.options.iter_mut().flatten() {
            if let TcpOption::Sack(blocks) = option {
                for block in blocks {
                    *block = (block.0.wrapping_sub(REMOTE_OFFSET), block.1.wrapping_sub(REMOTE_OFFSET));
                }
            }
        }
        segment
    }

    /// Replaces our timestamp by the script's. If `tick_us` is not 0, it must have advanced like the script's since the
    /// first one, within `tolerance_us`. Otherwise any value is accepted.
    pub fn stamp(&mut self, segment: &mut Segment, expected: &Segment, tick_us: u32, tolerance_us: u64) {
        let wanted = expected.options.iter().flatten().find_map(|option| match option {
            TcpOption::Timestamps { value, .. } => Some(*value),
            _ => None,
        });
        for option in segment.options.iter_mut().flatten() {
            let TcpOption::Timestamps { value, .. } = option else { continue };
            let live = *value;
            let Some(wanted) = wanted else { continue };
            let by_first = self.stamps.first().map(|(script, first)| script.wrapping_add(live.wrapping_sub(*first)));
            *value = match by_first {
                Some(scripted) if tick_us > 0 => {
                    let off_us = u64::from((scripted.wrapping_sub(wanted) as i32).unsigned_abs()) * u64::from(tick_us);
                    if off_us <= tolerance_us { wanted } else { scripted }
                }
                _ => wanted,
            };
            self.stamps.push((wanted, live));
        }
    }

    /// Is the payload the application's data at this position?
    pub fn payload_is_right(&self, segment: &Segment, payload: &[u8]) -> bool {
        let first = segment.seq.wrapping_add(u32::from(segment.has(SYN)));
        payload.iter().zip(0..).all(|(byte, i)| *byte == pattern(first.wrapping_add(i)))
    }

    /// Sequence number of the peer's first byte in the script.
    pub fn first_received(&self) -> u32 {
        self.irs.unwrap_or(0).wrapping_add(1)
    }
}
