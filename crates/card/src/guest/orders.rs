//! What the host orders: clients, their sockets' ends, the policy, questions. The kernel stack does it.

use super::ask::Places;
use super::post::Post;
use super::reservations::Reservations;
use crate::message::{FromCard, ToCard};
use crate::named::Named;
use crate::pieces::{self, Pieces};
use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use towpath_kernel::Kernel;
use towpath_ring::{Region, wake};
use towpath_stack::execute::execute;
use towpath_stack::{ClientId, ClientSetup, Cores, Executed, Far, SharedFile, Stack, Status};

/// What a client is served from here.
pub struct Client {
    /// Its region.
    pub region: Arc<Region>,
    /// What is rung when it has rung: of its doors, of its commands.
    pub doorbells: Vec<OwnedFd>,
    /// How it is woken. Dropped when the stack has forgotten it.
    pub far: Arc<dyn Far>,
}

/// What this side and the host share.
pub trait Shared: Send {
    /// The client in a place.
    fn client(&self, place: u32) -> io::Result<Client>;
    /// Repeats what the host writes until it has been quiet for so long.
    fn echo(&self, _: Duration) {}
    /// Tells whoever looks after this side.
    fn complain(&self, why: &str) {
        tracing::warn!("{why}");
    }
    /// The root of the host's files, if they are here under the same names.
    fn hosts_files(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// May the host have programs run here?
    fn may_run(&self) -> bool {
        true
    }
}

/// The card's side of the service.
pub struct Server {
    messages: Arc<dyn Post>,
    shared: Box<dyn Shared>,
    stack: Arc<Kernel>,
    reservations: Arc<Reservations>,
    /// The stack's numbers of the clients, by place.
    clients: HashMap<u32, ClientId>,
    places: Places,
    /// Connections that are coming.
    pieces: Pieces,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.reservations.end();
    }
}

impl Server {
    /// Without clients.
    pub fn new(
        messages: Arc<dyn Post>,
        shared: Box<dyn Shared>,
        stack: Arc<Kernel>,
        places: Places,
    ) -> io::Result<Self> {
        let reservations = Reservations::start(Arc::clone(&messages))?;
        Ok(Self { messages, shared, stack, reservations, clients: HashMap::new(), places, pieces: Pieces::default() })
    }

    /// Until the host is gone or says stop.
    pub fn work(&mut self, work: &Receiver<(u32, ToCard)>) {
        while let Ok((number, message)) = work.recv() {
            if message == ToCard::Stop {
                return;
            }
            let Some(answer) = self.act(number, message) else { continue };
            if self.messages.send(number, &answer).is_err() {
                return;
            }
        }
    }

    /// Does what a message says; the answer, if there is one already.
    fn act(&mut self, number: u32, message: ToCard) -> Option<FromCard> {
        let known = |place: &u32| self.clients.get(place).copied();
        match message {
            ToCard::Add { place, uid, pid, name } => {
                return Some(self.serve(place, (uid, pid, name), |stack, setup| stack.add_client(setup)));
            }
            ToCard::Adopt { place, uid, pid, name, moved } => {
                return Some(self.serve(place, (uid, pid, name), |stack, setup| stack.adopt(setup, moved)));
            }
            ToCard::Record(piece) => self.pieces.add(piece),
            ToCard::Put { place } => {
                let moved = self.pieces.take(place);
                let failed = known(&place).map_or(moved.len(), |client| self.stack.put(client, moved.clone()));
                return Some(FromCard::Put { failed: failed as u32 });
            }
            ToCard::Give { place } => return Some(self.give(place)),
            ToCard::Open { place } => {
                known(&place).into_iter().for_each(|client| self.stack.open(client));
                return Some(FromCard::Done);
            }
            ToCard::Context { place, context, open } => {
                match known(&place) {
                    // Nobody rings it: `Far` does.
                    Some(client) if open => self.stack.add_context(client, context, wake::doorbell().ok()?),
                    Some(client) => self.stack.drop_context(client, context),
                    None => {}
                }
                return Some(FromCard::Done);
            }
            ToCard::Reserve { place, slot, seq } => {
                let kept = known(&place).zip(self.reservations.add(place, slot, seq).ok());
                let (client, kept) = kept?;
                self.stack.reserve(client, slot, seq, kept);
            }
            ToCard::Hangup { place, slot, generation } => self.stack.hangup(known(&place)?, slot, generation),
            ToCard::Departed { place, process } => self.stack.departed(known(&place)?, process),
            ToCard::Remove { place } => {
                let client = self.clients.remove(&place)?;
                self.stack.remove_client(client);
            }
            ToCard::Policy => {
                self.stack.policy_changed();
                return Some(FromCard::Done);
            }
            ToCard::Connections => return Some(FromCard::Connections(self.connections())),
            ToCard::Status => return Some(FromCard::Status(Box::new(self.status()))),
            ToCard::Echo { quiet_us } => {
                self.shared.echo(Duration::from_micros(quiet_us.into()));
                return Some(FromCard::Done);
            }
            ToCard::File { place, process, replaces, named } => {
                return Some(self.file(known(&place)?, process, replaces, &named));
            }
            ToCard::Run { .. } if !self.shared.may_run() => return Some(FromCard::Failed { errno: libc::EPERM }),
            ToCard::Run { words } => self.run(number, words),
            ToCard::Cores { running } => return Some(self.cores(running)),
            ToCard::Verdict(_) | ToCard::Limit(_) | ToCard::Stop => {}
        }
        None
    }

