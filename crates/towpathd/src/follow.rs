//! Follows a served interface that goes away and comes back: it was deleted and made again, or has lost its program.
//! This thread waits; the broker does not.

use crate::attach::InterfaceError;
use crate::health::Health;
use crate::held_interface::Holder;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use towpath_fast::NewPort;
use towpath_ports::Port;
use towpath_ports::attachment::Description;
use towpath_ports::memory::Loopback;
use towpath_ports::packet_port;
use towpath_ports::xsk_socket::XskSocket;
use towpath_service::stack_factory::ServedInterface;
use towpath_tcp::flow::PortId;

/// How often the holder is asked about a program that is not shown.
pub const ASK_EACH: Duration = Duration::from_secs(2);
/// How often the holder is asked at most whether something matches a pattern. It lists interfaces and routes for that, and any
/// host on the network can have the kernel report changes of neighbours.
pub const ASK_AT_MOST_EACH: Duration = Duration::from_millis(500);

/// An interface that was opened again, for the slow path.
pub struct Reopened {
    /// The interface as it is now.
    pub description: Description,
    /// The largest packet that its ports take, bytes.
    pub mtu: u32,
    /// Its ports, which take the place of those that it had.
    pub ports: Vec<NewPort>,
}

/// The place where the slow path finds it.
pub type Made = Arc<Mutex<Option<Reopened>>>;

/// An interface, when somebody has looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// It is there, with our program.
    InPlace,
    /// It has been opened again.
    Reopened,
    /// It is not there.
    Gone,
    /// Nothing matches its pattern. The kernel tells of what appears.
    Waiting,
    /// Nothing matched a moment ago. It is to be looked for again.
    Resting,
}

/// See the module.
pub struct Follower {
    holder: Arc<Holder>,
    health: Arc<Health>,
    made: Made,
    /// The place of its first port in each flow group.
    first: PortId,
    groups: usize,
    /// For how many queues there are ports.
    queues: u32,
    /// The trouble that the log tells of.
    said: Option<String>,
    /// It has gone, and the holder has not said yet that it is back. It may come back with our program and without its
    /// sockets: one that was moved to another namespace does.
    gone: bool,
    /// When its holder was asked last.
    asked: Instant,
}

impl Follower {
    /// Of an interface with ports for so many queues, which are dealt out to so many flow groups.
    pub fn new(
        holder: Arc<Holder>,
        health: Arc<Health>,
        made: Made,
        first: PortId,
        (queues, groups): (u32, usize),
    ) -> Self {
        Self { holder, health, made, first, groups, queues, said: None, gone: false, asked: Instant::now() }
    }

    /// Opens the interface again if it has gone and come back. Logs its troubles.
    pub fn look(&mut self) -> Looked {
        // A trouble is said before it is over.
        self.health.look();
        if self.health.is_in_place() && !self.gone && !self.is_to_ask() {
            return Looked::InPlace;
        }
        if self.gone && self.health.is_chosen() && self.asked.elapsed() < ASK_AT_MOST_EACH {
            return Looked::Resting;
        }
        self.asked = Instant::now();
        let looked = match self.reopen() {
            Ok(()) => Looked::Reopened,
            // It may have got its program back, and its sockets have stayed.
            Err(InterfaceError::InPlace(_)) => Looked::InPlace,
            Err(InterfaceError::NotThere(_)) if self.health.is_chosen() => Looked::Waiting,
            Err(InterfaceError::NotThere(_)) => Looked::Gone,
            Err(error) => {
                let text = Some(error.to_string());
                if self.said != text {
                    tracing::error!(interface = self.health.name(), %error, "the interface cannot be opened again");
                }
                self.said = text;
                Looked::Gone
            }
        };
        if looked == Looked::Waiting && !self.gone && self.health.has_been() {
            tracing::info!(pattern = self.health.name(), "an interface has gone, and its place is free");
        }
        self.gone = matches!(looked, Looked::Gone | Looked::Waiting);
        if !self.gone {
            self.said = None;
            self.health.look();
        }
        looked
    }

    /// Must it look now and then, because nothing tells that the program has gone?
    pub fn must_ask(&self) -> bool {
        !self.health.shows_all()
    }

    /// Is it time to ask the holder?
    fn is_to_ask(&mut self) -> bool {
        let now = Instant::now();
        let is_time = self.must_ask() && now.duration_since(self.asked) >= ASK_EACH;
        if is_time {
            self.asked = now;
        }
        is_time
    }

    fn reopen(&self) -> Result<(), InterfaceError> {
        let parts = self.holder.open(self.groups)?;
        let (description, sockets) = (parts.description(), parts.into_sockets());
        let count = sockets.len();
        let (mtu, ports) =
            open_ports(sockets, self.queues, self.first, self.groups).map_err(InterfaceError::Mapping)?;
        tracing::info!(
            interface = self.health.name_of(description.index),
            queues = ports.len(),
            mtu,
            "serving the interface"
        );
        let ports = ports.into_iter().map(|(flow_group, number, port)| NewPort { flow_group, number, port }).collect();
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(Reopened { description, mtu, ports });
        self.health.moved_to(&description, count);
        Ok(())
    }
}

/// A port with its flow group, and its place there.
type Dealt = (usize, PortId, Box<dyn Port>);

/// How many ports each flow group has of an interface with so many queues.
pub fn ports_each(queues: u32, groups: usize) -> usize {
    (queues as usize).div_ceil(groups).max(1)
}

/// Opens the ports of an interface, and deals them out to this many flow groups, from the place `first` on. Each flow group
/// gets as many. Returns the largest packet that they take, too. Where there are too few queues, and while the interface is not
/// there, ports without any buffer keep the places.
pub fn open_ports(sockets: Vec<XskSocket>, queues: u32, first: PortId, groups: usize) -> io::Result<(u32, Vec<Dealt>)> {
    let (mut mtu, mut all, mut sockets) = (u32::MAX, Vec::new(), sockets.into_iter());
    for queue in 0..groups * ports_each(queues, groups) {
        let port: Box<dyn Port> = match sockets.next() {
            Some(socket) => {
                let port = packet_port::of_queue(socket)?;
                mtu = mtu.min(port.capabilities().mtu_bytes);
                port
            }
            None => Box::new(Loopback::with_buffers(0, 0)),
        };
        let place = u8::try_from(usize::from(first.0) + queue / groups).map_err(io::Error::other)?;
        all.push((queue % groups, PortId(place), port));
    }
    Ok((mtu, all))
}
