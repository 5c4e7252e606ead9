//! `towpathd`: the Towpath service, with its stacks.

use clap::Parser;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, ExitCode, Stdio};
use towpath_service::config::Config;
use towpath_service::daemon::{ServiceError, Startup};
use towpath_service::daemon_line::DaemonLine;
use towpath_service::default_socket::default_socket;
use towpath_service::options::Options;
use towpath_service::paths::PathError;
use towpath_service::{background, daemon, descriptor_table, paths, privileged};
use towpath_towpathd::remote_server;
use towpath_towpathd::service_manager;
use towpath_towpathd::stacks::Stacks;

fn main() -> ExitCode {
    if let Some(code) = towpath_guest::init::main_if_guest() {
        return code;
    }
    let arguments = DaemonLine::parse();
    if let Some(file) = &arguments.make_token {
        return remote_server::make_token(file);
    }
    if let Some(address) = &arguments.listen {
        return remote_server::main(arguments.options.configuration(), address);
    }
    if arguments.background {
        return match background(&arguments.options) {
            Ok(code) => code,
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "towpathd: {error}");
                ExitCode::from(error.exit_code())
            }
        };
    }
    if arguments.detached {
        // This fails only for the leader of a process group, which a child of --background is not.
        let _ = rustix::process::setsid();
        // The caller may have left descriptors open, such as pipes whose reader waits for their end.
        let _ = descriptor_table::separate(&[]);
    }
    privileged::set_prepare(towpath_module_compiler::prepare);
    let tell = |startup: Startup<'_>| match (startup, arguments.ready_fd) {
        (Startup::Serving, Some(number)) => {
            if let Err(error) = write_to(number, READY) {
                let _ = writeln!(std::io::stderr(), "towpathd: --ready-fd {number}: {error}");
            }
        }
        // The log may be on a full disk, so the process that waits is told as well.
        (Startup::Failed(why), Some(number)) if arguments.detached => {
            let _ = write_to(number, why.as_bytes());
        }
        _ => {}
    };
    daemon::main(&arguments.options, &Stacks, |startup| {
        tell(startup);
        // A broker says so itself.
        if startup == Startup::Serving && privileged::broker().is_none() {
            service_manager::tell_for_good();
        }
    })
}

/// The byte that says that clients are served. No error begins with it.
const READY: &[u8] = b"\n";

/// Writes to a descriptor that this program was started with. To open it again by its name is more than a sandbox may.
fn write_to(number: u32, mut text: &[u8]) -> std::io::Result<()> {
    let number = i32::try_from(number).map_err(|_| std::io::ErrorKind::InvalidInput)?;
    // SAFETY: whoever has started this program has left the descriptor open for this. A number that is not open is an
    // error.
    let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    while !text.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(descriptor, text))?;
        text = &text[written..];
    }
    Ok(())
}

/// Most bytes of the log that are repeated on standard error.
const MOST_LOG: u64 = 64 << 10;

/// Starts this program again, detached, and waits until it serves or has ended.
fn background(options: &Options) -> Result<ExitCode, ServiceError> {
    let failed = |source| ServiceError::Io { doing: "starting the service in the background", source };
    let config: Config = options.configuration()?;
    let socket = match &config.socket {
        Some(path) => std::path::absolute(path).map_err(failed)?,
        None => default_socket(&config)?,
    };
    let log = paths::log_file(&socket);
    let opened = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&log);
    let log_file = opened.map_err(|source| PathError::Io { path: log.clone(), source })?;
    let before = log_file.metadata().map_err(failed)?.len();
    let given = std::env::args_os().skip(1).filter(|argument| argument != "--background");
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    background::OF_THE_CALLER.iter().for_each(|variable| _ = command.env_remove(variable));
    let mut child = command
        .args(given)
        .args(["--detached", "--ready-fd", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log_file)
        .spawn()
        .map_err(failed)?;
    let mut said = vec![0];
    match child.stdout.take().map(|mut pipe| pipe.read_exact(&mut said).map(|()| pipe)) {
        Some(Ok(_)) if said == READY => return Ok(ExitCode::SUCCESS),
        Some(Ok(mut pipe)) => _ = pipe.read_to_end(&mut said),
        _ => said.clear(),
    }
    let status = child.wait().map_err(failed)?;
    let mut new = Vec::new();
    let _ = std::fs::File::open(&log).and_then(|mut file| {
        file.seek(SeekFrom::Start(before))?;
        file.take(MOST_LOG).read_to_end(&mut new)
    });
    let text = String::from_utf8_lossy(&new);
    let mut error = std::io::stderr();
    let _ = error.write_all(text.as_bytes());
    let why = String::from_utf8_lossy(&said);
    if why.is_empty() {
        let _ = writeln!(error, "towpathd: {}; its log is {}", background::ending(status), log.display());
    } else if !text.contains(&*why) {
        let _ = writeln!(error, "towpathd: {why}");
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(background::exit::FAILED)))
}
