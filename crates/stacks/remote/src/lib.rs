//! The remote stack: a kernel stack on another host, reached by a link. No memory is shared. Each side has a copy of
//! every region, and carries its own side's words and bytes to the other's copy.
//!
//! - [`client`]: the host's side, a stack to the service; it sends the words and bytes of applications, and applies
//!   those that come back;
//! - [`server`]: the other side, which serves the kernel stack on its copies;
//! - `update`: the messages that cross; `transfer`: sends and receives them; [`link`]: the transports below;
//! - [`address`]: the server's place; [`connect`], [`listener`], [`waiting`]: how the two sides meet;
//! - [`security`]: how they know each other: `peer`: by UNIX credentials; [`token`]: by a common secret.
//!
//! For one connection the bytes of its ring cross first, straight into the other side's ring. Its line follows, which
//! the receiver stores word by word in the writer's order. Then the receiver repeats the writer's last step in its
//! copy: it puts the slot into a dirty set, or raises an event. So dirty sets, futex words and doorbells never cross.

pub mod address;
pub mod client;
pub mod connect;
#[cfg(test)]
mod hostile_tests;
mod jobs;
mod layout;
pub mod link;
pub mod listener;
mod peer;
pub mod security;
pub mod server;
pub mod token;
mod transfer;
mod update;
pub mod waiting;

pub use link::{Arrival, Broken, Key, Link};
