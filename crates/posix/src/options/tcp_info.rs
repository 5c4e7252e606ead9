//! `TCP_INFO` from the stack's information line.

use crate::options::stack;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;
use towpath_client::direct::Direct;
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::{command, stack_info, sys};
use towpath_ring::CountsLine;
use towpath_ring::command::Accepted;
use towpath_ring::lines::{app_flags, observed, state, status};

/// States of RFC 9293, by Linux's numbers.
const ESTABLISHED: u8 = 1;
const SYN_SENT: u8 = 2;
const FIN_WAIT2: u8 = 5;
const CLOSE: u8 = 7;
const CLOSE_WAIT: u8 = 8;
const LISTEN: u8 = 10;
/// Header bytes of a packet without options.
const HEADERS: u32 = 40;
const HEADERS_SIX: u32 = 60;
/// Bytes of the timestamps option, padded.
const TIMESTAMPS: u32 = 12;
/// The segments reported above a hole that mean a loss, until reordering has been seen (RFC 8985 §5.3). Linux:
/// `tcp_reordering`.
const DUP_THRESHOLD: u32 = 3;
/// Linux's `TCP_INIT_CWND`.
const INITIAL_WINDOW: u32 = 10;
/// Linux's `TCPI_OPT_TIMESTAMPS`.
const WITH_TIMESTAMPS: u32 = 1;

/// Linux's `struct tcp_info` (6.18), of which libc has only the beginning. Programs ask for as many bytes as they know.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct TcpInfo {
    state: u8,
    ca_state: u8,
    retransmits: u8,
    probes: u8,
    backoff: u8,
    options: u8,
    window_scales: u8,
    application_limited: u8,
    rto: u32,
    ato: u32,
    snd_mss: u32,
    rcv_mss: u32,
    unacked: u32,
    sacked: u32,
    lost: u32,
    retrans: u32,
    fackets: u32,
    last_data_sent: u32,
    last_ack_sent: u32,
    last_data_recv: u32,
    last_ack_recv: u32,
    pmtu: u32,
    rcv_ssthresh: u32,
    rtt: u32,
    rttvar: u32,
    snd_ssthresh: u32,
    snd_cwnd: u32,
    advmss: u32,
    reordering: u32,
    rcv_rtt: u32,
    rcv_space: u32,
    total_retrans: u32,
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    notsent_bytes: u32,
    min_rtt: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    delivery_rate: u64,
    busy_time: u64,
    rwnd_limited: u64,
    sndbuf_limited: u64,
    delivered: u32,
    delivered_ce: u32,
    bytes_sent: u64,
    bytes_retrans: u64,
    dsack_dups: u32,
    reord_seen: u32,
    rcv_ooopack: u32,
    snd_wnd: u32,
    rcv_wnd: u32,
    rehash: u32,
    total_rto: u16,
    total_rto_recoveries: u16,
    total_rto_time: u32,
    /// Of AccECN (Linux 6.18), which no stack here does.
    accecn: [u32; 8],
}

const _: () = assert!(size_of::<TcpInfo>() == 280);

/// The connection's state in Linux's numbers.
pub fn tcp_state(socket: &Socket) -> u8 {
    match socket.state() {
        state::CONNECTING => SYN_SENT,
        state::LISTENING => LISTEN,
        state::ESTABLISHED if socket.direct().is_some() => {
            match (socket.has_app(app_flags::SHUT_WR), socket.status() & status::RX_EOF != 0) {
                (true, _) => FIN_WAIT2,
                (false, true) => CLOSE_WAIT,
                (false, false) => ESTABLISHED,
            }
        }
        state::ESTABLISHED => match socket.info().tcp_state.load(Relaxed) {
            number @ 1..=12 => number as u8,
            _ => ESTABLISHED,
        },
        _ => CLOSE,
    }
}

/// The retransmission time-out in µs, doubled with each expiry (RFC 6298 §2.3, §5.5) and clamped to Linux's 200 ms to
/// 120 s.
fn rto(srtt: u32, rttvar: u32, timeouts: u32) -> u32 {
    let first = if srtt == 0 { 1_000_000 } else { u64::from(srtt) + u64::from(rttvar).saturating_mul(4).max(200_000) };
    (first << timeouts.min(16)).min(120_000_000) as u32
}