    fn serve(
        &mut self,
        place: u32,
        (uid, pid, name): (u32, i32, String),
        begin: impl FnOnce(&Kernel, ClientSetup) -> io::Result<ClientId>,
    ) -> FromCard {
        let make = || -> io::Result<ClientSetup> {
            let Client { region, doorbells, far } = self.shared.client(place)?;
            Ok(ClientSetup { region, doorbells, uid, pid, name, far: Some(far) })
        };
        match make().and_then(|setup| begin(&self.stack, setup)) {
            Ok(client) => {
                self.clients.insert(place, client);
                let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
                // The host gives a place again only when the stack has forgotten who had it.
                places.retain(|_, other| *other != place);
                places.insert(client, place);
                FromCard::Done
            }
            Err(error) => {
                self.shared.complain(&format!("a client cannot be served: {error}"));
                FromCard::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) }
            }
        }
    }

    /// Opens a file of the host's and has the stack take it in.
    fn file(&self, client: ClientId, process: u32, replaces: u32, named: &Named) -> FromCard {
        // As long as the file is open here, this kernel believes that it is as it was.
        self.stack.forget_file(client, process, replaces);
        let root = self.shared.hosts_files().ok_or_else(|| io::ErrorKind::Unsupported.into());
        let file = root.and_then(|root| named.open(root));
        let number = file.and_then(|file| self.stack.add_file(client, SharedFile { process, replaces, file }));
        number.map_or_else(
            |error| FromCard::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) },
            |file| FromCard::File { file },
        )
    }

    /// Gives a client up; its connections go before the answer.
    fn give(&mut self, place: u32) -> FromCard {
        let Some(client) = self.clients.remove(&place) else { return FromCard::Given { lost: 0 } };
        let given = self.stack.give(client);
        for piece in given.moved.iter().flat_map(|moved| pieces::cut(place, moved)) {
            let _ = self.messages.send(0, &FromCard::Record(piece));
        }
        // Nobody answers for them for as long as their address is here: the host takes that away first, so the shields can go.
        FromCard::Given { lost: given.lost as u32 }
    }

    /// Has so many threads run, if a number is said; how many do.
    fn cores(&self, running: Option<u32>) -> FromCard {
        if let Some(Err(error)) = running.map(|running| self.stack.set_cores(running as usize)) {
            return FromCard::Failed { errno: error.raw_os_error().unwrap_or(libc::EINVAL) };
        }
        let Cores { running, most } = self.stack.cores();
        FromCard::Cores { running: running as u32, most: most as u32 }
    }

    /// The place of a client as the number that the host knows it by.
    fn numbered(&self, client: ClientId) -> Option<ClientId> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).get(&client).copied().map(ClientId)
    }

    fn connections(&self) -> Vec<towpath_stack::Connection> {
        let mut all = self.stack.connections();
        all.iter_mut().for_each(|one| one.client = one.client.and_then(|client| self.numbered(client)));
        all
    }

    fn status(&self) -> Status {
        let mut status = self.stack.status();
        status.clients.retain_mut(|client| match self.numbered(client.id) {
            Some(place) => {
                client.id = place;
                true
            }
            None => false,
        });
        status
    }

    /// Runs a program beside everything else; its answer comes when it has ended.
    fn run(&self, number: u32, words: Vec<String>) {
        let messages = Arc::clone(&self.messages);
        let run = move || {
            let answer = match execute(&words) {
                Ok(Executed { code, out, err }) => FromCard::Ran { code, out, err },
                Err(error) => FromCard::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) },
            };
            let _ = messages.send(number, &answer);
        };
        if std::thread::Builder::new().name("run".into()).spawn(run).is_err() {
            let _ = self.messages.send(number, &FromCard::Failed { errno: libc::EAGAIN });
        }
    }
}
