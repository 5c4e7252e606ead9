//! The flow table: three cache lines per flow. The owning fast path is the only writer; everybody may read.
//!
//! Words are relaxed atomics (plain loads and stores on every machine we know), so a reading by another thread is true word
//! by word, though not of one instant.

use crate::buffers::PortId;
use crate::flow::{FlowId, FlowSetup, FlowSnapshot, FourTuple, Link, Window};
use crate::seq::Seq;
use std::net::Ipv4Addr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A 32-bit word with one writer.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Word(AtomicU32);

impl Word {
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }
    #[inline]
    pub(crate) fn set(&self, value: u32) {
        self.0.store(value, Relaxed);
    }
    #[inline]
    pub(crate) fn add(&self, n: u32) {
        self.set(self.get().wrapping_add(n));
    }
}

/// A 64-bit counter with one writer.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.set(self.get().wrapping_add(n));
    }
}

/// Bits of [`Tcb::flags`] beyond the public ones of [`crate::flow::flow_flags`].
pub(crate) mod bits {
    /// The public bits.
    pub const PUBLIC: u32 = 0x7ff;
    /// Owned by a fast path.
    pub const INSTALLED: u32 = 1 << 11;
    /// Reset or aborted: segments are ignored until removal.
    pub const DEAD: u32 = 1 << 12;
    /// Removed, but still in one of the queues.
    pub const REMOVING: u32 = 1 << 13;
    /// In the scheduler's queue.
    pub const SCHEDULED: u32 = 1 << 14;
    /// An acknowledgement goes out in this turn, alone if no data does.
    pub const ACK_NOW: u32 = 1 << 15;
    /// An acknowledgement is owed, but may wait for data to carry it.
    pub const ACK_OWED: u32 = 1 << 16;
    /// In the queue of delayed acknowledgements.
    pub const DELAYED: u32 = 1 << 17;
    /// The application does not want received data.
    pub const SHUT_RD: u32 = 1 << 18;
    /// Partial segments are held.
    pub const CORK: u32 = 1 << 19;
    /// A segment is being timed (`Measures::rtt_seq`).
    pub const TIMING: u32 = 1 << 20;
    /// A window probe is to be sent.
    pub const PROBE: u32 = 1 << 21;
    /// The first unacknowledged segment is to be sent again.
    pub const RESEND: u32 = 1 << 22;
    /// A RST is to be sent.
    pub const RESET: u32 = 1 << 23;
    /// `Identity::recover` still means something.
    pub const RECOVER_SET: u32 = 1 << 24;
    /// Where the pending events are (`messages::event`, five bits).
    pub const EVENT_SHIFT: u32 = 25;
    /// The pending events.
    pub const EVENTS: u32 = 0x1f << EVENT_SHIFT;
}

/// The protocol stage's state of a flow: one line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct ProtocolLine([Word; 16]);

/// A working copy of a [`ProtocolLine`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tcb {
    /// Oldest unacknowledged.
    pub snd_una: Seq,
    /// Next to send; moves back on a time-out.
    pub snd_nxt: Seq,
    /// One beyond the highest ever sent.
    pub snd_max: Seq,
    /// End of the queued data.
    pub snd_queued: Seq,
    /// The peer's window in bytes, from `snd_una`.
    pub snd_wnd: u32,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow-start threshold in bytes.
    pub ssthresh: u32,
    /// Sequence number of the segment that updated `snd_wnd` last. (WL2 is not needed: old acknowledgements are ignored.)
    pub snd_wl1: Seq,
    /// Next expected.
    pub rcv_nxt: Seq,
    /// Right edge of the window advertised so far.
    pub rcv_adv: Seq,
    /// End of the room in the receive ring: the highest that the right edge may be.
    pub rcv_limit: Seq,
    /// Acknowledgement number sent last (Last.ACK.sent, RFC 7323 §4.3).
    pub last_ack: Seq,
    /// The peer's timestamp to echo.
    pub ts_recent: u32,
    /// `flow_flags` and [`bits`].
    pub flags: u32,
    /// Largest payload to send.
    pub mss: u16,
    /// Largest payload seen, as estimate of the peer's segments.
    pub rcv_mss: u16,
    /// Duplicate acknowledgements in a row, up to 15.
    pub dup_acks: u8,
    /// Duplicate acknowledgements to be sent, up to 15: one for each segment that came ahead of a hole, however many there were in
    /// a batch, as the peer counts them (RFC 5681 §3.2, §4.2).
    pub acks_due: u8,
    /// The peer's window shift.
    pub snd_wscale: u8,
    /// Our window shift.
    pub rcv_wscale: u8,
    /// Entry in the out-of-order table plus one; 0 = everything is in order.
    pub out_of_order: u16,
}

