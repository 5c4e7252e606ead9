//! First SYNs of outgoing connections, sent by a raw socket. So they pass the kernel's firewall, its control groups and
//! its queues, as those of the kernel's own sockets do.
//!
//! The kernel says at once if a rule refuses a SYN. It also hands back each packet as it reaches the device, which shows
//! whether a rule has translated its addresses (NAT). Only the kernel can carry such a connection.

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, ipproto, recv, socket_with};
use std::io;
use std::mem::zeroed;
use std::net::IpAddr;
use towpath_wire::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, VLAN_BYTES};

/// Offsets in the IP headers of the first address; the other one and the TCP header follow.
const ADDRESSES_V4: usize = 12;
const ADDRESSES_V6: usize = 8;
/// Bytes of the ports and the sequence number.
const PORTS: usize = 4;
const SEQUENCE: usize = 4;
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
/// Longest link header and SYN together.
const LONGEST: usize = 256;
/// Packets that are handed back, of earlier SYNs among them, and read after one.
const MOST_READ: usize = 64;

/// What became of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is on its way, or lost on it.
    Sent,
    /// The kernel refuses it, with this errno.
    Refused(i32),
    /// It has left with other addresses or ports.
    Translated,
}

/// The sockets, one for each family.
#[derive(Debug)]
pub struct FirstSyns {
    v4: OwnedFd,
    v6: Option<OwnedFd>,
}

/// The packet in a frame, which may have a VLAN tag.
pub fn packet_of(frame: &[u8]) -> &[u8] {
    let tagged = frame.get(ETHERNET_BYTES - 2..ETHERNET_BYTES) == Some(&ETHERTYPE_VLAN);
    frame.get(ETHERNET_BYTES + if tagged { VLAN_BYTES } else { 0 }..).unwrap_or_default()
}

/// A raw socket that sends over the device with this index and receives no TCP. It needs CAP_NET_RAW to make it, and to
/// let it send over another device.
pub fn socket(v6: bool, device: u32) -> io::Result<OwnedFd> {
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let raw: Protocol = ipproto::RAW;
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, Some(raw))?;
    set(&socket, libc::SO_BINDTOIFINDEX, device.cast_signed())?;
    set(&socket, libc::SO_TIMESTAMPING, libc::SOF_TIMESTAMPING_TX_SCHED.cast_signed())?;
    Ok(socket)
}

fn set(socket: &OwnedFd, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the kernel reads an int, as the length says.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl FirstSyns {
    /// Over these sockets. A host without IPv6 has one.
    pub fn new(v4: OwnedFd, v6: Option<OwnedFd>) -> Self {
        Self { v4, v6 }
    }

    /// Sends a SYN: a packet from its IP header on, without options or extensions there.
    pub fn send(&self, local: IpAddr, remote: IpAddr, packet: &[u8]) -> Outcome {
        let Some(socket) = (if remote.is_ipv4() { Some(&self.v4) } else { self.v6.as_ref() }) else {
            return Outcome::Refused(libc::EAFNOSUPPORT);
        };
        match send(socket, local, remote, packet) {
            Ok(()) => {}
            // Packets that wait for a neighbour, or a full queue. The SYN is repeated.
            Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => return Outcome::Sent,
            Err(errno) => return Outcome::Refused(errno),
        }
        match as_it_left(socket, packet, remote.is_ipv4()) {
            Some(false) => Outcome::Translated,
            // A packet that waits for its neighbour, or for a program that judges it, is not seen yet.
            Some(true) | None => Outcome::Sent,
        }
    }
}

/// Room for one control message with the source address.
#[repr(C)]
struct Source<T> {
    header: libc::cmsghdr,
    info: T,
}

fn send(socket: &OwnedFd, local: IpAddr, remote: IpAddr, packet: &[u8]) -> Result<(), i32> {
    let control = |level, kind, info: usize| libc::cmsghdr {
        cmsg_len: size_of::<libc::cmsghdr>() + info,
        cmsg_level: level,
        cmsg_type: kind,
    };
    match (local, remote) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            // SAFETY: zero is a value of both.
            let (mut to, mut info) = unsafe { (zeroed::<libc::sockaddr_in>(), zeroed::<libc::in_pktinfo>()) };
            to.sin_family = libc::AF_INET as u16;
            to.sin_addr.s_addr = u32::from(remote).to_be();
            info.ipi_spec_dst.s_addr = u32::from(local).to_be();
            let header = control(libc::IPPROTO_IP, libc::IP_PKTINFO, size_of::<libc::in_pktinfo>());
            send_with(socket, packet, &mut to, &mut Source { header, info })
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) => {
            // SAFETY: zero is a value of both.
            let (mut to, mut info) = unsafe { (zeroed::<libc::sockaddr_in6>(), zeroed::<libc::in6_pktinfo>()) };
            to.sin6_family = libc::AF_INET6 as u16;
            to.sin6_addr.s6_addr = remote.octets();
            info.ipi6_addr.s6_addr = local.octets();
            let header = control(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, size_of::<libc::in6_pktinfo>());
            send_with(socket, packet, &mut to, &mut Source { header, info })
        }
        _ => Err(libc::EAFNOSUPPORT),
    }
}

