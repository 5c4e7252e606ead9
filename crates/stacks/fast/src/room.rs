//! Room around a frame, for modules that move its ends or look at what is known of it.

use towpath_modules::{Frame, TOWPATH_FRAME_BYTES, TowpathFrame};

/// Room before a frame, as XDP has it, and behind it.
pub const HEADROOM: usize = 256;
const TAILROOM: usize = 320;
/// The largest frame: 64 KiB with an Ethernet header and two tags.
pub const LARGEST: usize = 65_536 + 14 + 8;
/// A buffer for the largest frame, and for room around it.
pub const BUFFER: usize = HEADROOM + LARGEST + TAILROOM;

/// A copy of a frame with room around it. The caller has seen that it fits.
pub fn with_room<'a>(buffer: &'a mut [u8], bytes: &[u8], about: TowpathFrame, interface: u32) -> Frame<'a> {
    buffer[HEADROOM - TOWPATH_FRAME_BYTES..HEADROOM].copy_from_slice(&about.bytes());
    buffer[HEADROOM..HEADROOM + bytes.len()].copy_from_slice(bytes);
    let (length, meta, queue) = (bytes.len(), TOWPATH_FRAME_BYTES, about.flow_group);
    Frame { start: HEADROOM, length, meta, room: true, ifindex: interface, queue, ..Frame::whole(buffer) }
}
