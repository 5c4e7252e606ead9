//! The cache lines of one socket slot. `App*` words are written by the application side only, `Stack*`/`Info*`
//! words by the stack side only.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// Written by the application, read by the stack. One cache line.
///
/// Byte positions are free-running `u32` counters from the start of the connection (first byte = 0), taken modulo
/// the ring size. `tx_tail - stack.tx_head` is what is queued; `stack.rx_tail - rx_head` is what is unread.
#[repr(C, align(64))]
#[derive(Default)]
pub struct AppLine {
    /// Bytes the application has put into its send ring.
    pub tx_tail: AtomicU32,
    /// Bytes the application has taken from its receive ring.
    pub rx_head: AtomicU32,
    /// `app_flags` bits.
    pub flags: AtomicU32,
    /// The generation (of [`StackLine::generation`]) these words are meant for; with any other the stack ignores the
    /// line.
    pub generation: AtomicU32,
    /// Contexts to tell about events on this slot: bit n = context n.
    pub ctx_mask: AtomicU64,
    /// `want` bits: which events beyond the always-reported ones (readable, state) are asked for. Also
    /// [`ring_size::SEND`](crate::ring_size::SEND), stored before a `tx_tail` that needs it, and
    /// [`ring_size::RECEIVE_GRANTED`](crate::ring_size::RECEIVE_GRANTED).
    pub want: AtomicU32,
    /// Number of threads asleep on the futex word [`StackLine::event_seq`]; 0 = no wake needed.
    pub sleepers: AtomicU32,
    /// Dirty-set sequence word for the data doorbell of this slot (see [`crate::dirty`]).
    pub data_seq: AtomicU32,
    /// Dirty-set sequence word for the command doorbell of this slot.
    pub ctl_seq: AtomicU32,
    /// Position after the newest urgent byte put into the send ring (`MSG_OOB`), valid with [`app_flags::URGENT`]. It
    /// is stored before that flag and before the `tx_tail` that covers it.
    pub urgent: AtomicU32,
    /// Context, counted from 1, to notify of every new urgent byte of the peer's, armed or not; 0 = none.
    pub urgent_doorbell: AtomicU32,
    /// In a pair region: position after the held bytes behind `tx_tail` (`TCP_CORK`, `MSG_MORE`). It is valid with
    /// `held_ms`, and stored before it. In a client's region it is [`AppLine::flush`].
    pub held_tail: AtomicU32,
    /// In a pair region: when the oldest held byte was sent (CLOCK_MONOTONIC, ms, bit 0 set); 0 = nothing is held.
    /// The other side counts held bytes as sent after 200 ms, or when the sender has ended. In a client's region it is
    /// [`AppLine::record`].
    pub held_ms: AtomicU32,
    /// Some contexts of [`AppLine::ctx_mask`]. A new connection of this listener, or data of this connection, must wake
    /// only one of them (`EPOLLEXCLUSIVE`).
    pub exclusive: AtomicU64,
}

impl AppLine {
    /// In a client's region: what stands in the send ring before this position goes out although [`app_flags::CORK`] is set.
    /// `CORK` has been off for a moment. Valid with [`app_flags::FLUSH`], and stored before that flag and before `CORK` is set
    /// again.
    #[inline]
    pub fn flush(&self) -> &AtomicU32 {
        &self.held_tail
    }
    /// Of a listener: connections that the kernel's half of it has accepted, since its socket has listened.
    #[inline]
    pub fn kernel_accepts(&self) -> &AtomicU32 {
        &self.tx_tail
    }
    /// In a pair region: when this side last put the other side's slot into an event bitmap. The clock is one that all
    /// processors share, so the other side can tell which event came first. It is in the line that the other side reads
    /// for the bytes, so that it costs no other one.
    #[inline]
    pub fn raised(&self) -> &AtomicU32 {
        &self.data_seq
    }
    /// In a client's region: position after the newest record (`MSG_EOR`). Valid with [`app_flags::RECORD`], and stored
    /// before that flag and before the `tx_tail` that covers it.
    #[inline]
    pub fn record(&self) -> &AtomicU32 {
        &self.held_ms
    }
}

