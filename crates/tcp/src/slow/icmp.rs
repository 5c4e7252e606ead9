//! ICMP errors (RFC 9293 §3.9.2.2 MUST-54, RFC 5927). Anyone can send them, so they count only if they quote
//! outstanding data.

use super::SlowPath;
use super::connections::Phase;
use super::errno::{
    EACCES, ECONNREFUSED, EHOSTDOWN, EHOSTUNREACH, ENETUNREACH, ENONET, ENOPROTOOPT, EOPNOTSUPP, EPROTO,
};
use super::host::Host;
use crate::counters::Drop;
use crate::flow::{FlowId, FlowSnapshot, FourTuple};
use crate::messages::ToFast;
use crate::seq::Seq;
use crate::time::Micros;
use towpath_wire::icmp::{IcmpError, IcmpKind};

/// The meaning of an error for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// Packets must be smaller.
    TooBig(u32),
    /// An error that ends a `connect` at once, as in Linux (SHLD-26; RFC 5461 §4.1): programs then try the next address.
    /// On an established connection it is soft: recorded for a time-out only (SHLD-25, MUST-56). Else an attacker could
    /// end the connection by guessing a sequence number in the window (RFC 5927 §5.2).
    Failed(i32),
    /// Nothing (MUST-55).
    Nothing,
}

/// Linux's mapping (`icmp_err_convert`, `icmpv6_err_convert`).
fn meaning(error: &IcmpError) -> Meaning {
    match error.kind {
        IcmpKind::TooBig { mtu } => Meaning::TooBig(mtu),
        IcmpKind::NetworkUnreachable | IcmpKind::NetworkRefused => Meaning::Failed(ENETUNREACH),
        IcmpKind::HostUnknown => Meaning::Failed(EHOSTDOWN),
        IcmpKind::HostIsolated => Meaning::Failed(ENONET),
        IcmpKind::HostUnreachable | IcmpKind::TimeExceeded => Meaning::Failed(EHOSTUNREACH),
        IcmpKind::Prohibited if error.local.is_ipv4() => Meaning::Failed(EHOSTUNREACH),
        IcmpKind::Prohibited => Meaning::Failed(EACCES),
        IcmpKind::ParameterProblem => Meaning::Failed(EPROTO),
        IcmpKind::SourceRouteFailed => Meaning::Failed(EOPNOTSUPP),
        IcmpKind::ProtocolUnreachable if error.local.is_ipv4() => Meaning::Failed(ENOPROTOOPT),
        IcmpKind::ProtocolUnreachable => Meaning::Failed(EPROTO),
        IcmpKind::PortUnreachable => Meaning::Failed(ECONNREFUSED),
        IcmpKind::SourceQuench => Meaning::Nothing,
    }
}

/// Does this error about a SYN-ACK end the half-open connection of a listener? In silence, as in Linux
/// (`tcp_req_err`): no call reports it, and the peer may begin anew. Other errors are soft. Over IPv4 these are not the
/// fatal ones of `icmp_err_convert`: `tcp_v4_err` names codes 0 and 1 only. Over IPv6 they are those of
/// `icmpv6_err_convert`.
fn ends_half_open(error: &IcmpError) -> bool {
    match error.kind {
        IcmpKind::ParameterProblem => true,
        IcmpKind::NetworkUnreachable | IcmpKind::HostUnreachable | IcmpKind::TimeExceeded => error.local.is_ipv4(),
        IcmpKind::Prohibited | IcmpKind::PortUnreachable | IcmpKind::ProtocolUnreachable => error.local.is_ipv6(),
        IcmpKind::NetworkRefused | IcmpKind::HostUnknown | IcmpKind::HostIsolated => false,
        IcmpKind::SourceRouteFailed | IcmpKind::TooBig { .. } | IcmpKind::SourceQuench => false,
    }
}

