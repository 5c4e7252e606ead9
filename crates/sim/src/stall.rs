//! Knows a stall of smoltcp 0.14: it can send beyond the window, and after that only probes at the end of what it has sent, never
//! sending the rest before it again, however often it is told what is missing and that the window is open.

use towpath_wire::segment::{self, flags};

/// Window probes in a row that say that it has stalled.
const MANY: u32 = 5;

/// What one connection of smoltcp's has been told, and its useless probes since.
#[derive(Default)]
pub struct Stall {
    /// Last acknowledgement that came with an open window.
    wanted: Option<u32>,
    probes: u32,
}

impl Stall {
    /// A frame to smoltcp.
    pub fn told(&mut self, frame: &[u8]) {
        if let Ok(s) = segment::parse(frame)
            && s.flags & (flags::ACK | flags::SYN | flags::RST) == flags::ACK
        {
            self.wanted = (s.window > 0).then_some(s.ack);
        }
    }

    /// A frame from smoltcp.
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
