//! The operator's policy: who may connect, who may listen, which peers may reach a listener, and how much a program may
//! use.
//!
//! The stack's question arrives in [`crate::guard`], which asks [`Policy::decide`]. A rule is one line of text (see
//! `docs/reference/policy.md`), the same on the command line, in files and on the control socket. [`parse`] reads it,
//! [`list`] keeps the rules in order, and [`rule`] says whether a rule matches.

pub mod cidr;
mod commands;
pub mod decide;
mod difference;
pub mod identity;
pub mod join;
mod joins;
pub mod limit;
pub mod list;
pub mod namespaces;
pub mod parse;
pub mod peer_process;
mod peers;
pub mod process_filter;
pub mod query;
pub mod request;
pub mod rule;

pub use decide::Policy;
pub use identity::Identity;
pub use list::Entry;
pub use namespaces::Namespaces;
pub use request::{Listing, PolicyRequest};
