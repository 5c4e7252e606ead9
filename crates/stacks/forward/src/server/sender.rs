//! Sends messages to the host.

use crate::message::ToHost;
use std::io;

/// Sends messages to the host.
pub trait MessageSender: Send + Sync {
    /// Sends one message. `number` is the number of the request that it answers, or 0.
    fn send(&self, number: u32, message: &ToHost) -> io::Result<()>;
}
