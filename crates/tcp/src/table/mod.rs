//! The flow table: seven cache lines per flow, one file per line. The owning fast path is the only writer; everybody may
//! read.
//!
//! Words are relaxed atomics: plain loads and stores. Another thread reads each word as it was at some time, but not
//! all words as they were at the same time.
//!
//! The fast path's stages share a flow. [`stages`] says which of them may write what, and the compiler holds them to
//! it.

mod addresses;
pub(crate) mod bits;
mod identity;
mod measures;
pub mod permit;
mod protocol;
mod rate;
mod recovery;
mod seldom;
pub mod stages;
pub mod tcb;
mod words;

use crate::flow::{Ecn, FlowId, FlowSetup, FlowSnapshot, FourTuple, Link, flow_flags};
pub(crate) use addresses::Addresses;
use bits::{Agreed, FlagSet};
pub(crate) use identity::{FLOW_GROUPS, Identity};
pub(crate) use measures::Measures;
use permit::Writes;
pub(crate) use protocol::{ProtocolLine, word};
pub(crate) use rate::Rate;
pub(crate) use recovery::{Recovery, learnt};
pub(crate) use seldom::{RECORDS, Seldom};
use stages::Install;
use std::net::{IpAddr, Ipv6Addr};
use tcb::{Received, Sent, Tcb};
use zerocopy::FromZeros;

/// All of a flow.
#[derive(Debug, Default, FromZeros)]
#[repr(C)]
pub(crate) struct Lines {
    pub protocol: ProtocolLine,
    pub identity: Identity,
    pub measures: Measures,
    pub recovery: Recovery,
    pub rate: Rate,
    pub addresses: Addresses,
    pub seldom: Seldom,
}

const _: () = assert!(size_of::<ProtocolLine>() == 64);
const _: () = assert!(size_of::<Identity>() == 64);
const _: () = assert!(size_of::<Measures>() == 64);
const _: () = assert!(size_of::<Recovery>() == 64);
const _: () = assert!(size_of::<Rate>() == 64);
const _: () = assert!(size_of::<Addresses>() == 64);
const _: () = assert!(size_of::<Seldom>() == 64);

/// All flows of all flow groups, by [`FlowId`].
#[derive(Debug)]
pub struct FlowTable {
    flows: Box<[Lines]>,
}

impl FlowTable {
    /// A table for flows `0..max_flows`, with memory for all of them: 448 bytes per flow. A table in pieces, made as flows come,
    /// would cost each look-up five instructions, which is 6 % of the stages.
    pub fn new(max_flows: u32) -> Self {
        let flows = <[Lines]>::new_box_zeroed_with_elems(max_flows as usize);
        Self { flows: flows.unwrap_or_else(|_| panic!("no memory for a table of {max_flows} flows")) }
    }

    /// How many flows it can hold.
    pub fn max_flows(&self) -> u32 {
        self.flows.len() as u32
    }

    /// A reading of a flow's state; all zero for one that was never installed.
    pub fn snapshot(&self, flow: FlowId) -> FlowSnapshot {
        let Some(lines) = self.get(flow) else { return FlowSnapshot::default() };
        let (t, id, m) = (lines.protocol.load(), &lines.identity, &lines.measures);
        let fin = u32::from(t.has(bits::FIN_RECEIVED));
        let read = t.rcv_limit().sub(id.rx_bytes.get());
        let (sacked, lost) = lines.scored(&t);
        let rare = &lines.seldom;
        FlowSnapshot {
            snd_una: t.snd_una(),
            snd_nxt: t.snd_nxt(),
            snd_max: t.snd_max(),
            snd_queued: t.snd_queued(),
            rcv_nxt: t.rcv_nxt(),
            snd_wnd: t.snd_wnd(),
            rcv_wnd: t.rcv_wnd(),
            snd_wscale: id.peer_shift() as u8,
            rcv_wscale: id.shift() as u8,
            cwnd: t.cwnd(),
            ssthresh: m.ssthresh.get(),
            srtt_us: m.srtt_us.get(),
            rttvar_us: m.rttvar_us.get(),
            rx_queued: t.rcv_nxt().sub(fin).bytes_since(read),
            ts_recent: t.ts_recent(),
            mss: t.mss(),
            rcv_mss: t.rcv_mss(),
            flags: public_flags(&t),
            segments_in: m.segments_in.get(),
            segments_heard: m.segments_in.get().wrapping_sub(rare.unheard.get()),
            data_segments_in: m.segments_in.get().wrapping_sub(m.empty_in.get()),
            out_of_order: rare.out_of_order.get(),
            segments_out: m.data_out.get().wrapping_add(m.empty_out.get()),
            data_segments_out: m.data_out.get(),
            bytes_in: m.bytes_in.get(),
            bytes_acked: m.bytes_acked.get(),
            retransmits: u64::from(lines.recovery.retransmits.get()),
            bytes_marked: lines.rate.bytes_marked.get(),
            bytes_lost: lines.rate.bytes_lost.get(),
            bytes_resent: rare.bytes_resent.get(),
            sacked,
            lost,
            resent: lines.resent(&t),
            duplicates: rare.duplicates.get(),
            reorderings: rare.reorderings.get(),
            tx_bytes: id.tx_bytes.get(),
            owed_at: id.owed_at.get(),
            rtt_us: lines.rate.rtt_us.get(),
            min_rtt_us: lines.rate.min_rtt_us.get(),
            pacing: lines.rate.pacing.get(),
        }
    }

