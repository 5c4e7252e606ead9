//! What a reload has done.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Answer to [`super::Command::Reload`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// The configuration file.
    pub file: PathBuf,
    /// Keys whose new values are in force.
    pub changed: Vec<String>,
    /// Keys whose new values need a restart of the service.
    pub restart: Vec<String>,
    /// Rules of the policy that is in force.
    pub rules: usize,
    /// `towpath policy` had changed the rules; those of the file are in force again.
    pub edited: bool,
}

impl Reloaded {
    /// One line.
    pub fn line(&self) -> String {
        let mut line = match &self.changed[..] {
            [] => "nothing changed".to_owned(),
            keys => format!("changed {}", keys.join(", ")),
        };
        if self.edited {
            line += "; the rules are those of the file again, without the changes of `towpath policy`";
        }
        if !self.restart.is_empty() {
            line += &format!("; only a restart changes {}", self.restart.join(", "));
        }
        format!("{}: {line}", self.file.display())
    }
}
