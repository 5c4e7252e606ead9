//! An invariant checker between a host and its port. It panics if a sent frame breaks TCP's rules, given the received
//! frames. Its view of each connection is made from the frames alone.

use crate::TimedPort;
use crate::cut::cut;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use towpath_ports::{Capabilities, Port, PortCounters, RxChecksum, RxFrame, TxOffload};
use towpath_tcp::seq::Seq;
use towpath_tcp::time::Micros;
use towpath_wire::{Options, Segment, flags, segment};

/// Most received acknowledgement numbers that are remembered, for resets.
const REMEMBERED: usize = 256;
/// Most bytes sent beyond a closed window: a probe (RFC 9293 §3.8.6.1).
const PROBE_BYTES: u32 = 1;
/// Exceeds any window before the first acknowledgement.
const NEAR: u32 = 1 << 24;
/// MSS of a peer that names none (RFC 9293 §3.7.1, RFC 8200 §5).
const DEFAULT_MSS: (u16, u16) = (536, 1220);

/// A received SYN.
#[derive(Clone, Copy, Debug)]
struct Syn {
    seq: Seq,
    flags: u8,
    options: Options,
}

/// The options that both SYNs have agreed on.
#[derive(Clone, Copy, Debug)]
struct Agreement {
    timestamps: bool,
    sack: bool,
    /// Shifts of the windows that are sent and received.
    shifts: (u8, u8),
    peer_mss: u16,
}

/// The state of one tuple, with or without a connection.
#[derive(Debug, Default)]
struct Conversation {
    /// Our last SYN.
    ours: Option<(Seq, Options)>,
    /// The number after the highest sequence number sent, FIN included.
    sent_to: Seq,
    /// The sequence number of our FIN.
    fin: Option<Seq>,
    /// The highest acknowledgement number sent, and the end of the widest window.
    acked: Option<(Seq, Seq)>,
    /// The newest timestamp sent outside a SYN.
    stamp: Option<u32>,
    syns: VecDeque<Syn>,
    agreement: Option<Agreement>,
    /// The number after the highest sequence number received.
    came_to: Option<Seq>,
    /// The furthest end of a window that the peer has offered, computed without scaling and with it.
    offered: Option<(Seq, Seq)>,
    /// The number after the peer's FIN.
    ended: Option<Seq>,
    /// All timestamps received.
    stamps: HashSet<u32>,
    acks: VecDeque<Seq>,
}

/// Local and remote address and port.
type Tuple = (IpAddr, u16, IpAddr, u16);

/// The checker, with the state of all connections.
#[derive(Debug, Default)]
pub struct InvariantChecker {
    conversations: HashMap<Tuple, Conversation>,
    sent: u64,
}

fn end(s: &Segment) -> Seq {
    let controls = u32::from(s.flags & flags::SYN != 0) + u32::from(s.flags & flags::FIN != 0);
    Seq(s.seq).add(s.payload_len + controls)
}

fn option_bytes(s: &Segment) -> u32 {
    s.payload_offset - u32::from(s.tcp_offset) - 20
}

fn later(newest: Option<Seq>, seq: Seq) -> Option<Seq> {
    Some(newest.map_or(seq, |newest| newest.max(seq)))
}

impl InvariantChecker {
    /// Records a received frame. Frames that any host must drop are ignored.
    pub fn received(&mut self, frame: &[u8]) {
        let Ok(s) = segment::parse(frame) else { return };
        if !segment::checksum_ok(frame, &s, RxChecksum::Unknown) {
            return;
        }
        let tuple = (s.destination, s.destination_port, s.source, s.source_port);
        self.conversations.entry(tuple).or_default().hear(&s);
    }

    /// Checks a frame that the host sends.
    ///
    /// # Panics
    /// If it breaks a rule.
    pub fn sends(&mut self, frame: &[u8], offload: TxOffload) {
        let s = match segment::parse(frame) {
            Ok(s) => s,
            Err(error) => panic!("a frame that cannot be read: {error}: {frame:02x?}"),
        };
        let whole = offload.checksum_needed || segment::checksum_ok(frame, &s, RxChecksum::Unknown);
        self.sent += 1;
        let tuple = (s.source, s.source_port, s.destination, s.destination_port);
        let conversation = self.conversations.entry(tuple).or_default();
        let verdict = if whole { conversation.say(&s) } else { Err("a wrong checksum".into()) };
        if let Err(broken) = verdict {
            panic!("frame {} breaks a rule: {broken}\n{s:?}\n{conversation:?}", self.sent);
        }
    }

