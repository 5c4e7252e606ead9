//! Compiles modules. Only the process that has them judged needs it; whoever runs them has [`towpath_modules`] alone.
#![forbid(unsafe_code)]

mod access;
mod batch;
mod bounds;
mod compile;
mod emit;
mod memory;
mod prepare;
mod results;

pub use compile::compile;
pub use prepare::prepare;
