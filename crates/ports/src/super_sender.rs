//! Sends super-segments of an interface by a packet socket: the kernel cuts them, or leaves that to the device. AF_XDP has
//! no way to ask for it.

use crate::gather::gather;
use crate::mapping::Buffer;
use crate::packet_socket::HEADER_BYTES;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use towpath_wire::offload::{Payload, TxOffload};
use towpath_wire::segment::flags;
use towpath_wire::{ETHERNET_BYTES, TCP_BYTES, VLAN_BYTES};

/// The largest packet, with an Ethernet header.
pub(crate) const GSO_MAX_BYTES: u32 = 65_535 + 14;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV4`, `_TCPV6` and `_ECN`. The last one: only the first segment has CWR.
const GSO_V4: u8 = 1;
const GSO_V6: u8 = 4;
const GSO_ECN: u8 = 0x80;
/// Ethertypes.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;

/// What became of a super-segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Sent,
    /// The device has no room. It goes with one of the next attempts.
    Waits,
    /// It cannot be sent.
    Lost,
}

/// A packet socket with the buffer of one super-segment.
pub(crate) struct SuperSender {
    socket: OwnedFd,
    /// The header of the socket, and a frame.
    buffer: Buffer,
    /// Bytes of the buffer that wait to be sent.
    waiting: usize,
}

impl SuperSender {
    /// Sends by what [`crate::packet_socket::open`] has returned, perhaps in another process.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket, buffer: Buffer::new(HEADER_BYTES + GSO_MAX_BYTES as usize)?, waiting: 0 })
    }

    /// Does one wait to be sent?
    pub fn waits(&self) -> bool {
        self.waiting != 0
    }

    /// The buffer for the next frame; `None`: the last one waits.
    pub fn reserve(&mut self) -> Option<&mut [u8]> {
        (self.waiting == 0).then(|| &mut self.buffer[HEADER_BYTES..])
    }

    /// Sends the first `header` bytes of the buffer and this payload behind them, to be cut as `offload` says. The kernel copies
    /// the payload from where it lies.
    pub fn commit(&mut self, header: usize, payload: &Payload<'_>, offload: TxOffload) -> Outcome {
        let Some(frame) = self.buffer[HEADER_BYTES..].get(..header) else { return Outcome::Lost };
        let Some((kind, payload_offset)) = headers(frame, offload) else { return Outcome::Lost };
        let (vnet, words) = self.buffer.split_at_mut(2);
        vnet.copy_from_slice(&[NEEDS_CHECKSUM, kind]);
        let fields = [payload_offset, offload.gso_bytes, offload.checksum_start, offload.checksum_offset];
        for (place, field) in words.chunks_exact_mut(2).zip(fields) {
            place.copy_from_slice(&field.to_ne_bytes());
        }
        let outcome = self.send(HEADER_BYTES + header, payload);
        if outcome == Outcome::Waits {
            // By the next attempt the memory of the payload may be somebody else's.
            match gather(&mut self.buffer, HEADER_BYTES + header, payload) {
                Some(len) => self.waiting = len,
                None => return Outcome::Lost,
            }
        }
        outcome
    }

    /// Sends what waits.
    pub fn again(&mut self) -> Outcome {
        let outcome = self.send(self.waiting, &[&[]; 3]);
        if outcome != Outcome::Waits {
            self.waiting = 0;
        }
        outcome
    }

    /// Sends the first `len` bytes of the buffer and this payload behind them.
    fn send(&self, len: usize, payload: &Payload<'_>) -> Outcome {
        let piece = |start: *const u8, len| libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len };
        let [one, two, three] = payload.map(|piece_of| piece(piece_of.as_ptr().cast(), piece_of.len()));
        let mut pieces = [piece(self.buffer.as_ptr(), len.min(self.buffer.len())), one, two, three];
        // SAFETY: all zeros are a message without an address, pieces and control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len();
        // SAFETY: the kernel reads the pieces only, all of which are borrowed until it returns. Bytes of the payload may change
        // meanwhile: another process shares them.
        let sent = unsafe {
            libc::sendmsg(self.socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
        };
        match sent {
            0.. => Outcome::Sent,
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Outcome::Waits,
                _ => Outcome::Lost,
            },
        }
    }
}

/// How the kernel is to cut a frame with these headers (`gso_type`), and where its payload begins. `None`: they are not whole.
fn headers(frame: &[u8], offload: TxOffload) -> Option<(u8, u16)> {
    let ethertype = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let ethertype = match ethertype(ETHERNET_BYTES - 2)? {
        VLAN => ethertype(ETHERNET_BYTES + VLAN_BYTES - 2)?,
        untagged => untagged,
    };
    let version = match ethertype {
        IPV4 => GSO_V4,
        IPV6 => GSO_V6,
        _ => return None,
    };
    let start = usize::from(offload.checksum_start);
    let tcp: &[u8; TCP_BYTES] = frame.get(start..)?.first_chunk()?;
    let payload = start + usize::from(tcp[12] >> 4) * 4;
    let ecn = if tcp[13] & flags::CWR != 0 { GSO_ECN } else { 0 };
    (payload <= frame.len()).then_some((version | ecn, payload as u16))
}
