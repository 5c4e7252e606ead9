//! The control interface: JSON lines on a stream socket beside the registration socket. One command, one answer.

use crate::policy::PolicyRequest;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use towpath_ring::control::features;
use towpath_ring::layout::VERSION;

mod ask;
mod events;
mod module;
mod reloaded;
mod reset;
mod sizing;
mod status;

pub use ask::{AskError, Asked, ask, ask_to_capture};
pub use events::{EventLine, Events, ThreadEvents};
pub use module::{
    ElementLine, Elements, MapLine, MapOf, ModuleLine, ModuleList, ModuleRequest, NewModule, PinLine, PinList,
    TraceLine, TraceLines, USUAL_BUDGET,
};
pub use reloaded::Reloaded;
pub use reset::{Reset, ResetDone};
pub use sizing::{Seen, Sizing, WorkerChange};
pub use status::{ConfigurationStatus, InterfaceStatus, NamedPort, NumberedFlowGroup, Status};
pub use towpath_runtime::ClientId;
pub use towpath_runtime::EndedSocket;
pub use towpath_runtime::named_counts::NamedCounts;
pub use towpath_runtime::status::{
    ClientStatus, EndedStatus, FlowGroupStatus, Halves, PortStatus, SocketStatus, SpreadStatus, Tally, TcpStatus,
    WorkerStatus,
};

/// Longest command line that the service reads, bytes.
pub const MAX_COMMAND_BYTES: u64 = 256 << 10;
/// Most bytes of memory of a capture.
pub const MOST_CAPTURE_BYTES: u64 = 1 << 30;
/// How long either side waits for the other.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// The same if the service has to verify and compile a module before it answers.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(60);

/// A command: `{"command":"status"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Command {
    /// Asks whether a service answers and admits the caller. It postpones the idle exit.
    Hello {
        /// Postpone the idle exit until the asking process ends, even if it has not registered yet.
        #[serde(default)]
        hold: bool,
    },
    /// Lists all sockets that the caller may see.
    Sockets,
    /// Lists how the last connections have ended that the caller may see.
    Ended,
    /// Reports counters and clients.
    Status,
    /// Shows or changes the operator's policy (the service's own user and root only).
    Policy(PolicyRequest),
    /// Asks for another stack by its name.
    Stack {
        /// Its name.
        name: String,
        /// Start it if it does not run. The answer does not wait for that.
        #[serde(default)]
        start: bool,
    },
    /// Runs a program in the stack's kernel (the service's own user and root only).
    Exec {
        /// The program and its arguments.
        program: Vec<String>,
    },
    /// Reports how many workers the stack runs, with reasons and changes.
    Cores {
        /// Fix the number, or leave it to the configuration (`auto`); the service's own user and root only.
        #[serde(default)]
        set: Option<SetCores>,
    },
    /// Moves all clients to another kernel of the stack: `host`, `uml`, `qemu` (the service's own user and root only).
    Move {
        /// The kernel.
        to: String,
    },
    /// Reports the last rare events of each thread (the service's own user and root only).
    Events,
    /// Reports the configuration in force (the service's own user and root only).
    Configuration,
    /// Begins a capture (the service's own user and root only). It lasts as long as the conversation. The answer brings
    /// the memory in which the frames are left.
    Capture(CaptureRequest),
    /// Shows and changes the modules that frames go through (the service's own user and root only).
    Module(ModuleRequest),
    /// Shows which lines the process that serves writes to its log, or changes that (the service's own user and root only).
    Log {
        /// The new filter, as in `TOWPATH_LOG`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        filter: Option<String>,
        /// That of the start.
        #[serde(default)]
        reset: bool,
    },
    /// Reads the configuration file again (the service's own user and root only).
    Reload,
    /// Ends connections (the service's own user and root only).
    Reset(Reset),
    /// Ends the service (its own user and root only).
    Stop {
        /// Not now: from now on new sockets are the kernel's, and the service ends after so many seconds unless it is
        /// told before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        drain_s: Option<u32>,
    },
}

impl Command {
    /// How long the service may take to answer.
    fn answers_within(&self) -> Duration {
        match self {
            Self::Module(_) | Self::Capture(CaptureRequest { module: Some(_), .. }) => COMPILE_TIMEOUT,
            _ => TIMEOUT,
        }
    }
}

/// What is to be captured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureRequest {
    /// A classic BPF program for Ethernet frames: code, jt, jf and k of each instruction. Empty = all frames.
    #[serde(default)]
    pub filter: Vec<(u16, u8, u8, u32)>,
    /// A module that lets pass what is to be kept, instead of a classic program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<FilterModule>,
    /// Most bytes of a frame.
    pub snap: u32,
    /// Bytes of memory for frames that are not yet read, up to [`MOST_CAPTURE_BYTES`].
    pub bytes: u64,
}

