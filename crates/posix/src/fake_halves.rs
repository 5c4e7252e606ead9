//! The kernel halves of listeners, of the stack for tests.

use super::Fake;
use rustix::net::sockopt::socket_acceptconn;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;

impl Fake {
    /// Ends the listeners whose kernel half listens no longer.
    pub fn look_at_kernel_halves(&mut self) {
        let lists = ["/proc/net/tcp", "/proc/net/tcp6"].map(|list| std::fs::read_to_string(list).unwrap_or_default());
        // Each line has a number, the local address and port, the remote ones, and the state (0A = LISTEN).
        let listening = |line: &str| {
            let mut words = line.split_whitespace().skip(1);
            let (local, _, state) = (words.next()?, words.next()?, words.next()?);
            let port = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
            (state == "0A").then_some(port)
        };
        let ports: Vec<u16> = lists.iter().flat_map(|list| list.lines().filter_map(listening)).collect();
        let ended = self.listeners.iter().filter(|(_, (_, port), _)| !ports.contains(port));
        for (at, slot) in ended.map(|(end, ..)| *end).collect::<Vec<_>>() {
            let generation = self.clients[at].region.stack(slot).generation.load(Relaxed);
            self.close((at, slot), generation, 0);
        }
    }
}

/// Does this kernel socket listen?
pub fn listens(socket: &OwnedFd) -> bool {
    socket_acceptconn(socket).unwrap_or(false)
}
