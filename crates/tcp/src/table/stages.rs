//! The stages, and which of them may write which state.
//!
//! State with one writer in this table can move to another core with its stage. State with several writers is shared
//! today, and has to become a message before.
//!
//! A stage writes its own state:
//!
//! ```
//! use towpath_tcp::table::stages::Receive;
//! use towpath_tcp::table::tcb::Tcb;
//!
//! fn acknowledge(by: Receive, t: &mut Tcb) {
//!     t.received(by);
//! }
//! ```
//!
//! Another's state does not compile:
//!
//! ```compile_fail,E0277
//! use towpath_tcp::table::stages::Egress;
//! use towpath_tcp::table::tcb::Tcb;
//!
//! fn acknowledge(by: Egress, t: &mut Tcb) {
//!     t.received(by);
//! }
//! ```
//!
//! ```compile_fail,E0277
//! use towpath_tcp::table::stages::Receive;
//! use towpath_tcp::table::tcb::Tcb;
//!
//! fn sent_more(by: Receive, t: &mut Tcb) {
//!     t.sent(by);
//! }
//! ```
//!
//! A stage hands a flow to those stages alone that its table names:
//!
//! ```
//! use towpath_tcp::table::stages::{Egress, Loss};
//!
//! fn sent_again(by: Egress) -> Loss {
//!     Loss::from(by)
//! }
//! ```
//!
//! ```compile_fail,E0277
//! use towpath_tcp::table::stages::{Loss, Post};
//!
//! fn decides(by: Post) -> Loss {
//!     Loss::from(by)
//! }
//! ```
//!
//! A function of one stage cannot be called for another, and no stage can be made up:
//!
//! ```compile_fail,E0308
//! use towpath_tcp::table::stages::{Egress, Post};
//!
//! fn schedule(_: Post) {}
//!
//! fn end_of_turn(by: Egress) {
//!     schedule(by);
//! }
//! ```
//!
//! ```compile_fail,E0423
//! let forged = towpath_tcp::table::stages::Receive(());
//! ```

use super::bits::{AckDebt, Agreed, AppFlags, LossFlags, QueueFlags, ReceiveFlags, Reports, Requests, Timing};
use super::permit::{Part, Permit, Writes};
use super::tcb::{
    Advertised, Ahead, Congestion, DuplicateAcks, DuplicatesOwed, Next, PeerSegment, PeerWindow, Received, Room,
    SegmentSize, Sent, Written,
};

macro_rules! stage {
    ($(#[$doc:meta])* $name:ident writes [$($part:ident)*], hands to [$($to:ident)*]) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name(());
        impl Permit for $name {
            const WORDS: u16 = 0 $(| <$part as Part>::WORDS)* $(| <$to as Permit>::WORDS)*;
        }
        $(impl Writes<$part> for $name {})*
        $(impl From<$name> for $to {
            #[inline(always)]
            fn from(_: $name) -> Self {
                Self(())
            }
        })*
    };
}

stage! {
    /// Segments of the peer: `protocol`, `acknowledge`, `ecn`, `report`.
    Receive writes [
        Received PeerSegment Ahead ReceiveFlags
        Next Advertised Room PeerWindow AckDebt DuplicatesOwed Reports
    ], hands to [Loss Close]
}
stage! {
    /// The congestion window, and what is lost: `recovery`, `rack`, `hystart`.
    Loss writes [Congestion DuplicateAcks LossFlags Timing Next Requests Reports], hands to []
}
stage! {
    /// When a flow gets a turn to send: `post`, `pace`, and the scheduler.
    Post writes [QueueFlags AckDebt Reports], hands to []
}
stage! {
    /// Segments for the peer: `egress`.
    Egress writes [Sent Next Advertised PeerWindow AckDebt DuplicatesOwed Requests Reports], hands to [Loss Post Close]
}
stage! {
    /// The words of the application: `app`. A reply that goes at once is handed to egress.
    Application writes [Written Room AppFlags AckDebt Requests Reports], hands to [Loss Post Close Egress]
}
stage! {
    /// The messages of the slow path: `control`.
    Control writes [SegmentSize Agreed Requests AckDebt Reports], hands to [Loss Post Close]
}
stage! {
    /// The end of a flow: `close`.
    Close writes [Ahead Agreed AckDebt DuplicatesOwed Requests Reports], hands to [Loss Post]
}

/// The beginning of a flow: writes all of it.
#[derive(Clone, Copy, Debug)]
pub struct Install(());

impl Permit for Install {
    const WORDS: u16 = u16::MAX;
}
impl<State> Writes<State> for Install {}

impl Part for PeerWindow {
    /// It is not in the protocol line.
    const WORDS: u16 = 0;
}

/// The stages that something outside of the fast path sets to work. Made once, by [`crate::fast::FastPath`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permits {
    /// For frames.
    pub receive: Receive,
    /// For the words of an application.
    pub application: Application,
    /// For messages of the slow path.
    pub control: Control,
    /// For a flow's installation.
    pub install: Install,
    /// For deadlines of loss recovery.
    pub loss: Loss,
    /// For deadlines of acknowledgements and pacing, and after the other stages.
    pub post: Post,
    /// For a turn to send.
    pub egress: Egress,
}

impl Permits {
    pub(crate) const fn issue() -> Self {
        Self {
            receive: Receive(()),
            application: Application(()),
            control: Control(()),
            install: Install(()),
            loss: Loss(()),
            post: Post(()),
            egress: Egress(()),
        }
    }
}
