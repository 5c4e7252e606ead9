//! `towpath reload`: the service reads its configuration file again.

use crate::json;
use crate::locate::{NoService, Which};
use towpath_service::api::{self, Command, Reloaded};

/// Has the service read its configuration file again, with the policy in it. SIGHUP does the same. A file that is wrong
/// changes nothing.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath check-config /etc/towpath.toml && towpath reload
  towpath reload --json

While the service runs it takes over admit, policy, policy_default, clients_per_user and idle_exit. The answer names
changed keys that need a restart. The rules become those of the file, whatever `towpath policy` has changed.
Exit codes: 0 read; 3 no service, or the file is wrong and nothing has changed.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Asks it to read the file.
pub fn run(arguments: &Arguments) -> Result<String, NoService> {
    let socket = arguments.which.find()?;
    let reloaded: Reloaded = api::ask(&socket, Command::Reload)?;
    if arguments.json {
        return Ok(json::line(&reloaded));
    }
    Ok(reloaded.line() + "\n")
}
