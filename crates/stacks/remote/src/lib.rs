//! The remote stack: a kernel stack on another host, reached by a link. No memory is shared. Each side has a copy of every region, and
//! carries what its own side has written to the other's copy.
//!
//! - [`client`]: the host's side, a stack to the service; it sends what applications write and applies what comes back;
//! - [`server`]: the other side, which serves the kernel stack on its copies;
//! - `update`: what crosses; `transfer`: how it is sent and received; [`link`]: the transports below; [`address`]: where the server is.
//!
//! For one connection these cross, in this order: bytes of its ring, straight into the other side's ring; then its line, which the
//! receiver stores word by word as its writer has published it. Then the receiver repeats in its copy the writer's last step: it
//! puts the slot into a dirty set, or raises an event. So dirty sets, futex words and doorbells never cross.

pub mod address;
pub mod client;
#[cfg(test)]
mod hostile_tests;
mod jobs;
mod layout;
pub mod link;
pub mod server;
mod transfer;
mod update;

pub use link::{Arrival, Broken, Key, Link};