impl Tcb {
    /// Are all these bits set?
    #[inline]
    pub fn has(&self, bits: u32) -> bool {
        self.flags & bits == bits
    }
    /// Is any of these bits set?
    #[inline]
    pub fn any(&self, bits: u32) -> bool {
        self.flags & bits != 0
    }
    /// Bytes that the peer may still send, as advertised.
    #[inline]
    pub fn rcv_wnd(&self) -> u32 {
        self.rcv_adv.distance(self.rcv_nxt).max(0) as u32
    }
    /// Is nothing outstanding?
    #[inline]
    pub fn idle(&self) -> bool {
        self.snd_una == self.snd_max
    }
}

impl ProtocolLine {
    #[inline]
    pub(crate) fn load(&self) -> Tcb {
        let w = |i: usize| self.0[i].get();
        let (sizes, small) = (w(14), w(15));
        Tcb {
            snd_una: Seq(w(0)),
            snd_nxt: Seq(w(1)),
            snd_max: Seq(w(2)),
            snd_queued: Seq(w(3)),
            snd_wnd: w(4),
            cwnd: w(5),
            ssthresh: w(6),
            snd_wl1: Seq(w(7)),
            rcv_nxt: Seq(w(8)),
            rcv_adv: Seq(w(9)),
            rcv_limit: Seq(w(10)),
            last_ack: Seq(w(11)),
            ts_recent: w(12),
            flags: w(13),
            mss: sizes as u16,
            rcv_mss: (sizes >> 16) as u16,
            dup_acks: small as u8 & 15,
            acks_due: (small >> 4) as u8 & 15,
            snd_wscale: (small >> 8) as u8 & 15,
            rcv_wscale: (small >> 12) as u8 & 15,
            out_of_order: (small >> 16) as u16,
        }
    }
    #[inline]
    pub(crate) fn store(&self, t: &Tcb) {
        let sizes = u32::from(t.mss) | u32::from(t.rcv_mss) << 16;
        let small = u32::from(t.dup_acks.min(15))
            | u32::from(t.acks_due.min(15)) << 4
            | u32::from(t.snd_wscale & 15) << 8
            | u32::from(t.rcv_wscale & 15) << 12
            | u32::from(t.out_of_order) << 16;
        let words = [
            t.snd_una.0,
            t.snd_nxt.0,
            t.snd_max.0,
            t.snd_queued.0,
            t.snd_wnd,
            t.cwnd,
            t.ssthresh,
            t.snd_wl1.0,
            t.rcv_nxt.0,
            t.rcv_adv.0,
            t.rcv_limit.0,
            t.last_ack.0,
            t.ts_recent,
            t.flags,
            sizes,
            small,
        ];
        for (word, value) in self.0.iter().zip(words) {
            word.set(value);
        }
    }
    /// The flags alone.
    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        self.0[13].get()
    }
    /// Changes the flags alone.
    #[inline]
    pub(crate) fn set_flags(&self, flags: u32) {
        self.0[13].set(flags);
    }
}

/// Who a flow is: the template of its headers, its rings, and what is seldom touched. One line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Identity {
    local: Word,
    remote: Word,
    /// Local port in the high half.
    ports: Word,
    macs: [Word; 3],
    /// Port number in the low byte, owning core above it.
    place: Word,
    /// Send ring size in bytes.
    pub tx_bytes: Word,
    /// Receive ring size in bytes.
    pub rx_bytes: Word,
    /// Sequence number of position 0 of the send ring.
    pub snd_start: Word,
    /// Sequence number of position 0 of the receive ring; moves when data are discarded unread.
    pub rcv_start: Word,
    /// Added to the millisecond clock.
    pub ts_offset: Word,
    /// errno shown to the application.
    pub errno: Word,
    /// End of what had been sent when the last loss was seen (RFC 6582), if `bits::RECOVER_SET`.
    pub recover: Word,
    /// When the delayed acknowledgement became owed, µs modulo 2^32.
    pub owed_at: Word,
    /// When TS.Recent was set, in units of 2^20 µs.
    pub ts_recent_at: Word,
}

