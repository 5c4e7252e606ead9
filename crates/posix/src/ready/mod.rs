//! Readiness: `epoll`, `poll` and `select` over slots and kernel descriptors.

pub mod epoll_ctl;
pub mod epoll_wait;
pub mod halves;
pub mod hints;
pub mod instance;
pub mod interest;
pub mod nested;
pub mod past;
pub mod poll;
pub mod readiness;
pub mod rewatch;
pub mod select;
pub mod service_death;
pub mod watch;
pub mod words;
