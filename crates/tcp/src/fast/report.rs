//! The receiver's reports beside the acknowledgement number: SACK blocks (RFC 2018 §4) and duplicates (RFC 2883).

use super::out_of_order::OutOfOrder;
use crate::seq::Seq;
use crate::table::Lines;
use crate::table::bits::{DSACK, SACK};
use crate::table::stages::Receive;
use crate::table::tcb::Tcb;
use towpath_wire::segment::SackBlocks;

/// Remembers that `start..end` has come although it was there.
#[cold]
pub(super) fn duplicate(by: Receive, t: &mut Tcb, lines: &Lines, start: Seq, end: Seq) {
    if !t.has(SACK) || !start.before(end) {
        return;
    }
    let [first, last] = &lines.recovery.duplicate;
    // Neighbours of one batch are reported as one.
    if !t.has(DSACK) || last.get() != start.0 {
        first.set(by, start.0);
    }
    last.set(by, end.0);
    t.set(by, DSACK);
}

/// The blocks of a segment that has room for `room` of them.
///
/// Each segment that came ahead of a hole is acknowledged, but all those of a batch are acknowledged when the batch is
/// over. The newest range stands first in each acknowledgement (RFC 2018 §4), and they take turns in naming the others.
#[cold]
pub(super) fn blocks(t: &Tcb, lines: &Lines, out_of_order: &OutOfOrder, room: usize) -> SackBlocks {
    let mut blocks = SackBlocks::default();
    if !t.has(SACK) || room == 0 {
        return blocks;
    }
    let ranges = out_of_order.peek(t.out_of_order());
    let mut named = None;
    let mut left = room;
    let mut put = |(start, end): (Seq, Seq)| {
        if left != 0 {
            blocks.push(start.0, end.0);
            left -= 1;
        }
    };
    if t.has(DSACK) {
        let [first, last] = &lines.recovery.duplicate;
        put((Seq(first.get()), Seq(last.get())));
        // RFC 2883 §4.2: the range that it is a part of stands second.
        named = ranges.and_then(|ranges| ranges.around(Seq(first.get())));
        if let (Some(range), Some(ranges)) = (named, ranges) {
            put(ranges.with_fin(range));
        }
    }
    let Some(ranges) = ranges else { return blocks };
    let mut put = |range| put(ranges.with_fin(range));
    let mut recent = ranges.recent().filter(|range| Some(*range) != named);
    if named.is_none()
        && let Some(newest) = recent.next()
    {
        put(newest);
    }
    let others = ranges.len() - 1.min(ranges.len());
    let turn = (usize::from(t.duplicates_owed().max(1)) - 1) * 2 % others.max(1);
    recent.clone().skip(turn).for_each(&mut put);
    recent.take(turn).for_each(&mut put);
    blocks
}
