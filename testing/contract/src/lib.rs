//! Tests of the ring contract that every stack must pass, and a minimal application side for them ([`app`]).
//!
//! [`departure`]: clients that end; [`hostile`]: clients that violate the contract; [`resizing`]: traffic
//! while the number of a stack's workers changes.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests: names say what a function does, and a failure is a panic")]

pub mod app;
pub mod departure;
pub mod hostile;
pub mod resizing;

use std::net::{IpAddr, Ipv4Addr};

/// The applications' address. No other program of the host uses the ports of these tests.
pub const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
