//! `towpath log-level`: which lines a service writes to its log.

use crate::json;
use crate::locate::{NoService, Which};
use towpath_service::api::{self, Command, LogLevel};

/// Shows or sets which lines a running service writes to its log.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath log-level                                   which lines are written now
  towpath log-level debug
  towpath log-level warn,towpath_service=debug
  towpath log-level --reset                           as the service was started

FILTER is a list of levels (off, error, warn, info, debug, trace) and of TARGET=LEVEL, as in TOWPATH_LOG. It holds for the process that
serves, until it ends: one that follows it begins with TOWPATH_LOG. The broker beside it always writes what that says.
Exit codes: 0 done; 3 no service, or it refused.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// The lines that are written from now on
    #[arg(value_name = "FILTER")]
    filter: Option<String>,
    /// Those of the start again
    #[arg(long, conflicts_with = "filter")]
    reset: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Asks the service.
pub fn run(arguments: &Arguments) -> Result<String, NoService> {
    let socket = arguments.which.find()?;
    let command = Command::Log { filter: arguments.filter.clone(), reset: arguments.reset };
    let level: LogLevel = api::ask(&socket, command)?;
    Ok(if arguments.json { json::line(&level) } else { text(&level) })
}

fn text(LogLevel { filter, start }: &LogLevel) -> String {
    if filter == start { format!("{filter}\n") } else { format!("{filter} (started with {start})\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_shown_beside_that_of_the_start() {
        let level = |filter: &str| LogLevel { filter: filter.into(), start: "info".into() };
        assert_eq!(text(&level("info")), "info\n");
        assert_eq!(text(&level("debug")), "debug (started with info)\n");
    }
}
