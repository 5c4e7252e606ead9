//! Runs the protocol's stages on cores and serves the ring contract with them.
//!
//! Threads: one fast-path thread per core ([`core`]) and one slow thread ([`slow`]). A flow is owned by one core; a slot's
//! stack words are written by the slow thread until its flow is installed, by the owning core until the flow is removed,
//! and by the slow thread after that. The threads share nothing but messages and counters.

mod api;
mod status;

pub use api::{ClientId, ClientSetup, Engine, EngineConfig, Network};
pub use status::{ClientStatus, Connection, CoreStatus, Status};
