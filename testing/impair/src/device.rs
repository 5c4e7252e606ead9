//! A packet socket on an interface, which receives and sends complete frames as they are on a wire.

use crate::frame::{self, Unfinished};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Most frames received in one batch.
const BATCH: usize = 32;
/// Bytes of a receive buffer: room for the largest super-frame.
const ROOM: usize = 68 << 10;
/// `struct virtio_net_hdr`.
const VNET: usize = 10;
const VNET_NEEDS_CHECKSUM: u8 = 1;
/// Size of the socket's buffers in bytes.
const SOCKET_BYTES: libc::c_int = 16 << 20;

/// Counters of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DeviceCounters {
    /// Frames that the kernel dropped because we were too slow.
    pub missed: u64,
    /// Super-frames of protocols that cannot be cut.
    pub uncut: u64,
    /// Frames that the interface did not accept.
    pub unsent: u64,
}

/// One interface.
pub struct Device {
    fd: OwnedFd,
    room: Vec<Vec<u8>>,
    counters: DeviceCounters,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Device {
    /// Opens `interface` in promiscuous mode. Frames that this host itself sends are not received. Needs CAP_NET_RAW.
    pub fn open(interface: &str) -> io::Result<Self> {
        let explain =
            |what: &str, error: io::Error| io::Error::new(error.kind(), format!("{interface}: {what}: {error}"));
        let index = index_of(interface).map_err(|error| explain("no such interface here", error))?;
        // Protocol 0 receives nothing before `bind`, so that no frame of another interface gets in.
        // SAFETY: the arguments are integers; no memory is passed.
        let fd = check(unsafe {
            libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
        })
        .map_err(|error| explain("cannot open a packet socket (root needed)", error))?;
        // SAFETY: `fd` is a new descriptor that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let device = Self { fd, room: vec![vec![0; ROOM]; BATCH], counters: DeviceCounters::default() };
        device.set_up(index).map_err(|error| explain("cannot set up the packet socket", error))?;
        Ok(device)
    }

    fn set_up(&self, index: libc::c_int) -> io::Result<()> {
        self.option(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
        self.option(libc::SOL_PACKET, libc::PACKET_AUXDATA, &1)?;
        self.option(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
        self.option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &SOCKET_BYTES)?;
        self.option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SOCKET_BYTES)?;
        // SAFETY: `sockaddr_ll` and `packet_mreq` are plain data, for which all zeros is valid.
        let (mut at, mut membership): (libc::sockaddr_ll, libc::packet_mreq) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        membership.mr_ifindex = index;
        membership.mr_type = libc::PACKET_MR_PROMISC as u16;
        self.option(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
        at.sll_family = libc::AF_PACKET as u16;
        at.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        at.sll_ifindex = index;
        // SAFETY: `at` outlives the call and has the length given.
        check(unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const at).cast(), size_of_val(&at) as u32) })?;
        Ok(())
    }

    fn option<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
        let len = size_of::<T>() as u32;
        // SAFETY: `value` outlives the call and has the length given.
        check(unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) })
            .map(drop)
    }

    /// The descriptor to poll for reading.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The counters so far.
    pub fn counters(&mut self) -> DeviceCounters {
        // SAFETY: `tpacket_stats` is plain data, for which all zeros is valid.
        let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&stats) as u32;
        // SAFETY: `stats` is writable and has the length given.
        let got = unsafe {
            let out = (&raw mut stats).cast();
            libc::getsockopt(self.fd.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, out, &raw mut len)
        };
        if got == 0 {
            // Reading resets the kernel's counter.
            self.counters.missed += u64::from(stats.tp_drops);
        }
        self.counters
    }

    /// Passes received frames to `out`, up to a batch, with super-frames cut and checksums filled. True = there may be
    /// more.
    pub fn receive(&mut self, mut out: impl FnMut(&[u8])) -> io::Result<bool> {
        let mut taken = 0;
        while taken < BATCH {
            let Some((len, tag)) = self.take(taken)? else { break };
            let bytes = &mut self.room[taken];
            taken += 1;
            if len <= VNET {
                continue;
            }
            let unfinished = vnet(&bytes[..VNET]);
            let mut give = |frame: &[u8]| match tag {
                Some(tag) => {
                    let mut tagged = frame.to_vec();
                    frame::insert_tag(&mut tagged, tag);
                    out(&tagged);
                }
                None => out(frame),
            };
            if !frame::finish(&mut bytes[VNET..len], unfinished, &mut give) {
                self.counters.uncut += 1;
            }
        }
        Ok(taken == BATCH)
    }

    /// Receives one message into `room[index]`. Returns its length with the kernel's header, and its VLAN tag.
    fn take(&mut self, index: usize) -> io::Result<Option<(usize, Option<u16>)>> {
        let room = &mut self.room[index];
        // u64, so that the buffer is aligned for `cmsghdr`.
        let mut control = [0u64; 16];
        let mut part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        // SAFETY: `msghdr` is plain data, for which all zeros is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the message's buffers are writable, have the lengths given and outlive the call.
        let len = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        if len < 0 {
            let error = io::Error::last_os_error();
            // ENETDOWN: wait until the interface is up again.
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::ENETDOWN) => Ok(None),
                _ => Err(error),
            };
        }
        let len = (len as usize).min(room.len());
        Ok(Some((len, tag_of(&message))))
    }

    /// Sends a complete frame. One that the interface does not accept is counted and lost.
    pub fn send(&mut self, frame: &[u8]) {
        let header = [0u8; VNET];
        let mut parts = [
            libc::iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: VNET },
            libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() },
        ];
        // SAFETY: `msghdr` is plain data, for which all zeros is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        // SAFETY: the parts are readable, have the lengths given and outlive the call, which does not write to them.
        let sent = unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
        if sent < 0 {
            self.counters.unsent += 1;
        }
    }
}

/// Reads the kernel's header before a frame.
fn vnet(header: &[u8]) -> Unfinished {
    let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let checksum = (header[0] & VNET_NEEDS_CHECKSUM != 0).then(|| (word(6), word(8)));
    let segment_bytes = if header[1] == 0 { 0 } else { word(4) };
    Unfinished { checksum, segment_bytes }
}

/// The VLAN tag that the kernel has removed from a frame.
fn tag_of(message: &libc::msghdr) -> Option<u16> {
    // SAFETY: the kernel has filled the message's control buffer and set its length, so the CMSG functions stay within
    // it.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while !control.is_null() {
            if (*control).cmsg_level == libc::SOL_PACKET && (*control).cmsg_type == libc::PACKET_AUXDATA {
                let auxiliary: libc::tpacket_auxdata = std::ptr::read_unaligned(libc::CMSG_DATA(control).cast());
                return (auxiliary.tp_status & libc::TP_STATUS_VLAN_VALID != 0).then_some(auxiliary.tp_vlan_tci);
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
    None
}

fn index_of(interface: &str) -> io::Result<libc::c_int> {
    let name = std::ffi::CString::new(interface).map_err(io::Error::other)?;
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index as libc::c_int),
    }
}
