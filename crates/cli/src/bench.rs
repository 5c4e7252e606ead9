//! `towpath bench`: becomes `towpath-bench`, a program of its own in the same folder.

use crate::complain;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use towpath_service::programs;

/// Arguments of `towpath bench`. All of them, also `--help`, go to the other program.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:\n  towpath bench echo\n  towpath bench instructions --json\n  towpath bench --help"
)]
pub struct Arguments {
    /// The benchmark and its arguments; `towpath bench --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "BENCHMARK")]
    words: Vec<OsString>,
}

/// Becomes the program. It returns only if that fails.
pub fn run(arguments: &Arguments) -> ExitCode {
    match programs::find("towpath-bench") {
        Ok(program) => {
            let error = Command::new(&program).args(&arguments.words).exec();
            complain(&format!("{}: {error}", program.display()));
        }
        Err(error) => complain(&error.to_string()),
    }
    ExitCode::FAILURE
}