    /// A flow's addresses; all zero for one that was never installed. `None`: the number is too large.
    pub fn tuple(&self, flow: FlowId) -> Option<FourTuple> {
        self.get(flow).map(|lines| lines.tuple(lines.protocol.load().flags()))
    }

    /// A flow's lines; `None` if the number is too large.
    #[inline(always)]
    pub(crate) fn get(&self, flow: FlowId) -> Option<&Lines> {
        self.flows.get(flow.0 as usize)
    }

    /// Writes a new flow's lines; `None` if the number is too large.
    pub(crate) fn install(&self, by: Install, flow_group: usize, now_us: u64, setup: &FlowSetup) -> Option<&Lines> {
        let lines = self.get(setup.flow)?;
        lines.fill(by, flow_group, now_us, setup);
        Some(lines)
    }
}

/// An address as IPv6 has it.
fn bits_of(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// The flags that snapshots show.
fn public_flags(t: &Tcb) -> u64 {
    let shown = [
        (t.has(bits::FIN_SENT), flow_flags::FIN_SENT),
        (t.has(bits::FIN_ACKED), flow_flags::FIN_ACKED),
        (t.has(bits::FIN_RECEIVED), flow_flags::FIN_RECEIVED),
        (t.has(bits::FIN_WANTED), flow_flags::FIN_WANTED),
        (t.has(bits::APP_CLOSED), flow_flags::APP_CLOSED),
        (t.has(bits::RECOVERY), flow_flags::RECOVERY),
        (t.has(bits::ACTIVE), flow_flags::ACTIVE),
        (t.has(bits::TIMESTAMPS), flow_flags::TIMESTAMPS),
        (t.has(bits::NODELAY), flow_flags::NODELAY),
        (t.has(bits::WSCALE), flow_flags::WSCALE),
        (t.has(bits::PASSIVE_CLOSE), flow_flags::PASSIVE_CLOSE),
        (t.has(bits::SACK), flow_flags::SACK),
        (t.has(bits::LIMIT_WAIT), flow_flags::LIMIT_WAIT),
        (t.has(bits::ECN), flow_flags::ECN),
        (t.has(bits::PACE_WAIT), flow_flags::PACE_WAIT),
    ];
    shown.into_iter().filter(|(set, _)| *set).fold(0, |flags, (_, flag)| flags | flag)
}

impl Lines {
    /// Outstanding bytes that the peer reports, and those that are lost.
    fn scored(&self, t: &Tcb) -> (u32, u32) {
        if !t.has(bits::SCORED) {
            // Without a scoreboard all that is out is sent again in order after a time-out.
            return (0, if t.has(bits::TRACKED) { 0 } else { t.snd_max().bytes_since(t.snd_nxt()) });
        }
        let (left, sacked) = (self.recovery.left.get(), self.addresses.sacked.get());
        (sacked, left.saturating_sub(sacked))
    }
    /// Outstanding bytes that were sent again.
    fn resent(&self, t: &Tcb) -> u32 {
        match () {
            () if t.has(bits::TRACKED) => self.seldom.resent.get(),
            () if t.snd_nxt().before(t.snd_max()) => t.snd_nxt().bytes_since(t.snd_una()),
            () if t.has(bits::RECOVERY) => t.flight().min(u32::from(t.mss())),
            () => 0,
        }
    }
    /// The way out.
    #[inline]
    pub(crate) fn link(&self, agreed: Agreed) -> Link {
        let mut link = self.identity.link();
        if agreed.has(bits::VLAN) {
            link.vlan = Some(self.addresses.vlan.get() as u16);
        }
        link
    }
    /// Changes the way out. The caller brings `bits::VLAN` into line with it.
    pub(crate) fn set_link<S: Writes<Agreed>>(&self, by: S, link: &Link) {
        self.identity.set_link(by, link);
        if let Some(vlan) = link.vlan {
            self.addresses.vlan.set(by, u32::from(vlan));
        }
    }
    /// The flow's addresses.
    #[inline]
    pub(crate) fn tuple(&self, agreed: Agreed) -> FourTuple {
        let mut tuple = self.identity.tuple();
        if agreed.has(bits::V6) {
            (tuple.local, tuple.remote) = (self.addresses.local().into(), self.addresses.remote().into());
        }
        tuple
    }
    fn fill(&self, by: Install, flow_group: usize, now_us: u64, setup: &FlowSetup) {
        let (id, m) = (&self.identity, &self.measures);
        let tuple = &setup.tuple;
        let v6 = match (tuple.local, tuple.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                id.set_addresses(by, local, remote);
                false
            }
            (local, remote) => {
                self.addresses.set(by, bits_of(local), bits_of(remote));
                true
            }
        };
        id.set_ports(by, tuple.local_port, tuple.remote_port);
        id.set_owner(by, Some(flow_group));
        id.set_errno(by, 0);
        id.set_shifts(by, setup.snd_wscale, setup.rcv_wscale);
        id.set_class(by, setup.class);
        id.set_service(by, setup.tos, setup.ttl);
        self.set_link(by, &setup.link);
        id.tx_bytes.set(by, setup.tx_bytes);
        id.rx_bytes.set(by, setup.rx_bytes);
        id.snd_start.set(by, setup.snd_start.0);
        id.rcv_start.set(by, setup.rcv_start.0);
        id.ts_offset.set(by, setup.ts_offset);
        let (recovery, rate) = (&self.recovery, &self.rate);
        for word in [
            &self.addresses.recover,
            &recovery.scoreboard,
            &recovery.deadline,
            &recovery.queued,
            &recovery.reordering,
            &m.grown,
        ] {
            word.set(by, 0);
        }
        for word in [&id.owed_at, &self.addresses.challenged_at_ms] {
            word.set(by, 0);
        }
        for word in [&recovery.retransmits, &m.rtt_seq, &m.rtt_at] {
            word.set(by, 0);
        }
        for word in [&recovery.rcv_up, &rate.rtt_us, &rate.min_rtt_us, &rate.min_rtt_at] {
            word.set(by, 0);
        }
        recovery.snd_up.set(by, 0);
        self.seldom.clear(by);
        id.ts_recent_at.set(by, (now_us >> 20) as u32);
        for counter in [&m.bytes_in, &m.bytes_acked] {
            counter.set(by, 0);
        }
        for word in [&m.segments_in, &m.empty_in] {
            word.set(by, 0);
        }
        for word in [&m.data_out, &m.empty_out] {
            word.set(by, 0);
        }
        for counter in [&rate.bytes_marked, &rate.bytes_lost] {
            counter.set(by, 0);
        }
        m.srtt_us.set(by, setup.srtt_us);
        m.rttvar_us.set(by, setup.srtt_us / 2);
        if setup.srtt_us != 0 {
            // The handshake is a sample (as on Linux), and often the only one of an empty queue.
            rate.min_rtt_us.set(by, setup.srtt_us);
            rate.min_rtt_at.set(by, (now_us >> 20) as u32);
        }
        m.max_wnd.set(by, setup.snd_wnd);
        m.set_window(by, &setup.window);
        rate.pacing.set(by, setup.window.pacing);
        rate.credit.set(by, 0);
        rate.credit_at.set(by, now_us);
        self.protocol.store(by, &block(by, setup, v6));
    }
}

