//! What looks at the frames of a port: modules, and whoever captures. If it can, it stands beside the port: the stack uses the
//! port itself for each frame, and all frames of a turn are looked at when they have come, and before they go. Else it stands
//! before the port.

use crate::between::Between;
use crate::filter::Filter;
use crate::module_port::before;
use crate::send_back;
use crate::tapped_port::{PortTap, TappedPort};
use towpath_modules::EVERY;
use towpath_ports::memory::Loopback;
use towpath_ports::{Leaving, Payload, Port, RxChecksum, RxFrame, TxOffload};

/// What stands beside a port.
#[derive(Default)]
pub struct Beside {
    /// The tap is below the modules: a capture has the port's own frames.
    tap: Option<Box<PortTap>>,
    filter: Option<Box<Filter>>,
    /// Modules stand before the port.
    has_before: bool,
    /// The turns of tenants end with that of this port.
    ends_turns: bool,
}

impl Beside {
    /// Does nothing stand there, and are there no modules before the port?
    pub fn is_empty(&self) -> bool {
        self.tap.is_none() && self.filter.is_none() && !self.has_before
    }

    /// Lets the port's frames go through these modules, or (`None`) through none.
    #[inline(never)]
    pub fn filter(&mut self, port: &mut Box<dyn Port>, filter: Option<Filter>) {
        self.settle(&mut **port);
        (self.filter, self.ends_turns) = (None, false);
        if std::mem::take(&mut self.has_before)
            && let Some(own) = port.inner()
        {
            *port = own;
        }
        if let Some(filter) = filter {
            self.place(port, Box::new(filter));
        }
    }

    fn place(&mut self, port: &mut Box<dyn Port>, mut filter: Box<Filter>) {
        filter.stands_at(port.interface());
        if filter.stands_beside(&mut **port) {
            filter.pass_over(&mut **port);
            self.ends_turns = filter.ends_turns();
            self.filter = Some(filter);
            return;
        }
        let mut own = taken(port);
        if let Some(tap) = self.tap.take() {
            own = Box::new(TappedPort::new(own, tap));
        }
        (*port, self.has_before) = (before(own, *filter), true);
    }

    /// Shows the port's frames to this tap, or (`None`) to none.
    #[inline(never)]
    pub fn tap(&mut self, port: &mut Box<dyn Port>, tap: Option<PortTap>) {
        self.settle(&mut **port);
        self.tap = None;
        let below = if self.has_before { port.inner() } else { None };
        let is_below = below.is_some();
        let mut own = below.unwrap_or_else(|| taken(port));
        if let Some(untapped) = own.inner() {
            own = untapped;
        }
        if let Some(tap) = tap {
            own = self.show(own, Box::new(tap), is_below);
        }
        if !is_below {
            *port = own;
        } else if let Err(own) = port.set_inner(own) {
            *port = own;
        }
    }

    /// The port with this tap: before it, or beside it.
    fn show(&mut self, mut port: Box<dyn Port>, mut tap: Box<PortTap>, is_below: bool) -> Box<dyn Port> {
        if is_below || !tap.stands_beside(&mut *port) {
            return Box::new(TappedPort::new(port, tap));
        }
        tap.pass_over(&mut *port);
        self.tap = Some(tap);
        port
    }

    /// Puts another port in the place of this one, which is dropped.
    #[inline(never)]
    pub fn replace(&mut self, old: &mut Box<dyn Port>, port: Box<dyn Port>) {
        self.settle(&mut **old);
        let Err(port) = old.set_inner(port) else { return };
        *old = port;
        if let Some(tap) = self.tap.take() {
            *old = self.show(taken(old), tap, false);
        }
        if let Some(filter) = self.filter.take() {
            self.place(old, filter);
        }
    }

