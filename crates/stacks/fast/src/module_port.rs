//! A port whose frames go through modules. It stands before the port while there is a module, so that without one nothing
//! is asked on the way of a frame.
//!
//! Modules have a frame in its place, which costs no copy. A module that moves a frame's ends, or wants to know about it
//! (`struct towpath_frame`), needs room around it. Its frame is copied into a buffer of ours.
//!
//! If a module has a selector, it is looked up first whose each frame is. Such a port is a type of its own, so that without
//! selectors nothing is asked for them.

use crate::goes::Goes;
use crate::selection::Selected;
use crate::send_back;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use towpath_modules::module::Action;
use towpath_modules::{Budget, Chain, Chains, EVERY, Frame, Hook, Left, Overrun, TOWPATH_FRAME_BYTES, TowpathFrame};
use towpath_ports::gather::commit_whole;
use towpath_ports::memory::Loopback;
use towpath_ports::{Capabilities, Leaving, PacketBuffer, Payload, Port, PortCounters, RxChecksum, RxFrame, TxOffload};

/// Room before a frame, as XDP has it, and behind it.
const HEADROOM: usize = 256;
const TAILROOM: usize = 320;
/// The largest frame: 64 KiB with an Ethernet header and two tags.
const LARGEST: usize = 65_536 + 14 + 8;
/// A buffer for the largest frame, and for room around it.
pub const BUFFER: usize = HEADROOM + LARGEST + TAILROOM;
/// Frames that may be held at a time: those of a turn.
const HELD: usize = 64;
/// Handles with this bit are frames of ours; no port uses it.
const OURS: u64 = 1 << 61;
/// What a super-segment may grow by.
const GROWTH: u32 = 64;

/// The modules of one port, and their memory.
pub struct Filter {
    ingress: Chain,
    egress: Chain,
    /// Number of the port, of its interface in the kernel, and of the flow group.
    port: u32,
    interface: u32,
    group: u32,
    /// Buffers for received frames, and those that are free. None if nothing wants room.
    held: Vec<PacketBuffer>,
    free: Vec<u64>,
    /// Where each of them begins.
    starts: Vec<u32>,
    sent: Option<PacketBuffer>,
    /// A frame that goes back from its place in the port's memory.
    returned: Option<PacketBuffer>,
    /// Frames to be given back to the port.
    done: Vec<RxFrame>,
    /// Those that are sent back before, and those that go over another interface.
    back: Vec<RxFrame>,
    leaving: Vec<Leaving>,
    /// Those of a batch that do not pass.
    left: Vec<Left>,
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
            done: Vec::with_capacity(4 * HELD),
            back: Vec::with_capacity(4 * HELD),
            leaving: Vec::with_capacity(4 * HELD),
            left: Vec::with_capacity(4 * HELD),
            ingress,
            egress,
            port,
            interface: 0,
            group: group as u32,
        }
    }

    /// Frames come from and go to this interface.
    fn stands_at(&mut self, interface: u32) {
        self.interface = interface;
        self.ingress.stands_at(interface);
        self.egress.stands_at(interface);
    }

    /// With this table for its modules with selectors. Without a table these have no frames.
    pub fn select(mut self, selected: Option<&Arc<Selected>>) -> Self {
        if let Some(selected) = selected {
            let (received, sent) = (Arc::clone(selected), Arc::clone(selected));
            self.ingress.ask(Arc::new(move |frame| received.received(frame)));
            self.egress.ask(Arc::new(move |frame| sent.sent(frame)));
        }
        self
    }

    /// Takes frames out that do not pass, of those that were received.
    #[cold]
    #[inline(never)]
    fn take_out(&mut self, frames: &mut Vec<RxFrame>) {
        let Self { done, back, leaving, interface, left: places, .. } = self;
        let mut goes = Goes { done, back, leaving, interface: *interface };
        let mut places = places.drain(..).peekable();
        let mut at = 0;
        frames.retain(|frame| {
            let left = places.next_if(|left| left.place == at);
            at += 1;
            left.is_none_or(|Left { action, over, .. }| goes.left(*frame, action, over))
        });
    }

    /// A port with these modules before it.
    pub fn before(self, port: Box<dyn Port>) -> Box<dyn Port> {
        let (selects, room) =
            (self.ingress.selects() || self.egress.selects(), self.ingress.wants_room() || self.egress.wants_room());
        match (selects, room) {
            (false, false) => Box::new(ModulePort::<false, false>::new(port, self)),
            (false, true) => Box::new(ModulePort::<false, true>::new(port, self)),
            (true, false) => Box::new(ModulePort::<true, false>::new(port, self)),
            (true, true) => Box::new(ModulePort::<true, true>::new(port, self)),
        }
    }
}

