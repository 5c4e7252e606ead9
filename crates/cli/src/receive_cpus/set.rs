//! `towpath cores set`: the number of threads of a service's stack, by hand.

use crate::json;
use crate::locate::Which;
use clap::Args;
use towpath_scaling::counted;
use towpath_service::api::{self, Command, SetCores, Sizing};

/// Sets the number of workers of a service's stack.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// This many from now on, or `auto`: as the service's configuration says
    #[arg(value_name = "N|auto", value_parser = cores)]
    cores: SetCores,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

fn cores(text: &str) -> Result<SetCores, String> {
    if text == "auto" {
        return Ok(SetCores::Auto);
    }
    text.parse().map(SetCores::To).map_err(|_| "a number of workers, or auto".into())
}

/// Sets it.
pub fn run(arguments: &Arguments) -> Result<String, String> {
    let socket = arguments.which.find().map_err(|error| error.to_string())?;
    let command = Command::Cores { set: Some(arguments.cores) };
    let sizing: Sizing = api::ask(&socket, command).map_err(|error| error.to_string())?;
    if arguments.json {
        return Ok(json::line(&sizing));
    }
    Ok(format!("{} of at most {}: {}\n", counted(sizing.workers, "worker"), sizing.most, sizing.why))
}