    /// Frames that the host has sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

/// Fails with a text if a rule is broken.
macro_rules! rule {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+));
        }
    };
}

impl Conversation {
    fn hear(&mut self, s: &Segment) {
        if s.flags & flags::RST != 0 {
            return;
        }
        let seq = Seq(s.seq);
        if s.flags & flags::SYN != 0 {
            self.syns.retain(|syn| syn.seq != seq);
            self.syns.push_front(Syn { seq, flags: s.flags, options: s.options });
            self.syns.truncate(4096);
        }
        self.stamps.extend(s.options.timestamps.map(|stamps| stamps.value));
        let (to, within) = self.within(s);
        if within {
            self.came_to = later(self.came_to, to);
        }
        if s.flags & flags::FIN != 0 && within {
            self.ended = later(self.ended, end(s));
        }
        if s.flags & flags::ACK != 0 {
            let ack = Seq(s.ack);
            self.acks.push_front(ack);
            self.acks.truncate(REMEMBERED);
            // An acknowledgement of unsent data does not count, nor does its window.
            if self.ours.is_none_or(|(iss, _)| ack.before(iss) || ack.after(self.sent_to)) {
                return;
            }
            // The window of a SYN is never scaled (RFC 7323 §2.2); the shift in use is known only later.
            let shift = match (s.flags & flags::SYN, self.agreement, self.syns.front()) {
                (0, Some(agreement), _) => agreement.shifts.1,
                (0, None, Some(syn)) => syn.options.window_scale.unwrap_or(0),
                _ => 0,
            };
            let window = u32::from(s.window);
            let (plain, scaled) = (ack.add(window), ack.add(window << shift));
            self.offered = Some(self.offered.map_or((plain, scaled), |(a, b)| (a.max(plain), b.max(scaled))));
        } else if s.flags & flags::SYN != 0 {
            // The window of a SYN starts at our first byte.
            if let Some((iss, _)) = self.ours {
                let to = iss.add(1 + u32::from(s.window));
                self.offered = Some(self.offered.map_or((to, to), |(a, b)| (a.max(to), b.max(to))));
            }
        }
    }

    /// The end of the part of this segment that the host can accept, which is limited by its widest window; and whether
    /// any is.
    fn within(&self, s: &Segment) -> (Seq, bool) {
        let Some((_, edge)) = self.acked else { return (end(s), true) };
        let last = edge.add(1);
        (if end(s).after(last) { last } else { end(s) }, !Seq(s.seq).after(last))
    }

    fn say(&mut self, s: &Segment) -> Result<(), String> {
        if s.flags & flags::RST != 0 {
            return self.say_reset(s);
        }
        if s.flags & flags::SYN != 0 {
            return self.say_syn(s);
        }
        // RFC 9293 §3.10.4 ff.: every segment after the first SYN has ACK set.
        rule!(s.flags & flags::ACK != 0, "no ACK outside a SYN and a reset");
        let o = &s.options;
        rule!(o.mss.is_none() && o.window_scale.is_none() && !o.sack_permitted, "an option that belongs in a SYN");
        let Some((iss, _)) = self.ours else { return Err("a segment of a connection that we have not opened".into()) };
        let agreement = self.agree(s)?;
        self.sequence(s, iss, &agreement)?;
        self.acknowledgement(s, &agreement)?;
        self.stamps(s, &agreement)
    }

    /// RFC 9293 §3.5.2: the number of a reset is the offending segment's acknowledgement, or 0 with ACK set, or one of
    /// ours.
    fn say_reset(&mut self, s: &Segment) -> Result<(), String> {
        let seq = Seq(s.seq);
        let asked = self.acks.contains(&seq);
        let answers = s.flags & flags::ACK != 0 && seq == Seq(0) && self.came_to.is_some();
        let own = self.ours.is_some_and(|(iss, _)| !seq.before(iss) && !seq.after(self.sent_to.max(iss.add(1))));
        rule!(s.payload_len == 0 && s.flags & (flags::SYN | flags::FIN) == 0, "a reset with more");
        rule!(asked || answers || own, "a reset with a number of nobody");
        Ok(())
    }

