//! The kernel's `TCP_INFO` of a connection, as the application's `TCP_INFO` and listings show it.

use crate::sys::{self, TCP_INFO_BYTES};
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;
use towpath_ring::lines::observed;
use towpath_ring::{CountsLine, InfoLine};
use towpath_runtime::status::TcpStatus;

/// `TCP_CLOSE`. The socket of a connection in TIME-WAIT is in this state too.
const CLOSE: u32 = 7;

/// One reading of `struct tcp_info` (linux/tcp.h). Fields that the kernel does not fill are 0.
pub struct TcpInfo([u8; TCP_INFO_BYTES]);

impl TcpInfo {
    /// Reads it from a socket.
    pub fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        let mut bytes = [0; TCP_INFO_BYTES];
        sys::get(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes)?;
        Some(Self(bytes))
    }
    fn byte(&self, at: usize) -> u32 {
        self.0[at].into()
    }
    fn word(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[at..at + 4]);
        u32::from_ne_bytes(bytes)
    }
    fn long(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[at..at + 8]);
        u64::from_ne_bytes(bytes)
    }
    /// Linux's number of the state.
    pub fn state(&self) -> u32 {
        self.byte(0)
    }
    /// True if there is no connection any more.
    pub fn is_closed(&self) -> bool {
        self.state() == CLOSE
    }
    /// Bytes of payload in a segment.
    pub fn mss(&self) -> u16 {
        self.word(16).min(u16::MAX.into()) as u16
    }
    /// Smoothed round-trip time, µs.
    pub fn srtt_us(&self) -> u32 {
        self.word(68)
    }
    /// Segments, in bytes.
    fn bytes(&self, segments: u32) -> u32 {
        segments.saturating_mul(self.mss().into())
    }
    fn agreed(&self) -> u32 {
        self.byte(5)
    }

    fn half(&self, at: usize) -> u32 {
        u16::from_ne_bytes([self.0[at], self.0[at + 1]]).into()
    }

    /// Publishes the counts of a connection with this generation.
    pub fn show_counts(&self, counts: &CountsLine, generation: u32) {
        for (word, value) in [
            (&counts.generation, generation),
            (&counts.resent, self.bytes(self.word(36))),
            (&counts.data_segments_in, self.word(152)),
            (&counts.data_segments_out, self.word(156)),
            (&counts.delivered, self.word(192)),
            (&counts.duplicates, self.word(216)),
            (&counts.reorderings, self.word(220)),
            (&counts.out_of_order, self.word(224)),
            (&counts.receive_window, self.word(232)),
            (&counts.receive_threshold, self.word(64)),
            (&counts.receive_space, self.word(96)),
            (&counts.receive_rtt_us, self.word(92)),
            (&counts.ack_delay_us, self.word(12)),
            (&counts.reordering, self.word(88)),
            (&counts.timeouts_total, self.half(240)),
            (&counts.timeout_series, self.half(242)),
            (&counts.timeout_ms, self.word(244)),
            (&counts.data_silent_ms, self.word(52)),
            (&counts.heard_ms, self.word(56)),
        ] {
            word.store(value, Relaxed);
        }
        counts.bytes_sent.store(self.long(200), Relaxed);
        counts.bytes_resent.store(self.long(208), Relaxed);
        counts.buffer_limited_us.store(self.long(184), Relaxed);
    }

    /// Publishes the values to the application.
    pub fn show(&self, info: &InfoLine) {
        let shifts = self.byte(6);
        let app_limited = if self.byte(7) & 1 != 0 { observed::APP_LIMITED } else { 0 };
        for (word, value) in [
            (&info.tcp_state, self.state()),
            (&info.mss, self.mss().into()),
            (&info.retransmits, self.word(100)),
            (&info.agreed, self.agreed()),
            (&info.srtt_us, self.srtt_us()),
            (&info.rttvar_us, self.word(72)),
            (&info.min_rtt_us, if self.word(148) == u32::MAX { 0 } else { self.word(148) }),
            (&info.cwnd, self.bytes(self.word(80))),
            (&info.ssthresh, self.bytes(self.word(76))),
            (&info.send_window, self.word(228)),
            (&info.unacked, self.bytes(self.word(24))),
            (&info.unsent, self.word(144)),
            (&info.segments_in, self.word(140)),
            (&info.segments_out, self.word(136)),
            (&info.timeouts, self.byte(4)),
            (&info.probes, self.byte(3)),
            (&info.ca_state, self.byte(1)),
            (&info.window_shifts, shifts),
            (&info.receive_mss, self.word(20)),
            (&info.sacked, self.bytes(self.word(28))),
            (&info.lost, self.bytes(self.word(32))),
            (&info.marked, self.bytes(self.word(196))),
            (&info.observed, app_limited),
            (&info.silent_ms, self.word(44)),
        ] {
            word.store(value, Relaxed);
        }
        for (word, value) in [
            (&info.pacing_rate, if self.long(104) == u64::MAX { 0 } else { self.long(104) }),
            (&info.bytes_acked, self.long(120)),
            (&info.bytes_received, self.long(128)),
            (&info.delivery_rate, self.long(160)),
            (&info.busy_us, self.long(168)),
            (&info.window_limited_us, self.long(176)),
        ] {
            word.store(value, Relaxed);
        }
    }

    /// The values for listings.
    pub fn status(&self) -> TcpStatus {
        TcpStatus {
            srtt_us: self.srtt_us(),
            rttvar_us: self.word(72),
            mss: self.mss(),
            cwnd: self.bytes(self.word(80)),
            ssthresh: self.bytes(self.word(76)),
            snd_wnd: self.word(228),
            unacked: self.bytes(self.word(24)),
            bytes_received: self.long(128),
            bytes_acked: self.long(120),
            segs_in: self.word(140).into(),
            segs_out: self.word(136).into(),
            retrans: self.word(100).into(),
            backoff: self.byte(4),
            probes: self.byte(3),
            timestamps: self.agreed() & 1 != 0,
            sack: self.agreed() & 2 != 0,
            wscale: self.agreed() & 4 != 0,
            ecn: self.agreed() & 8 != 0,
            recovery: self.byte(1) >= 3,
        }
    }
}
