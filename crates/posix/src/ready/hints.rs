//! Hints about the kernel half of listeners: which of them has been seen ready.
//!
//! `accept` asks the kernel half only now and then while accelerated connections wait. A hint says that it is worth
//! asking at once.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use libc::c_int;
use towpath_client::socket::Socket;
use towpath_client::sys;

/// One bit for each listener, by slot. Listeners that share one cost each other a needless question.
static SAID: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

fn bit(listener: &Socket) -> (&'static AtomicU64, u64) {
    let at = listener.number() % (64 * SAID.len() as u32);
    (&SAID[(at / 64) as usize], 1 << (at % 64))
}

/// How often waits have seen a connection in the kernel half of this listener, or of one that shares its place.
static TIMES: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];

/// A word that changes whenever a wait sees a connection in the kernel half of a listener.
pub fn times(listener: &Socket) -> &'static AtomicU32 {
    &TIMES[listener.number() as usize % TIMES.len()]
}

/// A wait has seen a connection in the kernel half of a listener.
pub fn kernel_said_ready(listener: &Socket) {
    times(listener).fetch_add(1, Ordering::Relaxed);
    let (word, bit) = bit(listener);
    if word.load(Ordering::Relaxed) & bit == 0 {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Has a wait seen a connection in the kernel half since the last [`clear`]?
pub fn has_kernel_said(listener: &Socket) -> bool {
    let (word, bit) = bit(listener);
    word.load(Ordering::Relaxed) & bit != 0
}

/// The kernel half has been found empty.
pub fn clear(listener: &Socket) {
    let (word, bit) = bit(listener);
    if word.load(Ordering::Relaxed) & bit != 0 {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Does a connection wait in the kernel half behind this descriptor, or has it ended?
pub fn kernel_is_ready(fd: c_int) -> bool {
    kernel_events(fd, libc::POLLIN as u32) != 0
}

/// The events of `interest` that the kernel half behind this descriptor has.
pub fn kernel_events(fd: c_int, interest: u32) -> u32 {
    let mut half = [libc::pollfd { fd, events: interest as i16, revents: 0 }];
    match sys::ppoll(&mut half, Some(Duration::ZERO), core::ptr::null()) {
        Ok(1) => u32::from(half[0].revents as u16),
        _ => 0,
    }
}
