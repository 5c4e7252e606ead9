//! A reference model of one TCP endpoint: RFC 9293 §3.10 literally, with the checks of RFC 5961 that it includes. It is
//! slow and plain, and was written independently of `towpath_tcp`, so that the two can be compared
//! ([`crate::differential`]).
//!
//! The RFC lets an endpoint decide when it sends how much, and how large its window is. The model does not decide this:
//! [`Model::sent`] takes the endpoint's choices.

use std::collections::BTreeSet;
use std::fmt;
use towpath_wire::segment::flags;

/// States of RFC 9293 §3.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum ModelState {
    Closed,
    Listen,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

/// A segment. Each side's numbers are relative to its own SYN, which is number 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// SEG.SEQ.
    pub seq: u32,
    /// SEG.ACK.
    pub ack: u32,
    /// Flags as on the wire.
    pub flags: u8,
    /// SEG.WND as in the header: not scaled.
    pub window: u16,
    /// Payload bytes.
    pub len: u32,
    /// SEG.UP.
    pub urgent: u16,
    /// MSS option.
    pub mss: Option<u16>,
    /// Window scale option.
    pub shift: Option<u8>,
    /// SACK-permitted option.
    pub sack_permitted: bool,
}

impl Segment {
    /// Is this flag set?
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
    /// SEG.LEN: payload, SYN and FIN.
    pub fn seq_len(&self) -> u32 {
        self.len + u32::from(self.has(flags::SYN)) + u32::from(self.has(flags::FIN))
    }
}

/// The required reply to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing.
    Nothing,
    /// <SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>, at once or, for data in order, delayed.
    Ack,
    /// <SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK>.
    SynAck,
    /// <SEQ=seq><CTL=RST>, with <ACK=ack> if there is one.
    Reset(u32, Option<u32>),
}

/// A set of sequence numbers of bytes, printed as ranges.
#[derive(Clone, Default)]
struct Bytes(BTreeSet<u32>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |at: u32| self.0.contains(&at);
        let ends = |at: &&u32| !has(at.wrapping_sub(1)) || !has(at.wrapping_add(1));
        f.debug_set().entries(self.0.iter().filter(ends)).finish()
    }
}

/// The endpoint: RFC 9293 §3.3.1.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its state.
    pub state: ModelState,
    /// Does a listener remain beside each connection, as with sockets? Otherwise one TCB listens once, as in the RFC.
    pub listener: bool,
    /// Opened by LISTEN.
    pub passive: bool,
    /// SND.UNA.
    pub snd_una: u32,
    /// SND.NXT: the number after all data ever sent.
    pub snd_nxt: u32,
    /// SND.WND in bytes.
    pub snd_wnd: u32,
    /// SND.WL1.
    pub wl1: u32,
    wl2: u32,
    max_wnd: u32,
    /// MAX.SND.WND without the window of the SYN.
    pub max_later: u32,
    /// RCV.NXT.
    pub rcv_nxt: u32,
    /// RCV.NXT + RCV.WND, as announced.
    pub rcv_edge: u32,
    /// The window announced by our own SYN.
    syn_window: u32,
    /// Window shifts: ours as announced, the peer's as received.
    shifts: [Option<u8>; 2],
    /// Bytes received out of order.
    ahead: Bytes,
    /// Sequence numbers of FINs received in the window. A correct peer sends one.
    fins: BTreeSet<u32>,
    /// Has the peer sent text after its FIN, or two FINs? No reply to that is right.
    pub contradicted: bool,
    /// Bytes delivered to the application in all.
    pub delivered: u32,
    /// Bytes that the application has written.
    pub queued: u32,
    /// Has the application shut down writing?
    pub shut: bool,
    /// Has the application closed, so that it does not read either?
    pub closed: bool,
    fin_sent: bool,
}

/// Is `a` before `b` (RFC 9293 §3.4)?
pub fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Is `low` =< `at` < `high`?
fn between(low: u32, at: u32, high: u32) -> bool {
    !before(at, low) && before(at, high)
}

impl Model {
    /// An endpoint in this state: CLOSED, LISTEN, or SYN-SENT with its SYN yet to be sent.
    pub fn new(state: ModelState, listener: bool) -> Self {
        Self {
            state,
            listener,
            passive: state == ModelState::Listen,
            snd_una: 0,
            snd_nxt: 0,
            snd_wnd: 0,
            wl1: 0,
            wl2: 0,
            max_wnd: 0,
            max_later: 0,
            rcv_nxt: 0,
            rcv_edge: 0,
            syn_window: 0,
            shifts: [None; 2],
            ahead: Bytes::default(),
            fins: BTreeSet::new(),
            contradicted: false,
            delivered: 0,
            queued: 0,
            shut: false,
            closed: false,
            fin_sent: false,
        }
    }

