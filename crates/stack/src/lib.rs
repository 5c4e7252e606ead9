//! What every stack does that serves the ring contract, and what the service asks of one.
//!
//! - [`stack`]: the calls of the service; [`requests`]: how they reach a thread of a stack;
//! - [`status`]: what a stack tells of itself;
//! - [`guard`]: the operator's policy, as every stack asks it;
//! - [`clients`]: what the threads of a stack share of a client, and how an application's words are read;
//! - [`slots`], [`info`]: the slots of a client and what each is used for; what the application is shown;
//! - [`events`]: telling an application that something has happened;
//! - [`execute`]: a program in a stack's kernel;
//! - [`crew`]: the threads and the flow groups that they serve; [`placement`], [`patience`], [`account`]: which serves which,
//!   when they spin, and what they do with their time;
//! - [`mailbox`], [`thread`], [`sparse`]: bells, messages and sleep of the threads, and a table.
//!
//! Nothing here knows how a stack carries bytes.

pub mod account;
pub mod clients;
pub mod crew;
#[cfg(test)]
mod crew_tests;
pub mod events;
pub mod execute;
pub mod files;
pub mod guard;
pub mod info;
pub mod mailbox;
pub mod patience;
pub mod placement;
pub mod requests;
pub mod resume;
pub mod sampler;
pub mod slots;
pub mod sparse;
pub mod stack;
pub mod status;
pub mod thread;

pub use execute::Executed;
pub use files::{Files, SharedFile};
pub use guard::{Exceeded, Guard, Limit, Verdict};
pub use stack::{ClientId, ClientSetup, Cores, Far, Ground, Movement, PairHandle, Stack};
pub use status::{ClientStatus, Connection, CoreStatus, Status, ThreadStatus};
