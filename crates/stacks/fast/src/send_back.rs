//! A received frame goes back over the port that it came from, as a module has left it.

use towpath_ports::gather::piece;
use towpath_ports::{Capabilities, Port, RxChecksum, TxOffload};
use towpath_wire::{
    ETHERNET_BYTES, ETHERTYPE_VLAN, VLAN_BYTES, checksum_ok, fill_checksum, has_partial_checksum, parse,
    partial_checksum,
};

/// What is known of a received frame's checksum, before a module changes the frame: [`RxChecksum::Unknown`] if the frame has
/// a whole one.
pub fn received(frame: &[u8], checksum: RxChecksum) -> RxChecksum {
    match checksum {
        RxChecksum::MaybePartial if has_partial_checksum(frame) => RxChecksum::Valid,
        RxChecksum::MaybePartial => RxChecksum::Unknown,
        known => known,
    }
}

/// Sends a frame, of which [`received`] has said this. False: the port cannot send it.
///
/// A whole checksum goes as it is, so that whoever receives the frame sees what has become of it on all of its way. A
/// frame that the port has vouched for may have none. `gso_bytes`: as the frame came. What was smaller for its path stays so.
pub fn send(port: &mut dyn Port, frame: &mut [u8], checksum: RxChecksum, gso_bytes: u16) -> bool {
    let able @ Capabilities { tx_checksum, .. } = port.capabilities();
    if is_super(able, frame, gso_bytes) {
        return send_super(port, frame, checksum, gso_bytes).is_some();
    }
    let mut offload = TxOffload::default();
    if checksum != RxChecksum::Unknown && parse(frame).is_ok() {
        if tx_checksum {
            offload = partial_checksum(frame);
        } else {
            fill_checksum(frame);
        }
    }
    let Some(buffer) = port.reserve().and_then(|buffer| buffer.get_mut(..frame.len())) else { return false };
    buffer.copy_from_slice(frame);
    port.commit(frame.len(), offload);
    true
}

/// Bytes of the Ethernet header.
fn link(frame: &[u8]) -> usize {
    let is_tagged = frame.get(ETHERNET_BYTES - 2..ETHERNET_BYTES) == Some(&ETHERTYPE_VLAN.to_be_bytes());
    ETHERNET_BYTES + if is_tagged { VLAN_BYTES } else { 0 }
}

/// Must the port cut the frame: is it longer than what goes as it is, or has it come as several segments?
pub fn is_super(able: Capabilities, frame: &[u8], gso_bytes: u16) -> bool {
    let several = || parse(frame).is_ok_and(|segment| segment.payload_len > gso_bytes.into());
    frame.len() > link(frame) + able.mtu_bytes as usize || (gso_bytes != 0 && able.gso_max_bytes != 0 && several())
}

/// Makes a super-segment ready to be sent, in segments as small as those in which it came: where its payload begins and ends, and how the port cuts it and computes the checksums.
pub fn ready(
    able: Capabilities,
    frame: &mut [u8],
    checksum: RxChecksum,
    gso_bytes: u16,
) -> Option<(usize, usize, TxOffload)> {
    let Capabilities { mtu_bytes, gso_max_bytes, .. } = able;
    let segment = parse(frame).ok()?;
    // A wrong checksum would become a right one.
    if checksum == RxChecksum::Unknown && !checksum_ok(frame, &segment, checksum) {
        return None;
    }
    let payload = segment.payload_offset as usize;
    let end = payload + segment.payload_len as usize;
    let most = u16::try_from((mtu_bytes as usize + link(frame)).checked_sub(payload)?).ok()?;
    let gso_bytes = if gso_bytes == 0 { most } else { gso_bytes.min(most) };
    let fits = end <= gso_max_bytes as usize && end <= frame.len() && gso_bytes != 0;
    fits.then(|| (payload, end, TxOffload { gso_bytes, ..partial_checksum(frame) }))
}

/// Sends a copy of a super-segment.
fn send_super(port: &mut dyn Port, frame: &mut [u8], checksum: RxChecksum, gso_bytes: u16) -> Option<()> {
    let (payload, end, offload) = ready(port.capabilities(), frame, checksum, gso_bytes)?;
    let (headers, payload) = frame.get_mut(..end)?.split_at_mut(payload);
    port.reserve_super()?.get_mut(..headers.len())?.copy_from_slice(headers);
    port.commit_gathered(headers.len(), [piece(payload), &[], &[]], offload);
    Some(())
}
