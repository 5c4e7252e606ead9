//! Asks the kernel by `sock_diag(7)` for its own TCP sockets.

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{self, IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};
use towpath_fast::KernelListener;
use towpath_tcp::flow::FourTuple;

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// Bytes of a netlink header.
const HEADER: usize = 16;
/// Bytes of a question: the header and a `struct inet_diag_req_v2`.
const QUESTION: usize = HEADER + 56;
/// Where the parts of a `struct inet_diag_msg` stand in an answer.
const STATE: usize = HEADER + 1;
const ADDRESS: usize = HEADER + 8;
const COOKIE: usize = HEADER + 44;
/// `TCP_LISTEN`.
const LISTEN: u8 = 10;
/// No cookie.
const ANY: u64 = u64::MAX;
/// The index of the loopback device in every namespace.
const LOOPBACK: u32 = 1;
/// Bytes of answers that are received at a time. The kernel sends no longer parts of a list.
const PART: usize = 32 * 1024;
/// A list of listeners is used again within this time.
const LISTED_FOR: Duration = Duration::from_millis(500);
/// Most lists that are kept.
const LISTS: usize = 1024;

/// A listener of the kernel: its cookie and its address.
type Listed = (u64, IpAddr);

/// A netlink socket for questions.
pub struct SockDiag {
    socket: Socket,
    sequence: u32,
    /// The listeners on a port, and when they were listed.
    listed: HashMap<u16, (Instant, HashSet<Listed>)>,
}

impl SockDiag {
    /// Opens the socket.
    pub fn connect() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let mut diag = Self { socket, sequence: 0, listed: HashMap::new() };
        diag.check()?;
        Ok(diag)
    }

    /// A kernel without `tcp_diag` finds nothing, and says no more than that.
    fn check(&mut self) -> io::Result<()> {
        let listener = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        rustix::net::listen(&listener, 0)?;
        let local = net::SocketAddr::try_from(rustix::net::getsockname(&listener)?)?;
        match self.is_listening(sockopt::socket_cookie(&listener)?, local.ip(), local.port())? {
            true => Ok(()),
            false => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel has no tcp_diag (CONFIG_INET_TCP_DIAG)"))
            }
        }
    }

    /// Has the kernel a connection with this tuple, in any state from SYN-SENT to TIME-WAIT? One whose socket is bound to
    /// a device is found by the index of that `interface` only.
    pub fn has(&mut self, tuple: &FourTuple, interface: u32) -> io::Result<bool> {
        // The kernel names a listener if it has no connection with the tuple.
        Ok(self.find(tuple, interface, ANY)?.is_some_and(|found| found.state != LISTEN))
    }

    /// The listener that gets a SYN of this tuple, seen from the peer, within this host.
    pub fn listener_of(&mut self, tuple: &FourTuple) -> io::Result<KernelListener> {
        self.listener_by(tuple, LOOPBACK)
    }

    /// The listener that gets a SYN of this tuple, seen from the peer, by the device of this index.
    pub fn listener_by(&mut self, tuple: &FourTuple, interface: u32) -> io::Result<KernelListener> {
        Ok(match self.find(&tuple.reversed(), interface, ANY)? {
            None => KernelListener::None,
            Some(found) if found.state == LISTEN => KernelListener::Cookie(found.cookie),
            Some(_) => KernelListener::Taken,
        })
    }

    /// Does the socket with this cookie listen on this address and port?
    pub fn is_listening(&mut self, cookie: u64, addr: IpAddr, port: u16) -> io::Result<bool> {
        let any = if addr.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let tuple = FourTuple { local: addr, local_port: port, remote: any, remote_port: 0 };
        // The kernel may name a socket at every address for one address.
        let is_it = |found: Found| found.state == LISTEN && found.everywhere == addr.is_unspecified();
        if self.find(&tuple, 0, cookie)?.is_some_and(is_it) {
            return Ok(true);
        }
        // It may be one of several that share the port, or bound to a device: then it is found in a list only.
        let wanted = (cookie, addr);
        let listed = |(at, listed): &(Instant, HashSet<Listed>)| at.elapsed() < LISTED_FOR && listed.contains(&wanted);
        if self.listed.get(&port).is_some_and(listed) {
            return Ok(true);
        }
        let listeners = self.listeners(port)?;
        let found = listeners.contains(&wanted);
        if self.listed.len() >= LISTS {
            self.listed.clear();
        }
        self.listed.insert(port, (Instant::now(), listeners));
        Ok(found)
    }

    /// The socket with this tuple and cookie.
    fn find(&mut self, tuple: &FourTuple, interface: u32, cookie: u64) -> io::Result<Option<Found>> {
        self.sequence = self.sequence.wrapping_add(1);
        let family = family(tuple.local);
        self.socket.send(&question(self.sequence, libc::NLM_F_REQUEST, family, tuple, interface, cookie), 0)?;
        loop {
            // The answer is there when `send` returns.
            let mut answer = Vec::with_capacity(1024);
            self.socket.recv(&mut answer, libc::MSG_DONTWAIT)?;
            if let Some(result) = read(&answer, self.sequence) {
                return result;
            }
        }
    }

    /// All sockets of both families that listen on a port.
    fn listeners(&mut self, port: u16) -> io::Result<HashSet<Listed>> {
        let mut found = HashSet::new();
        for any in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
            self.sequence = self.sequence.wrapping_add(1);
            let tuple = FourTuple { local: any, local_port: port, remote: any, remote_port: 0 };
            let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
            self.socket.send(&question(self.sequence, flags, family(any), &tuple, 0, ANY), 0)?;
            let mut more = true;
            while more {
                let mut part = Vec::with_capacity(PART);
                self.socket.recv(&mut part, libc::MSG_DONTWAIT)?;
                more = read_part(&part, self.sequence, &mut found)?;
            }
        }
        Ok(found)
    }
}

