//! Transports between two sides that share no memory. Each side registers memory of its own, and the other side writes into it: that is
//! what RDMA does in hardware, and what a byte stream can be made to do.
//!
//! - [`link`]: what every transport does;
//! - [`stream`]: over a byte stream (UNIX socket, TCP, vsock): each write a frame;
//! - [`verbs`], [`pairs`]: over RDMA verbs: each write an RDMA WRITE; [`ibverbs`]: verbs of an adapter; [`software`]: verbs
//!   without one, for tests;
//! - [`mail`]: records, in order, on top of any of them.
//!
//! The other side is believed nothing: what it writes lies in registered memory or the link is over.

pub mod ibverbs;
pub mod link;
pub mod mail;
pub mod pairs;
pub mod software;
pub mod stream;
pub mod verbs;

pub use link::{Arrival, Broken, Key, Link};
