//! A second kernel behind the rings: the kernel stack, in user-mode Linux or a guest of QEMU.
//!
//! The service starts the kernel ([`machine`]: [`uml`] or [`qemu`]), whose first program is this binary again ([`guest`]); that runs
//! the kernel stack of [`towpath_kernel`] with that kernel's sockets. What the service asks of a stack goes there as messages ([`message`], [`part`]) over a
//! serial line ([`host`]); the applications' regions lie in one file that both kernels map ([`towpath_ring::card`]), so bytes and
//! commands go from application to card and back without the service. Only wake-ups need it: [`relay`] does what a card cannot do to a
//! futex or a pipe of this host. If the card dies, [`funeral`] ends its sockets.

mod console;
mod elf;
mod funeral;
pub mod guest;
mod host;
mod image;
mod initramfs;
mod inner;
pub mod machine;
mod message;
pub mod mirror;
mod named;
mod part;
mod pieces;
mod place;
mod places;
pub mod qemu;
mod relay;
mod standby;
mod threads;
pub mod uml;

pub use host::{Card, CardConfig, CardError};
pub use standby::{Standby, StandbyConfig};
