//! The command line of `towpathd`. It stands here so that its manual page can be made of it.

use crate::options::Options;
use clap::Parser;
use std::path::PathBuf;

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
3 another service has the socket or the interface already.
SIGTERM and SIGINT end it; SIGHUP has it read its configuration file again (`towpath reload`).
TOWPATH_LOG=debug shows more, and `towpath log-level debug` does so while it runs."
)]
pub struct DaemonLine {
    /// Flags of the service.
    #[command(flatten)]
    pub options: Options,
    /// Serve other services with this kernel's sockets, at unix:PATH, tcp:HOST:PORT or rdma:HOST:PORT; no program is
    /// served directly
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["background", "socket"])]
    pub listen: Option<String>,
    /// Make a token for --token in a new file, and end
    #[arg(long, value_name = "FILE", exclusive = true)]
    pub make_token: Option<PathBuf>,
    /// Write a byte to this descriptor when clients are served
    #[arg(long, value_name = "FD")]
    pub ready_fd: Option<u32>,
    /// Return when clients are served, and go on in the background; the log goes to a file beside the socket
    #[arg(long)]
    pub background: bool,
    /// Leave the caller's session (used by --background)
    #[arg(long, hide = true)]
    pub detached: bool,
}