fn send_with<A, T>(socket: &OwnedFd, packet: &[u8], to: &mut A, source: &mut Source<T>) -> Result<(), i32> {
    let mut bytes = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
    // SAFETY: zero is a value of this.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_name, message.msg_namelen) = ((&raw mut *to).cast(), size_of::<A>() as libc::socklen_t);
    (message.msg_iov, message.msg_iovlen) = (&raw mut bytes, 1);
    (message.msg_control, message.msg_controllen) = ((&raw mut *source).cast(), size_of::<Source<T>>());
    // SAFETY: all that the message points to is alive, and as long as it says. The kernel only reads it.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) } else { Ok(()) }
}

/// Has this packet left as it was? `None`: it has not left yet.
fn as_it_left(socket: impl AsFd, packet: &[u8], v4: bool) -> Option<bool> {
    let mut bytes = [0; LONGEST];
    let mut found = None;
    for _ in 0..MOST_READ {
        let length = match recv(&socket, &mut bytes[..], RecvFlags::ERRQUEUE | RecvFlags::DONTWAIT) {
            Ok((_, length)) => length,
            Err(Errno::INTR) => continue,
            Err(_) => break,
        };
        if let Some(left) = bytes.get(..length).and_then(|left| compare(packet, left, v4)) {
            found = Some(left);
        }
    }
    found
}

/// Is `left`, which begins with a link header, this packet with the same addresses and ports? `None`: it is another one.
fn compare(packet: &[u8], left: &[u8], v4: bool) -> Option<bool> {
    let (addresses, ports) = if v4 { (ADDRESSES_V4, IPV4_BYTES) } else { (ADDRESSES_V6, IPV6_BYTES) };
    let left = left.get(left.len().checked_sub(packet.len())?..)?;
    let sequence = ports + PORTS..ports + PORTS + SEQUENCE;
    if packet.get(sequence.clone())? != left.get(sequence)? {
        return None;
    }
    Some(packet.get(addresses..ports + PORTS) == left.get(addresses..ports + PORTS))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_packet_is_known_by_its_sequence_number_and_judged_by_its_ends() {
        for (v4, addresses, ports) in [(true, 12, 20), (false, 8, 40)] {
            let packet: Vec<u8> = (0..ports as u8 + 24).collect();
            let left = |at: usize| {
                let mut left = [&[0; 14][..], &packet].concat();
                left[14 + at] ^= 1;
                compare(&packet, &left, v4)
            };
            assert_eq!(left(0), Some(true), "a router may change the rest");
            assert_eq!(
                [addresses - 1, addresses, ports - 1, ports, ports + 3].map(left),
                [Some(true), Some(false), Some(false), Some(false), Some(false)]
            );
            assert_eq!([left(ports + 4), left(ports + 7), left(ports + 8)], [None, None, Some(true)]);
            assert_eq!(compare(&packet, &packet, v4), Some(true), "a device without link headers");
            assert_eq!(compare(&packet, &packet[1..], v4), None);
            assert_eq!(compare(&packet, &[], v4), None);
        }
    }
}
