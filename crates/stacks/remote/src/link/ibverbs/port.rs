//! Finds the adapter port that has an IP address, in the kernel's files.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Where the kernel lists adapters.
pub const ADAPTERS: &str = "/sys/class/infiniband";

/// A port with an address for packets over IP (RoCE).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its adapter.
    pub device: String,
    /// Its number, from 1.
    pub number: u8,
    /// Index of the address.
    pub gid_index: u8,
    /// The address.
    pub gid: [u8; 16],
}

/// An IP address as an adapter's address (RoCE: IPv6, or IPv4 mapped into it).
fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Port {
    /// The port with this address. RoCE v2, which runs over UDP and can be routed, is preferred to v1.
    pub fn of(adapters: &Path, address: IpAddr) -> io::Result<Self> {
        let wanted = gid(address);
        let mut found: Vec<(bool, Self)> = Vec::new();
        for device in entries(adapters) {
            for port in entries(&device.join("ports")) {
                found.extend(Self::on(&device, &port, wanted));
            }
        }
        found.sort_by_key(|(routed, port)| (!routed, port.gid_index));
        let missing = || {
            let why = format!(
                "no RDMA adapter with RoCE has the address {address} (`rdma link show` lists adapters; one in software: \
                 rdma link add rxe0 type rxe netdev DEVICE)"
            );
            io::Error::new(io::ErrorKind::NotFound, why)
        };
        found.into_iter().next().map(|(_, port)| port).ok_or_else(missing)
    }

    fn on(device: &Path, port: &Path, wanted: [u8; 16]) -> Option<(bool, Self)> {
        (line(&port.join("link_layer"))? == "Ethernet").then_some(())?;
        let of = |index: PathBuf| {
            let number = index.file_name()?.to_str()?.parse().ok()?;
            (line(&index)?.parse::<std::net::Ipv6Addr>().ok()?.octets() == wanted).then_some(())?;
            let kind = line(&port.join("gid_attrs/types").join(index.file_name()?))?;
            Some((kind == "RoCE v2", number))
        };
        let mut all: Vec<(bool, u8)> = entries(&port.join("gids")).into_iter().filter_map(of).collect();
        all.sort_by_key(|(routed, number)| (!routed, *number));
        let (routed, gid_index) = *all.first()?;
        let number = port.file_name()?.to_str()?.parse().ok()?;
        Some((routed, Self { device: device.file_name()?.to_str()?.to_owned(), number, gid_index, gid: wanted }))
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    all.sort();
    all
}

fn line(file: &Path) -> Option<String> {
    Some(std::fs::read_to_string(file).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Name, link layer, and addresses with their types.
    type Described<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

    /// Adapters with one port each.
    fn adapters(name: &str, all: &[Described<'_>]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("towpath-port-{name}-{}", std::process::id()));
        for (device, layer, gids) in all {
            let port = root.join(device).join("ports/1");
            std::fs::create_dir_all(port.join("gids")).unwrap();
            std::fs::create_dir_all(port.join("gid_attrs/types")).unwrap();
            std::fs::write(port.join("link_layer"), format!("{layer}\n")).unwrap();
            for (index, (gid, kind)) in gids.iter().enumerate() {
                std::fs::write(port.join("gids").join(index.to_string()), format!("{gid}\n")).unwrap();
                if !kind.is_empty() {
                    std::fs::write(port.join("gid_attrs/types").join(index.to_string()), format!("{kind}\n")).unwrap();
                }
            }
        }
        root
    }

    const LOCAL: &str = "fe80:0000:0000:0000:5054:00ff:fe00:0001";
    const FOUR: &str = "0000:0000:0000:0000:0000:ffff:0a61:0702";
    const NONE: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

    #[test]
    fn the_port_that_has_an_address_is_found_and_roce_v2_preferred() {
        let root = adapters(
            "found",
            &[
                ("ib0", "InfiniBand", &[(FOUR, "IB/RoCE v1")]),
                ("mlx5_0", "Ethernet", &[(LOCAL, "RoCE v2"), (NONE, "")]),
                (
                    "mlx5_1",
                    "Ethernet",
                    &[(LOCAL, "IB/RoCE v1"), (FOUR, "IB/RoCE v1"), (FOUR, "RoCE v2"), (FOUR, "RoCE v2")],
                ),
            ],
        );
        let port = Port::of(&root, "10.97.7.2".parse().unwrap()).unwrap();
        assert_eq!((port.device.as_str(), port.number, port.gid_index), ("mlx5_1", 1, 2));
        assert_eq!(port.gid, *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x61\x07\x02");
        let port = Port::of(&root, "fe80::5054:ff:fe00:1".parse().unwrap()).unwrap();
        assert_eq!((port.device.as_str(), port.gid_index), ("mlx5_0", 0));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn an_address_that_no_adapter_has_is_said_to_be_none() {
        let root = adapters("none", &[("rxe0", "Ethernet", &[(LOCAL, "RoCE v2")])]);
        for root in [root.as_path(), Path::new("/nowhere")] {
            let why = Port::of(root, "10.97.7.2".parse().unwrap()).unwrap_err();
            assert!(why.to_string().contains("10.97.7.2") && why.to_string().contains("rdma link add"), "{why}");
        }
        std::fs::remove_dir_all(root).unwrap();
    }
}
