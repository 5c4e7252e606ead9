//! Hosts that have connected and are not known yet. Anybody who reaches the port can be one, so they have a limited
//! number of places. A new host gets the place of another where all are taken: of the source with the most, the oldest.
//! So hosts that connect and stay silent keep nobody out, and those of one source cost those of others nothing.

use crate::listener::ConnectedHost;
use rustix::fd::OwnedFd;
use rustix::net::Shutdown;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most hosts that wait.
pub const PLACES: usize = 64;

/// The hosts that wait.
#[derive(Clone, Default)]
pub struct WaitingHosts(Arc<Mutex<Places>>);

#[derive(Default)]
struct Places {
    last: u64,
    all: Vec<Place>,
}

struct Place {
    number: u64,
    from: Option<IpAddr>,
    /// `None` if the host's connection has been ended. Its thread will see that.
    socket: Option<OwnedFd>,
}

/// A host's place, while it waits.
pub struct WaitingHost {
    hosts: WaitingHosts,
    number: u64,
}

impl WaitingHosts {
    /// A place for a host. `None`: hosts that must leave are still there, or descriptors are used up.
    pub fn enter(&self, host: &ConnectedHost) -> Option<WaitingHost> {
        self.enter_from(host.from, host.socket().ok()?)
    }

    fn enter_from(&self, from: Option<IpAddr>, socket: OwnedFd) -> Option<WaitingHost> {
        let mut places = self.lock();
        if places.all.len() >= 2 * PLACES {
            return None;
        }
        if places.waiting().count() >= PLACES {
            places.end_one();
        }
        places.last += 1;
        let number = places.last;
        places.all.push(Place { number, from: from.map(source), socket: Some(socket) });
        Some(WaitingHost { hosts: self.clone(), number })
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    /// Those whose connection has not been ended, oldest first.
    fn waiting(&self) -> impl Iterator<Item = &Place> {
        self.all.iter().filter(|place| place.socket.is_some())
    }

    /// Ends the connection of one host.
    fn end_one(&mut self) {
        let share = |of: &Place| self.waiting().filter(|other| other.from == of.from).count();
        let most = self.waiting().map(share).max();
        let Some(number) = self.waiting().find(|place| Some(share(place)) == most).map(|place| place.number) else {
            return;
        };
        if let Some(socket) = self.all.iter_mut().find(|place| place.number == number).and_then(|one| one.socket.take())
        {
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        }
    }
}

impl Drop for WaitingHost {
    fn drop(&mut self) {
        self.hosts.lock().all.retain(|place| place.number != self.number);
    }
}

/// Addresses that one owner can have count as one: of IPv6, a network of 64 bits.
fn source(of: IpAddr) -> IpAddr {
    match of.to_canonical() {
        IpAddr::V6(six) => Ipv6Addr::from_bits(six.to_bits() >> 64 << 64).into(),
        four => four,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::UnixStream;

    /// A host: its own end of the connection, and its place.
    struct Host(UnixStream, Option<WaitingHost>);

    impl Host {
        fn enter(hosts: &WaitingHosts, from: &str) -> Self {
            let (own, servers) = UnixStream::pair().unwrap();
            own.set_nonblocking(true).unwrap();
            Self(own, hosts.enter_from(Some(from.parse().unwrap()), servers.into()))
        }
        /// The server has ended its connection.
        fn is_ended(&mut self) -> bool {
            match self.0.read(&mut [0]) {
                Ok(0) => true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => false,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn silent_hosts_lock_out_neither_new_ones_nor_those_of_other_sources() {
        let hosts = WaitingHosts::default();
        let mut other = Host::enter(&hosts, "10.0.0.2");
        let mut silent: Vec<_> = (1..PLACES).map(|_| Host::enter(&hosts, "10.0.0.1")).collect();
        assert!(silent.iter_mut().all(|host| !host.is_ended()), "there is a place for each");
        let mut next = Host::enter(&hosts, "10.0.0.3");
        assert!(next.1.is_some() && silent[0].is_ended(), "the oldest of those who have the most");
        let mut more: Vec<_> = (0..20).map(|_| Host::enter(&hosts, "::ffff:10.0.0.1")).collect();
        assert!(silent[..21].iter_mut().all(Host::is_ended) && !silent[21].is_ended());
        assert!(!other.is_ended() && !next.is_ended() && more.iter_mut().all(|host| !host.is_ended()));
    }

    #[test]
    fn a_network_of_64_bits_is_one_source() {
        let hosts = WaitingHosts::default();
        let mut other = Host::enter(&hosts, "2001:db8:0:1::1");
        let mut many: Vec<_> = (1..PLACES + 9).map(|n| Host::enter(&hosts, &format!("2001:db8::{n:x}"))).collect();
        assert!(!other.is_ended() && many[..9].iter_mut().all(Host::is_ended) && !many[9].is_ended());
    }

    #[test]
    fn places_are_bounded_even_if_threads_are_slow_and_free_when_they_end() {
        let hosts = WaitingHosts::default();
        let mut all: Vec<_> = (0..2 * PLACES).map(|_| Host::enter(&hosts, "10.0.0.1")).collect();
        assert!(all.iter().all(|host| host.1.is_some()));
        assert!(Host::enter(&hosts, "10.0.0.9").1.is_none(), "none of the threads has ended");
        all.truncate(PLACES);
        assert!(Host::enter(&hosts, "10.0.0.9").1.is_some());
        all.clear();
        assert!(hosts.lock().all.is_empty());
    }
}
