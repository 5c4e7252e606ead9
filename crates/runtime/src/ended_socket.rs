//! Connections that have ended, as the operator sees them (`towpath sockets --dead`).

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::net::SocketAddr;

/// A connection that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedSocket {
    /// How, in one word.
    pub ended: Cow<'static, str>,
    /// The same in a sentence.
    pub why: Cow<'static, str>,
    /// The error (positive errno) that the network or the opening gave.
    pub errno: Option<i32>,
    /// How long ago, µs.
    pub ago_us: u64,
    /// Its own address and port.
    pub local: SocketAddr,
    /// Its peer's.
    pub peer: SocketAddr,
    /// Its program.
    pub program: String,
    /// The client's process.
    pub pid: i32,
    /// The client's user.
    pub uid: u32,
    /// It joined two programs of this host.
    pub direct: bool,
}