    /// Calls this with what the modules beside the port, and the tap below them, make of it.
    fn between<T>(&mut self, port: &mut dyn Port, call: impl FnOnce(&mut Between<'_, false, false>) -> T) -> Option<T> {
        let Self { filter: Some(filter), tap, .. } = self else { return None };
        Some(match tap {
            Some(tap) => call(&mut Between { inner: &mut TappedPort::new(port, &mut **tap), filter }),
            None => call(&mut Between { inner: port, filter }),
        })
    }

    /// Receives frames, and keeps those that pass.
    #[inline(never)]
    pub fn receive(&mut self, port: &mut dyn Port, frames: &mut Vec<RxFrame>, max: usize) {
        let Some(filter) = &self.filter else {
            return match &mut self.tap {
                Some(tap) => tap.receive(port, frames, max),
                None => port.receive(frames, max),
            };
        };
        // What was sent within the host may be received now, and what goes back now goes behind what was sent.
        let has_sent = filter.has_sent();
        if has_sent || self.tap.is_some() {
            self.settle(port);
        }
        self.between(port, |between| between.receive(frames, max));
        // The stack has not sent it.
        if has_sent && let Some(filter) = &mut self.filter {
            filter.pass_over(port);
        }
    }

    /// A turn is over, and its frames were looked at.
    #[inline]
    pub fn end_turn(&self) {
        if self.ends_turns
            && let Some(filter) = &self.filter
        {
            filter.end_turn();
        }
    }

    /// Looks at the frames that were sent since the last call.
    #[inline(never)]
    pub fn settle(&mut self, port: &mut dyn Port) {
        if let Some(filter) = &mut self.filter {
            filter.settle_sent(port);
        }
        if let Some(tap) = &mut self.tap {
            tap.settle_sent(port);
        }
    }

    /// Sends a super-segment. Those that were sent before go before it.
    #[inline(never)]
    pub fn commit_gathered(&mut self, port: &mut dyn Port, header: usize, payload: Payload<'_>, offload: TxOffload) {
        self.settle(port);
        if self.between(port, |between| between.commit_gathered(header, &payload, offload)).is_some() {
            return;
        }
        match &mut self.tap {
            Some(tap) => TappedPort::new(port, &mut **tap).commit_gathered(header, payload, offload),
            None => port.commit_gathered(header, payload, offload),
        }
    }

    /// Takes a frame that was received before through the modules, and sends it back if they say so. Returns over which other
    /// interface it goes, if it does and is not among those that leave.
    #[inline(never)]
    pub fn translate(&mut self, port: &mut dyn Port, frame: &mut [u8]) -> Option<u32> {
        self.settle(port);
        let Some(leaves) = self.between(port, |between| between.translate(frame)) else { return port.translate(frame) };
        if let Some(filter) = &mut self.filter {
            filter.pass_over(port);
        }
        leaves
    }

    /// Appends the received frames that go over other interfaces.
    pub fn leaving(&mut self, port: &mut dyn Port, frames: &mut Vec<Leaving>) {
        match &mut self.filter {
            Some(filter) => frames.append(&mut filter.leaving),
            None => port.leaving(frames),
        }
    }

    /// Sends a frame that another port has received, past the modules. False: the port cannot send it.
    #[inline(never)]
    pub fn send_past(&mut self, port: &mut dyn Port, frame: &mut [u8], checksum: RxChecksum, gso_bytes: u16) -> bool {
        if self.has_before {
            return port.send_past(frame, checksum, gso_bytes);
        }
        self.settle(port);
        let sent = match &mut self.tap {
            Some(tap) => {
                // For no longer than this call.
                let port: &mut dyn Port = &mut *port;
                send_back::send(&mut TappedPort::new(port, &mut **tap), frame, checksum, gso_bytes)
            }
            None => send_back::send(port, frame, checksum, gso_bytes),
        };
        if let Some(filter) = &mut self.filter {
            filter.pass_over(port);
        }
        sent
    }

    /// A frame that was to leave could not be sent.
    pub fn failed(&mut self, port: &mut dyn Port) {
        match &mut self.filter {
            Some(filter) => filter.ingress.failed(EVERY),
            None => port.failed(),
        }
    }
}

/// Takes a port from its place, for another one to come there.
fn taken(port: &mut Box<dyn Port>) -> Box<dyn Port> {
    std::mem::replace(port, Box::new(Loopback::with_buffers(0, 0)))
}
