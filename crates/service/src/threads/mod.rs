//! How many threads the stack runs: as configured, as an operator has fixed it, or as many as pay off.

mod controller;
mod host_cpu;
mod sizer;
mod stack_totals;

pub use controller::{TICK_MS, ThreadController};
