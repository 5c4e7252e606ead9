//! `towpath cores explain`: why this many CPUs are reserved, and what would change it.

use super::decider_status::DeciderStatus;
use super::show::plain;
use clap::Args;
use std::fmt::Write;
use std::path::PathBuf;

/// Shows the last decisions, and what the next one waits for.
#[derive(Args)]
pub struct Arguments {
    /// What an `observe --state PATH` writes, in place of what the running `enforce` does
    #[arg(long, value_name = "PATH")]
    state: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Explains.
pub fn run(arguments: &Arguments) -> Result<String, String> {
    let status = DeciderStatus::find(arguments.state.as_deref())?;
    let status =
        status.ok_or("nobody decides: start `towpath cores enforce`, or `towpath cores observe --state PATH`")?;
    if arguments.json {
        let value = serde_json::json!({
            "interface": status.interface, "mode": status.mode, "pid": status.pid, "cores": status.cores,
            "reserved": status.reserved, "explanation": status.explanation, "decisions": status.decisions,
        });
        return Ok(crate::json::line(&value));
    }
    Ok(page(&status))
}

/// The page for people.
pub fn page(status: &DeciderStatus) -> String {
    let mut text = status.headline() + "\nthe last decisions:\n";
    for told in &status.decisions {
        let lasted = if told.ticks > 1 { format!(" (for {} s)", told.ticks) } else { String::new() };
        let entry = told.entry.text();
        let line = entry.lines().next().unwrap_or_default();
        let _ = writeln!(text, "{}{lasted}", plain(line));
    }
    text + &status.explanation.text(status.cores)
}
