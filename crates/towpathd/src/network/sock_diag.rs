//! Asks the kernel by `sock_diag(7)` for one of its own TCP connections.

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};
use std::io;
use std::net::IpAddr;
use towpath_tcp::flow::FourTuple;

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// Bytes of a netlink header.
const HEADER: usize = 16;
/// Bytes of a question: the header and a `struct inet_diag_req_v2`.
const QUESTION: usize = HEADER + 56;
/// Where the state of a socket stands in an answer (`struct inet_diag_msg`).
const STATE: usize = HEADER + 1;
/// `TCP_LISTEN`.
const LISTEN: u8 = 10;

/// A netlink socket for questions.
pub struct SockDiag {
    socket: Socket,
    sequence: u32,
}

impl SockDiag {
    /// Opens the socket.
    pub fn connect() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Has the kernel a connection with this tuple, in any state from SYN-SENT to TIME-WAIT? One whose socket is bound to
    /// a device is found by the index of that `interface` only.
    pub fn has(&mut self, tuple: &FourTuple, interface: u32) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&question(tuple, interface, self.sequence), 0)?;
        loop {
            // The answer is there when `send` returns.
            let mut answer = Vec::with_capacity(1024);
            self.socket.recv(&mut answer, libc::MSG_DONTWAIT)?;
            if let Some(result) = read(&answer, self.sequence) {
                return result;
            }
        }
    }
}

fn question(tuple: &FourTuple, interface: u32, sequence: u32) -> [u8; QUESTION] {
    let mut bytes = [0; QUESTION];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(&(QUESTION as u32).to_ne_bytes());
    put(&BY_FAMILY.to_ne_bytes());
    put(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    put(&sequence.to_ne_bytes());
    put(&[0; 4]);
    let family = if tuple.local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    put(&[family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    put(&u32::MAX.to_ne_bytes()); // all states
    put(&tuple.local_port.to_be_bytes());
    put(&tuple.remote_port.to_be_bytes());
    put(&padded(tuple.local));
    put(&padded(tuple.remote));
    put(&interface.to_ne_bytes());
    put(&[0xff; 8]); // no cookie
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

/// The answer to question `sequence`. `None`: this is none.
fn read(answer: &[u8], sequence: u32) -> Option<io::Result<bool>> {
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if word(8)? != sequence {
        return None;
    }
    Some(match i32::from(kind) {
        libc::NLMSG_ERROR => match word(HEADER)?.cast_signed().wrapping_neg() {
            libc::ENOENT => Ok(false),
            errno => Err(io::Error::from_raw_os_error(errno)),
        },
        // The kernel names a listener if it has no connection with the tuple.
        _ => Ok(*answer.get(STATE)? != LISTEN),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernels_connections_are_found_and_no_others() {
        let mut diag = SockDiag::connect().unwrap();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (local, remote) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
            let tuple = FourTuple {
                local: local.ip(),
                local_port: local.port(),
                remote: remote.ip(),
                remote_port: remote.port(),
            };
            assert!(diag.has(&tuple, 0).unwrap() && diag.has(&tuple.reversed(), 0).unwrap());
            let other = FourTuple { remote_port: 1, ..tuple };
            assert!(!diag.has(&other, 0).unwrap());
            assert!(!diag.has(&FourTuple { local_port: 9, ..tuple.reversed() }, 0).unwrap());
            let to_listener = FourTuple { remote_port: 9, ..tuple.reversed() };
            assert!(!diag.has(&to_listener, 0).unwrap(), "a listener is no connection");
        }
    }

    #[test]
    fn short_answers_are_none() {
        for length in 0..HEADER + 4 {
            assert!(read(&vec![0; length], 0).is_none_or(|result| result.is_err() || length > STATE), "{length}");
        }
    }
}
