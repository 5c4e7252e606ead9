//! NAPI instances, by the generic netlink family `netdev` (Linux 6.8; threads of single instances 6.17). It gives the
//! interrupt and the queue of each, independent of the driver's names.

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};
use serde::Serialize;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A NAPI instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Napi {
    /// Its number in this machine.
    pub id: u32,
    /// The receive queue that it serves, or else the send queue.
    pub queue: Option<u32>,
    /// Its interrupt.
    pub irq: Option<u32>,
    /// Its thread, if it has one.
    pub thread: Option<u32>,
    /// True if a thread polls it. `None`: this kernel does not say that of single instances.
    pub threaded: Option<bool>,
}

// linux/netlink.h, linux/genetlink.h, linux/netdev.h.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLA_TYPE_MASK: u16 = 0x3fff;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_CMD_QUEUE_GET: u8 = 10;
const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_CMD_NAPI_SET: u8 = 14;
const DEV_IFINDEX: u16 = 1;
const DEV_XDP_FEATURES: u16 = 3;
const QUEUE_ID: u16 = 1;
const QUEUE_IFINDEX: u16 = 2;
const QUEUE_TYPE: u16 = 3;
const QUEUE_NAPI_ID: u16 = 4;
const QUEUE_TYPE_RX: u32 = 0;
const NAPI_IFINDEX: u16 = 1;
const NAPI_ID: u16 = 2;
const NAPI_IRQ: u16 = 3;
const NAPI_PID: u16 = 4;
const NAPI_IRQ_SUSPEND_TIMEOUT: u16 = 7;
const NAPI_THREADED: u16 = 8;
/// Bytes of `struct nlmsghdr` and of `struct genlmsghdr`.
const HEADER: usize = 16;
const GENERIC: usize = 4;
/// The kernel puts at most 32 KiB of a list into one datagram (`netlink_dump`).
const LONGEST: usize = 1 << 16;

/// The instances of an interface, by its index, in the order of their queues.
pub fn napis(index: u32) -> io::Result<Vec<Napi>> {
    let mut netlink = Netlink::connect()?;
    let answers = netlink.ask(NETDEV_CMD_NAPI_GET, NLM_F_DUMP, &[(NAPI_IFINDEX, index)])?;
    let mut napis: Vec<Napi> = answers
        .iter()
        .filter_map(|answer| {
            let (threaded, irq) = (number(answer, NAPI_THREADED), number(answer, NAPI_IRQ));
            let threaded = threaded.map(|threaded| threaded != 0);
            Some(Napi { id: number(answer, NAPI_ID)?, queue: None, irq, thread: number(answer, NAPI_PID), threaded })
        })
        .collect();
    for queue in netlink.ask(NETDEV_CMD_QUEUE_GET, NLM_F_DUMP, &[(QUEUE_IFINDEX, index)])? {
        let (Some(id), Some(of)) = (number(&queue, QUEUE_ID), number(&queue, QUEUE_NAPI_ID)) else { continue };
        let receives = number(&queue, QUEUE_TYPE) == Some(QUEUE_TYPE_RX);
        if let Some(napi) = napis.iter_mut().find(|napi| napi.id == of && (receives || napi.queue.is_none())) {
            napi.queue = Some(id);
        }
    }
    napis.sort_by_key(|napi| (napi.queue.is_none(), napi.queue, napi.id));
    Ok(napis)
}

/// What the driver of an interface does for XDP: bits of `netdev_xdp_act`. `None`: it is not said.
pub fn xdp_features(index: u32) -> io::Result<Option<u64>> {
    let answers = Netlink::connect()?.ask(NETDEV_CMD_DEV_GET, 0, &[(DEV_IFINDEX, index)])?;
    let bits = answers.iter().find_map(|answer| find(answer, DEV_XDP_FEATURES));
    Ok(bits.and_then(|bits| bits.try_into().ok()).map(u64::from_ne_bytes))
}

/// Starts or ends polling of an instance by a thread of its own.
pub fn set_threaded(id: u32, threaded: bool) -> io::Result<()> {
    let attributes = [(NAPI_ID, id), (NAPI_THREADED, threaded.into())];
    Netlink::connect()?.ask(NETDEV_CMD_NAPI_SET, NLM_F_ACK, &attributes).map(drop)
}

/// Suspends an instance's interrupts for at most `ns` after work, while a program polls it (Linux 6.13). 0: no
/// suspension.
pub fn set_irq_suspend(id: u32, ns: u32) -> io::Result<()> {
    let attributes = [(NAPI_ID, id), (NAPI_IRQ_SUSPEND_TIMEOUT, ns)];
    Netlink::connect()?.ask(NETDEV_CMD_NAPI_SET, NLM_F_ACK, &attributes).map(drop)
}

