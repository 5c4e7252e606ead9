//! By how much the window has to grow before the peer is told.

/// The largest growth of the window that may be kept back (RFC 9293 §3.8.6.2.2). The fraction of the buffer is 1/4, for
/// segments larger than that.
///
/// The application notifies for each quarter of the ring that it has read. A growth below that and a growth below this
/// are together less than the half for which a sender waits (§3.8.6.2.1). So an application that has read everything
/// never leaves its peer to the persist timer.
pub(super) fn step_max(rx_bytes: u32) -> u32 {
    (rx_bytes / 4).max((2 * 1460).min(rx_bytes / 2))
}
