//! A server that can be asked what it achieves.

use crate::reading::Reading;

/// A server that is asked once a second, in a thread of its own. It may take its time.
pub trait Server: Send {
    /// Its counters now, or what is wrong.
    fn ask(&mut self) -> Result<Reading, String>;
}

/// A server's description of an error, fit for a line of a log.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(160).collect()
}
