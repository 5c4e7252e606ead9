//! The making of an AF_XDP socket, which needs privilege. An [`crate::xsk::XskPort`] uses one, also in another process.

use crate::RxChecksum;
use crate::interface::Interface;
use crate::mapping::{Mapping, Ring, RingOffsets};
use crate::packet_socket::{self, Group};
use rustix::fs::{MemfdFlags, SealFlags};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use towpath_wire::{ETHERNET_BYTES, VLAN_BYTES};

/// Bytes that the kernel keeps free before each received frame (XDP_PACKET_HEADROOM).
pub(crate) const HEADROOM_BYTES: u32 = 256;
/// `XDP_MAX_TX_SKB_BUDGET`: raises the frames per system call on new kernels.
const MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// In copy mode frames being sent count against the socket's send buffer. The default size holds about 100.
const SEND_BUFFER_BYTES: libc::c_int = 16 << 20;
/// Memory for frames is registered so often, with so much time in between.
const REGISTRATIONS: u32 = 10;
const BETWEEN_REGISTRATIONS: std::time::Duration = std::time::Duration::from_millis(50);
/// Size of the smaller huge page of x86-64, and of arm64 with 4 KiB pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Sizes of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XskConfig {
    /// Frame buffers, half for each direction.
    pub frames: u32,
    /// Bytes of a frame buffer: 2048, or 4096 for an MTU above 1,778 bytes. 0 = chosen by the interface's MTU.
    pub frame_bytes: u32,
    /// Descriptors in the receive ring and in the send ring: a power of two.
    pub ring: u32,
    /// Do not try zero-copy. Needed where the steering program is attached in generic mode.
    pub copy: bool,
    /// Receive super-segments too, each in several frame buffers. The kernel must be able to
    /// ([`receives_super_segments`]).
    pub super_segments: bool,
    /// Frames carry an IEEE 802.1Q tag, which takes four more bytes.
    pub tagged: bool,
}

impl XskConfig {
    fn header_bytes(&self) -> u32 {
        header_bytes(self.tagged)
    }
}

impl Default for XskConfig {
    /// 2,048 frames each way: 1.6 ms of full frames at 15 Gbit/s, 8 MiB of memory.
    fn default() -> Self {
        Self { frames: 4096, frame_bytes: 0, ring: 2048, copy: false, super_segments: false, tagged: false }
    }
}

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum XskError {
    /// No interface of this name.
    #[error("there is no network interface {0:?} in this network namespace (`ip link` lists them)")]
    NoInterface(String),
    /// A size in the configuration is invalid.
    #[error("AF_XDP on {0}: {1}")]
    Config(String, &'static str),
    /// EPERM.
    #[error(
        "AF_XDP on {0}: not permitted: needs CAP_NET_RAW (run as root, or `setcap cap_net_raw,cap_net_admin,cap_bpf+ep` on the program)"
    )]
    Permission(String),
    /// The memory may not be locked.
    #[error(
        "AF_XDP on {interface}: {bytes} bytes of frame memory may not be locked: raise the limit (`ulimit -l unlimited`, or LimitMEMLOCK=infinity in the systemd unit)"
    )]
    LockedMemory {
        /// Interface.
        interface: String,
        /// Size of the frame memory.
        bytes: usize,
    },
    /// Another socket is bound to the queue.
    #[error("AF_XDP on {0}: queue {1} is in use by another AF_XDP socket")]
    QueueBusy(String, u32),
    /// No such queue, or the driver cannot do it.
    #[error(
        "AF_XDP on {0}: the interface has no queue {1}, or is down or without AF_XDP support (`ethtool -l {0}`, `ip link set {0} up`)"
    )]
    NoQueue(String, u32),
    /// The packet sockets.
    #[error("packet sockets on {interface}: {error}")]
    Packets {
        /// Interface.
        interface: String,
        /// The error.
        error: io::Error,
    },
    /// Any other error of a system call.
    #[error("AF_XDP on {interface}: {call}: {error}")]
    System {
        /// Interface.
        interface: String,
        /// The system call or option.
        call: &'static str,
        /// Its error.
        error: io::Error,
    },
}

/// Bytes of a frame before its packet.
fn header_bytes(tagged: bool) -> u32 {
    ETHERNET_BYTES as u32 + if tagged { VLAN_BYTES as u32 } else { 0 }
}

