//! The contract between applications and stacks.
//!
//! One sealed memfd (a *region*) per client. Every shared word has exactly one writing side; both sides use
//! only loads and stores on it. Each side treats the other's words as hostile: load once, check, clamp.
//!
//! - [`region`], [`layout`], [`lines`]: the memory, and the words of a socket in it;
//! - [`address`]: how addresses stand in them;
//! - [`bytes`], [`dirty`], [`command`], [`aside`]: what moves through it: data, readiness, commands, files;
//! - [`wake`]: how the sides sleep and wake each other;
//! - [`pair`], [`board`]: what two clients share for the connections between them;
//! - [`card`]: memory that another kernel shares, for the regions of its clients;
//! - [`carry`], [`span`]: what crosses, and into what, where the two sides share no memory;
//! - [`control`]: the messages that set all this up;
//! - [`metrics`]: counters for other programs to read;
//! - [`report`]: what programs tell `towpath doctor`;
//! - [`figures`]: what programs measure of their sockets.
#![doc = include_str!("../LAYOUT.md")]

pub mod address;
pub mod aside;
pub mod board;
pub mod bytes;
pub mod card;
pub mod carry;
pub mod command;
pub mod control;
pub mod dirty;
pub mod figures;
pub mod layout;
pub mod lines;
pub mod metrics;
pub mod pair;
pub mod region;
pub mod report;
pub mod span;
pub mod wake;

pub use bytes::ByteRing;
pub use layout::{Geometry, GeometryError, Layout, Slot};
pub use lines::{AppLine, CommandLine, InfoLine, OptionsLine, StackLine};
pub use pair::{PairGeometry, PairRegion};
pub use region::{MapError, Region};
