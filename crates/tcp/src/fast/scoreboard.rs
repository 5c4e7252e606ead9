//! The sender's scoreboard (RFC 6675 §3, RFC 8985 §5). For every byte between SND.UNA and SND.MAX it knows when the
//! byte was sent last, whether the peer reports it, and whether it is lost.
//!
//! The bytes are kept as spans that follow each other without a gap, so a span is its end. Neighbours that were sent at
//! about the same time and are in the same state are one span. Only flows that agreed on SACK and have several segments
//! in flight have a scoreboard. For a single segment `Measures::rtt_at` is enough, because nothing can be reported
//! ahead of it.

use super::hystart::HyStart;
use crate::seq::Seq;

/// Spans per flow: 127 holes at a time. An entry is about 4 KiB. A flow without holes touches one line of it.
pub(super) const SPANS: usize = 256;

/// The peer reports it.
pub(super) const SACKED: u8 = 1;
/// Judged lost, and not sent again since.
pub(super) const LOST: u8 = 2;
/// Sent more than once.
pub(super) const AGAIN: u8 = 4;

/// The bytes from the end of the span before up to its own end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub end: Seq,
    /// When its newest byte was sent, µs modulo 2^32.
    pub at: u32,
    pub state: u8,
}

impl Span {
    /// In flight as far as we know.
    fn flying(&self) -> bool {
        self.state & (SACKED | LOST) == 0
    }
}

/// The counts of the proportional rate reduction (RFC 9937 §6), bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reduction {
    pub delivered: u32,
    pub out: u32,
    /// RecoverFS.
    pub flight: u32,
}

/// The newest transmission that has arrived (RFC 8985 §5.2).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Newest {
    pub at: u32,
    pub end: Seq,
    pub rtt_us: u32,
}

/// One flow's scoreboard.
#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    spans: [Span; SPANS],
    first: usize,
    len: usize,
    start: Seq,
    /// When the last span was begun.
    begun: u32,
    /// Nothing is reported, lost, or sent again.
    pub clean: bool,
    /// RACK.segment, once something has arrived.
    pub newest: Option<Newest>,
    /// RACK.fack: the highest that has arrived.
    pub highest: Seq,
    /// Acknowledgements whose blocks reported something new since SND.UNA moved: duplicates, as RFC 6675 §2 counts
    /// them.
    pub duplicates: u8,
    pub reduction: Reduction,
    pub hystart: HyStart,
    /// TLP.end_seq, and TLP.is_retrans (RFC 8985 §7.1).
    pub probe: Option<(Seq, bool)>,
    /// After a time-out that may have been spurious (F-RTO): 1 = the first acknowledgement is awaited, 2 = the second.
    pub doubtful: u8,
    /// The timer that runs is the reordering timer. Else it is the tail probe's.
    pub reordering_timer: bool,
}

impl Default for Scoreboard {
    fn default() -> Self {
        Self {
            spans: [Span::default(); SPANS],
            first: 0,
            len: 0,
            start: Seq(0),
            begun: 0,
            clean: true,
            newest: None,
            highest: Seq(0),
            duplicates: 0,
            reduction: Reduction::default(),
            hystart: HyStart::default(),
            probe: None,
            doubtful: 0,
            reordering_timer: false,
        }
    }
}

impl Scoreboard {
    /// Begins with `start..end`, all sent by `at`; `again`: some of it perhaps more than once.
    fn begin(&mut self, start: Seq, end: Seq, at: u32, again: bool) {
        (self.first, self.len, self.start, self.begun) = (0, 1, start, at);
        self.spans[0] = Span { end, at, state: if again { AGAIN } else { 0 } };
        (self.clean, self.newest, self.highest, self.duplicates) = (!again, None, start, 0);
        (self.reduction, self.probe, self.doubtful) = (Reduction::default(), None, 0);
        (self.reordering_timer, self.hystart) = (false, HyStart::default());
    }

    /// New data have been sent up to `end`. They join the last span if that was begun at most `grain_us` ago.
    #[inline]
    pub fn sent(&mut self, end: Seq, now: u32, grain_us: u32) {
        if let Some(last) = self.last_mut()
            && last.state == 0
        {
            let young = now.wrapping_sub(self.begun) <= grain_us;
            let last = &mut self.spans[self.first + self.len - 1];
            if young {
                (last.end, last.at) = (end, now);
                return;
            }
        }
        self.push(Span { end, at: now, state: 0 });
        self.begun = now;
    }

    fn last_mut(&mut self) -> Option<&mut Span> {
        self.spans[self.first..self.first + self.len].last_mut()
    }

