//! The control interface: JSON lines on a stream socket beside the registration socket. One command, one answer.

use crate::auto;
use crate::policy;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use towpath_stack::status;

mod named;

pub use named::Named;
pub use towpath_stack::status::TcpStatus;

/// Longest command line that the service reads, bytes.
pub const MAX_COMMAND_BYTES: u64 = 256 << 10;
/// How long either side waits for the other.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// A command: `{"command":"status"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Command {
    /// Who is there, and am I admitted? Also counts as use: it puts the idle exit off.
    Hello {
        /// The service shall stay as long as the asking process lives, although that has not registered yet.
        #[serde(default)]
        hold: bool,
    },
    /// All sockets that the asker may see.
    Sockets,
    /// Counters and clients.
    Status,
    /// The operator's policy (the service's own user and root only).
    Policy(policy::Request),
    /// Where the other stack of this name is.
    Stack {
        /// Its name.
        name: String,
        /// It is to be started if it does not run. The answer does not wait for that.
        #[serde(default)]
        start: bool,
    },
    /// Runs a program in the stack's kernel (the service's own user and root only).
    Exec {
        /// The program and its arguments.
        program: Vec<String>,
    },
    /// How many cores the stack has, why, and what has changed.
    Cores {
        /// So many from now on, or `auto`: as the configuration says (the service's own user and root only).
        #[serde(default)]
        set: Option<SetCores>,
    },
    /// Moves all clients to another place of the stack: `host`, `uml` (the service's own user and root only).
    Move {
        /// Where to.
        to: String,
    },
    /// Ends the service (its own user and root only).
    Stop,
}

/// Answer to [`Command::Hello`] and [`Command::Stop`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The service's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Programs are to be measured (`auto`).
    #[serde(default)]
    pub auto: bool,
}

/// Answer to [`Command::Stack`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherStack {
    /// Its name.
    pub name: String,
    /// `fast`, `kernel` or `uml`.
    pub kind: String,
    /// Its registration socket.
    pub socket: PathBuf,
    /// Does it run?
    pub running: bool,
}

/// Answer to [`Command::Exec`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executed {
    /// Its exit code; 128 and the signal's number for a program that was killed.
    pub code: i32,
    /// What it has said, the first MiB.
    pub out: String,
    /// What it has complained of, likewise.
    pub err: String,
}

/// Answer to [`Command::Move`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Programs.
    pub clients: usize,
    /// Their connections.
    pub connections: usize,
    /// Connections that could not be moved, and were reset.
    pub lost: usize,
    /// How long nobody has served them, µs.
    pub took_us: u64,
}

/// Answer to [`Command::Sockets`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sockets {
    /// The sockets.
    pub sockets: Vec<Socket>,
}

/// One socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// State in the words of `ss`: `ESTAB`, `LISTEN`, `TIME-WAIT` ...
    pub state: String,
    /// Unread bytes; of a listener: connections waiting to be accepted.
    pub recv_q: u32,
    /// Bytes not yet acknowledged; of a listener: its backlog.
    pub send_q: u32,
    /// Local address and port.
    pub local: SocketAddr,
    /// Peer's address and port.
    pub peer: SocketAddr,
    /// Its program; empty = none any more.
    pub program: String,
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its slot in the program's region.
    pub slot: u32,
    /// The core that owns it.
    pub core: Option<usize>,
    /// Joined ring to ring with the other program, without the stack.
    pub direct: bool,
    /// Details of an established connection.
    pub tcp: Option<TcpStatus>,
}

/// What is set by [`Command::Cores`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SetCores {
    /// As the configuration says.
    Auto,
    /// So many.
    To(usize),
}

/// What a decision about the number of cores is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Cores that had work, on average of the tick.
    pub busy: f64,
    /// More came than was taken.
    pub pressure: bool,
    /// CPUs that programs used.
    pub app_busy: f64,
    /// The part of the time in which somebody waited for a CPU.
    pub app_waiting: f64,
    /// Bytes a second that applications gave and took; none: nothing was to be judged.
    pub throughput: Option<f64>,
    /// How long an application and the rings to and from it took, on average, µs.
    pub latency_us: Option<f64>,
}

