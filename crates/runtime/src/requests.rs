//! Requests of the service's threads to a thread of a stack.

use crate::client_setup::{ClientId, ClientSetup};
use crate::ended_socket::EndedSocket;
use crate::files::SharedFile;
use crate::mailbox::Doorbell;
use crate::reservation::Reservation;
use crate::stack::{PairHandle, Selectors};
use crate::status::{SocketStatus, Status};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use towpath_capture::Tap;
use towpath_capture::direct::Watch;
use towpath_modules::Chains;

/// One request; see [`crate::Stack`]. A `Sender` carries the answer. The drop of a `Sender<()>` is the answer.
pub enum Request {
    /// See [`crate::Stack::add_client`].
    AddClient(ClientSetup, Sender<io::Result<ClientId>>),
    /// See [`crate::Stack::add_context`], and with `None` [`crate::Stack::drop_context`].
    Context(ClientId, u32, Option<OwnedFd>, Sender<()>),
    /// See [`crate::Stack::reserve`].
    Reserve(ClientId, u32, u32, Reservation),
    /// See [`crate::Stack::hangup`].
    Hangup(ClientId, u32, u32),
    /// See [`crate::Stack::departed`].
    Departed(ClientId, u32),
    /// See [`crate::Stack::remove_client`].
    RemoveClient(ClientId, Sender<()>),
    /// See [`crate::Stack::add_file`].
    File(ClientId, SharedFile, Sender<io::Result<u32>>),
    /// This process of this client no longer needs a file.
    ForgetFile(ClientId, u32, u32, Sender<()>),
    /// See [`crate::Stack::policy_changed`].
    Policy(Sender<()>),
    /// See [`crate::Stack::count_refusals`].
    Refusals(Sender<()>),
    /// See [`crate::Stack::connections`].
    Connections(Sender<Vec<SocketStatus>>),
    /// See [`crate::Stack::ended`].
    Ended(Sender<Vec<EndedSocket>>),
    /// See [`crate::Stack::cut`].
    Cut(Vec<(SocketAddr, SocketAddr)>, Sender<usize>),
    /// See [`crate::Stack::pair`].
    Pair(ClientId, u32, u32, Sender<Option<PairHandle>>),
    /// See [`crate::Stack::status`].
    Status(Sender<Status>),
    /// Begins (`Some`) or ends a capture in all threads.
    Capture(Option<Taps>, Sender<()>),
    /// See [`crate::Stack::modules`]; `None` = none.
    Modules(Option<(Chains, Selectors)>, Sender<()>),
}

/// Where the threads of a stack leave frames.
pub struct Taps {
    /// By flow group and port.
    pub ports: Vec<Vec<Tap>>,
    /// For direct connections and names.
    pub other: Arc<Mutex<Watch<Tap>>>,
}

/// Sends requests to one thread.
#[derive(Clone)]
pub struct Caller {
    requests: Sender<Request>,
    doorbell: Arc<Doorbell>,
}

impl Caller {
    /// A caller of the owner of `doorbell`, and the receiving end for that thread.
    pub fn new(doorbell: Arc<Doorbell>) -> (Self, mpsc::Receiver<Request>) {
        let (requests, receiver) = mpsc::channel();
        (Self { requests, doorbell }, receiver)
    }

    /// Sends a request without waiting.
    pub fn ask(&self, request: Request) {
        // The receiver lives as long as the stack.
        let _ = self.requests.send(request);
        self.doorbell.notify_always();
    }

    /// Sends a request and waits for its answer. `None` = the thread has ended, or has dropped the sender.
    pub fn answer<T>(&self, request: impl FnOnce(Sender<T>) -> Request) -> Option<T> {
        let (reply, answer) = mpsc::channel();
        self.ask(request(reply));
        answer.recv().ok()
    }

    /// Makes the thread take a turn.
    pub fn notify_always(&self) {
        self.doorbell.notify_always();
    }

    /// [`Request::AddClient`].
    pub fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId> {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.answer(|reply| Request::AddClient(setup, reply)).ok_or_else(gone)?
    }

    /// [`Request::Context`]; returns when it is done.
    pub fn set_context(&self, client: ClientId, context: u32, wake: Option<OwnedFd>) {
        self.answer::<()>(|done| Request::Context(client, context, wake, done));
    }
}
