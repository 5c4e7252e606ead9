//! The flow table: a few cache lines per flow, one file per line. The owning fast path is the only writer; everybody may read.
//!
//! Words are relaxed atomics (plain loads and stores on every machine we know), so a reading by another thread is true word
//! by word, though not of one instant.

mod addresses;
mod identity;
mod measures;
mod protocol;
mod rate;
mod recovery;
mod words;

use crate::flow::{Ecn, FlowId, FlowSetup, FlowSnapshot, FourTuple, Link};
pub(crate) use addresses::Addresses;
pub(crate) use identity::Identity;
pub(crate) use measures::Measures;
use protocol::{Acks, Shifts};
pub(crate) use protocol::{ProtocolLine, Tcb, bits};
pub(crate) use rate::Rate;
pub(crate) use recovery::Recovery;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;

/// All of a flow.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Lines {
    pub protocol: ProtocolLine,
    pub identity: Identity,
    pub measures: Measures,
    pub recovery: Recovery,
    pub rate: Rate,
    pub addresses: Addresses,
}

const _: () = assert!(size_of::<ProtocolLine>() == 64);
const _: () = assert!(size_of::<Identity>() == 64);
const _: () = assert!(size_of::<Measures>() == 64);
const _: () = assert!(size_of::<Recovery>() == 64);
const _: () = assert!(size_of::<Rate>() == 64);
const _: () = assert!(size_of::<Addresses>() == 64);

/// Flows per piece of the table; a piece is made when a flow in it is first installed.
const PIECE: usize = 1024;

/// All flows of all cores, by [`FlowId`].
#[derive(Debug)]
pub struct FlowTable {
    pieces: Box<[OnceLock<Box<[Lines; PIECE]>>]>,
    max_flows: u32,
}

