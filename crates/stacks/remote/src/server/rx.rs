//! The server's receiving thread: reads what the host sends.

use super::shared::{HostMessages, RegionCopy, RemoteEnvironment, Shared, set_bit};
use super::tx::ServerTx;
use super::{ServerConfig, ServerError};
use crate::jobs::JobQueue;
use crate::link::{Broken, Link};
use crate::transfer::{MessageParts, UpdateSender};
use crate::update::Update;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, RwLock};
use towpath_forward::message::{self, ToHost, ToStack};
use towpath_forward::server::commands::Server;
use towpath_forward::server::policy::{ClientIndexes, RemotePolicy};
use towpath_forward::server::sender::MessageSender;
use towpath_kernel::Kernel;
use towpath_ring::layout::VERSION;
use towpath_ring::{Geometry, Layout, Slot};
use towpath_runtime::mailbox::Doorbell;
use towpath_runtime::thread::epoll_with;

/// Most bytes of a region that a host may have made here. Only the used part takes memory.
const REGION: usize = 64 << 30;
/// Most messages that wait to be carried out.
const COMMANDS: usize = 1 << 17;

/// The receiving thread of the server.
pub struct ServerRx {
    shared: Arc<Shared>,
    parts: MessageParts,
    asker: RemotePolicy,
    commands: SyncSender<(u32, ToStack)>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl ServerRx {
    /// The host has greeted: starts the stack, and greets back.
    pub fn start(
        link: &Arc<dyn Link>,
        doorbell: &Arc<Doorbell>,
        (version, geometry): (u32, Geometry),
        config: &ServerConfig,
        mut sender: UpdateSender,
    ) -> Result<Self, ServerError> {
        let size = Layout::new(geometry).map(|layout| layout.total_bytes());
        let refuse = |why: &str, sender: &mut UpdateSender| -> Result<Self, ServerError> {
            let mut bytes = Vec::new();
            message::send(&mut bytes, 0, &ToHost::Broken { why: why.into() })?;
            sender.post(0, &bytes);
            sender.push()?;
            Err(io::Error::other(why.to_owned()).into())
        };
        if version != VERSION {
            return refuse("it is of another version", &mut sender);
        }
        if size.is_err() || size.is_ok_and(|size| size > REGION) || geometry.flow_groups != 1 {
            return refuse("it serves no regions of that size", &mut sender);
        }
        let shared = Arc::new(Shared {
            link: Arc::clone(link),
            geometry,
            may_run: config.may_run,
            clients: RwLock::default(),
            jobs: JobQueue::default(),
            epoll: epoll_with(doorbell)?,
            doorbell: Arc::clone(doorbell),
            over: AtomicBool::new(false),
        });
        let messages = Arc::new(HostMessages(Arc::clone(&shared))) as Arc<dyn MessageSender>;
        let indexes = ClientIndexes::default();
        let asker = RemotePolicy::new(Arc::clone(&messages), Arc::clone(&indexes));
        let stack = Arc::new(Kernel::start(&config.kernel, || Box::new(asker.clone()))?);
        let mut server =
            Server::new(Arc::clone(&messages), Box::new(RemoteEnvironment(Arc::clone(&shared))), stack, indexes)?;
        let (commands, work) = sync_channel(COMMANDS);
        let transmitter = ServerTx::new(Arc::clone(&shared), sender);
        let spawn = |name: &str| std::thread::Builder::new().name(name.into());
        let threads = vec![
            spawn("server-tx").spawn(move || transmitter.run())?,
            spawn("server-cmd").spawn(move || server.work(&work))?,
        ];
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        messages.send(0, &ToHost::Hello { version: VERSION, release })?;
        Ok(Self { shared, parts: MessageParts::default(), asker, commands, threads })
    }

    pub fn record(&mut self, lane: u32, record: Update) -> Result<(), Broken> {
        match record {
            Update::Beat => {}
            Update::Part { last, bytes } => {
                if let Some((number, message)) = self.parts.message(lane, last, &bytes)? {
                    self.message(number, message)?;
                }
            }
            Update::App { index, slot, app } => {
                if let Some((client, slot)) = self.find(index, slot)? {
                    client.apply_app_line(slot, &app, false);
                }
            }
            Update::Command { index, slot, app, options, command } => {
                if let Some((client, slot)) = self.find(index, slot)? {
                    client.region.options(slot).store(&options);
                    client.region.command(slot).store(&command);
                    client.apply_app_line(slot, &app, true);
                }
            }
            Update::Greeting { .. } => return Err(Broken::Rules("it greets twice")),
            Update::Stack { .. } | Update::Info { .. } => {
                return Err(Broken::Rules("that is for the other side to hear"));
            }
        }
        Ok(())
    }

    /// The client of an index and its slot; `None` if there is no such client.
    fn find(&self, index: u32, raw: u32) -> Result<Option<(Arc<RegionCopy>, Slot)>, Broken> {
        let Some(client) = self.shared.client(index) else { return Ok(None) };
        let slot = client.region.slot(raw).ok_or(Broken::Rules("there is no such slot"))?;
        Ok(Some((client, slot)))
    }

    fn message(&mut self, number: u32, message: ToStack) -> Result<(), Broken> {
        match &message {
            ToStack::Verdict(_) | ToStack::Limit(_) => {
                self.asker.answered(number, message);
                return Ok(());
            }
            ToStack::Hangup { index, slot, .. } => {
                let client = self.shared.client(*index);
                if let Some((client, slot)) =
                    client.and_then(|client| client.region.slot(*slot).map(|slot| (client, slot)))
                {
                    set_bit(&client.closing, slot);
                    self.shared.doorbell.notify();
                }
            }
            ToStack::Remove { index } => self.shared.forget(*index),
            _ => {}
        }
        match self.commands.try_send((number, message)) {
            Err(TrySendError::Full(_)) => Err(Broken::Rules("it sends more commands than can be carried out")),
            // Without the thread that carries messages out, the server ends.
            Err(TrySendError::Disconnected(_)) => Err(Broken::Ended),
            Ok(()) => Ok(()),
        }
    }

    /// The host is gone, and with it all clients.
    pub fn end(self) {
        self.shared.over.store(true, Ordering::Release);
        self.shared.link.close();
        self.shared.doorbell.notify_always();
        drop(self.commands);
        self.asker.hang_up();
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}
