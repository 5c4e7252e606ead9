//! TCP over Towpath without sockets, for programs that are written (or rewritten) for it. It saves the copies and
//! look-ups of a socket call. Received bytes are read in place ([`Connection::received`]), and bytes to send are
//! written in place ([`Connection::reserve`]). Events come many at a time ([`Stack::wait`]), without a descriptor per
//! connection.
//!
//! ```no_run
//! use towpath_native::{Connection, Listener, Stack};
//!
//! # fn main() -> std::io::Result<()> {
//! let mut stack = Stack::open()?;
//! let mut listener = Listener::bind(&stack, "127.0.0.1:7777".parse().unwrap(), 128)?;
//! stack.watch(&listener, 0)?;
//! let mut events = [towpath_native::Event::default(); 64];
//! loop {
//!     let count = stack.wait(&mut events, None)?;
//!     for event in &events[..count] {
//!         // Token 0: connections to take with `listener.accept()` until that would block.
//!         # let _ = event;
//!     }
//! }
//! # }
//! ```
//!
//! - **Threads.** Each thread opens a [`Stack`] of its own; a process has 63 at most. Connections and listeners belong
//!   to no stack and may be sent to other threads; [`Stack::watch`] decides which thread gets their events.
//! - **Nothing blocks** but [`Stack::wait`], [`Connection::wait`] and the exchange with the service that begins a
//!   connection or a listener. Everything else says `WouldBlock`.
//! - **Errors** are those that Linux gives for sockets.
//! - **The end of a process** ends its connections. The service notices every kind of end.
//! - **Listeners** are for connections that the stack carries. Others of this host, which the kernel accepts for them,
//!   are reset.
//! - **`mlockall`** of a program that links this crate locks all of its memory but the rings.
//! - **Not here:** features that need descriptors (`epoll`, descriptor passing, `fork` with open connections), and
//!   out-of-band data, which is read in line.

mod address;
mod c;
mod connection;
mod error;
mod event;
mod half;
mod kernel_half;
mod listener;
mod locked;
mod rings;
mod span;
mod stack;

pub use connection::Connection;
pub use event::{Event, Readiness, Source};
pub use half::{ReadHalf, WriteHalf};
pub use listener::Listener;
pub use span::{Received, Room, Span};
pub use stack::Stack;
