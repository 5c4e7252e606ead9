//! `towpath stop`: ends the service.

use crate::locate::{NoService, Which};
use towpath_service::api::{self, Command, Hello};

/// Ends the service. Connections over it are lost.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  towpath stop")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Asks it to end.
pub fn run(arguments: &Arguments) -> Result<String, NoService> {
    let socket = arguments.which.find()?;
    let hello: Hello = api::ask(&socket, Command::Stop)?;
    if arguments.json {
        return Ok(serde_json::to_string(&hello).unwrap_or_default() + "\n");
    }
    Ok(format!("process {} ends\n", hello.pid))
}
