//! Where everything lies in a region. Both sides compute it from the same [`Geometry`].

/// The sizes a region is built from. The service fixes them; the application reads them once at mapping time and
/// checks them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Socket slots, a power of two up to 65,536.
    pub slots: u32,
    /// Slots `0..app_slots` are allocated by the application (`connect`, `listen`), the rest by the stack (`accept`).
    pub app_slots: u32,
    /// Bytes of each send ring, a power of two from 4 KiB to 16 MiB.
    pub tx_bytes: u32,
    /// Bytes of each receive ring, likewise.
    pub rx_bytes: u32,
    /// Event contexts, 1 to 64.
    pub contexts: u32,
    /// Fast-path cores, 1 to 16. There are `cores` data doorbell queues and one command queue; and as many event
    /// queues per context (one per stack thread that raises events: cores, then the slow path).
    pub cores: u32,
}

/// A geometry that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// A size is outside its range or no power of two.
    #[error("{what} is {value}: {rule}")]
    Size {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What it must be.
        rule: &'static str,
    },
}

/// A slot number known to be inside its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub(crate) u32);

impl Slot {
    /// The number.
    pub fn index(self) -> usize {
        self.0 as usize
    }
    /// The number as stored in shared memory.
    pub fn raw(self) -> u32 {
        self.0
    }
}

/// Byte offsets of the parts of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    geometry: Geometry,
}