/// A socket of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    state: u8,
    cookie: u64,
    /// Bound to no address of its own.
    everywhere: bool,
}

fn family(address: IpAddr) -> i32 {
    if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

fn question(sequence: u32, flags: i32, family: i32, tuple: &FourTuple, interface: u32, cookie: u64) -> [u8; QUESTION] {
    // A list is one of listeners.
    let states = if flags & libc::NLM_F_DUMP != 0 { 1 << LISTEN } else { u32::MAX };
    let mut bytes = [0; QUESTION];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(&(QUESTION as u32).to_ne_bytes());
    put(&BY_FAMILY.to_ne_bytes());
    put(&(flags as u16).to_ne_bytes());
    put(&sequence.to_ne_bytes());
    put(&[0; 4]);
    put(&[family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    put(&states.to_ne_bytes());
    put(&tuple.local_port.to_be_bytes());
    put(&tuple.remote_port.to_be_bytes());
    put(&padded(tuple.local));
    put(&padded(tuple.remote));
    put(&interface.to_ne_bytes());
    // The low word first, whatever the byte order.
    put(&(cookie as u32).to_ne_bytes());
    put(&((cookie >> 32) as u32).to_ne_bytes());
    bytes
}

fn padded(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
        IpAddr::V6(address) => address.octets(),
    }
}

fn word(answer: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?))
}

fn cookie(answer: &[u8]) -> Option<u64> {
    Some(u64::from(word(answer, COOKIE)?) | u64::from(word(answer, COOKIE + 4)?) << 32)
}

fn kind(answer: &[u8]) -> Option<i32> {
    Some(u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?).into())
}

/// The answer to question `sequence`. `None`: this is none.
fn read(answer: &[u8], sequence: u32) -> Option<io::Result<Option<Found>>> {
    let kind = kind(answer)?;
    if word(answer, 8)? != sequence {
        return None;
    }
    Some(match kind {
        libc::NLMSG_ERROR => match word(answer, HEADER)?.cast_signed().wrapping_neg() {
            // ESTALE: another socket than the one with the cookie.
            libc::ENOENT | libc::ESTALE => Ok(None),
            errno => Err(io::Error::from_raw_os_error(errno)),
        },
        _ => {
            let everywhere = answer.get(ADDRESS..ADDRESS + 16)?.iter().all(|&byte| byte == 0);
            Ok(Some(Found { state: *answer.get(STATE)?, cookie: cookie(answer)?, everywhere }))
        }
    })
}

/// Reads a part of a list. True: more of it comes.
fn read_part(mut part: &[u8], sequence: u32, found: &mut HashSet<Listed>) -> io::Result<bool> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    while !part.is_empty() {
        let length = word(part, 0).ok_or_else(wrong)? as usize;
        let message = part.get(..length).filter(|message| message.len() >= HEADER).ok_or_else(wrong)?;
        part = part.get(length.next_multiple_of(4)..).unwrap_or_default();
        if word(message, 8) != Some(sequence) {
            continue;
        }
        match kind(message).ok_or_else(wrong)? {
            libc::NLMSG_DONE => return Ok(false),
            libc::NLMSG_ERROR => {
                let errno = word(message, HEADER).ok_or_else(wrong)?.cast_signed().wrapping_neg();
                return Err(io::Error::from_raw_os_error(errno));
            }
            _ => found.extend(listed(message)),
        }
    }
    Ok(true)
}

fn listed(message: &[u8]) -> Option<Listed> {
    let cookie = cookie(message)?;
    let address: [u8; 16] = message.get(ADDRESS..ADDRESS + 16)?.try_into().ok()?;
    let address = match i32::from(*message.get(HEADER)?) {
        libc::AF_INET => IpAddr::from([address[0], address[1], address[2], address[3]]),
        _ => Ipv6Addr::from(address).to_canonical(),
    };
    (*message.get(STATE)? == LISTEN).then_some((cookie, address))
}

#[cfg(test)]
mod tests;
