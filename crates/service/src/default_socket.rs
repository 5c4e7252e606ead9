//! Where a service listens that names no socket.

use crate::config::{Config, StackKind};
use crate::paths::{self, PathError};
use std::path::PathBuf;

/// The registration socket of a service for which none is named.
pub fn default_socket(config: &Config) -> Result<PathBuf, PathError> {
    match config.stack {
        StackKind::Fast => paths::service_socket(!config.interface.is_empty()),
        StackKind::Kernel => paths::kernel_stack_socket(None),
        StackKind::Uml | StackKind::Qemu => paths::kernel_stack_socket(Some(config.stack.name())),
        StackKind::Remote => paths::kernel_stack_socket(Some("remote")),
    }
}
