//! Forwards the ring contract to a kernel stack that runs in another kernel: in a guest on this host, or on a remote
//! host.
//!
//! The host's side ([`host`]) is part of the service. The other side ([`server`]) has the kernel stack carry out the
//! service's requests. Both exchange messages ([`message`]) over a byte stream. The bytes of connections take other
//! paths, which the crates `towpath-guest` and `towpath-remote` provide.
//!
//! - [`message`]: every message; [`codec`]: how its fields are stored;
//! - [`chunks`]: connection records in chunks; [`file_id`]: how a file of the host is named to the other kernel;
//! - [`host`]: the clients as the host knows them, and their cleanup when the other kernel dies;
//! - [`server`]: carries out the host's messages with the kernel stack, and asks the host for the policy.
#![forbid(unsafe_code)]

pub mod chunks;
pub mod codec;
pub mod file_id;
pub mod host;
pub mod lock;
pub mod message;
pub mod pending;
pub mod server;
