//! The host's side: its clients, and their cleanup when the other kernel has died.

pub mod calls;
pub mod clients;
pub mod crash_cleanup;
pub mod workers;
