//! A relay between two interfaces that impairs traffic: it loses, delays, reorders, duplicates, marks and corrupts
//! frames, and has a bottleneck with a finite queue.
//!
//! [`lane::Lane`] is one direction. It knows neither clock nor device, and its decisions are fixed by a seed.
//! [`relay::run`] connects two lanes to two packet sockets.

pub mod device;
pub mod frame;
pub mod impairments;
pub mod lane;
pub mod relay;
pub mod units;

pub use impairments::{Burst, Impairments, Reorder};
pub use lane::{Counters, Lane};
