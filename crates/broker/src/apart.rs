//! Processes of the broker for what may take for ever.
//!
//! A client can keep the lock of its socket as long as it likes, and to close what it has shown may take as long. The
//! broker has one thread, which serves all users and ends the service. So it never has a descriptor of a client: such a
//! process receives it. It keeps no copy of what the broker holds, as it may stay when the broker has ended.

use crate::Privileges;
use crate::channel;
use crate::message::{Answer, MOST_TEXT, REQUEST};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, recv, socketpair};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Most processes that prove ports at a time.
const MOST_PROOFS: usize = 64;
/// Most of them for sockets of one user.
pub const MOST_OF_A_USER: usize = 8;
/// Most processes that look for joins at a time. One takes a millisecond, as it asks the kernel only.
const MOST_JOINS: usize = 8;
/// Most stacks that are started at a time.
const MOST_STARTS: usize = 8;

/// Most modules that are judged at a time, bytes of one's object, and how long its bytes may take to come.
const MOST_MODULES: usize = 2;
const MOST_OBJECT: u64 = 16 << 20;
const OBJECT_TIME: Duration = Duration::from_secs(10);

/// How long a process may take to say whose socket it has. It asks the kernel only.
const LONGEST: Duration = Duration::from_secs(1);

/// What such a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// It receives a socket, whose owner is not known yet, or closes one.
    Socket,
    /// It proves the port of a socket of this user.
    Proof(u32),
    /// It starts the stack of this number.
    Start(u32),
    /// It looks whether programs of two namespaces may be joined.
    Join,
    /// It has a module judged.
    Module,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Apart {
    running: Vec<(Pid, Task)>,
    asking: Vec<Asking>,
}

/// A process that has not said yet whose socket it has.
#[derive(Debug)]
struct Asking {
    process: Pid,
    /// It says so here, and waits for [`GO`].
    socket: OwnedFd,
    since: Instant,
}

impl Apart {
    /// Is there none? Those that have ended are forgotten.
    pub fn is_empty(&mut self) -> bool {
        self.count(|_| true) == 0
    }

    fn forget_ended(&mut self) {
        self.running.retain(|(process, _)| matches!(waitpid(Some(*process), WaitOptions::NOHANG), Ok(None)));
    }

    fn count(&mut self, which: impl Fn(Task) -> bool) -> usize {
        self.forget_ended();
        self.running.iter().filter(|(_, task)| which(*task)).count()
    }

    /// Proves the port of the socket in the next message of `socket`. The answer comes through the descriptor that is
    /// returned; its end without one is a refusal. An error is the answer.
    pub fn prove(
        &mut self,
        socket: &OwnedFd,
        number: u32,
        privileges: &mut dyn Privileges,
    ) -> io::Result<Result<OwnedFd, i32>> {
        let begun = if self.count(|task| !matches!(task, Task::Start(_) | Task::Join | Task::Module)) < MOST_PROOFS {
            let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok();
            pair().zip(pair()).zip(fork().ok())
        } else {
            None
        };
        let Some((((answers, answering), (ours, theirs)), process)) = begun else {
            // The worker has another copy, so this is no close.
            channel::skip(socket)?;
            return Ok(Err(-libc::EAGAIN));
        };
        let Some(process) = process else {
            drop((answers, ours));
            // The end of each is seen when the broker closes it.
            self.asking.clear();
            privileges.forget();
            leave(|| prove_alone(socket, (&theirs, &answering), number, privileges))
        };
        self.running.push((process, Task::Socket));
        drop(theirs);
        // The next message is another one. To take this one waits for nobody.
        let _ = channel::receive(&ours, &mut [0; TAKEN.len()]);
        self.asking.push(Asking { process, socket: ours, since: Instant::now() });
        Ok(Ok(answers))
    }

    /// Descriptors that are readable when [`Apart::hear`] has something to do.
    pub fn waiting(&self) -> impl Iterator<Item = &OwnedFd> {
        self.asking.iter().map(|asking| &asking.socket)
    }

