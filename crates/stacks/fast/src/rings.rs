//! One flow group's tables: its view of the clients, and the slot of each of its flows.

use crate::clients::{ClientShared, SlotWordsOf};
use crate::events::EventOut;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towpath_ring::ring_size::{RECEIVE_GRANTED, SEND};
use towpath_ring::{Slot, SlotMemory};
use towpath_tcp::buffers::Rings;
use towpath_tcp::flow::FlowId;
use towpath_tcp::time::Micros;
use towpath_wire::offload::Payload;

/// No flow, no client.
pub const NONE: u32 = u32::MAX;

/// A client, as one flow group knows it.
pub struct GroupClient {
    /// The state that all threads share.
    pub shared: Arc<ClientShared>,
    /// This flow group's flow of each slot, or [`NONE`].
    pub flows: Box<[u32]>,
    /// Position in this flow group's dirty set.
    pub data_head: u32,
    /// Events to it.
    pub out: EventOut,
    /// Entries taken from its data queue, and events shown to it, since the time was divided last.
    pub items: u64,
}

impl GroupClient {
    /// A client without flows, for flow group `thread`.
    pub fn new(shared: Arc<ClientShared>, thread: usize) -> Self {
        let slots = shared.region.geometry().slots as usize;
        Self { shared, flows: vec![NONE; slots].into(), data_head: 0, out: EventOut::new(thread), items: 0 }
    }
    /// This flow group's flow of the slot of this number.
    #[inline]
    pub fn flow_of(&self, number: u32) -> Option<FlowId> {
        self.flows.get(number as usize).filter(|flow| **flow != NONE).map(|flow| FlowId(*flow))
    }
}

/// The slot of a flow.
#[derive(Clone, Copy)]
pub struct Endpoint {
    /// Index of the client.
    pub client: u32,
    /// Its slot.
    pub slot: Slot,
    /// The slot's generation for this flow.
    pub generation: u32,
    /// The fast path knows that the application has closed it.
    pub closed: bool,
    /// `status` bits shown so far.
    pub status: u32,
    /// Bytes of the send ring.
    pub tx_bytes: u32,
    /// Bytes of the receive ring.
    pub rx_bytes: u32,
    /// The sizes in `AppLine::want` when it was last looked at. They may be anything.
    pub sizes: u32,
    /// Halvings of the send ring, and those that the application was asked to have. What stands in the line is a copy.
    pub send: u32,
    /// See `send`.
    pub send_wanted: u32,
    /// The same of the receive ring.
    pub receive: u32,
    /// See `receive`.
    pub receive_wanted: u32,
    /// Bytes that the rings have grown by, or may: see `ClientShared::take_growth`.
    pub grown: u32,
    /// 1 while the receive ring is to be doubled, or the application waits for an answer about [`IDLE`](towpath_ring::ring_size::IDLE).
    pub growing: u32,
    /// Only the next bytes of the receive ring are filled.
    pub idle: bool,
    /// It has had no memory once, which counts in `grown`.
    pub emptied: bool,
    /// The last [`GIVING`](towpath_ring::ring_size::GIVING) that was answered. While it is odd, none are.
    pub giving: u32,
    /// Its memory was not there although the application had granted it. It is looked for again when the ring has been read once
    /// around.
    pub refused: bool,
    /// When the application had read the receive ring once around, µs modulo 2^32.
    pub turned_at: u32,
    /// A panic has come between its bytes and their copies: no more of them are shown.
    pub half_done: bool,
    /// The last positions that the fast path has accepted.
    pub tx_tail: u32,
    /// See `tx_tail`.
    pub rx_head: u32,
}

/// A flow, and the memory of its slot.
pub struct Flow {
    /// What is known of its slot.
    pub endpoint: Endpoint,
    /// The slot's lines and rings, with the sizes that the endpoint names.
    pub memory: SlotMemory,
    /// The slot's private words.
    pub words: SlotWordsOf,
}

/// Clients by index and endpoints by flow.
#[derive(Default)]
pub struct Endpoints {
    clients: Vec<Option<Box<GroupClient>>>,
    flows: Vec<Option<Flow>>,
    count: u64,
}

