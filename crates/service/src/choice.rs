//! Which stack a service serves.

use serde::Deserialize;

/// A kind of stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum StackKind {
    /// Towpath's own TCP, in user space
    #[default]
    Fast,
    /// The sockets of the kernel and the network namespace that the service runs in
    Kernel,
    /// The sockets of another kernel: user-mode Linux, which the service starts
    Uml,
}