    fn push(&mut self, span: Span) {
        if !self.has_room() {
            // Better forget a report than take new data for received ones.
            if let Some(last) = self.last_mut() {
                *last = Span { state: last.state & AGAIN, ..span };
            }
            return;
        }
        self.spans[self.first + self.len] = span;
        self.len += 1;
    }

    /// Makes room for one more span behind the last: by moving all, else by joining the two neighbours that are most
    /// alike.
    fn has_room(&mut self) -> bool {
        if self.first + self.len < SPANS {
            return true;
        }
        if self.first > 0 {
            self.spans.copy_within(self.first..self.first + self.len, 0);
            self.first = 0;
            return true;
        }
        let alike = |i: &usize| {
            let (a, b) = (&self.spans[*i], &self.spans[*i + 1]);
            (a.state ^ b.state) & (SACKED | LOST) == 0
        };
        let apart = |i: &usize| self.spans[*i + 1].at.wrapping_sub(self.spans[*i].at) as i32;
        let Some(i) = (0..self.len - 1).filter(alike).min_by_key(|i| apart(i).unsigned_abs()) else { return false };
        self.join(i);
        true
    }

    /// Joins span `i` with the next: sent by the later time of the two.
    fn join(&mut self, i: usize) {
        let (a, b) = (self.spans[i], self.spans[i + 1]);
        let at = if (b.at.wrapping_sub(a.at) as i32) < 0 { a.at } else { b.at };
        self.spans[i] = Span { end: b.end, at, state: a.state | b.state };
        self.spans.copy_within(i + 2..self.first + self.len, i + 1);
        self.len -= 1;
    }

    /// Forgets the bytes before `una`.
    #[inline]
    pub fn advance(&mut self, una: Seq) {
        while self.len > 0 && !self.spans[self.first].end.after(una) {
            self.first += 1;
            self.len -= 1;
        }
        self.start = una;
    }

    /// When the byte before `ack` was sent, if only once.
    #[inline]
    pub fn sent_at(&self, ack: Seq) -> Option<u32> {
        let span = self.spans[self.first..self.first + self.len].iter().find(|span| !span.end.before(ack))?;
        (span.state & AGAIN == 0).then_some(span.at)
    }

