//! Carries out the host's messages with the kernel stack.

use crate::chunks::{self, RecordChunks};
use crate::file_id::FileId;
use crate::lock::lock;
use crate::message::{ToHost, ToStack};
use crate::server::policy::ClientIndexes;
use crate::server::reservations::Reservations;
use crate::server::sender::MessageSender;
use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use towpath_kernel::Kernel;
use towpath_ring::{Region, wake};
use towpath_runtime::execute::execute;
use towpath_runtime::{ClientId, ClientNamespace, ClientSetup, Executed};
use towpath_runtime::{RemoteWaker, SharedFile, Stack, Status, WorkerCount};

/// The resources by which a client is served here.
pub struct ServerClient {
    /// Its region.
    pub region: Arc<Region>,
    /// Doorbells that the stack sleeps on: of the dirty set, of the command queue.
    pub doorbells: Vec<OwnedFd>,
    /// Wakes the client. Dropped when the stack has forgotten the client.
    pub waker: Arc<dyn RemoteWaker>,
}

/// The server's environment: a guest, or a process on a remote host.
pub trait Environment: Send {
    /// The resources of a client, by the index of its region.
    fn client(&self, index: u32) -> io::Result<ServerClient>;
    /// Repeats the host's word in shared memory until it has not changed for this long.
    fn echo(&self, _: Duration) {}
    /// Reports a problem to the operator of this side.
    fn report(&self, why: &str) {
        tracing::warn!("{why}");
    }
    /// The root of the host's files, if they are visible here under the same names.
    fn host_files(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// True if the host may run programs here.
    fn may_run(&self) -> bool {
        true
    }
}

/// Serves the host's messages.
pub struct Server {
    messages: Arc<dyn MessageSender>,
    shared: Box<dyn Environment>,
    stack: Arc<Kernel>,
    reservations: Arc<Reservations>,
    /// The stack's numbers of the clients, by index.
    clients: HashMap<u32, ClientId>,
    indexes: ClientIndexes,
    /// Connection records that are arriving.
    chunks: RecordChunks,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.reservations.end();
    }
}

impl Server {
    /// Without clients.
    pub fn new(
        messages: Arc<dyn MessageSender>,
        shared: Box<dyn Environment>,
        stack: Arc<Kernel>,
        indexes: ClientIndexes,
    ) -> io::Result<Self> {
        let reservations = Reservations::start(Arc::clone(&messages))?;
        Ok(Self {
            messages,
            shared,
            stack,
            reservations,
            clients: HashMap::new(),
            indexes,
            chunks: RecordChunks::default(),
        })
    }

    /// Serves messages until the host is gone or sends `Stop`.
    pub fn work(&mut self, work: &Receiver<(u32, ToStack)>) {
        while let Ok((number, message)) = work.recv() {
            if message == ToStack::Stop {
                return;
            }
            let Some(answer) = self.execute(number, message) else { continue };
            if self.messages.send(number, &answer).is_err() {
                return;
            }
        }
    }

    /// Carries a message out. Returns the answer, if there is one already.
    fn execute(&mut self, number: u32, message: ToStack) -> Option<ToHost> {
        let known = |index: &u32| self.clients.get(index).copied();
        match message {
            ToStack::Add { index, uid, pid, name } => {
                return Some(self.serve(index, (uid, pid, name), |stack, setup| stack.add_client(setup)));
            }
            ToStack::Adopt { index, uid, pid, name, moved } => {
                return Some(self.serve(index, (uid, pid, name), |stack, setup| stack.adopt(setup, moved)));
            }
            ToStack::Record(chunk) => self.chunks.add(chunk),
            ToStack::Put { index } => {
                let moved = self.chunks.take(index);
                let failed = known(&index).map_or(moved.len(), |client| self.stack.put(client, moved.clone()));
                return Some(ToHost::Put { failed: failed as u32 });
            }
            ToStack::Give { index } => return Some(self.give_up(index)),
            ToStack::Open { index } => {
                known(&index).into_iter().for_each(|client| self.stack.open(client));
                return Some(ToHost::Done);
            }
            ToStack::Context { index, context, open } => {
                match known(&index) {
                    // This doorbell is never notified: the remote waker does that.
                    Some(client) if open => self.stack.add_context(client, context, wake::doorbell().ok()?),
                    Some(client) => self.stack.drop_context(client, context),
                    None => {}
                }
                return Some(ToHost::Done);
            }
            ToStack::Reserve { index, slot, seq } => {
                let kept = known(&index).zip(self.reservations.add(index, slot, seq).ok());
                let (client, kept) = kept?;
                self.stack.reserve(client, slot, seq, kept.into());
            }
            ToStack::Hangup { index, slot, generation } => self.stack.hangup(known(&index)?, slot, generation),
            ToStack::Departed { index, process } => self.stack.departed(known(&index)?, process),
            ToStack::Remove { index } => {
                let client = self.clients.remove(&index)?;
                self.stack.remove_client(client);
            }
            ToStack::Policy => {
                self.stack.policy_changed();
                return Some(ToHost::Done);
            }
            ToStack::Connections => return Some(ToHost::Connections(self.connections())),
            ToStack::Status => return Some(ToHost::Status(Box::new(self.status()))),
            ToStack::Echo { quiet_us } => {
                self.shared.echo(Duration::from_micros(quiet_us.into()));
                return Some(ToHost::Done);
            }
            ToStack::File { index, process, replaces, named } => {
                return Some(self.file(known(&index)?, process, replaces, &named));
            }
            ToStack::Run { .. } if !self.shared.may_run() => return Some(ToHost::Failed { errno: libc::EPERM }),
            ToStack::Run { words } => self.run(number, words),
            ToStack::Workers { running } => return Some(self.cores(running)),
            ToStack::Verdict(_) | ToStack::Limit(_) | ToStack::Stop => {}
        }
        None
    }

