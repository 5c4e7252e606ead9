//! A first SYN as the filter writes it, and the frame that it stands for.

use crate::keys::Key;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use towpath_wire::checksum;
use towpath_wire::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, TCP_BYTES, VLAN_BYTES};

/// Offsets of the parts of `struct syn` of the program, and its size.
const TAKEN: usize = 8;
const INTERFACE: usize = 16;
const QUEUE: usize = 20;
const ETHERNET: usize = 24;
const V6: usize = ETHERNET + ETHERNET_BYTES;
const TCP_LENGTH: usize = V6 + 1;
const IP: usize = V6 + 2;
const TCP: usize = IP + IPV6_BYTES;
const MAX_TCP: usize = 60;
const STEERED: usize = TCP + MAX_TCP;
const SIZE: usize = STEERED + 4;
/// Offsets of the addresses in the IP headers: the source's and the destination's.
const ADDRESSES_V4: usize = 12;
const ADDRESSES_V6: usize = 8;

const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// Version 4, and a header without options.
const PLAIN_IPV4: u8 = 0x45;

/// A SYN that was taken from a listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syn {
    /// The socket's cookie (`SO_COOKIE`).
    pub cookie: u64,
    /// When it was taken (`CLOCK_MONOTONIC`).
    pub(crate) taken: Duration,
    /// Are the segments that follow it steered to us already, as after an answer with a cookie?
    pub(crate) steered: bool,
    /// The receive queue, if the driver has said it.
    pub queue: Option<u32>,
    /// Index of the interface.
    pub interface: u32,
    ethernet: [u8; ETHERNET_BYTES],
    v6: bool,
    ip: [u8; IPV6_BYTES],
    tcp: [u8; MAX_TCP],
    tcp_bytes: usize,
}

impl Syn {
    /// Reads a record of the filter; `None` = it is none.
    pub(crate) fn read(record: &[u8]) -> Option<Self> {
        let record: &[u8; SIZE] = record.try_into().ok()?;
        let word = |at: usize| Some(u32::from_ne_bytes(record[at..at + 4].try_into().ok()?));
        let tcp_bytes = usize::from(record[TCP_LENGTH]);
        if !(TCP_BYTES..=MAX_TCP).contains(&tcp_bytes) {
            return None;
        }
        Some(Self {
            cookie: u64::from_ne_bytes(record[..TAKEN].try_into().ok()?),
            taken: Duration::from_nanos(u64::from_ne_bytes(record[TAKEN..INTERFACE].try_into().ok()?)),
            steered: word(STEERED)? != 0,
            queue: word(QUEUE)?.checked_sub(1),
            interface: word(INTERFACE)?,
            ethernet: record[ETHERNET..V6].try_into().ok()?,
            v6: record[V6] != 0,
            ip: record[IP..TCP].try_into().ok()?,
            tcp: record[TCP..TCP + MAX_TCP].try_into().ok()?,
            tcp_bytes,
        })
    }

    /// The key of its connection.
    pub(crate) fn key(&self) -> Key {
        let ends: [IpAddr; 2] = if self.v6 {
            [0, 1].map(|end| octets::<16>(&self.ip, ADDRESSES_V6 + 16 * end).into())
        } else {
            [0, 1].map(|end| octets::<4>(&self.ip, ADDRESSES_V4 + 4 * end).into())
        };
        let [remote_port, local_port] = [0, 2].map(|at| u16::from_be_bytes(octets(&self.tcp, at)));
        Key::of(SocketAddr::new(ends[1], local_port), SocketAddr::new(ends[0], remote_port))
    }

    /// The frame with this IEEE 802.1Q tag, without IP options and payload. The checksum of its TCP header is the
    /// sender's: it may be partial, or cover a payload.
    pub fn frame(&self, vlan: Option<u16>) -> Box<[u8]> {
        let mut frame = Vec::with_capacity(ETHERNET_BYTES + VLAN_BYTES + IPV6_BYTES + MAX_TCP);
        let (addresses, _) = self.ethernet.split_at(ETHERNET_BYTES - 2);
        frame.extend_from_slice(addresses);
        if let Some(tag) = vlan {
            frame.extend(ETHERTYPE_VLAN);
            frame.extend(tag.to_be_bytes());
        }
        frame.extend(if self.v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 });
        let mut ip = self.ip;
        if self.v6 {
            ip[4..6].copy_from_slice(&(self.tcp_bytes as u16).to_be_bytes());
            frame.extend(ip);
        } else {
            ip[0] = PLAIN_IPV4;
            ip[2..4].copy_from_slice(&((IPV4_BYTES + self.tcp_bytes) as u16).to_be_bytes());
            ip[6..8].fill(0); // no fragment any more
            ip[10..12].fill(0);
            let sum = checksum::finish(checksum::add(0, &ip[..IPV4_BYTES]));
            ip[10..12].copy_from_slice(&sum);
            frame.extend_from_slice(&ip[..IPV4_BYTES]);
        }
        frame.extend_from_slice(&self.tcp[..self.tcp_bytes]);
        frame.into()
    }
}

/// The octets of a header from an offset on, which lies in it.
fn octets<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|n| header[at + n])
}