    /// The spans with their first sequence numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Seq, &Span)> {
        let mut start = self.start;
        self.spans[self.first..self.first + self.len]
            .iter()
            .map(move |span| (std::mem::replace(&mut start, span.end), span))
    }

    /// Everything before `una` has been acknowledged; `new` gets what had not been reported.
    pub fn acknowledge(&mut self, una: Seq, mut new: impl FnMut(Seq, &Span)) {
        for (start, span) in self.iter().take_while(|(start, _)| start.before(una)) {
            if span.state & SACKED == 0 {
                let end = if span.end.after(una) { una } else { span.end };
                new(start, &Span { end, ..*span });
            }
        }
        self.advance(una);
    }

    /// The peer reports `start..end`, which is within the scoreboard; `new` gets what it had not reported before. A
    /// report for which there is no room is ignored.
    pub fn report(&mut self, start: Seq, end: Seq, mut new: impl FnMut(Seq, &Span)) {
        if !self.split(start) || !self.split(end) {
            return;
        }
        let mut from = self.start;
        for span in &mut self.spans[self.first..self.first + self.len] {
            if !from.before(start) && !span.end.after(end) && span.state & SACKED == 0 {
                new(from, span);
                span.state = span.state & !LOST | SACKED;
            }
            from = span.end;
        }
        self.clean = false;
        self.tidy();
    }

    /// `start..end` has been sent again.
    pub fn resent(&mut self, start: Seq, end: Seq, now: u32) {
        // Without room for a boundary all of the span is taken for sent again. Bytes of it that were not are found lost
        // later.
        let _ = self.split(start) && self.split(end);
        let mut from = self.start;
        for span in &mut self.spans[self.first..self.first + self.len] {
            if from.before(end) && span.end.after(start) && span.state & SACKED == 0 {
                (span.state, span.at) = (AGAIN, now);
            }
            from = span.end;
        }
        self.clean = false;
        self.tidy();
    }

    /// Marks the spans as lost for which `lost` is true; returns how many bytes.
    pub fn lose(&mut self, mut lost: impl FnMut(&Span) -> bool) -> u32 {
        let (mut from, mut bytes) = (self.start, 0);
        for span in &mut self.spans[self.first..self.first + self.len] {
            if span.flying() && lost(span) {
                span.state |= LOST;
                bytes += span.end.bytes_since(from);
            }
            from = span.end;
        }
        self.clean &= bytes == 0;
        bytes
    }

    /// Retransmission time-out: all is lost but what the peer reports. If it reports SND.UNA itself, it has dropped
    /// data that it had (RFC 6675 §5.1, RFC 2018 §8), and its reports are void. Returns the bytes that are newly lost.
    pub fn time_out(&mut self) -> u32 {
        if self.spans[self.first..self.first + self.len].first().is_some_and(|span| span.state & SACKED != 0) {
            for span in &mut self.spans[self.first..self.first + self.len] {
                span.state &= !SACKED;
            }
        }
        (self.newest, self.probe, self.reordering_timer, self.duplicates) = (None, None, false, 0);
        let bytes = self.lose(|_| true);
        self.tidy();
        bytes
    }

    /// Nothing is lost after all.
    pub fn find(&mut self) {
        for span in &mut self.spans[self.first..self.first + self.len] {
            span.state &= !LOST;
        }
        self.tidy();
    }

    /// The first that is lost.
    pub fn first_lost(&self) -> Option<(Seq, Seq)> {
        self.iter().find(|(_, span)| span.state & LOST != 0).map(|(start, span)| (start, span.end))
    }

    /// Bytes in this state.
    pub fn bytes(&self, state: u8) -> u32 {
        let some = |(start, span): (Seq, &Span)| if span.state & state == 0 { 0 } else { span.end.bytes_since(start) };
        self.iter().map(some).sum()
    }

    /// Bytes that were sent again and are in flight as far as we know.
    pub fn resent_bytes(&self) -> u32 {
        let again = |(_, span): &(Seq, &Span)| span.flying() && span.state & AGAIN != 0;
        self.iter().filter(again).map(|(start, span)| span.end.bytes_since(start)).sum()
    }

    /// Updates `clean`.
    pub fn look(&mut self) {
        self.clean = self.probe.is_none() && self.iter().all(|(_, span)| span.state == 0);
    }

    /// Makes `seq` a boundary; false = there is no room.
    fn split(&mut self, seq: Seq) -> bool {
        if !seq.after(self.start) {
            return true;
        }
        let inside = |scoreboard: &Self| {
            (scoreboard.first..scoreboard.first + scoreboard.len).find(|&i| !scoreboard.spans[i].end.before(seq))
        };
        let Some(i) = inside(self) else { return true };
        if self.spans[i].end == seq {
            return true;
        }
        if !self.has_room() {
            return false;
        }
        // Room may have been made by joining.
        let Some(i) = inside(self) else { return true };
        self.spans.copy_within(i..self.first + self.len, i + 1);
        self.spans[i].end = seq;
        self.len += 1;
        true
    }

    /// Joins neighbours that no longer differ: reported ones whenever they were sent, others if sent at the same time.
    fn tidy(&mut self) {
        let mut i = self.first;
        while i + 1 < self.first + self.len {
            let (a, b) = (&self.spans[i], &self.spans[i + 1]);
            let reported = a.state & b.state & SACKED != 0;
            if reported || (a.state == b.state && (a.at == b.at || a.state & LOST != 0)) {
                self.join(i);
            } else {
                i += 1;
            }
        }
    }
}

/// The scoreboards of a fast path. Entry numbers are one-based, 0 is none.
#[derive(Debug, Default)]
pub(super) struct Scoreboards {
    entries: Vec<Scoreboard>,
    free: Vec<u16>,
}

impl Scoreboards {
    /// A scoreboard on which `start..end` has been sent by `at`; `None` if 65,535 flows have one.
    pub fn take(&mut self, start: Seq, end: Seq, at: u32, again: bool) -> Option<u16> {
        let entry = match self.free.pop() {
            Some(entry) => entry,
            None => {
                let entry = u16::try_from(self.entries.len() + 1).ok()?;
                self.entries.push(Scoreboard::default());
                entry
            }
        };
        self.get(u32::from(entry))?.begin(start, end, at, again);
        Some(entry)
    }

    /// The scoreboard with this entry number.
    #[inline]
    pub fn get(&mut self, entry: u32) -> Option<&mut Scoreboard> {
        self.entries.get_mut((entry as usize).checked_sub(1)?)
    }

    /// Gives a scoreboard back.
    pub fn release(&mut self, entry: u32) {
        if entry != 0
            && let Ok(entry) = u16::try_from(entry)
        {
            self.free.push(entry);
        }
    }

    /// Scoreboards in use.
    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests;
