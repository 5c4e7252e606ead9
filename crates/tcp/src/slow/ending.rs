//! How a connection has ended. The host is told once for each ([`super::Host::ended`]).

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
    /// The application is gone, and what it left was not acknowledged in time.
    Left,
    /// The peer does not answer. The errno (positive) is the network's last word, or ETIMEDOUT.
    NoAnswer(i32),
    /// The operator has ended it.
    Cut,
    /// It was not established, for this errno (positive).
    NotOpened(i32),
}
