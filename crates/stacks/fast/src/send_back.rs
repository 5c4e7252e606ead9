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
/// frame that the port has vouched for may have none.
pub fn send(port: &mut dyn Port, frame: &mut [u8], checksum: RxChecksum) -> bool {
    let Capabilities { mtu_bytes, tx_checksum, .. } = port.capabilities();
    let is_tagged = frame.get(ETHERNET_BYTES - 2..ETHERNET_BYTES) == Some(&ETHERTYPE_VLAN.to_be_bytes());
    let link = ETHERNET_BYTES + if is_tagged { VLAN_BYTES } else { 0 };
    if frame.len() > link + mtu_bytes as usize {
        return send_super(port, frame, checksum, link).is_some();
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

/// Sends a super-segment, whose Ethernet header has `link` bytes. The port cuts it, and computes the checksums.
fn send_super(port: &mut dyn Port, frame: &mut [u8], checksum: RxChecksum, link: usize) -> Option<()> {
    let Capabilities { mtu_bytes, gso_max_bytes, .. } = port.capabilities();
    let segment = parse(frame).ok()?;
    // A wrong checksum would become a right one.
    if checksum == RxChecksum::Unknown && !checksum_ok(frame, &segment, checksum) {
        return None;
    }
    let payload = segment.payload_offset as usize;
    let end = payload + segment.payload_len as usize;
    let gso_bytes = u16::try_from((mtu_bytes as usize + link).checked_sub(payload)?).ok()?;
    if end > gso_max_bytes as usize || gso_bytes == 0 {
        return None;
    }
    let offload = TxOffload { gso_bytes, ..partial_checksum(frame) };
    let (headers, payload) = frame.get_mut(..end)?.split_at_mut(payload);
    port.reserve_super()?.get_mut(..headers.len())?.copy_from_slice(headers);
    port.commit_gathered(headers.len(), [piece(payload), &[], &[]], offload);
    Some(())
}
