//! The key `port`.

use serde::Deserialize;

/// How frames of a served interface come to the stack, and leave it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortSetting {
    /// By packet sockets where the interface is virtual and the kernel can do it, else by XDP.
    #[default]
    Auto,
    /// By XDP in the driver if it can, else in the kernel's generic receive path.
    Xdp,
    /// By XDP in the kernel's generic receive path, where a virtual device's super-segments come whole.
    XdpGeneric,
    /// By packet sockets: super-segments come and go whole.
    Packet,
}
