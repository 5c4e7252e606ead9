//! The asking side of the control interface.

use super::{CaptureRequest, Capturing, Command, MAX_COMMAND_BYTES};
use rustix::fd::OwnedFd;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No service listens there.
    #[error("no Towpath service at {} ({}); `towpath serve` starts one", socket.display(), absence(socket, source))]
    Absent {
        /// Registration socket.
        socket: PathBuf,
        /// The error of connect(2).
        source: io::Error,
    },
    /// The socket is closed to this user.
    #[error("the service at {} does not admit uid {uid}; have its owner add \"uid:{uid}\" to `admit`", socket.display())]
    NotAdmitted {
        /// Registration socket.
        socket: PathBuf,
        /// The user that asked.
        uid: u32,
    },
    /// The conversation was cut off.
    #[error("the service at {} does not answer: {source}", socket.display())]
    Broken {
        /// Registration socket.
        socket: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The service refused the command.
    #[error("{0}")]
    Refused(String),
}

impl AskError {
    /// Did the service close the conversation without an answer? A busy one does, and one that is ending.
    pub fn is_busy(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
        let kinds = [BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock];
        matches!(self, Self::Broken { source, .. } if kinds.contains(&source.kind()))
    }
}

/// Why nobody answers there, in words.
fn absence(socket: &Path, error: &io::Error) -> String {
    let directory = crate::paths::parent(socket);
    match error.kind() {
        io::ErrorKind::NotFound if !directory.exists() => {
            format!("the directory {} does not exist", directory.display())
        }
        io::ErrorKind::NotFound => "there is no such socket".into(),
        io::ErrorKind::ConnectionRefused => "nobody listens there any more".into(),
        _ => error.to_string(),
    }
}

/// Sends a command to the service whose registration socket is `socket`, and returns its answer.
pub fn ask<T: DeserializeOwned>(socket: &Path, command: Command) -> Result<T, AskError> {
    let (mut stream, text) = begin(socket, &command)?;
    let broken = |source| AskError::Broken { socket: socket.into(), source };
    let line = ask_line(&mut stream, &text).map_err(|e| broken(late(e, &command)))?;
    answer(socket, &line)
}

/// A capture that runs as long as the conversation is open.
pub struct Asked {
    /// The conversation. The service closes it when the capture is over.
    pub conversation: UnixStream,
    /// The answer.
    pub answer: Capturing,
    /// The memory in which the service leaves frames.
    pub memory: OwnedFd,
}

/// Begins a capture.
pub fn ask_to_capture(socket: &Path, request: CaptureRequest) -> Result<Asked, AskError> {
    let command = Command::Capture(request);
    let (mut stream, text) = begin(socket, &command)?;
    let broken = |source| AskError::Broken { socket: socket.into(), source };
    let (line, memory) = ask_for_memory(&mut stream, &text).map_err(|e| broken(late(e, &command)))?;
    let answer = answer(socket, &line)?;
    let memory = memory.ok_or_else(|| broken(io::ErrorKind::UnexpectedEof.into()))?;
    Ok(Asked { conversation: stream, answer, memory })
}

/// Connects. Returns the conversation, and the command as its line.
fn begin(socket: &Path, command: &Command) -> Result<(UnixStream, String), AskError> {
    let broken = |source| AskError::Broken { socket: socket.into(), source };
    let text = serde_json::to_string(&command).map_err(|e| broken(e.into()))? + "\n";
    if text.len() as u64 > MAX_COMMAND_BYTES {
        let length = text.len();
        return Err(AskError::Refused(format!(
            "a command of {length} bytes is too long; {MAX_COMMAND_BYTES} is the most"
        )));
    }
    let stream = UnixStream::connect(crate::paths::control_socket(socket)).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => {
            AskError::NotAdmitted { socket: socket.into(), uid: rustix::process::geteuid().as_raw() }
        }
        _ => AskError::Absent { socket: socket.into(), source },
    })?;
    let within = Some(command.answers_within());
    stream.set_read_timeout(within).and_then(|()| stream.set_write_timeout(within)).map_err(broken)?;
    Ok((stream, text))
}

/// The error of a wait that was too long, in words.
fn late(error: io::Error, command: &Command) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            let text = format!("there was no answer within {} s", command.answers_within().as_secs());
            io::Error::new(io::ErrorKind::TimedOut, text)
        }
        _ => error,
    }
}

fn answer<T: DeserializeOwned>(socket: &Path, line: &str) -> Result<T, AskError> {
    let broken = |source| AskError::Broken { socket: socket.into(), source };
    let mut value: serde_json::Value = serde_json::from_str(line).map_err(|e| broken(e.into()))?;
    if let Some(error) = value.get_mut("error").and_then(|error| error.as_str()) {
        return Err(AskError::Refused(error.to_owned()));
    }
    // From the text, not from `value`, which has lost the order of the counters.
    serde_json::from_str(line).map_err(|e| broken(e.into()))
}

fn ask_line(stream: &mut UnixStream, text: &str) -> io::Result<String> {
    // A service that refuses the user answers before the command, and closes the conversation.
    let sent = stream.write_all(text.as_bytes());
    let mut line = String::new();
    BufReader::new(stream).take(64 << 20).read_line(&mut line)?;
    if line.is_empty() { sent.and(Err(io::ErrorKind::UnexpectedEof.into())) } else { Ok(line) }
}

/// The answer, and the descriptor that has come with it.
fn ask_for_memory(stream: &mut UnixStream, text: &str) -> io::Result<(String, Option<OwnedFd>)> {
    let sent = stream.write_all(text.as_bytes());
    let (mut line, mut memory) = (Vec::new(), None);
    while !line.ends_with(b"\n") {
        let (mut bytes, mut space) = ([0; 4096], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(&*stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
                memory = descriptors.next();
            }
        }
        if received.bytes == 0 {
            sent?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.extend(&bytes[..received.bytes]);
    }
    Ok((String::from_utf8_lossy(&line).into_owned(), memory))
}
