//! Starting a service as a background daemon, and its exit codes.

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

/// Runs the daemon's command without the caller's preloaded library, folder and output. Returns its messages and exit
/// code when it serves or has failed.
pub fn start(command: &mut Command) -> io::Result<Output> {
    // The daemon must not keep the caller's folder busy, nor write into the caller's output.
    let command = command.env_remove("LD_PRELOAD").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output()
}
