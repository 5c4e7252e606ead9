//! The line of what happens seldom, and of counts that are kept only then.

use super::tcb::Received;
use super::words::Word;

/// Counts of rare events. One line, which no ordinary segment touches.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Seldom {
    /// Received segments that were not acceptable. Anybody may have sent them, so the peer has not been heard.
    pub unheard: Word<Received>,
}

impl Seldom {
    pub(crate) fn clear(&self, by: super::stages::Install) {
        self.unheard.set(by, 0);
    }
}
