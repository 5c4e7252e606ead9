//! The key `sandbox`.

use serde::Deserialize;
use std::fmt;

/// Does the process that serves give up what it does not need?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SandboxSetting {
    /// Yes.
    #[default]
    On,
    /// No.
    Off,
}

impl fmt::Display for SandboxSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::On { "on" } else { "off" })
    }
}
