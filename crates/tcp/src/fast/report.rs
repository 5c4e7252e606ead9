//! What the receiver reports beside the acknowledgement number: SACK blocks (RFC 2018 §4) and what has come twice (RFC 2883).

use super::out_of_order::OutOfOrder;
use crate::flow::flow_flags::SACK;
use crate::seq::Seq;
use crate::table::{Lines, Tcb, bits};
use towpath_wire::segment::SackBlocks;

/// Remembers that `start..end` has come although it was there.
#[cold]
pub(super) fn duplicate(t: &mut Tcb, lines: &Lines, start: Seq, end: Seq) {
    if !t.has(SACK) || !start.before(end) {
        return;
    }
    let [first, last] = &lines.recovery.duplicate;
    // Neighbours of one batch are reported as one.
    if !t.has(bits::DSACK) || last.get() != start.0 {
        first.set(start.0);
    }
    last.set(end.0);
    t.flags |= bits::DSACK;
}

/// The blocks of a segment that has room for `room` of them.
///
/// One acknowledgement goes out for each segment that has come ahead of a hole, but all those of a batch are made when the batch is
/// over. The newest range stands first in each of them (RFC 2018 §4), and they take turns in naming the others.
#[cold]
pub(super) fn blocks(t: &Tcb, lines: &Lines, out_of_order: &OutOfOrder, room: usize) -> SackBlocks {
    let mut blocks = SackBlocks::default();
    if !t.has(SACK) || room == 0 {
        return blocks;
    }
    let ranges = out_of_order.peek(t.out_of_order);
    let mut named = None;
    let mut left = room;
    let mut put = |(start, end): (Seq, Seq)| {
        if left != 0 {
            blocks.push(start.0, end.0);
            left -= 1;
        }
    };
    if t.has(bits::DSACK) {
        let [first, last] = &lines.recovery.duplicate;
        put((Seq(first.get()), Seq(last.get())));
        // RFC 2883 §4.2: the range that it is a part of stands second.
        named = ranges.and_then(|ranges| ranges.around(Seq(first.get())));
        if let Some(range) = named {
            put(range);
        }
    }
    let Some(ranges) = ranges else { return blocks };
    let mut recent = ranges.recent().filter(|range| Some(*range) != named);
    if named.is_none()
        && let Some(newest) = recent.next()
    {
        put(newest);
    }
    let others = ranges.len() - 1.min(ranges.len());
    let turn = (usize::from(t.acks.due().max(1)) - 1) * 2 % others.max(1);
    recent.clone().skip(turn).for_each(&mut put);
    recent.take(turn).for_each(&mut put);
    blocks
}
