//! Frames that a port has taken and not yet given to its device, each where it lies.

use crate::in_place::{BATCH, STEP};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A port whose committed frames lie in its memory until [`crate::Port::flush`]. Super-segments may go at once, and are none of
/// them.
pub trait Outgoing {
    /// How many frames were committed so far, modulo 2^32. Those that were taken back do not count.
    fn committed(&self) -> u32;
    /// The places of those that wait, of the ones that were committed since there were so many.
    fn waiting(&self, since: u32) -> Range<usize>;
    /// The bytes of the one at this place. No two frames share any, and they stay where they are until the flush.
    fn waiting_mut(&mut self, place: usize) -> Option<&mut [u8]>;
    /// Gives `run` the bytes of those that wait, many at a time, with the number of the first: of the ones that were committed since
    /// there were so many. It may change them.
    fn batches(&mut self, since: u32, run: &mut dyn FnMut(usize, &mut [IoSliceMut<'_>])) {
        batches(self, since, run);
    }
    /// Does not send those of these numbers, which ascend. The others keep their order.
    fn take_back(&mut self, since: u32, numbers: &mut dyn Iterator<Item = usize>);
}

/// [`Outgoing::batches`] of a port that can say where each frame lies. One that it cannot find is an empty one.
fn batches<O: Outgoing + ?Sized>(port: &mut O, since: u32, run: &mut dyn FnMut(usize, &mut [IoSliceMut<'_>])) {
    let all = port.waiting(since);
    let mut first = all.start;
    while first < all.end {
        let mut places = [const { MaybeUninit::uninit() }; BATCH];
        let count = (all.end - first).min(BATCH);
        let mut at = first;
        let mut find = |place: &mut MaybeUninit<IoSliceMut<'_>>| {
            let bytes = port.waiting_mut(at).unwrap_or_else(nothing);
            at += 1;
            // SAFETY: the bytes stay where they are, and no two frames share any (`Outgoing::waiting_mut`).
            place.write(IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr(), bytes.len()) }));
        };
        let (steps, rest) = places[..count].as_chunks_mut::<STEP>();
        for step in steps {
            step.iter_mut().for_each(&mut find);
        }
        rest.iter_mut().for_each(find);
        // SAFETY: so many were written.
        run(first - all.start, unsafe { places[..count].assume_init_mut() });
        first += count;
    }
}

/// A port finds all frames that it names.
#[cold]
#[inline(never)]
fn nothing<'a>() -> &'a mut [u8] {
    &mut []
}

/// Is this the number of the next frame that is taken back?
pub(crate) fn is_next(numbers: &mut std::iter::Peekable<&mut dyn Iterator<Item = usize>>, number: usize) -> bool {
    numbers.next_if_eq(&number).is_some()
}
