//! What somebody captures at a port. The filter has all frames of a turn at once: when they have come, and before they go. Where
//! modules stand before the port, so does the capture, below them.

use std::io::IoSliceMut;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use towpath_capture::Tap;
use towpath_capture::tap::now_ns;
use towpath_ports::memory::Loopback;
use towpath_ports::{Capabilities, Port, PortCounters, RxFrame, TxOffload};

/// The tap of a port.
pub struct PortTap {
    tap: Tap,
    /// The port's number. Port 0 is the loopback: its frames are shown once, when they are received.
    place: u16,
    /// Sent frames that were shown: those that were committed when there were so many ([`towpath_ports::Outgoing::committed`]).
    shown: u32,
}

impl PortTap {
    /// Leaves what it sees in this one.
    pub fn new(tap: Tap, place: u16) -> Self {
        Self { tap, place, shown: 0 }
    }

    /// Can it see sent frames where they wait? Else it stands before the port, as [`TappedPort`].
    pub fn stands_beside(&self, port: &mut dyn Port) -> bool {
        self.place == 0 || port.outgoing().is_some()
    }

    /// Frames that were committed until now are not shown.
    pub fn pass_over(&mut self, port: &mut dyn Port) {
        if let Some(outgoing) = port.outgoing() {
            self.shown = outgoing.committed();
        }
    }

    /// Receives frames and shows them.
    pub fn receive(&mut self, port: &mut dyn Port, frames: &mut Vec<RxFrame>, max: usize) {
        let before = frames.len();
        port.receive(frames, max);
        if frames.len() > before {
            let Self { tap, place, .. } = self;
            port.batches_in_place(frames, before, &mut |_, batch| tap.frames(*place, false, batch));
        }
    }

    /// Shows the frames that were sent since, where they wait for the port to send them.
    pub fn settle_sent(&mut self, port: &mut dyn Port) {
        let Self { tap, place, shown } = self;
        if *place != 0
            && let Some(outgoing) = port.outgoing()
        {
            outgoing.batches(*shown, &mut |_, batch| tap.frames(*place, true, batch));
            *shown = outgoing.committed();
        }
    }
}

/// A port that may be another's.
pub trait Below: Send {
    /// The port.
    fn port(&self) -> &dyn Port;
    /// The port.
    fn port_mut(&mut self) -> &mut dyn Port;
    /// Takes it away. `None`: it is another's.
    fn take(&mut self) -> Option<Box<dyn Port>> {
        None
    }
    /// Puts another one in its place.
    fn put(&mut self, port: Box<dyn Port>) -> Result<(), Box<dyn Port>> {
        Err(port)
    }
}

impl Below for Box<dyn Port> {
    fn port(&self) -> &dyn Port {
        self.deref()
    }
    fn port_mut(&mut self) -> &mut dyn Port {
        self.deref_mut()
    }
    fn take(&mut self) -> Option<Box<dyn Port>> {
        Some(std::mem::replace(self, Box::new(Loopback::with_buffers(0, 0))))
    }
    fn put(&mut self, port: Box<dyn Port>) -> Result<(), Box<dyn Port>> {
        *self = port;
        Ok(())
    }
}

impl Below for &mut dyn Port {
    fn port(&self) -> &dyn Port {
        &**self
    }
    fn port_mut(&mut self) -> &mut dyn Port {
        &mut **self
    }
}

/// A port whose frames are shown one by one as they are sent.
pub struct TappedPort<P, T> {
    inner: P,
    tap: T,
}

impl<P: Below, T: DerefMut<Target = PortTap> + Send> TappedPort<P, T> {
    /// Stands before this port.
    pub fn new(inner: P, tap: T) -> Self {
        Self { inner, tap }
    }
}

impl<P: Below, T: DerefMut<Target = PortTap> + Send> Port for TappedPort<P, T> {
    fn capabilities(&self) -> Capabilities {
        self.inner.port().capabilities()
    }
    fn interface(&self) -> u32 {
        self.inner.port().interface()
    }
    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        self.tap.receive(self.inner.port_mut(), frames, max);
    }
    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        self.inner.port().bytes(frame)
    }
    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        self.inner.port_mut().bytes_mut(frame)
    }
    fn batches_in_place(
        &mut self,
        frames: &mut Vec<RxFrame>,
        from: usize,
        run: &mut dyn FnMut(usize, &mut [IoSliceMut<'_>]),
    ) {
        self.inner.port_mut().batches_in_place(frames, from, run);
    }
    fn release(&mut self, frames: &[RxFrame]) {
        self.inner.port_mut().release(frames);
    }
    fn reserve(&mut self) -> Option<&mut [u8]> {
        self.inner.port_mut().reserve()
    }
    fn reserve_super(&mut self) -> Option<&mut [u8]> {
        self.inner.port_mut().reserve_super()
    }
    fn commit(&mut self, len: usize, offload: TxOffload) {
        let Self { inner, tap } = self;
        let (inner, tap) = (inner.port_mut(), &mut **tap);
        // The buffer reserved last is reserved until it is committed.
        if tap.place != 0 {
            let reserved = if offload.gso_bytes == 0 { inner.reserve() } else { inner.reserve_super() };
            if let Some(frame) = reserved.and_then(|buffer| buffer.get(..len)) {
                tap.tap.frame(tap.place, true, now_ns(), frame);
            }
        }
        inner.commit(len, offload);
        tap.pass_over(inner);
    }
    fn flush(&mut self) {
        self.inner.port_mut().flush();
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.port().wait_fd()
    }
    fn pending(&mut self) -> bool {
        self.inner.port_mut().pending()
    }
    fn counters(&self) -> PortCounters {
        self.inner.port().counters()
    }
    fn set_inner(&mut self, inner: Box<dyn Port>) -> Result<(), Box<dyn Port>> {
        self.inner.put(inner)
    }
    fn inner(&mut self) -> Option<Box<dyn Port>> {
        self.inner.take()
    }
}