/// Bits of [`AppLine::flags`].
pub mod app_flags {
    /// No more data will be sent: a FIN follows `tx_tail` (`shutdown(SHUT_WR)`).
    pub const SHUT_WR: u32 = 1;
    /// Received data is not wanted any more (`shutdown(SHUT_RD)`).
    pub const SHUT_RD: u32 = 2;
    /// The application has closed the socket; the stack drains the send ring, then frees the slot.
    pub const CLOSED: u32 = 4;
    /// Together with CLOSED: abort with RST instead of FIN (`SO_LINGER` with 0 s).
    pub const ABORT: u32 = 8;
    /// `TCP_NODELAY`.
    pub const NODELAY: u32 = 16;
    /// `TCP_CORK`.
    pub const CORK: u32 = 32;
    /// There are urgent data: see [`AppLine::urgent`].
    ///
    /// [`AppLine::urgent`]: super::AppLine::urgent
    pub const URGENT: u32 = 64;
    /// `TCP_QUICKACK`.
    pub const QUICKACK: u32 = 128;
    /// Of a direct connection: the other side's words in the pair region break the contract. The stack ends the
    /// connection.
    pub const PEER_VIOLATED: u32 = 256;
    /// See [`AppLine::flush`](super::AppLine::flush).
    pub const FLUSH: u32 = 512;
    /// See [`AppLine::record`](super::AppLine::record).
    pub const RECORD: u32 = 1024;
    /// Of a listener: programs may have its descriptor that do not serve this slot.
    pub const PASSED: u32 = 2048;
    /// How many threads close a descriptor that may be the last one of the socket. The one that finds that it was sets CLOSED. A
    /// service that sees the last one go gives them a moment for that.
    pub const CLOSERS: u32 = 0xff00_0000;
    /// One of [`CLOSERS`].
    pub const CLOSER: u32 = 1 << 24;
}

/// Bits of [`AppLine::want`].
pub mod want {
    /// Asks for an event when a third of the send ring is free again.
    pub const WRITABLE: u32 = 1;
}

/// One command of the application (connect, listen). Written by the application; the answer is in [`StackLine`].
/// `seq` is stored last (release). One command may be outstanding per slot.
#[repr(C, align(64))]
#[derive(Default)]
pub struct CommandLine {
    /// Incremented for each command; never 0 for a real command.
    pub seq: AtomicU32,
    /// `command::op`.
    pub op: AtomicU32,
    /// Address of the peer (connect), see [`crate::address`].
    pub remote_addr: [AtomicU32; 4],
    /// Port of the peer (connect).
    pub remote_port: AtomicU32,
    /// Local address; `::` = any, `::ffff:0.0.0.0` = any of IPv4.
    pub local_addr: [AtomicU32; 4],
    /// Local port; 0 = let the stack choose (connect only).
    pub local_port: AtomicU32,
    /// Backlog (listen).
    pub backlog: AtomicU32,
    /// Initial `app_flags` for the connection, and `command::V6ONLY`.
    pub flags: AtomicU32,
    /// No part of a command: how many of [`AppLine::sleepers`] are in `accept`. If all are, a new connection wakes one.
    pub accepting: AtomicU32,
    /// No part of a command: number of the process ([`crate::control::Reply::Welcome`]) that gives the command. It
    /// stays until the socket no longer depends on that process. If the process ends before, the stack closes the slot.
    /// 0 = nobody.
    pub holder: AtomicU32,
}

