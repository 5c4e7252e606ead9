//! A flow's flags: one byte for each owner, each a type of its own.

use super::permit::Part;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The 32-bit words of the protocol line with [`super::tcb::Marks`].
pub(super) const MARKS: u16 = 0b11 << 14;

/// A set of flags of one owner.
pub(crate) trait FlagSet: Copy {
    /// No flag.
    const EMPTY: Self;
    /// All of these are set.
    fn has(self, flags: Self) -> bool;
    /// Some of these are set.
    fn any(self, flags: Self) -> bool;
    fn set(&mut self, flags: Self);
    fn clear(&mut self, flags: Self);
}

/// Makes a set of flags that lies in the 32-bit words `$words` of the protocol line.
macro_rules! flags {
    ($(#[$doc:meta])* $name:ident in $words:expr => $($(#[$about:meta])* $flag:ident = $value:expr;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
        #[repr(transparent)]
        pub struct $name(pub(super) u8);

        impl $name {
            /// These flags too. For constants, where `|` does not work.
            #[inline(always)]
            pub(crate) const fn and(self, flags: Self) -> Self {
                Self(self.0 | flags.0)
            }
        }

        impl FlagSet for $name {
            const EMPTY: Self = Self(0);
            #[inline(always)]
            fn has(self, flags: Self) -> bool {
                self.0 & flags.0 == flags.0
            }
            #[inline(always)]
            fn any(self, flags: Self) -> bool {
                self.0 & flags.0 != 0
            }
            #[inline(always)]
            fn set(&mut self, flags: Self) {
                self.0 |= flags.0;
            }
            #[inline(always)]
            fn clear(&mut self, flags: Self) {
                self.0 &= !flags.0;
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            #[inline(always)]
            fn bitor(self, flags: Self) -> Self {
                self.and(flags)
            }
        }

        impl Part for $name {
            const WORDS: u16 = $words;
        }

        $($(#[$about])* pub(crate) const $flag: $name = $name($value);)*
    };
}

flags! {
    /// The peer's signals.
    ReceiveFlags in MARKS =>
    /// The peer's FIN was received in order.
    FIN_RECEIVED = 1;
    /// The peer's FIN came before the application wanted ours.
    PASSIVE_CLOSE = 2;
    /// Our FIN has been acknowledged.
    FIN_ACKED = 4;
    /// Acknowledgements carry ECE: until CWR comes, or as long as marks come (`DCTCP.CE`).
    ECN_ECHO = 8;
    /// `Recovery::rcv_up` is valid.
    URGENT_IN = 16;
    /// The receive ring has memory up to `Seldom::trimmed_to` and no further.
    TRIMMED = 32;
    /// No new payload is taken: the flow is to be spliced.
    HELD = 64;
    /// It rests as nothing of it is left to do: `DEAD`, but it may go on while it is `HELD`.
    RESTING = 128;
}

flags! {
    /// The application's wishes.
    AppFlags in MARKS =>
    /// A FIN after the last byte.
    FIN_WANTED = 1;
    /// The socket is closed.
    APP_CLOSED = 2;
    /// Nagle's algorithm is off.
    NODELAY = 4;
    /// Partial segments are held back.
    CORK = 8;
    /// `TCP_QUICKACK`: acknowledge at once.
    QUICKACK = 16;
    /// Received data are not wanted.
    SHUT_RD = 32;
    /// The application has aborted: RST follows what may go now.
    ABORTING = 64;
    /// What is queued before `Seldom::flush` goes out although `CORK` is set.
    PUSHED = 128;
}

flags! {
    /// The queues that the flow is in, and what holds it back.
    QueueFlags in MARKS =>
    /// In the queue of its class.
    SCHEDULED = 1;
    /// In its port's queue of flows that bypass the rate limits.
    BYPASSING = 2;
    /// In the queue of delayed acknowledgements.
    DELAYED = 4;
    /// The rate limit of the class holds data back.
    LIMIT_WAIT = 8;
    /// Pacing holds data back.
    PACE_WAIT = 16;
    /// Paced: `Rate::pacing` is not 0.
    PACED = 32;
    /// Had more to send at the end of its last turn than pacing, its quota or its port let go.
    PACE_LATE = 64;
    /// Removed, but still in one of the queues.
    REMOVING = 128;
}

flags! {
    /// Reports to the stack's thread and to the slow path.
    Reports in MARKS =>
    /// The events that the stack's thread has not yet taken (`messages::event`).
    EVENTS = 0x3f;
    /// On the slow path's list of flows with something outstanding (`ToSlow::Active`).
    ACTIVE = 64;
    /// Our FIN has been sent (`event::TX_CLOSED`).
    FIN_SENT = 128;
}

impl Reports {
    /// These events.
    #[inline(always)]
    pub(crate) const fn of(events: u32) -> Self {
        Self(events as u8 & EVENTS.0)
    }
    /// The events in it.
    #[inline(always)]
    pub(crate) fn events(self) -> u32 {
        u32::from(self.0 & EVENTS.0)
    }
}

flags! {
    /// Options that were agreed when the flow was installed, and its end.
    Agreed in MARKS =>
    /// Timestamps (RFC 7323).
    TIMESTAMPS = 1;
    /// Selective acknowledgements (RFC 2018).
    SACK = 2;
    /// Explicit congestion notification (RFC 3168).
    ECN = 4;
    /// RFC 8257 instead of RFC 3168, if `ECN`.
    ECN_DCTCP = 8;
    /// The addresses are IPv6: they are in the line `Addresses`.
    V6 = 16;
    /// Frames are tagged with `Addresses::vlan`.
    VLAN = 32;
    /// Reset or aborted: segments are ignored until removal.
    DEAD = 64;
    /// Window scaling (RFC 7323).
    WSCALE = 128;
}

flags! {
    /// Acknowledgements owed to the peer. Other stages incur the debt, egress pays it.
    AckDebt in MARKS =>
    /// An acknowledgement goes out in this turn, alone if no data does.
    ACK_NOW = 1;
    /// An acknowledgement is owed. It may wait for data to carry it.
    ACK_OWED = 2;
    /// `Recovery::duplicate` is to be reported (RFC 2883).
    DSACK = 4;
    /// `Rate::ecn_edges` are to be acknowledged: one.
    ECN_EDGE = 8;
    /// Two of them.
    ECN_EDGES = 24;
}

impl AckDebt {
    /// How many of `Rate::ecn_edges` are to be acknowledged.
    pub(crate) fn edges(self) -> u8 {
        (self.0 & ECN_EDGES.0).count_ones() as u8
    }
}

flags! {
    /// Requests to egress. Other stages ask, egress clears the request when it is done.
    Requests in MARKS =>
    /// A RST.
    RESET = 1;
    /// The first unacknowledged segment again.
    RESEND = 2;
    /// A window probe.
    PROBE = 4;
    /// A keepalive probe.
    KEEPALIVE = 8;
    /// A tail probe (RFC 8985 §7).
    TAIL = 16;
    /// The segments that the scoreboard says are lost.
    LOST = 32;
    /// CWR on the next new segment.
    ECN_CWR = 64;
    /// The urgent pointer: `Recovery::snd_up` may be ahead of what is acknowledged.
    URGENT_OUT = 128;
}

flags! {
    /// The measurement of the round trip: four bits. Nearly every segment changes it, so it stands in the word that nearly every
    /// segment changes.
    Timing in MARKS =>
    /// A segment is being timed (`Measures::rtt_seq`).
    TIMING = 1;
}

flags! {
    /// The state of loss recovery.
    LossFlags in 1 << 13 =>
    /// In loss recovery.
    RECOVERY = 1;
    /// `Identity::recover` is valid.
    RECOVER_SET = 2;
    /// `Recovery::scoreboard` is the flow's scoreboard.
    TRACKED = 4;
    /// `Recovery::left` is not 0.
    SCORED = 8;
    /// The last reduction can be undone.
    UNDO = 16;
    /// `Rate::ecn_recover` is valid.
    ECN_REDUCED = 64;
    /// `Seldom` has marks of the application ahead: `PUSHED`, or ends of records. It stands here beside `SCORED`, so
    /// that both are asked for at once.
    MARKED = 128;
}
