//! A card without shared memory: another machine, reached by a [`towpath_link::Link`]. Each side has a copy of every region, and carries
//! to the other's copy what its own side has written.
//!
//! - [`near`]: the host's side, a stack to the service; [`carrier`]: its thread that carries what applications write; [`shower`]: what it
//!   does with what comes;
//! - [`far`]: the other side, which serves the kernel stack on its copies; [`returner`]: its thread that carries what the stack writes;
//! - [`record`]: what is carried; [`wire`]: how it is sent; [`address`]: where the other side is.
//!
//! Of a connection cross, in this order: bytes of its ring, straight into the other's ring; then its line, as a record, which the
//! receiver stores word by word, as its writer has published it. Then the receiver does in its copy what the writer has done in its
//! own: it puts the slot into a dirty set, or raises an event. So dirty sets, futex words and bells never cross.

pub mod address;
mod carrier;
pub mod far;
mod jobs;
pub mod near;
mod record;
mod returner;
mod shower;
#[cfg(test)]
mod storm;
mod wire;

use towpath_link::Key;
use towpath_link::mail::KEYS;

/// Clients that a far side serves.
pub const CLIENTS: u32 = 64;

/// The memory into which the rings of the client in a place are written: on the near side its receive rings, on the far side its send
/// rings.
fn key(place: u32) -> Key {
    KEYS + place
}

/// The lane of the client in a place. Everything about a client but its beginning goes on one lane, so that nothing overtakes anything.
fn lane(place: u32, lanes: u32) -> u32 {
    if lanes > 1 { 1 + place % (lanes - 1) } else { 0 }
}
