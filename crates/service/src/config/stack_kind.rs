//! The kind of a stack, and the names of stacks.

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
    /// The sockets of another kernel: a guest of QEMU, which the service starts
    Qemu,
    /// The sockets of the kernel of a `towpath kernel-stack --listen`, in another namespace or on another machine
    Remote,
}

impl StackKind {
    /// Does it run in a second kernel on this host?
    pub fn is_guest(self) -> bool {
        matches!(self, Self::Uml | Self::Qemu)
    }
    /// As the configuration writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Kernel => "kernel",
            Self::Uml => "uml",
            Self::Qemu => "qemu",
            Self::Remote => "remote",
        }
    }
}

/// Longest name of a stack, bytes.
const MAX_NAME: usize = 32;

/// Checks the name of a stack. It becomes part of a file's name.
pub fn stack_name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !text.is_empty() && text.len() <= MAX_NAME && text.chars().all(good) {
        return Ok(text.into());
    }
    Err(format!("{text:?} is no name for a stack: up to {MAX_NAME} of a-z A-Z 0-9 - _ ."))
}
