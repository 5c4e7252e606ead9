//! The messages between the two paths.

use crate::flow::{FlowId, FlowSetup, Link, PortId, Window};

/// Slow path to a fast path.
#[derive(Clone, Debug)]
pub enum ToFast {
    /// Take this flow over.
    Install(Box<FlowSetup>),
    /// Forget the flow. Answered by [`ToSlow::Removed`].
    Remove(FlowId),
    /// Congestion control's new decision.
    SetWindow(FlowId, Window),
    /// Retransmission time-out: go back to `snd_una` and send again under this window (RFC 6298 §5.4).
    Timeout(FlowId, Window),
    /// The peer's window is zero: send the byte at `snd_una`, or the FIN if only that is left. It is sent although it
    /// is outside the window, and whether or not it has been sent before (RFC 9293 §3.8.6.1).
    ProbeWindow(FlowId),
    /// The one segment that is out is not acknowledged: send something new, or it again, without judging it lost (RFC
    /// 8985 §7).
    ProbeTail(FlowId),
    /// Send an empty acknowledgement now.
    SendAck(FlowId),
    /// Send a challenge ACK, if the rate limits allow it (RFC 5961 §4.2, §7).
    Challenge(FlowId),
    /// Send a keepalive probe now: nothing, one before SND.NXT (RFC 9293 §3.8.4). Ignored if anything is outstanding.
    KeepAlive(FlowId),
    /// The path's packet size has changed: payload per packet, options not counted. If it is smaller now, what is out
    /// in larger packets is sent again (RFC 1191 §6.4).
    SetMss(FlowId, u16),
    /// `IP_TOS` (its ECN bits are ignored) and `IP_TTL` of the flow's packets from now on.
    SetService {
        /// The flow.
        flow: FlowId,
        /// DSCP in the upper six bits.
        tos: u8,
        /// Time to live.
        ttl: u8,
    },
    /// Nothing was outstanding when the slow path last looked. Clear `ACTIVE` if that is still so, else leave the flow
    /// on the list and answer [`ToSlow::Active`] again.
    Deactivate(FlowId),
    /// End the flow: send RST if `rst`, show the application the errno (positive), discard what is queued. `Remove`
    /// follows.
    Abort {
        /// The flow.
        flow: FlowId,
        /// Send RST.
        rst: bool,
        /// errno for the application; `None` = it has closed already.
        errno: Option<i32>,
    },
    /// The next hop has another MAC address.
    Relink(FlowId, Link),
    /// Classes of flows share each port in proportion to their weights, in bytes. The weight is 1 by default and at
    /// least.
    SetWeight {
        /// The class (`FlowSetup::class`).
        class: u16,
        /// Its weight.
        weight: u16,
    },
    /// The flow belongs to this class from now on (`FlowSetup::class`).
    SetClass(FlowId, u16),
    /// A limit on the payload that the flows of a class send together in this flow group.
    SetLimit {
        /// The class (`FlowSetup::class`).
        class: u16,
        /// Bytes per second; 0 = no limit.
        bytes_per_s: u64,
    },
    /// A step on the way to a splice, or from it.
    Splice(FlowId, Splicing),
    /// Send this complete frame (handshake, RST, TIME-WAIT ACK). The checksum is already right.
    Transmit(PortId, Box<[u8]>),
    /// Process this frame as if it had just been received (it came before `Install`).
    Inject(PortId, Box<[u8]>),
}

/// A fast path to the slow path.
#[derive(Clone, Debug)]
pub enum ToSlow {
    /// A valid TCP segment without an installed flow, or an ICMP error about a segment.
    Segment(PortId, Box<[u8]>),
    /// The flow has something outstanding (data, FIN, or data waiting behind a zero window) and was not on the list of
    /// active flows.
    Active(FlowId),
    /// Three duplicate acknowledgements: the fast path has retransmitted and reduced the window by `beta`.
    Loss(FlowId),
    /// The last `Loss` or time-out was needless (RFC 3522, RFC 5682, RFC 3708): the fast path has restored `cwnd` and
    /// `ssthresh`.
    Undone(FlowId),
    /// The peer has echoed a congestion mark of this window (RFC 3168 §6.1.2): the fast path has reduced the window by
    /// `beta`. Not of DCTCP flows.
    Marked(FlowId),
    /// The peer's FIN was received in order, or our FIN was acknowledged: look at the snapshot's flags.
    Closing(FlowId),
    /// A valid RST came; the application has been told.
    Reset(FlowId),
    /// The application has closed its socket; the flow drains.
    AppClosed(FlowId),
    /// The application closed with unread data, or asked for an abort: RST has been sent.
    Aborted(FlowId),
    /// The application has violated the contract: RST has been sent.
    Violated(FlowId),
    /// The answer to [`Splicing::Hold`], with its number.
    Held(FlowId, u32, Held),
    /// The flow is forgotten; its number may be used again.
    Removed(FlowId),
}

