//! The table of network devices: what each can do for a service, and which port it would be served by.

use serde::Serialize;
use std::fmt::Write;
use towpath_rxcpus::Nic;
use towpath_service::api::InterfaceStatus;

/// Below the table.
const TESTED: &str = "Which devices were tested: docs/reference/devices.md\n";

/// A device, and the port.
#[derive(Debug, Serialize)]
pub struct Fitness {
    #[serde(flatten)]
    nic: Nic,
    /// The port by which it is served, or would be with `port = "auto"`.
    port: String,
    /// The reason.
    why: String,
    /// A service serves it.
    served: bool,
}

/// All devices of this namespace. `served`: those that the service serves. `tcx`: this kernel has the hook that packet sockets
/// need.
pub fn all(served: &[InterfaceStatus], tcx: bool) -> Vec<Fitness> {
    Nic::all().unwrap_or_default().into_iter().map(|nic| Fitness::of(nic, served, tcx)).collect()
}

impl Fitness {
    fn of(nic: Nic, served: &[InterfaceStatus], tcx: bool) -> Self {
        if let Some(link) = served.iter().find(|link| link.name == nic.name) {
            let (port, why) = (link.mode.clone(), link.reason.clone());
            return Self { nic, port, why, served: true };
        }
        let native = nic.xdp.map(|xdp| xdp.native);
        let (port, why) = match (nic.driver.as_str(), native) {
            ("bridge", _) => ("none", "a bridge: serve an interface that is no port of one"),
            _ if nic.is_virtual && tcx => ("packet", "a virtual device"),
            (_, Some(true)) if nic.is_virtual => {
                ("xdp", "this kernel has no tcx hook for packet sockets; Linux 6.6 has")
            }
            (_, Some(true)) => ("xdp", "hardware whose driver runs XDP programs"),
            (_, Some(false)) => ("xdp-generic", "its driver runs no XDP program"),
            (_, None) => ("xdp", "or xdp-generic: this kernel does not say whether its driver runs XDP programs"),
        };
        Self { nic, port: port.into(), why: why.into(), served: false }
    }
}

/// The human form, of 80 columns.
pub fn table(all: &[Fitness]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut out =
        format!("\n{:<15} {:<13} {:>6}  {:<17} {:<11} Offloads\n", "Interface", "Driver", "Queues", "XDP", "RSS");
    for Fitness { nic, port, why, served } in all {
        let xdp = match nic.xdp {
            None => "?",
            Some(xdp) if !xdp.native => "no",
            Some(xdp) if xdp.zero_copy => "native, zero-copy",
            Some(_) => "native",
        };
        let rss = match nic.rss {
            None => "no".to_owned(),
            Some(rss) => {
                let by = match rss.by_ports {
                    None => "",
                    Some(true) => ", ports",
                    Some(false) => ", hosts",
                };
                format!("{}{by}", rss.queues)
            }
        };
        let offloads = nic.offloads.join(",");
        let (name, driver, queues) = (&nic.name, &nic.driver, nic.queues);
        let line = format!("{name:<15} {driver:<13} {queues:>6}  {xdp:<17} {rss:<11} {offloads}");
        let _ = writeln!(out, "{}", line.trim_end());
        let verb = if *served { "served by" } else { "would be served by" };
        let _ = writeln!(out, "  {verb} {port}: {why}");
    }
    out.push_str(TESTED);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_rxcpus::{Rss, Xdp};

    fn nic(name: &str, driver: &str, is_virtual: bool, xdp: Option<Xdp>) -> Nic {
        Nic { name: name.into(), driver: driver.into(), is_virtual, queues: 8, xdp, ..Nic::default() }
    }

    #[test]
    fn the_port_is_the_one_that_a_service_would_choose() {
        let native = Some(Xdp { native: true, zero_copy: true });
        let port = |nic, tcx| Fitness::of(nic, &[], tcx).port;
        assert_eq!(port(nic("eth0", "mlx5_core", false, native), true), "xdp");
        assert_eq!(port(nic("eth0", "e1000e", false, Some(Xdp::default())), true), "xdp-generic");
        assert_eq!(port(nic("eth0", "old", false, None), true), "xdp");
        assert_eq!(port(nic("eth0", "virtio_net", true, native), true), "packet");
        assert_eq!(port(nic("eth0", "virtio_net", true, native), false), "xdp");
        assert_eq!(port(nic("br0", "bridge", true, None), true), "none");
        let link = InterfaceStatus { name: "eth0".into(), mode: "xdp".into(), ..InterfaceStatus::default() };
        let served = Fitness::of(nic("eth0", "veth", true, None), &[link], true);
        assert!(served.served && served.port == "xdp");
    }

    #[test]
    fn the_table() {
        let native = Some(Xdp { native: true, zero_copy: true });
        let rss = Some(Rss { queues: 8, by_ports: Some(true) });
        let hardware = Nic { rss, offloads: vec!["rx", "tx", "tso"], ..nic("enp1s0f0", "mlx5_core", false, native) };
        let all = [hardware, nic("veth0", "veth", true, None)].map(|nic| Fitness::of(nic, &[], true));
        let expected = "
Interface       Driver        Queues  XDP               RSS         Offloads
enp1s0f0        mlx5_core          8  native, zero-copy 8, ports    rx,tx,tso
  would be served by xdp: hardware whose driver runs XDP programs
veth0           veth               8  ?                 no
  would be served by packet: a virtual device
Which devices were tested: docs/reference/devices.md
";
        assert_eq!(table(&all), expected);
        assert_eq!(table(&[]), "");
    }
}