impl Endpoints {
    /// The number of client places.
    pub fn places(&self) -> usize {
        self.clients.len()
    }
    /// Flows of this flow group.
    pub fn flows(&self) -> u64 {
        self.count
    }
    /// One more than the highest number that a flow has had.
    pub fn flow_places(&self) -> u32 {
        self.flows.len() as u32
    }
    /// The client in place `index`.
    #[inline]
    pub fn client(&mut self, index: u32) -> Option<&mut GroupClient> {
        self.clients.get_mut(index as usize)?.as_deref_mut()
    }
    /// All clients.
    pub fn clients(&mut self) -> impl Iterator<Item = &mut GroupClient> {
        self.clients.iter_mut().flatten().map(|c| &mut **c)
    }
    /// Puts a client into its place.
    pub fn add_client(&mut self, client: GroupClient) {
        let index = client.shared.index as usize;
        if self.clients.len() <= index {
            self.clients.resize_with(index + 1, || None);
        }
        self.clients[index] = Some(Box::new(client));
    }
    /// Forgets a client without flows.
    pub fn drop_client(&mut self, index: u32) {
        if let Some(place) = self.clients.get_mut(index as usize) {
            *place = None;
        }
    }
    /// Notes a new flow of a slot. The slot's old flow must have been forgotten.
    pub fn install(&mut self, flow: FlowId, client: u32, raw_slot: u32, now: Micros) -> Option<Slot> {
        let entry = self.client(client)?;
        let slot = entry.shared.region.slot(raw_slot)?;
        let region = Arc::clone(&entry.shared.region);
        let (words, geometry) = (entry.shared.words_of(slot), region.geometry());
        let generation = words.get().generation.load(Ordering::Relaxed);
        entry.flows[slot.index()] = flow.0;
        let index = flow.0 as usize;
        if self.flows.len() <= index {
            self.flows.resize_with(index + 1, || None);
        }
        let (send, receive) = geometry.first_halvings();
        let memory = SlotMemory::new(&region, slot, (send, receive));
        let endpoint = Endpoint {
            client,
            slot,
            generation,
            closed: false,
            status: 0,
            tx_bytes: geometry.tx_bytes,
            rx_bytes: geometry.rx_bytes,
            sizes: SEND.word(send) | RECEIVE_GRANTED.word(receive),
            send,
            send_wanted: send,
            receive,
            receive_wanted: receive,
            grown: 0,
            growing: 0,
            idle: false,
            emptied: false,
            giving: 0,
            refused: false,
            turned_at: now.0 as u32,
            half_done: false,
            tx_tail: 0,
            rx_head: 0,
        };
        self.flows[index] = Some(Flow { endpoint, memory, words });
        self.count += 1;
        Some(slot)
    }
    /// Forgets a flow.
    pub fn remove(&mut self, flow: FlowId) {
        let Some(Flow { endpoint, .. }) = self.flows.get_mut(flow.0 as usize).and_then(Option::take) else { return };
        self.count -= 1;
        if let Some(client) = self.client(endpoint.client) {
            client.shared.give_growth(endpoint.grown);
            let place = &mut client.flows[endpoint.slot.index()];
            if *place == flow.0 {
                *place = NONE;
            }
        }
    }
    /// A flow of this flow group.
    #[inline]
    pub fn flow(&mut self, flow: FlowId) -> Option<&mut Flow> {
        self.flows.get_mut(flow.0 as usize)?.as_mut()
    }
    /// A flow and its client.
    #[inline]
    pub fn with_client(&mut self, flow: FlowId) -> Option<(&mut Flow, &mut GroupClient)> {
        let flow = self.flows.get_mut(flow.0 as usize)?.as_mut()?;
        let client = self.clients.get_mut(flow.endpoint.client as usize)?.as_deref_mut()?;
        Some((flow, client))
    }
    /// The endpoint of a flow.
    pub fn endpoint(&mut self, flow: FlowId) -> Option<&mut Endpoint> {
        self.flow(flow).map(|flow| &mut flow.endpoint)
    }
    /// Replaces a flow's endpoint. Its rings may have other sizes.
    pub fn set_endpoint(&mut self, flow: FlowId, endpoint: Endpoint) {
        if let Some(place) = self.flow(flow) {
            place.endpoint = endpoint;
            place.memory.resize(endpoint.slot, (endpoint.send, endpoint.receive));
        }
    }
    /// The flow of a slot, if it is this flow group's.
    #[inline]
    pub fn flow_of(&mut self, client: u32, slot: Slot) -> Option<FlowId> {
        self.client(client)?.flow_of(slot.raw())
    }
    #[inline]
    fn memory(&self, flow: FlowId) -> Option<&SlotMemory> {
        self.flows.get(flow.0 as usize)?.as_ref().map(|flow| &flow.memory)
    }
}

/// The memory of one flow, which is at hand.
pub struct OneFlow<'a>(pub &'a SlotMemory);

impl Rings for OneFlow<'_> {
    /// What was received is not put there by this way.
    fn deliver(&mut self, _: FlowId, _: u32, _: &[u8]) {
        debug_assert!(false, "nothing is received here");
    }
    #[inline(always)]
    fn fetch(&self, _: FlowId, position: u32, out: &mut [u8]) {
        self.0.tx().read(position, out);
    }
}

impl Rings for Endpoints {
    #[inline]
    fn deliver(&mut self, flow: FlowId, position: u32, bytes: &[u8]) {
        if let Some(memory) = self.memory(flow) {
            memory.rx().write(position, bytes);
        }
    }
    #[inline]
    fn fetch(&self, flow: FlowId, position: u32, out: &mut [u8]) {
        match self.memory(flow) {
            Some(memory) => memory.tx().read(position, out),
            None => out.fill(0),
        }
    }
    fn payload(&self, flow: FlowId, position: u32, len: u32) -> Option<Payload<'_>> {
        self.memory(flow)?.tx().shared(position, len)
    }
}
