//! Detects a stall of smoltcp 0.14. It can send beyond the window. Then it only probes at the end of its sent data, and
//! never retransmits the rest. It does so although acknowledgements name the missing data and the window is open.

use towpath_wire::segment::{self, flags};

/// Consecutive window probes that indicate the stall.
const MANY: u32 = 5;

/// Acknowledgements to one connection of smoltcp, and its useless probes since.
#[derive(Default)]
pub struct SmoltcpStall {
    /// The last acknowledgement with an open window.
    wanted: Option<u32>,
    probes: u32,
}

impl SmoltcpStall {
    /// Records a frame to smoltcp.
    pub fn told(&mut self, frame: &[u8]) {
        if let Ok(s) = segment::parse(frame)
            && s.flags & (flags::ACK | flags::SYN | flags::RST) == flags::ACK
        {
            self.wanted = (s.window > 0).then_some(s.ack);
        }
    }

    /// Records a frame from smoltcp.
    pub fn sent(&mut self, frame: &[u8]) {
        let Ok(s) = segment::parse(frame) else { return };
        let Some(wanted) = self.wanted else { return };
        let beyond = s.seq.wrapping_sub(wanted) as i32 > 0;
        match s.payload_len {
            0 => {}
            1 if beyond => self.probes += 1,
            _ => self.probes = 0,
        }
    }

    /// Has it stalled?
    pub fn is_there(&self) -> bool {
        self.probes >= MANY
    }
}
