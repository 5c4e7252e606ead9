//! `auto`: which sockets of a program gain by the stack is found out by measuring both ways, and those that do not are left to the
//! program's own kernel.
//!
//! - [`decide`]: what follows from the figures, a pure function;
//! - [`class`]: sockets that are alike, and where the next one goes;
//! - [`books`]: whose they are, and the guard that stacks ask;
//! - [`show`]: what people see.

pub mod books;
pub mod class;
pub mod decide;
pub mod show;

pub use books::{Auto, Chooser, Reach};
