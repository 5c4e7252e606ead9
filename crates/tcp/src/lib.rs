//! TCP, sans-I/O: no clock, no sockets, no threads. Time, frames and the bytes of rings are arguments.
//!
//! [`fast`] handles established connections in batches, one file per stage. [`slow`] opens and closes them, keeps the
//! timers and computes congestion windows. They talk by [`messages`] only. A flow belongs to one fast path.

#![forbid(unsafe_code)]

pub mod buffers;
pub mod counters;
pub mod fast;
pub mod flow;
pub mod messages;
mod rate_limit;
pub mod seq;
pub mod slow;
pub mod table;
pub mod time;
