//! Moves a connection out of this kernel and into it by `TCP_REPAIR`, as a record that any stack can take over. Needs
//! CAP_NET_ADMIN.
//!
//! While no kernel has the connection, its packets must be dropped, not answered by a reset. A drop filter does that,
//! or the address is removed first.

use crate::record::{ConnectionRecord, Invalid, Queue, Settings, Window};
use crate::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, getpeername, getsockname, recv, send,
    socket_with, sockopt,
};
use std::net::SocketAddr;
use std::time::Duration;

/// `TCP_REPAIR`: on, off, and off without the window probe.
const ON: i32 = 1;
const OFF: i32 = 0;
const OFF_WITHOUT_PROBE: i32 = -1;
/// `TCP_REPAIR_QUEUE`.
const RECEIVE_QUEUE: i32 = 1;
const SEND_QUEUE: i32 = 2;
/// `TCP_REPAIR_OPTIONS`: kinds of TCP's own options.
const MSS: u32 = 2;
const WINDOW_SCALE: u32 = 3;
const SACK: u32 = 4;
const TIMESTAMPS: u32 = 8;
/// What the kernel takes as `TCP_MAXSEG`.
const LEAST_MSS: i32 = 88;
const LARGEST_MSS: i32 = 32767;
/// `tcpi_options` in `TCP_INFO`.
const HAS_TIMESTAMPS: u8 = 1;
const HAS_SACK: u8 = 2;
const HAS_SCALE: u8 = 4;
/// `tcpi_state`.
const ESTABLISHED: u8 = 1;
const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;
/// `SO_BUF_LOCK`: sizes that the application has set itself.
const SEND_LOCKED: i32 = 1;
const RECEIVE_LOCKED: i32 = 2;
/// Bytes given to a receive queue at a time. The kernel would need contiguous memory for more.
const CHUNK: usize = 64 << 10;
/// How often a queue that keeps changing is read, before it counts as moving.
const LOOKS: usize = 3;
/// Ioctls: bytes to be read, to be acknowledged, to be sent.
const SIOCINQ: libc::Ioctl = 0x541B;
const SIOCOUTQ: libc::Ioctl = 0x5411;
const SIOCOUTQNSD: libc::Ioctl = 0x894B;

/// Why a connection cannot move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotMove {
    /// Only established connections move.
    #[error("the connection is in state {0} (of Linux's tcp_states.h), and only ESTABLISHED (1) moves")]
    State(u8),
    /// An urgent byte has not been read.
    #[error("an urgent byte is unread")]
    Urgent,
    /// Part of a file is still to be sent, or the kernel has the keys of TLS.
    #[error("a file is being sent, or the kernel encrypts")]
    Sideband,
    /// Packets arrive.
    #[error("data arrives while the connection is read out; drop its packets first")]
    Moving,
    /// The kernel's values make no valid record.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A call failed.
    #[error("{0}: {1}")]
    Call(&'static str, Errno),
}

/// Which directions of a moved connection have ended. Put into a kernel, the connection is an established one, and
/// that kernel knows nothing of the ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedDirections {
    /// Our FIN follows the send queue and has not been acknowledged. It is to be sent again.
    pub ours: bool,
    /// The peer's FIN has arrived and is acknowledged, and nothing is unread.
    pub theirs: bool,
}

/// Takes a connection out of the kernel, as a record. Then the socket is in repair mode: closing it sends nothing, and
/// [`resume`] takes it back.
///
/// # Errors
/// If it cannot move. It continues unchanged.
pub fn take(fd: BorrowedFd<'_>) -> Result<ConnectionRecord, CannotMove> {
    match take_ending(fd)? {
        (record, EndedDirections { ours: false, theirs: false }) => Ok(record),
        _ => {
            resume(fd);
            Err(CannotMove::State(info(fd)?.state))
        }
    }
}

