//! Serves one request of the worker.

use crate::Privileges;
use crate::channel;
use crate::message::{Answer, MOST_TEXT, Numbered, REQUEST, Request};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::Pid;
use std::io::{self, Write};

/// What the worker's request was.
pub enum Served {
    /// It is answered.
    Answered,
    /// It is answered: clients are served now.
    Serving,
    /// It is answered. This process starts another stack.
    Starting(Pid),
    /// The worker has closed its end.
    Ended,
}

/// Receives a request and answers it. An error: the worker broke the protocol, or cannot be answered.
pub fn serve(socket: &OwnedFd, privileges: &mut dyn Privileges) -> io::Result<Served> {
    let mut bytes = [0; REQUEST];
    let Some((length, descriptor)) = channel::receive(socket, &mut bytes)? else { return Ok(Served::Ended) };
    let Some(Numbered { number, request }) = Numbered::decode(&bytes[..length]) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if request.descriptors() != usize::from(descriptor.is_some()) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let plain = |result: Result<(), i32>| Answer::plain(number, result.err().unwrap_or(0));
    let (mut served, mut sent) = (Served::Answered, None);
    let answer = match request {
        Request::Prove => match descriptor.map(|shown| privileges.prove(shown)) {
            Some(Ok((own, held))) => {
                sent = Some(own);
                Answer { held: Some(held), ..Answer::plain(number, 0) }
            }
            Some(Err(result)) => Answer::plain(number, result),
            None => return Err(io::ErrorKind::InvalidData.into()),
        },
        Request::Neighbour { device, address, change } => plain(privileges.neighbour(device, address, change)),
        Request::Program { process } => match privileges.program(process) {
            Ok(text) => Answer { text, ..Answer::plain(number, 0) },
            Err(error) => Answer::plain(number, error),
        },
        Request::SharesNetwork { process } => match privileges.shares_network(process) {
            Ok(yes) => Answer { yes, ..Answer::plain(number, 0) },
            Err(error) => Answer::plain(number, error),
        },
        Request::ReservePorts => plain(privileges.reserve_ports()),
        Request::StartStack { number: stack } => match start(privileges, stack) {
            Ok((process, pipe)) => {
                (served, sent) = (Served::Starting(process), Some(pipe));
                Answer::plain(number, 0)
            }
            Err(error) => Answer::plain(number, error.raw_os_error().unwrap_or(libc::EAGAIN)),
        },
        Request::Configuration => match privileges.configuration() {
            Ok(text) => {
                sent = Some(text);
                Answer::plain(number, 0)
            }
            Err(error) => Answer::plain(number, error),
        },
        Request::ConfigurationTaken => {
            privileges.configuration_taken();
            Answer::plain(number, 0)
        }
        Request::OpenSockets { open } => plain(privileges.open_sockets(open)),
        Request::Serving => {
            served = Served::Serving;
            Answer::plain(number, 0)
        }
    };
    channel::send(socket, &answer.encode(), sent.as_ref().map(AsFd::as_fd))?;
    if let Some(sent) = sent {
        // The worker has the only copy when it goes on: a port is free as soon as it closes that.
        drop(sent);
        channel::send(socket, &Answer::plain(number, 0).encode(), None)?;
    }
    Ok(served)
}

/// Starts a stack in a process of its own, as that takes time. What it says comes through the pipe: `+`, or `-` and why
/// not.
fn start(privileges: &dyn Privileges, number: u32) -> io::Result<(Pid, OwnedFd)> {
    let (reading, writing) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // SAFETY: this process has one thread, so the child may do what it could.
    match unsafe { libc::fork() } {
        0 => {
            drop(reading);
            let said = match privileges.start_stack(number) {
                Ok(()) => "+".to_owned(),
                Err(why) => format!("-{}", why.chars().take(MOST_TEXT / 4).collect::<String>()),
            };
            let _ = std::fs::File::from(writing).write_all(said.as_bytes());
            std::process::exit(0);
        }
        process => Pid::from_raw(process)
            .filter(|_| process > 0)
            .map_or_else(|| Err(io::Error::last_os_error()), |process| Ok((process, reading))),
    }
}
