//! The stats of a running flow, for `TCP_INFO`.

use crate::host::SlowHost;
use std::sync::atomic::Ordering::Relaxed;
use towpath_ring::CountsLine;
use towpath_ring::lines::observed;
use towpath_tcp::fast::DELAYED_ACK_US;
use towpath_tcp::flow::{FlowSnapshot, Owner, flow_flags};
use towpath_tcp::seq::Seq;
use towpath_tcp::slow::{SendStats, TcpState, Unanswered};

/// Linux's `TCPI_OPT_TIMESTAMPS`, `TCPI_OPT_SACK`, `TCPI_OPT_WSCALE`.
const AGREED: [(u64, u32); 3] = [(flow_flags::TIMESTAMPS, 1), (flow_flags::SACK, 2), (flow_flags::WSCALE, 4)];

impl SlowHost {
    /// Copies the stats of a running flow to its slot.
    pub fn show_figures(&mut self, owner: Owner, snapshot: &FlowSnapshot, unanswered: Unanswered, sent: SendStats) {
        let Some((client, slot)) = self.find(owner) else { return };
        show_counts(client.shared.region.counts(slot), client.shared.generation(slot), snapshot, sent);
        let info = client.shared.region.info(slot);
        // Linux counts the SYN of the side that connected, and both FINs.
        let syn = u64::from(client.shared.region.layout().is_app_slot(slot));
        let fin = |flag| u64::from(snapshot.flags & flag != 0);
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
            (&info.segments_in, snapshot.segments_in),
            (&info.segments_out, snapshot.segments_out),
            (&info.timeouts, unanswered.timeouts),
            (&info.probes, unanswered.probes),
            (&info.ca_state, ca_state(snapshot, unanswered)),
            (&info.window_shifts, u32::from(snapshot.snd_wscale) | u32::from(snapshot.rcv_wscale) << 4),
            (&info.receive_mss, u32::from(snapshot.rcv_mss)),
            (&info.marked, snapshot.bytes_marked as u32),
            (&info.sacked, snapshot.sacked),
            (&info.lost, snapshot.lost),
            (&info.observed, if sent.app_limited { observed::APP_LIMITED } else { 0 }),
            (&info.silent_ms, ms(sent.silent_us)),
            (&info.tcp_state, TcpState::of_flags(snapshot.flags).linux_number()),
        ] {
            word.store(value, Relaxed);
        }
        for (word, value) in [
            (&info.pacing_rate, snapshot.pacing),
            (&info.bytes_acked, snapshot.bytes_acked + syn + fin(flow_flags::FIN_ACKED)),
            (&info.bytes_received, snapshot.bytes_in + fin(flow_flags::FIN_RECEIVED)),
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

fn ms(us: u64) -> u32 {
    (us / 1000).min(u32::MAX.into()) as u32
}

/// The counts beside the information line.
fn show_counts(counts: &CountsLine, generation: u32, snapshot: &FlowSnapshot, sent: SendStats) {
    // Linux counts these in segments.
    let segments = |bytes: u64| bytes.div_ceil(u64::from(snapshot.mss).max(1)) as u32;
    let fin = u32::from(snapshot.flags & flow_flags::FIN_SENT != 0);
    let flight = snapshot.snd_max.bytes_since(snapshot.snd_una).saturating_sub(fin);
    let data_segments_out = snapshot.data_segments_out;
    for (word, value) in [
        (&counts.generation, generation),
        (&counts.resent, snapshot.resent),
        (&counts.data_segments_in, snapshot.data_segments_in),
        (&counts.data_segments_out, data_segments_out),
        (&counts.delivered, segments(snapshot.bytes_acked + u64::from(snapshot.sacked)).min(data_segments_out)),
        (&counts.duplicates, snapshot.duplicates),
        (&counts.reorderings, snapshot.reorderings),
        (&counts.out_of_order, snapshot.out_of_order),
        (&counts.receive_window, snapshot.rcv_wnd),
        (&counts.receive_threshold, 0),
        (&counts.receive_space, 0),
        (&counts.receive_rtt_us, 0),
        (&counts.ack_delay_us, DELAYED_ACK_US as u32),
        (&counts.reordering, 0),
        (&counts.timeouts_total, sent.timeouts),
        (&counts.timeout_series, sent.timeout_series),
        (&counts.timeout_ms, ms(sent.timeout_us)),
        (&counts.data_silent_ms, ms(sent.data_silent_us)),
        (&counts.heard_ms, ms(sent.heard_us)),
    ] {
        word.store(value, Relaxed);
    }
    counts.bytes_sent.store(snapshot.bytes_acked + u64::from(flight) + snapshot.bytes_resent, Relaxed);
    counts.bytes_resent.store(snapshot.bytes_resent, Relaxed);
    counts.buffer_limited_us.store(sent.buffer_limited_us, Relaxed);
}
