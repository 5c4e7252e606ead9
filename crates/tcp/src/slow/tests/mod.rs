//! The slow path against a fake world, in virtual time.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod active;
mod closing;
mod congestion;
mod connect;
mod cookies;
mod ecn;
mod families;
mod icmp;
mod joint;
mod listen;
mod options;
mod property;
mod world;
