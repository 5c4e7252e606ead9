//! The kernel stack: serves the ring contract with the sockets of the Linux kernel that it runs on.
//!
//! Each client belongs to a group, with its commands, its dirty set and its sockets. One thread at a time serves a
//! group. One call sends everything that waits in an application's send ring, straight out of it; receives go straight
//! into the receive ring. An accepted connection enters its listener's ring together with the bytes that have arrived.
//! See `docs/guide/kernel-stack.md`.
//!
//! - [`kernel`]: starts the groups and asks them; [`group`]: one turn of a group; [`sleep`]: when its thread may
//!   sleep;
//! - [`commands`], [`connect`], [`listen`], [`options`], [`tcp_info`], [`sideband`]: commands of applications;
//! - [`connection`]: bytes; [`urgent`]: urgent bytes; [`pacing`]: rate limits; [`ending`]: how a connection ends;
//! - [`requests`], [`policy`]: requests of the service;
//! - [`moving`]: clients that move to another stack or come from one; [`repair`], [`record`]: one connection of
//!   theirs; [`drop_filter`]: keeps the kernel silent meanwhile;
//! - [`batched_io`], [`batch`]: many sends and receives in one call; [`socket`], [`sys`]: the other system calls.

mod batch;
mod batched_io;
mod capture;
mod client;
mod client_files;
mod commands;
mod connect;
mod connection;
mod departure;
mod drop_filter;
mod ending;
mod group;
mod kernel;
mod listen;
mod moved;
mod moving;
mod options;
mod pacing;
mod policy;
mod rate;
pub mod record;
pub mod repair;
mod requests;
mod sideband;
mod sideband_queue;
mod sleep;
mod socket;
mod sys;
mod tcp_info;
mod urgent;

pub use batch::prepare_rings;
pub use kernel::{Kernel, KernelConfig};
pub use moved::{GivenClient, MovedConnection};
