//! Which memory and which lane belong to a client.

use crate::link::Key;
use crate::link::inbox::KEYS;

/// Most clients of one server.
pub const CLIENTS: u32 = 64;

/// The key of the memory into which the peer writes a client's rings: receive rings on the host's side, send rings on
/// the server's.
pub fn key(index: u32) -> Key {
    KEYS + index
}

/// The lane of a client. Everything about a client except its registration goes on this lane, so that nothing
/// overtakes.
pub fn lane(index: u32, lanes: u32) -> u32 {
    if lanes > 1 { 1 + index % (lanes - 1) } else { 0 }
}