/// Answer to [`Command::Cores`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sizing {
    /// The stack: `fast`, `kernel` ...
    pub stack: String,
    /// Its cores.
    pub cores: usize,
    /// The fewest that the configuration allows.
    pub fewest: usize,
    /// The most.
    pub most: usize,
    /// As the configuration says it: `2`, `1-4`, `auto`.
    pub configured: String,
    /// As many as somebody has set.
    pub set: Option<usize>,
    /// The last decision's reason in a word.
    pub reason: String,
    /// And in a sentence.
    pub why: String,
    /// Decisions so far.
    pub tick: u64,
    /// The last change, since the service's start, µs.
    pub since_us: u64,
    /// What was seen in the last tick.
    #[serde(flatten)]
    pub seen: Seen,
    /// The last changes, oldest first; not in the answer to [`Command::Status`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<CoreChange>,
}

/// A change of the number of cores, with what was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreChange {
    /// The decision's number.
    pub tick: u64,
    /// Since the service's start, µs.
    pub at_us: u64,
    /// As many as there were.
    pub from: usize,
    /// As many as there are.
    pub to: usize,
    /// See [`Sizing::reason`].
    pub reason: String,
    /// See [`Sizing::why`].
    pub why: String,
    /// What was seen in the tick before it.
    #[serde(flatten)]
    pub seen: Seen,
}

/// Answer to [`Command::Status`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The service's version.
    pub version: String,
    /// The stack that it serves: `fast`, `kernel`, `uml` or `qemu`.
    #[serde(default)]
    pub stack: String,
    /// Its process.
    pub pid: u32,
    /// Since its start, µs.
    pub uptime_us: u64,
    /// Its registration socket.
    pub socket: PathBuf,
    /// The interface it serves.
    pub interface: Option<String>,
    /// What its cores serve, each part as if it had a core of its own.
    pub cores: Vec<Core>,
    /// The threads of its cores.
    #[serde(default)]
    pub threads: Vec<Thread>,
    /// How many of them run, and why.
    #[serde(default)]
    pub sizing: Sizing,
    /// The slow path's counters.
    pub slow: Tally,
    /// Connects and listens of programs that were left to the kernel, by reason; under `stack` those that were given to another stack.
    #[serde(default)]
    pub kernel: Named,
    /// The other stacks that the configuration names.
    #[serde(default)]
    pub stacks: Vec<OtherStack>,
    /// What the policy has refused.
    pub policy: policy::request::Totals,
    /// Which way suits which sockets, as far as that is measured.
    #[serde(default)]
    pub auto: Vec<auto::show::Row>,
    /// Its clients.
    pub clients: Vec<Client>,
}

/// One thread that moves bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// The flow groups that it serves, by their places in [`Status::cores`]; none: it is parked.
    pub groups: Vec<usize>,
    /// Turns with work.
    pub turns: u64,
    /// Time in them, µs.
    pub busy_us: u64,
    /// Time without work, µs; not the time parked.
    pub idle_us: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
}

/// One flow group: what a core serves if all cores run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// Its number.
    pub core: usize,
    /// Connections it owns.
    pub flows: u64,
    /// Time with work, µs.
    pub busy_us: u64,
    /// Time without work, µs.
    pub idle_us: u64,
    /// Turns with work.
    pub turns: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
    /// Its counters.
    #[serde(flatten)]
    pub tally: Tally,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// Counters of a core or of the slow path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Items handled by stage.
    pub stages: Named,
    /// Dropped frames by reason.
    pub drops: Named,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Connections opened.
    pub opened: u64,
    /// Connections that failed before they were established.
    pub failed: u64,
    /// Resets.
    pub resets: u64,
    /// Words of applications that contradicted the contract.
    pub lies: u64,
}

/// A port of a core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// `memory`, or the interface's name.
    pub name: String,
    /// Frames received.
    pub rx_frames: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Frames dropped on receive.
    pub rx_dropped: u64,
    /// Frames that could not be sent.
    pub tx_dropped: u64,
}