    fn say_syn(&mut self, s: &Segment) -> Result<(), String> {
        let seq = Seq(s.seq);
        rule!(s.flags & flags::FIN == 0 && s.payload_len == 0, "a SYN with more");
        rule!(s.options.sack.is_empty(), "SACK blocks in a SYN");
        rule!(s.options.mss.is_some_and(|mss| mss > 0), "a SYN without MSS (SHLD-5)");
        if s.flags & flags::ACK != 0 {
            let irs = Seq(s.ack).sub(1);
            let Some(syn) = self.syns.iter().find(|syn| syn.seq == irs) else {
                return Err("a SYN-ACK to no SYN that came".into());
            };
            // An option is in a SYN-ACK only if it was in the SYN (RFC 7323 §2.2, §3.2, RFC 2018 §2).
            let (theirs, ours, answers) = (&syn.options, &s.options, syn.flags & flags::ACK == 0);
            let asked = |ours: bool, theirs: bool| !ours || theirs || !answers;
            rule!(asked(ours.timestamps.is_some(), theirs.timestamps.is_some()), "timestamps that nobody asked for");
            rule!(asked(ours.window_scale.is_some(), theirs.window_scale.is_some()), "a shift that nobody asked for");
            rule!(asked(ours.sack_permitted, theirs.sack_permitted), "SACK that nobody asked for");
        }
        match self.ours {
            Some((iss, _)) if iss == seq => {}
            _ => {
                // A new connection. Received segments belong to it, sent ones do not.
                let (syns, acks) = (std::mem::take(&mut self.syns), std::mem::take(&mut self.acks));
                let (stamps, came_to) = (std::mem::take(&mut self.stamps), syns.front().map(|syn| syn.seq.add(1)));
                *self = Self { syns, acks, stamps, came_to, sent_to: seq.add(1), ..Self::default() };
            }
        }
        self.ours = Some((seq, s.options));
        Ok(())
    }

    /// The agreed options, which are fixed by the first segment after the SYNs.
    fn agree(&mut self, s: &Segment) -> Result<Agreement, String> {
        if let Some(agreement) = self.agreement {
            return Ok(agreement);
        }
        let Some((iss, ours)) = self.ours else { return Err("no SYN of ours".into()) };
        let since = |syn: &&Syn| Seq(s.ack).bytes_since(syn.seq.add(1));
        let Some(syn) = self.syns.iter().min_by_key(since) else { return Err("no SYN of the peer".into()) };
        let theirs = &syn.options;
        let scaled = ours.window_scale.zip(theirs.window_scale);
        let default = if s.source.is_ipv4() { DEFAULT_MSS.0 } else { DEFAULT_MSS.1 };
        let agreement = Agreement {
            timestamps: ours.timestamps.is_some() && theirs.timestamps.is_some(),
            sack: ours.sack_permitted && theirs.sack_permitted,
            shifts: scaled.unwrap_or((0, 0)),
            // RFC 9293 MUST-15. As in Linux, a smaller MSS than 48 is raised to that.
            peer_mss: theirs.mss.unwrap_or(default).max(48),
        };
        if scaled.is_none() {
            // Earlier windows were computed with scaling.
            self.offered = self.offered.map(|(plain, _)| (plain, plain));
        }
        self.sent_to = self.sent_to.max(iss.add(1));
        self.agreement = Some(agreement);
        Ok(agreement)
    }

    /// Checks our data: within the window and the MSS, contiguous, none beyond the FIN.
    fn sequence(&mut self, s: &Segment, iss: Seq, agreement: &Agreement) -> Result<(), String> {
        let (seq, to) = (Seq(s.seq), Seq(s.seq).add(s.payload_len));
        // A keepalive probe is one before the acknowledged data (RFC 9293 §3.8.4), which at the start is the SYN.
        rule!(!seq.before(iss), "a sequence number before the first");
        rule!(!seq.after(self.sent_to), "a gap: sequence numbers from {:?} on have not been sent", self.sent_to);
        if let Some(fin) = self.fin {
            let bare = s.payload_len == 0 && s.flags & flags::FIN == 0;
            rule!(!to.after(fin) || bare, "data after the FIN at {fin:?}");
            rule!(s.flags & flags::FIN == 0 || to == fin, "a FIN that moved from {fin:?}");
        } else if s.flags & flags::FIN != 0 {
            rule!(!to.before(self.sent_to), "a FIN before data that were sent, up to {:?}", self.sent_to);
            self.fin = Some(to);
        }
        if s.payload_len > 0 {
            let (_, edge) = self.offered.ok_or("data although no window was offered")?;
            let probe = if s.payload_len <= PROBE_BYTES { PROBE_BYTES } else { 0 };
            rule!(!to.after(edge.add(probe)), "data beyond the window, which ends at {edge:?}");
            // RFC 9293 §3.7.1: the options count (MUST-16, RFC 6691).
            let len = s.payload_len + option_bytes(s);
            rule!(len <= u32::from(agreement.peer_mss), "{len} bytes where the MSS is {}", agreement.peer_mss);
        }
        self.sent_to = self.sent_to.max(end(s));
        Ok(())
    }

