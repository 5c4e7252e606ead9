//! `towpathd`: the Towpath service, with its stacks.

use clap::Parser;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, ExitCode, Stdio};
use towpath_service::config::Config;
use towpath_service::options::Options;
use towpath_service::{background, daemon, descriptor_table, paths};
use towpath_towpathd::remote_server;
use towpath_towpathd::stacks::Stacks;

/// The Towpath service: a TCP stack that programs started with `towpath run` use through shared memory.
#[derive(Parser)]
#[command(
    name = "towpathd",
    version,
    after_help = "Examples:
  towpathd                          serve this user's programs inside this machine
  towpathd --interface eth1         serve eth1 too (root)
  towpathd --config FILE            with a configuration file

Exit codes: 0 ended as told; 1 could not start, or failed; 2 wrong command line or configuration;
3 another service has the socket already.
TOWPATH_LOG=debug shows more."
)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Serve other services with this kernel's sockets, at unix:PATH, tcp:HOST:PORT or rdma:HOST:PORT; no program is
    /// served directly
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["background", "socket"])]
    listen: Option<String>,
    /// Write a byte to this descriptor when clients are served
    #[arg(long, value_name = "FD")]
    ready_fd: Option<u32>,
    /// Return when clients are served, and go on in the background; the log goes to a file beside the socket
    #[arg(long)]
    background: bool,
    /// Leave the caller's session (used by --background)
    #[arg(long, hide = true)]
    detached: bool,
}

fn main() -> ExitCode {
    if let Some(code) = towpath_guest::init::main_if_guest() {
        return code;
    }
    let arguments = Arguments::parse();
    if let Some(address) = &arguments.listen {
        return remote_server::main(arguments.options.configuration(), address, arguments.options.trust_network);
    }
    if arguments.background {
        return match background(&arguments.options) {
            Ok(code) => code,
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "towpathd: {error}");
                ExitCode::from(background::exit::FAILED)
            }
        };
    }
    if arguments.detached {
        // This fails only for the leader of a process group, which a child of --background is not.
        let _ = rustix::process::setsid();
        // The caller may have left descriptors open, such as pipes whose reader waits for their end.
        let _ = descriptor_table::separate(&[]);
    }
    daemon::main(arguments.options.configuration(), &Stacks, || {
        if let Some(number) = arguments.ready_fd {
            write_ready(number);
        }
    })
}

fn write_ready(number: u32) {
    let told = std::fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{number}"))
        .and_then(|mut pipe| pipe.write_all(b"\n"));
    if let Err(error) = told {
        let _ = writeln!(std::io::stderr(), "towpathd: --ready-fd {number}: {error}");
    }
}

/// Starts this program again, detached, and waits until it serves or has ended.
fn background(options: &Options) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let config: Config = options.configuration()?;
    let socket = match &config.socket {
        Some(path) => std::path::absolute(path)?,
        None => daemon::default_socket(&config)?,
    };
    let log = paths::log_file(&socket);
    let log_file = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&log)?;
    let before = log_file.metadata()?.len();
    let given = std::env::args_os().skip(1).filter(|argument| argument != "--background");
    let mut child = Command::new(std::env::current_exe()?)
        .args(given)
        .args(["--detached", "--ready-fd", "1"])
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log_file)
        .spawn()?;
    let mut byte = [0];
    let ready = child.stdout.take().is_some_and(|mut pipe| pipe.read_exact(&mut byte).is_ok());
    if ready {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait()?;
    let text = std::fs::read(&log).unwrap_or_default();
    let new = text.get(before as usize..).unwrap_or_default();
    std::io::stderr().write_all(new)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(background::exit::FAILED)))
}
