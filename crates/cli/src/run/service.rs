//! Finds the service for a program, or starts the user's own.

use crate::complain;
use crate::kernel_stack::SEND_BUFFER;
use crate::locate::{StackName, Which, hold};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use towpath_service::api::{AskError, Hello};
use towpath_service::{background, paths, programs};

/// How long a service may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a stack may take that the service starts.
const STACK_TIMEOUT: Duration = Duration::from_secs(5);
/// The same if it boots a kernel.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a service that has the lock may take to answer. After that another is started: the first may be ending.
const LOCK_WAIT: Duration = Duration::from_millis(100);
/// How long a service that is too busy to answer is asked again.
const BUSY_WAIT: Duration = Duration::from_secs(5);
/// Pauses in between: each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MOST_PAUSE: Duration = Duration::from_millis(160);
/// How long a service started here stays without clients. With 30 s it survives a compile-and-run cycle, and a
/// forgotten one ends.
const IDLE_EXIT: &str = "30s";
/// Environment variable with another value for that.
const IDLE_EXIT_VARIABLE: &str = "TOWPATH_IDLE_EXIT";

/// The registration socket of a service that answers and admits us, or why there is none.
pub fn find_or_start(which: &Which, verbose: bool) -> Result<(PathBuf, Hello), String> {
    let hold = |socket: &Path| patiently(socket, BUSY_WAIT, || hold(socket));
    // A service with a named socket is never started from here.
    if let Some(socket) = which.named() {
        return hold(&socket).map(|hello| (socket, hello)).map_err(|error| error.to_string());
    }
    if let Some(StackName::Configured(name)) = which.other_stack() {
        return configured(which, name);
    }
    if let Some(stack) = which.other_stack() {
        let socket = paths::kernel_stack_socket(stack.name()).map_err(|error| error.to_string())?;
        return match (hold(&socket), stack.name()) {
            (Ok(hello), _) => Ok((socket, hello)),
            (Err(_), Some(kind @ ("uml" | "qemu"))) => {
                let what = if kind == "uml" { "user-mode Linux" } else { "a guest of QEMU" };
                complain(&format!("booting a second kernel, {what} ..."));
                start(&socket, &["--stack", kind], verbose).map(|hello| (socket, hello))
            }
            (Err(error), Some(name)) => Err(format!("{error}; `towpath kernel-stack --name {name}` starts that stack")),
            (Err(_), None) => {
                let with = ["--stack", "kernel", "--send-buffer", SEND_BUFFER];
                start(&socket, &with, verbose).map(|hello| (socket, hello))
            }
        };
    }
    let system = Path::new(paths::SYSTEM_SOCKET);
    match hold(system) {
        Ok(hello) => return Ok((system.into(), hello)),
        Err(AskError::Absent { .. }) => {}
        Err(error) if verbose || error.is_busy() => complain(&format!("{error}; a service of your own is used")),
        Err(_) => {}
    }
    let socket = paths::per_user_socket().map_err(|error| error.to_string())?;
    let hello = hold(&socket).or_else(|_| start(&socket, &[], verbose))?;
    Ok((socket, hello))
}

/// A stack of the service's configuration. The service starts it if it does not run, and tells why it cannot.
fn configured(which: &Which, name: &str) -> Result<(PathBuf, Hello), String> {
    let begun = Instant::now();
    let ask = |start| which.configured(name, start).map_err(|error| error.to_string());
    let stack = ask(true)?;
    let most = if matches!(&*stack.kind, "uml" | "qemu") { BOOT_TIMEOUT } else { STACK_TIMEOUT };
    loop {
        let error = match hold(&stack.socket) {
            Ok(hello) => return Ok((stack.socket, hello)),
            // It serves, and says no.
            Err(error @ AskError::NotAdmitted { .. }) => return Err(error.to_string()),
            Err(error) => error,
        };
        if let Some(why) = ask(false)?.failed {
            return Err(why);
        }
        if begun.elapsed() >= most {
            return Err(format!("stack {name}: it does not serve after {} s: {error}", most.as_secs()));
        }
        std::thread::sleep(MOST_PAUSE);
    }
}

/// Asks a service again and again for some time while it is too busy to answer, and says so.
fn patiently(socket: &Path, time: Duration, ask: impl Fn() -> Result<Hello, AskError>) -> Result<Hello, AskError> {
    let (end, mut pause, mut said) = (Instant::now() + time, FIRST_PAUSE, false);
    loop {
        match ask() {
            Err(error) if error.is_busy() && Instant::now() < end => {
                if pause >= MOST_PAUSE && !std::mem::replace(&mut said, true) {
                    complain(&format!("the service at {} is busy; trying again for {time:?}", socket.display()));
                }
                std::thread::sleep(pause);
                pause = (2 * pause).min(MOST_PAUSE);
            }
            answered => return answered,
        }
    }
}

/// Starts `towpathd` in the background, or waits for one that another process has just started, or that is just ending.
fn start(socket: &Path, with: &[&str], verbose: bool) -> Result<Hello, String> {
    let end = Instant::now() + START_TIMEOUT;
    loop {
        start_once(socket, with, verbose)?;
        match await_answer(socket, end.min(Instant::now() + LOCK_WAIT)) {
            Err(_) if Instant::now() < end => {}
            answered => return answered,
        }
    }
}

/// Starts `towpathd` in the background, unless another has the socket.
fn start_once(socket: &Path, with: &[&str], verbose: bool) -> Result<(), String> {
    let daemon = programs::find("towpathd").map_err(|error| error.to_string())?;
    let idle_exit = std::env::var_os(IDLE_EXIT_VARIABLE).unwrap_or_else(|| IDLE_EXIT.into());
    let mut command = Command::new(&daemon);
    command.arg("--background").arg("--socket").arg(socket).args(with).arg("--idle-exit").arg(idle_exit);
    let output = background::start(&mut command).map_err(|error| format!("{}: {error}", daemon.display()))?;
    match output.status.code() {
        Some(0) if verbose => complain(&format!("started {}", daemon.display())),
        Some(0) => {}
        Some(code) if code == i32::from(background::exit::RUNNING) => {}
        _ => return Err(format!("the service did not start: {}", background::reason(&output))),
    }
    Ok(())
}

/// Waits until `end` for a service that has the lock but may not answer yet.
fn await_answer(socket: &Path, end: Instant) -> Result<Hello, String> {
    loop {
        match hold(socket) {
            Ok(hello) => return Ok(hello),
            Err(error) if Instant::now() >= end => return Err(error.to_string()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::io;

    #[test]
    fn a_busy_service_is_asked_again_and_others_are_not() {
        let (socket, times) = (Path::new("/run/a.sock"), Cell::new(0));
        let ask = |busy: u32, kind: io::ErrorKind| {
            times.set(times.get() + 1);
            if times.get() > busy {
                return Ok(Hello { version: "0".into(), pid: 1, auto: false, contract: 0, features: 0 });
            }
            Err(AskError::Broken { socket: socket.into(), source: kind.into() })
        };
        assert!(patiently(socket, BUSY_WAIT, || ask(3, io::ErrorKind::UnexpectedEof)).is_ok());
        assert_eq!(times.replace(0), 4);
        assert!(patiently(socket, Duration::from_millis(20), || ask(u32::MAX, io::ErrorKind::BrokenPipe)).is_err());
        assert!((2..9).contains(&times.replace(0)), "it ends");
        assert!(patiently(socket, BUSY_WAIT, || ask(3, io::ErrorKind::InvalidData)).is_err());
        assert_eq!(times.get(), 1, "an answer that is none comes again");
    }
}
