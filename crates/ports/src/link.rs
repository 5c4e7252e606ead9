//! What the kernel says of an interface (RTM_GETLINK): its kind, its state, and its XDP program. It needs no privilege.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use std::io;
use std::mem::size_of;

/// Attributes, and attributes within them (linux/if_link.h).
const IFLA_IFNAME: u16 = 3;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_CARRIER: u16 = 33;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const XDP_ATTACHED_SKB: u8 = 2;
/// The type of an attribute, without its "nested" and "network byte order" bits.
const NLA_TYPE_MASK: u16 = 0x3fff;
/// Of an answer that is an error.
const ERROR: u16 = libc::NLMSG_ERROR as u16;
const HEADER: usize = size_of::<libc::nlmsghdr>();

/// An interface now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The name that it has now.
    pub name: String,
    /// `ARPHRD_` number: 1 for Ethernet.
    pub hardware: u16,
    /// The kind of a virtual device (`veth`, `bridge`, `tun`); hardware has none.
    pub kind: Option<String>,
    /// It is a port of another device, such as a bridge, a bond or a VRF.
    pub is_port: bool,
    /// It is administratively up.
    pub up: bool,
    /// The cable, or the other end of a virtual device, is there.
    pub carrier: bool,
    /// The XDP program that is attached.
    pub program: Option<u32>,
    /// That program runs in the kernel's generic receive path, not in the driver.
    pub generic: bool,
}

impl Link {
    /// The interface of the thread's namespace with this index; `None` = it has gone.
    pub fn of(index: u32) -> io::Result<Option<Self>> {
        Self::read(&link_message(index)?)
    }

