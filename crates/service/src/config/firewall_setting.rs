//! The key `firewall`.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Who judges the first SYNs of connections over the served interface?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FirewallSetting {
    /// The kernel's firewall, and then the policy.
    #[default]
    Respect,
    /// The policy alone.
    Own,
}

impl fmt::Display for FirewallSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Respect { "respect" } else { "own" })
    }
}
