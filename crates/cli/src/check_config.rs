//! `towpath check-config`: judges a configuration file before a service has it.

use crate::{fail, json, print};
use std::path::PathBuf;
use std::process::ExitCode;
use towpath_service::background::exit::USAGE;
use towpath_service::judge::judge;

/// Reads a configuration file with its policy as a start would, and says what is wrong. It asks no service.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath check-config /etc/towpath.toml && towpath reload
  towpath check-config towpath.toml --json

An error names its line and what to write. Names of `admit` and numbers of `cpus` are those of this host. Interfaces and
addresses are tried at the start alone.
Exit codes: 0 a service would take it; 2 it would not.")]
pub struct Arguments {
    /// The file
    file: PathBuf,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Judges it.
pub fn run(arguments: &Arguments) -> ExitCode {
    let judged = match judge(&arguments.file) {
        Ok(judged) => judged,
        Err(why) => return fail(&why.to_string(), arguments.json, USAGE),
    };
    if arguments.json {
        return print(&json::line(&judged));
    }
    let notes: String = judged.notes.iter().map(|note| format!("note: {note}\n")).collect();
    let rules = judged.rules;
    let rules = if rules == 1 { "1 rule".to_owned() } else { format!("{rules} rules") };
    print(&format!("{}: good, {rules}\n{notes}", judged.file.display()))
}