/// Written by the stack, read by the application. One cache line.
#[repr(C, align(64))]
#[derive(Default)]
pub struct StackLine {
    /// Bytes acknowledged by the peer, whose room in the send ring is free again.
    pub tx_head: AtomicU32,
    /// Bytes of in-order data put into the receive ring.
    pub rx_tail: AtomicU32,
    /// `state::*`.
    pub state: AtomicU32,
    /// `status` bits (sticky while the connection lives).
    pub status: AtomicU32,
    /// The socket's pending error as a positive errno; 0 = none. Sticky; the library reports it once per `SO_ERROR`.
    pub error: AtomicU32,
    /// Incremented with every event on this slot; the futex word of blocking calls.
    pub event_seq: AtomicU32,
    /// Incremented by the stack each time the slot is given to a new connection or listener.
    pub generation: AtomicU32,
    /// The flow group that serves this slot, and so the data queue to use. Also
    /// [`ring_size::RECEIVE`](crate::ring_size::RECEIVE), stored before an `rx_tail` that needs it, and the sizes that the
    /// stack wants.
    pub flow_group: AtomicU32,
    /// Acknowledges [`AppLine::data_seq`].
    pub data_ack: AtomicU32,
    /// Acknowledges [`AppLine::ctl_seq`].
    pub ctl_ack: AtomicU32,
    /// Equals [`CommandLine::seq`] when that command has been answered.
    pub command_done: AtomicU32,
    /// Result of that command: 0 = accepted (a connect goes on in the background), else a negative errno.
    /// `command::NOT_OURS` and a reason = use a kernel socket.
    pub command_result: AtomicI32,
    /// Position of the peer's newest urgent byte in the receive ring; valid with `status::URGENT`, and stored before
    /// it.
    pub urgent: AtomicU32,
    /// The newest error that does not end the connection. The low 16 bits are its errno, 0 = none. The high ones count
    /// such errors in this slot. Only where [`option_flags`](crate::options::option_flags) ask for it.
    pub soft_error: AtomicU32,
    /// Number of the pair region that carries the connection; 0 = the stack carries it. Stored before `state`.
    pub pair: AtomicU32,
    /// Its place in that region (`pair_slot`).
    pub pair_slot: AtomicU32,
}

/// Values of [`StackLine::state`].
pub mod state {
    /// Not in use; may be taken by its allocator.
    pub const FREE: u32 = 0;
    /// SYN sent, not yet established.
    pub const CONNECTING: u32 = 1;
    /// Data may flow (also while closing; see `status`).
    pub const ESTABLISHED: u32 = 2;
    /// A listener; its receive ring holds `command::Accepted` records.
    pub const LISTENING: u32 = 3;
    /// The connection is over: refused, reset, timed out, or closed in both directions. The slot is kept until the
    /// application closes it.
    pub const CLOSED: u32 = 4;
}

/// Bits of [`StackLine::status`].
pub mod status {
    /// The peer has sent FIN: after `rx_tail` comes end of file.
    pub const RX_EOF: u32 = 1;
    /// The connection was reset or timed out (`error` says which).
    pub const RESET: u32 = 2;
    /// The stack takes no more data (our FIN is out or the connection is gone).
    pub const TX_CLOSED: u32 = 4;
    /// The peer has sent urgent data: see [`StackLine::urgent`](super::StackLine::urgent).
    pub const URGENT: u32 = 8;
    /// The other side's application has closed a direct connection, or is gone. Nobody reads bytes that are sent now.
    pub const PEER_CLOSED: u32 = 16;
    /// Of a listener: the filter of its kernel half refuses some peers, and stays on when the stack has gone.
    pub const JUDGED: u32 = 32;
}

/// The fields of [`StackLine::pair_slot`].
pub mod pair_slot {
    /// Its slot, side (0 or 1) and place among the client's pairs, as one word.
    pub const fn of(slot: u32, side: u32, place: u32) -> u32 {
        slot & 0xfff | (place & 0x3f) << 16 | (side & 1) << 31
    }
    /// The slot in the pair region.
    #[inline]
    pub const fn slot(word: u32) -> u32 {
        word & 0xfff
    }
    /// Which side of it the client is.
    #[inline]
    pub const fn side(word: u32) -> usize {
        (word >> 31) as usize
    }
    /// The pair's place among the client's.
    #[inline]
    pub const fn place(word: u32) -> u32 {
        word >> 16 & 0x3f
    }
}

