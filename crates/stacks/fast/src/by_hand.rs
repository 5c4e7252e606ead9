//! A flow group with one client that is turned by hand: what a worker does in a turn, without clock, slow path and sleep.
//! Tests use it, and a benchmark counts its instructions. It is public for that benchmark alone.

use crate::clients::ClientShared;
use crate::group::{FlowGroup, Scratch};
use crate::mailbox::{Doorbell, Receiver, Sender, mailbox};
use crate::messages::{FromGroup, ToGroup};
use crate::metrics::Metrics;
use crate::owner::owner;
use crate::portset::PortSet;
use crate::rings::Endpoints;
use crate::thread::epoll_with;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::sync::mpsc;
use towpath_ports::Port;
use towpath_ring::dirty::acknowledge;
use towpath_ring::lines::app_flags;
use towpath_ring::wake::doorbell;
use towpath_ring::{Geometry, Region, Slot};
use towpath_runtime::{ClientId, ClientSetup};
use towpath_tcp::fast::{FastConfig, FastPath, FlowTable};
use towpath_tcp::flow::FlowSetup;
use towpath_tcp::messages::ToFast;
use towpath_tcp::time::Micros;

/// Messages that wait on either way.
const MESSAGES: usize = 64;

/// The flow group, its client, and the slow path's ends of its mailboxes.
pub struct ByHand {
    pub(crate) flow_group: FlowGroup,
    pub(crate) to: Sender<ToGroup>,
    pub(crate) from: Receiver<FromGroup>,
    pub(crate) client: Arc<ClientShared>,
    /// The application's positions in its data queue and in its event queue.
    queued: u32,
    taken: u32,
}

impl ByHand {
    /// With room for so many flows, whose rings have this size, on a port. The application waits for events of all.
    pub fn new(flows: u32, ring_bytes: u32, port: Box<dyn Port>) -> io::Result<Self> {
        let slots = (2 * flows).next_power_of_two().max(16);
        let geometry = Geometry {
            slots,
            app_slots: slots / 2,
            tx_bytes: ring_bytes,
            rx_bytes: ring_bytes,
            tx_most: 0,
            rx_most: 0,
            contexts: 1,
            flow_groups: 1,
        };
        let mut made = Self::of(geometry, port, Arc::new(FlowTable::new(flows.next_power_of_two())))?;
        let wake = Some(Arc::new(doorbell()?));
        let (done, _) = mpsc::channel();
        made.to.send(ToGroup::Context { client: 0, context: 0, wake, done });
        Ok(made)
    }

    /// With a region of this geometry, on a port.
    pub(crate) fn of(geometry: Geometry, port: Box<dyn Port>, table: Arc<FlowTable>) -> io::Result<Self> {
        let (region, _memfd) = Region::create(geometry).map_err(io::Error::other)?;
        let setup = ClientSetup::of_nobody(region, vec![doorbell()?, doorbell()?]);
        let client = Arc::new(ClientShared::new(ClientId(1), 0, setup));
        let (doorbell, slow_doorbell) = (Doorbell::new()?, Doorbell::new()?);
        let (mut to, inbox) = mailbox(MESSAGES, Arc::clone(&doorbell));
        let (outbox, from) = mailbox(MESSAGES, slow_doorbell);
        let flow_group = FlowGroup {
            number: 0,
            fast: FastPath::new(0, FastConfig::default(), table),
            ports: PortSet::new(vec![port]),
            rings: Endpoints::default(),
            inbox,
            outbox,
            epoll: epoll_with(&doorbell)?,
            doorbell,
            panics: Arc::new(AtomicU64::new(0)),
            metrics: Metrics::new(vec![1])?,
            scratch: Scratch::default(),
            slow: None,
        };
        to.send(ToGroup::AddClient(Arc::clone(&client)));
        Ok(Self { flow_group, to, from, client, queued: 0, taken: 0 })
    }

    /// Installs a flow in the slot of this number. Its owner is set here.
    pub fn install(&mut self, number: u32, setup: FlowSetup, now: Micros) -> io::Result<()> {
        let slot = self.slot(number)?;
        self.client.words(slot).generation.store(1, Relaxed);
        let app = self.client.region.app(slot);
        app.flags.store(app_flags::NODELAY, Relaxed);
        app.ctx_mask.store(1, Relaxed);
        app.generation.store(1, Release);
        self.to.send(ToGroup::Tcp(ToFast::Install(Box::new(FlowSetup { owner: owner(0, slot), ..setup }))));
        self.turn(now);
        self.forget_messages();
        Ok(())
    }

    /// Takes one turn, and returns how much work it was.
    pub fn turn(&mut self, now: Micros) -> usize {
        self.flow_group.turn(now)
    }

    /// The application takes the next event: the number of a slot.
    pub fn event(&mut self) -> Option<u32> {
        let region = &self.client.region;
        let slot = region.slot(region.events(0, 0).pop(&mut self.taken)?)?;
        let (seq, ack) = region.event_words(0, 0, slot);
        acknowledge(seq, ack);
        Some(slot.raw())
    }

    /// The application has read up to one position and written up to another, and tells the flow group.
    pub fn answer(&mut self, number: u32, read: u32, written: u32) -> io::Result<()> {
        let slot = self.slot(number)?;
        let region = &self.client.region;
        let app = region.app(slot);
        app.rx_head.store(read, Release);
        app.tx_tail.store(written, Release);
        region.data_queue(0).push(&mut self.queued, slot, &app.data_seq, &region.stack(slot).data_ack);
        Ok(())
    }

    /// The slow path takes its messages, and has nothing to say.
    pub fn forget_messages(&mut self) {
        while self.from.pop().is_ok() {}
    }

    fn slot(&self, number: u32) -> io::Result<Slot> {
        self.client.region.slot(number).ok_or_else(|| io::Error::other(format!("there is no slot {number}")))
    }
}