impl FlowTable {
    /// A table for flows `0..max_flows`. Memory (384 bytes per flow) is taken as flows are installed.
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
        let (sacked, lost) = lines.scored(t.flags);
        FlowSnapshot {
            snd_una: t.snd_una,
            snd_nxt: t.snd_nxt,
            snd_max: t.snd_max,
            snd_queued: t.snd_queued,
            rcv_nxt: t.rcv_nxt,
            snd_wnd: t.snd_wnd,
            rcv_wnd: t.rcv_wnd(),
            snd_wscale: t.shifts.peer(),
            rcv_wscale: t.shifts.ours(),
            cwnd: t.cwnd,
            ssthresh: m.ssthresh.get(),
            srtt_us: m.srtt_us.get(),
            rttvar_us: m.rttvar_us.get(),
            rx_queued: t.rcv_nxt.sub(fin).bytes_since(read),
            ts_recent: t.ts_recent,
            mss: t.mss,
            rcv_mss: t.rcv_mss,
            flags: t.flags & bits::PUBLIC,
            segments_in: m.segments_in.get(),
            segments_out: m.segments_out.get(),
            bytes_in: m.bytes_in.get(),
            bytes_acked: m.bytes_acked.get(),
            retransmits: u64::from(lines.recovery.retransmits.get()),
            bytes_marked: lines.rate.bytes_marked.get(),
            bytes_lost: lines.rate.bytes_lost.get(),
            sacked,
            lost,
            reordering: lines.recovery.reordering.get() & Recovery::REORDERING_SEEN != 0,
            rtt_us: lines.rate.rtt_us.get(),
            min_rtt_us: lines.rate.min_rtt_us.get(),
            pacing: lines.rate.pacing.get(),
        }
    }

    /// A flow's addresses, if it was ever installed.
    pub fn tuple(&self, flow: FlowId) -> Option<FourTuple> {
        self.get(flow).map(|lines| lines.tuple(lines.protocol.flags()))
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

/// An address as IPv6 has it.
fn bits_of(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

impl Lines {
    /// Outstanding bytes that the peer reports, and those that are lost; `flags` are the flow's `Tcb::flags`.
    fn scored(&self, flags: u64) -> (u32, u32) {
        if flags & bits::SCORED == 0 {
            return (0, 0);
        }
        let (left, sacked) = (self.recovery.left.get(), self.addresses.sacked.get());
        (sacked, left.saturating_sub(sacked))
    }
    /// The way out; `flags` are the flow's `Tcb::flags`.
    #[inline]
    pub(crate) fn link(&self, flags: u64) -> Link {
        let mut link = self.identity.link();
        if flags & bits::VLAN != 0 {
            link.vlan = Some(self.addresses.vlan.get() as u16);
        }
        link
    }
    /// Changes the way out; returns the flow's new flags.
    pub(crate) fn set_link(&self, flags: u64, link: &Link) -> u64 {
        self.identity.set_link(link);
        match link.vlan {
            Some(vlan) => {
                self.addresses.vlan.set(u32::from(vlan));
                flags | bits::VLAN
            }
            None => flags & !bits::VLAN,
        }
    }
    /// The flow's addresses; `flags` are its `Tcb::flags`.
    #[inline]
    pub(crate) fn tuple(&self, flags: u64) -> FourTuple {
        let mut tuple = self.identity.tuple();
        if flags & bits::V6 != 0 {
            (tuple.local, tuple.remote) = (self.addresses.local().into(), self.addresses.remote().into());
        }
        tuple
    }
    fn fill(&self, core: usize, now_us: u64, setup: &FlowSetup) {
        use crate::flow::flow_flags::{ECN, NODELAY, SACK, TIMESTAMPS, WSCALE};
        let (id, m) = (&self.identity, &self.measures);
        let tuple = &setup.tuple;
        let v6 = match (tuple.local, tuple.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                id.set_addresses(local, remote);
                0
            }
            (local, remote) => {
                self.addresses.set(bits_of(local), bits_of(remote));
                bits::V6
            }
        };
        id.set_ports(tuple.local_port, tuple.remote_port);
        id.set_core(core);
        id.set_errno(0);
        id.set_group(setup.group);
        id.set_service(setup.tos, setup.ttl);
        let vlan = self.set_link(0, &setup.link);
        id.tx_bytes.set(setup.tx_bytes);
        id.rx_bytes.set(setup.rx_bytes);
        id.snd_start.set(setup.snd_start.0);
        id.rcv_start.set(setup.rcv_start.0);
        id.ts_offset.set(setup.ts_offset);
        for word in [
            &id.recover,
            &id.owed_at,
            &self.recovery.retransmits,
            &self.recovery.board,
            &self.recovery.deadline,
            &self.recovery.queued,
            &self.recovery.reordering,
            &self.recovery.snd_up,
            &self.recovery.rcv_up,
            &self.addresses.challenged_at_ms,
            &self.rate.rtt_us,
            &self.rate.min_rtt_us,
            &self.rate.min_rtt_at,
            &m.rtt_seq,
            &m.rtt_at,
            &m.grown,
        ] {
            word.set(0);
        }
        id.ts_recent_at.set((now_us >> 20) as u32);
        for counter in [
            &m.segments_in,
            &m.segments_out,
            &m.bytes_in,
            &m.bytes_acked,
            &self.rate.bytes_marked,
            &self.rate.bytes_lost,
        ] {
            counter.set(0);
        }
        m.srtt_us.set(setup.srtt_us);
        m.rttvar_us.set(setup.srtt_us / 2);
        m.max_wnd.set(setup.snd_wnd);
        m.set_window(&setup.window);
        self.rate.pacing.set(setup.window.pacing);
        self.rate.credit.set(0);
        self.rate.credit_at.set(now_us);
        let mut flags = bits::INSTALLED | v6 | vlan;
        for (on, bit) in [
            (setup.timestamps, TIMESTAMPS),
            (setup.sack, SACK),
            (setup.nodelay, NODELAY),
            (setup.window.pacing != 0, bits::PACED),
            (setup.ecn != Ecn::Off, ECN),
            (setup.ecn == Ecn::Dctcp, bits::ECN_DCTCP),
            (setup.window_scaling, WSCALE),
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
            out_of_order: 0,
            acks: Acks::default(),
            shifts: Shifts::new(setup.snd_wscale, setup.rcv_wscale),
        });
    }
}
