//! Marks of the application in its stream: urgent bytes, how far a cork has been off for a moment, and the ends of
//! records (`MSG_EOR`).

use crate::messages::AppMarks;
use crate::seq::Seq;
use crate::table::bits::{ACK_NOW, CORK, MARKED, PUSHED, URGENT_OUT};
use crate::table::stages::{Application, Loss};
use crate::table::tcb::Tcb;
use crate::table::{Lines, RECORDS};

/// Takes new marks over. A mark outside of what waits in the send ring is ignored.
#[cold]
pub(super) fn take(by: Application, t: &mut Tcb, lines: &Lines, new: &AppMarks) {
    forget_old(by, t, lines);
    if let Some(position) = new.urgent {
        urgent(by, t, lines, position);
    }
    let ahead = |t: &Tcb, position: Option<u32>| {
        let mark = Seq(lines.identity.snd_start.get()).add(position?);
        (mark.after(t.snd_una()) && !mark.after(t.snd_queued())).then_some(mark)
    };
    if let Some(end) = ahead(t, new.record) {
        note_record(by, t, lines, end);
    }
    // Without a cork nothing is held that could be flushed.
    if let Some(end) = ahead(t, new.flush).filter(|_| t.has(CORK)) {
        flush(by, t, lines, end);
    }
}

/// `MSG_OOB` (RFC 9293 §3.8.5 MUST-30): SND.UP moves on, and the peer learns it at once, even where its window lets no
/// data through. A position outside of what waits in the send ring is ignored.
fn urgent(by: Application, t: &mut Tcb, lines: &Lines, position: u32) {
    let up = Seq(lines.identity.snd_start.get()).add(position);
    let word = &lines.recovery.snd_up;
    let known = t.has(URGENT_OUT) && !up.after(Seq(word.get()));
    if known || !up.after(t.snd_una()) || up.after(t.snd_queued()) {
        return;
    }
    word.set(by, up.0);
    t.set(by, URGENT_OUT);
    t.set(by, ACK_NOW);
}

/// What is queued before `end` goes out although `CORK` is set.
pub(super) fn flush(by: Application, t: &mut Tcb, lines: &Lines, end: Seq) {
    lines.seldom.flush.set(by, end.0);
    t.set(by, PUSHED);
    mark(by, t, lines);
}

/// Notes the end of a record. If all places are taken, the newest gives way, unless one has been sent already.
fn note_record(by: Application, t: &mut Tcb, lines: &Lines, end: Seq) {
    mark(by, t, lines);
    let records = &lines.seldom.records;
    if records.iter().any(|record| record.get() == end.0) {
        return;
    }
    let at = |place: usize| Seq(records[place].get());
    let oldest = (0..RECORDS).fold(0, |oldest, place| if at(place).before(at(oldest)) { place } else { oldest });
    let newest = (0..RECORDS).fold(0, |newest, place| if at(place).after(at(newest)) { place } else { newest });
    let place = if at(oldest).after(t.snd_nxt()) { newest } else { oldest };
    records[place].set(by, end.0);
}

/// From now on the flow has marks. Old words must not look like marks ahead.
fn mark(by: Application, t: &mut Tcb, lines: &Lines) {
    if !t.has(MARKED) {
        lines.seldom.records.iter().for_each(|record| record.set(by, t.snd_una().0));
        t.set(Loss::from(by), MARKED);
    }
}

/// Forgets marks that have been acknowledged.
fn forget_old(by: Application, t: &mut Tcb, lines: &Lines) {
    if !t.has(MARKED) {
        return;
    }
    let (una, words) = (t.snd_una(), &lines.seldom);
    if !Seq(words.flush.get()).after(una) {
        t.clear(by, PUSHED);
    }
    for record in &words.records {
        if !Seq(record.get()).after(una) {
            record.set(by, una.0);
        }
    }
    if !t.has(PUSHED) && words.records.iter().all(|record| record.get() == una.0) {
        t.clear(Loss::from(by), MARKED);
    }
}

/// How many of the `len` bytes from `from` on stand before the end of a record.
pub(super) fn within_record(t: &Tcb, lines: &Lines, from: Seq, len: u32) -> u32 {
    if !t.has(MARKED) {
        return len;
    }
    let ends = lines.seldom.records.iter().map(|record| Seq(record.get()).distance(from));
    ends.filter(|ahead| *ahead > 0).fold(len, |len, ahead| len.min(ahead as u32))
}

/// How many of the `unsent` bytes from SND.NXT on one segment may have for the marks.
#[cold]
#[inline(never)]
pub(super) fn limit(t: &Tcb, lines: &Lines, unsent: u32) -> u32 {
    let limit = within_record(t, lines, t.snd_nxt(), unsent);
    let flushed = Seq(lines.seldom.flush.get()).distance(t.snd_nxt());
    // A full segment is not held, so it may go beyond.
    let cut = t.has(CORK) && t.has(PUSHED) && flushed > 0 && unsent < u32::from(t.mss());
    if cut { limit.min(flushed as u32) } else { limit }
}

/// May a partial segment that ends at `end` go because of a mark? `nagle`: Nagle's algorithm does not hold it.
///
/// A record that something follows is complete: nothing more will join the segment before its end. So neither a cork
/// nor Nagle's algorithm holds it (as Linux).
#[cold]
#[inline(never)]
pub(super) fn let_go(t: &Tcb, lines: &Lines, end: Seq, nagle: bool) -> bool {
    let flushed = t.has(PUSHED) && !end.after(Seq(lines.seldom.flush.get()));
    let record = end != t.snd_queued() && lines.seldom.records.iter().any(|record| record.get() == end.0);
    record || (nagle && flushed)
}
