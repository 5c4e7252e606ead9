//! The stats of a running flow, for `TCP_INFO`.

use crate::host::SlowHost;
use std::sync::atomic::Ordering::Relaxed;
use towpath_ring::lines::observed;
use towpath_tcp::flow::{FlowSnapshot, Owner, flow_flags};
use towpath_tcp::seq::Seq;
use towpath_tcp::slow::{SendStats, TcpState, Unanswered};

/// Linux's `TCPI_OPT_TIMESTAMPS`, `TCPI_OPT_SACK`, `TCPI_OPT_WSCALE`.
const AGREED: [(u64, u32); 3] = [(flow_flags::TIMESTAMPS, 1), (flow_flags::SACK, 2), (flow_flags::WSCALE, 4)];

impl SlowHost {
    /// Copies the stats of a running flow to its slot.
    pub fn show_figures(&mut self, owner: Owner, snapshot: &FlowSnapshot, unanswered: Unanswered, sent: SendStats) {
        let Some((client, slot)) = self.find(owner) else { return };
        let info = client.shared.region.info(slot);
        let ahead = |from: Seq, to: Seq| to.distance(from).max(0) as u32;
        let agreed = AGREED.iter().filter(|(flag, _)| snapshot.flags & flag != 0).fold(0, |bits, (_, bit)| bits | bit);
        for (word, value) in [
            (&info.mss, u32::from(snapshot.mss)),
            (&info.retransmits, snapshot.retransmits as u32),
            (&info.agreed, agreed),
            (&info.srtt_us, snapshot.srtt_us),
            (&info.rttvar_us, snapshot.rttvar_us),
            (&info.min_rtt_us, snapshot.min_rtt_us),
            (&info.cwnd, snapshot.cwnd),
            (&info.ssthresh, snapshot.ssthresh),
            (&info.send_window, snapshot.snd_wnd),
            (&info.unacked, ahead(snapshot.snd_una, snapshot.snd_max)),
            (&info.unsent, ahead(snapshot.snd_max, snapshot.snd_queued)),
            (&info.segments_in, snapshot.segments_in as u32),
            (&info.segments_out, snapshot.segments_out as u32),
            (&info.timeouts, unanswered.timeouts),
            (&info.probes, unanswered.probes),
            (&info.ca_state, ca_state(snapshot, unanswered)),
            (&info.window_shifts, u32::from(snapshot.snd_wscale) | u32::from(snapshot.rcv_wscale) << 4),
            (&info.receive_mss, u32::from(snapshot.rcv_mss)),
            (&info.marked, snapshot.bytes_marked as u32),
            (&info.sacked, snapshot.sacked),
            (&info.lost, snapshot.lost),
            (&info.observed, seen(snapshot, sent)),
            (&info.silent_ms, (sent.silent_us / 1000).min(u32::MAX.into()) as u32),
            (&info.tcp_state, TcpState::of_flags(snapshot.flags).linux_number()),
        ] {
            word.store(value, Relaxed);
        }
        for (word, value) in [
            (&info.pacing_rate, snapshot.pacing),
            (&info.bytes_acked, snapshot.bytes_acked),
            (&info.bytes_received, snapshot.bytes_in),
            (&info.delivery_rate, sent.delivery_rate),
            (&info.busy_us, sent.busy_us),
            (&info.window_limited_us, sent.window_limited_us),
        ] {
            word.store(value, Relaxed);
        }
    }
}

/// Linux's `TCP_CA_Open`, `TCP_CA_Recovery`, `TCP_CA_Loss`.
fn ca_state(snapshot: &FlowSnapshot, unanswered: Unanswered) -> u32 {
    match () {
        () if unanswered.timeouts > 0 => 4,
        () if snapshot.flags & flow_flags::RECOVERY != 0 => 3,
        () => 0,
    }
}

fn seen(snapshot: &FlowSnapshot, sent: SendStats) -> u32 {
    let bit = |on, bit| if on { bit } else { 0 };
    bit(snapshot.reordering, observed::REORDERING) | bit(sent.app_limited, observed::APP_LIMITED)
}
