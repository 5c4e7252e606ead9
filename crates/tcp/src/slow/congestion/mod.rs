//! Congestion control: the limit of data in flight, decided per control interval from counters of the fast path.
//! Applications cannot bypass it, but may choose the algorithm (RFC 9293 §3.8.2 MAY-18).
//!
//! The fast path enforces window and pacing rate. Between two decisions it grows the window by
//! [`Window::growth`](crate::flow::Window::growth), and cuts it to [`Window::beta`](crate::flow::Window::beta) when it
//! repairs a loss. An algorithm changes these parameters. It sets the window itself only if it must, as that overwrites
//! the fast path's changes since the snapshot.

mod algorithm;
mod bbr;
mod constant;
mod control;
mod controller;
mod cubic;
mod dctcp;
mod dctcp_rate;
mod newreno;
mod rate;
mod sample;
#[cfg(test)]
mod tests;
mod timely;

pub use algorithm::Algorithm;
pub use bbr::Bbr;
pub use constant::Constant;
pub use control::{CongestionControl, initial_window, restart, timeout_threshold};
pub(super) use controller::{Controller, Idle};
pub use cubic::Cubic;
pub use dctcp::Dctcp;
pub use dctcp_rate::DctcpRate;
pub use newreno::NewReno;
pub use sample::{Interval, Sample};
pub use timely::Timely;
