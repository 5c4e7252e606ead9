//! Socket options set by applications, in every phase of a connection.

use super::SlowPath;
use super::congestion::Algorithm;
use super::connections::Phase;
use super::host::Host;
use super::socket_options::service;
use crate::flow::{Owner, SocketOptions};
use crate::messages::ToFast;
use crate::time::Micros;

impl SlowPath {
    /// Sets a socket's options. They take effect at once on a connection or listener, and later children of a listener
    /// inherit them. Those of an unknown owner take effect with its `connect` or `listen`.
    pub fn set_options(&mut self, now: Micros, owner: Owner, options: SocketOptions, host: &mut dyn Host) {
        if let Some(algorithm) = Algorithm::from_id(options.congestion) {
            self.set_congestion(now, owner, algorithm, host);
        }
        self.set_max_pacing(owner, options.max_pacing);
        if let Some(listener) = self.listeners.of(owner) {
            listener.options = options;
            return;
        }
        let Some(id) = self.table.by_owner(owner) else {
            if self.early_options.len() < self.config.max_flows as usize || self.early_options.contains_key(&owner) {
                self.early_options.insert(owner, options);
            }
            return;
        };
        let Some(connection) = self.table.get_mut(id) else { return };
        let flow_group = connection.flow_group;
        match &mut connection.phase {
            Phase::Opening(opening) => opening.options = options,
            Phase::Installed(installed) if installed.removing => {}
            Phase::Direct => {}
            Phase::Installed(installed) => {
                let old = std::mem::replace(&mut installed.options, options);
                // RFC 9293 §3.8.4, MUST-24.
                let ticks = options.keepalive && !installed.fin_wait;
                // RFC 9293 §3.9.1.9, SHLD-21.
                let v6 = connection.tuple.remote.is_ipv6();
                if service(&old, v6) != service(&options, v6) {
                    let (tos, ttl) = service(&options, v6);
                    host.send(flow_group, ToFast::SetService { flow: id, tos, ttl });
                }
                if ticks {
                    // The timer's check counts from the peer's last segment.
                    self.arm(id, now);
                }
            }
        }
    }

    /// Takes the options set on a socket before its `connect` or `listen`.
    pub(super) fn take_early_options(&mut self, owner: Owner) -> SocketOptions {
        self.early_options.remove(&owner).unwrap_or_default()
    }
}