/// See the module. `SELECTS`: a module has a selector. `ROOM`: one wants room around frames, at ingress or at egress.
struct ModulePort<const SELECTS: bool, const ROOM: bool> {
    inner: Box<dyn Port>,
    filter: Filter,
}

/// Runs the modules on a frame in its place.
#[inline(always)]
fn run_in_place<const SELECTS: bool>(chain: &mut Chain, bytes: &mut [u8]) -> Action {
    if SELECTS { chain.run_selected_in_place(bytes) } else { chain.run_in_place(bytes) }
}

/// Runs the modules on a frame with room around it. `selectors` choose whoever has it.
#[inline(always)]
fn run<const SELECTS: bool>(chain: &mut Chain, frame: &mut Frame<'_>, selectors: u32) -> Action {
    if SELECTS { chain.run_selected(frame, selectors) } else { chain.run(frame) }
}

/// Adds to the counts of a chain after a batch of frames, and says which module was detached.
#[inline]
pub fn settle(chain: &mut Chain) {
    if let Some(budget) = chain.settle() {
        said(budget);
    }
}

#[cold]
#[inline(never)]
fn said(budget: Arc<Budget>) {
    let (name, percent) = (budget.module(), budget.percent());
    let Some(Overrun { flow_group, run_ns }) = budget.overrun() else { return };
    tracing::error!(
        name,
        flow_group,
        run_ns,
        "a module has taken more than {percent} % of a core's time, and is detached; `towpath module rm {name}`, and add it again with a larger --budget or less to do"
    );
}

/// A copy of a frame with room around it. The caller has seen that it fits.
pub fn with_room<'a>(buffer: &'a mut [u8], bytes: &[u8], about: TowpathFrame, interface: u32) -> Frame<'a> {
    buffer[HEADROOM - TOWPATH_FRAME_BYTES..HEADROOM].copy_from_slice(&about.bytes());
    buffer[HEADROOM..HEADROOM + bytes.len()].copy_from_slice(bytes);
    let (length, meta, queue) = (bytes.len(), TOWPATH_FRAME_BYTES, about.flow_group);
    Frame { start: HEADROOM, length, meta, room: true, ifindex: interface, queue, ..Frame::whole(buffer) }
}

/// Runs the modules on a copy of a received frame, in the buffer of this number. Returns what becomes of it, and its length.
fn run_copy<const SELECTS: bool>(filter: &mut Filter, number: u64, bytes: &[u8], selectors: u32) -> (Action, u32) {
    let about = TowpathFrame { port: filter.port, flow_group: filter.group, ..TowpathFrame::default() };
    let mut copy = with_room(&mut filter.held[number as usize], bytes, about, filter.interface);
    let action = run::<SELECTS>(&mut filter.ingress, &mut copy, selectors);
    filter.starts[number as usize] = copy.start as u32;
    (action, copy.length as u32)
}

/// A copy of a frame in this buffer. `None`: it is longer.
fn copied<'a>(buffer: &'a mut [u8], frame: &[u8]) -> Option<&'a mut [u8]> {
    let copy = buffer.get_mut(..frame.len())?;
    copy.copy_from_slice(frame);
    Some(copy)
}

impl<const SELECTS: bool, const ROOM: bool> ModulePort<SELECTS, ROOM> {
    fn new(inner: Box<dyn Port>, mut filter: Filter) -> Self {
        filter.stands_at(inner.interface());
        Self { inner, filter }
    }

