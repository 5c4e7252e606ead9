//! `towpath reset`: ends connections that a new rule would refuse.

use crate::json;
use crate::locate::{NoService, Which};
use towpath_service::api::{self, Command, Reset, ResetDone};

/// Ends accelerated connections: the peer sees a reset, and the program ECONNABORTED. New rules of the firewall and of the
/// policy hold for new connections, so end those that they would refuse.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath reset --peer 192.0.2.0/24
  towpath reset --port 25 --peer 10.0.0.0/8 --json

All that is said must be so of a connection. The kernel's connections are not concerned: `ss -K` ends those.
Exit codes: 0 done, also if there was none; 3 no service, or it refused.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Block of the peer's address
    #[arg(long, value_name = "CIDR", required_unless_present_any = ["local", "port"])]
    peer: Option<String>,
    /// Block of the connection's own address
    #[arg(long, value_name = "CIDR")]
    local: Option<String>,
    /// Port of either end
    #[arg(long, value_name = "N")]
    port: Option<u16>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Has the service end them.
pub fn run(arguments: &Arguments) -> Result<String, NoService> {
    let socket = arguments.which.find()?;
    let which = Reset { peer: arguments.peer.clone(), local: arguments.local.clone(), port: arguments.port };
    let done: ResetDone = api::ask(&socket, Command::Reset(which))?;
    if arguments.json {
        return Ok(json::line(&done));
    }
    Ok(format!("{} connections reset\n", done.reset))
}
