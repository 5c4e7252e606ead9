//! Compiles modules. Only the process that has them judged needs it; whoever runs them has [`towpath_modules`] alone.
#![forbid(unsafe_code)]

mod batch;
mod compile;
mod memory;
mod prepare;

pub use compile::compile;
pub use prepare::prepare;