/// TCP_INFO of a direct connection: a path without loss or delay, whose only limit is the peer's ring.
fn of_direct(socket: &Socket, direct: &Direct) -> TcpInfo {
    let line = socket.info();
    let (mss, srtt) = (line.mss.load(Relaxed).max(1), line.srtt_us.load(Relaxed));
    let (sent, read) = (socket.private().sent.load(Relaxed), socket.private().read.load(Relaxed));
    let received = read + u64::from(socket.readable());
    // Linux counts the SYN of the side that connected.
    let syn = u64::from(socket.session.region.layout().is_app_slot(socket.slot));
    let segments = |bytes: u64| bytes.div_ceil(mss.into()).min(u32::MAX.into()) as u32;
    TcpInfo {
        state: tcp_state(socket),
        // Timestamps, SACK and window scaling, as two ends of Linux agree on.
        options: WITH_TIMESTAMPS as u8 | 2 | 4,
        window_scales: 0x77,
        rto: 200_000,
        snd_mss: mss,
        rcv_mss: mss,
        advmss: mss,
        pmtu: mss + HEADERS + TIMESTAMPS,
        rtt: srtt,
        rttvar: srtt / 2,
        min_rtt: srtt,
        snd_cwnd: direct.ring_bytes().div_ceil(mss),
        snd_ssthresh: i32::MAX as u32,
        snd_wnd: socket.view().room(),
        rcv_space: direct.ring_bytes(),
        pacing_rate: u64::MAX,
        max_pacing_rate: stack::max_pacing(socket),
        bytes_acked: sent + syn,
        bytes_sent: sent,
        bytes_received: received,
        segs_out: segments(sent),
        segs_in: segments(received),
        data_segs_out: segments(sent),
        data_segs_in: segments(received),
        delivered: segments(sent),
        rcv_ssthresh: direct.ring_bytes(),
        rcv_wnd: direct.ring_bytes().saturating_sub(socket.readable()),
        ..TcpInfo::default()
    }
}

/// TCP_INFO of a listener: the connections that wait, and the backlog.
fn of_listener(socket: &Socket) -> TcpInfo {
    let (_, listening) = socket.session.region.command(socket.slot).read();
    TcpInfo {
        state: LISTEN,
        unacked: socket.readable() / Accepted::BYTES as u32,
        sacked: listening.backlog,
        snd_cwnd: INITIAL_WINDOW,
        reordering: DUP_THRESHOLD,
        pacing_rate: u64::MAX,
        max_pacing_rate: stack::max_pacing(socket),
        ..TcpInfo::default()
    }
}

/// The answer for a listener with a kernel half, whose descriptor is `fd`: connections wait in both halves.
pub fn of_halves(fd: c_int, listener: &Socket) -> TcpInfo {
    let info = sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, of_listener(listener));
    let here = of_listener(listener);
    info.map_or(here, |info| TcpInfo { unacked: info.unacked.saturating_add(here.unacked), ..info })
}

