//! The simulated experiments are a program of their own, which has the simulator in it: `towpath-fabric`, beside this one.

use clap::Args;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Arguments, handed on.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// See `--help` of it.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Becomes that program.
pub fn run(experiment: &str, options: &Options) -> io::Result<()> {
    let program = std::env::current_exe()?.with_file_name("towpath-fabric");
    if !program.exists() {
        return Err(io::Error::other(format!("{} is missing: cargo build --release --workspace", program.display())));
    }
    Err(Command::new(program).arg(experiment).args(&options.words).exec())
}
