//! How a connection has ended. The host is told once for each ([`super::Host::ended`]).

use super::errno::{ECONNABORTED, ECONNRESET, ENOBUFS, ETIMEDOUT};
use towpath_probes::End;

/// What has ended a connection. The first reason counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both sides have closed, the peer first.
    PeerClosed,
    /// Both sides have closed, this one first.
    Closed,
    /// This side has closed, and the peer's FIN has not come in time.
    NoFin,
    /// The peer's RST.
    PeerReset,
    /// The application has closed with unread data, or wanted a RST.
    Aborted,
    /// The application has violated the contract.
    Violation,
    /// The application has said that the other end of its direct connection violated the contract. Nobody has checked that.
    Accuser,
    /// The application is gone, and what it left was not acknowledged in time.
    Left,
    /// The application is gone, and what it left was not kept: there was no room, or its words made no sense.
    NotKept,
    /// The peer does not answer. The errno (positive) is the network's last word, or ETIMEDOUT.
    NoAnswer(i32),
    /// The operator has ended it.
    Cut,
    /// The peers of both ends of a splice have closed.
    PeersClosed,
    /// What translated a splice is gone, or could not follow a new path.
    SpliceLost,
    /// The other end of the splice has ended, without order.
    OtherEnd,
    /// It was not established, for this errno (positive).
    NotOpened(i32),
    /// The application has closed it, or is gone, before it was established.
    Abandoned,
}

impl Ending {
    /// As tracers and the flight recorder have it, with the errno (positive) or 0.
    pub fn in_short(self) -> (End, i32) {
        match self {
            Self::PeerClosed | Self::Closed | Self::PeersClosed => (End::Orderly, 0),
            Self::NoFin | Self::Left => (End::GivenUp, ETIMEDOUT),
            Self::NotKept => (End::GivenUp, ENOBUFS),
            Self::NoAnswer(errno) => (End::GivenUp, errno),
            Self::Cut | Self::SpliceLost => (End::GivenUp, ECONNABORTED),
            Self::OtherEnd => (End::GivenUp, ECONNRESET),
            Self::PeerReset => (End::PeerReset, 0),
            Self::Aborted | Self::Violation | Self::Accuser => (End::Aborted, 0),
            Self::NotOpened(errno) => (End::Failed, errno),
            Self::Abandoned => (End::Failed, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tracers and the flight recorder blame the application only for what it has done.
    #[test]
    fn an_end_in_short_names_who_has_ended_it() {
        let table = [
            (Ending::PeerClosed, End::Orderly, 0),
            (Ending::Closed, End::Orderly, 0),
            (Ending::PeersClosed, End::Orderly, 0),
            (Ending::PeerReset, End::PeerReset, 0),
            (Ending::Aborted, End::Aborted, 0),
            (Ending::Violation, End::Aborted, 0),
            (Ending::Accuser, End::Aborted, 0),
            (Ending::NoFin, End::GivenUp, ETIMEDOUT),
            (Ending::Left, End::GivenUp, ETIMEDOUT),
            (Ending::NotKept, End::GivenUp, ENOBUFS),
            (Ending::NoAnswer(113), End::GivenUp, 113),
            (Ending::Cut, End::GivenUp, ECONNABORTED),
            (Ending::SpliceLost, End::GivenUp, ECONNABORTED),
            (Ending::OtherEnd, End::GivenUp, ECONNRESET),
            (Ending::NotOpened(111), End::Failed, 111),
            (Ending::Abandoned, End::Failed, 0),
        ];
        for (ending, end, errno) in table {
            assert_eq!(ending.in_short(), (end, errno), "{ending:?}");
        }
    }
}
