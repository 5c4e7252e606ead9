//! The application's side of the ring contract: the session with the service, slots and their words, doorbells and
//! commands. Also direct connections, and sleeping until something happens.
//!
//! It knows sockets only as slots. `towpath-posix` puts descriptors, `epoll` and options on top, `towpath-native` an
//! API of its own. [`callbacks`] are the calls that it makes to them.

pub mod accept;
pub mod address;
pub mod at_fork;
pub mod backend;
pub mod callbacks;
pub mod cancel;
pub mod carrier;
pub mod claim;
pub mod close;
pub mod command;
pub mod context;
pub mod cork;
mod data_queue;
pub mod descriptor_reserve;
pub mod descriptors;
pub mod direct;
pub mod doorbell;
pub mod held;
pub mod idle;
mod idle_time;
mod last_close;
pub mod limits;
pub mod liveness;
pub mod lock;
pub mod locked;
mod memory;
mod pair_place;
pub mod private;
pub mod process;
pub mod query;
pub mod rejoin;
mod ring_growth;
pub mod seccomp;
pub mod session;
pub mod sessions;
pub mod signals;
pub mod single_threaded;
pub mod sleep;
pub mod socket;
pub mod splice;
pub mod stack_info;
pub mod stacks;
pub mod sys;
pub mod tid;
pub mod undo_log;
pub mod view;
mod violation;
pub mod wait;
mod without_sigpipe;