impl Identity {
    pub(crate) fn tuple(&self) -> FourTuple {
        let ports = self.ports.get();
        FourTuple {
            local: Ipv4Addr::from_bits(self.local.get()),
            local_port: (ports >> 16) as u16,
            remote: Ipv4Addr::from_bits(self.remote.get()),
            remote_port: ports as u16,
        }
    }
    pub(crate) fn link(&self) -> Link {
        let [a, b, c] = [0, 1, 2].map(|i: usize| self.macs[i].get().to_be_bytes());
        Link {
            port: self.port(),
            source: [a[0], a[1], a[2], a[3], b[0], b[1]],
            destination: [b[2], b[3], c[0], c[1], c[2], c[3]],
        }
    }
    pub(crate) fn set_link(&self, link: &Link) {
        let (s, d) = (link.source, link.destination);
        self.macs[0].set(u32::from_be_bytes([s[0], s[1], s[2], s[3]]));
        self.macs[1].set(u32::from_be_bytes([s[4], s[5], d[0], d[1]]));
        self.macs[2].set(u32::from_be_bytes([d[2], d[3], d[4], d[5]]));
        self.place.set(self.place.get() & !0xff | u32::from(link.port.0));
    }
    #[inline]
    pub(crate) fn port(&self) -> PortId {
        PortId(self.place.get() as u8)
    }
    #[inline]
    pub(crate) fn core(&self) -> u32 {
        self.place.get() >> 8
    }
    fn set_tuple(&self, tuple: &FourTuple) {
        self.local.set(tuple.local.to_bits());
        self.remote.set(tuple.remote.to_bits());
        self.ports.set(u32::from(tuple.local_port) << 16 | u32::from(tuple.remote_port));
    }
}

/// What is counted and measured on a flow. One line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Measures {
    pub segments_in: Counter,
    pub segments_out: Counter,
    /// Payload bytes received in order.
    pub bytes_in: Counter,
    /// Payload bytes acknowledged.
    pub bytes_acked: Counter,
    pub retransmits: Word,
    /// Smoothed round-trip time in µs; 0 = no sample yet.
    pub srtt_us: Word,
    pub rttvar_us: Word,
    /// The timed segment's end, if `bits::TIMING`.
    pub rtt_seq: Word,
    /// When it was sent, µs modulo 2^32.
    pub rtt_at: Word,
    /// The largest window the peer has offered, bytes.
    pub max_wnd: Word,
    /// Bytes acknowledged since congestion avoidance last grew the window.
    pub grown: Word,
    /// `Window::growth` and, in the high half, `Window::beta`.
    pub growth: Word,
}

impl Measures {
    pub(crate) fn set_window(&self, window: &Window) {
        self.growth.set(u32::from(window.growth) | u32::from(window.beta) << 16);
    }
    #[inline]
    pub(crate) fn growth(&self) -> u32 {
        self.growth.get() & 0xffff
    }
    #[inline]
    pub(crate) fn beta(&self) -> u32 {
        self.growth.get() >> 16
    }
}

/// All of a flow.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Lines {
    pub protocol: ProtocolLine,
    pub identity: Identity,
    pub measures: Measures,
}

const _: () = assert!(size_of::<ProtocolLine>() == 64);
const _: () = assert!(size_of::<Identity>() == 64);
const _: () = assert!(size_of::<Measures>() == 64);

/// Flows per piece of the table; a piece is made when a flow in it is first installed.
const PIECE: usize = 1024;

/// All flows of all cores, by [`FlowId`].
#[derive(Debug)]
pub struct FlowTable {
    pieces: Box<[OnceLock<Box<[Lines; PIECE]>>]>,
    max_flows: u32,
}

impl FlowTable {
    /// A table for flows `0..max_flows`. Memory (192 bytes per flow) is taken as flows are installed.
    pub fn new(max_flows: u32) -> Self {
        let pieces = (max_flows as usize).div_ceil(PIECE);
        Self { pieces: (0..pieces).map(|_| OnceLock::new()).collect(), max_flows }
    }

    /// How many flows it can hold.
    pub fn max_flows(&self) -> u32 {
        self.max_flows
    }

    /// A reading of a flow's state; all zero for one that was never installed.
    pub fn snapshot(&self, flow: FlowId) -> FlowSnapshot {
        let Some(lines) = self.get(flow) else { return FlowSnapshot::default() };
        let (t, id, m) = (lines.protocol.load(), &lines.identity, &lines.measures);
        let fin = u32::from(t.has(crate::flow::flow_flags::FIN_RECEIVED));
        let read = t.rcv_limit.sub(id.rx_bytes.get());
        FlowSnapshot {
            snd_una: t.snd_una,
            snd_nxt: t.snd_nxt,
            snd_max: t.snd_max,
            snd_queued: t.snd_queued,
            rcv_nxt: t.rcv_nxt,
            snd_wnd: t.snd_wnd,
            cwnd: t.cwnd,
            ssthresh: t.ssthresh,
            srtt_us: m.srtt_us.get(),
            rttvar_us: m.rttvar_us.get(),
            rx_queued: t.rcv_nxt.sub(fin).bytes_since(read),
            ts_recent: t.ts_recent,
            mss: t.mss,
            flags: t.flags & bits::PUBLIC,
            segments_in: m.segments_in.get(),
            segments_out: m.segments_out.get(),
            bytes_in: m.bytes_in.get(),
            bytes_acked: m.bytes_acked.get(),
            retransmits: u64::from(m.retransmits.get()),
        }
    }