/// The values that `getsockname`, `getpeername` and `TCP_INFO` show. Written by the stack. Three cache lines, of which
/// the fast path touches none.
#[repr(C, align(64))]
#[derive(Default)]
pub struct InfoLine {
    /// Local address, see [`crate::address`].
    pub local_addr: [AtomicU32; 4],
    /// Peer's address.
    pub remote_addr: [AtomicU32; 4],
    /// Local port in the high, peer port in the low 16 bits.
    pub ports: AtomicU32,
    /// RFC 9293 state number in Linux's numbering (1 = ESTABLISHED ...).
    pub tcp_state: AtomicU32,
    /// Effective send MSS, bytes.
    pub mss: AtomicU32,
    /// `congestion` algorithm at work.
    pub congestion: AtomicU32,
    /// Retransmitted segments.
    pub retransmits: AtomicU32,
    /// Options agreed on, in Linux's `TCPI_OPT_*` bits.
    pub agreed: AtomicU32,
    /// Smoothed round-trip time, µs.
    pub srtt_us: AtomicU32,
    /// Round-trip time variation, µs.
    pub rttvar_us: AtomicU32,
    /// Smallest recent round-trip time, µs; 0 = none.
    pub min_rtt_us: AtomicU32,
    /// Congestion window, bytes.
    pub cwnd: AtomicU32,
    /// Slow-start threshold, bytes.
    pub ssthresh: AtomicU32,
    /// The peer's window, bytes.
    pub send_window: AtomicU32,
    /// Sent and not acknowledged, bytes.
    pub unacked: AtomicU32,
    /// Bytes in the send ring that have never been sent.
    pub unsent: AtomicU32,
    /// Segments received.
    pub segments_in: AtomicU32,
    /// Segments sent.
    pub segments_out: AtomicU32,
    /// Pacing rate, bytes per second; 0 = not paced.
    pub pacing_rate: AtomicU64,
    /// Payload bytes that the peer has acknowledged.
    pub bytes_acked: AtomicU64,
    /// Payload bytes received.
    pub bytes_received: AtomicU64,
    /// Retransmission time-outs since the last progress.
    pub timeouts: AtomicU32,
    /// Probes of a closed window, and keep-alives, since the last answer.
    pub probes: AtomicU32,
    /// Linux's `TCP_CA_*` state: 0 open, 3 recovery, 4 loss.
    pub ca_state: AtomicU32,
    /// Window shifts: the peer's in the low four bits, ours in the next four.
    pub window_shifts: AtomicU32,
    /// Estimate of the peer's segments, bytes of payload.
    pub receive_mss: AtomicU32,
    /// Payload bytes acknowledged with an ECN echo.
    pub marked: AtomicU32,
    /// Outstanding bytes that the peer has reported.
    pub sacked: AtomicU32,
    /// Outstanding bytes that count as lost and are still to be sent again.
    pub lost: AtomicU32,
    /// `observed` bits.
    pub observed: AtomicU32,
    /// How long nothing had been sent when this was written, ms.
    pub silent_ms: AtomicU32,
    /// Payload acknowledged over the last round trip with data out, bytes per second.
    pub delivery_rate: AtomicU64,
    /// How long there has been something to send or unacknowledged, µs.
    pub busy_us: AtomicU64,
    /// How long of that the peer's window held data back, µs.
    pub window_limited_us: AtomicU64,
    /// Bytes of files that were to be sent ([`crate::sideband`]) and have not been. Always up to date.
    pub file_bytes: AtomicU32,
    /// One more than the bytes that the stack holds, as of the last `REFRESH`. A stack holds bytes if it takes them out of the
    /// send ring before they are acknowledged. The end of the stream counts as a byte. 0 = the stack never holds any.
    pub held: AtomicU32,
}

