//! A service is two processes. The worker parses packets and reads regions, so it gives up all that it can do without.
//! The broker keeps the service's privileges and parses nothing but [`message::Request`].
//!
//! The broker is the process that was started. It starts the worker, does for it what needs privilege ([`Privileges`]),
//! and starts it again when it dies. It has one thread, so that it can fork at any time. What may take long is done by
//! processes of its own (`apart`).

#![deny(missing_docs)]

#[cfg(test)]
mod alone;
mod apart;
mod channel;
pub mod handle;
pub mod message;
pub mod pulse;
mod serve;
pub mod supervise;

use std::net::IpAddr;
use std::os::fd::OwnedFd;

pub use handle::{Broker, Refusal};
pub use message::{Change, Held};

/// What the broker tells whoever manages the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The first worker serves.
    Serving,
    /// The broker runs. It has a worker, or starts one.
    Alive,
    /// The service was told to end.
    Ending,
}

/// What the broker does for its worker. Every argument comes from the worker, and may be anything. An error is an errno.
pub trait Privileges {
    /// The user whose socket this is. `None`: it is no TCP socket. This waits for nobody.
    fn owner(&self, shown: &OwnedFd) -> Option<u32>;
    /// Binds a socket beside the one shown, if that one has its port. The error is the answer to the client's command. This is
    /// called in a process of its own, which the client may keep waiting.
    fn prove(&mut self, shown: OwnedFd) -> Result<(OwnedFd, Held), i32>;
    /// Changes the kernel's entry for a neighbour on a device.
    fn neighbour(&mut self, device: u32, address: IpAddr, change: Change) -> Result<(), i32>;
    /// The path of the program that a process runs.
    fn program(&mut self, process: i32) -> Result<Vec<u8>, i32>;
    /// Is a process in the service's network namespace?
    fn shares_network(&mut self, process: i32) -> Result<bool, i32>;
    /// Keeps the kernel from choosing the service's range of ports.
    fn reserve_ports(&mut self) -> Result<(), i32>;
    /// The CPUs that are reserved for receiving packets, as a list.
    fn reserved_cpus(&mut self) -> Result<Vec<u8>, i32>;
    /// Starts another stack of the configuration. This is called in a process of its own, which may wait. The error is a
    /// text for the operator.
    fn start_stack(&self, number: u32) -> Result<(), String>;
    /// The text of the configuration file as it is now, in memory that nobody changes.
    fn configuration(&mut self) -> Result<OwnedFd, i32>;
    /// The text of the last [`Privileges::configuration`] is in force.
    fn configuration_taken(&mut self);
    /// The text that is in force, if it was read after the start. A worker begins with it.
    fn configuration_in_force(&self) -> Option<String>;
    /// Opens the service's sockets to every user, or to its own alone.
    fn open_sockets(&mut self, open: bool) -> Result<(), i32>;
    /// Prepares an interface of the configuration for the worker, with so many queues at least. Returns what the worker must
    /// know of it. An error is an errno, and a text for the operator.
    fn open_port(&mut self, number: u32, queues: u32) -> Result<String, (i32, String)>;
    /// A copy of one of the descriptors of such an interface; ENOENT beyond the last one.
    fn port_part(&mut self, number: u32, part: u32) -> Result<OwnedFd, i32>;
    /// Has the driver run the steering program on queues that are new.
    fn renew_port(&mut self, number: u32) -> Result<(), i32>;
    /// Memory for the machine code of modules. The worker can map it and not write it.
    fn code_area(&mut self) -> Result<OwnedFd, i32> {
        Err(libc::ENOSYS)
    }
    /// Has the kernel's verifier judge a module, and writes its code to this place of the memory. Returns what the worker is
    /// told. This is called in a process of its own, which ends then.
    fn module(&mut self, _place: u32, _object: &[u8]) -> Vec<u8> {
        Vec::new()
    }
    /// Memory for what a worker leaves to the next one. It always has the same size, and the broker never reads it.
    fn successor_memory(&mut self) -> Result<OwnedFd, i32> {
        Err(libc::ENOSYS)
    }
    /// This process is not the broker: it closes its copies of what the broker holds.
    fn forget(&mut self);
    /// A raw socket that sends packets over the device of an interface of the configuration, and over no other.
    fn first_syns(&mut self, number: u32, v6: bool) -> Result<OwnedFd, i32>;
    /// Binds a socket in another network namespace of the configuration, at the address from which its kernel reaches
    /// `remote`. The process must be there, and the way must lead to the service's namespace. Returns the socket, where it
    /// is bound, and the index of the service's device with the address. This is called in a process of its own, which
    /// enters that namespace.
    fn join(&mut self, namespace: u32, process: i32, remote: IpAddr) -> Result<(OwnedFd, Held, u32), i32>;
    /// What the names of network namespaces in the configuration lead to, as a text.
    fn namespaces(&mut self) -> Result<Vec<u8>, i32> {
        Err(libc::ENOSYS)
    }
    /// Tells whoever manages the service. It must not wait.
    fn notice(&mut self, _notice: Notice) {}
    /// The worker has ended: what it had is given back. `last`: no other follows.
    fn worker_ended(&mut self, last: bool);
}
