//! What becomes of frames that modules have, between a port and the stack.
//!
//! One call runs a module on all frames that a port has received in a turn. The same holds for those that the stack has sent in
//! a turn, before the port hands them to its device ([`Filter::settle_sent`]). Frames that are copied, or that some modules have
//! and others do not, go one by one.
//!
//! If a module has a selector, it is looked up first whose each frame is. Without selectors nothing is asked for them.

use crate::filter::{Filter, OURS};
use crate::goes::Goes;
use crate::room::{HEADROOM, LARGEST, with_room};
use crate::send_back;
use towpath_modules::module::Action;
use towpath_modules::{Chain, EVERY, Frame, Left, TowpathFrame};
use towpath_ports::gather::gather;
use towpath_ports::{Leaving, Payload, Port, RxChecksum, RxFrame, TxOffload};

/// The modules of a port, and the port. `SELECTS`: a module has a selector. `ROOM`: one wants room around frames, at ingress or at
/// egress. So nothing is asked for what no module has.
pub struct Between<'a, const SELECTS: bool, const ROOM: bool> {
    /// The port.
    pub inner: &'a mut dyn Port,
    /// Its modules.
    pub filter: &'a mut Filter,
}

impl<const SELECTS: bool, const ROOM: bool> Between<'_, SELECTS, ROOM> {
    /// Receives frames, and keeps those that pass.
    pub fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
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
        self.filter.ingress.settle();
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
            take_out(filter, frames);
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
        let (action, len) = run_copy::<SELECTS>(filter, number, (bytes, frame.gso_bytes), selectors);
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
        let flow = filter.flows[1].as_ref().and_then(|flows| flows.flow_sent(&buffer[..len]));
        let about = TowpathFrame { gso_bytes, egress: true, port, flow_group, flow };
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

    /// Takes a frame that the stack sends, which is in the buffer reserved last.
    #[inline]
    pub fn commit(&mut self, len: usize, offload: TxOffload) {
        // One module is the usual case.
        if ROOM || !self.filter.egress.is_single() {
            return self.sends_otherwise(len, offload);
        }
        self.sends_in_place(len, offload);
    }

    /// Gives received frames back, each to whom it belongs.
    pub fn release(&mut self, frames: &[RxFrame]) {
        for frame in frames {
            if Filter::holds(frame) {
                self.filter.free.push(frame.handle & !OURS);
            } else {
                self.filter.done.push(*frame);
            }
        }
        self.inner.release(&self.filter.done);
        self.filter.done.clear();
    }

    /// Takes a super-segment.
    pub fn commit_gathered(&mut self, header: usize, payload: &Payload<'_>, offload: TxOffload) {
        if self.filter.egress.is_empty() {
            return self.inner.commit_gathered(header, *payload, offload);
        }
        let Some(buffer) = self.inner.reserve_super() else { return };
        if let Some(len) = gather(buffer, header, payload) {
            self.commit(len, offload);
        }
    }

    /// Takes a frame that was received before through the modules, and sends it back if they say so. Returns over which other
    /// interface it goes, if it does and is not among those that leave.
    pub fn translate(&mut self, frame: &mut [u8]) -> Option<u32> {
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
            let (action, len) = run_copy::<SELECTS>(filter, number, (frame, 0), selectors);
            let copy = RxFrame { handle: OURS | number, len, checksum: RxChecksum::Valid, gso_bytes: 0 };
            self.copy_left(copy, action);
        }
        self.filter.ingress.settle();
        leaves
    }
}

/// Takes frames out that do not pass, of those that were received.
#[cold]
#[inline(never)]
fn take_out(filter: &mut Filter, frames: &mut Vec<RxFrame>) {
    let Filter { done, back, leaving, interface, left: places, .. } = filter;
    let mut goes = Goes { done, back, leaving, interface: *interface };
    let mut places = places.drain(..).peekable();
    let mut at = 0;
    frames.retain(|frame| {
        let left = places.next_if(|left| left.place == at);
        at += 1;
        left.is_none_or(|Left { action, over, .. }| goes.left(*frame, action, over))
    });
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

/// Runs the modules on a copy of a received frame, in the buffer of this number. With the frame stands in segments of how much payload
/// it has come. Returns what becomes of it, and its length.
fn run_copy<const SELECTS: bool>(
    filter: &mut Filter,
    number: u64,
    (bytes, gso_bytes): (&[u8], u16),
    selectors: u32,
) -> (Action, u32) {
    let flow = filter.flows[0].as_ref().and_then(|flows| flows.flow_received(bytes));
    let about = TowpathFrame { gso_bytes, egress: false, port: filter.port, flow_group: filter.group, flow };
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
