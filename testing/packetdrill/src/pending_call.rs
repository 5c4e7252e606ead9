//! A system call that has begun, and its result.

use crate::constants::errno_name;
use crate::script::Call;
use towpath_tcp::time::Micros;

/// A call that has begun.
pub struct PendingCall {
    /// Line of the script.
    pub line: usize,
    /// The call.
    pub call: Call,
    /// When it must return.
    pub to: Micros,
    /// Its progress.
    pub progress: Progress,
}

/// The progress of a blocking call.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes written.
    pub(crate) written: usize,
    /// Has it done the part that is done only once?
    pub(crate) begun: bool,
    /// When it was first tried.
    since: Option<Micros>,
}

impl Progress {
    /// When it was first tried.
    pub(crate) fn since(&mut self, now: Micros) -> Micros {
        *self.since.get_or_insert(now)
    }
}

/// A result: a number or an errno.
pub type Answer = Result<i64, i32>;
/// The outcome of an attempt. `None` = the call blocks. Inner error: a result that no script can expect, such as wrong
/// bytes. Outer error: the call is not supported.
pub type Outcome = Result<Option<Result<Answer, String>>, String>;

/// A result in the notation of scripts.
pub fn show(answer: Answer) -> String {
    answer.map_or_else(|errno| format!("-1 {}", errno_name(errno)), |n| n.to_string())
}
