//! First stage: parse, verify the checksum, find the flow. Touches no flow's state.

use super::batch::{Batch, Copy};
use super::context::Outbox;
use super::lookup::Lookup;
use crate::buffers::RxBatch;
use crate::counters::{Counters, Drop, Stage};
use crate::flow::{FourTuple, PortId};
use crate::messages::ToSlow;
use towpath_wire::error::ParseError;
use towpath_wire::icmp;
use towpath_wire::offload::RxChecksum;
use towpath_wire::segment::{Segment, checksum_ok, flags, parse_into};

/// The tables in which the stage looks, and the queue for segments that are not for the next stage.
pub(super) struct Intake<'a> {
    pub lookup: &'a Lookup,
    pub outbox: &'a mut Outbox,
    pub counters: &'a mut Counters,
    /// Segments that may wait for the slow path.
    pub slow_segments: usize,
}

/// Fills `batch` with the segments of installed flows; hands others to the slow path.
pub(super) fn run(mut intake: Intake<'_>, port: PortId, frames: &impl RxBatch, batch: &mut Batch) {
    intake.counters.stage(Stage::Pre, frames.len());
    for i in 0..frames.len() {
        let frame = frames.bytes(i);
        let item = batch.next();
        match parse_into(frame, &mut item.segment) {
            Ok(()) => {}
            Err(ParseError::NotTcp) if icmp::parse(frame).is_some() => {
                intake.pass_to_slow(port, frame);
                continue;
            }
            Err(error) => {
                intake.counters.drop(reason(error));
                continue;
            }
        }
        if let Some(reason) = check(frame, &item.segment, frames.checksum(i)) {
            intake.counters.drop(reason);
            continue;
        }
        let Some(flow) = intake.lookup.find(&tuple(&item.segment)) else {
            intake.pass_to_slow(port, frame);
            continue;
        };
        (item.flow, item.frame, item.copy) = (flow, i as u32, Copy::default());
        batch.take();
    }
}

/// Addresses of a received segment, seen from here.
#[inline]
fn tuple(segment: &Segment) -> FourTuple {
    FourTuple {
        local: segment.destination,
        local_port: segment.destination_port,
        remote: segment.source,
        remote_port: segment.source_port,
    }
}

fn reason(error: ParseError) -> Drop {
    match error {
        ParseError::Truncated => Drop::Truncated,
        ParseError::NotTcp => Drop::NotTcp,
        ParseError::IpChecksum => Drop::IpChecksum,
        ParseError::BadHeader => Drop::BadHeader,
        ParseError::BadSource => Drop::BadSource,
    }
}

/// The fault of a segment, if it has one.
#[inline]
fn check(frame: &[u8], segment: &Segment, checksum: RxChecksum) -> Option<Drop> {
    // RFC 9293 MUST-3.
    if !checksum_ok(frame, segment, checksum) {
        return Some(Drop::TcpChecksum);
    }
    // At most one of SYN, FIN and RST makes sense.
    let control = segment.flags & (flags::SYN | flags::FIN | flags::RST);
    (control & control.wrapping_sub(1) != 0).then_some(Drop::BadFlags)
}

impl Intake<'_> {
    /// A copy for the slow path. This allocates: only segments without an installed flow come here, and they are
    /// bounded.
    #[cold]
    fn pass_to_slow(&mut self, port: PortId, frame: &[u8]) {
        if self.outbox.segments >= self.slow_segments {
            self.counters.drop(Drop::SlowPathFull);
            return;
        }
        self.outbox.segments += 1;
        self.outbox.messages.push_back(ToSlow::Segment(port, frame.into()));
    }
}