/// A module as the filter of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterModule {
    /// The object file, two hexadecimal digits for each byte.
    pub object: String,
    /// The program of several.
    #[serde(default)]
    pub program: Option<String>,
}

/// Answer to [`Command::Capture`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capturing {
    /// The stack.
    pub stack: String,
    /// Names of its ports, by number.
    pub ports: Vec<String>,
}

/// Answer to [`Command::Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The service's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Every program measures its connections (`auto`).
    #[serde(default)]
    pub auto: bool,
    /// Its version of the contract; 0: it does not say.
    #[serde(default)]
    pub contract: u32,
    /// What a library must know of the contract ([`towpath_ring::control::features`]).
    #[serde(default)]
    pub features: u32,
}

impl Hello {
    /// Why the library of this version cannot talk to the service, and what to do; `None` = it can.
    pub fn mismatch(&self, socket: &Path) -> Option<String> {
        let why = features::mismatch((VERSION, features::ALL), (self.contract, self.features));
        why.filter(|_| self.contract != 0).map(|why| {
            let (theirs, own, socket) = (&self.version, env!("CARGO_PKG_VERSION"), socket.display());
            format!(
                "{why} at {socket} (Towpath {own} and {theirs}); install one version of both, and start the service again"
            )
        })
    }
}

/// Answer to [`Command::Configuration`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationInForce {
    /// The file that it was read from, if it was.
    pub file: Option<PathBuf>,
    /// All keys with their values, in words. No value is a secret: the key `token` names a file.
    pub keys: Vec<(String, String)>,
}

/// Answer to [`Command::Stop`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopping {
    /// The service's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Accelerated connections that are not over. One between two clients counts once.
    pub connections: usize,
}

/// Answer to [`Command::Log`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLevel {
    /// The filter in force.
    pub filter: String,
    /// The filter of the start.
    pub start: String,
}

/// Answer to [`Command::Stack`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherStackStatus {
    /// Its name.
    pub name: String,
    /// `fast`, `kernel`, `uml`, `qemu` or `remote`.
    pub kind: String,
    /// Its registration socket.
    pub socket: PathBuf,
    /// Does it run?
    pub running: bool,
    /// Why the last attempt to start it has failed, if it has.
    #[serde(default)]
    pub failed: Option<String>,
}

/// Answer to [`Command::Exec`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executed {
    /// Its exit code; 128 and the signal's number for a program that was killed.
    pub code: i32,
    /// Its standard output, the first MiB.
    pub out: String,
    /// Its standard error, likewise.
    pub err: String,
}

/// Answer to [`Command::Move`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Clients.
    pub clients: usize,
    /// Their connections.
    pub connections: usize,
    /// Connections that could not be moved, and were reset.
    pub lost: usize,
    /// Time in which no stack served them, µs.
    pub took_us: u64,
}

/// Answer to [`Command::Sockets`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sockets {
    /// The sockets.
    pub sockets: Vec<SocketStatus>,
}

/// Answer to [`Command::Ended`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The connections, the newest first.
    pub ended: Vec<EndedSocket>,
}

/// The setting of [`Command::Cores`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SetCores {
    /// The configuration decides.
    Auto,
    /// This number.
    To(usize),
}

/// An answer, or the reason of a refusal: `{"error":"..."}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Answer<T> {
    /// The answer.
    Good(T),
    /// Why there is none.
    Error {
        /// The reason, in words.
        error: String,
    },
}

/// Parses one command.
pub fn parse_command(line: &str) -> Result<Command, String> {
    serde_json::from_str(line).map_err(|error| {
        format!(
            "not a command: {error}; write {{\"command\":\"status\"}}, or sockets, ended, hello, policy, stack, cores, exec, \
             move, capture, module, events, configuration, log, reload, reset, stop"
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn commands_are_tagged_objects() {
        assert_eq!(serde_json::to_string(&Command::Sockets).unwrap(), r#"{"command":"sockets"}"#);
        assert_eq!(parse_command(r#"{"command":"status"}"#).unwrap(), Command::Status);
        let error = parse_command(r#"{"command":"reboot"}"#).unwrap_err();
        assert!(error.starts_with("not a command: unknown variant `reboot`"), "{error}");
        assert!(parse_command("status").is_err());
    }

    #[test]
    fn what_is_no_command_is_told_all_of_them() {
        let error = parse_command(r#"{"command":"reboot"}"#).unwrap_err();
        let (known, told) = error.split_once("expected one of ").unwrap().1.split_once("; write ").unwrap();
        let told: Vec<&str> = told.split(|c: char| !c.is_alphanumeric()).collect();
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        assert!(!known.is_empty() && known.iter().all(|command| told.contains(command)), "{known:?} {told:?}");
    }
}
