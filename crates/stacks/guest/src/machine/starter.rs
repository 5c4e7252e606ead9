//! The starter: the process that starts machines for a service, and ends them.
//!
//! The service gives up programs and files before it has threads, and so cannot start a machine any more. The starter
//! is forked before that. Its requests are one byte each, and all else it had known before. It ends with the service, and
//! its machine with it.

use super::confinement::capabilities;
use super::{GuestLines, Machine, MachineConfig, start};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use towpath_sandbox::privileges;

/// Requests, and the first byte of answers: the rest is a text.
const START: u8 = b's';
const END: u8 = b'e';
const DONE: u8 = b'+';
const FAILED: u8 = b'-';
/// How long its end may take.
const LONGEST_END: Duration = Duration::from_secs(10);
/// Most bytes of a text.
const MOST_TEXT: usize = 1024;
/// Descriptors of a machine: of its messages, its process and its console.
const DESCRIPTORS: usize = 3;

/// The service's way to its starter.
#[derive(Debug)]
pub struct Starter {
    socket: Mutex<OwnedFd>,
    /// Readable when it has ended.
    process: OwnedFd,
}

/// A machine that the starter has started.
#[derive(Debug)]
pub struct Started {
    /// Process id.
    pub pid: u32,
    /// Our end of the messages.
    pub messages: OwnedFd,
    /// Readable when it has ended.
    pub process: OwnedFd,
    /// What its kernel prints.
    pub console: OwnedFd,
    /// Its sandbox, in words.
    pub sandbox: String,
}

impl Starter {
    /// Starts the starter, which keeps this process's user and system calls, and the capabilities that a machine needs.
    pub fn new(config: &MachineConfig, memory: &OwnedFd, lines: &GuestLines) -> io::Result<Self> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // SAFETY: the child makes system calls, and takes memory, which the C library allows after a fork.
        match unsafe { libc::fork() } {
            0 => {
                let work = || run(&theirs, config, memory, lines);
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                // SAFETY: nothing of the service is run or written.
                unsafe { libc::_exit(0) }
            }
            ..0 => Err(io::Error::last_os_error()),
            process => {
                let process = Pid::from_raw(process).ok_or(io::ErrorKind::InvalidData)?;
                let process = rustix::process::pidfd_open(process, PidfdFlags::empty())?;
                Ok(Self { socket: Mutex::new(ours), process })
            }
        }
    }

    /// Starts a machine. There must be none.
    pub fn start(&self) -> io::Result<Started> {
        let (text, mut descriptors) = self.ask(START)?;
        let (Some(console), Some(process), Some(messages)) = (descriptors.pop(), descriptors.pop(), descriptors.pop())
        else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let (pid, sandbox) = text.split_once(' ').ok_or(io::ErrorKind::InvalidData)?;
        let pid = pid.parse().map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Started { pid, messages, process, console, sandbox: sandbox.into() })
    }

    /// Ends the machine, if there is one. All of its processes are gone when this returns.
    pub fn end(&self) {
        let _ = self.ask(END);
    }

    fn ask(&self, request: u8) -> io::Result<(String, Vec<OwnedFd>)> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        send(&*socket, &[request], SendFlags::NOSIGNAL)?;
        let mut bytes = [0; 1 + MOST_TEXT];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(&*socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors = descriptors.flatten().collect();
        let ended = "the process that starts the guest's kernel has ended";
        let (kind, text) = bytes[..received.bytes].split_first().ok_or_else(|| io::Error::other(ended))?;
        let text = String::from_utf8_lossy(text).into_owned();
        if *kind == DONE { Ok((text, descriptors)) } else { Err(io::Error::other(text)) }
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        let socket = self.socket.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = rustix::net::shutdown(&*socket, Shutdown::Both);
        // Then the machine and its folders are gone.
        let time = Timespec { tv_sec: LONGEST_END.as_secs() as i64, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&time));
    }
}

/// The starter: serves requests until the service has ended.
fn run(socket: &OwnedFd, config: &MachineConfig, memory: &OwnedFd, lines: &GuestLines) {
    let wire = match &config.wire {
        super::Wire::Socket(wire) => Some(wire.as_fd()),
        _ => None,
    };
    let keep = [socket.as_fd(), memory.as_fd(), lines.doorbells.as_fd(), lines.wakes.as_fd()];
    if close_others(keep.into_iter().chain(wire)).is_err() {
        return;
    }
    // The service has no capabilities, and moves no process that has more than itself off reserved CPUs. One whose machine makes
    // a device stays where it is.
    if config.confined && privileges::keep_only(capabilities(&config.wire)).is_err() {
        return;
    }
    let mut machine: Option<Machine> = None;
    let mut request = [0; 2];
    loop {
        let asked = match recv(socket, &mut request, RecvFlags::empty()) {
            Ok((1, _)) => request[0],
            Err(rustix::io::Errno::INTR) => continue,
            _ => return,
        };
        // A machine's end, and that of its folders, is before the answer.
        machine = match (asked, machine.take()) {
            (START, None) => match begin(config, memory, lines) {
                Ok((begun, [messages, console], sandbox)) => {
                    let text = format!("{} {sandbox}", begun.pid());
                    answer(socket, DONE, &text, &[messages.as_fd(), begun.process.as_fd(), console.as_fd()]);
                    Some(begun)
                }
                Err(error) => {
                    answer(socket, FAILED, &error.to_string(), &[]);
                    None
                }
            },
            (END, machine) => {
                drop(machine);
                answer(socket, DONE, "", &[]);
                None
            }
            (_, machine) => {
                answer(socket, FAILED, "there is a guest already", &[]);
                machine
            }
        };
    }
}

/// Starts a machine with folders of its own. Returns our end of its messages, its console, and its sandbox in words.
fn begin(config: &MachineConfig, memory: &OwnedFd, lines: &GuestLines) -> io::Result<(Machine, [OwnedFd; 2], String)> {
    // Memory in a file is on a file system that is memory, if there is one.
    let mut folders = vec![folder(std::env::temp_dir())?];
    folders.extend(folder("/dev/shm".into()));
    start(config, memory, lines, Folders(folders))
}

/// Folders of a machine, which end with it: the first for names, the last for memory.
#[derive(Debug)]
pub struct Folders(pub Vec<PathBuf>);

impl Drop for Folders {
    fn drop(&mut self) {
        self.0.iter().for_each(|folder| _ = std::fs::remove_dir_all(folder));
    }
}

fn folder(place: PathBuf) -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = place.join(format!("towpath-guest-{}-{count}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

fn answer(socket: &OwnedFd, kind: u8, text: &str, descriptors: &[BorrowedFd<'_>]) {
    let text: String = text.chars().take(MOST_TEXT / 4).collect();
    let bytes = [&[kind], text.as_bytes()].concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let _ = sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
}

/// Closes all descriptors but these and the three standard ones. The service's sockets are not to outlive it here.
fn close_others<'a>(keep: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<()> {
    let mut kept: Vec<u32> = keep.filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok()).collect();
    kept.sort_unstable();
    let mut first = 3;
    for number in kept.into_iter().chain([u32::MAX]) {
        if first < number {
            // SAFETY: the call takes no pointers. Nothing in this process uses those descriptors, and it ends without
            // dropping their owners.
            let closed = unsafe { libc::syscall(libc::SYS_close_range, first, number - 1, 0) };
            if closed != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = number.saturating_add(1).max(first);
    }
    Ok(())
}

/// In a new process: it ends with its parent, the starter.
pub(super) fn end_with(parent: u32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let now = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get().cast_unsigned());
    if now == Some(parent) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}
