//! The process that serves one host.

use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use towpath_kernel::{KernelConfig, prepare_rings};
use towpath_remote::listener::ConnectedHost;
use towpath_remote::server::{ServerConfig, serve};
use towpath_service::config::Config;
use towpath_service::sandbox::Sandbox;
use towpath_service::{descriptor_table, log};

/// Most bytes of a text.
const MOST_TEXT: usize = 512;
/// First byte of what it says: the host is known, and served. The sandbox's state follows.
const KNOWN: u8 = b'+';
/// First byte of what it says at the end. The reason follows.
const OVER: u8 = b'-';

/// A message of a host's process. Strangers can make it say anything.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// The host is known, and served. This is the state of the sandbox.
    Known(String),
    /// Why the host is served no longer.
    Over(String),
    /// It says nothing more.
    Ended,
}

/// See the module. It ends with its parent, and with this value.
#[derive(Debug)]
pub struct HostProcess {
    process: Pid,
    /// Signals by this reach no other process.
    handle: OwnedFd,
    /// Readable when it says something, or has ended.
    said: OwnedFd,
}

impl HostProcess {
    /// Starts it. This process must have one thread.
    pub fn start(host: ConnectedHost, config: &Config, kernel: &KernelConfig) -> io::Result<Self> {
        let (said, says) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let parent = rustix::process::getpid();
        // SAFETY: this process has one thread, so the child may do what it could.
        let process = match unsafe { libc::fork() } {
            0 => {
                let _ = catch_unwind(AssertUnwindSafe(|| run(parent, host, &says, (config, kernel))));
                // SAFETY: nothing of the parent is run or written.
                unsafe { libc::_exit(0) }
            }
            ..0 => return Err(io::Error::last_os_error()),
            process => Pid::from_raw(process).ok_or(io::ErrorKind::InvalidData)?,
        };
        let handle = rustix::process::pidfd_open(process, PidfdFlags::empty()).inspect_err(|_| {
            let _ = rustix::process::kill_process(process, Signal::KILL);
            let _ = rustix::process::waitpid(Some(process), WaitOptions::empty());
        })?;
        Ok(Self { process, handle, said })
    }

    /// Readable when it says something, or has ended.
    pub fn said(&self) -> &OwnedFd {
        &self.said
    }

    /// Takes its next message. `None`: there is none yet.
    pub fn hear(&self) -> Option<Said> {
        let mut bytes = [0; 1 + MOST_TEXT];
        let length = match recv(&self.said, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((length, _)) => length,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return None,
            Err(_) => 0,
        };
        let Some((kind, text)) = bytes[..length].split_first() else { return Some(Said::Ended) };
        // The text goes to a log and a terminal.
        let text = String::from_utf8_lossy(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        Some(match *kind {
            KNOWN => Said::Known(text),
            OVER => Said::Over(text),
            _ => Said::Ended,
        })
    }

    /// Ends it. It may take a moment.
    pub fn end(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.handle, Signal::KILL);
    }

    /// Has it ended? If so, nothing of it is left.
    pub fn has_ended(&self) -> bool {
        !matches!(rustix::process::waitpid(Some(self.process), WaitOptions::NOHANG), Ok(None))
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Says something to the parent. A parent that does not listen is not waited for.
fn say(says: &OwnedFd, kind: u8, text: &str) {
    let text: String = text.chars().take(MOST_TEXT / 4).collect();
    let _ = send(says, &[&[kind], text.as_bytes()].concat(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// The process: serves the host to the end of its link.
fn run(parent: Pid, host: ConnectedHost, says: &OwnedFd, (config, kernel): (&Config, &KernelConfig)) {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if rustix::process::getppid() != Some(parent) {
        return;
    }
    let _ = log::apart();
    // Those of the listener and of other hosts are closed here.
    if let Err(error) = descriptor_table::separate(&[host.as_fd(), says.as_fd()]) {
        return say(says, OVER, &format!("closing the descriptors of others: {error}"));
    }
    let (may_run, adapter) = (host.known(), host.has_adapter());
    let confine = || {
        // A host that may run programs here can do what this user can.
        if may_run {
            return "none".to_owned();
        }
        let sandbox = Sandbox::of_server(config, adapter);
        prepare_rings(kernel.cores);
        sandbox.before_threads();
        sandbox.take_calls();
        sandbox.status().line()
    };
    // An adapter is opened before, and its hosts are trusted.
    let (state, link) = if adapter {
        let link = host.link();
        (confine(), link)
    } else {
        (confine(), host.link())
    };
    let why = match link {
        Ok(link) => {
            say(says, KNOWN, &state);
            serve(link, &ServerConfig { kernel: kernel.clone(), may_run }).to_string()
        }
        Err(why) => why.to_string(),
    };
    say(says, OVER, &why);
}
