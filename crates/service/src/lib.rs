//! The service: configuration, registration of clients, control interface, routes and neighbours.
//!
//! Threads beside the engine's: the main loop ([`server`]), one keeper per connection of a client ([`keeper`]), the desk,
//! which does in the shared descriptor table what keepers cannot do in theirs ([`shared`]), and, where an interface is
//! served, one that listens for changes of routes and neighbours ([`network`]).

pub mod admission;
pub mod api;
pub mod auto;
pub mod background;
pub mod choice;
pub mod config;
pub mod control;
pub mod cores;
pub mod daemon;
pub mod far;
pub mod interface;
pub mod keeper;
pub mod names;
pub mod network;
pub mod options;
pub mod paths;
pub mod policy;
pub mod server;
pub mod shared;
pub mod stacks;
pub mod table;
pub mod units;

pub use towpath_card::guest::main_if_card;
pub use towpath_card::mirror::address::Address;
