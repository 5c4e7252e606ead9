//! AF_XDP: one socket on one queue of an interface.

use crate::interface::Interface;
use crate::mapping::{Mapping, Ring, RingOffsets};
use crate::{Capabilities, Port, PortCounters, RxChecksum, RxFrame, TxOffload};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use towpath_wire::{ETHERNET_BYTES, VLAN_BYTES};

/// Bytes that the kernel keeps free before each received frame (XDP_PACKET_HEADROOM).
const HEADROOM_BYTES: u32 = 256;
/// In copy mode the kernel sends this many frames per system call (TX_BATCH_SIZE in net/xdp/xsk.c).
const COPY_BATCH: u32 = 32;
/// `XDP_MAX_TX_SKB_BUDGET`: raises [`COPY_BATCH`] on new kernels.
const MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// In copy mode frames being sent count against the socket's send buffer. The default size holds about 100.
const SEND_BUFFER_BYTES: libc::c_int = 16 << 20;

/// Sizes of an [`XskPort`].
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
    /// Frames carry an IEEE 802.1Q tag, which takes four more bytes.
    pub tagged: bool,
}

impl XskConfig {
    /// Bytes of a frame before its packet.
    fn header_bytes(&self) -> u32 {
        ETHERNET_BYTES as u32 + if self.tagged { VLAN_BYTES as u32 } else { 0 }
    }
}

