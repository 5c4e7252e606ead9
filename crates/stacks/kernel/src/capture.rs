//! Captures. The frames are the kernel's own: a packet socket of the service's network namespace gives them. Those of
//! this stack's connections are kept. The kernel stack's threads have no part in it.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use towpath_capture::ends::ends;
use towpath_capture::record::KERNEL;
use towpath_capture::tap::now_ns;
use towpath_capture::{Memory, Name, Tap, Wish};
use towpath_runtime::capture::Next;
use towpath_runtime::requests::{Caller, Request};
use towpath_runtime::{Capture, SocketStatus};

/// The longest frame: a packet of the loopback device, or one that the network card will cut.
const LONGEST: usize = 256 << 10;
/// Frames taken at one look.
const BATCH: usize = 4096;
/// How long a frame waits for the stack to know its connection.
const WAIT: Duration = Duration::from_millis(50);
/// Least time between two questions for the connections.
const ASK: Duration = Duration::from_millis(10);
/// Most bytes of frames that wait.
const MOST_WAITING: usize = 4 << 20;
/// Most connections that are remembered as named.
const MOST_KNOWN: usize = 1 << 16;
/// Most connections that are known not to be ours, and how long they are believed not to be.
const MOST_STRANGERS: usize = 1 << 16;
const STRANGE: Duration = Duration::from_secs(1);
/// Bytes that the kernel may keep for us between two looks.
const KERNEL_BUFFER: libc::c_int = 16 << 20;
/// `ARPHRD_LOOPBACK`, `ARPHRD_ETHER`, and devices without a link header (`ARPHRD_NONE`, `ARPHRD_RAWIP`).
const LOOPBACK: u16 = 772;
const ETHERNET: u16 = 1;
const BARE: [u16; 2] = [0xfffe, 519];

/// A frame, as the kernel gave it.
struct Frame {
    bytes: Vec<u8>,
    outgoing: bool,
    time_ns: u64,
}

/// A running capture of this stack.
pub struct KernelCapture {
    memory: Memory,
    tap: Tap,
    socket: OwnedFd,
    groups: Vec<Caller>,
    running: Arc<AtomicBool>,
    /// Local and remote end of the connections that are named, and the process that was.
    known: HashMap<[SocketAddr; 2], i32>,
    /// The same of listeners: address (`None` = any) and port.
    listeners: HashMap<(Option<IpAddr>, u16), i32>,
    strangers: HashSet<[SocketAddr; 2]>,
    strangers_since: Instant,
    waiting: VecDeque<(Instant, [SocketAddr; 2], Frame)>,
    waiting_bytes: usize,
    asked: Option<Instant>,
    buffer: Vec<u8>,
}

impl KernelCapture {
    /// Begins one.
    pub fn begin(wish: &Wish, groups: &[Caller], running: &Arc<AtomicBool>) -> io::Result<Box<dyn Capture>> {
        let (memory, mut writers) = Memory::new(1, wish.bytes)?;
        let socket = packet_socket()?;
        if running.swap(true, Ordering::AcqRel) {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "a capture of this service runs already"));
        }
        let mut capture = Self {
            memory,
            tap: Tap::new(writers.remove(0), wish),
            socket,
            groups: groups.to_vec(),
            running: Arc::clone(running),
            known: HashMap::new(),
            listeners: HashMap::new(),
            strangers: HashSet::new(),
            strangers_since: Instant::now(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            asked: None,
            buffer: vec![0; LONGEST],
        };
        capture.ask();
        Ok(Box::new(capture))
    }

    /// Asks the stack for its connections, and names those that are new.
    fn ask(&mut self) {
        self.asked = Some(Instant::now());
        if self.known.len() > MOST_KNOWN {
            self.known.clear();
        }
        let all = self.groups.iter().filter_map(|group| group.answer(Request::Connections)).flatten();
        for SocketStatus { local, peer: remote, pid, uid, program, state, .. } in all {
            let named = if state == "LISTEN" {
                let ip = Some(local.ip()).filter(|ip| !ip.is_unspecified());
                self.listeners.insert((ip, local.port()), pid)
            } else {
                self.known.insert([local, remote], pid)
            };
            if named != Some(pid) {
                self.tap.name(&Name { local, remote, pid, uid, program });
            }
        }
    }

    /// Is it a connection of this stack? Both ends of it may be.
    fn is_ours(&self, ends: &[SocketAddr; 2]) -> bool {
        let listens = |end: &SocketAddr| {
            self.listeners.contains_key(&(Some(end.ip()), end.port()))
                || self.listeners.contains_key(&(None, end.port()))
        };
        self.known.contains_key(ends) || self.known.contains_key(&[ends[1], ends[0]]) || ends.iter().any(listens)
    }

    fn sort(&mut self, frame: Frame) {
        let Some(ends) = ends(&frame.bytes) else { return };
        if self.is_ours(&ends) {
            self.tap.frame(KERNEL, frame.outgoing, frame.time_ns, &frame.bytes);
        } else if !self.strangers.contains(&ends) && self.waiting_bytes + frame.bytes.len() <= MOST_WAITING {
            self.waiting_bytes += frame.bytes.len();
            self.waiting.push_back((Instant::now() + WAIT, ends, frame));
        }
    }

    /// Looks whether the stack knows by now what waits.
    fn settle(&mut self) {
        if self.waiting.is_empty() || self.asked.is_some_and(|asked| asked.elapsed() < ASK) {
            return;
        }
        self.ask();
        if self.strangers_since.elapsed() > STRANGE || self.strangers.len() > MOST_STRANGERS {
            self.strangers.clear();
            self.strangers_since = Instant::now();
        }
        let now = Instant::now();
        for (until, ends, frame) in std::mem::take(&mut self.waiting) {
            if self.is_ours(&ends) {
                self.waiting_bytes -= frame.bytes.len();
                self.tap.frame(KERNEL, frame.outgoing, frame.time_ns, &frame.bytes);
            } else if now < until {
                self.waiting.push_back((until, ends, frame));
            } else {
                self.waiting_bytes -= frame.bytes.len();
                self.strangers.insert(ends);
            }
        }
    }
}