/// Sizes and properties of a socket that its user needs beside its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Frame buffers, half for each direction.
    pub frames: u32,
    /// Bytes of a frame buffer.
    pub frame_bytes: u32,
    /// Descriptors in the receive ring and in the send ring.
    pub ring: u32,
    /// Frames carry an IEEE 802.1Q tag.
    pub tagged: bool,
    /// The interface's MTU.
    pub mtu_bytes: u32,
    /// See [`Interface::is_virtual`].
    pub is_virtual: bool,
    /// The interface's number.
    pub interface: u32,
}

impl Shape {
    fn of(interface: &Interface, config: &XskConfig) -> Result<Self, XskError> {
        let frame_bytes = check(interface, config)?;
        let XskConfig { frames, ring, tagged, .. } = *config;
        let Interface { mtu_bytes, is_virtual, index: interface, .. } = *interface;
        Ok(Self { frames, frame_bytes, ring, tagged, mtu_bytes, is_virtual, interface })
    }

    /// Bytes of a frame before its packet.
    pub fn header_bytes(&self) -> u32 {
        header_bytes(self.tagged)
    }

    /// The largest packet.
    pub fn mtu_bytes(&self) -> u32 {
        self.mtu_bytes.min(self.frame_bytes - HEADROOM_BYTES - self.header_bytes())
    }

    /// The state of the checksums of received frames.
    pub fn checksum(&self) -> RxChecksum {
        if self.is_virtual { RxChecksum::MaybePartial } else { RxChecksum::Unknown }
    }

    /// Frames of each direction.
    pub fn frames_per_way(&self) -> u32 {
        self.frames / 2
    }

    /// Bytes of the frame memory.
    pub fn bytes(&self) -> usize {
        self.frame_bytes as usize * self.frames as usize
    }
}

/// The four rings of a socket, mapped.
pub(crate) struct Rings {
    pub fill: Ring<u64>,
    pub completion: Ring<u64>,
    pub rx: Ring<libc::xdp_desc>,
    pub tx: Ring<libc::xdp_desc>,
}

/// An AF_XDP socket that is bound to a queue, and its frame memory. A process that holds both keeps their
/// state: another one can go on with them.
pub struct XskSocket {
    // Field order matters: the socket is closed before its memory.
    socket: OwnedFd,
    memory: OwnedFd,
    /// Sends super-segments.
    packets: Option<OwnedFd>,
    /// That one receives, too, and this one does not.
    by_packets: bool,
    shape: Shape,
    queue: u32,
}

