//! The protocol's name for a slot of a client.

use towpath_ring::Slot;
use towpath_tcp::flow::Owner;

/// The owner number of this slot of client `index`.
pub fn owner(index: u32, slot: Slot) -> Owner {
    Owner(u64::from(index) << 32 | u64::from(slot.raw()))
}

/// Client index and slot number of an owner.
pub fn split(owner: Owner) -> (u32, u32) {
    ((owner.0 >> 32) as u32, owner.0 as u32)
}
