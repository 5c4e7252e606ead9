#![allow(clippy::unwrap_used)]
use super::netlink::Neighbour;
use super::*;
use std::net::{IpAddr, Ipv4Addr};

fn embedded() -> HostNetwork {
    HostNetwork::new(65_535).unwrap()
}

#[test]
fn loopback_addresses_go_to_port_0() {
    let mut network = embedded();
    let remote = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 5));
    let link = Link { port: LOOPBACK, source: [0; 6], destination: [0; 6], vlan: None };
    assert_eq!(network.route(remote, None), Route::Via { link, source: remote, mtu: 65_535 });
    assert_eq!(
        network.route(remote, Some(IpAddr::V4(Ipv4Addr::LOCALHOST))),
        Route::Via { link, source: IpAddr::V4(Ipv4Addr::LOCALHOST), mtu: 65_535 }
    );
}

#[test]
fn the_ipv6_loopback_is_ours_too() {
    let mut network = embedded();
    let remote = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);
    let link = Link { port: LOOPBACK, source: [0; 6], destination: [0; 6], vlan: None };
    assert!(network.is_local(remote));
    assert_eq!(network.route(remote, None), Route::Via { link, source: remote, mtu: 65_535 });
    for elsewhere in ["2001:db8::1", "::", "ff02::1"] {
        assert_eq!(network.route(elsewhere.parse().unwrap(), None), Route::NotOurs, "{elsewhere}");
    }
    let route = Netlink::connect().unwrap().route(remote, None).unwrap();
    assert!(route.local);
}

#[test]
fn own_addresses_are_the_kernels_list() {
    let network = embedded();
    let mut netlink = Netlink::connect().unwrap();
    for address in netlink.addresses().unwrap() {
        assert!(network.is_local(address), "{address}");
    }
    assert!(!network.is_local(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))));
}

#[test]
fn everything_else_is_the_kernels_without_an_interface() {
    let mut network = embedded();
    for remote in ["192.0.2.1", "0.0.0.0", "224.0.0.1", "255.255.255.255"] {
        assert_eq!(network.route(remote.parse().unwrap(), None), Route::NotOurs, "{remote}");
    }
}

#[test]
fn the_kernel_says_what_is_local() {
    let route = Netlink::connect().unwrap().route(IpAddr::V4(Ipv4Addr::new(127, 1, 2, 3)), None).unwrap();
    assert!(route.local);
    assert_eq!(route.source, Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
}

#[test]
fn an_unknown_neighbour_is_unknown() {
    // Interface 1 is lo, which has no neighbours.
    let answer = Netlink::connect().unwrap().neighbour(1, IpAddr::V4(Ipv4Addr::new(192, 0, 2, 77))).unwrap();
    assert_eq!(answer, Neighbour::Unknown);
}
