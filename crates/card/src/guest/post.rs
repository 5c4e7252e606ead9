//! The way of messages to the host.

use crate::message::FromCard;
use std::io;

/// Takes messages to the host.
pub trait Post: Send + Sync {
    /// Sends one: the answer to the question of this number, or with 0 to none.
    fn send(&self, number: u32, message: &FromCard) -> io::Result<()>;
}
