//! The worker's way to the broker.

use crate::channel;
use crate::message::{ANSWER, Answer, Change, Held, Numbered, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest time that an answer may take. The broker waits for nothing but the kernel; a proof may wait for a client.
const LONGEST: Duration = Duration::from_secs(5);

/// The longest time for an interface with many queues.
const LONGEST_OPENING: Duration = Duration::from_secs(60);

/// The longest time that the kernel and the compiler may take for a module, and most bytes that are said of it.
const LONGEST_JUDGEMENT: Duration = Duration::from_secs(60);
const MOST_SAID: u64 = 1 << 20;

/// Why an interface is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of error.
    pub errno: i32,
    /// For the operator.
    pub why: String,
}

/// See the module. Threads ask one at a time.
#[derive(Debug)]
pub struct Broker {
    socket: OwnedFd,
    /// The number of the last request.
    last: Mutex<u32>,
}

impl Broker {
    /// Over the worker's end of the socketpair.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, last: Mutex::new(0) }
    }

    fn ask(&self, request: Request, shown: Option<BorrowedFd<'_>>) -> io::Result<(Answer, Option<OwnedFd>)> {
        self.ask_within(LONGEST, request, shown)
    }

    fn ask_within(
        &self,
        longest: Duration,
        request: Request,
        shown: Option<BorrowedFd<'_>>,
    ) -> io::Result<(Answer, Option<OwnedFd>)> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = last.wrapping_add(1);
        channel::send(&self.socket, &Numbered { number: *last, request }.encode(), shown)?;
        answer(&self.socket, *last, longest)
    }

    fn result(&self, request: Request) -> io::Result<Answer> {
        let (answer, _) = self.ask(request, None)?;
        if answer.result == 0 { Ok(answer) } else { Err(io::Error::from_raw_os_error(answer.result)) }
    }

    /// [`crate::Privileges::prove`]. Only the caller waits for the client whose socket it is. `-EAGAIN`: that takes too
    /// long, or the user has too many proofs under way.
    pub fn prove(&self, shown: BorrowedFd<'_>) -> Result<(OwnedFd, Held), i32> {
        let errno = |error: io::Error| match error.raw_os_error() {
            // The user of this process has too many descriptors under way.
            None | Some(libc::ETOOMANYREFS) => -libc::EAGAIN,
            Some(errno) => -errno,
        };
        let begun = match self.ask(Request::Prove, Some(shown)).map_err(errno)? {
            (begun, Some(end)) => answer(&end, begun.number, LONGEST).map_err(errno)?,
            refused => refused,
        };
        match begun {
            (Answer { result: 0, held: Some(held), .. }, Some(own)) => Ok((own, held)),
            (Answer { result: 0, .. }, _) => Err(-libc::EPROTO),
            (Answer { result: libc::EAGAIN, .. }, _) => Err(-libc::EAGAIN),
            (Answer { result, .. }, _) => Err(result),
        }
    }

    /// [`crate::Privileges::neighbour`].
    pub fn neighbour(&self, device: u32, address: IpAddr, change: Change) -> io::Result<()> {
        self.result(Request::Neighbour { device, address, change }).map(drop)
    }

    /// [`crate::Privileges::program`].
    pub fn program(&self, process: i32) -> io::Result<Vec<u8>> {
        self.result(Request::Program { process: known(process)? }).map(|answer| answer.text)
    }

    /// [`crate::Privileges::shares_network`].
    pub fn shares_network(&self, process: i32) -> io::Result<bool> {
        self.result(Request::SharesNetwork { process: known(process)? }).map(|answer| answer.yes)
    }

    /// [`crate::Privileges::namespaces`].
    pub fn namespaces(&self) -> io::Result<Vec<u8>> {
        self.result(Request::Namespaces).map(|answer| answer.text)
    }

    /// [`crate::Privileges::reserve_ports`].
    pub fn reserve_ports(&self) -> io::Result<()> {
        self.result(Request::ReservePorts).map(drop)
    }

    /// [`crate::Privileges::reserved_cpus`].
    pub fn reserved_cpus(&self) -> io::Result<Vec<u8>> {
        self.result(Request::ReservedCpus).map(|answer| answer.text)
    }

    /// [`crate::Privileges::start_stack`]. Waits until it serves or has failed, and holds up no other request meanwhile.
    pub fn start_stack(&self, number: u32) -> Result<(), String> {
        let (answer, pipe) = self.ask(Request::StartStack { number }, None).map_err(|error| error.to_string())?;
        let Some(pipe) = pipe else { return Err(io::Error::from_raw_os_error(answer.result).to_string()) };
        let mut said = String::new();
        std::fs::File::from(pipe).read_to_string(&mut said).map_err(|error| error.to_string())?;
        match said.split_at_checked(1) {
            Some(("+", _)) => Ok(()),
            Some((_, why)) => Err(why.into()),
            None => Err("nobody knows whether it has started".into()),
        }
    }

    /// [`crate::Privileges::configuration`].
    pub fn configuration(&self) -> io::Result<OwnedFd> {
        self.descriptor(Request::Configuration)
    }

    /// The descriptor that the answer has with it.
    fn descriptor(&self, request: Request) -> io::Result<OwnedFd> {
        match self.ask(request, None)? {
            (Answer { result: 0, .. }, Some(descriptor)) => Ok(descriptor),
            (Answer { result: 0, .. }, None) => Err(io::ErrorKind::InvalidData.into()),
            (answer, _) => Err(io::Error::from_raw_os_error(answer.result)),
        }
    }

    /// [`crate::Privileges::code_area`].
    pub fn code_area(&self) -> io::Result<OwnedFd> {
        self.descriptor(Request::CodeArea)
    }

    /// [`crate::Privileges::successor_memory`].
    pub fn successor_memory(&self) -> io::Result<OwnedFd> {
        self.descriptor(Request::SuccessorMemory)
    }

    /// [`crate::Privileges::module`]. It holds up no other request meanwhile.
    pub fn module(&self, place: u32, object: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = std::os::unix::net::UnixStream::from(self.descriptor(Request::Module { place })?);
        stream.set_read_timeout(Some(LONGEST_JUDGEMENT))?;
        stream.set_write_timeout(Some(LONGEST))?;
        stream.write_all(object)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut said = Vec::new();
        (&stream).take(MOST_SAID).read_to_end(&mut said)?;
        Ok(said)
    }

    /// [`crate::Privileges::configuration_taken`].
    pub fn configuration_taken(&self) -> io::Result<()> {
        self.result(Request::ConfigurationTaken).map(drop)
    }

    /// [`crate::Privileges::open_sockets`].
    pub fn open_sockets(&self, open: bool) -> io::Result<()> {
        self.result(Request::OpenSockets { open }).map(drop)
    }

    /// [`crate::Privileges::open_port`], with all its descriptors.
    pub fn open_port(&self, number: u32, queues: u32) -> Result<(String, Vec<OwnedFd>), Refusal> {
        let lost = |error: io::Error| Refusal {
            errno: error.raw_os_error().unwrap_or(libc::EIO),
            why: format!("the broker does not answer: {error}"),
        };
        let (opened, _) = self.ask_within(LONGEST_OPENING, Request::OpenPort { number, queues }, None).map_err(lost)?;
        let text = String::from_utf8_lossy(&opened.text).into_owned();
        if opened.result != 0 {
            return Err(Refusal { errno: opened.result, why: text });
        }
        let mut parts = Vec::new();
        loop {
            match self.ask(Request::PortPart { number, part: parts.len() as u32 }, None).map_err(lost)? {
                (Answer { result: 0, .. }, Some(part)) => parts.push(part),
                (Answer { result: libc::ENOENT, .. }, _) => return Ok((text, parts)),
                (Answer { result, .. }, _) => return Err(lost(io::Error::from_raw_os_error(result))),
            }
        }
    }

    /// [`crate::Privileges::renew_port`].
    pub fn renew_port(&self, number: u32) -> io::Result<()> {
        self.result(Request::RenewPort { number }).map(drop)
    }

    /// [`crate::Privileges::first_syns`].
    pub fn first_syns(&self, number: u32, v6: bool) -> io::Result<OwnedFd> {
        self.descriptor(Request::FirstSyns { number, v6 })
    }

    /// [`crate::Privileges::join`].
    pub fn join(&self, namespace: u32, process: i32, remote: IpAddr) -> io::Result<(OwnedFd, Held, u32)> {
        let request = Request::Join { namespace, process: known(process)?, remote };
        let (answer, own) = match self.ask(request, None)? {
            (begun, Some(end)) => answer(&end, begun.number, LONGEST)?,
            refused => refused,
        };
        let device = std::str::from_utf8(&answer.text).ok().and_then(|text| text.parse().ok());
        match (answer.result, own, answer.held, device) {
            (0, Some(own), Some(held), Some(device)) => Ok((own, held, device)),
            (0, ..) => Err(io::ErrorKind::InvalidData.into()),
            (errno, ..) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Tells the broker that clients are served.
    pub fn serving(&self) -> io::Result<()> {
        self.result(Request::Serving).map(drop)
    }
}

/// The kernel gives the number 0 for a client in a process namespace that is not seen from here. The broker would take
/// it for a broken protocol.
fn known(process: i32) -> io::Result<i32> {
    if process > 0 { Ok(process) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

/// Waits for the answer to request `number`.
fn answer(socket: &OwnedFd, number: u32, longest: Duration) -> io::Result<(Answer, Option<OwnedFd>)> {
    let deadline = Instant::now() + longest;
    let (mut bytes, mut first) = (vec![0; ANSWER], None);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&time)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let Some((length, descriptor)) = channel::receive(socket, &mut bytes)? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let answer = Answer::decode(&bytes[..length]).ok_or(io::ErrorKind::InvalidData)?;
        // Skip answers to abandoned requests.
        if answer.number != number {
            continue;
        }
        match (first.take(), descriptor) {
            // Another answer says that the broker has closed its copy.
            (None, Some(descriptor)) => first = Some((answer, Some(descriptor))),
            (None, None) => return Ok((answer, None)),
            (Some(first), _) => return Ok(first),
        }
    }
}

impl AsFd for Broker {
    /// Threads with a descriptor table of their own keep this descriptor.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests;
