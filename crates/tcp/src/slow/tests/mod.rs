//! The slow path with a fake host, in virtual time.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod active_flows;
mod active_open;
mod closing;
mod congestion;
mod cookies;
mod counters;
mod direct;
mod ecn;
mod endings;
mod families;
mod flow_groups;
mod handshake;
mod held_ports;
mod host;
mod icmp;
mod joint;
mod late;
mod listen;
mod named;
mod property;
mod set_options;
mod splice;
mod splice_ways;
mod world;
