//! The stacks of `towpathd`: this crate builds the stack that a configuration names, and the service serves it.
//!
//! - [`stacks`]: from the configuration to the stack, by its kind;
//! - [`fast`]: the fast stack, with its ports, the [`served`] interfaces ([`interface`] opens them, [`held_interface`]: in the broker), their [`health`], and the host's [`network`];
//! - [`guest`]: a kernel stack in a second kernel of this host;
//! - [`remote`]: a kernel stack at the other end of a link, and [`remote_server`], which serves that end;
//! - [`service_manager`]: what systemd is told.

mod attach;
pub mod fast;
mod follow;
pub mod guest;
pub mod health;
mod held_interface;
pub mod interface;
pub mod network;
pub mod privileges;
pub mod remote;
pub mod remote_server;
pub mod served;
pub mod service_manager;
pub mod stacks;
mod ways;
