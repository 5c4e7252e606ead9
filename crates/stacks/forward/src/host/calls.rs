//! The service's requests that every kernel stack in another kernel answers alike.

use super::clients::ClientTable;
use super::workers::worker_count;
use crate::message::{ToHost, ToStack};
use std::io;
use std::time::Duration;
use towpath_runtime::{Executed, SocketStatus, Status, WorkerCount};

/// How long an answer may take.
pub const ANSWER: Duration = Duration::from_secs(10);
/// How long a program may run in the other kernel.
pub const PROGRAM: Duration = Duration::from_secs(9);

/// Asks the stack in the other kernel.
pub trait StackCalls {
    /// Sends a request and waits for the answer; `None` if none comes.
    fn ask(&self, request: ToStack, timeout: Duration) -> Option<ToHost>;
    /// The clients of the stack.
    fn table(&self) -> &ClientTable;

    /// All sockets.
    fn connections(&self) -> Vec<SocketStatus> {
        match self.ask(ToStack::Connections, ANSWER) {
            Some(ToHost::Connections(all)) => self.table().connections(all),
            _ => Vec::new(),
        }
    }
    /// The counters.
    fn status(&self) -> Status {
        match self.ask(ToStack::Status, ANSWER) {
            Some(ToHost::Status(status)) => self.table().status(*status),
            _ => Status::default(),
        }
    }
    /// The number of workers.
    fn workers(&self) -> io::Result<WorkerCount> {
        worker_count(self.ask(ToStack::Workers { running: None }, ANSWER))
    }
    /// Sets the number of workers.
    fn set_workers(&self, running: u32) -> io::Result<()> {
        worker_count(self.ask(ToStack::Workers { running: Some(running) }, ANSWER)).map(drop)
    }
    /// The policy has changed.
    fn policy_changed(&self) {
        self.ask(ToStack::Policy, ANSWER);
    }
    /// Runs a program in the other kernel.
    fn execute(&self, words: &[String]) -> io::Result<Executed> {
        match self.ask(ToStack::Run { words: words.to_vec() }, PROGRAM) {
            Some(ToHost::Ran { code, out, err }) => Ok(Executed { code, out, err }),
            Some(ToHost::Failed { errno }) => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time")),
        }
    }
}

/// The result of a request that is answered by `Done`.
pub fn done(answer: Option<ToHost>) -> io::Result<()> {
    match answer {
        Some(ToHost::Done) => Ok(()),
        Some(ToHost::Failed { errno }) => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(io::Error::from_raw_os_error(libc::ENETDOWN)),
    }
}
