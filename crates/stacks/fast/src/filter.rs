//! The modules of a port, and their memory.
//!
//! Modules have a frame in its place, which costs no copy. A module that moves a frame's ends, or wants to know about it
//! (`struct towpath_frame`), needs room around it. Its frame is copied into a buffer of ours.

use crate::room::{BUFFER, LARGEST};
use crate::selection::Selected;
use std::sync::Arc;
use towpath_modules::{Chain, Chains, Hook, Left, Overrun, Tenant, Tenants};
use towpath_ports::{Leaving, Outgoing, PacketBuffer, Port, RxFrame};

/// Frames that may be held at a time: those of a turn.
const HELD: usize = 64;
/// Handles with this bit are frames of ours; no port uses it.
pub const OURS: u64 = 1 << 61;

/// The modules of one port, and their memory.
pub struct Filter {
    pub(crate) ingress: Chain,
    pub(crate) egress: Chain,
    /// Number of the port, of its interface in the kernel, and of the flow group.
    pub(crate) port: u32,
    pub(crate) interface: u32,
    pub(crate) group: u32,
    /// Buffers for received frames, and those that are free. None if nothing wants room.
    pub(crate) held: Vec<PacketBuffer>,
    pub(crate) free: Vec<u64>,
    /// Where each of them begins.
    pub(crate) starts: Vec<u32>,
    pub(crate) sent: Option<PacketBuffer>,
    /// A frame that goes back from its place in the port's memory.
    pub(crate) returned: Option<PacketBuffer>,
    /// Says which connection a frame belongs to, to modules that ask for it, at ingress and at egress.
    pub(crate) flows: [Option<Arc<Selected>>; 2],
    /// Frames to be given back to the port.
    pub(crate) done: Vec<RxFrame>,
    /// Those that are sent back before, and those that go over another interface.
    pub(crate) back: Vec<RxFrame>,
    pub(crate) leaving: Vec<Leaving>,
    /// Those of a batch that do not pass.
    pub(crate) left: Vec<Left>,
    /// Sent frames that modules have had: those that were committed when there were so many ([`Outgoing::committed`]).
    pub(crate) looked_at: u32,
    /// The tenants whose turn ends with that of this port; see [`Filter::end_turn`].
    limited: Tenants,
}

impl Filter {
    /// For a port of a flow group.
    pub fn new(chains: &Chains, group: usize, port: u32) -> Self {
        let ingress = Chain::new(&chains.ingress, Hook::Ingress, group, 0);
        let egress = Chain::new(&chains.egress, Hook::Egress, group, 0);
        let buffer = |bytes| {
            let made = PacketBuffer::new(bytes);
            made.inspect_err(|error| tracing::error!(%error, "no memory for frames under modules: they are dropped"))
                .ok()
        };
        let held = if ingress.wants_room() { HELD } else { 0 };
        let held: Vec<_> = (0..held).map_while(|_| buffer(BUFFER)).collect();
        Self {
            free: (0..held.len() as u64).collect(),
            starts: vec![0; held.len()],
            sent: if egress.wants_room() { buffer(BUFFER) } else { None },
            returned: if ingress.is_empty() || ingress.wants_room() { None } else { buffer(LARGEST) },
            held,
            flows: [None, None],
            done: Vec::with_capacity(4 * HELD),
            back: Vec::with_capacity(4 * HELD),
            leaving: Vec::with_capacity(4 * HELD),
            left: Vec::with_capacity(4 * HELD),
            looked_at: 0,
            limited: chains.limited(),
            ingress,
            egress,
            port,
            interface: 0,
            group: group as u32,
        }
    }

    /// Frames come from and go to this interface.
    pub fn stands_at(&mut self, interface: u32) {
        self.interface = interface;
        self.ingress.stands_at(interface);
        self.egress.stands_at(interface);
    }

    /// With this table for its modules with selectors, and those that ask whose a frame is. Without a table the former have no
    /// frames, and the latter are not told.
    pub fn select(mut self, selected: Option<&Arc<Selected>>) -> Self {
        if let Some(selected) = selected {
            self.flows = [&self.ingress, &self.egress].map(|chain| chain.reads_meta().then(|| Arc::clone(selected)));
            let (received, sent) = (Arc::clone(selected), Arc::clone(selected));
            self.ingress.ask(Arc::new(move |frame| received.received(frame)));
            self.egress.ask(Arc::new(move |frame| sent.sent(frame)));
        }
        self
    }

