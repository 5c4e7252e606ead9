//! `towpath version`: what this is, for people and for programs that roll it out.

use crate::print;
use serde::Serialize;
use std::process::ExitCode;

/// Shows the version, and that of the contract by which a program's library and a service understand each other.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath version
  towpath version --json | jq -r .version

Programs that run keep the library that they have begun with. A service serves them if it has
the same version of the contract.")]
pub struct Arguments {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// What `--json` shows.
#[derive(Serialize)]
struct Version {
    version: &'static str,
    contract: u32,
    target: String,
}

fn version() -> Version {
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    Version { version: env!("CARGO_PKG_VERSION"), contract: towpath_ring::layout::VERSION, target }
}

/// The version as JSON.
pub fn json() -> String {
    crate::json::line(&version())
}

/// Shows it.
pub fn run(arguments: &Arguments) -> ExitCode {
    if arguments.json {
        return print(&json());
    }
    let version = version();
    print(&format!("towpath {} ({}), version {} of the contract\n", version.version, version.target, version.contract))
}