impl XskSocket {
    /// Opens a socket on a queue of an interface of the thread's network namespace.
    pub fn open(interface: &str, queue: u32, config: XskConfig) -> Result<Self, XskError> {
        let system = |call| move |error| XskError::System { interface: interface.into(), call, error };
        let found = Interface::find(interface).map_err(system("SIOCGIFMTU"))?;
        let found = found.ok_or_else(|| XskError::NoInterface(interface.into()))?;
        let shape = Shape::of(&found, &config)?;
        let socket = new_socket().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => XskError::Permission(interface.into()),
            _ => system("socket")(error),
        })?;
        // The kernel keeps the pages. So this mapping may go when they are registered.
        let (memory, mapping) = frame_memory(shape.bytes()).map_err(system("memfd"))?;
        register_patiently(&socket, &mapping, shape.frame_bytes).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOBUFS) => XskError::LockedMemory { interface: interface.into(), bytes: shape.bytes() },
            Some(libc::EPERM) => XskError::Permission(interface.into()),
            _ => system("XDP_UMEM_REG")(error),
        })?;
        set_rings(&socket, shape.frames_per_way(), shape.ring).map_err(system("rings"))?;
        let how = if config.copy { libc::XDP_COPY } else { 0 };
        let how = how | if config.super_segments { libc::XDP_USE_SG } else { 0 };
        bind(&socket, found.index, queue, how).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => XskError::QueueBusy(interface.into(), queue),
            Some(libc::EINVAL | libc::ENETDOWN | libc::EOPNOTSUPP) => XskError::NoQueue(interface.into(), queue),
            Some(libc::EPERM) => XskError::Permission(interface.into()),
            _ => system("bind")(error),
        })?;
        // Both only save system calls. Old kernels, or missing privileges, may refuse them.
        let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER_BYTES);
        let _ = set_option(&socket, libc::SOL_XDP, MAX_TX_SKB_BUDGET, &config.ring);
        // Without it all frames are of the MTU's size. The kernel does not cut frames with a tag in them.
        let only_sends = || {
            let socket = packet_socket::open(found.index)?;
            packet_socket::only_send(&socket).map(|()| socket)
        };
        let packets = if config.tagged { None } else { only_sends().ok() };
        Ok(Self { socket, memory, packets, by_packets: false, shape, queue })
    }

    /// From the descriptors that another process has given. `by_packets`: the packet socket receives.
    pub(crate) fn of(
        [socket, memory]: [OwnedFd; 2],
        packets: Option<OwnedFd>,
        by_packets: bool,
        shape: Shape,
        queue: u32,
    ) -> Self {
        Self { socket, memory, packets, by_packets, shape, queue }
    }

    /// Has a new packet socket receive what the filter takes. `group`: of the interface's sockets, if it has several.
    pub(crate) fn receive_packets(
        &mut self,
        interface: u32,
        filter: BorrowedFd<'_>,
        group: Option<&mut Option<Group>>,
    ) -> io::Result<()> {
        let socket = packet_socket::open(interface)?;
        packet_socket::receive(&socket, interface, filter, group)?;
        self.packets = Some(socket);
        Ok(())
    }

    /// A copy of the packet socket, if that receives.
    pub(crate) fn receiving_packets(&self) -> io::Result<Option<OwnedFd>> {
        self.packets.as_ref().filter(|_| self.by_packets).map(OwnedFd::try_clone).transpose()
    }

    /// The socket, its memory, and the socket for super-segments.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.socket.as_fd(), self.memory.as_fd()].into_iter().chain(self.packets.as_ref().map(OwnedFd::as_fd))
    }

    /// Has it a socket for super-segments?
    pub(crate) fn sends_super_segments(&self) -> bool {
        self.packets.is_some()
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// The queue of the interface.
    pub(crate) fn queue(&self) -> u32 {
        self.queue
    }

    /// The socket, and the one for super-segments.
    pub(crate) fn into_sockets(self) -> (OwnedFd, Option<OwnedFd>) {
        (self.socket, self.packets)
    }

    /// Maps the frame memory.
    pub(crate) fn map_memory(&self) -> io::Result<Mapping> {
        Mapping::shared(self.memory.as_fd(), self.shape.bytes(), 0)
    }

    /// Maps the rings.
    pub(crate) fn map_rings(&self) -> io::Result<Rings> {
        let offsets: libc::xdp_mmap_offsets = get_option(&self.socket, libc::XDP_MMAP_OFFSETS)?;
        let [fill, completion, rx, tx]: [RingOffsets; 4] =
            [offsets.fr.into(), offsets.cr.into(), offsets.rx.into(), offsets.tx.into()];
        let (fd, frames) = (self.socket.as_fd(), self.shape.frames_per_way().next_power_of_two());
        Ok(Rings {
            fill: Ring::map(fd, frames, fill, libc::XDP_UMEM_PGOFF_FILL_RING as _)?,
            completion: Ring::map(fd, frames, completion, libc::XDP_UMEM_PGOFF_COMPLETION_RING as _)?,
            rx: Ring::map(fd, self.shape.ring, rx, libc::XDP_PGOFF_RX_RING)?,
            tx: Ring::map(fd, self.shape.ring, tx, libc::XDP_PGOFF_TX_RING)?,
        })
    }

    /// Does the device read and write the frame memory itself?
    pub(crate) fn zero_copy(&self) -> io::Result<bool> {
        let options: u32 = get_option(&self.socket, libc::XDP_OPTIONS)?;
        Ok(options & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// Is every frame in a ring, or its user's? Then another user can go on with the socket. No frame may come meanwhile:
    /// the steering program is not bound to it.
    ///
    /// The positions of the rings count all frames that have gone through them. So the kernel has as many as it took from
    /// one ring and did not put into the other. A driver that reads the memory itself keeps some for ever.
    pub(crate) fn is_at_rest(&self) -> bool {
        let at_rest = |rings: Rings| {
            let Rings { fill, completion, rx, tx } = rings;
            let all_fit = fill.fits() && completion.fits() && rx.fits() && tx.fits();
            all_fit && fill.consumer() == rx.producer() && tx.consumer() == completion.producer()
        };
        !self.zero_copy().unwrap_or(true) && self.map_rings().is_ok_and(at_rest)
    }

    /// Is it bound to its queue? The kernel takes it off for good when the interface is deleted or leaves the namespace.
    /// Nothing else tells: an interface that comes back may have the same index, and our program.
    pub(crate) fn is_bound(&self) -> bool {
        // Nothing is received by this call. It wakes a driver at most.
        let received = rustix::net::recv(&self.socket, &mut [0][..], rustix::net::RecvFlags::DONTWAIT);
        !matches!(received, Err(rustix::io::Errno::NXIO))
    }
}

impl AsFd for XskSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Memory of this size that another process can map, mapped here. It is in huge pages if its size is a multiple of theirs and
/// some are free. Nobody can make it smaller.
fn frame_memory(bytes: usize) -> io::Result<(OwnedFd, Mapping)> {
    let make = |more: MemfdFlags| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | more;
        let memory = rustix::fs::memfd_create("towpath-frames", flags)?;
        rustix::fs::ftruncate(&memory, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Mapping::shared(memory.as_fd(), bytes, 0).map(|mapping| (memory, mapping))
    };
    if bytes.is_multiple_of(HUGE_PAGE_BYTES)
        && let Ok(made) = make(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)
    {
        return Ok(made);
    }
    make(MemfdFlags::empty())
}

/// Checks the sizes and returns the frame size in bytes.
fn check(interface: &Interface, config: &XskConfig) -> Result<u32, XskError> {
    let wanted = interface.mtu_bytes.saturating_add(config.header_bytes() + HEADROOM_BYTES);
    let frame_bytes = match config.frame_bytes {
        // A super-segment needs fewer of the larger ones.
        0 if wanted <= 2048 && !config.super_segments => 2048,
        0 => 4096,
        other => other,
    };
    let wrong = |what| Err(XskError::Config(interface.name.clone(), what));
    // The kernel accepts frames of 2 KiB up to a page.
    if !matches!(frame_bytes, 2048 | 4096) {
        return wrong("frame_bytes must be 2048 or 4096");
    }
    if !config.ring.is_power_of_two() || !(64..=1 << 15).contains(&config.ring) {
        return wrong("the ring must have 64 to 32768 descriptors, a power of two");
    }
    if !config.frames.is_multiple_of(2) || !(128..=1 << 17).contains(&config.frames) {
        return wrong("frames must be an even number from 128 to 131072");
    }
    Ok(frame_bytes)
}

/// Can this kernel put a received super-segment into several frame buffers? (`XDP_USE_SG`, Linux 6.6.)
pub(crate) fn receives_super_segments() -> bool {
    // It looks at the flags before it looks for the interface, of which there is none with this number.
    let error = new_socket().and_then(|socket| bind(&socket, 0, 0, libc::XDP_COPY | libc::XDP_USE_SG));
    error.is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV))
}

