//! The guest stack: the kernel stack in a second kernel on this host, which is user-mode Linux or a guest of QEMU.
//!
//! The service starts the kernel ([`machine`]). Its first program is this binary again ([`init`]), which runs the
//! kernel stack of [`towpath_kernel`] with that kernel's sockets. Requests of the service cross as messages
//! ([`towpath_forward`]) over a serial line. The applications' regions lie in one file that both kernels map
//! ([`towpath_ring::guest_memory`]), so bytes and commands pass between application and guest without the service. The
//! service only wakes applications for the guest (`relay`), because one kernel cannot wake a futex or a pipe of
//! another. When the guest dies, its connections are reset and it is started again.

mod config;
mod guest;
pub mod init;
pub mod machine;
mod relay;
mod shared;
mod standby;

pub use config::{GuestConfig, GuestError};
pub use guest::Guest;
pub use standby::{Standby, StandbyConfig};
