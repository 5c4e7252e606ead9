//! Frames made from a header and payload, with right checksums.

use towpath_wire::emit::{Header, emit, fill_checksum};
use towpath_wire::segment::Segment;

/// The header of a received segment, without urgent pointer and type of service.
pub fn header_of(s: &Segment) -> Header {
    Header {
        source_mac: s.source_mac,
        destination_mac: s.destination_mac,
        vlan: s.vlan,
        source: s.source,
        destination: s.destination,
        source_port: s.source_port,
        destination_port: s.destination_port,
        seq: s.seq,
        ack: s.ack,
        flags: s.flags,
        window: s.window,
        ident: 0,
        tos: 0,
        ttl: towpath_wire::TTL,
        urgent: 0,
        options: s.options,
    }
}

/// The frame; `None` = the header cannot be sent.
pub fn framed(header: &Header, payload: &[u8]) -> Option<Vec<u8>> {
    let mut frame = vec![0; header.wire_bytes() + payload.len()];
    let at = emit(header, payload.len(), &mut frame)?;
    frame.truncate(at + payload.len());
    frame[at..].copy_from_slice(payload);
    fill_checksum(&mut frame);
    Some(frame)
}