/// A client process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Its number.
    pub id: u32,
    /// Its user.
    pub uid: u32,
    /// Its process.
    pub pid: i32,
    /// Its program.
    pub program: String,
    /// Slots in use.
    pub slots: u32,
    /// Words of it that contradicted the contract.
    pub lies: u64,
    /// Gone, but with sockets that still drain?
    pub leaving: bool,
}

impl From<&status::Tally> for Tally {
    fn from(counters: &status::Tally) -> Self {
        Self {
            stages: Named::from(&counters.stages),
            drops: Named::from(&counters.drops),
            retransmits: counters.retransmits,
            timeouts: counters.timeouts,
            opened: counters.opened,
            failed: counters.failed,
            resets: counters.resets,
            lies: counters.lies,
        }
    }
}

/// An answer, or why there is none: `{"error":"..."}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Answer<T> {
    /// The answer.
    Good(T),
    /// Why there is none.
    Error {
        /// In words.
        error: String,
    },
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens there.
    #[error("no Towpath service at {} ({source}); `towpath serve` starts one", socket.display())]
    Absent {
        /// Registration socket.
        socket: PathBuf,
        /// What connecting gave.
        source: io::Error,
    },
    /// The socket is closed to this user.
    #[error("the service at {} does not admit uid {uid}; have its owner add \"uid:{uid}\" to `admit`", socket.display())]
    NotAdmitted {
        /// Registration socket.
        socket: PathBuf,
        /// Who asked.
        uid: u32,
    },
    /// The conversation broke off.
    #[error("the service at {} does not answer: {source}", socket.display())]
    Broken {
        /// Registration socket.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The service said no.
    #[error("{0}")]
    Refused(String),
}

/// Asks the service whose registration socket is `socket`.
pub fn ask<T: DeserializeOwned>(socket: &Path, command: Command) -> Result<T, AskError> {
    let broken = |source| AskError::Broken { socket: socket.into(), source };
    let text = serde_json::to_string(&command).map_err(|e| broken(e.into()))? + "\n";
    if text.len() as u64 > MAX_COMMAND_BYTES {
        let length = text.len();
        return Err(AskError::Refused(format!(
            "a command of {length} bytes is too long; {MAX_COMMAND_BYTES} is the most"
        )));
    }
    let mut stream =
        UnixStream::connect(crate::paths::control_socket(socket)).map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => {
                AskError::NotAdmitted { socket: socket.into(), uid: rustix::process::geteuid().as_raw() }
            }
            _ => AskError::Absent { socket: socket.into(), source },
        })?;
    let line = ask_line(&mut stream, &text).map_err(broken)?;
    let mut value: serde_json::Value = serde_json::from_str(&line).map_err(|e| broken(e.into()))?;
    if let Some(error) = value.get_mut("error").and_then(|error| error.as_str()) {
        return Err(AskError::Refused(error.to_owned()));
    }
    // From the text, not from `value`, which has lost the order of the counters.
    serde_json::from_str(&line).map_err(|e| broken(e.into()))
}

fn ask_line(stream: &mut UnixStream, text: &str) -> io::Result<String> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(text.as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).take(64 << 20).read_line(&mut line)?;
    if line.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(line) }
}

/// Reads one command.
pub fn parse_command(line: &str) -> Result<Command, String> {
    serde_json::from_str(line).map_err(|error| {
        format!(
            "not a command: {error}; write {{\"command\":\"status\"}}, or sockets, hello, policy, stack, cores, exec, stop"
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
    fn counters_keep_their_order() {
        let (stages, drops) = (vec![("pre", 7), ("egress", 0)], vec![("truncated", 0), ("paws", 1), ("land", 0)]);
        let tally = Tally::from(&status::Tally { stages, drops, ..status::Tally::default() });
        let text = serde_json::to_string(&tally).unwrap();
        assert!(text.starts_with(r#"{"stages":{"pre":7,"egress":0},"drops":{"truncated":0,"#));
        assert!(text.contains(r#""paws":1,"#));
        assert_eq!(serde_json::from_str::<Tally>(&text).unwrap(), tally);
    }
}