    /// RCV.WND.
    pub fn window(&self) -> u32 {
        if before(self.rcv_nxt, self.rcv_edge) { self.rcv_edge.wrapping_sub(self.rcv_nxt) } else { 0 }
    }

    /// Has our FIN been asked for, but not sent?
    pub fn owes_fin(&self) -> bool {
        self.shut && !self.fin_sent
    }

    /// Has the peer's FIN been processed?
    pub fn heard_fin(&self) -> bool {
        self.fins.iter().any(|fin| before(*fin, self.rcv_nxt))
    }

    /// Has a FIN arrived before the text that precedes it?
    pub fn fin_ahead(&self) -> bool {
        self.fins.iter().any(|fin| !before(*fin, self.rcv_nxt))
    }

    /// Is the state ESTABLISHED or later?
    pub fn synchronized(&self) -> bool {
        self.state >= ModelState::Established
    }

    /// SEND (§3.10.2): queues `bytes` more.
    pub fn write(&mut self, bytes: u32) {
        self.queued += bytes;
    }

    /// CLOSE (§3.10.4) as by `shutdown` of writing: the application goes on reading.
    pub fn shutdown(&mut self) {
        match self.state {
            ModelState::Established => self.state = ModelState::FinWait1,
            ModelState::CloseWait => self.state = ModelState::LastAck,
            ModelState::SynSent => return self.delete(),
            _ => return,
        }
        self.shut = true;
    }

    /// `close`: the application no longer reads. If there are `unread` bytes, RST is sent (§3.6.1 SHLD-3).
    pub fn close(&mut self, unread: bool) -> bool {
        self.closed = true;
        if unread {
            self.delete();
            return true;
        }
        self.shutdown();
        false
    }

    fn delete(&mut self) {
        let state = if self.listener { ModelState::Listen } else { ModelState::Closed };
        *self = Self::new(state, self.listener);
    }

    /// SEGMENT ARRIVES (§3.10.7).
    pub fn arrives(&mut self, s: &Segment) -> Reply {
        match self.state {
            ModelState::Closed => refusal(s),
            ModelState::Listen => self.in_listen(s),
            ModelState::SynSent => self.in_syn_sent(s),
            _ => self.otherwise(s),
        }
    }

    /// §3.10.7.2.
    fn in_listen(&mut self, s: &Segment) -> Reply {
        if s.has(flags::RST) {
            return Reply::Nothing;
        }
        if s.has(flags::ACK) {
            return refusal(s);
        }
        if !s.has(flags::SYN) {
            return Reply::Nothing;
        }
        self.passive = true;
        self.hear_syn(s);
        self.state = ModelState::SynReceived;
        Reply::SynAck
    }

    /// Text and FIN in a SYN are ignored, as no window has been announced for them yet. The peer sends them again.
    fn hear_syn(&mut self, s: &Segment) {
        self.rcv_nxt = s.seq.wrapping_add(1);
        self.rcv_edge = self.rcv_nxt.wrapping_add(self.syn_window);
        self.shifts[1] = s.shift.map(|shift| shift.min(14));
        // RFC 7323 §2.2: a window in a SYN is never scaled.
        self.snd_wnd = u32::from(s.window);
        self.max_wnd = self.snd_wnd;
        (self.wl1, self.wl2) = (s.seq, s.ack);
    }

    /// §3.10.7.3.
    fn in_syn_sent(&mut self, s: &Segment) -> Reply {
        let acceptable = s.has(flags::ACK) && s.ack == self.snd_nxt;
        if s.has(flags::ACK) && !acceptable {
            return if s.has(flags::RST) { Reply::Nothing } else { refusal(s) };
        }
        if s.has(flags::RST) {
            if acceptable {
                self.delete();
            }
            return Reply::Nothing;
        }
        if !s.has(flags::SYN) {
            return Reply::Nothing;
        }
        self.hear_syn(s);
        if !acceptable {
            self.state = ModelState::SynReceived;
            return Reply::SynAck;
        }
        self.snd_una = s.ack;
        self.state = ModelState::Established;
        Reply::Ack
    }