/// The answer to `getsockopt(TCP_INFO)`. Fields that the stack does not tell are zero.
pub fn tcp_info(socket: &Socket) -> TcpInfo {
    if socket.state() == state::LISTENING {
        return of_listener(socket);
    }
    command::refresh(socket);
    if let Some(direct) = socket.direct() {
        return of_direct(socket, &direct);
    }
    let line = socket.info();
    let mss = line.mss.load(Relaxed).max(1);
    // Linux counts these fields in segments, the stack counts in bytes.
    let segments = |bytes: u32| bytes.div_ceil(mss);
    let options = line.agreed.load(Relaxed);
    let (srtt, rttvar) = (line.srtt_us.load(Relaxed), line.rttvar_us.load(Relaxed));
    let headers = if socket.has(flag::SIX) && towpath_ring::address::load(&line.remote_addr).to_ipv4_mapped().is_none()
    {
        HEADERS_SIX
    } else {
        HEADERS
    };
    let timestamps = if options & WITH_TIMESTAMPS != 0 { TIMESTAMPS } else { 0 };
    let (queued, notsent) = stack_info::queued(socket);
    let seen = line.observed.load(Relaxed);
    let counted = socket.session.region.counts(socket.slot);
    let nothing = CountsLine::default();
    // The counts of an earlier connection of the slot do not count.
    let counts = if counted.generation.load(Relaxed) == socket.generation { counted } else { &nothing };
    // The stack says 0 where it does not know better.
    let or = |word: &AtomicU32, default| if word.load(Relaxed) == 0 { default } else { word.load(Relaxed) };
    let ring = socket.session.region.rx(socket.slot).capacity();
    TcpInfo {
        state: tcp_state(socket),
        options: options as u8,
        ca_state: line.ca_state.load(Relaxed) as u8,
        // Shows the program for how long its peer has been silent (RFC 9293 §3.8.3, SHLD-9).
        retransmits: line.timeouts.load(Relaxed).min(255) as u8,
        backoff: line.timeouts.load(Relaxed).min(255) as u8,
        probes: line.probes.load(Relaxed).min(255) as u8,
        window_scales: line.window_shifts.load(Relaxed) as u8,
        rto: rto(srtt, rttvar, line.timeouts.load(Relaxed)),
        snd_mss: mss,
        rcv_mss: line.receive_mss.load(Relaxed),
        advmss: mss,
        pmtu: mss + headers + timestamps,
        unacked: segments(queued - notsent),
        notsent_bytes: notsent,
        rtt: srtt,
        rttvar,
        min_rtt: line.min_rtt_us.load(Relaxed),
        snd_cwnd: segments(line.cwnd.load(Relaxed)),
        // Linux's infinite threshold is the largest number of segments.
        snd_ssthresh: match line.ssthresh.load(Relaxed) {
            0 | 0x4000_0000.. => i32::MAX as u32,
            bytes => segments(bytes),
        },
        sacked: segments(line.sacked.load(Relaxed)),
        lost: segments(line.lost.load(Relaxed)),
        retrans: segments(counts.resent.load(Relaxed)),
        reordering: or(&counts.reordering, DUP_THRESHOLD),
        reord_seen: counts.reorderings.load(Relaxed),
        last_data_sent: line.silent_ms.load(Relaxed),
        last_data_recv: counts.data_silent_ms.load(Relaxed),
        last_ack_recv: counts.heard_ms.load(Relaxed),
        ato: counts.ack_delay_us.load(Relaxed),
        delivery_rate: line.delivery_rate.load(Relaxed),
        application_limited: u8::from(seen & observed::APP_LIMITED != 0),
        busy_time: line.busy_us.load(Relaxed),
        rwnd_limited: line.window_limited_us.load(Relaxed),
        delivered_ce: segments(line.marked.load(Relaxed)),
        sndbuf_limited: counts.buffer_limited_us.load(Relaxed),
        delivered: counts.delivered.load(Relaxed),
        bytes_sent: counts.bytes_sent.load(Relaxed),
        bytes_retrans: counts.bytes_resent.load(Relaxed),
        dsack_dups: counts.duplicates.load(Relaxed),
        rcv_ooopack: counts.out_of_order.load(Relaxed),
        snd_wnd: line.send_window.load(Relaxed),
        rcv_wnd: counts.receive_window.load(Relaxed),
        rcv_ssthresh: or(&counts.receive_threshold, ring),
        rcv_rtt: counts.receive_rtt_us.load(Relaxed),
        rcv_space: or(&counts.receive_space, ring),
        total_rto: counts.timeouts_total.load(Relaxed).min(u16::MAX.into()) as u16,
        total_rto_recoveries: counts.timeout_series.load(Relaxed).min(u16::MAX.into()) as u16,
        total_rto_time: counts.timeout_ms.load(Relaxed),
        total_retrans: line.retransmits.load(Relaxed),
        pacing_rate: match line.pacing_rate.load(Relaxed) {
            0 => u64::MAX,
            rate => rate,
        },
        max_pacing_rate: stack::max_pacing(socket),
        bytes_acked: line.bytes_acked.load(Relaxed),
        bytes_received: line.bytes_received.load(Relaxed),
        segs_out: line.segments_out.load(Relaxed),
        segs_in: line.segments_in.load(Relaxed),
        data_segs_out: counts.data_segments_out.load(Relaxed),
        data_segs_in: counts.data_segments_in.load(Relaxed),
        ..TcpInfo::default()
    }
}
