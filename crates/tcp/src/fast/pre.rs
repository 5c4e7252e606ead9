//! First stage: parse, verify the checksum, find the flow. Touches no flow's state.

use super::batch::{Batch, Item};
use super::context::Outbox;
use super::lookup::Lookup;
use super::segment::Segment;
use crate::buffers::RxBatch;
use crate::counters::{Counters, Drop, Stage};
use crate::flow::{FlowId, FourTuple, PortId};
use towpath_probes as probes;
use towpath_wire::error::ParseError;
use towpath_wire::icmp;
use towpath_wire::offload::RxChecksum;
use towpath_wire::segment::{self, SackBlocks, UsualSegment, checksum_ok, flags, parse};

/// Where the stage looks flows up, and where it puts segments that are not for the next stage. The
/// [pipeline](super::pipeline) has another one than [`Intake`].
pub(super) trait Around {
    /// What a look-up by a segment's addresses gives.
    type Flow: Clone + Default;
    /// The flow with these addresses, if there may be one.
    fn find(&self, tuple: &FourTuple) -> Option<Self::Flow>;
    /// The same of IPv4 addresses (the peer's, then ours) and ports, as they lie in a received frame.
    fn find_v4(&self, ends: ([u8; 8], [u8; 4])) -> Option<Self::Flow>;
    /// The SACK options of the batch.
    fn sacks(&mut self) -> &mut Vec<SackBlocks>;
    fn counters(&mut self) -> &mut Counters;
    /// A frame that is the slow path's: one without an installed flow.
    fn pass_to_slow(&mut self, port: PortId, frame: &[u8]);
}

/// The tables in which the stage looks, and the queue for segments that are not for the next stage.
pub(super) struct Intake<'a> {
    pub lookup: &'a Lookup,
    pub outbox: &'a mut Outbox,
    pub counters: &'a mut Counters,
    pub sacks: &'a mut Vec<SackBlocks>,
    /// Segments that may wait for the slow path.
    pub slow_segments: usize,
}

/// The flags that begin and end a connection.
const CONTROL: u8 = flags::SYN | flags::FIN | flags::RST;
/// The flags of segments that are parsed wholly.
const UNUSUAL: u8 = CONTROL | flags::URG;

/// Fills `batch` with the segments of installed flows; hands others to the slow path.
#[inline]
pub(super) fn run<A: Around>(mut intake: A, port: PortId, frames: &impl RxBatch, batch: &mut Batch<A::Flow>) {
    intake.counters().stage(Stage::Pre, frames.len());
    let (places, mut used) = (batch.places(frames.len()), 0);
    for i in 0..frames.len() {
        let Some(place) = places.get_mut(used) else { break };
        let (frame, checksum) = (frames.bytes(i), frames.checksum(i));
        if let Some(s) = UsualSegment::check(frame)
            && s.flags() & UNUSUAL == 0
            && s.checksum_ok(frame, checksum)
            && let Some(flow) = intake.find_v4(s.ends())
        {
            // Read here, where they are at once written again. What the state machine does not read is never written.
            (place.flow, place.frame, place.segment) = (flow, i as u32, Segment::usual(&s));
            used += 1;
        } else {
            used += usize::from(any(&mut intake, port, i, (frame, checksum), place));
        }
    }
    batch.set_used(used);
    probes::stage::<{ probes::Stage::Pre as u32 }>(frames.len());
}

/// Addresses of a received segment, seen from here.
#[inline]
fn tuple(segment: &segment::Segment) -> FourTuple {
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
fn check(frame: &[u8], segment: &segment::Segment, checksum: RxChecksum) -> Option<Drop> {
    // RFC 9293 MUST-3.
    if !checksum_ok(frame, segment, checksum) {
        return Some(Drop::TcpChecksum);
    }
    // At most one of SYN, FIN and RST makes sense.
    let control = segment.flags & CONTROL;
    (control & control.wrapping_sub(1) != 0).then_some(Drop::BadFlags)
}

/// A frame of any layout, with or without a fault or a flow. `i`: its number in the received batch. True: it has made an
/// item in this place.
#[inline(never)]
fn any<A: Around>(
    intake: &mut A,
    port: PortId,
    i: usize,
    (frame, checksum): (&[u8], RxChecksum),
    place: &mut Item<A::Flow>,
) -> bool {
    match parse(frame) {
        Ok(s) => {
            if let Some(reason) = check(frame, &s, checksum) {
                intake.counters().drop(reason);
            } else if let Some(flow) = intake.find(&tuple(&s)) {
                (place.flow, place.frame, place.segment) = (flow, i as u32, Segment::of(&s, intake.sacks()));
                return true;
            } else {
                intake.pass_to_slow(port, frame);
            }
        }
        Err(ParseError::NotTcp) if icmp::parse(frame).is_some() => intake.pass_to_slow(port, frame),
        Err(error) => intake.counters().drop(reason(error)),
    }
    false
}

impl Around for Intake<'_> {
    type Flow = FlowId;
    #[inline(always)]
    fn find(&self, tuple: &FourTuple) -> Option<FlowId> {
        self.lookup.find(tuple)
    }
    #[inline(always)]
    fn find_v4(&self, ends: ([u8; 8], [u8; 4])) -> Option<FlowId> {
        self.lookup.find_v4(ends)
    }
    #[inline(always)]
    fn sacks(&mut self) -> &mut Vec<SackBlocks> {
        self.sacks
    }
    #[inline(always)]
    fn counters(&mut self) -> &mut Counters {
        self.counters
    }
    /// A copy for the slow path: only segments without an installed flow.
    #[cold]
    fn pass_to_slow(&mut self, port: PortId, frame: &[u8]) {
        self.outbox.pass_to_slow(self.counters, self.slow_segments, port, frame);
    }
}
