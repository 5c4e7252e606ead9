//! `auto`: finds out by measurement which sockets gain by the stack, and leaves the others to the program's own kernel.
//!
//! - [`decide`]: the decision, a pure function of measurements;
//! - [`class`]: a class of similar sockets and the carrier of its next connection;
//! - [`statistics`]: the measured programs and their classes;
//! - [`report`]: the part of `towpath status`.
//!
//! [`crate::guard`] asks [`Auto`] where the policy allows a connect or a listen.

mod addresses;
pub mod class;
pub mod decide;
pub mod report;
pub mod statistics;

pub use statistics::{Auto, Reach};