    fn serve(
        &mut self,
        index: u32,
        (uid, pid, name): (u32, i32, String),
        begin: impl FnOnce(&Kernel, ClientSetup) -> io::Result<ClientId>,
    ) -> ToHost {
        let make = || -> io::Result<ClientSetup> {
            let ServerClient { region, doorbells, waker } = self.shared.client(index)?;
            let (namespace, remote_waker) = (ClientNamespace::default(), Some(waker as Arc<dyn RemoteWaker>));
            Ok(ClientSetup { region, doorbells, uid, pid, name, namespace, remote_waker, lease: None })
        };
        match make().and_then(|setup| begin(&self.stack, setup)) {
            Ok(client) => {
                self.clients.insert(index, client);
                let mut indexes = lock(&self.indexes);
                // The host reuses an index only after the stack has forgotten the client that had it.
                indexes.retain(|_, other| *other != index);
                indexes.insert(client, index);
                ToHost::Done
            }
            Err(error) => {
                self.shared.report(&format!("a client cannot be served: {error}"));
                ToHost::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) }
            }
        }
    }

    /// Opens a file of the host and gives it to the stack.
    fn file(&self, client: ClientId, process: u32, replaces: u32, named: &FileId) -> ToHost {
        // While the file is open, this kernel would assume that it has not changed.
        self.stack.forget_file(client, process, replaces);
        let root = self.shared.host_files().ok_or_else(|| io::ErrorKind::Unsupported.into());
        let file = root.and_then(|root| named.open(root));
        let number = file.and_then(|file| self.stack.add_file(client, SharedFile { process, replaces, file }));
        number.map_or_else(
            |error| ToHost::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) },
            |file| ToHost::File { file },
        )
    }

    /// Gives a client up. Its connections are sent before the answer.
    fn give_up(&mut self, index: u32) -> ToHost {
        let Some(client) = self.clients.remove(&index) else { return ToHost::Given { lost: 0 } };
        let given = self.stack.give(client);
        for chunk in given.moved.iter().flat_map(|moved| chunks::cut(index, moved)) {
            let _ = self.messages.send(0, &ToHost::Record(chunk));
        }
        // The host has taken the address away before this, so no packet arrives and the drop filters can go.
        ToHost::Given { lost: given.lost as u32 }
    }

    /// Sets the number of workers, if there is one. Returns how many run.
    fn cores(&self, running: Option<u32>) -> ToHost {
        if let Some(Err(error)) = running.map(|running| self.stack.set_workers(running as usize)) {
            return ToHost::Failed { errno: error.raw_os_error().unwrap_or(libc::EINVAL) };
        }
        let WorkerCount { running, most } = self.stack.workers();
        ToHost::Workers { running: running as u32, most: most as u32 }
    }

    /// The number by which the host knows a client: its index.
    fn numbered(&self, client: ClientId) -> Option<ClientId> {
        lock(&self.indexes).get(&client).copied().map(ClientId)
    }

    fn connections(&self) -> Vec<towpath_runtime::SocketStatus> {
        let mut all = self.stack.connections();
        all.iter_mut().for_each(|one| one.client = one.client.and_then(|client| self.numbered(client)));
        all
    }

    fn status(&self) -> Status {
        let mut status = self.stack.status();
        status.clients.retain_mut(|client| match self.numbered(client.id) {
            Some(index) => {
                client.id = index;
                true
            }
            None => false,
        });
        status
    }

    /// Runs a program on a thread of its own. The answer follows when the program has ended.
    fn run(&self, number: u32, words: Vec<String>) {
        let messages = Arc::clone(&self.messages);
        let run = move || {
            let answer = match execute(&words) {
                Ok(Executed { code, out, err }) => ToHost::Ran { code, out, err },
                Err(error) => ToHost::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) },
            };
            let _ = messages.send(number, &answer);
        };
        if std::thread::Builder::new().name("run".into()).spawn(run).is_err() {
            let _ = self.messages.send(number, &ToHost::Failed { errno: libc::EAGAIN });
        }
    }
}
