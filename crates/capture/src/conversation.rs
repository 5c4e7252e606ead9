//! Frames made for a connection that has none. Two programs exchange bytes in memory; a capture shows them as two hosts
//! on a wire would send them. Numbers begin at 0 and count the bytes that pass.

use std::net::SocketAddr;
use towpath_wire::{Header, Options, emit, fill_checksum, flags};

/// Most bytes of a made frame: what fits a packet of 65,535 bytes over IPv6, as on Linux's loopback device.
pub const MOST_BYTES: usize = 65_475;
/// The shift of windows, so that they are never shown as full.
const SHIFT: u8 = 14;

/// The two directions of a connection.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// By side: its address.
    ends: [SocketAddr; 2],
    /// By side: the number of its next byte.
    next: [u32; 2],
    /// By side: it has sent all; it has reset the connection.
    ended: [[bool; 2]; 2],
    frame: Vec<u8>,
}

impl Conversation {
    /// A connection that side 0 opens.
    pub fn opens(ends: [SocketAddr; 2], mut show: impl FnMut(&[u8])) -> Self {
        let mut all = Self { ends, next: [0; 2], ended: [[false; 2]; 2], frame: Vec::new() };
        let options = Options { mss: Some(MOST_BYTES as u16), window_scale: Some(SHIFT), ..Options::default() };
        all.make(0, flags::SYN, options, &[], &mut show);
        all.next[0] = 1;
        all.make(1, flags::SYN | flags::ACK, options, &[], &mut show);
        all.next[1] = 1;
        all.make(0, flags::ACK, Options::default(), &[], &mut show);
        all
    }

    /// A connection on which each side has sent this many bytes.
    pub fn open(ends: [SocketAddr; 2], sent: [u32; 2]) -> Self {
        Self { ends, next: sent.map(|sent| sent.wrapping_add(1)), ended: [[false; 2]; 2], frame: Vec::new() }
    }

    /// A side sends these bytes.
    pub fn data(&mut self, side: usize, bytes: &[u8], mut show: impl FnMut(&[u8])) {
        for part in bytes.chunks(MOST_BYTES) {
            self.make(side, flags::ACK | flags::PSH, Options::default(), part, &mut show);
            self.skip(side, part.len() as u32);
        }
    }

    /// A side sent `bytes` that were not captured. `like` receives their headers and frame count.
    pub fn lost(&mut self, side: usize, bytes: u32, mut like: impl FnMut(&[u8], u64)) {
        let frames = u64::from(bytes).div_ceil(MOST_BYTES as u64);
        self.make(side, flags::ACK | flags::PSH, Options::default(), &[], &mut |frame| like(frame, frames));
        self.skip(side, bytes);
    }

    fn skip(&mut self, side: usize, bytes: u32) {
        self.next[side] = self.next[side].wrapping_add(bytes);
    }

    /// A side has sent all, or resets the connection. Each is shown once, and nothing after a reset.
    pub fn ends(&mut self, side: usize, reset: bool, mut show: impl FnMut(&[u8])) {
        let [_, was_reset] = self.ended[side];
        if was_reset || std::mem::replace(&mut self.ended[side][usize::from(reset)], true) {
            return;
        }
        let how = if reset { flags::RST } else { flags::FIN };
        self.make(side, flags::ACK | how, Options::default(), &[], &mut show);
        self.skip(side, 1);
    }

    fn make(&mut self, side: usize, what: u8, options: Options, bytes: &[u8], show: &mut impl FnMut(&[u8])) {
        let (from, to) = (self.ends[side], self.ends[1 - side]);
        let header = Header {
            source_mac: [0; 6],
            destination_mac: [0; 6],
            vlan: None,
            source: from.ip(),
            destination: to.ip(),
            source_port: from.port(),
            destination_port: to.port(),
            seq: self.next[side],
            ack: if what & flags::ACK != 0 { self.next[1 - side] } else { 0 },
            flags: what,
            window: u16::MAX,
            ident: 0,
            tos: 0,
            ttl: 64,
            urgent: 0,
            options,
        };
        self.frame.resize(header.wire_bytes() + bytes.len(), 0);
        // Both addresses are of one family, and `MOST_BYTES` fit.
        let Some(at) = emit(&header, bytes.len(), &mut self.frame) else { return };
        self.frame[at..].copy_from_slice(bytes);
        fill_checksum(&mut self.frame);
        show(&self.frame);
    }
}
