//! A relay between two interfaces that does to frames what bad networks do: it loses, delays, reorders, doubles, marks and
//! corrupts them, and has a bottleneck with a finite queue. What happens to a frame is decided by [`lane::Lane`], which knows
//! neither clock nor device and is fixed by its seed; [`relay::run`] puts two of them between two packet sockets.

pub mod device;
pub mod frame;
pub mod impairments;
pub mod lane;
pub mod relay;
pub mod rng;
pub mod units;

pub use impairments::{Burst, Impairments, Reorder};
pub use lane::{Counters, Lane};
