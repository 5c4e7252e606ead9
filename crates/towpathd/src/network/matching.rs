//! The interfaces that a pattern chooses, or that the default routes lead to.

use super::netlink::Netlink;
use netlink_packet_route::AddressFamily;
use std::io;
use towpath_ports::link::Link;
use towpath_service::config::Selector;

/// A device of this namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The device whose port it is.
    pub controller: Option<u32>,
    /// Ports of it stay interfaces of their own, with addresses and routes: a VRF.
    pub is_vrf: bool,
}

/// Those that can be served now, in the order of their indices: they are up, have Ethernet frames, and are no port of a
/// bond, a team or a bridge. Such a port's packets belong to the device above it.
pub fn matching(netlink: &mut Netlink, selector: &Selector) -> io::Result<Vec<Named>> {
    let all = netlink.devices()?;
    let mut found = chosen(&all, selector, &mut |family| netlink.default_routes(family))?;
    found.retain(|device| {
        let link = Link::of(device.index).ok().flatten();
        link.is_some_and(|link| link.up && link.refusal().is_none())
    });
    Ok(found)
}

fn chosen(
    all: &[Named],
    selector: &Selector,
    default_routes: &mut dyn FnMut(AddressFamily) -> io::Result<Vec<u32>>,
) -> io::Result<Vec<Named>> {
    let mut found = all.to_vec();
    match selector {
        Selector::Name(name) => found.retain(|device| device.name == *name),
        Selector::Pattern(pattern) => found.retain(|device| pattern.matches(&device.name)),
        Selector::DefaultRoute => {
            let mut by_routes = default_routes(AddressFamily::Inet)?;
            by_routes.extend(default_routes(AddressFamily::Inet6)?);
            found.retain(|device| by_routes.contains(&device.index));
        }
    }
    let is_vrf = |index: u32| all.iter().any(|device| device.index == index && device.is_vrf);
    found.retain(|device| device.controller.is_none_or(is_vrf));
    found.sort_by_key(|device| device.index);
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ports_of_other_devices_are_left_to_these() {
        let device = |index, name: &str, controller| Named { index, name: name.into(), controller, is_vrf: index == 9 };
        let all = [
            device(5, "eth3", Some(9)),
            device(2, "eth0", Some(4)),
            device(3, "eth1", None),
            device(4, "bond0", None),
            device(9, "blue", None),
        ];
        let names = |text: &str| -> Vec<String> {
            let selector = Selector::parse(text).unwrap();
            let mut routes = |family| Ok(if family == AddressFamily::Inet { vec![4, 2] } else { vec![3, 4] });
            chosen(&all, &selector, &mut routes).unwrap().into_iter().map(|device| device.name).collect()
        };
        assert_eq!(names("eth*"), ["eth1", "eth3"], "a port of a VRF is an interface of its own");
        assert_eq!(names("default-route"), ["eth1", "bond0"]);
        assert_eq!(names("wl*"), [""; 0]);
    }
}
