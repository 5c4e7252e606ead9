//! Sends super-segments of an interface by a packet socket: the kernel cuts them, or leaves that to the device. AF_XDP has
//! no way to ask for it.

use crate::mapping::Buffer;
use crate::packet_socket::HEADER_BYTES;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use towpath_wire::offload::TxOffload;
use towpath_wire::segment::{self, flags};

/// The largest packet, with an Ethernet header.
pub(crate) const GSO_MAX_BYTES: u32 = 65_535 + 14;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV4`, `_TCPV6` and `_ECN`. The last one: only the first segment has CWR.
const GSO_V4: u8 = 1;
const GSO_V6: u8 = 4;
const GSO_ECN: u8 = 0x80;
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

    /// Sends the first `len` bytes of the buffer, to be cut as `offload` says.
    pub fn commit(&mut self, len: usize, offload: TxOffload) -> Outcome {
        let Some(frame) = self.buffer[HEADER_BYTES..].get(..len) else { return Outcome::Lost };
        let Ok(s) = segment::parse(frame) else { return Outcome::Lost };
        let version = if s.source.is_ipv4() { GSO_V4 } else { GSO_V6 };
        let ecn = if s.flags & flags::CWR != 0 { GSO_ECN } else { 0 };
        let (header, words) = self.buffer.split_at_mut(2);
        header.copy_from_slice(&[NEEDS_CHECKSUM, version | ecn]);
        let fields = [s.payload_offset as u16, offload.gso_bytes, offload.checksum_start, offload.checksum_offset];
        for (place, field) in words.chunks_exact_mut(2).zip(fields) {
            place.copy_from_slice(&field.to_ne_bytes());
        }
        self.waiting = HEADER_BYTES + len;
        self.again()
    }

    /// Sends what waits.
    pub fn again(&mut self) -> Outcome {
        let bytes = &self.buffer[..self.waiting];
        // SAFETY: the kernel reads `bytes` only.
        let sent = unsafe {
            libc::send(
                self.socket.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        let outcome = match sent {
            0.. => Outcome::Sent,
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Outcome::Waits,
                _ => Outcome::Lost,
            },
        };
        if outcome != Outcome::Waits {
            self.waiting = 0;
        }
        outcome
    }
}