fn new_socket() -> io::Result<OwnedFd> {
    // SAFETY: the arguments are integers; no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// [`register`], again if the kernel has no memory: on a busy machine it may have some a moment later. The limit of locked memory
/// counts what the service before has held until the kernel has given it back, which it does later.
fn register_patiently(socket: &OwnedFd, memory: &Mapping, frame_bytes: u32) -> io::Result<()> {
    for _ in 1..REGISTRATIONS {
        match register(socket, memory, frame_bytes) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS)) => {
                std::thread::sleep(BETWEEN_REGISTRATIONS);
            }
            result => return result,
        }
    }
    register(socket, memory, frame_bytes)
}

fn register(socket: &OwnedFd, memory: &Mapping, frame_bytes: u32) -> io::Result<()> {
    let region = libc::xdp_umem_reg {
        addr: memory.start().as_ptr() as u64,
        len: memory.bytes() as u64,
        chunk_size: frame_bytes,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &region)
}

/// Sets the ring sizes.
fn set_rings(socket: &OwnedFd, frames: u32, ring: u32) -> io::Result<()> {
    // The fill and completion rings have room for all frames of their direction, so they can never be full.
    let frames = frames.next_power_of_two();
    set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_FILL_RING, &frames)?;
    set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_COMPLETION_RING, &frames)?;
    set_option(socket, libc::SOL_XDP, libc::XDP_RX_RING, &ring)?;
    set_option(socket, libc::SOL_XDP, libc::XDP_TX_RING, &ring)
}

fn bind(socket: &OwnedFd, index: u32, queue: u32, how: u16) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        // Without XDP_COPY the kernel tries zero-copy and falls back by itself.
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP | how,
        sxdp_ifindex: index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let length = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: `address` is a complete sockaddr_xdp, which the call only reads.
    let result = unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set_option<T>(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for reads of `length` bytes.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option of SOL_XDP. `T` must be plain data, for which any bytes are valid.
pub(crate) fn get_option<T: Copy>(socket: &OwnedFd, name: libc::c_int) -> io::Result<T> {
    // SAFETY: the structures read here consist of integers, for which zero is a valid value.
    let mut value: T = unsafe { zeroed() };
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for writes of `length` bytes, and the kernel writes no more.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            name,
            std::ptr::from_mut(&mut value).cast(),
            std::ptr::from_mut(&mut length),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}