    /// Does the stack use the port itself, while modules look at all frames of a turn beside it? Else they stand before it
    /// ([`crate::module_port`]).
    pub fn stands_beside(&self, port: &mut dyn Port) -> bool {
        let in_place = !self.selects() && !self.wants_room();
        in_place && (self.egress.is_empty() || port.outgoing().is_some())
    }

    /// Has a module a selector?
    pub fn selects(&self) -> bool {
        self.ingress.selects() || self.egress.selects()
    }

    /// Does one want room around frames, at ingress or at egress?
    pub fn wants_room(&self) -> bool {
        self.ingress.wants_room() || self.egress.wants_room()
    }

    /// Has a module the frames that the stack sends?
    pub fn has_sent(&self) -> bool {
        !self.egress.is_empty()
    }

    /// May a super-segment that the stack sends grow?
    pub fn grows_sent(&self) -> bool {
        self.egress.wants_room()
    }

    /// Is it a frame of ours, and not one of the port's?
    pub fn holds(frame: &RxFrame) -> bool {
        frame.handle & OURS != 0
    }

    /// The bytes of a frame of ours.
    pub fn held(&self, frame: &RxFrame) -> &[u8] {
        let at = (frame.handle & !OURS) as usize;
        let start = self.starts.get(at).map_or(0, |start| *start as usize);
        self.held.get(at).and_then(|buffer| buffer.get(start..start + frame.len as usize)).unwrap_or(&[])
    }

    /// The same, to be changed.
    pub fn held_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        let at = (frame.handle & !OURS) as usize;
        let start = *self.starts.get(at)? as usize;
        self.held.get_mut(at)?.get_mut(start..start + frame.len as usize)
    }

    /// Frames that were committed until now are none of the modules'.
    pub fn pass_over(&mut self, port: &mut dyn Port) {
        if let Some(outgoing) = port.outgoing() {
            self.looked_at = outgoing.committed();
        }
    }

    /// Another port's filter ends the turns of tenants.
    pub fn leave_turns(&mut self) {
        self.limited = Tenants::default();
    }

    /// Do the turns of tenants end with that of this port?
    pub fn ends_turns(&self) -> bool {
        !self.limited.is_empty()
    }

    /// A turn of the flow group is over: tenants are charged for what they have taken of it.
    #[inline]
    pub fn end_turn(&self) {
        if self.ends_turns() {
            end_turn(&self.limited, &self.egress);
        }
    }

    /// Runs the modules on the frames that were sent since, where they wait for the port to send them. One that does not pass has
    /// had its room in the port until now.
    pub fn settle_sent(&mut self, port: &mut dyn Port) {
        let Self { egress, left, looked_at, .. } = self;
        if !egress.is_empty()
            && let Some(outgoing) = port.outgoing()
        {
            outgoing.batches(*looked_at, &mut |first, batch| egress.run_batch(first, batch, left));
            if !left.is_empty() {
                take_back(outgoing, *looked_at, left);
            }
            *looked_at = outgoing.committed();
        }
        egress.settle();
    }
}

/// Has the port not send frames that do not pass.
#[cold]
#[inline(never)]
fn take_back(port: &mut dyn Outgoing, since: u32, left: &mut Vec<Left>) {
    port.take_back(since, &mut left.drain(..).map(|left| left.place));
}

/// A turn of these tenants is over. Says who was detached.
#[inline(never)]
pub fn end_turn(limited: &Tenants, chain: &Chain) {
    limited.end_turn(chain.meter());
    if let Some(tenant) = limited.news() {
        said(tenant);
    }
}

#[cold]
#[inline(never)]
fn said(tenant: &Tenant) {
    let (name, percent) = (tenant.name(), tenant.percent());
    let Some(Overrun { flow_group, taken_ns, own_ns }) = tenant.overrun() else { return };
    let what = if own_ns.is_some() { "of a turn" } else { "of a core's time" };
    tracing::error!(
        tenant = name,
        flow_group,
        taken_ns,
        own_ns,
        "the modules of a tenant have taken more than {percent} % {what}, and are detached: `towpath module list` shows them; remove them, and add them again with a larger --budget or less to do"
    );
}
