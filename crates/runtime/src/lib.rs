//! The common part of all stacks that serve the ring contract, and the interface between the service and a stack.
//!
//! - [`stack`]: the calls of the service; [`requests`]: how they reach a thread of a stack;
//! - [`status`]: a stack's status;
//! - [`admission`]: the operator's policy, as every stack asks it; [`peer_rules`]: as a filter in the kernel applies it;
//! - [`clients`]: the state of a client that the threads of a stack share, and how an application's words are read;
//! - [`client_namespace`]: the network namespace of a client;
//! - [`slots`], [`info`]: the slots of a client and their uses; the values that the application is shown;
//! - [`events`]: telling an application that something has happened;
//! - [`capture`]: frames of a stack for the operator to look at;
//! - [`departure`], [`orphans`]: what clients that have ended leave, and its bounds;
//! - [`ended`]: what programs have used that have ended;
//! - [`memory_return`]: memory of clients that is given back by threads which may wait;
//! - [`recorded`]: what the flight recorder has, in the log;
//! - [`execute`]: a program in a stack's kernel;
//! - [`log_throttle`]: a limit on log lines that others can provoke;
//! - [`workers`]: the threads and the flow groups that they serve; [`placement`], [`adaptive_spin`], [`group_times`]:
//!   which thread serves which group, how long it spins, and its busy times;
//! - [`mailbox`], [`thread`], [`sparse`]: doorbells, messages and sleep of the threads, and a table.
//!
//! Nothing here knows how a stack carries bytes.
#![forbid(unsafe_code)]

pub mod adaptive_spin;
pub mod admission;
pub mod capture;
pub mod client_namespace;
pub mod client_setup;
pub mod clients;
pub mod departure;
pub mod ended;
mod ended_socket;
mod event_count;
pub mod events;
pub mod execute;
pub mod files;
mod give_way;
pub mod group_times;
pub mod info;
pub mod log_throttle;
pub mod mailbox;
pub mod memory_return;
pub mod named_counts;
pub mod orphans;
pub mod peer_rules;
pub mod placement;
pub mod policy;
pub mod recorded;
pub mod requests;
pub mod reservation;
pub mod resume;
pub mod sampler;
pub mod slots;
pub mod sparse;
pub mod stack;
pub mod status;
pub mod thread;
pub mod workers;
#[cfg(test)]
mod workers_tests;

pub use capture::Capture;
pub use client_namespace::ClientNamespace;
pub use client_setup::{ClientId, ClientLease, ClientMemory, ClientSetup, Lease, RemoteWaker};
pub use ended_socket::EndedSocket;
pub use execute::Executed;
pub use files::{Files, SharedFile};
pub use orphans::{OrphanLimits, Orphans};
pub use peer_rules::{Block, MAX_PEER_RULES, PeerRule, PeerRules, PeerVerdict};
pub use policy::{AdmissionPolicy, Exceeded, Limit, Verdict};
pub use reservation::{Grant, JoinProof, ListenerProof, Proof, Reservation};
pub use stack::{Movement, PairHandle, Selectors, Stack, WorkerCount};
pub use status::{ClientStatus, FlowGroupStatus, SocketStatus, Status, WorkerStatus};