/// The same for a connection of which one direction, or both, may have ended.
///
/// # Errors
/// If it cannot move. It continues unchanged.
pub fn take_ending(fd: BorrowedFd<'_>) -> Result<(ConnectionRecord, EndedDirections), CannotMove> {
    let info = info(fd)?;
    let ours = matches!(info.state, FIN_WAIT_1 | LAST_ACK | CLOSING);
    let theirs = matches!(info.state, CLOSE_WAIT | LAST_ACK | CLOSING);
    if !ours && !theirs && !matches!(info.state, ESTABLISHED | FIN_WAIT_2) {
        return Err(CannotMove::State(info.state));
    }
    repair(fd, ON)?;
    let record = read_out(fd, &info, ours).inspect_err(|_| resume(fd))?;
    // The peer's FIN has a sequence number too. A record has none for it after unread bytes.
    if theirs && !record.receive.bytes.is_empty() {
        resume(fd);
        return Err(CannotMove::State(info.state));
    }
    Ok((record, EndedDirections { ours, theirs }))
}

/// Lets a connection that was taken out continue here.
pub fn resume(fd: BorrowedFd<'_>) {
    sys::set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, OFF_WITHOUT_PROBE);
}

/// Puts a connection into the kernel and returns its socket. A window probe is sent, and the peer's answer shows which
/// bytes it lacks.
///
/// # Errors
/// If the kernel refuses it (the local address must exist). Nothing has been sent then.
pub fn put(record: &ConnectionRecord) -> Result<OwnedFd, CannotMove> {
    record.check()?;
    let family = if record.local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None).map_err(call("socket"))?;
    let fd = socket.as_fd();
    sockopt::set_socket_reuseaddr(fd, true).map_err(call("SO_REUSEADDR"))?;
    let fresh = room(fd);
    make_room(fd, record)?;
    repair(fd, ON)?;
    set_sequence(fd, SEND_QUEUE, record.send.first)?;
    set_sequence(fd, RECEIVE_QUEUE, record.receive.first)?;
    bind(fd, &record.local).map_err(call("bind"))?;
    // `connect` computes the send MSS, and the options below do not renew it. Without a value it would stay the default,
    // 536 bytes.
    let mss = i32::from(record.mss).clamp(LEAST_MSS, LARGEST_MSS);
    sys::set(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, mss);
    connect(fd, &record.remote).map_err(call("connect"))?;
    set_options(fd, record)?;
    apply(fd, &record.settings, record.local.is_ipv4())?;
    let (sent, unsent) = record.send.bytes.split_at(record.sent as usize);
    fill(fd, RECEIVE_QUEUE, &record.receive.bytes)?;
    fill(fd, SEND_QUEUE, sent)?;
    set_window(fd, &record.window)?;
    repair(fd, OFF)?;
    // Leaving repair mode has cleared it. A listener at the port needs it to be restored.
    sockopt::set_socket_reuseaddr(fd, true).map_err(call("SO_REUSEADDR"))?;
    push(fd, unsent)?;
    restore_room(fd, record.settings.buffers, fresh);
    Ok(socket)
}

fn call(name: &'static str) -> impl Fn(Errno) -> CannotMove {
    move |errno| CannotMove::Call(name, errno)
}

fn set(fd: BorrowedFd<'_>, what: &'static str, name: i32, value: &[u8]) -> Result<(), CannotMove> {
    if sys::set_bytes(fd, libc::IPPROTO_TCP, name, value) {
        return Ok(());
    }
    Err(CannotMove::Call(what, last_errno()))
}

fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

fn get<const N: usize>(fd: BorrowedFd<'_>, what: &'static str, name: i32) -> Result<[u8; N], CannotMove> {
    let mut value = [0; N];
    match sys::get(fd, libc::IPPROTO_TCP, name, &mut value) {
        Some(len) if len == N => Ok(value),
        Some(_) => Err(CannotMove::Call(what, Errno::INVAL)),
        None => Err(CannotMove::Call(what, last_errno())),
    }
}

fn get_word(fd: BorrowedFd<'_>, what: &'static str, name: i32) -> Result<u32, CannotMove> {
    get(fd, what, name).map(u32::from_ne_bytes)
}

fn repair(fd: BorrowedFd<'_>, mode: i32) -> Result<(), CannotMove> {
    set(fd, "TCP_REPAIR", libc::TCP_REPAIR, &mode.to_ne_bytes())
}

fn choose_queue(fd: BorrowedFd<'_>, queue: i32) -> Result<(), CannotMove> {
    set(fd, "TCP_REPAIR_QUEUE", libc::TCP_REPAIR_QUEUE, &queue.to_ne_bytes())
}