impl Default for XskConfig {
    /// 2,048 frames each way: 1.6 ms of full frames at 15 Gbit/s, 8 MiB of memory.
    fn default() -> Self {
        Self { frames: 4096, frame_bytes: 0, ring: 2048, copy: false, tagged: false }
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

/// An AF_XDP socket with its frame memory.
///
/// Half of the frames serve each direction, so that neither can starve the other. Received frames are ours until
/// [`Port::release`] returns them to the fill ring. Sent frames are the kernel's until it completes them.
pub struct XskPort {
    // Field order matters: the socket is closed before its memory is unmapped.
    socket: OwnedFd,
    fill: Ring<u64>,
    completion: Ring<u64>,
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    memory: Mapping,
    frame_bytes: u32,
    /// Frames `0..rx_frames` receive; the others send.
    rx_frames: u32,
    /// For each receiving frame: is it between `receive` and `release`?
    held: Vec<bool>,
    /// Sending frames that may be reserved.
    free: Vec<u32>,
    reserved: Option<u32>,
    queue: u32,
    zero_copy: bool,
    checksum: RxChecksum,
    mtu_bytes: u32,
    header_bytes: u32,
    rx_bad: u64,
    counted: PortCounters,
}

impl XskPort {
    /// Opens a socket on a queue of an interface of the thread's network namespace. It receives frames once the
    /// steering program is bound to it ([`crate::steering::Steering::bind`]).
    pub fn open(interface: &str, queue: u32, config: XskConfig) -> Result<Self, XskError> {
        let system = |call| move |error| XskError::System { interface: interface.into(), call, error };
        let found = Interface::find(interface).map_err(system("SIOCGIFMTU"))?;
        let found = found.ok_or_else(|| XskError::NoInterface(interface.into()))?;
        let frame_bytes = check(&found, &config)?;
        let frames_per_way = config.frames / 2;
        let socket = new_socket().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => XskError::Permission(interface.into()),
            _ => system("socket")(error),
        })?;
        let memory = Mapping::anonymous(frame_bytes as usize * config.frames as usize).map_err(system("mmap"))?;
        register(&socket, &memory, frame_bytes).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOBUFS | libc::ENOMEM) => {
                XskError::LockedMemory { interface: interface.into(), bytes: memory.bytes() }
            }
            Some(libc::EPERM) => XskError::Permission(interface.into()),
            _ => system("XDP_UMEM_REG")(error),
        })?;
        let [fill, completion, rx, tx] = set_rings(&socket, frames_per_way, config.ring).map_err(system("rings"))?;
        let frames_ring = frames_per_way.next_power_of_two();
        let fd = socket.as_fd();
        let map = "mmap of a ring";
        let fill = Ring::map(fd, frames_ring, fill, libc::XDP_UMEM_PGOFF_FILL_RING as _).map_err(system(map))?;
        let completion =
            Ring::map(fd, frames_ring, completion, libc::XDP_UMEM_PGOFF_COMPLETION_RING as _).map_err(system(map))?;
        let rx = Ring::map(fd, config.ring, rx, libc::XDP_PGOFF_RX_RING).map_err(system(map))?;
        let tx = Ring::map(fd, config.ring, tx, libc::XDP_PGOFF_TX_RING).map_err(system(map))?;
        bind(&socket, found.index, queue, config.copy).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => XskError::QueueBusy(interface.into(), queue),
            Some(libc::EINVAL | libc::ENETDOWN | libc::EOPNOTSUPP) => XskError::NoQueue(interface.into(), queue),
            Some(libc::EPERM) => XskError::Permission(interface.into()),
            _ => system("bind")(error),
        })?;
        // Both only save system calls. Old kernels, or missing privileges, may refuse them.
        let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER_BYTES);
        let _ = set_option(&socket, libc::SOL_XDP, MAX_TX_SKB_BUDGET, &config.ring);
        let options: u32 = get_option(&socket, libc::XDP_OPTIONS).map_err(system("XDP_OPTIONS"))?;
        let mut port = Self {
            socket,
            fill,
            completion,
            rx,
            tx,
            memory,
            frame_bytes,
            rx_frames: frames_per_way,
            held: vec![false; frames_per_way as usize],
            free: (frames_per_way..config.frames).rev().collect(),
            reserved: None,
            queue,
            zero_copy: options & libc::XDP_OPTIONS_ZEROCOPY != 0,
            checksum: found.rx_checksum(),
            mtu_bytes: found.mtu_bytes.min(frame_bytes - HEADROOM_BYTES - config.header_bytes()),
            header_bytes: config.header_bytes(),
            rx_bad: 0,
            counted: PortCounters::default(),
        };
        for frame in 0..frames_per_way {
            port.fill.push(u64::from(frame) * u64::from(frame_bytes));
        }
        port.fill.publish();
        Ok(port)
    }

    /// The queue of the interface.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Does the device read and write the frame memory itself?
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    fn frame_of(&self, address: u64) -> u64 {
        address / u64::from(self.frame_bytes)
    }

    /// Takes back the frames that the kernel has sent.
    fn reap(&mut self) {
        while let Some(address) = self.completion.next() {
            let frame = self.frame_of(address);
            let ours = frame >= u64::from(self.rx_frames) && frame < u64::from(self.rx_frames) + self.held.len() as u64;
            debug_assert!(ours, "the kernel completed a frame that is not for sending");
            if ours {
                self.free.push(frame as u32);
            }
        }
        self.completion.give_back();
    }

    /// Lets the kernel send the ring's frames. It is called only as often as a full ring takes in batches.
    /// Frames that a full device queue does not take stay for the next flush.
    fn kick(&mut self) {
        let mut left = self.tx.waiting();
        let attempts = left / COPY_BATCH + 1;
        for _ in 0..attempts {
            // SAFETY: the buffer and the address are null, so no memory is passed.
            let result = unsafe {
                libc::sendto(self.socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
            };
            let error = if result < 0 { io::Error::last_os_error().raw_os_error() } else { None };
            if error == Some(libc::EBUSY) {
                // Copy mode: the device dropped one frame. It is completed nevertheless.
                self.counted.tx_dropped += 1;
            } else if error != Some(libc::EAGAIN) {
                return;
            }
            let before = std::mem::replace(&mut left, self.tx.waiting());
            if left == 0 || left == before {
                return;
            }
            // A full completion ring or send buffer also gives EAGAIN.
            self.reap();
        }
    }

    /// Lets the driver continue receiving if it has stopped for lack of frames.
    fn wake_receiver(&mut self) {
        if self.fill.needs_wakeup() {
            // SAFETY: the buffer and the address are null, so no memory is passed.
            unsafe {
                libc::recvfrom(
                    self.socket.as_raw_fd(),
                    std::ptr::null_mut(),
                    0,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                )
            };
        }
    }
}

