//! `towpath cores restore`.

use super::journal;
use clap::Args;
use std::fmt::Write;
use towpath_anp::{Journal, Machine, Restored, Tree};

/// Puts back what an `enforce` has left.
#[derive(Args)]
pub struct Arguments {
    /// JSON
    #[arg(long)]
    json: bool,
}

/// Puts it back.
pub fn run(arguments: &Arguments) -> Result<String, String> {
    let tree = Tree::default();
    let restored =
        Journal::restore(&journal(), &tree, &Machine::read(&tree).boot_id).map_err(|error| error.to_string())?;
    if arguments.json {
        return serde_json::to_string(&restored).map(|text| text + "\n").map_err(|error| error.to_string());
    }
    Ok(restored.map_or_else(|| "nothing to put back\n".into(), |restored| text(&restored)))
}

/// One line for each file.
pub fn text(restored: &[Restored]) -> String {
    let mut text = String::new();
    for result in restored {
        let _ = match result {
            Restored::Back { path, value } => writeln!(text, "back    {path} {value}"),
            Restored::Others { path, value } => {
                writeln!(text, "left    {path} {value} (somebody else has set it since)")
            }
            Restored::Gone { path } => writeln!(text, "gone    {path}"),
            Restored::Failed { path, error } => writeln!(text, "failed  {path}: {error}"),
        };
    }
    text
}
