//! The parts of a capture. This crate knows frames, and neither stacks nor services.
//!
//! - [`cbpf`]: classic BPF programs, checked and run as the kernel does;
//! - [`memory`]: the memory in which the threads of a stack leave frames for the command that captures;
//! - [`record`]: the records in that memory;
//! - [`filter`]: which frames are kept;
//! - [`tap`]: filters a frame, cuts it, and leaves it in the memory or counts it;
//! - [`conversation`]: frames made for a connection that has none;
//! - [`direct`]: looks at direct connections, and makes such frames of their bytes;
//! - [`ends`]: whose a frame is;
//! - [`pcapng`]: the file;
//! - [`sheet`]: what is written to it, with what waits (`held`) and the comments (`names`).

pub mod cbpf;
pub mod conversation;
pub mod direct;
pub mod ends;
pub mod filter;
mod held;
pub mod memory;
mod names;
pub mod pcapng;
pub mod record;
pub mod sheet;
pub mod tap;

pub use cbpf::Program;
pub use filter::Filter;
pub use memory::{Memory, Reader, Writer};
pub use record::Name;
pub use sheet::Sheet;
pub use tap::{Tap, Wish};