    /// §3.10.7.4.
    fn otherwise(&mut self, s: &Segment) -> Reply {
        // First, check sequence number.
        let starved = self.window() == 0 && s.seq == self.rcv_nxt && s.len > 0 && !s.has(flags::SYN);
        if !self.acceptable(s) && !starved {
            return if s.has(flags::RST) { Reply::Nothing } else { Reply::Ack };
        }
        // Second, check the RST bit (RFC 5961 §3): by SEG.SEQ alone.
        if s.has(flags::RST) {
            if s.seq == self.rcv_nxt {
                self.reset();
            } else if between(self.rcv_nxt, s.seq, self.rcv_edge) {
                return Reply::Ack;
            }
            return Reply::Nothing;
        }
        // Fourth, check the SYN bit (RFC 5961 §4).
        if s.has(flags::SYN) {
            if self.state == ModelState::SynReceived && self.passive {
                self.reset();
                return Reply::Nothing;
            }
            return Reply::Ack;
        }
        // Fifth, check the ACK field.
        if !s.has(flags::ACK) {
            return Reply::Nothing;
        }
        if let Some(reply) = self.acknowledgement(s) {
            return reply;
        }
        // "If the RCV.WND is zero, no segments will be acceptable, but special allowance should be made to accept valid
        // ACKs" (MUST-66).
        if starved {
            return Reply::Ack;
        }
        // Sixth, seventh, eighth: URG, which changes nothing here, text and FIN.
        self.text(s)
    }

    /// A passively opened TCB returns from SYN-RECEIVED to LISTEN. Any other is deleted.
    fn reset(&mut self) {
        let relisten = self.state == ModelState::SynReceived && self.passive;
        self.delete();
        if relisten {
            self.state = ModelState::Listen;
        }
    }

    /// Table 6.
    pub fn acceptable(&self, s: &Segment) -> bool {
        let (len, window) = (s.seq_len(), self.window());
        let last = s.seq.wrapping_add(len).wrapping_sub(1);
        let inside = |at| between(self.rcv_nxt, at, self.rcv_edge);
        match (len, window) {
            (0, 0) => s.seq == self.rcv_nxt,
            (0, _) => inside(s.seq),
            (_, 0) => false,
            _ => inside(s.seq) || inside(last),
        }
    }

    /// `Some` = the segment is dropped.
    fn acknowledgement(&mut self, s: &Segment) -> Option<Reply> {
        let new = before(self.snd_una, s.ack) && !before(self.snd_nxt, s.ack);
        if self.state == ModelState::SynReceived {
            if !new {
                return Some(refusal(s));
            }
            self.state = ModelState::Established;
            self.snd_wnd = u32::from(s.window) << self.peer_shift();
            (self.wl1, self.wl2) = (s.seq, s.ack);
        }
        // RFC 5961 §5.
        if before(self.snd_nxt, s.ack) || before(s.ack, self.snd_una.wrapping_sub(self.max_wnd)) {
            return Some(Reply::Ack);
        }
        let current = !before(s.ack, self.snd_una);
        if new {
            self.snd_una = s.ack;
        }
        let newer = before(self.wl1, s.seq) || (self.wl1 == s.seq && !before(s.ack, self.wl2));
        if current && newer {
            self.snd_wnd = u32::from(s.window) << self.peer_shift();
            (self.wl1, self.wl2) = (s.seq, s.ack);
        }
        self.max_wnd = self.max_wnd.max(self.snd_wnd);
        self.max_later = self.max_later.max(self.snd_wnd);
        if self.fin_sent && self.snd_una == self.snd_nxt {
            match self.state {
                ModelState::FinWait1 => self.state = ModelState::FinWait2,
                ModelState::Closing => self.state = ModelState::TimeWait,
                ModelState::LastAck => {
                    self.delete();
                    return Some(Reply::Nothing);
                }
                _ => {}
            }
        }
        None
    }

    fn peer_shift(&self) -> u8 {
        if self.shifts[0].is_some() { self.shifts[1].unwrap_or(0) } else { 0 }
    }

