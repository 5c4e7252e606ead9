//! `towpath move`: moves the clients of a stack to another kernel, with their connections.

use crate::json;
use crate::locate::{NoService, Which};
use towpath_service::api::{self, Command, Moved};

/// Moves all programs of a stack that has a standby (`towpath kernel-stack --uml --standby DEVICE`) to the other
/// kernel, with their listeners and connections.
///
/// Programs notice only that nothing arrives for a moment. Only the service's own user and root may do this.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath kernel-stack --uml --name a --standby tap0 --guest-tap tap0 --guest-address 10.0.0.2/24 --guest-gateway 10.0.0.1
  towpath move --stack kernel=a --to uml            into user-mode Linux
  towpath move --stack kernel=a --to host           and back")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Where to: host, uml, qemu
    #[arg(long, value_name = "PLACE")]
    to: String,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Asks the service to move them.
pub fn run(arguments: &Arguments) -> Result<String, NoService> {
    let socket = arguments.which.find()?;
    let moved: Moved = api::ask(&socket, Command::Move { to: arguments.to.clone() })?;
    if arguments.json {
        return Ok(json::line(&moved));
    }
    let Moved { clients, connections, lost, took_us } = moved;
    let reset = if lost == 0 { String::new() } else { format!(", {lost} reset") };
    Ok(format!("{clients} programs, {connections} connections{reset}, {} ms\n", took_us / 1000))
}
