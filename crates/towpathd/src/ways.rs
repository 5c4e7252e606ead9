//! Whether the routes of another network namespace lead to an address of the served one, without a router between them.
//!
//! This runs in a process of its own, which enters the namespaces one after the other and does not come back.

use crate::network::netlink::{Device, Netlink};
use crate::network::segments::{Devices, Place, segment};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, ipproto, socket_with};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use towpath_service::policy::Namespaces;
use towpath_service::{netns, proc_links};

/// Where the served namespace is in the list.
const SERVED: usize = 0;

/// A way from another namespace.
#[derive(Debug)]
pub struct Way {
    /// A socket in that namespace, bound to `local`.
    pub own: OwnedFd,
    /// The address that its kernel chooses, and a port.
    pub local: SocketAddr,
    /// The served namespace's device with the address.
    pub device: u32,
}

/// One namespace. Its socket stays in it, wherever this process goes.
struct Entered {
    file: File,
    netlink: Netlink,
}

impl Entered {
    /// The one in which this process is.
    fn here() -> io::Result<Self> {
        Ok(Self { file: File::open("/proc/thread-self/ns/net")?, netlink: Netlink::connect()? })
    }
}

/// Those of the configuration: the served one, then the others in their order. `None`: it is not there now.
struct All(Vec<Option<Entered>>);

impl All {
    fn at(&mut self, place: usize) -> io::Result<&mut Entered> {
        self.0.get_mut(place).and_then(Option::as_mut).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Devices for All {
    fn device(&mut self, (place, index): Place) -> io::Result<Device> {
        self.at(place)?.netlink.device(index)
    }

    fn numbered(&mut self, from: usize, number: i32) -> io::Result<Option<usize>> {
        for place in 0..self.0.len() {
            let Some(other) = &self.0[place] else { continue };
            let file = other.file.try_clone()?;
            if self.at(from)?.netlink.number_of(file.as_fd())? == Some(number) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }
}

/// The way of a process of the namespace at this place to an address of the served one. An error is an errno.
pub fn way(namespaces: &Namespaces, place: u32, process: i32, remote: IpAddr) -> io::Result<Way> {
    let errno = |errno: i32| io::Error::from_raw_os_error(errno);
    let own_only = remote.is_loopback() || remote.is_unspecified() || remote.is_multicast() || is_link_local(remote);
    let from = namespaces.others.get(place as usize).filter(|_| !own_only).ok_or(errno(libc::EINVAL))?;
    let mut all = All(vec![Some(Entered::here()?)]);
    let device = all.at(SERVED)?.netlink.device_of(remote)?.ok_or(errno(libc::EADDRNOTAVAIL))?;
    for other in &namespaces.others {
        all.0.push(netns::enter_named(other.netns.as_deref()).and_then(|()| Entered::here()).ok());
    }
    netns::enter_named(from.netns.as_deref())?;
    if proc_links::shares_network(process) != Some(true) {
        return Err(errno(libc::EPERM));
    }
    let place = place as usize + 1;
    let route = all.at(place)?.netlink.route(remote, None)?;
    let source = route.source.filter(|_| !route.local && route.gateway.is_none()).ok_or(errno(libc::ENETUNREACH))?;
    let leaves = segment(&mut all, (place, route.interface))?;
    if leaves.is_none() || leaves != segment(&mut all, (SERVED, device))? {
        return Err(errno(libc::ENETUNREACH));
    }
    let (own, local) = bound(source)?;
    Ok(Way { own, local, device })
}

/// A link-local address says nothing without its device.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// A TCP socket at this address, with a port that the kernel chooses.
fn bound(source: IpAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let family = if source.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let own = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    bind(&own, &SocketAddr::new(source, 0))?;
    let local = SocketAddr::try_from(getsockname(&own)?)?;
    Ok((own, local))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_service::policy::namespaces::OtherNamespace;

    fn refused(names: &[Option<&str>], place: u32, remote: &str) -> Option<i32> {
        let other =
            |netns: &Option<&str>| OtherNamespace { name: "blue".into(), number: 0, netns: netns.map(str::to_owned) };
        let namespaces = Namespaces { own: "home".into(), others: names.iter().map(other).collect() };
        let process = std::process::id().cast_signed();
        let remote = remote.parse().unwrap();
        // A thread of its own, as it may change its namespace.
        let asked = std::thread::spawn(move || way(&namespaces, place, process, remote).map(|way| way.local));
        asked.join().unwrap().unwrap_err().raw_os_error()
    }

    #[test]
    fn there_is_no_way_to_addresses_that_mean_something_else_elsewhere() {
        for remote in ["127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "169.254.1.1", "fe80::1"] {
            assert_eq!(refused(&[None], 0, remote), Some(libc::EINVAL), "{remote}");
        }
        assert_eq!(refused(&[None], 1, "192.0.2.1"), Some(libc::EINVAL), "no such namespace");
        assert_eq!(refused(&[None], 0, "192.0.2.1"), Some(libc::EADDRNOTAVAIL), "nobody has the address");
    }

    #[test]
    fn a_port_is_chosen_at_the_address_and_held() {
        let (own, local) = bound([127, 0, 0, 1].into()).unwrap();
        assert!(local.ip() == IpAddr::from([127, 0, 0, 1]) && local.port() != 0);
        assert!(std::net::TcpListener::bind(local).is_err(), "it is held");
        drop(own);
        assert!(std::net::TcpListener::bind(local).is_ok());
    }
}