impl AsFd for XskPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Port for XskPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu_bytes: self.mtu_bytes, tx_checksum: false, gso_max_bytes: 0 }
    }

    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        let before = frames.len();
        while frames.len() - before < max {
            let Some(descriptor) = self.rx.next() else { break };
            let frame = self.frame_of(descriptor.addr);
            let end = descriptor.addr % u64::from(self.frame_bytes) + u64::from(descriptor.len);
            match self.held.get_mut(frame as usize) {
                Some(held) if !*held && end <= u64::from(self.frame_bytes) => {
                    *held = true;
                    frames.push(RxFrame { handle: descriptor.addr, len: descriptor.len, checksum: self.checksum });
                }
                _ => self.rx_bad += 1,
            }
        }
        self.rx.give_back();
        self.counted.rx_frames += (frames.len() - before) as u64;
        self.wake_receiver();
    }

    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        let index = self.frame_of(frame.handle);
        let end = frame.handle % u64::from(self.frame_bytes) + u64::from(frame.len);
        let held = self.held.get(index as usize) == Some(&true) && end <= u64::from(self.frame_bytes);
        debug_assert!(held, "a frame that was not received or is released");
        if !held {
            return &[];
        }
        // SAFETY: the range lies within one receiving frame of the mapping, as checked here. The frame is held: the
        // kernel will not write it before `release`, which needs `&mut self`. We never write receiving frames.
        unsafe {
            std::slice::from_raw_parts(self.memory.start().as_ptr().add(frame.handle as usize), frame.len as usize)
        }
    }

    fn release(&mut self, frames: &[RxFrame]) {
        for frame in frames {
            let index = self.frame_of(frame.handle);
            let held = self.held.get_mut(index as usize).filter(|held| **held);
            debug_assert!(held.is_some(), "a frame that was not received or is released");
            if let Some(held) = held {
                *held = false;
                // The ring has room for every receiving frame, so it is never full.
                self.fill.push(index * u64::from(self.frame_bytes));
            }
        }
        self.fill.publish();
    }

    fn reserve(&mut self) -> Option<&mut [u8]> {
        if self.reserved.is_none() {
            if self.free.is_empty() {
                self.reap();
            }
            // With more frames than descriptors the ring may be full.
            self.reserved = if self.tx.has_room() { self.free.pop() } else { None };
        }
        let start = self.reserved? as usize * self.frame_bytes as usize;
        // SAFETY: the range is a whole sending frame of the mapping. It is reserved, so the kernel does not use it: it
        // is not in the ring, or completed. No other slice of it exists, as the slice borrows `self`.
        Some(unsafe {
            std::slice::from_raw_parts_mut(self.memory.start().as_ptr().add(start), self.frame_bytes as usize)
        })
    }

    fn commit(&mut self, len: usize, offload: TxOffload) {
        debug_assert!(!offload.checksum_needed && offload.gso_bytes == 0, "this port has no offloads");
        let Some(frame) = self.reserved.take() else { return };
        let fits = len <= (self.mtu_bytes + self.header_bytes) as usize;
        debug_assert!(fits, "a frame longer than the MTU");
        let addr = u64::from(frame) * u64::from(self.frame_bytes);
        if !fits || !self.tx.push(libc::xdp_desc { addr, len: len as u32, options: 0 }) {
            self.counted.tx_dropped += 1;
            self.free.push(frame);
            return;
        }
        self.counted.tx_frames += 1;
    }

    fn flush(&mut self) {
        self.tx.publish();
        if self.tx.waiting() > 0 && self.tx.needs_wakeup() {
            self.kick();
        }
        self.reap();
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn pending(&mut self) -> bool {
        self.wake_receiver();
        self.rx.readable() > 0
    }

    fn counters(&self) -> PortCounters {
        let mut counters = self.counted;
        // This is one system call, so do not use it for every packet. On failure only our own counts are returned.
        if let Ok(kernel) = get_option::<libc::xdp_statistics>(&self.socket, libc::XDP_STATISTICS) {
            counters.rx_dropped = kernel.rx_dropped + kernel.rx_ring_full;
            counters.tx_dropped += kernel.tx_invalid_descs;
        }
        counters.rx_dropped += self.rx_bad;
        counters
    }
}

/// Checks the sizes and returns the frame size in bytes.
fn check(interface: &Interface, config: &XskConfig) -> Result<u32, XskError> {
    let wanted = interface.mtu_bytes.saturating_add(config.header_bytes() + HEADROOM_BYTES);
    let frame_bytes = match config.frame_bytes {
        0 if wanted <= 2048 => 2048,
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

fn new_socket() -> io::Result<OwnedFd> {
    // SAFETY: the arguments are integers; no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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

/// Sets the ring sizes and returns the layouts of the fill, completion, receive and send ring.
fn set_rings(socket: &OwnedFd, frames: u32, ring: u32) -> io::Result<[RingOffsets; 4]> {
    // The fill and completion rings have room for all frames of their direction, so they can never be full.
    let frames = frames.next_power_of_two();
    set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_FILL_RING, &frames)?;
    set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_COMPLETION_RING, &frames)?;
    set_option(socket, libc::SOL_XDP, libc::XDP_RX_RING, &ring)?;
    set_option(socket, libc::SOL_XDP, libc::XDP_TX_RING, &ring)?;
    let offsets: libc::xdp_mmap_offsets = get_option(socket, libc::XDP_MMAP_OFFSETS)?;
    Ok([offsets.fr.into(), offsets.cr.into(), offsets.rx.into(), offsets.tx.into()])
}

fn bind(socket: &OwnedFd, index: u32, queue: u32, copy: bool) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        // Without XDP_COPY the kernel tries zero-copy and falls back by itself.
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP | if copy { libc::XDP_COPY } else { 0 },
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
fn get_option<T: Copy>(socket: &OwnedFd, name: libc::c_int) -> io::Result<T> {
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