    /// Text and FIN.
    fn text(&mut self, s: &Segment) -> Reply {
        let end = s.seq.wrapping_add(s.len);
        let owed = if s.len > 0 || s.has(flags::FIN) { Reply::Ack } else { Reply::Nothing };
        if matches!(
            self.state,
            ModelState::CloseWait | ModelState::Closing | ModelState::LastAck | ModelState::TimeWait
        ) {
            return owed;
        }
        if self.closed && s.len > 0 && before(self.rcv_nxt, end) {
            // Data after close (§3.6.1, RFC 2525 §2.17).
            let reset = Reply::Reset(self.snd_nxt, Some(self.rcv_nxt));
            self.delete();
            return reset;
        }
        for at in (0..s.len).map(|i| s.seq.wrapping_add(i)) {
            if between(self.rcv_nxt, at, self.rcv_edge) {
                self.ahead.0.insert(at);
            }
        }
        if s.has(flags::FIN) && between(self.rcv_nxt, end, self.rcv_edge) {
            self.fins.insert(end);
        }
        let behind = |fin: &u32| self.ahead.0.iter().any(|at| !before(*at, *fin));
        self.contradicted |= self.fins.len() > 1 || self.fins.iter().any(behind);
        while !self.fins.contains(&self.rcv_nxt) && self.ahead.0.remove(&self.rcv_nxt) {
            self.rcv_nxt = self.rcv_nxt.wrapping_add(1);
            self.delivered += 1;
        }
        if self.fins.contains(&self.rcv_nxt) {
            self.fin();
        }
        owed
    }

    /// Eighth, check the FIN bit.
    fn fin(&mut self) {
        self.rcv_nxt = self.rcv_nxt.wrapping_add(1);
        let acked = self.fin_sent && self.snd_una == self.snd_nxt;
        self.state = match self.state {
            ModelState::SynReceived | ModelState::Established => ModelState::CloseWait,
            ModelState::FinWait1 if acked => ModelState::TimeWait,
            ModelState::FinWait1 => ModelState::Closing,
            ModelState::FinWait2 => ModelState::TimeWait,
            other => other,
        };
    }

    /// Takes a segment that the endpoint has sent. `Err` = it was not allowed.
    pub fn sent(&mut self, s: &Segment) -> Result<(), String> {
        if s.has(flags::RST) || self.state <= ModelState::Listen {
            return Ok(());
        }
        let shift = if s.has(flags::SYN) { 0 } else { self.own_shift() };
        if s.has(flags::SYN) {
            self.shifts[0] = s.shift;
            self.syn_window = u32::from(s.window);
        }
        if s.has(flags::ACK) {
            if s.ack != self.rcv_nxt {
                return Err(format!("acknowledges {}, not {}", s.ack, self.rcv_nxt));
            }
            let edge = s.ack.wrapping_add(u32::from(s.window) << shift);
            // SHLD-14. Rounding may shrink a scaled window by less than its unit (RFC 7323 §2.4).
            if before(edge.wrapping_add((1 << shift) - 1), self.rcv_edge) && self.synchronized() && !self.heard_fin() {
                return Err(format!("shrinks its window from {} to {edge}", self.rcv_edge));
            }
            if before(self.rcv_edge, edge) {
                self.rcv_edge = edge;
            }
        }
        let end = s.seq.wrapping_add(s.seq_len());
        if before(self.snd_nxt, end) {
            self.may_send(s, end)?;
            self.snd_nxt = end;
            self.fin_sent |= s.has(flags::FIN);
        }
        Ok(())
    }

    fn own_shift(&self) -> u8 {
        if self.shifts[1].is_some() { self.shifts[0].unwrap_or(0) } else { 0 }
    }

    /// May new data or a FIN be sent, up to `end`?
    fn may_send(&self, s: &Segment, end: u32) -> Result<(), String> {
        let fin = u32::from(s.has(flags::FIN));
        let data_end = end.wrapping_sub(fin);
        if before(self.queued + 1, data_end) {
            return Err(format!("sends {data_end} of {} queued", self.queued));
        }
        if fin == 1 && (!self.shut || data_end != self.queued + 1) {
            return Err("sends a FIN that nobody asked for".into());
        }
        if s.len > 0 && before(self.snd_una.wrapping_add(self.snd_wnd), data_end) {
            return Err(format!("sends {data_end} beyond the window {} + {}", self.snd_una, self.snd_wnd));
        }
        Ok(())
    }
}

/// §3.5.2, group 1: the RST for a segment without a connection.
fn refusal(s: &Segment) -> Reply {
    match () {
        () if s.has(flags::RST) => Reply::Nothing,
        () if s.has(flags::ACK) => Reply::Reset(s.ack, None),
        () => Reply::Reset(0, Some(s.seq.wrapping_add(s.seq_len()))),
    }
}