    fn read(answer: &[u8]) -> io::Result<Option<Self>> {
        let bad = || io::Error::other("the kernel's answer about an interface is too short");
        let half = |at: usize| Some(u16::from_ne_bytes(answer.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
        if half(4).ok_or_else(bad)? == ERROR {
            return match word(HEADER).ok_or_else(bad)?.cast_signed() {
                error if -error == libc::ENODEV => Ok(None),
                error => Err(io::Error::from_raw_os_error(-error)),
            };
        }
        // struct ifinfomsg: family and padding, type, index, flags, change.
        let (hardware, flags) = (half(HEADER + 2).ok_or_else(bad)?, word(HEADER + 8).ok_or_else(bad)?);
        let all = answer.get(HEADER + size_of::<libc::ifinfomsg>()..).unwrap_or(&[]);
        let within = |outer, inner| attribute(all, outer).and_then(|nested| attribute(nested, inner));
        let program = within(IFLA_XDP, IFLA_XDP_PROG_ID).and_then(|id| id.try_into().ok()).map(u32::from_ne_bytes);
        let attached = within(IFLA_XDP, IFLA_XDP_ATTACHED).and_then(|how| how.first()).copied();
        Ok(Some(Self {
            name: attribute(all, IFLA_IFNAME).map(text).unwrap_or_default(),
            hardware,
            kind: within(IFLA_LINKINFO, IFLA_INFO_KIND).map(text),
            is_port: attribute(all, IFLA_MASTER).is_some_and(|master| master.iter().any(|byte| *byte != 0)),
            up: flags & libc::IFF_UP as u32 != 0,
            carrier: attribute(all, IFLA_CARRIER).and_then(|on| on.first()).is_none_or(|on| *on != 0),
            program: program.filter(|id| *id != 0),
            generic: attached == Some(XDP_ATTACHED_SKB),
        }))
    }

    /// Why its frames cannot be served, and what to do; `None` = they can.
    pub fn refusal(&self) -> Option<&'static str> {
        if self.hardware == libc::ARPHRD_LOOPBACK {
            return Some(
                "it is the loopback device; without --interface Towpath serves the programs of this host among each other",
            );
        }
        if self.hardware != libc::ARPHRD_ETHER {
            return Some(
                "its packets have no Ethernet header, as those of a tun device or a tunnel; serve the interface below \
                 it, or use a tap device",
            );
        }
        if self.kind.as_deref() == Some("bridge") {
            return Some(
                "it is a bridge, whose ports give it segments of up to 64 KiB that no AF_XDP socket takes; serve an \
                 interface that is no port of a bridge, or the interface in the namespace at the other end of a port",
            );
        }
        None
    }
}

/// The complete answer to RTM_GETLINK for one interface.
fn link_message(index: u32) -> io::Result<Vec<u8>> {
    let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
    // Its protocol of number 0 is NETLINK_ROUTE.
    let socket = socket_with(family, SocketType::RAW, flags, None)?;
    let length = (HEADER + size_of::<libc::ifinfomsg>()) as u32;
    let mut ask = Vec::with_capacity(length as usize);
    // struct nlmsghdr: length, type, flags, sequence, port.
    ask.extend(length.to_ne_bytes());
    ask.extend(libc::RTM_GETLINK.to_ne_bytes());
    ask.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    ask.extend([0; 8]);
    // struct ifinfomsg: family and padding, type, index, flags, change.
    ask.extend([0; 4]);
    ask.extend(index.to_ne_bytes());
    ask.extend([0; 8]);
    // A netlink socket without an address sends to the kernel.
    send(&socket, &ask, SendFlags::empty())?;
    let mut answer = vec![0; 64 * 1024];
    let (got, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(got);
    Ok(answer)
}

/// A text up to its NUL.
fn text(bytes: &[u8]) -> String {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or(bytes);
    String::from_utf8_lossy(bytes).into_owned()
}

/// The body of the first attribute of this type.
fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    while let [a, b, c, d, ..] = *attributes {
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let body = attributes.get(4..len)?;
        if u16::from_ne_bytes([c, d]) & NLA_TYPE_MASK == kind {
            return Some(body);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn word(bytes: &mut Vec<u8>, kind: u16, body: &[u8]) {
        bytes.extend((4 + body.len() as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }

    /// An answer about an interface of this hardware type and these flags.
    fn answer(hardware: u16, flags: u32, attributes: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + 2];
        bytes[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
        bytes.extend(hardware.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(attributes);
        bytes
    }

    #[test]
    fn an_answer_is_read_at_any_length() {
        let (mut attributes, mut kind, mut xdp) = (Vec::new(), Vec::new(), Vec::new());
        word(&mut kind, IFLA_INFO_KIND, b"veth\0");
        word(&mut xdp, IFLA_XDP_ATTACHED, &[XDP_ATTACHED_SKB]);
        word(&mut xdp, IFLA_XDP_PROG_ID, &7u32.to_ne_bytes());
        word(&mut attributes, IFLA_IFNAME, b"eth7\0");
        word(&mut attributes, IFLA_CARRIER, &[0]);
        word(&mut attributes, IFLA_MASTER, &9u32.to_ne_bytes());
        word(&mut attributes, IFLA_LINKINFO, &kind);
        word(&mut attributes, IFLA_XDP, &xdp);
        let whole = answer(libc::ARPHRD_ETHER, libc::IFF_UP as u32, &attributes);
        let expected = Link {
            name: "eth7".into(),
            hardware: libc::ARPHRD_ETHER,
            kind: Some("veth".into()),
            is_port: true,
            up: true,
            carrier: false,
            program: Some(7),
            generic: true,
        };
        assert_eq!(Link::read(&whole).unwrap(), Some(expected));
        for end in 0..whole.len() {
            let _ = Link::read(&whole[..end]);
        }
        let mut gone = vec![0; HEADER];
        gone[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        gone.extend((-libc::ENODEV).to_ne_bytes());
        assert_eq!(Link::read(&gone).unwrap(), None);
        assert_eq!(Link::of(u32::MAX >> 1).unwrap(), None, "the kernel's own answer");
    }

    #[test]
    fn attributes_are_read_within_bounds() {
        let bytes = [5, 0, 1, 0, 0xaa, 0, 0, 0, 8, 0, 2, 0x80, 1, 2, 3, 4];
        assert_eq!(attribute(&bytes, 1), Some(&[0xaa][..]));
        assert_eq!(attribute(&bytes, 2), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attribute(&bytes, 3), None);
        for end in 0..bytes.len() {
            attribute(&bytes[..end], 2);
        }
        assert_eq!(attribute(&[0; 8], 1), None, "a length of 0 does not loop");
    }

    #[test]
    fn only_ethernet_is_served() {
        let ethernet = Link { hardware: libc::ARPHRD_ETHER, ..Link::default() };
        let kind = |kind: &str| Link { kind: Some(kind.into()), ..ethernet.clone() };
        assert!([ethernet.clone(), kind("veth"), kind("tun")].iter().all(|link| link.refusal().is_none()));
        assert!(kind("bridge").refusal().unwrap().contains("bridge"));
        let none = Link { hardware: 0xfffe, ..kind("tun") };
        assert!(none.refusal().unwrap().contains("no Ethernet header"));
        let lo = Link::of(1).unwrap().unwrap();
        assert!(lo.refusal().unwrap().contains("loopback") && lo.kind.is_none() && lo.name == "lo", "{lo:?}");
    }
}