/// Steps of a flow that is to be spliced with another one: something else then handles its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Splicing {
    /// Take no new payload from now on. If nothing of the flow is left to do, it rests: it takes no segments, and the
    /// application's words are not looked at. What it does not take comes by [`ToSlow::Segment`]. Answered by [`ToSlow::Held`] with this number.
    Hold(u32),
    /// It rests no more, but takes no new payload.
    Resume,
    /// It goes on.
    Release,
    /// It is spliced: the application is told that nothing more can be sent.
    Begun,
    /// The spliced connection has ended: in order, or with this errno (positive).
    Ended(Option<i32>),
}

/// How far a flow is that was told to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Nothing is left to do: it rests.
    Resting,
    /// The application has not read everything.
    Unread,
    /// Something waits for the peer, or was sent a moment ago.
    Outstanding,
    /// It has ended, or begun to.
    Ending,
}

/// The events of a flow in a batch, for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEvent {
    /// The flow.
    pub flow: FlowId,
    /// `event` bits.
    pub what: u32,
}

/// The events of one flow, with the words that nearly always are all that its application is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// The events.
    pub event: FlowEvent,
    /// See [`AppView::tx_head`].
    pub tx_head: u32,
    /// See [`AppView::rx_tail`].
    pub rx_tail: u32,
    /// There are no events but [`event::READABLE`] and [`event::ROOM`], no end and no urgent data: the rest of the
    /// [`AppView`] is as it was.
    pub is_usual: bool,
}

/// Bits of [`FlowEvent::what`].
pub mod event {
    /// More in-order data (`AppView::rx_tail` moved).
    pub const READABLE: u32 = 1;
    /// More room in the send ring (`AppView::tx_head` moved).
    pub const ROOM: u32 = 2;
    /// The peer's FIN.
    pub const EOF: u32 = 4;
    /// Reset, aborted or timed out (`AppView::errno`).
    pub const ERROR: u32 = 8;
    /// Our FIN has been sent: no more data is taken.
    pub const TX_CLOSED: u32 = 16;
    /// Urgent data is announced (`AppView::urgent`).
    pub const URGENT: u32 = 32;
}

/// The words that are shown to the application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppView {
    /// Position up to which the send ring is acknowledged.
    pub tx_head: u32,
    /// Position up to which the receive ring holds in-order data.
    pub rx_tail: u32,
    /// errno, 0 = none: the word of the line, as it is shown.
    pub errno: i32,
    /// The peer's FIN has come.
    pub eof: bool,
    /// Our FIN has been sent.
    pub tx_closed: bool,
    /// Position of the peer's newest urgent byte in the receive stream, as Linux has it: the last byte before the
    /// urgent pointer (RFC 6093 §3); `None` = there was none. The byte itself stays in the ring.
    pub urgent: Option<u32>,
}

/// The words that the application has written. The stack reads them once, and the fast path checks them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppUpdate {
    /// Position up to which the send ring is filled.
    pub tx_tail: u32,
    /// Position up to which the receive ring is read.
    pub rx_head: u32,
    /// FIN after `tx_tail`.
    pub shut_wr: bool,
    /// Received data are dropped.
    pub shut_rd: bool,
    /// The socket is closed.
    pub closed: bool,
    /// With `closed`: RST instead of FIN.
    pub abort: bool,
    /// Nagle's algorithm is off.
    pub nodelay: bool,
    /// `TCP_CORK`: hold partial segments.
    pub cork: bool,
    /// `TCP_QUICKACK`: acknowledge at once.
    pub quickack: bool,
    /// Its marks in the send ring; `None` = there was never one.
    pub marks: Option<AppMarks>,
}

/// Positions in the send ring to which the application has given a meaning; `None` = never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppMarks {
    /// `MSG_OOB`: position after the newest urgent byte (RFC 9293 §3.8.5).
    pub urgent: Option<u32>,
    /// What stands before it goes out although `AppUpdate::cork` is set: it has been off for a moment.
    pub flush: Option<u32>,
    /// `MSG_EOR`: position after the newest record. No segment goes beyond it that begins before it.
    pub record: Option<u32>,
}

/// The application's words contradict the contract. Its connection is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContractViolation {
    /// `tx_tail` went back or is further from `tx_head` than the ring is long.
    TxTail,
    /// `rx_head` went back or passed `rx_tail`.
    RxHead,
}
