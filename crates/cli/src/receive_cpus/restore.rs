//! `towpath cores restore`.

use super::lock::{self, Lock};
use clap::Args;
use std::fmt::Write as _;
use std::io::Write as _;
use towpath_rxcpus::{Journal, Machine, Restored, Tree, journal_place};
use towpath_scaling::counted;

/// Puts back the settings that an `enforce` has left.
#[derive(Args)]
pub struct Arguments {
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Puts it back.
pub fn run(arguments: &Arguments) -> Result<String, String> {
    let _alone = Lock::take(&lock::usual_place(), "restore")?;
    let tree = Tree::default();
    let restored =
        Journal::restore(&journal_place(), &tree, &Machine::read(&tree).boot_id).map_err(|error| error.to_string())?;
    let said = match &restored {
        _ if arguments.json => crate::json::line(&serde_json::json!({ "restored": restored })),
        Some(restored) => text(restored),
        None => "nothing to put back\n".into(),
    };
    if let Err(error) = refuse_failures(restored.as_deref().unwrap_or_default()) {
        let _ = std::io::stdout().lock().write_all(said.as_bytes());
        return Err(error);
    }
    Ok(said)
}

/// Fails if a setting could not be put back.
pub fn refuse_failures(restored: &[Restored]) -> Result<(), String> {
    let failed = restored.iter().filter(|result| matches!(result, Restored::Failed { .. })).count();
    match failed {
        0 => Ok(()),
        _ => Err(format!("{} could not be put back: `towpath cores restore` tries again", counted(failed, "setting"))),
    }
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
