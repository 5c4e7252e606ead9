//! ICMP errors (RFC 9293 §3.9.2.2 MUST-54, RFC 5927): they come from anywhere, so they count only if they quote what is outstanding.

use super::SlowPath;
use super::connections::Phase;
use super::errno::{EACCES, ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, ENOPROTOOPT, EOPNOTSUPP, EPROTO};
use super::host::Host;
use super::negotiate::Stage;
use crate::counters::Drop;
use crate::flow::{FlowId, FlowSnapshot, FourTuple};
use crate::messages::ToFast;
use crate::seq::Seq;
use crate::time::Micros;
use towpath_wire::icmp::{IcmpError, IcmpKind};

/// What an error means for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// Packets must be smaller.
    TooBig(u32),
    /// It may pass: remembered for a time-out, no more (SHLD-25, MUST-56).
    Soft(i32),
    /// It will not pass, in a handshake (SHLD-26). On an established connection it says no more than the others: whoever can
    /// guess a sequence number in the window could end it (RFC 5927 §5.2; Linux does the same).
    Hard(i32),
    /// Nothing (MUST-55).
    Nothing,
}

/// As Linux has it (`icmp_err_convert`, `icmpv6_err_convert`).
fn meaning(error: &IcmpError) -> Meaning {
    match error.kind {
        IcmpKind::TooBig { mtu } => Meaning::TooBig(mtu),
        IcmpKind::NetworkUnreachable => Meaning::Soft(ENETUNREACH),
        IcmpKind::HostUnreachable | IcmpKind::TimeExceeded => Meaning::Soft(EHOSTUNREACH),
        IcmpKind::Prohibited if error.local.is_ipv4() => Meaning::Soft(EHOSTUNREACH),
        IcmpKind::Prohibited => Meaning::Soft(EACCES),
        IcmpKind::ParameterProblem => Meaning::Soft(EPROTO),
        IcmpKind::SourceRouteFailed => Meaning::Soft(EOPNOTSUPP),
        IcmpKind::ProtocolUnreachable => Meaning::Hard(ENOPROTOOPT),
        IcmpKind::PortUnreachable => Meaning::Hard(ECONNREFUSED),
        IcmpKind::SourceQuench => Meaning::Nothing,
    }
}

impl SlowPath {
    /// An ICMP error. On an installed flow it takes effect in the next `poll`, where its numbers are known.
    pub fn on_icmp(&mut self, _now: Micros, error: IcmpError, host: &mut dyn Host) {
        let IcmpError { local, local_port, remote, remote_port, .. } = error;
        let id = self.table.by_tuple(&FourTuple { local, local_port, remote, remote_port });
        let Some(id) = id else { return self.counters.drop(Drop::BadIcmp) };
        if let Some(live) = self.table.running(id) {
            // One for each look is enough; what asks for smaller packets is the most useful.
            if live.icmp.is_none() || matches!(error.kind, IcmpKind::TooBig { .. }) {
                live.icmp = Some(error);
            }
            return self.look_soon(id);
        }
        let Some(opening) = self.table.opening(id) else { return self.counters.drop(Drop::BadIcmp) };
        if Seq(error.seq) != opening.iss || opening.sent == 0 {
            return self.counters.drop(Drop::BadIcmp);
        }
        match meaning(&error) {
            Meaning::Hard(errno) if opening.stage == Stage::SynSent => self.fail_opening(id, errno, host),
            Meaning::Hard(errno) | Meaning::Soft(errno) => opening.soft_error = errno,
            Meaning::TooBig(_) | Meaning::Nothing => {}
        }
    }

    /// The error that has come about an installed flow.
    pub(super) fn look_at_icmp(&mut self, now: Micros, id: FlowId, snapshot: &FlowSnapshot, host: &mut dyn Host) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let Phase::Live(live) = &mut connection.phase else { return };
        let Some(error) = live.icmp.take() else { return };
        let (una, max) = (snapshot.snd_una, snapshot.snd_max);
        if Seq(error.seq).before(una) || !Seq(error.seq).before(max) {
            return self.counters.drop(Drop::BadIcmp);
        }
        match meaning(&error) {
            Meaning::TooBig(mtu) => {
                if let Some(mss) = live.path.too_big(now, mtu, error.packet_bytes) {
                    host.send(connection.core, ToFast::SetMss(id, mss));
                }
            }
            Meaning::Hard(errno) | Meaning::Soft(errno) => self.soft_error(id, errno, host),
            Meaning::Nothing => {}
        }
    }
}