fn sequence(fd: BorrowedFd<'_>, queue: i32) -> Result<u32, CannotMove> {
    choose_queue(fd, queue)?;
    get_word(fd, "TCP_QUEUE_SEQ", libc::TCP_QUEUE_SEQ)
}

fn set_sequence(fd: BorrowedFd<'_>, queue: i32, first: u32) -> Result<(), CannotMove> {
    choose_queue(fd, queue)?;
    set(fd, "TCP_QUEUE_SEQ", libc::TCP_QUEUE_SEQ, &first.to_ne_bytes())
}

fn waiting(fd: BorrowedFd<'_>, name: &'static str, request: libc::Ioctl) -> Result<u32, CannotMove> {
    let bytes = sys::ioctl_int(fd, request).ok_or_else(|| CannotMove::Call(name, last_errno()))?;
    Ok(bytes.max(0) as u32)
}

/// The negotiated values in `TCP_INFO`.
struct Info {
    state: u8,
    options: u8,
    scale: (u8, u8),
}

fn info(fd: BorrowedFd<'_>) -> Result<Info, CannotMove> {
    let [state, _, _, _, _, options, scale, _] = get(fd, "TCP_INFO", libc::TCP_INFO)?;
    Ok(Info { state, options, scale: (scale & 0xf, scale >> 4) })
}

fn read_out(fd: BorrowedFd<'_>, info: &Info, fin: bool) -> Result<ConnectionRecord, CannotMove> {
    if is_urgent(fd)? {
        return Err(CannotMove::Urgent);
    }
    let receive = receive_queue(fd)?;
    let (send, sent) = send_queue(fd, u32::from(fin))?;
    let has = |option| info.options & option != 0;
    let stamp = || get_word(fd, "TCP_TIMESTAMP", libc::TCP_TIMESTAMP);
    let local = getsockname(fd).map_err(call("getsockname")).and_then(address_of)?;
    let remote = getpeername(fd).and_then(|peer| peer.ok_or(Errno::NOTCONN));
    let record = ConnectionRecord {
        local,
        remote: remote.map_err(call("getpeername")).and_then(address_of)?,
        send,
        sent,
        receive,
        window: window(fd)?,
        mss: get_word(fd, "TCP_MAXSEG", libc::TCP_MAXSEG)?.min(u32::from(u16::MAX)) as u16,
        scale: has(HAS_SCALE).then_some(info.scale),
        sack: has(HAS_SACK),
        timestamp: if has(HAS_TIMESTAMPS) { Some(stamp()?) } else { None },
        settings: settings(fd, local.is_ipv4()),
    };
    record.check()?;
    Ok(record)
}

fn address_of(address: impl TryInto<SocketAddr>) -> Result<SocketAddr, CannotMove> {
    address.try_into().map_err(|_| CannotMove::Call("getsockname", Errno::AFNOSUPPORT))
}

fn is_urgent(fd: BorrowedFd<'_>) -> Result<bool, CannotMove> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::PRI)];
    poll(&mut fds, Some(&Timespec::default())).map_err(call("poll"))?;
    Ok(fds[0].revents().contains(PollFlags::PRI))
}

/// Copies a queue's bytes, without taking them out.
fn peek(fd: BorrowedFd<'_>, queue: i32, len: u32) -> Result<Vec<u8>, CannotMove> {
    choose_queue(fd, queue)?;
    let mut bytes = vec![0; len as usize];
    if len > 0 {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let (got, _) = recv(fd, &mut bytes[..], flags).map_err(call("recv with MSG_PEEK"))?;
        if got != bytes.len() {
            return Err(CannotMove::Moving);
        }
    }
    Ok(bytes)
}

fn receive_queue(fd: BorrowedFd<'_>) -> Result<Queue, CannotMove> {
    for _ in 0..LOOKS {
        let end = sequence(fd, RECEIVE_QUEUE)?;
        let bytes = peek(fd, RECEIVE_QUEUE, waiting(fd, "SIOCINQ", SIOCINQ)?)?;
        if sequence(fd, RECEIVE_QUEUE)? == end {
            return Ok(Queue { first: end.wrapping_sub(bytes.len() as u32), bytes });
        }
    }
    Err(CannotMove::Moving)
}

