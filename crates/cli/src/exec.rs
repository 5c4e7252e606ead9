//! `towpath exec`: a program in the kernel of a stack.

use crate::complain;
use crate::locate::Which;
use std::io::Write;
use std::process::ExitCode;
use towpath_service::api::{self, Command, Executed};

/// Runs a program where the sockets of a kernel stack are: in its network namespace, or in its own kernel (--uml).
///
/// The files there are this host's. The program has no input and ten seconds. Its output is shown when it has ended.
/// Only the service's own user and root may do this.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath exec --stack kernel=uml -- ss -ti
  towpath exec --stack kernel=uml -- ip address
  towpath exec --stack kernel=uml -- sysctl -w net.ipv4.tcp_congestion_control=reno
  towpath exec --stack kernel=blue -- nft list ruleset

It ends with the program's exit code, or with 125 if there is no such stack or it cannot run programs.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// Asks the service to run it.
pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { which, program } = arguments;
    let failed = |why: String| {
        complain(&why);
        ExitCode::from(crate::run::exit::TOWPATH)
    };
    let socket = match which.find() {
        Ok(socket) => socket,
        Err(error) => return failed(error.to_string()),
    };
    match api::ask::<Executed>(&socket, Command::Exec { program }) {
        Ok(Executed { code, out, err }) => {
            let _ = std::io::stdout().write_all(out.as_bytes());
            let _ = std::io::stderr().write_all(err.as_bytes());
            ExitCode::from(u8::try_from(code).unwrap_or(crate::run::exit::TOWPATH))
        }
        Err(error) => failed(error.to_string()),
    }
}
