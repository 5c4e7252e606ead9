//! First stage: parse, verify the checksum, find the flow. Touches no flow's state.

use super::State;
use super::batch::{Batch, Copy};
use crate::buffers::{PortId, RxBatch};
use crate::counters::{Drop, Stage};
use crate::flow::FourTuple;
use crate::messages::ToSlow;
use towpath_wire::icmp;
use towpath_wire::offload::RxChecksum;
use towpath_wire::segment::{ParseError, Segment, checksum_ok, flags, parse_into};

/// Fills `batch` with the segments of installed flows; hands others to the slow path.
pub(super) fn run(state: &mut State, port: PortId, frames: &impl RxBatch, batch: &mut Batch) {
    state.counters.stage(Stage::Pre, frames.len());
    for i in 0..frames.len() {
        let frame = frames.bytes(i);
        let item = batch.place();
        match parse_into(frame, &mut item.segment) {
            Ok(()) => {}
            Err(ParseError::NotTcp) if icmp::parse(frame).is_some() => {
                to_slow(state, port, frame);
                continue;
            }
            Err(error) => {
                state.counters.drop(reason(error));
                continue;
            }
        }
        if let Some(reason) = check(frame, &item.segment, frames.checksum(i)) {
            state.counters.drop(reason);
            continue;
        }
        let Some(flow) = state.lookup.find(&tuple(&item.segment)) else {
            to_slow(state, port, frame);
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

/// What is wrong with a segment.
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

/// A copy for the slow path. This allocates: only segments without an installed flow come here, and they are bounded.
#[cold]
fn to_slow(state: &mut State, port: PortId, frame: &[u8]) {
    if state.slow_segments >= state.config.slow_segments {
        state.counters.drop(Drop::SlowPathFull);
        return;
    }
    state.slow_segments += 1;
    state.outbox.push_back(ToSlow::Segment(port, frame.into()));
}