    /// Checks our acknowledgement: it covers only received data, never decreases, and its window does not shrink.
    fn acknowledgement(&mut self, s: &Segment, agreement: &Agreement) -> Result<(), String> {
        let ack = Seq(s.ack);
        let edge = ack.add(u32::from(s.window) << agreement.shifts.0);
        let mut came_to = self.came_to.ok_or("an acknowledgement of nothing")?;
        if self.acked.is_none() && came_to.bytes_since(ack) > NEAR {
            // Before there was a window, forged segments could not be recognised. They have hidden the true numbers.
            came_to = edge;
            self.came_to = Some(edge);
        }
        rule!(!ack.after(came_to), "an acknowledgement of data not received, which end at {came_to:?}");
        let mut widest = edge;
        if let Some((acked, known)) = self.acked {
            rule!(!ack.before(acked), "an acknowledgement of less than before, {acked:?}");
            // SHLD-14, except for the rounding by the shift.
            let rounding = (1 << agreement.shifts.0) - 1;
            // After the peer's FIN the window no longer matters.
            let over = self.ended.is_some();
            rule!(over || !edge.add(rounding).before(known), "the window shrank from {known:?} to {edge:?}");
            widest = known.max(edge);
        }
        self.acked = Some((ack, widest));
        rule!(s.options.sack.is_empty() || agreement.sack, "SACK blocks that were not agreed on");
        for (i, &(from, to)) in s.options.sack.as_slice().iter().enumerate() {
            let (from, to) = (Seq(from), Seq(to));
            rule!(from.before(to) && !to.after(came_to), "a SACK block of data not received: {from:?} to {to:?}");
            // The first block may report a duplicate (RFC 2883 §4).
            rule!(i == 0 || from.after(ack), "SACK block {i} below the acknowledgement: {from:?} to {to:?}");
        }
        Ok(())
    }

    /// Checks timestamps (RFC 7323 §3.2 and §5): in every segment or in none, and never decreasing.
    fn stamps(&mut self, s: &Segment, agreement: &Agreement) -> Result<(), String> {
        let Some(stamps) = s.options.timestamps else {
            rule!(!agreement.timestamps, "no timestamps although they were agreed on");
            return Ok(());
        };
        rule!(agreement.timestamps, "timestamps that were not agreed on");
        if let Some(before) = self.stamp {
            rule!(!Seq(stamps.value).before(Seq(before)), "the clock went back from {before}");
        }
        self.stamp = Some(stamps.value);
        rule!(self.stamps.contains(&stamps.echo), "an echo of a timestamp not received: {}", stamps.echo);
        Ok(())
    }
}

/// A port whose frames a checker sees.
pub struct CheckedPort {
    inner: Box<dyn TimedPort>,
    checker: InvariantChecker,
    out: Vec<u8>,
}

impl CheckedPort {
    /// Checks the frames of `inner`.
    pub fn new(inner: Box<dyn TimedPort>) -> Self {
        Self { inner, checker: InvariantChecker::default(), out: Vec::new() }
    }
}

impl Port for CheckedPort {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        let before = frames.len();
        self.inner.receive(frames, max);
        for frame in &frames[before..] {
            self.checker.received(self.inner.bytes(frame));
        }
    }

    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        self.inner.bytes(frame)
    }

    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        self.inner.bytes_mut(frame)
    }

    fn release(&mut self, frames: &[RxFrame]) {
        self.inner.release(frames);
    }

    fn reserve(&mut self) -> Option<&mut [u8]> {
        let room = self.inner.reserve()?.len();
        self.out.resize(room, 0);
        Some(&mut self.out)
    }

    fn commit(&mut self, len: usize, offload: TxOffload) {
        let frame = &self.out[..len];
        if offload.gso_bytes == 0 {
            self.checker.sends(frame, offload);
        } else {
            for part in cut(frame, offload) {
                self.checker.sends(&part, TxOffload::default());
            }
        }
        if let Some(buffer) = self.inner.reserve() {
            buffer[..len].copy_from_slice(frame);
            self.inner.commit(len, offload);
        }
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }

    fn pending(&mut self) -> bool {
        self.inner.pending()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

impl TimedPort for CheckedPort {
    fn advance(&mut self, now: Micros) {
        self.inner.advance(now);
    }

    fn next_deadline(&self) -> Option<Micros> {
        self.inner.next_deadline()
    }
}
