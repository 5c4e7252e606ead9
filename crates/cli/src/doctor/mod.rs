//! `towpath doctor`: checks this host, and reports which sockets of a program were accelerated, and why others were
//! not.

mod advice;
mod anonymous;
mod bundle;
mod host;
mod nics;
mod options;
mod page;

use crate::locate::Which;
use crate::{complain, exit, fail, run};
use host::{Check, CheckState};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use page::Ending;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd};
use rustix::process::{Pid, PidfdFlags, kill_process, pidfd_open};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use towpath_ring::report::{self, Report};

/// Checks whether this host is fit for Towpath. With a program, runs it as `towpath run` does. At its end it reports
/// for each process which sockets were accelerated, which were left to the kernel, and why.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath doctor                              the host and the service
  towpath doctor -- ./my-server               run it; the report goes to standard error
  towpath doctor --json -o r.json -- ./my-server
  towpath doctor --bundle                     all that a report of an error needs, in one file
  towpath doctor --bundle report.tar.gz --anonymous

Without a program it ends with 1 if a check fails. With one it ends as that does (128 and the signal's number if a signal
ended it); SIGINT, SIGTERM and SIGHUP are passed on. Not seen: programs started with an emptied environment, and those that
change their user and then execute something.

A bundle has what this command finds, versions, host, and what the service tells: status, metrics, sockets, configuration,
events, the end of its log. It has no payload, no environment and no keys. The command lists what is in it, and what you may not
see or what is not there.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// How the program's calls are caught
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    hook: run::HookChoice,
    /// Fail if the program cannot be served
    #[arg(long)]
    require: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Write the report to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Pack all that a report of an error needs into FILE [default: towpath-TIME.tar.gz; - is standard output]
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["program", "output"])]
    bundle: Option<Option<PathBuf>>,
    /// With --bundle: give addresses other names
    #[arg(long, requires = "bundle")]
    anonymous: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Checks the host, and runs the program if there is one.
pub fn run(arguments: &Arguments) -> ExitCode {
    if let Some(file) = &arguments.bundle {
        return bundle::run(&arguments.which, file.as_deref(), arguments.anonymous, arguments.json);
    }
    let checks = host::checks(&arguments.which);
    if arguments.program.is_empty() {
        let nics = host::nics(&arguments.which);
        let text = if arguments.json {
            page::host_json(&checks, &nics)
        } else {
            page::host(&checks, CheckState::Ok) + &nics::table(&nics)
        };
        let failed = checks.iter().any(|check| check.state == CheckState::Fail);
        return match arguments.write(&text, true) {
            Ok(()) => ExitCode::from(u8::from(failed)),
            Err(error) => arguments.cannot_write(&error, arguments.json),
        };
    }
    match observe(arguments, &checks) {
        Ok(code) => code,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::from(run::exit::TOWPATH)
        }
    }
}

impl Arguments {
    /// Writes to the file, or to standard output or error. A closed pipe is no failure.
    fn write(&self, text: &str, standard_output: bool) -> io::Result<()> {
        let _ = match &self.output {
            Some(path) => return std::fs::write(path, text),
            None if standard_output => io::stdout().write_all(text.as_bytes()),
            None => io::stderr().write_all(text.as_bytes()),
        };
        Ok(())
    }

    fn cannot_write(&self, error: &io::Error, json: bool) -> ExitCode {
        let path = self.output.as_deref().unwrap_or(Path::new("-"));
        fail(&format!("{}: {error}", path.display()), json, exit::FAILED)
    }
}

fn observe(arguments: &Arguments, checks: &[Check]) -> io::Result<ExitCode> {
    let (report, memfd) = Report::create()?;
    let place = format!("/proc/{}/fd/{}", std::process::id(), memfd.as_raw_fd());
    let mut command = Command::new(std::env::current_exe()?);
    command.env(report::VARIABLE, place).arg("run").arg("--hook").arg(arguments.hook.name());
    if let Some(socket) = &arguments.which.socket {
        command.arg("--socket").arg(socket);
    }
    if arguments.require {
        command.arg("--require");
    }
    let mut child = command.arg("--").args(&arguments.program).spawn()?;
    let status = wait(&mut child)?;
    let ending = Ending { code: status.code(), signal: status.signal() };
    let programs = report.programs();
    let known = arguments.program.first().and_then(|program| run::profile::known_of(program));
    let text = if arguments.json {
        page::json(&ending, checks, &programs, report.left_out(), known)
    } else {
        page::host(checks, CheckState::Warn) + &page::programs(&programs, report.left_out()) + &page::known(known)
    };
    if let Err(error) = arguments.write(&text, false) {
        // Standard output is the program's.
        return Ok(arguments.cannot_write(&error, false));
    }
    Ok(ExitCode::from(code_of(status)))
}

/// The exit code, as shells compute it.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Waits for the end of the program, and passes on signals from other processes. A terminal's signals have reached the
/// program already.
fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    let mut set = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT].into_iter().for_each(|signal| set.add(signal));
    // Block signals only now, so that the program has begun with this process's mask.
    set.thread_block()?;
    let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let pid = Pid::from_child(child);
    let ended = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let (signals_fd, ended_fd) = (signals.as_fd(), ended.as_fd());
        let mut waiting = [PollFd::new(&signals_fd, PollFlags::IN), PollFd::new(&ended_fd, PollFlags::IN)];
        match poll(&mut waiting, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        while let Ok(Some(signal)) = signals.read_signal() {
            let by_a_process = signal.ssi_code <= 0;
            if by_a_process && let Some(signal) = rustix::process::Signal::from_named_raw(signal.ssi_signo as i32) {
                let _ = kill_process(pid, signal);
            }
        }
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
    }
}
