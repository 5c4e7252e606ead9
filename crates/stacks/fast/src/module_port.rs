//! A port whose frames go through modules that cannot stand beside it: they want room around frames, or have a selector. Or the
//! port does not show the frames that it has taken to send. It stands before the port while there is such a module.

use crate::between::Between;
use crate::filter::Filter;
use crate::send_back;
use std::os::fd::BorrowedFd;
use towpath_modules::EVERY;
use towpath_ports::memory::Loopback;
use towpath_ports::{Capabilities, Leaving, Payload, Port, PortCounters, RxChecksum, RxFrame, TxOffload};

/// What a super-segment may grow by.
const GROWTH: u32 = 64;

/// The port with these modules before it. It is a type for each use, so that nobody pays for questions of another one.
pub fn before(port: Box<dyn Port>, mut filter: Filter) -> Box<dyn Port> {
    filter.stands_at(port.interface());
    match (filter.selects(), filter.wants_room()) {
        (false, false) => Box::new(ModulePort::<false, false> { inner: port, filter }),
        (false, true) => Box::new(ModulePort::<false, true> { inner: port, filter }),
        (true, false) => Box::new(ModulePort::<true, false> { inner: port, filter }),
        (true, true) => Box::new(ModulePort::<true, true> { inner: port, filter }),
    }
}

/// See the module, and [`Between`].
struct ModulePort<const SELECTS: bool, const ROOM: bool> {
    inner: Box<dyn Port>,
    filter: Filter,
}

impl<const SELECTS: bool, const ROOM: bool> ModulePort<SELECTS, ROOM> {
    fn between(&mut self) -> Between<'_, SELECTS, ROOM> {
        Between { inner: &mut *self.inner, filter: &mut self.filter }
    }
}

impl<const SELECTS: bool, const ROOM: bool> Port for ModulePort<SELECTS, ROOM> {
    fn capabilities(&self) -> Capabilities {
        let all = self.inner.capabilities();
        let growth = if ROOM && self.filter.grows_sent() { GROWTH } else { 0 };
        Capabilities { gso_max_bytes: all.gso_max_bytes.saturating_sub(growth), ..all }
    }
    fn interface(&self) -> u32 {
        self.inner.interface()
    }
    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        self.between().receive(frames, max);
    }
    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        if ROOM && Filter::holds(frame) { self.filter.held(frame) } else { self.inner.bytes(frame) }
    }
    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        if ROOM && Filter::holds(frame) { self.filter.held_mut(frame) } else { self.inner.bytes_mut(frame) }
    }
    fn release(&mut self, frames: &[RxFrame]) {
        if ROOM { self.between().release(frames) } else { self.inner.release(frames) }
    }
    fn reserve(&mut self) -> Option<&mut [u8]> {
        self.inner.reserve()
    }
    fn reserve_super(&mut self) -> Option<&mut [u8]> {
        self.inner.reserve_super()
    }
    fn commit(&mut self, len: usize, offload: TxOffload) {
        self.between().commit(len, offload);
    }
    fn commit_gathered(&mut self, header: usize, payload: Payload<'_>, offload: TxOffload) {
        self.between().commit_gathered(header, &payload, offload);
    }
    fn flush(&mut self) {
        self.filter.egress.settle();
        self.filter.end_turn();
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
        self.between().translate(frame)
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
