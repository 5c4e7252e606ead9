//! The other stacks that the configuration names (`[stacks.NAME]`). Each is a service of its own, with its own socket.
//! This service tells its clients where that socket is, and starts the other service if it does not run.

use crate::background::{self, exit};
use crate::config::Config;
use crate::{paths, privileged};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Idle exit of a stack that is started here, unless its table has one.
const IDLE_EXIT: &str = "30s";

/// Time before a failed start is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long a stack that another process starts may take until it answers.
const STARTING: Duration = Duration::from_secs(1);

/// One other stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherStack {
    /// Its name.
    pub name: String,
    /// Its registration socket.
    pub socket: PathBuf,
    /// Its kind: `fast`, `kernel` ...
    pub kind: &'static str,
    /// Its table has an idle exit.
    has_idle_exit: bool,
}

/// All other stacks, by number.
#[derive(Debug, Default)]
pub struct OtherStacks {
    stacks: Vec<OtherStack>,
    /// The configuration file that names them.
    file: Option<PathBuf>,
    /// Last failure of each stack. One lock each, so a slow start delays only its own callers.
    failed: Vec<Mutex<Option<(Instant, String)>>>,
}

impl OtherStacks {
    /// The other stacks of a service at the socket `home`.
    pub fn of(config: &Config, home: &Path) -> Self {
        let stack = |(name, table): (&String, &Config)| OtherStack {
            name: name.clone(),
            socket: table.socket.clone().unwrap_or_else(|| paths::stack_socket(home, name)),
            kind: table.stack.name(),
            has_idle_exit: table.idle_exit.is_some(),
        };
        let stacks: Vec<_> = config.stacks.iter().map(stack).collect();
        let failed = stacks.iter().map(|_| Mutex::default()).collect();
        Self { stacks, file: config.file.clone(), failed }
    }

    /// Their names, by number.
    pub fn names(&self) -> Vec<String> {
        self.stacks.iter().map(|stack| stack.name.clone()).collect()
    }

    /// All, by number.
    pub fn all(&self) -> &[OtherStack] {
        &self.stacks
    }

    /// The number of a name.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.stacks.iter().position(|stack| stack.name == name)
    }

    /// Opens the registration socket of a stack (`O_PATH`), and starts the stack if it does not run. The client
    /// connects by itself, so that the stack sees the client's credentials.
    pub fn open(&self, number: usize) -> Result<OwnedFd, String> {
        let stack = self.stacks.get(number).ok_or("there is no stack of this number")?;
        self.reach(number)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(&stack.socket, flags, Mode::empty())
            .map_err(|error| format!("{}: {error}", stack.socket.display()))
    }

    /// Makes sure that a stack serves. After a failure no attempt is made for a second, so that repeated questions cost
    /// little.
    pub fn reach(&self, number: usize) -> Result<(), String> {
        let (Some(stack), Some(failed)) = (self.stacks.get(number), self.failed.get(number)) else {
            return Err("there is no stack of this number".into());
        };
        if stack.answers() {
            return Ok(());
        }
        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
        if stack.answers() {
            return Ok(());
        }
        if let Some((at, why)) = &*failed
            && at.elapsed() < RETRY_AFTER
        {
            return Err(why.clone());
        }
        let started = self.ask_to_start(number, stack).map_err(|why| format!("stack {}: {why}", stack.name));
        if let Err(why) = &started {
            // Clients ask again and again for one that does not start.
            if failed.as_ref().is_none_or(|(_, said)| said != why) {
                tracing::warn!("{why}");
            }
        }
        *failed = started.as_ref().err().map(|why| (Instant::now(), why.clone()));
        started
    }

    /// Why the last attempt to start a stack has failed; `None`: it has not, or another one runs.
    pub fn failure(&self, number: usize) -> Option<String> {
        let failed = self.failed.get(number)?.try_lock().ok()?;
        failed.as_ref().map(|(_, why)| why.clone())
    }

    /// Forgets a failure that does not keep the stack from being tried again.
    pub fn forget_failure(&self, number: usize) {
        if let Some(Ok(mut failed)) = self.failed.get(number).map(Mutex::try_lock) {
            *failed = failed.take().filter(|(at, _)| at.elapsed() < RETRY_AFTER);
        }
    }

    /// The broker starts it, if this process has one: the stack needs more rights than this process has.
    fn ask_to_start(&self, number: usize, stack: &OtherStack) -> Result<(), String> {
        match privileged::broker().zip(u32::try_from(number).ok()) {
            Some((broker, number)) => broker.start_stack(number),
            None => self.start(stack),
        }
    }

    /// Starts a stack, with the rights of this process.
    pub fn start(&self, stack: &OtherStack) -> Result<(), String> {
        let file = self.file.as_ref().ok_or("it does not run")?;
        let daemon = daemon_path().map_err(|error| error.to_string())?;
        let mut command = process::Command::new(&daemon);
        command.arg("--background").arg("--config").arg(file).args(["--stack-name", &stack.name]);
        command.arg("--socket").arg(&stack.socket);
        if !stack.has_idle_exit {
            command.args(["--idle-exit", IDLE_EXIT]);
        }
        let output = background::start(&mut command).map_err(|error| format!("{}: {error}", daemon.display()))?;
        match output.status.code() {
            Some(0) => {
                tracing::info!(stack = stack.name, "started");
                Ok(())
            }
            // It has the socket, but may still be starting. Or it is a third one, which has the interface.
            Some(code) if code == i32::from(exit::RUNNING) && stack.answers_soon() => Ok(()),
            _ => Err(format!("it did not start: {}", background::reason(&output))),
        }
    }
}