/// The bytes from SND.UNA on, and how many of them have been sent. `fin` is 1 if a FIN follows, which has a sequence
/// number too.
fn send_queue(fd: BorrowedFd<'_>, fin: u32) -> Result<(Queue, u32), CannotMove> {
    for _ in 0..LOOKS {
        let waits = || waiting(fd, "SIOCOUTQ", SIOCOUTQ).map(|waits| waits.saturating_sub(fin));
        let queued = waits()?;
        let bytes = peek(fd, SEND_QUEUE, queued)?;
        let (end, unsent) = (sequence(fd, SEND_QUEUE)?, waiting(fd, "SIOCOUTQNSD", SIOCOUTQNSD)?);
        if waits()? == queued {
            let first = end.wrapping_sub(queued + fin);
            return Ok((Queue { first, bytes }, queued.saturating_sub(unsent.saturating_sub(fin))));
        }
    }
    Err(CannotMove::Moving)
}

fn window(fd: BorrowedFd<'_>) -> Result<Window, CannotMove> {
    let bytes: [u8; 20] = get(fd, "TCP_REPAIR_WINDOW", libc::TCP_REPAIR_WINDOW)?;
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Ok(Window { update: word(0), send: word(4), largest: word(8), receive: word(12), announced_at: word(16) })
}

fn set_window(fd: BorrowedFd<'_>, window: &Window) -> Result<(), CannotMove> {
    let words = [window.update, window.send, window.largest, window.receive, window.announced_at];
    set(fd, "TCP_REPAIR_WINDOW", libc::TCP_REPAIR_WINDOW, &words.map(u32::to_ne_bytes).concat())
}

fn set_options(fd: BorrowedFd<'_>, record: &ConnectionRecord) -> Result<(), CannotMove> {
    let mut options = vec![(MSS, u32::from(record.mss))];
    if let Some((send, receive)) = record.scale {
        options.push((WINDOW_SCALE, u32::from(send) | u32::from(receive) << 16));
    }
    options.extend(record.sack.then_some((SACK, 0)));
    options.extend(record.timestamp.map(|_| (TIMESTAMPS, 0)));
    let bytes: Vec<u8> = options.iter().flat_map(|(kind, value)| [*kind, *value]).flat_map(u32::to_ne_bytes).collect();
    set(fd, "TCP_REPAIR_OPTIONS", libc::TCP_REPAIR_OPTIONS, &bytes)?;
    match record.timestamp {
        Some(value) => set(fd, "TCP_TIMESTAMP", libc::TCP_TIMESTAMP, &value.to_ne_bytes()),
        None => Ok(()),
    }
}

/// Puts bytes into a queue without sending them.
fn fill(fd: BorrowedFd<'_>, queue: i32, bytes: &[u8]) -> Result<(), CannotMove> {
    choose_queue(fd, queue)?;
    push(fd, bytes)
}

fn push(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), CannotMove> {
    for chunk in bytes.chunks(CHUNK) {
        let mut rest = chunk;
        while !rest.is_empty() {
            let taken = send(fd, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map_err(call("send"))?;
            rest = &rest[taken..];
        }
    }
    Ok(())
}

/// Sizes of both buffers as the kernel counts them, twice the value that was set.
fn room(fd: BorrowedFd<'_>) -> (u32, u32) {
    let bytes = |name| sys::get_int(fd, libc::SOL_SOCKET, name).unwrap_or(0).max(0) as u32;
    (bytes(libc::SO_SNDBUF), bytes(libc::SO_RCVBUF))
}

/// Makes room for the queues, beyond any limit.
fn make_room(fd: BorrowedFd<'_>, record: &ConnectionRecord) -> Result<(), CannotMove> {
    let (send, receive) = room(fd);
    for (queue, present, name, what) in [
        (&record.send, send, libc::SO_SNDBUFFORCE, "SO_SNDBUFFORCE"),
        (&record.receive, receive, libc::SO_RCVBUFFORCE, "SO_RCVBUFFORCE"),
    ] {
        // The kernel's own structures count too, about as much again.
        let needed = 2 * queue.bytes.len() + CHUNK;
        if present as usize <= needed && !sys::set_bytes(fd, libc::SOL_SOCKET, name, &(needed as i32).to_ne_bytes()) {
            return Err(CannotMove::Call(what, last_errno()));
        }
    }
    Ok(())
}

/// Restores the buffer sizes that the application had set, or those of a fresh socket, which the kernel then tunes.
fn restore_room(fd: BorrowedFd<'_>, asked: Option<(u32, u32)>, fresh: (u32, u32)) {
    let (send, receive) = asked.unwrap_or(fresh);
    sys::set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, (send / 2) as i32);
    sys::set(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, (receive / 2) as i32);
    if asked.is_none() {
        sys::set(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK, 0);
    }
}

