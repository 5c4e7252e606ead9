//! What a network device can do for a stack in user space.

use crate::{ethtool, netdev};
use rustix::net::{AddressFamily, SocketType, netdevice::name_to_index, socket};
use serde::Serialize;
use std::io;
use std::path::Path;

/// A network device of this namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// Its driver; of most virtual devices their kind.
    pub driver: String,
    /// A virtual device: there is no hardware behind it, or another host's software.
    pub is_virtual: bool,
    /// Its receive queues.
    pub queues: u32,
    /// What its driver does for XDP. `None`: the kernel does not say (Linux 6.3 does).
    pub xdp: Option<Xdp>,
    /// How it deals segments of TCP out to its queues. `None`: it does not say.
    pub rss: Option<Rss>,
    /// Offloads that are on: `rx` and `tx` checksums, `tso`, `gso`, `gro`, `lro`.
    pub offloads: Vec<&'static str>,
}

/// A driver's XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Xdp {
    /// It runs programs, and redirects frames.
    pub native: bool,
    /// AF_XDP sockets share frames with it without a copy.
    pub zero_copy: bool,
}

/// Receive side scaling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rss {
    /// Queues that its table names.
    pub queues: u32,
    /// It looks at ports, not at addresses alone. `None`: it does not say.
    pub by_ports: Option<bool>,
}

impl Nic {
    /// The devices of this namespace that could be served, in the order of their names.
    pub fn all() -> io::Result<Vec<Self>> {
        let class = Path::new("/sys/class/net");
        let mut names: Vec<String> = std::fs::read_dir(class)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| is_ethernet(&class.join(name)))
            .collect();
        names.sort();
        Ok(names.iter().map(|name| Self::of(name, &class.join(name))).collect())
    }

    fn of(name: &str, folder: &Path) -> Self {
        let (driver, bus) = ethtool::driver(name).unwrap_or_default();
        let link = std::fs::read_link(folder.join("device/driver")).ok();
        let link = link.and_then(|link| link.file_name()?.to_str().map(str::to_owned));
        let driver = if driver.is_empty() { link.unwrap_or_else(|| "?".into()) } else { driver };
        let is_virtual = bus.is_empty() || driver.starts_with("virtio") || !folder.join("device").exists();
        let queues = std::fs::read_dir(folder.join("queues")).into_iter().flatten().flatten();
        let queues = queues.filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-")).count();
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok();
        let index = socket.and_then(|socket| name_to_index(&socket, name).ok());
        Self {
            name: name.into(),
            driver,
            is_virtual,
            queues: queues as u32,
            xdp: index.and_then(|index| netdev::xdp_features(index).ok().flatten()).map(Xdp::of),
            rss: rss(name),
            offloads: ethtool::offloads(name),
        }
    }
}

/// Bits of `netdev_xdp_act` (linux/netdev.h).
const BASIC: u64 = 1;
const REDIRECT: u64 = 2;
const XSK_ZEROCOPY: u64 = 8;

impl Xdp {
    fn of(bits: u64) -> Self {
        Self { native: bits & (BASIC | REDIRECT) == BASIC | REDIRECT, zero_copy: bits & XSK_ZEROCOPY != 0 }
    }
}

/// Is it a device with Ethernet frames that is no loopback device?
fn is_ethernet(folder: &Path) -> bool {
    // ARPHRD_ETHER.
    std::fs::read_to_string(folder.join("type")).is_ok_and(|kind| kind.trim() == "1")
}

fn rss(name: &str) -> Option<Rss> {
    let table = ethtool::table(name).ok()?;
    let mut named = table.buckets;
    named.sort_unstable();
    named.dedup();
    Some(Rss { queues: named.len() as u32, by_ports: ethtool::hashes_ports(name).ok() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_loopback_device_is_none_and_each_other_has_a_driver() {
        let all = Nic::all().unwrap();
        assert!(all.iter().all(|nic| nic.name != "lo" && !nic.driver.is_empty()), "{all:?}");
    }

    #[test]
    fn what_a_driver_says_of_xdp_is_read_by_its_bits() {
        assert_eq!(Xdp::of(0), Xdp::default());
        assert_eq!(Xdp::of(1), Xdp::default(), "it redirects nothing");
        assert_eq!(Xdp::of(0x3 | 0x20), Xdp { native: true, zero_copy: false });
        assert_eq!(Xdp::of(0x7f), Xdp { native: true, zero_copy: true });
    }
}
