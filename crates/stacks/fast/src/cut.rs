//! Ends connections because the operator wants it: those that a new rule would refuse.

use crate::owner::split;
use crate::slow::SlowState;
use std::collections::HashSet;
use std::net::SocketAddr;
use towpath_tcp::slow::{Ending, TcpState};

impl SlowState {
    /// Ends the connections with these local and remote ends. Returns how many there were.
    pub fn cut_all(&mut self, ends: HashSet<(SocketAddr, SocketAddr)>) -> usize {
        let mut count = 0;
        for info in self.slow.connections() {
            let tuple = &info.tuple;
            let (local, remote) =
                (SocketAddr::new(tuple.local, tuple.local_port), SocketAddr::new(tuple.remote, tuple.remote_port));
            let Some(owner) = info.owner.filter(|_| ends.contains(&(local, remote))) else { continue };
            if info.state == TcpState::Listen {
                continue;
            }
            let (index, _) = split(owner);
            let found = self.host.find(owner).map(|(client, slot)| (slot, client.slot(slot).own.direct.is_some()));
            let cut = match found {
                Some((slot, true)) => self.end_both(index, slot, [Ending::Cut; 2]),
                _ => self.slow.cut(owner, &mut self.host),
            };
            count += usize::from(cut);
        }
        count
    }
}
