//! Sends super-segments of an interface by a packet socket: the kernel cuts them, or leaves that to the device. AF_XDP has
//! no way to ask for it.

use crate::gather::gather;
use crate::mapping::Buffer;
use crate::packet_socket::HEADER_BYTES;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use towpath_wire::offload::{Payload, TxOffload};
use towpath_wire::segment::flags;
use towpath_wire::{
    ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, IPV6_BYTES, PROTOCOL_TCP, TCP_BYTES, VLAN_BYTES,
};

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

    /// Sends the first `header` bytes of the buffer and this payload behind them, to be cut as `offload` says. The kernel copies
    /// the payload from where it lies.
    pub fn commit(&mut self, header: usize, payload: &Payload<'_>, offload: TxOffload) -> Outcome {
        let Some(frame) = self.buffer[HEADER_BYTES..].get(..header) else { return Outcome::Lost };
        let behind = payload.iter().map(|piece| piece.len()).sum();
        let Some((kind, payload_offset)) = headers(frame, behind, offload) else { return Outcome::Lost };
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
        let [one, two, three] = payload.map(|bytes| piece(bytes.as_ptr().cast(), bytes.len()));
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

/// How the kernel is to cut a frame with these headers and so many bytes behind them (`gso_type`), and where its payload begins.
/// `None`: they are no headers of such a TCP segment. A module may have made anything of them.
fn headers(frame: &[u8], behind: usize, offload: TxOffload) -> Option<(u8, u16)> {
    let word = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let (ethertype, ip) = match word(ETHERNET_BYTES - 2)? {
        ETHERTYPE_VLAN => (word(ETHERNET_BYTES + VLAN_BYTES - 2)?, ETHERNET_BYTES + VLAN_BYTES),
        untagged => (untagged, ETHERNET_BYTES),
    };
    let (version, protocol, tcp, end) = match ethertype {
        ETHERTYPE_IPV4 => {
            let header_bytes = usize::from(frame.get(ip)? & 15) * 4;
            (GSO_V4, *frame.get(ip + 9)?, ip + header_bytes, ip + usize::from(word(ip + 2)?))
        }
        ETHERTYPE_IPV6 => (GSO_V6, *frame.get(ip + 6)?, ip + IPV6_BYTES, ip + IPV6_BYTES + usize::from(word(ip + 4)?)),
        _ => return None,
    };
    let header: &[u8; TCP_BYTES] = frame.get(tcp..)?.first_chunk()?;
    let (payload, flags) = (tcp + usize::from(header[12] >> 4) * 4, header[13]);
    let is_right = protocol == PROTOCOL_TCP
        && tcp == usize::from(offload.checksum_start)
        && (tcp + TCP_BYTES..=frame.len()).contains(&payload)
        && end == frame.len() + behind;
    let ecn = if flags & flags::CWR != 0 { GSO_ECN } else { 0 };
    is_right.then_some((version | ecn, u16::try_from(payload).ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::IpAddr;
    use std::os::unix::net::UnixDatagram;
    use std::sync::atomic::{AtomicU8, Ordering};
    use towpath_wire::{Header, Options, emit};

    /// The headers of a segment with so much payload, as they are sent.
    fn made(source: IpAddr, destination: IpAddr, vlan: Option<u16>, flags: u8, len: usize) -> (Vec<u8>, TxOffload) {
        let header = Header {
            source_mac: [2; 6],
            destination_mac: [4; 6],
            vlan,
            source,
            destination,
            source_port: 1,
            destination_port: 2,
            seq: 1,
            ack: 1,
            flags,
            window: 1,
            ident: 1,
            tos: 0,
            ttl: 64,
            urgent: 0,
            options: Options::NONE,
        };
        let mut frame = vec![0; 70_000];
        let made = emit::make(&header, len, &mut frame).unwrap();
        frame.truncate(made.payload_offset);
        let offload = made.partial_checksum(&mut frame);
        (frame, TxOffload { gso_bytes: 1000, ..offload })
    }

    #[test]
    fn the_kernel_is_told_how_to_cut() {
        let four: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let six: [IpAddr; 2] = ["fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()];
        for (ends, version, bytes) in [(four, GSO_V4, 54), (six, GSO_V6, 74)] {
            for (vlan, tag) in [(None, 0), (Some(7), 4)] {
                let (frame, offload) = made(ends[0], ends[1], vlan, flags::ACK, 5000);
                assert_eq!(headers(&frame, 5000, offload), Some((version, bytes + tag)));
                let (frame, offload) = made(ends[0], ends[1], vlan, flags::ACK | flags::CWR, 5000);
                assert_eq!(headers(&frame, 5000, offload), Some((version | GSO_ECN, bytes + tag)));
            }
        }
    }

    #[test]
    fn what_waits_is_not_taken_from_its_place_again() {
        // A socket of another kind, whose queue is short.
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let mut sender = SuperSender::new(ours.into()).unwrap();
        let payload: Vec<AtomicU8> = (0..5000).map(|_| AtomicU8::new(b'a')).collect();
        let (header, offload) =
            made("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), None, flags::ACK, payload.len());
        let mut sent = 0;
        loop {
            sender.reserve().unwrap()[..header.len()].copy_from_slice(&header);
            let (one, rest) = payload.split_at(100);
            match sender.commit(header.len(), &[one, rest, &[]], offload) {
                Outcome::Sent => sent += 1,
                outcome => break assert_eq!(outcome, Outcome::Waits, "after {sent}"),
            }
            assert!(!sender.waits() && sent < 10_000);
        }
        assert!(sender.waits() && sender.reserve().is_none());
        payload.iter().for_each(|byte| byte.store(b'b', Ordering::Relaxed));
        assert_eq!(sender.again(), Outcome::Waits, "there is still no room");
        let mut received = vec![0; 70_000];
        let mut next = || {
            let len = theirs.recv(&mut received).unwrap();
            assert_eq!(len, HEADER_BYTES + header.len() + payload.len());
            assert_eq!(&received[HEADER_BYTES..HEADER_BYTES + header.len()], header);
            assert!(received[HEADER_BYTES + header.len()..len].iter().all(|byte| *byte == b'a'));
        };
        next();
        assert_eq!(sender.again(), Outcome::Sent);
        (0..sent).for_each(|_| next());
        assert!(!sender.waits() && sender.reserve().is_some());
    }

    #[test]
    fn what_is_no_such_segment_is_not_sent() {
        let (source, destination) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let (frame, offload) = made(source, destination, None, flags::ACK, 5000);
        assert_eq!(headers(&frame, 4999, offload), None, "cut");
        assert_eq!(headers(&frame, 5001, offload), None, "grown");
        for bytes in 0..frame.len() {
            assert_eq!(headers(&frame[..bytes], 5000, offload), None, "{bytes} bytes of headers");
        }
        for (at, value) in [(12, 0x88), (14, 0x46), (23, 17), (46, 0x40), (46, 0xf0)] {
            let mut frame = frame.clone();
            frame[at] = value;
            assert_eq!(headers(&frame, 5000, offload), None, "byte {at}");
        }
        assert_eq!(headers(&frame, 5000, TxOffload { checksum_start: 54, ..offload }), None, "another header's sum");
    }
}