    /// Runs the modules on received frames in their places, from this one on, and takes out those that do not pass.
    fn received_in_place(&mut self, frames: &mut Vec<RxFrame>, from: usize) {
        if SELECTS || frames.get(from).is_some_and(|frame| frame.checksum == RxChecksum::MaybePartial) {
            self.received_one_by_one(frames, from);
        } else {
            let Self { inner, filter } = self;
            let Filter { ingress, left, .. } = filter;
            inner.batches_in_place(frames, from, &mut |first, batch| ingress.run_batch(first, batch, left));
            if filter.left.is_empty() {
                return;
            }
            filter.take_out(frames);
        }
        self.give_back();
    }

    /// Sends frames back that are to go, and gives the port those that the stack does not get.
    #[cold]
    #[inline(never)]
    fn give_back(&mut self) {
        for at in 0..self.filter.back.len() {
            let frame = self.filter.back[at];
            self.send_back(&frame);
            self.filter.done.push(frame);
        }
        self.filter.back.clear();
        self.release_done();
    }

    fn release_done(&mut self) {
        if !self.filter.done.is_empty() {
            self.inner.release(&self.filter.done);
            self.filter.done.clear();
        }
    }

    /// The same for frames that go to some modules only, or some of which have no checksum. Once a module has changed a frame
    /// nobody can tell.
    #[inline(never)]
    fn received_one_by_one(&mut self, frames: &mut Vec<RxFrame>, from: usize) {
        let Self { inner, filter } = self;
        let Filter { ingress, done, back, leaving, interface, .. } = filter;
        let mut goes = Goes { done, back, leaving, interface: *interface };
        inner.retain_in_place(frames, from, &mut |frame, bytes| {
            let checksum = send_back::received(bytes, frame.checksum);
            match run_in_place::<SELECTS>(ingress, bytes) {
                Action::Pass => true,
                action => goes.left(RxFrame { checksum, ..*frame }, action, ingress.over()),
            }
        });
    }

    /// Runs the modules on a received frame with room around it. False: the stack does not get it, and the port gets it back.
    fn received(&mut self, frame: &mut RxFrame) -> bool {
        let Self { inner, filter } = self;
        let bytes = inner.bytes(frame);
        let selectors = if SELECTS { filter.ingress.selectors_of(bytes) } else { EVERY };
        if SELECTS && !filter.ingress.is_for(selectors) {
            return true;
        }
        if bytes.len() > LARGEST {
            return false;
        }
        let Some(number) = filter.free.pop() else { return false };
        let checksum = send_back::received(bytes, frame.checksum);
        let (action, len) = run_copy::<SELECTS>(filter, number, bytes, selectors);
        let moved = RxFrame { handle: OURS | number, len, ..*frame };
        match action {
            Action::Pass => {
                filter.done.push(std::mem::replace(frame, moved));
                return true;
            }
            action => self.copy_left(RxFrame { checksum, ..moved }, action),
        }
        false
    }

    /// A copy in a buffer of ours does not pass.
    #[cold]
    fn copy_left(&mut self, copy: RxFrame, action: Action) {
        let over = self.filter.ingress.over();
        match action {
            Action::Redirect if over != self.filter.interface => {
                return self.filter.leaving.push(Leaving { frame: copy, over });
            }
            Action::Tx | Action::Redirect => self.send_back(&copy),
            _ => {}
        }
        self.filter.free.push(copy.handle & !OURS);
    }

    /// Sends a received frame over the port that it came from.
    #[cold]
    fn send_back(&mut self, frame: &RxFrame) {
        let Self { inner, filter } = self;
        let mut checksum = frame.checksum;
        let able = inner.capabilities();
        if frame.handle & OURS == 0
            && let Some(bytes) = inner.bytes_mut(frame)
            && send_back::is_super(able, bytes, frame.gso_bytes)
            && let Some((payload, end, offload)) = send_back::ready(able, bytes, checksum, frame.gso_bytes)
        {
            if inner.return_super(&RxFrame { len: end as u32, ..*frame }, payload, offload) {
                return;
            }
            // It has the pseudo-header's sum now.
            checksum = RxChecksum::Valid;
        }
        let bytes = if frame.handle & OURS == 0 {
            // Memory for receiving and for sending is one port's, so it goes by way of ours.
            filter.returned.as_mut().and_then(|buffer| copied(buffer, inner.bytes(frame)))
        } else {
            let at = (frame.handle & !OURS) as usize;
            let start = filter.starts[at] as usize;
            filter.held[at].get_mut(start..start + frame.len as usize)
        };
        if !bytes.is_some_and(|bytes| send_back::send(&mut **inner, bytes, checksum, frame.gso_bytes)) {
            filter.ingress.failed(EVERY);
        }
    }

