//! TCP over Towpath without sockets, for programs that are written (or rewritten) for it. What a socket call copies and looks up
//! anew each time is here in the caller's hands: received bytes are read where they lie ([`Connection::received`]), bytes to send are
//! written where they will be sent from ([`Connection::reserve`]), and events come many at a time ([`Stack::wait`]), without a
//! descriptor per connection.
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
//! - **Threads.** Each thread opens a [`Stack`] of its own; a process has 63 at most. Connections and listeners belong to no stack and
//!   may be sent to other threads; who is told of their events is decided by [`Stack::watch`].
//! - **Nothing blocks** but [`Stack::wait`], [`Connection::wait`] and the exchange with the service that begins a connection or a
//!   listener. Everything else says `WouldBlock`.
//! - **Errors** are those that Linux gives for sockets.
//! - **The end of a process** ends its connections: the service sees it, however it comes.
//! - **Not here:** what needs descriptors (`epoll`, passing sockets on, `fork` with open connections) and out-of-band data,
//!   which is read in line.

mod address;
mod c;
mod connection;
mod event;
mod half;
mod listener;
mod span;
mod stack;

pub use connection::Connection;
pub use event::{Event, Readiness, Source};
pub use half::{ReadHalf, WriteHalf};
pub use listener::Listener;
pub use span::{Received, Room, Span};
pub use stack::Stack;