    /// A flow's addresses, if it was ever installed.
    pub fn tuple(&self, flow: FlowId) -> Option<FourTuple> {
        self.get(flow).map(|lines| lines.identity.tuple())
    }

    /// A flow's lines, if its piece of the table exists.
    #[inline]
    pub(crate) fn get(&self, flow: FlowId) -> Option<&Lines> {
        let piece = self.pieces.get(flow.0 as usize / PIECE)?.get()?;
        Some(&piece[flow.0 as usize % PIECE])
    }

    /// Writes a new flow's lines; `None` if the number is too large.
    pub(crate) fn install(&self, core: usize, now_us: u64, setup: &FlowSetup) -> Option<&Lines> {
        if setup.flow.0 >= self.max_flows {
            return None;
        }
        let piece = self.pieces.get(setup.flow.0 as usize / PIECE)?.get_or_init(new_piece);
        let lines = &piece[setup.flow.0 as usize % PIECE];
        lines.fill(core, now_us, setup);
        Some(lines)
    }
}

fn new_piece() -> Box<[Lines; PIECE]> {
    let lines: Box<[Lines]> = (0..PIECE).map(|_| Lines::default()).collect();
    match lines.try_into() {
        Ok(piece) => piece,
        Err(_) => unreachable!("collected exactly PIECE lines"),
    }
}

impl Lines {
    fn fill(&self, core: usize, now_us: u64, setup: &FlowSetup) {
        use crate::flow::flow_flags::{NODELAY, TIMESTAMPS, WSCALE};
        let (id, m) = (&self.identity, &self.measures);
        id.set_tuple(&setup.tuple);
        id.place.set((core as u32) << 8);
        id.set_link(&setup.link);
        id.tx_bytes.set(setup.tx_bytes);
        id.rx_bytes.set(setup.rx_bytes);
        id.snd_start.set(setup.snd_start.0);
        id.rcv_start.set(setup.rcv_start.0);
        id.ts_offset.set(setup.ts_offset);
        for word in [&id.errno, &id.recover, &id.owed_at, &m.retransmits, &m.rtt_seq, &m.rtt_at, &m.grown] {
            word.set(0);
        }
        id.ts_recent_at.set((now_us >> 20) as u32);
        for counter in [&m.segments_in, &m.segments_out, &m.bytes_in, &m.bytes_acked] {
            counter.set(0);
        }
        m.srtt_us.set(setup.srtt_us);
        m.rttvar_us.set(setup.srtt_us / 2);
        m.max_wnd.set(setup.snd_wnd);
        m.set_window(&setup.window);
        let mut flags = bits::INSTALLED;
        for (on, bit) in [
            (setup.timestamps, TIMESTAMPS),
            (setup.nodelay, NODELAY),
            (setup.snd_wscale != 0 || setup.rcv_wscale != 0, WSCALE),
        ] {
            flags |= if on { bit } else { 0 };
        }
        let mss = setup.mss.max(1);
        self.protocol.store(&Tcb {
            snd_una: setup.snd_start,
            snd_nxt: setup.snd_start,
            snd_max: setup.snd_start,
            snd_queued: setup.snd_start,
            snd_wnd: setup.snd_wnd,
            cwnd: setup.window.cwnd,
            ssthresh: setup.window.ssthresh,
            // One back, so that the first segment's window is taken.
            snd_wl1: setup.rcv_start.sub(1),
            rcv_nxt: setup.rcv_start,
            rcv_adv: setup.rcv_start.add(setup.rcv_wnd.min(setup.rx_bytes)),
            rcv_limit: setup.rcv_start.add(setup.rx_bytes),
            last_ack: setup.rcv_start,
            ts_recent: setup.ts_recent,
            flags,
            mss,
            rcv_mss: mss.min(536),
            dup_acks: 0,
            acks_due: 0,
            snd_wscale: setup.snd_wscale.min(14),
            rcv_wscale: setup.rcv_wscale.min(14),
            out_of_order: 0,
        });
    }
}