    /// Runs the modules on a frame that the stack sends, in its place.
    #[inline(always)]
    fn sends_in_place(&mut self, len: usize, offload: TxOffload) {
        let is_super = offload.gso_bytes != 0;
        let reserved = if is_super { self.inner.reserve_super() } else { self.inner.reserve() };
        let Some(bytes) = reserved.and_then(|buffer| buffer.get_mut(..len)) else { return };
        if run_in_place::<SELECTS>(&mut self.filter.egress, bytes) == Action::Pass {
            self.inner.commit(len, offload);
        }
    }

    /// Takes a frame that the stack sends through no module, several, or one that wants room around it.
    #[inline(never)]
    fn sends_otherwise(&mut self, len: usize, offload: TxOffload) {
        if self.filter.egress.is_empty() {
            self.inner.commit(len, offload);
        } else if ROOM && self.filter.egress.wants_room() {
            self.sends(len, offload);
        } else {
            self.sends_in_place(len, offload);
        }
    }

    /// Runs the modules on a frame that the stack sends, with room around it.
    #[inline(never)]
    fn sends(&mut self, len: usize, mut offload: TxOffload) {
        let Self { inner, filter } = self;
        let is_super = offload.gso_bytes != 0;
        let reserved = if is_super { inner.reserve_super() } else { inner.reserve() };
        let Some(buffer) = reserved.filter(|buffer| len <= buffer.len()) else { return };
        let selectors = if SELECTS { filter.egress.selectors_of(&buffer[..len]) } else { EVERY };
        if SELECTS && !filter.egress.is_for(selectors) {
            return inner.commit(len, offload);
        }
        if len > LARGEST {
            return filter.egress.failed(selectors);
        }
        let (gso_bytes, port, flow_group) = (offload.gso_bytes, filter.port, filter.group);
        let about = TowpathFrame { gso_bytes, egress: true, port, flow_group };
        let Some(sent) = &mut filter.sent else { return filter.egress.failed(selectors) };
        let mut copy = with_room(sent, &buffer[..len], about, filter.interface);
        if run::<SELECTS>(&mut filter.egress, &mut copy, selectors) != Action::Pass {
            return;
        }
        let grown = HEADROOM as i64 - copy.start as i64;
        let start = i64::from(offload.checksum_start) + grown;
        let uses_start = is_super || offload.checksum_needed;
        let Some(buffer) = buffer.get_mut(..copy.length).filter(|_| !uses_start || (14..=255).contains(&start)) else {
            return filter.egress.failed(selectors);
        };
        buffer.copy_from_slice(copy.bytes());
        if uses_start {
            offload.checksum_start = start as u16;
        }
        let len = copy.length;
        inner.commit(len, offload);
    }
}