    /// Hears whose sockets are to be proven, and lets those processes go on, or ends them. It waits for none: a socket
    /// may be anything, as the client chooses it.
    pub fn hear(&mut self) {
        for asking in std::mem::take(&mut self.asking) {
            let Asking { process, socket, since } = &asking;
            let mut owner = [0; 4];
            match recv(socket, &mut owner, RecvFlags::DONTWAIT) {
                Ok((4, _)) => {
                    let task = Task::Proof(u32::from_ne_bytes(owner));
                    if self.count(|other| other == task) >= MOST_OF_A_USER || channel::send(socket, GO, None).is_err() {
                        self.end(*process);
                    } else if let Some((_, of)) = self.running.iter_mut().find(|(one, _)| one == process) {
                        *of = task;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) if since.elapsed() < LONGEST => self.asking.push(asking),
                Err(Errno::AGAIN | Errno::INTR) => self.end(*process),
                _ => {}
            }
        }
    }

    /// Ends a process, unless it has ended.
    fn end(&mut self, process: Pid) {
        // The number of one that is waited for is nobody else's.
        self.forget_ended();
        if self.running.iter().any(|(one, _)| *one == process) {
            let _ = rustix::process::kill_process(process, Signal::KILL);
        }
    }

    /// Starts a stack. What it says comes through the pipe: `+`, or `-` and why not.
    pub fn start(&mut self, privileges: &mut dyn Privileges, number: u32) -> io::Result<OwnedFd> {
        let starts = self.count(|task| matches!(task, Task::Start(_)));
        if starts >= MOST_STARTS || self.count(|task| task == Task::Start(number)) > 0 {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let (reading, writing) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let Some(process) = fork()? else {
            drop(reading);
            privileges.forget();
            leave(|| {
                let said = match privileges.start_stack(number) {
                    Ok(()) => "+".to_owned(),
                    Err(why) => format!("-{}", why.chars().take(MOST_TEXT / 4).collect::<String>()),
                };
                let _ = std::fs::File::from(writing).write_all(said.as_bytes());
            })
        };
        self.running.push((process, Task::Start(number)));
        Ok(reading)
    }

    /// [`Privileges::join`]. The answer comes through the descriptor that is returned; its end without one is a refusal.
    pub fn join(
        &mut self,
        privileges: &mut dyn Privileges,
        number: u32,
        (namespace, process, remote): (u32, i32, IpAddr),
    ) -> io::Result<OwnedFd> {
        if self.count(|task| task == Task::Join) >= MOST_JOINS {
            return Err(Errno::AGAIN.into());
        }
        let (answers, answering) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let Some(asking) = fork()? else {
            drop(answers);
            // The end of each is seen when the broker closes it.
            self.asking.clear();
            privileges.forget();
            leave(|| {
                let (answer, own) = match privileges.join(namespace, process, remote) {
                    Ok((own, held, device)) => {
                        let text = device.to_string().into_bytes();
                        (Answer { held: Some(held), text, ..Answer::plain(number, 0) }, Some(own))
                    }
                    Err(errno) => (Answer::plain(number, errno), None),
                };
                let _ = channel::answer(&answering, &answer, own);
            })
        };
        self.running.push((asking, Task::Join));
        Ok(answers)
    }

    /// [`Privileges::module`]. The descriptor that is returned takes the object up to its end, and has the answer then.
    pub fn module(&mut self, privileges: &mut dyn Privileges, place: u32) -> io::Result<OwnedFd> {
        if self.count(|task| task == Task::Module) >= MOST_MODULES {
            return Err(Errno::AGAIN.into());
        }
        let (asking, answering) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let Some(process) = fork()? else {
            drop(asking);
            // The end of each is seen when the broker closes it.
            self.asking.clear();
            leave(|| {
                let mut stream = std::os::unix::net::UnixStream::from(answering);
                let mut object = Vec::new();
                let limits =
                    stream.set_read_timeout(Some(OBJECT_TIME)).and(stream.set_write_timeout(Some(OBJECT_TIME)));
                let read = limits.and_then(|()| (&stream).take(MOST_OBJECT).read_to_end(&mut object));
                if read.is_ok() {
                    let _ = stream.write_all(&privileges.module(place, &object));
                }
            })
        };
        self.running.push((process, Task::Module));
        Ok(asking)
    }

    /// Closes the worker's socket, in which descriptors of clients may wait. `forget`: [`Privileges::forget`].
    pub fn close(&mut self, socket: OwnedFd, forget: &mut dyn FnMut()) {
        // Nothing is sent any more.
        let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        loop {
            match channel::peek(&socket, &mut [0; REQUEST]) {
                Ok(None) => return,
                Ok(Some((_, false))) if channel::skip(&socket).is_ok() => {}
                _ => break,
            }
        }
        let Ok((wait, held)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else { return };
        match fork() {
            Ok(Some(process)) => self.running.push((process, Task::Socket)),
            Ok(None) => {
                drop(held);
                forget();
                leave(|| {
                    // The broker has closed its copy when it closes the pipe, so this is the last one.
                    let _ = std::fs::File::from(wait).read(&mut [0]);
                    drop(socket);
                })
            }
            Err(_) => {}
        }
        drop(socket);
        drop(held);
    }
}

/// A process has taken the client's socket.
const TAKEN: &[u8] = &[1];
/// The broker's word to a process that may go on.
const GO: &[u8] = &[1];

/// Receives a client's socket, says whose it is, and answers if the broker says [`GO`].
fn prove_alone(
    socket: &OwnedFd,
    (theirs, answering): (&OwnedFd, &OwnedFd),
    number: u32,
    privileges: &mut dyn Privileges,
) {
    let Ok(Some((_, Some(shown)))) = channel::receive(socket, &mut [0; REQUEST]) else { return };
    if channel::send(theirs, TAKEN, None).is_err() {
        return;
    }
    let Some(owner) = privileges.owner(&shown) else {
        // The close of what is no socket may wait for the server of its file system.
        let _ = channel::answer(answering, &Answer::plain(number, -libc::EINVAL), None);
        return;
    };
    if channel::send(theirs, &owner.to_ne_bytes(), None).is_err() {
        return;
    }
    let Ok(Some(_)) = channel::receive(theirs, &mut [0; GO.len()]) else { return };
    let (answer, own) = match privileges.prove(shown) {
        Ok((own, held)) => (Answer { held: Some(held), ..Answer::plain(number, 0) }, Some(own)),
        Err(result) => (Answer::plain(number, result), None),
    };
    let _ = channel::answer(answering, &answer, own);
}

/// A new process of one thread, which ends with this one. `None` in the new process.
///
/// The broker has one thread, so the new process may do what the broker could.
fn fork() -> io::Result<Option<Pid>> {
    let broker = std::process::id();
    // SAFETY: as said above.
    match unsafe { libc::fork() } {
        0 => {
            end_with(broker);
            Ok(None)
        }
        ..0 => Err(io::Error::last_os_error()),
        process => Ok(Pid::from_raw(process)),
    }
}

/// This process ends with its broker: at once if the broker has ended already.
pub fn end_with(broker: u32) {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if rustix::process::getppid().is_none_or(|parent| parent.as_raw_nonzero().get().cast_unsigned() != broker) {
        std::process::exit(1);
    }
}

/// Ends a new process after its work. A panic goes no further, as the frames above are the broker's.
fn leave(work: impl FnOnce()) -> ! {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    // SAFETY: nothing of the broker is run or written.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests;
