//! Constants of Linux's C headers that scripts use.

/// Flags, options and events with their numbers on Linux.
const NAMES: &[(&str, i64)] = &[
    ("AF_INET", 2),
    ("AF_INET6", 10),
    ("PF_INET", 2),
    ("SOCK_STREAM", 1),
    ("SOCK_NONBLOCK", O_NONBLOCK),
    ("SOCK_CLOEXEC", 0o2_000_000),
    ("IPPROTO_TCP", SOL_TCP),
    ("IPPROTO_IP", 0),
    ("SOL_SOCKET", SOL_SOCKET),
    ("SOL_TCP", SOL_TCP),
    ("SOL_IP", 0),
    ("SO_REUSEADDR", 2),
    ("SO_ERROR", 4),
    ("SO_SNDBUF", 7),
    ("SO_RCVBUF", 8),
    ("SO_KEEPALIVE", 9),
    ("SO_OOBINLINE", 10),
    ("SO_LINGER", 13),
    ("SO_REUSEPORT", 15),
    ("SO_MAX_PACING_RATE", 47),
    ("TCP_NODELAY", 1),
    ("TCP_MAXSEG", 2),
    ("TCP_CORK", 3),
    ("TCP_KEEPIDLE", 4),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 6),
    ("TCP_SYNCNT", 7),
    ("TCP_LINGER2", 8),
    ("TCP_DEFER_ACCEPT", 9),
    ("TCP_QUICKACK", 12),
    ("TCP_CONGESTION", 13),
    ("TCP_USER_TIMEOUT", 18),
    ("IP_TOS", 1),
    ("IP_TTL", 2),
    ("O_RDWR", 2),
    ("O_NONBLOCK", O_NONBLOCK),
    ("F_GETFL", 3),
    ("F_SETFL", 4),
    ("MSG_OOB", MSG_OOB),
    ("MSG_PEEK", MSG_PEEK),
    ("MSG_WAITALL", 0x100),
    ("MSG_DONTWAIT", MSG_DONTWAIT),
    ("MSG_NOSIGNAL", 0x4000),
    ("MSG_MORE", MSG_MORE),
    ("MSG_EOR", MSG_EOR),
    ("SHUT_RD", 0),
    ("SHUT_WR", 1),
    ("SHUT_RDWR", 2),
    ("SIOCINQ", FIONREAD),
    ("FIONREAD", FIONREAD),
    ("SIOCOUTQ", SIOCOUTQ),
    ("TIOCOUTQ", SIOCOUTQ),
    ("POLLIN", POLLIN),
    ("POLLPRI", POLLPRI),
    ("POLLOUT", POLLOUT),
    ("POLLERR", POLLERR),
    ("POLLHUP", POLLHUP),
    ("POLLRDHUP", POLLRDHUP),
    ("EPOLLIN", POLLIN),
    ("EPOLLPRI", POLLPRI),
    ("EPOLLOUT", POLLOUT),
    ("EPOLLERR", POLLERR),
    ("EPOLLHUP", POLLHUP),
    ("EPOLLRDHUP", POLLRDHUP),
    ("EPOLL_CTL_ADD", 1),
    ("EPOLL_CTL_DEL", 2),
    ("EPOLL_CTL_MOD", 3),
    ("TCP_ESTABLISHED", 1),
    ("TCP_SYN_SENT", 2),
    ("TCP_SYN_RECV", 3),
    ("TCP_FIN_WAIT1", 4),
    ("TCP_FIN_WAIT2", 5),
    ("TCP_TIME_WAIT", 6),
    ("TCP_CLOSE", 7),
    ("TCP_CLOSE_WAIT", 8),
    ("TCP_LAST_ACK", 9),
    ("TCP_LISTEN", 10),
    ("TCP_CLOSING", 11),
    ("TCP_CA_Open", 0),
    ("TCP_CA_Disorder", 1),
    ("TCP_CA_CWR", 2),
    ("TCP_CA_Recovery", 3),
    ("TCP_CA_Loss", 4),
];

/// Level of socket options.
pub const SOL_SOCKET: i64 = 1;
/// Level of TCP's options.
pub const SOL_TCP: i64 = 6;
/// Non-blocking descriptor; also as flag of `socket` and `accept4`.
pub const O_NONBLOCK: i64 = 0o4000;
/// Urgent data.
pub const MSG_OOB: i64 = 1;
/// Read without consuming.
pub const MSG_PEEK: i64 = 2;
/// This call does not block.
pub const MSG_DONTWAIT: i64 = 0x40;
/// A record ends here.
pub const MSG_EOR: i64 = 0x80;
/// More will follow.
pub const MSG_MORE: i64 = 0x8000;
/// Bytes that can be read.
pub const FIONREAD: i64 = 0x541b;
/// Bytes that are not acknowledged yet.
pub const SIOCOUTQ: i64 = 0x5411;
/// Readable.
pub const POLLIN: i64 = 1;
/// Urgent data.
pub const POLLPRI: i64 = 2;
/// Writable.
pub const POLLOUT: i64 = 4;
/// Error.
pub const POLLERR: i64 = 8;
/// Both directions are closed.
pub const POLLHUP: i64 = 16;
/// The peer has closed its direction.
pub const POLLRDHUP: i64 = 0x2000;

/// errno by name.
const ERRNOS: &[(&str, i32)] = &[
    ("EINTR", 4),
    ("EBADF", EBADF),
    ("EAGAIN", EAGAIN),
    ("EWOULDBLOCK", EAGAIN),
    ("EINVAL", EINVAL),
    ("EPIPE", EPIPE),
    ("EPROTO", 71),
    ("ENOTSOCK", 88),
    ("EMSGSIZE", 90),
    ("ENOPROTOOPT", 92),
    ("EOPNOTSUPP", 95),
    ("EADDRINUSE", 98),
    ("EADDRNOTAVAIL", 99),
    ("ENETUNREACH", 101),
    ("ECONNABORTED", 103),
    ("ECONNRESET", 104),
    ("ENOBUFS", 105),
    ("EISCONN", EISCONN),
    ("ENOTCONN", ENOTCONN),
    ("ETIMEDOUT", 110),
    ("ECONNREFUSED", 111),
    ("EHOSTUNREACH", 113),
    ("EALREADY", EALREADY),
    ("EINPROGRESS", EINPROGRESS),
];

/// `EBADF`.
pub const EBADF: i32 = 9;
/// `EAGAIN`.
pub const EAGAIN: i32 = 11;
/// `EINVAL`.
pub const EINVAL: i32 = 22;
/// `EPIPE`.
pub const EPIPE: i32 = 32;
/// `EISCONN`.
pub const EISCONN: i32 = 106;
/// `ENOTCONN`.
pub const ENOTCONN: i32 = 107;
/// `EALREADY`.
pub const EALREADY: i32 = 114;
/// `EINPROGRESS`.
pub const EINPROGRESS: i32 = 115;

/// The number of a constant.
pub fn number(name: &str) -> Option<i64> {
    NAMES.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
}

/// The number of an errno.
pub fn errno(name: &str) -> Option<i32> {
    ERRNOS.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
}

/// The name of an errno.
pub fn errno_name(errno: i32) -> String {
    ERRNOS.iter().find(|(_, value)| *value == errno).map_or_else(|| format!("errno {errno}"), |(n, _)| (*n).into())
}

/// The name of a TCP state.
pub fn state_name(state: i64) -> &'static str {
    let states = NAMES.iter().skip_while(|(name, _)| *name != "TCP_ESTABLISHED");
    states.clone().find(|(_, value)| *value == state).map_or("?", |(name, _)| name)
}
