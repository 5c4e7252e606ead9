//! The kernel stack: serves the ring contract with the sockets of the Linux kernel that it runs on.
//!
//! One thread per core, each of which owns whole clients: their commands, their doors and their sockets. It sends straight out of an
//! application's send ring, everything that has piled up in one call, and receives straight into the receive ring; accepted
//! connections go into the listener's ring with what they have sent already. See `docs/kernel-stack.md`.
//!
//! - [`kernel`]: starting and asking the threads; [`core`]: their loop; [`sleep`]: when they rest;
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
mod core;
mod ending;
mod figures;
mod kernel;
mod listen;
mod moving;
mod options;
mod policy;
pub mod repair;
mod requests;
mod shield;
mod sleep;
mod sys;
mod urgent;

pub use kernel::{Kernel, KernelConfig};
pub use moving::{Given, Moved};
