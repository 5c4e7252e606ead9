//! The errno values that a node's calls return.

/// `EAGAIN`: nothing to read, no room to write, nobody to accept.
pub const EAGAIN: i32 = 11;
/// `ENOTCONN`.
pub const ENOTCONN: i32 = 107;
/// `EPIPE`.
pub const EPIPE: i32 = 32;
