//! Segments that the slow path receives, and those that it makes: SYN, SYN-ACK, RST and bare acknowledgements.

use crate::flow::{FourTuple, Link, Owner, PortId};
use crate::seq::Seq;
use towpath_wire::{
    ETHERNET_BYTES, Header, IPV6_BYTES, Options, Segment, TCP_BYTES, TTL, VLAN_BYTES, emit, fill_checksum, flags,
};

/// Longest TCP option list.
const OPTIONS_BYTES: usize = 40;
/// Longest frame without payload.
const FRAME_BYTES: usize = ETHERNET_BYTES + VLAN_BYTES + IPV6_BYTES + TCP_BYTES + OPTIONS_BYTES;

/// A received frame with its headers.
pub(super) struct Arrival {
    /// The flow group that answers it. It has received it, if anything has been received by a queue of a flow group.
    pub flow_group: usize,
    /// The flow group on whose queue it has come.
    pub came_to: Option<usize>,
    /// Port that it came in on.
    pub port: PortId,
    /// Its addresses, seen from here.
    pub tuple: FourTuple,
    /// Its headers.
    pub segment: Segment,
    /// Its bytes.
    pub frame: Box<[u8]>,
    /// The listener that the host has named for it.
    pub listener: Option<Owner>,
}

impl Arrival {
    /// A parsed frame.
    pub(super) fn new(flow_group: usize, port: PortId, segment: Segment, frame: Box<[u8]>) -> Self {
        let tuple = FourTuple {
            local: segment.destination,
            local_port: segment.destination_port,
            remote: segment.source,
            remote_port: segment.source_port,
        };
        Self { flow_group, came_to: None, port, tuple, segment, frame, listener: None }
    }
    /// Are all these flags set?
    pub(super) fn has(&self, flags: u8) -> bool {
        self.segment.flags & flags == flags
    }
    /// SEG.SEQ.
    pub(super) fn seq(&self) -> Seq {
        Seq(self.segment.seq)
    }
    /// SEG.ACK.
    pub(super) fn ack(&self) -> Seq {
        Seq(self.segment.ack)
    }
    /// SEG.LEN: payload plus one for each of SYN and FIN.
    pub(super) fn seq_len(&self) -> u32 {
        self.segment.payload_len + u32::from(self.has(flags::SYN)) + u32::from(self.has(flags::FIN))
    }
    /// The link back to the sender.
    pub(super) fn way_back(&self) -> Link {
        Link {
            port: self.port,
            source: self.segment.destination_mac,
            destination: self.segment.source_mac,
            vlan: self.segment.vlan,
        }
    }
}

/// A segment to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    /// SEG.SEQ.
    pub seq: Seq,
    /// SEG.ACK.
    pub ack: Seq,
    /// Flags.
    pub flags: u8,
    /// Window as it goes into the header.
    pub window: u16,
    /// Type of service and time to installed.
    pub service: (u8, u8),
    /// Options.
    pub options: Options,
}

impl Reply {
    /// An answer without options.
    pub(super) fn bare(seq: Seq, ack: Seq, flags: u8) -> Self {
        Self { seq, ack, flags, window: 0, service: (0, TTL), options: Options::default() }
    }
    /// RFC 9293 §3.10.7.1, §3.5.2: the RST in reply to a segment without a connection; `None` for an RST.
    pub(super) fn reset_for(arrival: &Arrival) -> Option<Self> {
        if arrival.has(flags::RST) {
            None
        } else if arrival.has(flags::ACK) {
            Some(Self::bare(arrival.ack(), Seq(0), flags::RST))
        } else {
            let ack = arrival.seq().add(arrival.seq_len());
            Some(Self::bare(Seq(0), ack, flags::RST | flags::ACK))
        }
    }
    /// The complete frame.
    pub(super) fn frame(&self, tuple: &FourTuple, link: &Link, ident: u16) -> Box<[u8]> {
        let header = Header {
            seq: self.seq.0,
            ack: self.ack.0,
            flags: self.flags,
            window: self.window,
            ident,
            tos: self.service.0,
            ttl: self.service.1,
            options: self.options,
            ..tuple.header(link)
        };
        let mut frame = [0u8; FRAME_BYTES];
        let len = emit(&header, 0, &mut frame).unwrap_or(0);
        let mut frame: Box<[u8]> = frame[..len].into();
        fill_checksum(&mut frame);
        frame
    }
}
