//! The service around any stack: configuration, registration of clients, policy, and the control interface.
//!
//! The stack is a `dyn Stack`, which a [`stack_factory::StackFactory`] builds. `towpathd` puts the stacks in.
//!
//! Threads beside the stack's:
//!
//! - the main loop ([`server`]), one per client process ([`client_connection`]), one per control conversation ([`control`]);
//! - the descriptor broker ([`descriptor_broker`]), the sizer of the stack's threads ([`threads`]), the affinity guard
//!   ([`affinity_guard`]);
//! - the network watcher of a stack that needs one ([`daemon`]).
//!
//! A question of the stack about a connection goes to [`guard`], and from there to the [`policy`].

pub mod acceptor;
mod activation;
pub mod admission;
pub mod affinity_guard;
mod answer_line;
pub mod api;
pub mod auto;
pub mod background;
pub mod broker_handle;
pub mod capture;
pub mod client_connection;
pub mod config;
pub mod config_text;
mod container;
pub mod control;
pub mod conversation;
pub mod cpus;
pub mod daemon;
pub mod daemon_line;
pub mod default_socket;
pub mod descriptor_broker;
pub mod descriptor_budget;
pub mod descriptor_table;
pub mod descriptor_transfer;
mod events;
pub mod fingerprint;
pub mod firewall_rules;
pub mod geometry;
pub mod guard;
mod interrupted;
pub mod judge;
pub mod known_namespaces;
pub mod lease;
pub mod live;
pub mod log;
mod log_filter;
pub mod modules;
pub mod namespace_cookies;
mod namespace_watch;
pub mod netns;
pub mod options;
pub mod other_stacks;
pub mod passed_sockets;
pub mod paths;
pub mod policy;
mod policy_requests;
pub mod port_proof;
pub mod privileged;
pub mod proc_links;
pub mod programs;
mod pulse;
pub mod received;
pub mod registry;
pub mod reload;
pub mod sandbox;
pub mod server;
pub mod shown_listener;
pub mod source;
pub mod stack_factory;
pub mod state;
mod stop_wait;
pub mod successor_memory;
pub mod threads;
pub mod units;
