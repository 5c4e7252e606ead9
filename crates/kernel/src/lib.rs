//! The kernel stack: serves the ring contract with the sockets of the Linux kernel that it runs on.
//!
//! Each client belongs to a group: its commands, its doors and its sockets. A group is served by one thread at a time
//! (`towpath_stack::crew`). It sends straight out of an application's send ring, everything that has piled up in one call, and receives straight into the receive ring; accepted
//! connections go into the listener's ring with what they have sent already. See `docs/kernel-stack.md`.
//!
//! - [`kernel`]: starting and asking the groups; [`group`]: a turn of one; [`sleep`]: when its thread may rest;
//! - [`commands`], [`connect`], [`listen`], [`options`], [`figures`]: what applications ask for;
//! - [`connection`]: bytes; [`urgent`]: those that are urgent; [`ending`]: how a connection ends;
//! - [`requests`], [`policy`]: what the service asks for;
//! - [`repair`]: moving a connection out of the kernel and into it; [`shield`]: nobody answers for it meanwhile; [`moving`]: whole clients
//!   that go to another stack and come from one;
//! - [`ahead`], [`batch`]: many sends and receives in one call; [`sys`]: the other system calls.

mod ahead;
mod asides;
mod batch;
mod client;
mod commands;
mod connect;
mod connection;
mod ending;
mod figures;
mod group;
mod kernel;
mod listen;
mod moving;
mod options;
mod policy;
mod rate;
pub mod repair;
mod requests;
mod shield;
mod sleep;
mod sys;
mod urgent;

pub use kernel::{Kernel, KernelConfig};
pub use moving::{Given, Moved};
