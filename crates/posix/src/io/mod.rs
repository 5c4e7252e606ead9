//! Sending and receiving, and the memory that a program names in its calls.

pub mod aio;
pub mod copy;
pub mod fault;
pub mod files;
pub mod hand_over;
pub mod message;
pub mod receive;
pub mod secure;
pub mod send;
pub mod sigurg;
pub mod splice;
pub mod urgent;
pub mod user;
pub mod usual;
pub mod vectors;