impl Capture for KernelCapture {
    fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    fn look(&mut self) -> Next {
        let mut taken = 0;
        while taken < BATCH
            && let Some(frame) = receive(&self.socket, &mut self.buffer)
        {
            taken += 1;
            if let Some(frame) = frame {
                self.sort(frame);
            }
        }
        if taken > 0 {
            self.tap.lose(lost(&self.socket));
        }
        self.settle();
        if taken == BATCH { Next::Now } else { Next::Soon }
    }
}

impl Drop for KernelCapture {
    fn drop(&mut self) {
        self.look();
        // The last connections are asked for once more.
        self.asked = None;
        self.settle();
        self.running.store(false, Ordering::Release);
    }
}

/// A packet socket for all TCP of all devices.
fn packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: the arguments are integers; no memory is passed. Protocol 0: it receives nothing until it is bound.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        let why = "the frames of this stack are the kernel's, and the service needs CAP_NET_RAW for them; run tcpdump \
                   beside it";
        let refused = error.kind() == io::ErrorKind::PermissionDenied;
        return Err(if refused { io::Error::new(error.kind(), why) } else { error });
    }
    // SAFETY: `fd` is a new descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut filter = TCP_ONLY;
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1)?;
    // Without CAP_NET_ADMIN the kernel keeps less.
    if set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &KERNEL_BUFFER).is_err() {
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &KERNEL_BUFFER)?;
    }
    // SAFETY: an all-zero sockaddr_ll is a valid value: any device.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` is a complete sockaddr_ll, which the call only reads.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// TCP over IPv4 or IPv6. It asks for the network header, because not all devices have an Ethernet header.
const TCP_ONLY: [libc::sock_filter; 9] = {
    const AD_PROTOCOL: u32 = 0xffff_f000;
    const NETWORK: u32 = 0xfff0_0000;
    const fn word(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code, jt, jf, k }
    }
    [
        word(0x20, 0, 0, AD_PROTOCOL),
        word(0x15, 0, 2, 0x0800),
        word(0x30, 0, 0, NETWORK + 9),
        word(0x05, 0, 0, 2),
        word(0x15, 0, 3, 0x86dd),
        word(0x30, 0, 0, NETWORK + 6),
        word(0x15, 0, 1, 6),
        word(0x06, 0, 0, u32::MAX),
        word(0x06, 0, 0, 0),
    ]
};

fn set<T>(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for reads of `length` bytes.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Frames that the kernel had no room for, since the last question.
fn lost(socket: &OwnedFd) -> u64 {
    let mut counts = [0u32; 2];
    let mut length = size_of_val(&counts) as libc::socklen_t;
    // SAFETY: `counts` is as long as a tpacket_stats, which two counters are, and the kernel writes no more.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            counts.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result < 0 { 0 } else { counts[1].into() }
}

/// The next frame: `None` = there is none now, `Some(None)` = one that is not to be shown.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Option<Option<Frame>> {
    // SAFETY: all-zero is a valid value of these structures of integers and null pointers.
    let (mut from, mut header): (libc::sockaddr_ll, libc::msghdr) = unsafe { (zeroed(), zeroed()) };
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // As u64, so that it is aligned as a control message must be.
    let mut control = [0u64; 8];
    header.msg_name = std::ptr::from_mut(&mut from).cast();
    header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: the header's parts live during the call, and their lengths are theirs.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    let count = usize::try_from(count).ok()?;
    let mut time_ns = now_ns();
    // SAFETY: the kernel has filled the control messages of the header, which lie in `control`.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        if let Some(message) = first.as_ref()
            && (message.cmsg_level, message.cmsg_type) == (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS)
        {
            let time = libc::CMSG_DATA(first).cast::<libc::timespec>().read_unaligned();
            time_ns = (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64);
        }
    }
    let outgoing = from.sll_pkttype == libc::PACKET_OUTGOING;
    let bytes = &buffer[..count.min(buffer.len())];
    let bytes = match from.sll_hatype {
        // The loopback device shows each frame twice.
        LOOPBACK if outgoing => return Some(None),
        LOOPBACK | ETHERNET => bytes.to_vec(),
        other if BARE.contains(&other) => {
            let mut frame = vec![0; 12];
            frame.extend(from.sll_protocol.to_ne_bytes());
            frame.extend(bytes);
            frame
        }
        _ => return Some(None),
    };
    Some(Some(Frame { bytes, outgoing, time_ns }))
}
