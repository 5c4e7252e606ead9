//! Transports between two sides that share no memory. Each side registers memory of its own, and the other side writes
//! into it. RDMA does that in hardware, and a byte stream can imitate it.
//!
//! - [`stream`]: over a byte stream (UNIX socket, TCP, vsock): each write is a frame; [`byte_stream`]: the stream as it
//!   is; [`tls`]: encrypted;
//! - [`verbs`], [`pairs`]: over RDMA verbs: each write is an RDMA WRITE; [`ibverbs`]: verbs of an adapter;
//!   [`software`]: verbs without one, for tests;
//! - [`inbox`]: ordered entries on top of any transport.
//!
//! The peer is not trusted. A write outside registered memory ends the link.

pub mod byte_stream;
pub mod ibverbs;
pub mod inbox;
pub mod pairs;
pub mod software;
pub mod stream;
pub mod tls;
pub mod verbs;

use std::io;
use std::time::Duration;
use towpath_ring::span::Span;

/// Names memory that one side lets the other write into. Each side has its own keys.
pub type Key = u32;

/// A write with an immediate has arrived: it and all earlier writes of its lane are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The lane.
    pub lane: u32,
    /// The immediate.
    pub immediate: u32,
}

/// Why a link has ended. It stays ended.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// A system call has failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer has closed the link.
    #[error("the other side has closed the connection")]
    Ended,
    /// The peer does not take what is sent.
    #[error("the other side takes nothing any more")]
    Stuck,
    /// The peer is silent.
    #[error("the other side is silent")]
    Silent,
    /// The peer has violated the protocol.
    #[error("the other side breaks the rules: {0}")]
    Rules(&'static str),
    /// The peer speaks TLS, and this side does not.
    #[error("the other side has a token and this one has none: give both a copy of one file with --token")]
    Encrypted,
    /// TLS has failed: what came is not what the peer has sent, or the peer has refused this side's token.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// A write has failed with this status.
    #[error("a write has failed ({0})")]
    Completion(&'static str),
}

/// A transport. Writes of one lane arrive in order, those of different lanes in any order. One thread writes, another
/// waits.
pub trait Link: Send + Sync {
    /// Number of lanes, at least 1.
    fn lanes(&self) -> u32;
    /// Lets the peer write into this memory. The peer learns by other means when it may.
    fn register(&self, key: Key, memory: Span) -> io::Result<()>;
    /// Ends that permission.
    fn deregister(&self, key: Key);
    /// Writes bytes into the peer's memory `key` at `offset`. They may still be in flight when this returns.
    fn write(&self, lane: u32, key: Key, offset: u64, bytes: &[u8]) -> Result<(), Broken>;
    /// The same, and the peer gets an arrival with this immediate.
    fn write_with_immediate(
        &self,
        lane: u32,
        key: Key,
        offset: u64,
        bytes: &[u8],
        immediate: u32,
    ) -> Result<(), Broken>;
    /// Sends what was written until now.
    fn flush(&self) -> Result<(), Broken>;
    /// Waits for arrivals, at most this long, and appends them.
    fn wait(&self, arrivals: &mut Vec<Arrival>, timeout: Duration) -> Result<(), Broken>;
    /// Ends the link for both sides. A thread that waits here returns.
    fn close(&self);
}
