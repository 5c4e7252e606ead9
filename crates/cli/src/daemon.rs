//! `towpathd`, which holds the stacks. This command starts it and holds none.

use crate::complain;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use towpath_service::background::exit;
use towpath_service::programs;

/// Becomes `towpathd` with these arguments. Returns only if that fails.
pub fn exec(arguments: Vec<OsString>) -> ExitCode {
    let why = match programs::find("towpathd") {
        Ok(path) => format!("{}: {}", path.display(), Command::new(&path).args(arguments).exec()),
        Err(why) => why.to_string(),
    };
    complain(&why);
    ExitCode::from(exit::FAILED)
}
