//! What every transport does.

use std::io;
use std::time::Duration;
use towpath_ring::span::Span;

/// Names memory that one side lets the other write into. Each side has its own numbers.
pub type Key = u32;

/// A write with an immediate has come: it and all that was written on its lane before it are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its lane.
    pub lane: u32,
    /// The word that came with it.
    pub immediate: u32,
}

/// Why a link is over. It stays so.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The system says so.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side has closed it.
    #[error("the other side has closed the connection")]
    Ended,
    /// The other side does not take what is sent.
    #[error("the other side takes nothing any more")]
    Stuck,
    /// The other side shows no life.
    #[error("the other side shows no life")]
    Silent,
    /// What has come is against the rules.
    #[error("the other side breaks the rules: {0}")]
    Rules(&'static str),
    /// A write of ours has failed: this status.
    #[error("a write has failed ({0})")]
    Completion(&'static str),
}

/// A transport. Writes of one lane come in their order, those of different lanes in any. One thread writes, another waits.
pub trait Link: Send + Sync {
    /// How many lanes it has, at least 1.
    fn lanes(&self) -> u32;
    /// Lets the other side write into this memory. It must know by other means when it may.
    fn register(&self, key: Key, memory: Span) -> io::Result<()>;
    /// Does not any more.
    fn deregister(&self, key: Key);
    /// Has these bytes written into the other side's memory `key` at `offset`. They may still be underway after that.
    fn write(&self, lane: u32, key: Key, offset: u64, bytes: &[u8]) -> Result<(), Broken>;
    /// The same, and the other side is told, with a word.
    fn write_with_immediate(
        &self,
        lane: u32,
        key: Key,
        offset: u64,
        bytes: &[u8],
        immediate: u32,
    ) -> Result<(), Broken>;
    /// Sees to it that what was written goes now.
    fn flush(&self) -> Result<(), Broken>;
    /// Waits for arrivals, for so long at most, and appends them.
    fn wait(&self, arrivals: &mut Vec<Arrival>, timeout: Duration) -> Result<(), Broken>;
    /// Ends it, for both sides: whoever waits here is told.
    fn close(&self);
}
