//! The list of sockets.

use crate::host::{Later, SlowHost};
use crate::owner::split;
use crate::slots::Phase;
use crate::slow::SlowState;
use std::net::SocketAddr;
use towpath_runtime::SocketStatus;
use towpath_runtime::status::TcpStatus;
use towpath_tcp::flow::{FlowSnapshot, flow_flags};
use towpath_tcp::slow::{ConnectionInfo, TcpState, Unanswered};

impl SlowState {
    /// Every socket that the protocol knows.
    pub fn connections(&mut self) -> Vec<SocketStatus> {
        self.sync_listeners();
        self.host.read_refused();
        self.slow.connections().iter().map(|info| self.connection(info)).collect()
    }

    /// Brings the accept queues up to date. An application does not notify the stack when it accepts.
    fn sync_listeners(&mut self) {
        let SlowHost { clients, later, .. } = &mut self.host;
        for client in clients.iter_mut().flatten() {
            let listeners = client.used().into_iter().filter(|(_, phase)| *phase == Phase::Listening);
            for (slot, _) in listeners {
                if !client.sync_listener(slot) {
                    client.shared.violated_contract();
                    later.push(Later::EndListener { client: client.shared.index, slot });
                }
            }
        }
    }

    fn connection(&self, info: &ConnectionInfo) -> SocketStatus {
        let snapshot = info.flow.map(|flow| self.table.snapshot(flow));
        let (index, raw) = info.owner.map_or((u32::MAX, 0), split);
        let client = self.host.clients.get(index as usize).and_then(Option::as_ref);
        let slot = client.and_then(|c| c.slots.get(raw as usize));
        let end = slot.and_then(|slot| slot.own.direct);
        let direct = client.zip(end).and_then(|(client, end)| self.host.direct_view(client, raw, &end));
        let (send_q, recv_q) = match (&snapshot, slot.and_then(|s| s.listener.as_ref())) {
            (None, _) if direct.is_some() => direct.as_ref().map_or((0, 0), |direct| direct.queues),
            (Some(snapshot), _) => (unacknowledged(snapshot), snapshot.rx_queued),
            (None, Some(listener)) => (listener.backlog, listener.waiting()),
            (None, None) => (0, 0),
        };
        SocketStatus {
            state: direct
                .as_ref()
                .map_or(snapshot.map_or(info.state, |s| TcpState::of_flags(s.flags)), |d| d.state)
                .name()
                .into(),
            recv_q,
            send_q,
            local: SocketAddr::new(info.tuple.local, info.tuple.local_port),
            peer: SocketAddr::new(info.tuple.remote, info.tuple.remote_port),
            program: client.map_or_else(String::new, |c| c.shared.name.clone()),
            pid: client.map_or(0, |c| c.shared.pid),
            uid: client.map_or(0, |c| c.shared.uid),
            client: client.map(|c| c.shared.id),
            slot: raw,
            flow_group: snapshot.and(slot).map(|s| s.own.flow_group),
            direct: end.is_some(),
            tcp: snapshot.map(|snapshot| tcp(&snapshot, info.unanswered)),
            halves: info.owner.and_then(|owner| self.host.halves(owner)),
        }
    }
}

/// Queued bytes that the peer has not acknowledged. A FIN does not count as a byte.
fn unacknowledged(snapshot: &FlowSnapshot) -> u32 {
    let queued = snapshot.snd_queued.distance(snapshot.snd_una);
    queued.max(0) as u32
}

fn tcp(s: &FlowSnapshot, unanswered: Unanswered) -> TcpStatus {
    let flag = |bit| s.flags & bit != 0;
    TcpStatus {
        srtt_us: s.srtt_us,
        rttvar_us: s.rttvar_us,
        mss: s.mss,
        cwnd: s.cwnd,
        ssthresh: s.ssthresh,
        snd_wnd: s.snd_wnd,
        unacked: s.snd_max.0.wrapping_sub(s.snd_una.0),
        bytes_received: s.bytes_in,
        bytes_acked: s.bytes_acked,
        segs_in: s.segments_in.into(),
        segs_out: s.segments_out.into(),
        retrans: s.retransmits,
        backoff: unanswered.timeouts,
        probes: unanswered.probes,
        timestamps: flag(flow_flags::TIMESTAMPS),
        wscale: flag(flow_flags::WSCALE),
        sack: flag(flow_flags::SACK),
        ecn: flag(flow_flags::ECN),
        recovery: flag(flow_flags::RECOVERY),
    }
}
