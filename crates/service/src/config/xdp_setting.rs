//! The key `xdp`.

use serde::Deserialize;
use std::fmt;

/// Where the XDP program of a served interface runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum XdpSetting {
    /// In the driver if it can, else in the kernel's generic receive path.
    #[default]
    Driver,
    /// In the kernel's generic receive path, where a virtual device's super-segments come whole.
    Generic,
}

impl fmt::Display for XdpSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Driver { "driver" } else { "generic" })
    }
}
