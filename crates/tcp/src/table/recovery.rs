//! The line of loss recovery; touched only while something is lost or out of order.

use super::words::Word;

/// What is known of losses on a flow. One line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Recovery {
    /// Segments retransmitted.
    pub retransmits: Word,
    /// SND.UP: one beyond the newest urgent byte of the application's, if `bits::URGENT_OUT`.
    pub snd_up: Word,
    /// The newest urgent byte of the peer's, if `bits::URGENT_IN`.
    pub rcv_up: Word,
    /// What has come twice and is to be reported, if `bits::DSACK`: its first sequence number, and the one after its last.
    pub duplicate: [Word; 2],
}
