//! Configuration of a guest, and the errors of starting one.

use crate::machine::MachineConfig;
use std::io;
use towpath_ring::Geometry;

/// Configuration of a guest.
#[derive(Debug)]
pub struct GuestConfig {
    /// Its machine.
    pub machine: MachineConfig,
    /// Sizes of every region.
    pub geometry: Geometry,
    /// Most clients at a time, if the memory suffices for them.
    pub clients: u32,
}

/// Why a guest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// It cannot be started.
    #[error("the guest: {0}")]
    Start(#[from] io::Error),
    /// Its memory cannot be made.
    #[error("the guest's memory: {0}")]
    Memory(#[from] towpath_ring::MapError),
    /// Not even one client's region fits into its memory.
    #[error(
        "sockets_per_client: a guest's memory has {} MiB, and one program with {slots} sockets, their send and receive buffers \
         takes more; write fewer, or smaller send_buffer and receive_buffer",
        .memory >> 20
    )]
    Small {
        /// Bytes of the memory.
        memory: u64,
        /// Sockets requested per client.
        slots: u32,
    },
    /// It was started, and says why it cannot serve.
    #[error("the guest cannot serve: {0}")]
    Broken(String),
    /// It was started, and does not answer.
    #[error("the guest's kernel does not come up ({why}). Its last lines:\n{console}")]
    Silent {
        /// The observation instead.
        why: &'static str,
        /// Last lines of its console.
        console: String,
    },
}