fn settings(fd: BorrowedFd<'_>, four: bool) -> Settings {
    let int = |level, name| sys::get_int(fd, level, name).unwrap_or(0);
    let tcp = |name| int(libc::IPPROTO_TCP, name);
    let socket = |name| int(libc::SOL_SOCKET, name);
    let seconds = |name| Duration::from_secs(tcp(name).max(0) as u64);
    let kept = (socket(libc::SO_KEEPALIVE) != 0)
        .then(|| (seconds(libc::TCP_KEEPIDLE), seconds(libc::TCP_KEEPINTVL), tcp(libc::TCP_KEEPCNT).max(0) as u32));
    let user_timeout = tcp(libc::TCP_USER_TIMEOUT).max(0) as u64;
    let locked = socket(libc::SO_BUF_LOCK) & (SEND_LOCKED | RECEIVE_LOCKED) != 0;
    let (class, hops) = ip_options(four);
    let byte = |(level, name)| sys::get_int(fd, level, name).and_then(|value| u8::try_from(value).ok());
    Settings {
        no_delay: tcp(libc::TCP_NODELAY) != 0,
        corked: tcp(libc::TCP_CORK) != 0,
        urgent_inline: socket(libc::SO_OOBINLINE) != 0,
        keepalive: kept,
        user_timeout: (user_timeout > 0).then(|| Duration::from_millis(user_timeout)),
        linger: sockopt::socket_linger(fd).ok().flatten(),
        buffers: locked.then(|| room(fd)),
        traffic_class: byte(class),
        hops: byte(hops),
        congestion: congestion(fd),
    }
}

/// The options for traffic class and hop limit: level and name.
fn ip_options(four: bool) -> ((i32, i32), (i32, i32)) {
    if four {
        ((libc::IPPROTO_IP, libc::IP_TOS), (libc::IPPROTO_IP, libc::IP_TTL))
    } else {
        ((libc::IPPROTO_IPV6, libc::IPV6_TCLASS), (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS))
    }
}

fn congestion(fd: BorrowedFd<'_>) -> Option<String> {
    let mut name = [0; 16];
    let len = sys::get(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut name)?;
    let name = name[..len].split(|byte| *byte == 0).next()?;
    String::from_utf8(name.to_vec()).ok().filter(|name| !name.is_empty())
}

/// Options that this kernel lacks (a congestion control, for example) keep its default.
fn apply(fd: BorrowedFd<'_>, settings: &Settings, four: bool) -> Result<(), CannotMove> {
    let tcp = |name, value: i32| sys::set(fd, libc::IPPROTO_TCP, name, value);
    tcp(libc::TCP_NODELAY, i32::from(settings.no_delay));
    tcp(libc::TCP_CORK, i32::from(settings.corked));
    sys::set(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, i32::from(settings.urgent_inline));
    if let Some((idle, interval, probes)) = settings.keepalive {
        tcp(libc::TCP_KEEPIDLE, idle.as_secs().clamp(1, 32767) as i32);
        tcp(libc::TCP_KEEPINTVL, interval.as_secs().clamp(1, 32767) as i32);
        tcp(libc::TCP_KEEPCNT, probes.clamp(1, 127) as i32);
        sys::set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    }
    if let Some(time) = settings.user_timeout {
        tcp(libc::TCP_USER_TIMEOUT, i32::try_from(time.as_millis()).unwrap_or(i32::MAX));
    }
    sockopt::set_socket_linger(fd, settings.linger).map_err(call("SO_LINGER"))?;
    let (class, hops) = ip_options(four);
    for ((level, name), value) in [(class, settings.traffic_class), (hops, settings.hops)] {
        if let Some(value) = value {
            sys::set(fd, level, name, i32::from(value));
        }
    }
    if let Some(name) = &settings.congestion {
        sys::set_bytes(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_bytes());
    }
    Ok(())
}
