//! The Linux error numbers that the slow path returns. They are positive, as everywhere in this crate.

/// Try again.
pub const EAGAIN: i32 = 11;
/// It is being used.
pub const EBUSY: i32 = 16;
/// Invalid argument.
pub const EINVAL: i32 = 22;
/// Address already in use.
pub const EADDRINUSE: i32 = 98;
/// Cannot assign requested address: no port is free, or the connection exists.
pub const EADDRNOTAVAIL: i32 = 99;
/// The host has ended the connection.
pub const ECONNABORTED: i32 = 103;
/// The connection was reset.
pub const ECONNRESET: i32 = 104;
/// No buffer space: flow table full.
pub const ENOBUFS: i32 = 105;
/// The socket is already connected.
pub const EISCONN: i32 = 106;
/// The socket is not connected.
pub const ENOTCONN: i32 = 107;
/// No answer.
pub const ETIMEDOUT: i32 = 110;
/// The peer answered with RST.
pub const ECONNREFUSED: i32 = 111;
/// The host is unknown.
pub const EHOSTDOWN: i32 = 112;
/// The source host is isolated.
pub const ENONET: i32 = 64;
/// The next hop does not answer.
pub const EHOSTUNREACH: i32 = 113;
/// Forbidden by policy (IPv6; IPv4 says EHOSTUNREACH).
pub const EACCES: i32 = 13;
/// A header field that a node could not process.
pub const EPROTO: i32 = 71;
/// The host has no TCP.
pub const ENOPROTOOPT: i32 = 92;
/// The source route failed; not possible.
pub const EOPNOTSUPP: i32 = 95;
/// No route.
pub const ENETUNREACH: i32 = 101;
