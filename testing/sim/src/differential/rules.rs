//! Allowed differences between an endpoint and the model, with reasons. A rule that no sequence needs fails the test,
//! so that no rule hides a fault by accident.

use super::{Difference, Step};
use crate::differential::subjects::Seen;
use crate::model::{Model, ModelState, Segment, before};
use towpath_wire::segment::flags;

/// A step after which an endpoint and its model differ.
pub struct Case<'a> {
    /// The model before the step.
    pub before: &'a Model,
    /// And after it.
    pub after: &'a Model,
    /// The step.
    pub step: Step,
    /// The endpoint's reaction.
    pub seen: &'a Seen,
    /// The differences.
    pub differences: &'a [Difference],
    /// May hidden state differ since an earlier segment ([`blurs`])?
    pub blurred: bool,
}

/// Does one of the rules about windows, their edges and old ACKs apply to this segment, even if its effect is not
/// visible yet?
pub fn blurs(before: &Model, s: &Segment) -> bool {
    [newest_by_ack, at_window_end, ends_at_rcv_nxt, fin_at_window_end, too_old, of_unsent]
        .iter()
        .any(|rule| rule(before, s))
}

fn newest_by_ack(model: &Model, s: &Segment) -> bool {
    before(model.snd_una, s.ack) && before(s.seq, model.wl1)
}

fn at_window_end(model: &Model, s: &Segment) -> bool {
    s.seq_len() == 0 && s.seq == model.rcv_edge && !s.has(flags::RST)
}

fn too_old(model: &Model, s: &Segment) -> bool {
    s.has(flags::ACK) && before(s.ack, model.snd_una.wrapping_sub(model.max_later))
}

/// Is the ACK not of data in flight? smoltcp ignores such segments.
fn unheard(model: &Model, s: &Segment) -> bool {
    let bad = !s.has(flags::ACK) || before(s.ack, model.snd_una) || before(model.snd_nxt, s.ack);
    bad || model.state == ModelState::SynReceived && s.ack != model.snd_nxt
}

fn of_unsent(model: &Model, s: &Segment) -> bool {
    s.has(flags::ACK) && before(model.snd_nxt, s.ack) && !before(model.queued + 1, s.ack)
}

fn covers(model: &Model, s: &Segment) -> bool {
    let end = s.seq.wrapping_add(s.seq_len());
    model.window() > 0 && before(s.seq, model.rcv_nxt) && before(model.rcv_edge, end)
}

fn fin_at_window_end(model: &Model, s: &Segment) -> bool {
    s.has(flags::FIN) && s.seq.wrapping_add(s.len) == model.rcv_edge
}

fn ends_at_rcv_nxt(model: &Model, s: &Segment) -> bool {
    let end = s.seq.wrapping_add(s.seq_len());
    // At a closed window a segment that reaches further brings nothing new either.
    let beyond = model.window() == 0 && before(s.seq, model.rcv_nxt) && before(model.rcv_nxt, end);
    s.seq_len() > 0 && (end == model.rcv_nxt || beyond) && !s.has(flags::RST)
}

impl Case<'_> {
    fn segment(&self) -> Option<&Segment> {
        match &self.step {
            Step::Arrives(segment) => Some(segment),
            _ => None,
        }
    }
    /// A segment with all these flags?
    fn has(&self, flags: u8) -> bool {
        self.segment().is_some_and(|s| s.flags & flags == flags)
    }
    /// A segment with one of these flags?
    fn any(&self, flags: u8) -> bool {
        self.segment().is_some_and(|s| s.flags & flags != 0)
    }
    fn was(&self, state: ModelState) -> bool {
        self.before.state == state
    }
    fn is(&self, state: ModelState) -> bool {
        self.seen.state == state
    }
    fn stays(&self) -> bool {
        self.seen.state == self.before.state
    }
    fn silent(&self) -> bool {
        self.seen.sent.is_empty()
    }
    /// Has it sent a segment with all these flags?
    fn sent(&self, flags: u8) -> bool {
        self.seen.sent.iter().any(|s| s.flags & flags == flags)
    }
    /// Has it sent one bare ACK and nothing else?
    fn acked(&self) -> bool {
        self.seen.sent.len() == 1 && self.seen.sent[0].flags == flags::ACK && self.seen.sent[0].len == 0
    }
    /// Is it in the model's state?
    fn agreed(&self) -> bool {
        self.seen.state == self.after.state
    }
    fn same_una(&self) -> bool {
        self.seen.sender.is_some_and(|(una, _)| una == self.after.snd_una)
    }
    /// Only the peer's window differs, and what may be sent for it?
    fn only_sender(&self) -> bool {
        self.differences.iter().all(|d| match d {
            Difference::Sender(..) => true,
            Difference::Sent(what) => what.starts_with("sends"),
            _ => false,
        })
    }
}

