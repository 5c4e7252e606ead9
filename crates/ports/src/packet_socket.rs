//! Packet sockets of an interface. Each sends super-segments. With a filter it also receives frames of ours whole, with what
//! the kernel knows of their checksums. To make one needs privilege; to use one does not.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes of `struct virtio_net_hdr`, which precedes each frame (`PACKET_VNET_HDR`).
pub(crate) const HEADER_BYTES: usize = 10;
/// Frames being sent count against this.
const SEND_BUFFER_BYTES: libc::c_int = 16 << 20;
/// Received frames that wait count against this, with the memory that they take in the kernel.
const RECEIVE_BUFFER_BYTES: libc::c_int = 32 << 20;
/// `PACKET_FANOUT_HASH`: all frames of a connection come to the same socket. A queue says less: a veth does not tell it.
const BY_CONNECTION: u32 = 0;
/// `PACKET_FANOUT_FLAG_UNIQUEID`, and what the interface sends is nobody's (`PACKET_FANOUT_FLAG_IGNORE_OUTGOING`).
const NEW_GROUP: u32 = 0x2000;
const NOTHING_SENT: u32 = 0x4000;

/// The group of an interface's sockets, which share its frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group(u16);

/// A packet socket that sends on this interface, and receives nothing. To make one needs `CAP_NET_RAW`.
pub(crate) fn open(interface: u32) -> io::Result<OwnedFd> {
    // SAFETY: the arguments are integers; no memory is passed.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is a new descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // Without a protocol it receives nothing.
    bind(&socket, interface, 0)?;
    set(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    // No PACKET_QDISC_BYPASS: past the qdisc the kernel drops what the device cannot cut itself. Less buffer is slower, and
    // works.
    let _ = set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES);
    Ok(socket)
}

/// Has a socket of [`open`] receive what the filter takes, for good. `group`: of the interface's sockets, if it has several.
pub(crate) fn receive(
    socket: &OwnedFd,
    interface: u32,
    filter: BorrowedFd<'_>,
    group: Option<&mut Option<Group>>,
) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, filter.as_raw_fd())?;
    lock(socket)?;
    set(socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    // Less buffer drops frames sooner, and works.
    let _ = set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES);
    bind(socket, interface, (libc::ETH_P_ALL as u16).to_be())?;
    group.map_or(Ok(()), |group| join(socket, group))
}

/// Has a socket of [`open`] never receive anything, also if its user binds it anew.
pub(crate) fn only_send(socket: &OwnedFd) -> io::Result<()> {
    // It takes 0 bytes of each frame.
    let mut nothing = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: nothing.len() as u16, filter: nothing.as_mut_ptr() };
    let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: `program` names one instruction, and both are only read during the call.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const program).cast(), length) };
    if done < 0 { Err(io::Error::last_os_error()) } else { lock(socket) }
}

/// The filter stays. Its user has no privilege, and could take it off: it would see all that the interface receives.
fn lock(socket: &OwnedFd) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, 1)
}

/// Has the socket join the group. The first one makes it.
fn join(socket: &OwnedFd, group: &mut Option<Group>) -> io::Result<()> {
    let how = (BY_CONNECTION | NOTHING_SENT) << 16;
    match group {
        Some(Group(number)) => {
            set(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, (how | u32::from(*number)).cast_signed())
        }
        None => {
            set(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, (how | NEW_GROUP << 16).cast_signed())?;
            *group = Some(Group(get::<u32>(socket, libc::PACKET_FANOUT)? as u16));
            Ok(())
        }
    }
}

fn bind(socket: &OwnedFd, interface: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: the structure consists of integers, for which zero is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    (address.sll_family, address.sll_ifindex) = (libc::AF_PACKET as u16, interface.cast_signed());
    address.sll_protocol = protocol;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` is complete, and the call only reads it.
    let done = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` is valid for reads of `length` bytes.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option of packet sockets. `T` must consist of integers.
pub(crate) fn get<T: Copy>(socket: &OwnedFd, name: libc::c_int) -> io::Result<T> {
    // SAFETY: `T` consists of integers, for which zero is a valid value.
    let mut value: T = unsafe { zeroed() };
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for writes of `length` bytes, and the kernel writes no more.
    let done = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, name, (&raw mut value).cast(), &raw mut length)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}