/// The rest of what `TCP_INFO` shows. Written by the stack for `op::REFRESH`. Two cache lines, in a part of the region
/// of their own, so that slots stay together.
#[repr(C, align(128))]
#[derive(Default)]
pub struct CountsLine {
    /// Payload bytes sent, each time that they were.
    pub bytes_sent: AtomicU64,
    /// Payload bytes sent again.
    pub bytes_resent: AtomicU64,
    /// Part of [`InfoLine::busy_us`] in which the send ring was full and all of it in flight, µs.
    pub buffer_limited_us: AtomicU64,
    /// The generation of the connection that this is about; with any other the line says nothing.
    pub generation: AtomicU32,
    /// Outstanding bytes that were sent again, and neither reported nor lost since.
    pub resent: AtomicU32,
    /// Segments received with data.
    pub data_segments_in: AtomicU32,
    /// Segments sent with data.
    pub data_segments_out: AtomicU32,
    /// Segments that have arrived at the peer.
    pub delivered: AtomicU32,
    /// The peer's reports of what came twice (RFC 2883).
    pub duplicates: AtomicU32,
    /// How often segments have been seen to overtake each other.
    pub reorderings: AtomicU32,
    /// Segments that came ahead of a hole.
    pub out_of_order: AtomicU32,
    /// Bytes that the peer may still send.
    pub receive_window: AtomicU32,
    /// The largest receive window so far, bytes; 0 = the receive ring.
    pub receive_threshold: AtomicU32,
    /// Bytes that the application reads in a round trip; 0 = the receive ring.
    pub receive_space: AtomicU32,
    /// Round-trip time as the receiver sees it, µs; 0 = none.
    pub receive_rtt_us: AtomicU32,
    /// How long an acknowledgement may wait for data to carry it, µs.
    pub ack_delay_us: AtomicU32,
    /// Segments by which one may be overtaken and not count as lost; 0 = the default.
    pub reordering: AtomicU32,
    /// Retransmission time-outs so far, of the handshake too.
    pub timeouts_total: AtomicU32,
    /// How often the first of a series of them has happened.
    pub timeout_series: AtomicU32,
    /// Time from the first time-out of a series to the next progress, of all series, ms.
    pub timeout_ms: AtomicU32,
    /// How long no data had been received when this was written, ms.
    pub data_silent_ms: AtomicU32,
    /// How long the peer had not been heard when this was written, ms.
    pub heard_ms: AtomicU32,
    /// Payload bytes of the peer that have arrived at the other peer since `op::SPLICE_TOLD` spliced the connection. Any generation.
    pub passed_on: AtomicU64,
}

/// Bits of [`InfoLine::observed`].
pub mod observed {
    /// [`InfoLine::delivery_rate`](super::InfoLine::delivery_rate) is what the application had to send, not what the
    /// path could take.
    pub const APP_LIMITED: u32 = 2;
}

/// Congestion control algorithms, as [`OptionsLine::congestion`](crate::OptionsLine::congestion) and
/// [`InfoLine::congestion`] number them.
pub mod congestion {
    /// Their names, as `TCP_CONGESTION` has them; a number is a place in this list. Number 0 stands for the stack's
    /// default.
    pub const NAMES: [&str; 8] = ["", "reno", "cubic", "dctcp", "dctcp-rate", "timely", "bbr", "constant"];
}

const _: () = assert!(size_of::<AppLine>() == 64);
const _: () = assert!(size_of::<CommandLine>() == 64);
const _: () = assert!(size_of::<StackLine>() == 64);
const _: () = assert!(size_of::<InfoLine>() == 192);
const _: () = assert!(size_of::<CountsLine>() == 128);

#[cfg(test)]
mod tests {
    use super::pair_slot::{of, place, side, slot};

    #[test]
    fn the_fields_of_a_pair_slot_come_out_as_they_went_in_and_do_not_touch_each_other() {
        for (number, end, at) in [(0, 0, 0), (0xfff, 0, 0), (0, 1, 0), (0, 0, 0x3f), (0xa5c, 1, 0x2a), (0x5a3, 0, 0x15)]
        {
            let word = of(number, end, at);
            assert_eq!((slot(word), side(word), place(word)), (number, end as usize, at));
        }
        let all = of(u32::MAX, u32::MAX, u32::MAX);
        assert_eq!((slot(all), side(all), place(all)), (0xfff, 1, 0x3f), "cut to their bits");
        assert_eq!((slot(u32::MAX), side(u32::MAX), place(u32::MAX)), (0xfff, 1, 0x3f), "of any word of a stack");
    }
}
