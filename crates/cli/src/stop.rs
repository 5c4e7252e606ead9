//! `towpath stop`: ends the service.

use crate::complain;
use crate::json;
use crate::locate::{NoService, Which};
use std::path::Path;
use std::time::{Duration, Instant};
use towpath_service::api::{self, AskError, Command, Stopping};

/// How often the service is asked what is left.
const TICK: Duration = Duration::from_millis(100);
/// How often that is said.
const SAID: Duration = Duration::from_secs(2);

/// Ends the service. Accelerated connections end with it, as when a network goes down. Listeners go on as the kernel's, and so
/// do connections that the kernel has accepted.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath stop
  towpath stop --drain 30

With --drain new sockets are the kernel's at once, and listeners accept by their kernel halves. The service ends when no
accelerated connection is left, or after so many seconds. A second `towpath stop` ends it at once.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Wait so long for accelerated connections to end
    #[arg(long, value_name = "SECONDS")]
    drain: Option<u32>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Asks it to end.
pub fn run(arguments: &Arguments) -> Result<String, NoService> {
    let socket = arguments.which.find()?;
    if let Some(seconds) = arguments.drain {
        drain(&socket, Duration::from_secs(seconds.into()))?;
    }
    let stopping: Stopping = api::ask(&socket, Command::Stop { drain_s: None })?;
    if arguments.json {
        return Ok(json::line(&stopping));
    }
    let left = match (arguments.drain, stopping.connections) {
        (None, _) => String::new(),
        (Some(_), 0) => "; no accelerated connection was left".into(),
        (Some(_), left) => format!("; {} lost", connections(left)),
    };
    Ok(format!("process {} ends{left}\n", stopping.pid))
}

/// Waits until no accelerated connection is left, or the time is over.
fn drain(socket: &Path, time: Duration) -> Result<(), AskError> {
    let begun = Instant::now();
    let mut said = begun;
    loop {
        let left = time.saturating_sub(begun.elapsed());
        let seconds = u32::try_from(left.as_secs() + 1).unwrap_or(u32::MAX);
        let Stopping { connections: open, .. } = api::ask(socket, Command::Stop { drain_s: Some(seconds) })?;
        if open == 0 || left.is_zero() {
            return Ok(());
        }
        if said.elapsed() >= SAID {
            said = Instant::now();
            complain(&format!("{} left, for {} s at most", connections(open), left.as_secs()));
        }
        std::thread::sleep(TICK.min(left));
    }
}

fn connections(number: usize) -> String {
    match number {
        1 => "1 accelerated connection is".into(),
        number => format!("{number} accelerated connections are"),
    }
}
