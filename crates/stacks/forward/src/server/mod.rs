//! The side with the kernel stack: carries out the host's messages.

pub mod commands;
pub mod policy;
pub mod reservations;
pub mod sender;