impl<const SELECTS: bool, const ROOM: bool> Port for ModulePort<SELECTS, ROOM> {
    fn capabilities(&self) -> Capabilities {
        let all = self.inner.capabilities();
        let growth = if ROOM && self.filter.egress.wants_room() { GROWTH } else { 0 };
        Capabilities { gso_max_bytes: all.gso_max_bytes.saturating_sub(growth), ..all }
    }
    fn interface(&self) -> u32 {
        self.inner.interface()
    }
    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        let before = frames.len();
        self.inner.receive(frames, max);
        if self.filter.ingress.is_empty() || frames.len() == before {
            return;
        }
        if ROOM && self.filter.ingress.wants_room() {
            let mut kept = before;
            for at in before..frames.len() {
                let mut frame = frames[at];
                if self.received(&mut frame) {
                    frames[kept] = frame;
                    kept += 1;
                } else {
                    self.filter.done.push(frame);
                }
            }
            frames.truncate(kept);
            self.release_done();
        } else {
            self.received_in_place(frames, before);
        }
        settle(&mut self.filter.ingress);
    }
    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        if !ROOM || frame.handle & OURS == 0 {
            return self.inner.bytes(frame);
        }
        let at = (frame.handle & !OURS) as usize;
        let start = self.filter.starts.get(at).map_or(0, |start| *start as usize);
        let buffer = self.filter.held.get(at).and_then(|buffer| buffer.get(start..start + frame.len as usize));
        buffer.unwrap_or(&[])
    }
    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        if !ROOM || frame.handle & OURS == 0 {
            return self.inner.bytes_mut(frame);
        }
        let at = (frame.handle & !OURS) as usize;
        let start = *self.filter.starts.get(at)? as usize;
        self.filter.held.get_mut(at)?.get_mut(start..start + frame.len as usize)
    }
    fn release(&mut self, frames: &[RxFrame]) {
        if !ROOM || self.filter.held.is_empty() {
            return self.inner.release(frames);
        }
        for frame in frames {
            if frame.handle & OURS != 0 {
                self.filter.free.push(frame.handle & !OURS);
            } else {
                self.filter.done.push(*frame);
            }
        }
        self.inner.release(&self.filter.done);
        self.filter.done.clear();
    }
    fn reserve(&mut self) -> Option<&mut [u8]> {
        self.inner.reserve()
    }
    fn reserve_super(&mut self) -> Option<&mut [u8]> {
        self.inner.reserve_super()
    }
    fn commit(&mut self, len: usize, offload: TxOffload) {
        // One module is the usual case.
        if ROOM || !self.filter.egress.is_single() {
            return self.sends_otherwise(len, offload);
        }
        self.sends_in_place(len, offload);
    }
    fn commit_gathered(&mut self, header: usize, payload: Payload<'_>, offload: TxOffload) {
        if self.filter.egress.is_empty() {
            return self.inner.commit_gathered(header, payload, offload);
        }
        commit_whole(self, header, &payload, offload);
    }
    fn flush(&mut self) {
        settle(&mut self.filter.egress);
        self.inner.flush();
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }
    fn pending(&mut self) -> bool {
        self.inner.pending()
    }
    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
    fn set_inner(&mut self, inner: Box<dyn Port>) -> Result<(), Box<dyn Port>> {
        // A capture stands between, and goes on.
        if let Err(inner) = self.inner.set_inner(inner) {
            self.inner = inner;
        }
        self.filter.stands_at(self.inner.interface());
        Ok(())
    }
    fn translate(&mut self, frame: &mut [u8]) -> Option<u32> {
        let Self { inner, filter } = self;
        let mut leaves = None;
        // Whoever kept the frame has checked it. The checksum is made new.
        if !ROOM || !filter.ingress.wants_room() {
            let action = run_in_place::<SELECTS>(&mut filter.ingress, frame);
            let over = Some(filter.ingress.over()).filter(|_| action == Action::Redirect);
            leaves = over.filter(|over| *over != filter.interface);
            let goes_back = action == Action::Tx || (over.is_some() && leaves.is_none());
            if goes_back && !send_back::send(&mut **inner, frame, RxChecksum::Valid, 0) {
                filter.ingress.failed(EVERY);
            }
        } else if frame.len() <= LARGEST
            && let Some(number) = filter.free.pop()
        {
            let selectors = if SELECTS { filter.ingress.selectors_of(frame) } else { EVERY };
            let (action, len) = run_copy::<SELECTS>(filter, number, frame, selectors);
            let copy = RxFrame { handle: OURS | number, len, checksum: RxChecksum::Valid, gso_bytes: 0 };
            self.copy_left(copy, action);
        }
        settle(&mut self.filter.ingress);
        leaves
    }
    fn leaving(&mut self, frames: &mut Vec<Leaving>) {
        frames.append(&mut self.filter.leaving);
    }
    fn send_past(&mut self, frame: &mut [u8], checksum: RxChecksum, gso_bytes: u16) -> bool {
        send_back::send(&mut *self.inner, frame, checksum, gso_bytes)
    }
    fn failed(&mut self) {
        self.filter.ingress.failed(EVERY);
    }
    fn inner(&mut self) -> Option<Box<dyn Port>> {
        Some(std::mem::replace(&mut self.inner, Box::new(Loopback::with_buffers(0, 0))))
    }
}
