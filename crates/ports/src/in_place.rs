//! Many received frames at a time, each where it lies.

use crate::{Port, RxFrame};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;

/// Most frames of a batch.
pub(crate) const BATCH: usize = 64;
/// Frames of a step of the loop that finds them, which would cost more than what is in it.
pub(crate) const STEP: usize = 8;

/// [`Port::batches_in_place`] of a port that can say where each frame lies.
pub fn batches<P: Port + ?Sized>(
    port: &mut P,
    frames: &mut Vec<RxFrame>,
    from: usize,
    run: &mut dyn FnMut(usize, &mut [IoSliceMut<'_>]),
) {
    let mut first = from;
    while first < frames.len() {
        let mut places = [const { MaybeUninit::uninit() }; BATCH];
        let found = find(port, &frames[first..], &mut places);
        if found == 0 {
            take_out(frames, first);
            continue;
        }
        // SAFETY: so many were found.
        run(first, unsafe { places[..found].assume_init_mut() });
        first += found;
    }
}

#[cold]
#[inline(never)]
fn take_out(frames: &mut Vec<RxFrame>, place: usize) {
    frames.remove(place);
}

/// Finds frames up to the first that is not there. Returns how many.
#[inline]
fn find<P: Port + ?Sized>(
    port: &mut P,
    frames: &[RxFrame],
    places: &mut [MaybeUninit<IoSliceMut<'_>>; BATCH],
) -> usize {
    let mut find = |place: &mut MaybeUninit<IoSliceMut<'_>>, frame| {
        let bytes = port.bytes_mut(frame)?;
        // SAFETY: the bytes stay where they are until the frame is released, and no two frames share any (`Port::bytes_mut`).
        place.write(IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr(), bytes.len()) }));
        Some(())
    };
    let mut found = 0;
    'steps: for (places, frames) in places.as_chunks_mut::<STEP>().0.iter_mut().zip(frames.as_chunks::<STEP>().0) {
        for (place, frame) in places.iter_mut().zip(frames) {
            if find(place, frame).is_none() {
                break 'steps;
            }
            found += 1;
        }
    }
    for (place, frame) in places[found..].iter_mut().zip(&frames[found..]) {
        if find(place, frame).is_none() {
            break;
        }
        found += 1;
    }
    found
}
