//! The service: configuration, registration of clients, control interface, routes and neighbours.

pub mod admission;
pub mod config;
pub mod paths;
pub mod units;