impl OtherStack {
    /// Does a service answer there within [`STARTING`]?
    fn answers_soon(&self) -> bool {
        let end = Instant::now() + STARTING;
        while !self.answers() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// Is a service there? It need not admit this user. Nobody waits for one that is stopped, or has as many connections as
    /// it can hold: whoever is sent there finds out.
    pub fn answers(&self) -> bool {
        let connect = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            rustix::net::connect(&socket, &SocketAddrUnix::new(paths::control_socket(&self.socket))?)
        };
        matches!(connect(), Ok(()) | Err(Errno::AGAIN | Errno::ACCESS | Errno::PERM))
    }
}

/// `towpathd`: this program, or one beside it.
fn daemon_path() -> io::Result<PathBuf> {
    let exe = std::env::current_exe()?;
    Ok(exe.with_file_name("towpathd"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_stack_has_a_number_and_a_socket_beside_the_services_unless_it_names_one() {
        let text = "[stacks.red]\nstack = \"kernel\"\n[stacks.blue]\nsocket = \"/x/y.sock\"\nstack = \"kernel\"\n";
        let config = Config::parse(Path::new("towpath.toml"), text).unwrap();
        let stacks = OtherStacks::of(&config, Path::new("/run/towpath/towpath.sock"));
        assert_eq!(stacks.names(), ["blue", "red"]);
        assert_eq!((stacks.number("red"), stacks.number("green")), (Some(1), None));
        let sockets: Vec<_> = stacks.all().iter().map(|stack| stack.socket.to_str().unwrap()).collect();
        assert_eq!(sockets, ["/x/y.sock", "/run/towpath/kernel-red.sock"]);
        assert!(stacks.open(2).is_err());
    }

    #[test]
    fn a_stack_that_does_not_start_is_not_tried_all_the_time() {
        let config =
            Config::parse(Path::new("towpath.toml"), "[stacks.red]\nsocket = \"/nonexistent/red.sock\"\n").unwrap();
        let stacks = OtherStacks::of(&config, Path::new("/nonexistent/towpath.sock"));
        assert_eq!(stacks.reach(0).unwrap_err(), "stack red: it does not run");
        stacks.failed[0].lock().unwrap().as_mut().unwrap().1 = "as before".into();
        assert_eq!(stacks.reach(0).unwrap_err(), "as before");
        stacks.forget_failure(0);
        assert_eq!(stacks.failure(0).unwrap(), "as before", "it is not tried again yet");
        stacks.failed[0].lock().unwrap().as_mut().unwrap().0 = Instant::now().checked_sub(RETRY_AFTER).unwrap();
        stacks.forget_failure(0);
        assert_eq!(stacks.failure(0), None, "it shall be tried again");
        assert_eq!(stacks.reach(0).unwrap_err(), "stack red: it does not run");
    }

    /// The answer of a thread that may wait for ever if something is wrong.
    fn soon<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> T {
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || send.send(ask()));
        receive.recv_timeout(Duration::from_secs(60)).expect("an answer")
    }

    #[test]
    fn a_stack_that_is_being_started_holds_up_nobody_who_asks_for_another() {
        let text =
            "[stacks.blue]\nsocket = \"/nonexistent/blue.sock\"\n[stacks.red]\nsocket = \"/nonexistent/red.sock\"\n";
        let config = Config::parse(Path::new("towpath.toml"), text).unwrap();
        let stacks = std::sync::Arc::new(OtherStacks::of(&config, Path::new("/nonexistent/towpath.sock")));
        let (others, blue) = (std::sync::Arc::clone(&stacks), stacks.failed[0].lock().unwrap());
        assert_eq!(soon(move || others.reach(1).unwrap_err()), "stack red: it does not run");
        assert_eq!(stacks.failure(0), None, "it is not known yet");
        drop(blue);
    }

    #[test]
    fn nobody_waits_for_a_stack_that_takes_no_connection_more() {
        let folder = std::env::temp_dir().join(format!("towpath-full-stack-{}", process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!("[stacks.red]\nsocket = {:?}\n", folder.join("red.sock"));
        let config = Config::parse(Path::new("towpath.toml"), &text).unwrap();
        let stacks = OtherStacks::of(&config, Path::new("/nonexistent/towpath.sock"));
        let path = paths::control_socket(&stacks.all()[0].socket);
        let stream = |flags| rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let listener = stream(SocketFlags::CLOEXEC);
        rustix::net::bind(&listener, &SocketAddrUnix::new(&*path).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let (mut waiting, mut full) = (Vec::new(), false);
        while !full {
            let socket = stream(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
            full = rustix::net::connect(&socket, &SocketAddrUnix::new(&*path).unwrap()) == Err(Errno::AGAIN);
            waiting.push(socket);
        }
        let (reached, red) = soon(move || (stacks.reach(0), stacks.all()[0].clone()));
        assert_eq!(reached, Ok(()), "it is there");
        drop((listener, waiting));
        assert!(!red.answers(), "nobody listens");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
