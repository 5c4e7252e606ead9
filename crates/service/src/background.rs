//! Starting a service as a background daemon, and its exit codes.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Output, Stdio};

/// Exit codes of the service.
pub mod exit {
    /// It could not start, or failed.
    pub const FAILED: u8 = 1;
    /// The command line or the configuration is wrong.
    pub const USAGE: u8 = 2;
    /// Another service has the socket or the interface already.
    pub const RUNNING: u8 = 3;
}

/// Variables that are the caller's alone.
pub const OF_THE_CALLER: [&str; 7] =
    ["LD_PRELOAD", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID"];

/// Runs the daemon's command without the caller's preloaded library, folder and output. Returns its messages and exit
/// code when it serves or has failed.
pub fn start(command: &mut Command) -> io::Result<Output> {
    // What systemd tells the caller's own service is not meant for the daemon.
    OF_THE_CALLER.iter().for_each(|variable| _ = command.env_remove(variable));
    // The daemon must not keep the caller's folder busy, nor write into the caller's output.
    let command = command.current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output()
}

/// Why a daemon that [`start`] has started does not serve: its last line, or how it ended.
pub fn reason(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().last().map_or_else(|| ending(output.status), str::to_owned)
}

/// The end of a daemon that has said nothing.
pub fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (_, Some(signal)) => format!("it was ended by signal {signal}"),
        (code, None) => format!("it ended with code {} and said nothing", code.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_says_nothing_has_ended_somehow() {
        let output = |status, text: &str| Output {
            status: ExitStatus::from_raw(status),
            stdout: Vec::new(),
            stderr: text.as_bytes().to_vec(),
        };
        assert_eq!(reason(&output(1 << 8, "WARN something\ntowpathd: the cause\n")), "towpathd: the cause");
        assert_eq!(reason(&output(1 << 8, "")), "it ended with code 1 and said nothing");
        assert_eq!(reason(&output(9, "")), "it was ended by signal 9");
    }
}
