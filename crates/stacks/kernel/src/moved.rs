//! Clients and connections on their way from one kernel stack to another.

use crate::record::ConnectionRecord;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use towpath_runtime::{ClientId, ClientSetup};

/// A connection that moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedConnection {
    /// Its slot.
    pub slot: u32,
    /// The application has closed it. Queued bytes are still to be sent.
    pub closing: bool,
    /// Our FIN is to be sent again.
    pub fin: bool,
    /// The kernel's part of its state.
    pub record: ConnectionRecord,
}

/// A client that a stack has given up.
#[derive(Debug, Default)]
pub struct GivenClient {
    /// Its connections.
    pub moved: Vec<MovedConnection>,
    /// Number of connections that could not be taken out. They are reset.
    pub lost: usize,
    /// Sockets that reserve ports: slot, number of the command, socket.
    pub reservations: Vec<(u32, u32, OwnedFd)>,
    /// While these are open, this kernel answers no packet of the connections.
    pub drop_filters: Vec<OwnedFd>,
}

/// A request to a group about a client that moves. The `Sender` carries the answer.
pub enum MoveRequest {
    /// Give a client up.
    Give(ClientId, Sender<GivenClient>),
    /// Take a client over whose region another stack has served.
    Adopt(ClientSetup, Vec<(u32, SocketAddr)>, Sender<io::Result<ClientId>>),
    /// Put connections of an adopted client into this kernel.
    Put(ClientId, Vec<MovedConnection>, Sender<usize>),
    /// Let in the packets of an adopted client.
    Open(ClientId, Sender<()>),
}