/// A new flow's block.
fn block(by: Install, setup: &FlowSetup, v6: bool) -> Tcb {
    let mut t = Tcb::default();
    for (on, flag) in [
        (setup.timestamps, bits::TIMESTAMPS),
        (setup.sack, bits::SACK),
        (setup.ecn != Ecn::Off, bits::ECN),
        (setup.ecn == Ecn::Dctcp, bits::ECN_DCTCP),
        (setup.window_scaling, bits::WSCALE),
        (v6, bits::V6),
        (setup.link.vlan.is_some(), bits::VLAN),
    ] {
        if on {
            t.set(by, flag);
        }
    }
    if setup.nodelay {
        t.set(by, bits::NODELAY);
    }
    if setup.window.pacing != 0 {
        t.set(by, bits::PACED);
    }
    let mss = setup.mss.max(1);
    t.size(by).mss = mss;
    t.congestion(by).cwnd = setup.window.cwnd;
    let (snd_start, rcv_start) = (setup.snd_start, setup.rcv_start);
    // WL1 is one back, so that the first segment's window is taken.
    let snd_wl1 = rcv_start.sub(1);
    let (snd_wnd, ts_recent) = (setup.snd_wnd, setup.ts_recent);
    *t.received(by) = Received { snd_una: snd_start, snd_wnd, snd_wl1, rcv_nxt: rcv_start, ts_recent };
    t.segment(by).rcv_mss = mss.min(536);
    *t.sent(by) = Sent { snd_max: snd_start, last_ack: rcv_start };
    t.next(by).snd_nxt = snd_start;
    t.written(by).snd_queued = snd_start;
    t.advertised(by).rcv_adv = rcv_start.add(setup.rcv_wnd.min(setup.rx_bytes));
    t.room(by).rcv_limit = rcv_start.add(setup.rx_bytes);
    t
}

#[cfg(test)]
mod tests;
