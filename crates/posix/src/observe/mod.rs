//! Observation: sockets left to the kernel with the reason, and measured connections.

pub mod fallback;
pub mod measure;
