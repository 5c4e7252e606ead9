//! How a service is started by others: a daemon that goes into the background by itself, and what it says by its exit code.

use std::io;
use std::process::{Command, Output, Stdio};

/// Exit codes of the service.
pub mod exit {
    /// It could not start, or failed.
    pub const FAILED: u8 = 1;
    /// The command line or the configuration is wrong.
    pub const USAGE: u8 = 2;
    /// Another service has the socket already.
    pub const RUNNING: u8 = 3;
}

/// Runs it, apart from who starts it: neither its library, its folder nor its output are the daemon's. What it has said and returned when
/// it serves, or has failed.
pub fn start(command: &mut Command) -> io::Result<Output> {
    // The service outlives this folder's mount, and its output is not the program's.
    let command = command.env_remove("LD_PRELOAD").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output()
}