/// An allowed difference.
pub struct Rule {
    /// Its name in reports.
    pub name: &'static str,
    /// Why it is allowed.
    pub reason: &'static str,
    /// Do the two diverge from here on, even if their states still agree?
    pub ends: bool,
    /// Does it explain this case?
    pub holds: fn(&Case<'_>) -> bool,
}

/// Choices of our stack.
pub const OURS: &[Rule] = &[
    Rule {
        name: "ours: two of SYN, FIN and RST are one too many",
        reason: "no TCP sends them, only scanners do; RFC 9293 takes the first (Linux drops some of them)",
        ends: false,
        holds: |c| {
            let control = flags::SYN | flags::FIN | flags::RST;
            c.segment().is_some_and(|s| (s.flags & control).count_ones() > 1) && c.silent() && c.stays()
        },
    },
    Rule {
        name: "ours: an empty segment at the window's end counts",
        reason: "a peer that has filled the window sends its ACKs there (as Linux, `tcp_sequence`)",
        ends: false,
        holds: |c| c.segment().is_some_and(|s| at_window_end(c.before, s)),
    },
    Rule {
        name: "ours: an ACK of something new has the newest window",
        reason: "data sent again are below SND.WL1, but the window of the old SND.UNA must not be added to the new one",
        ends: false,
        holds: |c| c.only_sender() && c.segment().is_some_and(|s| newest_by_ack(c.before, s)),
    },
    Rule {
        name: "ours: the window of a segment that counted moves SND.WL1",
        reason: "a consequence of the rules about the window's edges and the newest window, seen later",
        ends: false,
        holds: |c| c.only_sender() && c.blurred && c.same_una(),
    },
    Rule {
        name: "ours: SND.WL1 begins at the SYN",
        reason: "the segment that ends the handshake stands right behind it, and needs no second window",
        ends: false,
        holds: |c| {
            c.only_sender() && c.same_una() && c.segment().is_some_and(|s| s.seq.wrapping_add(1) == c.before.wl1)
        },
    },
    Rule {
        name: "ours: a FIN amid text that was kept is not seen",
        reason: "a peer that sends text behind its FIN has no right answer; what it sent is delivered",
        ends: false,
        holds: |c| c.after.contradicted,
    },
    Rule {
        name: "ours: a duplicate that ends at RCV.NXT brings its ACK",
        reason: "sent again because our ACK is late, it may carry the only news of theirs (as Linux, `tcp_sequence`)",
        ends: false,
        holds: |c| c.before.synchronized() && c.segment().is_some_and(|s| ends_at_rcv_nxt(c.before, s)),
    },
    Rule {
        name: "ours: a segment that covers the whole window counts",
        reason: "table 6 looks at its ends only; what is between them is in the window",
        ends: false,
        holds: |c| c.segment().is_some_and(|s| covers(c.before, s)),
    },
    Rule {
        name: "ours: MAX.SND.WND does not count the SYN's window",
        reason: "what RFC 5961 §5 drops for it acknowledges nothing, and is answered",
        ends: false,
        holds: |c| {
            let late = |d: &Difference| matches!(d, Difference::Sent(what) if what.starts_with("acknowledges"));
            let now = c.segment().is_some_and(|s| too_old(c.before, s)) && c.acked() && c.stays();
            now || c.blurred && c.differences.iter().all(late)
        },
    },
    Rule {
        name: "ours: a FIN needs no room",
        reason: "RCV.NXT moves past it, but no byte of the buffer is taken; the peer may stop probing (as Linux)",
        ends: false,
        holds: |c| {
            let here = c.segment().is_some_and(|s| fin_at_window_end(c.before, s));
            let beyond = |s: &Segment| s.ack == c.after.rcv_nxt.wrapping_add(1);
            here || c.blurred && c.seen.sent.iter().any(beyond)
        },
    },
    Rule {
        name: "ours: text with the ACK that ends LAST-ACK is answered",
        reason: "text after a FIN is answered in every state; the answer comes from a connection that is no more",
        ends: false,
        holds: |c| {
            c.was(ModelState::LastAck) && c.segment().is_some_and(|s| s.seq_len() > 0) && c.acked() && c.agreed()
        },
    },
    Rule {
        name: "ours: the SYN again gets the SYN-ACK again",
        reason: "the SYN-ACK was lost, and a bare ACK would not help the peer (as Linux)",
        ends: false,
        holds: |c| c.was(ModelState::SynReceived) && c.has(flags::SYN) && c.stays() && c.sent(flags::SYN | flags::ACK),
    },
    Rule {
        name: "ours: a simultaneous open ends with either SYN-ACK",
        reason: "RFC 9293 §3.5, figure 7; by the letter of §3.10.7.4 the SYN-ACK is outside the window and its ACK lost",
        ends: false,
        holds: |c| c.was(ModelState::SynReceived) && c.has(flags::SYN | flags::ACK) && c.is(ModelState::Established),
    },
    Rule {
        name: "ours: TIME-WAIT ignores resets",
        reason: "RFC 1337, fix F1",
        ends: false,
        holds: |c| c.was(ModelState::TimeWait) && c.any(flags::RST) && c.silent() && c.is(ModelState::TimeWait),
    },
    Rule {
        name: "ours: TIME-WAIT gives way to a later SYN",
        reason: "RFC 9293 §3.10.7.4, MAY-2",
        ends: false,
        holds: |c| {
            c.was(ModelState::TimeWait) && c.has(flags::SYN) && c.before.listener && c.is(ModelState::SynReceived)
        },
    },
    Rule {
        name: "ours: TIME-WAIT refuses a later SYN where nobody listens",
        reason: "the RST with which a peer answers an ACK would be ignored (RFC 1337), so it would wait for nothing",
        ends: false,
        holds: |c| c.was(ModelState::TimeWait) && c.has(flags::SYN) && c.sent(flags::RST | flags::ACK) && c.stays(),
    },
    Rule {
        name: "ours: TIME-WAIT is silent about empty segments at RCV.NXT",
        reason: "they need no answer, and two ends in TIME-WAIT would answer each other for ever (as Linux)",
        ends: false,
        holds: |c| {
            let here = |s: &Segment| s.seq_len() == 0 && s.seq == c.before.rcv_nxt;
            c.was(ModelState::TimeWait) && c.segment().is_some_and(here) && c.silent() && c.stays()
        },
    },
    Rule {
        name: "ours: TIME-WAIT answers empty segments in the window",
        reason: "the peer's FIN is the end, so nothing of it is beyond RCV.NXT (as Linux)",
        ends: false,
        holds: |c| {
            let beyond = |s: &Segment| s.seq_len() == 0 && s.seq != c.before.rcv_nxt;
            c.was(ModelState::TimeWait) && c.segment().is_some_and(beyond) && c.acked() && c.stays()
        },
    },
    Rule {
        name: "ours: TIME-WAIT answers all text and FINs",
        reason: "it has no more than the two sequence numbers, and the answer is what a peer that is behind needs",
        ends: false,
        holds: |c| {
            c.was(ModelState::TimeWait) && c.segment().is_some_and(|s| s.seq_len() > 0) && c.acked() && c.stays()
        },
    },
];

/// Choices of smoltcp.
pub const SMOLTCP: &[Rule] = &[
    Rule {
        name: "smoltcp: close is shutdown",
        reason: "its socket goes on receiving, and there is nobody to tell that data are lost",
        ends: true,
        holds: |c| c.before.closed || c.step == Step::Close,
    },
    Rule {
        name: "smoltcp: two of SYN, FIN and RST are one too many",
        reason: "its parser takes one of them",
        ends: false,
        holds: |c| {
            let control = flags::SYN | flags::FIN | flags::RST;
            c.segment().is_some_and(|s| (s.flags & control).count_ones() > 1)
        },
    },
    Rule {
        name: "smoltcp: any RST in the window resets",
        reason: "it has the check of RFC 793, not that of RFC 5961 §3",
        ends: true,
        holds: |c| c.any(flags::RST) && c.silent() && (c.is(ModelState::Closed) || c.is(ModelState::Listen)),
    },
    Rule {
        name: "smoltcp: a SYN does not end SYN-RECEIVED",
        reason: "it drops what it does not expect there",
        ends: true,
        holds: |c| c.was(ModelState::SynReceived) && c.has(flags::SYN),
    },
    Rule {
        name: "smoltcp: the ACK field comes first",
        reason: "before the sequence number: the answer, RST in SYN-RECEIVED, is that to the ACK",
        ends: false,
        holds: |c| {
            let empty = |s: &Segment| s.seq_len() == 0 || !c.before.acceptable(s);
            c.segment().is_some_and(|s| empty(s) && unheard(c.before, s)) && c.stays()
        },
    },
    Rule {
        name: "smoltcp: text with a bad ACK is lost",
        reason: "a segment whose ACK is not of what is out is dropped whole",
        ends: true,
        holds: |c| c.segment().is_some_and(|s| unheard(c.before, s)),
    },
    Rule {
        name: "smoltcp: one challenge ACK per second",
        reason: "its way to RFC 5961 §7",
        ends: false,
        holds: |c| c.silent() && c.stays() && c.segment().is_some_and(|s| s.has(flags::SYN) || !c.before.acceptable(s)),
    },
    Rule {
        name: "smoltcp: at a closed window no ACK counts",
        reason: "it lacks the allowance of RFC 9293 §3.10.7.4 (MUST-66)",
        ends: true,
        holds: |c| c.before.window() == 0 && c.segment().is_some_and(|s| s.len > 0),
    },
    Rule {
        name: "smoltcp: PSH hides a bad ACK in SYN-SENT",
        reason: "it looks for segments without any flag but ACK",
        ends: false,
        holds: |c| c.was(ModelState::SynSent) && c.any(flags::PSH | flags::FIN) && c.silent() && c.stays(),
    },
    Rule {
        name: "smoltcp: text behind a FIN is taken",
        reason: "it goes on reassembling, and acknowledges it",
        ends: true,
        holds: |c| c.before.heard_fin() || c.after.contradicted,
    },
    Rule {
        name: "smoltcp: a FIN has no length, and none ahead of a hole is kept",
        reason: "its check of the window counts bytes; the FIN has to come again",
        ends: true,
        holds: |c| c.any(flags::FIN) || c.before.fin_ahead(),
    },
    Rule {
        name: "smoltcp: the window is that of the last segment",
        reason: "it keeps no SND.WL1",
        ends: true,
        holds: |c| c.differences.iter().all(|d| matches!(d, Difference::Sent(what) if what.starts_with("sends"))),
    },
    Rule {
        name: "smoltcp: an ACK of what waits to be sent counts",
        reason: "it looks at what is in its buffer, not at SND.NXT",
        ends: true,
        holds: |c| c.blurred && c.before.snd_una != c.before.queued + 1,
    },
];
