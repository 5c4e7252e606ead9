//! The operator's policy: who may connect and listen to what, what peers may reach a listener, and what an application may
//! take. Rules are one line of text each (see `docs/policy.md`), the same on the command line, in files and on the control socket.

pub mod cidr;
pub mod enforce;
pub mod identity;
pub mod limit;
pub mod list;
pub mod parse;
pub mod query;
pub mod request;
pub mod rule;
pub mod who;

pub use enforce::Policy;
pub use identity::Identity;
pub use list::Entry;
pub use request::{Listing, Request};
