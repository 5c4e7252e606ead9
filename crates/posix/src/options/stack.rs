//! Options on which the stack acts. Their values are in the slot's options line, from which `getsockopt` reads them
//! too.

use core::sync::atomic::Ordering::Relaxed;
use towpath_client::socket::Socket;
use towpath_client::sys::Sys;
use towpath_client::{command, doorbell};
use towpath_ring::OptionsLine;
use towpath_ring::lines::congestion;

/// `TCP_CONGESTION` by name; ENOENT = there is no such algorithm.
pub fn congestion_of(name: &[u8]) -> Sys<u32> {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let place = congestion::NAMES.iter().position(|known| !known.is_empty() && known.as_bytes() == name);
    place.map(|place| place as u32).ok_or(libc::ENOENT)
}

/// Sets `TCP_CONGESTION`.
pub fn set_congestion(socket: &Socket, number: u32) {
    socket.options().congestion.store(number, Relaxed);
    changed(socket);
}

/// `TCP_CONGESTION` as it reads: the algorithm that was set, else the one that the stack uses.
pub fn congestion_name(socket: &Socket) -> [u8; 16] {
    let set = socket.options().congestion.load(Relaxed);
    if set != 0 {
        return name_of(set);
    }
    command::refresh(socket);
    name_of(socket.info().congestion.load(Relaxed))
}

/// An algorithm's name as `TCP_CONGESTION` shows it.
pub fn name_of(number: u32) -> [u8; 16] {
    let name = congestion::NAMES.get(number as usize).copied().unwrap_or_default();
    let mut out = [0; 16];
    out[..name.len()].copy_from_slice(name.as_bytes());
    out
}

/// The rate that `SO_MAX_PACING_RATE` sets in its 32-bit form, in bytes per second; all ones = no limit.
pub fn rate_of(rate: u32) -> u64 {
    if rate == u32::MAX { u64::MAX } else { rate.into() }
}

/// Sets `SO_MAX_PACING_RATE`, in bytes per second; all ones = no limit.
pub fn set_max_pacing(socket: &Socket, rate: u64) {
    store_max_pacing(socket.options(), rate);
    changed(socket);
}

/// Stores `SO_MAX_PACING_RATE`.
pub fn store_max_pacing(line: &OptionsLine, rate: u64) {
    let rate = if rate == u64::MAX { 0 } else { rate };
    line.pacing_low.store(rate as u32, Relaxed);
    line.pacing_high.store((rate >> 32) as u32, Relaxed);
}

/// `SO_MAX_PACING_RATE` as it reads.
pub fn max_pacing(socket: &Socket) -> u64 {
    match socket.options().read().1.max_pacing {
        0 => u64::MAX,
        rate => rate,
    }
}

/// Tells the stack that the options line has changed.
pub fn changed(socket: &Socket) {
    let line = socket.options();
    line.post(&line.read().1);
    doorbell::notify_commands(socket.session, socket.slot);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn congestion_control_is_chosen_by_name() {
        assert_eq!(congestion_of(b"cubic"), Ok(2));
        assert_eq!(congestion_of(b"bbr\0rest"), Ok(6));
        assert_eq!(congestion_of(b"vegas"), Err(libc::ENOENT));
        assert_eq!(congestion_of(b""), Err(libc::ENOENT));
    }
}
