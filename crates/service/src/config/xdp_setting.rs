//! The key `xdp`.

use serde::Deserialize;

/// Where the XDP program of a served interface runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpSetting {
    /// In the driver if it can, else in the kernel's generic receive path.
    #[default]
    Driver,
    /// In the kernel's generic receive path, where a virtual device's super-segments come whole.
    Generic,
}