impl SlowPath {
    /// Handles an ICMP error. On an installed flow it takes effect in the next `poll`, where the flow's numbers are
    /// known.
    pub fn on_icmp(&mut self, now: Micros, error: IcmpError, host: &mut dyn Host) {
        let IcmpError { local, local_port, remote, remote_port, .. } = error;
        let id = self.table.by_tuple(&FourTuple { local, local_port, remote, remote_port });
        let Some(id) = id else { return self.counters.drop(Drop::BadIcmp) };
        if self.icmp_on_splice(now, id, &error, host) {
            return;
        }
        if let Some(installed) = self.table.running(id) {
            // One error per check is enough. One that asks for smaller packets takes precedence.
            if installed.icmp.is_none() || matches!(error.kind, IcmpKind::TooBig { .. }) {
                installed.icmp = Some(error);
            }
            return self.look_soon(id);
        }
        let Some(opening) = self.table.opening(id) else { return self.counters.drop(Drop::BadIcmp) };
        if Seq(error.seq) != opening.iss || opening.sent == 0 {
            return self.counters.drop(Drop::BadIcmp);
        }
        match meaning(&error) {
            Meaning::Failed(errno) if opening.listener.is_none() || ends_half_open(&error) => {
                self.fail_opening(id, errno, host);
            }
            Meaning::Failed(errno) => opening.soft_error = Some(errno),
            Meaning::TooBig(_) | Meaning::Nothing => {}
        }
    }

    /// Handles the recorded error of an installed flow.
    pub(super) fn look_at_icmp(&mut self, now: Micros, id: FlowId, snapshot: &FlowSnapshot, host: &mut dyn Host) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let Phase::Installed(installed) = &mut connection.phase else { return };
        let Some(error) = installed.icmp.take() else { return };
        let (una, max) = (snapshot.snd_una, snapshot.snd_max);
        if Seq(error.seq).before(una) || !Seq(error.seq).before(max) {
            return self.counters.drop(Drop::BadIcmp);
        }
        match meaning(&error) {
            Meaning::TooBig(mtu) => {
                if let Some(mss) = installed.path.too_big(now, mtu, error.packet_bytes) {
                    host.send(connection.flow_group, ToFast::SetMss(id, mss));
                }
            }
            Meaning::Failed(errno) => self.soft_error(id, errno, host),
            Meaning::Nothing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn an_error_means_what_it_means_on_linux_over_either_family() {
        let failed = |kind, local| {
            let error =
                IcmpError { kind, local, local_port: 1, remote: local, remote_port: 2, seq: 3, packet_bytes: 40 };
            if let Meaning::Failed(errno) = meaning(&error) { errno } else { 0 }
        };
        for (kind, v4, v6) in [
            (IcmpKind::TooBig { mtu: 1400 }, 0, 0),
            (IcmpKind::NetworkUnreachable, ENETUNREACH, ENETUNREACH),
            (IcmpKind::NetworkRefused, ENETUNREACH, ENETUNREACH),
            (IcmpKind::HostUnknown, EHOSTDOWN, EHOSTDOWN),
            (IcmpKind::HostIsolated, ENONET, ENONET),
            (IcmpKind::HostUnreachable, EHOSTUNREACH, EHOSTUNREACH),
            (IcmpKind::TimeExceeded, EHOSTUNREACH, EHOSTUNREACH),
            (IcmpKind::Prohibited, EHOSTUNREACH, EACCES),
            (IcmpKind::ParameterProblem, EPROTO, EPROTO),
            (IcmpKind::SourceRouteFailed, EOPNOTSUPP, EOPNOTSUPP),
            (IcmpKind::ProtocolUnreachable, ENOPROTOOPT, EPROTO),
            (IcmpKind::PortUnreachable, ECONNREFUSED, ECONNREFUSED),
            (IcmpKind::SourceQuench, 0, 0),
        ] {
            assert_eq!(failed(kind, Ipv4Addr::LOCALHOST.into()), v4, "{kind:?}");
            assert_eq!(failed(kind, Ipv6Addr::LOCALHOST.into()), v6, "{kind:?}");
        }
    }
}
