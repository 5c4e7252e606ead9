//! The ports of outgoing connections. Each is bound by a socket of the service. So no other socket of the host gets it, by the
//! kernel's choice or by number.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use towpath_service::descriptor_table;

/// Ports that are bound ahead, and in each later step. The slow path waits for a step, so it is small.
const STEP: usize = 512;

/// A wish to the thread that has the sockets.
enum Wish {
    /// Bind some more, and answer.
    More,
    /// Close these.
    Free(Vec<u16>),
}

/// See the module. A thread with a descriptor table of its own has the sockets, so that they take no client's place.
/// Dropping this frees the ports.
pub struct HeldPorts {
    /// `None`: the thread is to end.
    wanted: Option<Sender<Wish>>,
    more: Receiver<Vec<u16>>,
    /// Held, but not given out.
    ahead: Vec<u16>,
    thread: Option<JoinHandle<()>>,
}

impl HeldPorts {
    /// Binds the first ports. The highest of the range come first: few programs have fixed ports there.
    pub fn hold(range: RangeInclusive<u16>) -> io::Result<Self> {
        let (wanted, asked) = channel();
        let (give, more) = channel();
        let thread = std::thread::Builder::new().name("ports".into()).spawn(move || serve(range, &asked, &give))?;
        let mut held = Self { wanted: Some(wanted), more, ahead: Vec::new(), thread: Some(thread) };
        held.ahead = held.bind();
        if held.ahead.is_empty() {
            return Err(io::Error::other("no port for outgoing connections can be bound"));
        }
        Ok(held)
    }

    /// Ports that were not given out before. Empty: no more are to be had.
    pub fn more(&mut self) -> Vec<u16> {
        if self.ahead.is_empty() { self.bind() } else { std::mem::take(&mut self.ahead) }
    }

    fn bind(&self) -> Vec<u16> {
        if self.wish(Wish::More) { self.more.recv().unwrap_or_default() } else { Vec::new() }
    }

    /// These are not used any more. They can be had again by [`HeldPorts::more`].
    pub fn give_back(&self, ports: Vec<u16>) {
        self.wish(Wish::Free(ports));
    }

    fn wish(&self, wish: Wish) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| wanted.send(wish).is_ok())
    }
}

impl Drop for HeldPorts {
    fn drop(&mut self) {
        self.wanted = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Fulfils wishes until there is nobody to wish.
fn serve(range: RangeInclusive<u16>, asked: &Receiver<Wish>, give: &Sender<Vec<u16>>) {
    if descriptor_table::separate(&[]).is_err() {
        return;
    }
    let (count, mut held) = (usize::from(range.end() - range.start()) + 1, HashMap::new());
    // Ports that were given back come last, so that others may have them meanwhile.
    let mut order = range.rev().cycle();
    while let Ok(wish) = asked.recv() {
        match wish {
            Wish::Free(ports) => ports.iter().for_each(|port| drop(held.remove(port))),
            Wish::More => {
                if give.send(hold_some(order.by_ref().take(count), &mut held)).is_err() {
                    return;
                }
            }
        }
    }
}

/// Binds some of these ports that are not held.
fn hold_some(order: impl Iterator<Item = u16>, held: &mut HashMap<u16, OwnedFd>) -> Vec<u16> {
    let mut ports = Vec::with_capacity(STEP);
    for port in order {
        let Entry::Vacant(place) = held.entry(port) else { continue };
        match bind(port) {
            Ok(socket) => {
                place.insert(socket);
                ports.push(port);
            }
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => break,
            // Somebody has it.
            Err(_) => {}
        }
        if ports.len() == STEP {
            break;
        }
    }
    ports
}

/// A socket that has the port on all addresses.
fn bind(port: u16) -> Result<OwnedFd, Errno> {
    let bound = |family, any: IpAddr| {
        let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
        if any.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        rustix::net::bind(&socket, &SocketAddr::new(any, port)).map(|()| socket)
    };
    match bound(AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()) {
        // A kernel without IPv6.
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => bound(AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into()),
        bound => bound,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn held_ports_are_nobody_elses_and_a_port_of_somebody_is_not_held() {
        let theirs = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = theirs.local_addr().unwrap().port();
        let (first, last) = (port.saturating_sub(40), port.saturating_add(40));
        let mut ports = HeldPorts::hold(first..=last).unwrap();
        let held = ports.more();
        assert!(!held.is_empty() && !held.contains(&port), "{held:?}");
        assert!(held.iter().all(|held| (first..=last).contains(held)));
        for port in &held {
            assert!(TcpListener::bind(("127.0.0.1", *port)).is_err(), "{port} by number");
        }
        assert_eq!(ports.more(), Vec::<u16>::new(), "there are no more");
        let (back, kept) = held.split_at(held.len() / 2);
        ports.give_back(back.to_vec());
        let again = ports.more();
        assert!(!again.is_empty() && again.iter().all(|port| back.contains(port)), "{again:?} of {back:?}");
        assert!(kept.iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_err()));
        ports.give_back(again.clone());
        let once_more = ports.more();
        assert!(!once_more.is_empty() && once_more.iter().all(|port| back.contains(port)), "{once_more:?}");
        drop(ports);
        let held = [kept, &once_more].concat();
        let free = held.iter().filter(|port| TcpListener::bind(("127.0.0.1", **port)).is_ok()).count();
        assert!(free * 2 > held.len(), "they are free when the service has ended: {free} of {}", held.len());
    }
}
