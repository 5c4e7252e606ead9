//! What a module is told of a frame: `struct towpath_frame` of `bpf/modules/towpath.h`, before the frame's first byte.

/// Bytes of the structure.
pub const TOWPATH_FRAME_BYTES: usize = 20;

/// The number of a connection that is none, or that nobody knows.
const NO_FLOW: u32 = u32::MAX;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TowpathFrame {
    /// Of a super-segment: payload of each segment that it becomes, or in which it came. 0: one segment, or nobody knows.
    pub gso_bytes: u16,
    /// Is it sent?
    pub egress: bool,
    /// Number of the port.
    pub port: u32,
    /// Number of the flow group.
    pub flow_group: u32,
    /// Number of the connection that it belongs to. `None`: it belongs to none, or nobody knows.
    pub flow: Option<u32>,
}

impl TowpathFrame {
    /// As the module finds it.
    pub fn bytes(self) -> [u8; TOWPATH_FRAME_BYTES] {
        let mut bytes = [0; TOWPATH_FRAME_BYTES];
        bytes[..4].copy_from_slice(&(TOWPATH_FRAME_BYTES as u32).to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.gso_bytes.to_ne_bytes());
        bytes[6] = u8::from(self.egress);
        bytes[8..12].copy_from_slice(&self.port.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.flow_group.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.flow.unwrap_or(NO_FLOW).to_ne_bytes());
        bytes
    }
}
