//! A port whose frames somebody captures. It stands before the port while the capture runs, so that without one nothing
//! is asked on the way of a frame.

use std::os::fd::BorrowedFd;
use towpath_capture::Tap;
use towpath_capture::tap::now_ns;
use towpath_ports::memory::Loopback;
use towpath_ports::{Capabilities, Port, PortCounters, RxFrame, TxOffload};

/// See the module.
pub struct TappedPort {
    inner: Box<dyn Port>,
    tap: Tap,
    /// The port's number.
    place: u16,
}

impl TappedPort {
    /// Stands before this port. Port 0 is the loopback: its frames are shown once, when they are received.
    pub fn new(inner: Box<dyn Port>, tap: Tap, place: u16) -> Self {
        Self { inner, tap, place }
    }
}

impl Port for TappedPort {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn interface(&self) -> u32 {
        self.inner.interface()
    }
    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        let before = frames.len();
        self.inner.receive(frames, max);
        if frames.len() == before {
            return;
        }
        let time = now_ns();
        for frame in &frames[before..] {
            self.tap.frame(self.place, false, time, self.inner.bytes(frame));
        }
    }
    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        self.inner.bytes(frame)
    }
    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        self.inner.bytes_mut(frame)
    }
    fn release(&mut self, frames: &[RxFrame]) {
        self.inner.release(frames);
    }
    fn reserve(&mut self) -> Option<&mut [u8]> {
        self.inner.reserve()
    }
    fn reserve_super(&mut self) -> Option<&mut [u8]> {
        self.inner.reserve_super()
    }
    fn commit(&mut self, len: usize, offload: TxOffload) {
        // The buffer reserved last is reserved until it is committed.
        if self.place != 0 {
            let reserved = if offload.gso_bytes == 0 { self.inner.reserve() } else { self.inner.reserve_super() };
            if let Some(frame) = reserved.and_then(|buffer| buffer.get(..len)) {
                self.tap.frame(self.place, true, now_ns(), frame);
            }
        }
        self.inner.commit(len, offload);
    }
    fn flush(&mut self) {
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
        self.inner = inner;
        Ok(())
    }
    fn inner(&mut self) -> Option<Box<dyn Port>> {
        Some(std::mem::replace(&mut self.inner, Box::new(Loopback::with_buffers(0, 0))))
    }
}
