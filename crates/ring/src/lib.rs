//! The contract between applications and stacks.
//!
//! A *region* is the shared memory of one client: a sealed memfd. Each word of it has one writing side, whose processes
//! change shared flags by read-modify-write; the other side only loads. Each side treats the other's words as hostile: it
//! loads a word once, checks it and clamps it.
//!
//! Two kinds of words of a [`pair`] region have two writers, and are changed by read-modify-write: the
//! [`event_bitmap`]s, and [`pair::PairLines::event_seq`]. Both clients run on this host's processors, so that is cheap
//! there. Neither holds a position or a length: a hostile writer causes a needless look or suppresses a wake-up of its
//! own connections.
//!
//! - [`region`], [`layout`], [`lines`], [`options`]: the memory, and the words of a slot in it;
//! - [`memory`]: who makes the memory, and what is checked of it;
//! - [`address`]: the form of addresses in it;
//! - [`bytes`], [`shared_bytes`]: the byte rings, and the one way to copy to and from them;
//! - [`ring_size`]: how large a ring is now;
//! - [`dirty`], [`word`]: dirty sets, and the word and fences that they are made of;
//! - [`command`], [`sideband`]: commands of an application, and those that belong to a position of the stream;
//! - [`detach`]: the end of a region;
//! - [`wake`], [`exclusive`]: sleep and wake-up of both sides;
//! - [`pair`], [`event_bitmap`]: the memory that two clients share for their direct connections;
//! - [`prefetch`]: hints which cache lines are about to be used;
//! - [`guest_memory`]: the memory that a guest's kernel shares with this host;
//! - [`codec`], [`span`]: the words and bytes that cross where the two sides share no memory;
//! - [`control`]: the messages that set all this up;
//! - [`metrics`]: counters for other programs to read;
//! - [`report`]: what programs report to `towpath doctor`;
//! - [`stats`]: measurements of a program's connections for `auto`;
//! - [`ports`]: lists of ports in the environment.
#![doc = include_str!("../LAYOUT.md")]

pub mod address;
pub mod bytes;
pub mod codec;
pub mod command;
pub mod control;
pub mod detach;
pub mod dirty;
pub mod event_bitmap;
pub mod event_set;
pub mod exclusive;
pub mod guest_memory;
pub mod layout;
pub mod lines;
mod mapping;
pub mod memory;
pub mod metrics;
pub mod options;
pub mod pair;
pub mod ports;
pub mod prefetch;
pub mod region;
pub mod report;
pub mod ring_size;
pub mod shared_bytes;
pub mod sideband;
pub mod slot_memory;
pub mod span;
pub mod stats;
pub mod wake;
pub mod word;

pub use bytes::ByteRing;
pub use event_set::EventSet;
pub use layout::{Geometry, GeometryError, Layout, Slot};
pub use lines::{AppLine, CommandLine, CountsLine, InfoLine, StackLine};
pub use memory::MapError;
pub use options::OptionsLine;
pub use pair::{PairGeometry, PairRegion};
pub use region::Region;
pub use slot_memory::SlotMemory;