/// A conversation with the family.
struct Netlink {
    socket: OwnedFd,
    family: u16,
}

impl Netlink {
    fn connect() -> io::Result<Self> {
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::GENERIC))?;
        // An answer is there when `send` returns. The timeout guards against a lost one.
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(2)))?;
        let mut netlink = Self { socket, family: GENL_ID_CTRL };
        let mut name = Vec::new();
        attribute(&mut name, CTRL_ATTR_FAMILY_NAME, b"netdev\0");
        let answers = netlink.send(CTRL_CMD_GETFAMILY, 0, &name)?;
        let id = answers.iter().find_map(|answer| find(answer, CTRL_ATTR_FAMILY_ID)).and_then(|id| id.try_into().ok());
        netlink.family = id.map(u16::from_ne_bytes).ok_or(io::ErrorKind::Unsupported)?;
        Ok(netlink)
    }

    fn ask(&mut self, command: u8, flags: u16, numbers: &[(u16, u32)]) -> io::Result<Vec<Vec<u8>>> {
        let mut attributes = Vec::new();
        numbers.iter().for_each(|(kind, value)| attribute(&mut attributes, *kind, &value.to_ne_bytes()));
        self.send(command, flags, &attributes)
    }

    /// Sends a request and returns the attributes of all answers.
    fn send(&mut self, command: u8, flags: u16, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut ask = Vec::new();
        ask.extend(((HEADER + GENERIC + attributes.len()) as u32).to_ne_bytes());
        ask.extend(self.family.to_ne_bytes());
        ask.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        ask.extend([0; 8]);
        ask.extend([command, 1, 0, 0]);
        ask.extend(attributes);
        send(&self.socket, &ask, SendFlags::empty())?;
        let (mut answers, mut bytes) = (Vec::new(), vec![0; LONGEST]);
        loop {
            let (length, _) = recv(&self.socket, &mut bytes, RecvFlags::empty())?;
            if messages(&bytes[..length], &mut answers)? || flags & (NLM_F_DUMP | NLM_F_ACK) == 0 {
                return Ok(answers);
            }
        }
    }
}

/// Adds the attributes of each message. True: that was the last one.
fn messages(mut bytes: &[u8], answers: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    while let Some(length) = word(bytes, 0).map(|length| length as usize) {
        let Some(message) = bytes.get(..length).filter(|_| length >= HEADER) else { break };
        match u16::from_ne_bytes([message[4], message[5]]) {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                return match word(message, HEADER) {
                    Some(0) | None => Ok(true),
                    Some(error) => Err(io::Error::from_raw_os_error((error as i32).saturating_neg())),
                };
            }
            _ => answers.push(message.get(HEADER + GENERIC..).unwrap_or_default().to_vec()),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn attribute(into: &mut Vec<u8>, kind: u16, value: &[u8]) {
    into.extend(((4 + value.len()) as u16).to_ne_bytes());
    into.extend(kind.to_ne_bytes());
    into.extend(value);
    into.resize(into.len().next_multiple_of(4), 0);
}

/// The value of the first attribute of a kind.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while attributes.len() >= 4 {
        let length = u16::from_ne_bytes([attributes[0], attributes[1]]) as usize;
        let kind = u16::from_ne_bytes([attributes[2], attributes[3]]) & NLA_TYPE_MASK;
        let value = attributes.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn number(attributes: &[u8], kind: u16) -> Option<u32> {
    word(find(attributes, kind)?, 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_loopback_device_has_no_instances_and_what_is_no_instance_cannot_be_set() {
        match napis(1) {
            Ok(napis) => assert_eq!(napis, []),
            // A kernel before 6.8 has no such family.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOENT)),
        }
        assert!(set_threaded(u32::MAX, true).is_err());
        assert!(set_irq_suspend(u32::MAX, 1).is_err());
    }

    #[test]
    fn attributes_are_found_behind_others() {
        let mut bytes = Vec::new();
        attribute(&mut bytes, 7, b"abc\0\0");
        attribute(&mut bytes, NAPI_ID | 0x8000, &9u32.to_ne_bytes());
        assert_eq!((number(&bytes, NAPI_ID), find(&bytes, 1)), (Some(9), None));
        (0..bytes.len()).for_each(|end| assert_eq!(number(&bytes[..end], NAPI_ID), None));
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut answers = Vec::new();
            let _ = messages(&bytes, &mut answers);
            let _ = find(&bytes, NAPI_ID);
        }
    }
}
