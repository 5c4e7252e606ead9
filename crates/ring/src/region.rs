//! One client's region: a sealed memfd, mapped by the service and by the client's processes.

use crate::{AppLine, ByteRing, CommandLine, Geometry, GeometryError, InfoLine, Layout, Slot, StackLine};
use rustix::fd::{BorrowedFd, OwnedFd};

/// Why a region cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// memfd or mmap failed.
    #[error("region: {0}")]
    Io(#[from] std::io::Error),
    /// The sizes are no good.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// It is not a Towpath region, of another version, unsealed, or of another size.
    #[error("region: {0}")]
    Format(&'static str),
}

/// A mapped region.
pub struct Region {
    layout: Layout,
}

impl Region {
    /// Service side: makes and seals a memfd (no shrinking, no growing, no further seals) and maps it.
    pub fn create(geometry: Geometry) -> Result<(Self, OwnedFd), MapError> {
        let _ = geometry;
        todo!()
    }
    /// Application side: checks seals, size and header, maps.
    pub fn map(fd: BorrowedFd<'_>, geometry: Geometry) -> Result<Self, MapError> {
        let _ = (fd, geometry);
        todo!()
    }
    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
    /// The sizes.
    pub fn geometry(&self) -> Geometry {
        todo!()
    }
    /// Checks a slot number.
    pub fn slot(&self, raw: u32) -> Option<Slot> {
        let _ = raw;
        todo!()
    }
    /// The application's line of a slot.
    pub fn app(&self, slot: Slot) -> &AppLine {
        let _ = slot;
        todo!()
    }
    /// The command line of a slot.
    pub fn command(&self, slot: Slot) -> &CommandLine {
        let _ = slot;
        todo!()
    }
    /// The stack's line of a slot.
    pub fn stack(&self, slot: Slot) -> &StackLine {
        let _ = slot;
        todo!()
    }
    /// The information line of a slot.
    pub fn info(&self, slot: Slot) -> &InfoLine {
        let _ = slot;
        todo!()
    }
    /// The send ring of a slot.
    pub fn tx(&self, slot: Slot) -> ByteRing<'_> {
        let _ = slot;
        todo!()
    }
    /// The receive ring of a slot.
    pub fn rx(&self, slot: Slot) -> ByteRing<'_> {
        let _ = slot;
        todo!()
    }
    /// Memory of the application side that the stack never reads: `PRIVATE_HEADER_BYTES` + `PRIVATE_SLOT_BYTES` per slot.
    pub fn private(&self) -> (*mut u8, usize) {
        todo!()
    }

    /// Data doorbells of core `queue` (`0..cores`), application to stack. Sequence words: `AppLine::door_seq`,
    /// `StackLine::door_ack`.
    pub fn doors(&self, queue: usize) -> crate::dirty::DirtySet<'_> {
        let _ = queue;
        todo!()
    }
    /// Command doorbells, application to stack. Sequence words: `AppLine::ctl_seq`, `StackLine::ctl_ack`.
    pub fn commands(&self) -> crate::dirty::DirtySet<'_> {
        todo!()
    }
    /// Events raised by stack thread `thread` (`0..cores` the cores, `cores` the slow path) for `context`.
    pub fn events(&self, context: usize, thread: usize) -> crate::dirty::DirtySet<'_> {
        let _ = (context, thread);
        todo!()
    }
    /// Sequence (stack-written) and acknowledge (application-written) words of `slot` in that event set.
    pub fn event_words(
        &self,
        context: usize,
        thread: usize,
        slot: Slot,
    ) -> (&core::sync::atomic::AtomicU32, &core::sync::atomic::AtomicU32) {
        let _ = (context, thread, slot);
        todo!()
    }
}
