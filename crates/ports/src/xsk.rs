//! AF_XDP: one socket on one queue of an interface.

use crate::assembly::{Added, Assembly};
use crate::mapping::{Mapping, Ring};
use crate::outgoing::is_next;
use crate::super_sender::{GSO_MAX_BYTES, Outcome, SuperSender};
use crate::xsk_socket::{Rings, XskSocket, get_option};
pub use crate::xsk_socket::{XskConfig, XskError};
use crate::{Capabilities, Outgoing, Payload, Port, PortCounters, RxChecksum, RxFrame, TxOffload};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// In copy mode the kernel sends this many frames per system call (TX_BATCH_SIZE in net/xdp/xsk.c).
const COPY_BATCH: u32 = 32;

/// Bytes of a VLAN's tag.
const TAG_BYTES: u32 = 4;

/// An AF_XDP socket with its frame memory.
///
/// Half of the frames serve each direction, so that neither can starve the other. Received frames are ours until
/// [`Port::release`] returns them to the fill ring. Sent frames are the kernel's until it completes them.
pub struct XskPort {
    // Field order matters: the socket is closed before its memory is unmapped.
    socket: OwnedFd,
    /// Super-segments go past the rings.
    packets: Option<SuperSender>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    memory: Mapping,
    /// A power of two: a division would take longer than all else that is done for a frame.
    frame_bytes: u32,
    frame_shift: u32,
    /// Frames `0..rx_frames` receive; the others send.
    rx_frames: u32,
    /// For each receiving frame: is it between `receive` and `release`?
    held: Vec<bool>,
    /// Received super-segments.
    assembly: Assembly,
    /// Sending frames that may be reserved.
    free: Vec<u32>,
    reserved: Option<u32>,
    interface: u32,
    queue: u32,
    zero_copy: bool,
    checksum: RxChecksum,
    mtu_bytes: u32,
    header_bytes: u32,
    rx_bad: u64,
    counted: PortCounters,
}

impl XskPort {
    /// Opens a socket on a queue of an interface of the thread's network namespace. It receives frames once the
    /// steering program is bound to it ([`crate::steering::Steering::bind`]).
    pub fn open(interface: &str, queue: u32, config: XskConfig) -> Result<Self, XskError> {
        let error = |error| XskError::System { interface: interface.into(), call: "mmap", error };
        Self::over(XskSocket::open(interface, queue, config)?).map_err(error)
    }

    /// Uses a socket that is new, or whose user has ended; then it must be at rest ([`XskSocket::is_at_rest`]). Frames
    /// that have come meanwhile are dropped. Those that were to be sent are sent.
    pub fn over(made: XskSocket) -> io::Result<Self> {
        let (shape, memory) = (made.shape(), made.map_memory()?);
        if !shape.frame_bytes.is_power_of_two() {
            return Err(io::Error::other("the size of a frame buffer is no power of two"));
        }
        let Rings { mut fill, completion, mut rx, tx } = made.map_rings()?;
        let (per_way, frame_bytes) = (shape.frames_per_way() as usize, u64::from(shape.frame_bytes));
        let mut busy = vec![false; shape.frames as usize];
        let sending = tx.queued().map(|descriptor| descriptor.addr).chain(completion.queued());
        for address in fill.queued().chain(sending) {
            if let Some(busy) = busy.get_mut((address / frame_bytes) as usize) {
                *busy = true;
            }
        }
        while rx.next().is_some() {}
        rx.give_back();
        for (frame, _) in busy[..per_way].iter().enumerate().filter(|(_, busy)| !**busy) {
            fill.push(frame as u64 * frame_bytes);
        }
        fill.publish();
        let (queue, zero_copy) = (made.queue(), made.zero_copy()?);
        let (socket, packets) = made.into_sockets();
        Ok(Self {
            socket,
            packets: packets.map(SuperSender::new).transpose()?,
            fill,
            completion,
            rx,
            tx,
            memory,
            frame_bytes: shape.frame_bytes,
            frame_shift: shape.frame_bytes.trailing_zeros(),
            rx_frames: per_way as u32,
            held: vec![false; per_way],
            assembly: Assembly::new(),
            free: (shape.frames_per_way()..shape.frames).rev().filter(|frame| !busy[*frame as usize]).collect(),
            reserved: None,
            interface: shape.interface,
            queue,
            zero_copy,
            checksum: shape.checksum(),
            mtu_bytes: shape.mtu_bytes(),
            header_bytes: shape.header_bytes(),
            rx_bad: 0,
            counted: PortCounters::default(),
        })
    }

    /// The queue of the interface.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Does the device read and write the frame memory itself?
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    #[inline]
    fn frame_of(&self, address: u64) -> u64 {
        address >> self.frame_shift
    }

    /// Do so many bytes from this address on lie within one frame?
    #[inline]
    fn in_one_frame(&self, address: u64, len: u32) -> bool {
        let begin = address & u64::from(self.frame_bytes - 1);
        begin + u64::from(len) <= u64::from(self.frame_bytes)
    }

    /// The frame that a descriptor of the receive ring gives to us. `None`: its bytes are not within one frame for
    /// receiving that is the kernel's.
    fn given(&self, descriptor: &libc::xdp_desc) -> Option<usize> {
        let frame = self.frame_of(descriptor.addr) as usize;
        let whole = self.in_one_frame(descriptor.addr, descriptor.len);
        (self.held.get(frame) == Some(&false) && whole).then_some(frame)
    }

    /// Copies a part of a super-segment, and gives its frame back. Returns the super-segment if it is whole now.
    #[inline(never)]
    fn assemble(&mut self, part: &libc::xdp_desc) -> Option<RxFrame> {
        let last = part.options & libc::XDP_PKT_CONTD == 0;
        let added = match self.given(part) {
            Some(frame) => {
                // SAFETY: the range lies within one receiving frame of the mapping, as `given` has found. The kernel will
                // not write it before it is in the fill ring again.
                let bytes = unsafe { bytes_at(&self.memory, part.addr, part.len) };
                let added = self.assembly.add(bytes, last);
                // The ring has room for every receiving frame, so it is never full.
                self.fill.push(frame as u64 * u64::from(self.frame_bytes));
                added
            }
            None => {
                self.rx_bad += 1;
                self.assembly.add(&[], last)
            }
        };
        match added {
            Added::Whole(handle, len) => Some(RxFrame { handle, len, checksum: self.checksum, gso_bytes: 0 }),
            Added::Unfinished => None,
            Added::Dropped => {
                self.rx_bad += 1;
                None
            }
        }
    }

    /// Has the kernel send the frames of the ring.
    fn send_waiting(&mut self) {
        self.tx.publish();
        if self.tx.waiting() > 0 && self.tx.needs_wakeup() {
            self.kick();
        }
    }

    /// Sends a super-segment: `header` bytes of its buffer, and this payload. Frames committed before go before it.
    #[cold]
    fn commit_super(&mut self, header: usize, payload: &Payload<'_>, offload: TxOffload) {
        self.send_waiting();
        let outcome = self.packets.as_mut().map_or(Outcome::Lost, |packets| packets.commit(header, payload, offload));
        self.count_super(outcome);
    }

    fn count_super(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Sent => self.counted.tx_frames += 1,
            Outcome::Waits => {}
            Outcome::Lost => self.counted.tx_dropped += 1,
        }
    }

    /// Takes back the frames that the kernel has sent.
    fn reap(&mut self) {
        while let Some(address) = self.completion.next() {
            let frame = self.frame_of(address);
            let ours = frame >= u64::from(self.rx_frames) && frame < u64::from(self.rx_frames) + self.held.len() as u64;
            debug_assert!(ours, "the kernel completed a frame that is not for sending");
            if ours {
                self.free.push(frame as u32);
            }
        }
        self.completion.give_back();
    }

    /// Lets the kernel send the ring's frames. It is called only as often as a full ring takes in batches.
    /// Frames that a full device queue does not take stay for the next flush.
    fn kick(&mut self) {
        let mut left = self.tx.waiting();
        let attempts = left / COPY_BATCH + 1;
        for _ in 0..attempts {
            // SAFETY: the buffer and the address are null, so no memory is passed.
            let result = unsafe {
                libc::sendto(self.socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
            };
            let error = if result < 0 { io::Error::last_os_error().raw_os_error() } else { None };
            if error == Some(libc::EBUSY) {
                // Copy mode: the device dropped one frame. It is completed nevertheless.
                self.counted.tx_dropped += 1;
            } else if error != Some(libc::EAGAIN) {
                return;
            }
            let before = std::mem::replace(&mut left, self.tx.waiting());
            if left == 0 || left == before {
                return;
            }
            // A full completion ring or send buffer also gives EAGAIN.
            self.reap();
        }
    }

    /// Lets the driver continue receiving if it has stopped for lack of frames.
    fn wake_receiver(&mut self) {
        if self.fill.needs_wakeup() {
            // SAFETY: the buffer and the address are null, so no memory is passed.
            unsafe {
                libc::recvfrom(
                    self.socket.as_raw_fd(),
                    std::ptr::null_mut(),
                    0,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                )
            };
        }
    }
}

/// Bytes of the frame memory that the kernel has written.
///
/// # Safety
/// The range lies in the mapping. Neither the kernel nor we write it as long as the slice is there.
unsafe fn bytes_at(memory: &Mapping, address: u64, len: u32) -> &[u8] {
    // SAFETY: as promised by the caller.
    unsafe { std::slice::from_raw_parts(memory.start().as_ptr().add(address as usize), len as usize) }
}

impl AsFd for XskPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Port for XskPort {
    fn capabilities(&self) -> Capabilities {
        let gso_max_bytes = if self.packets.is_some() { GSO_MAX_BYTES } else { 0 };
        Capabilities { mtu_bytes: self.mtu_bytes, tx_checksum: false, gso_max_bytes }
    }

    fn interface(&self) -> u32 {
        self.interface
    }

    fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        let (before, mut assembled) = (frames.len(), false);
        while frames.len() - before < max {
            let Some(descriptor) = self.rx.peek() else { break };
            if descriptor.options & libc::XDP_PKT_CONTD != 0 || self.assembly.is_unfinished() {
                if !self.assembly.has_room() {
                    break;
                }
                self.rx.advance();
                frames.extend(self.assemble(&descriptor));
                assembled = true;
                continue;
            }
            self.rx.advance();
            match self.given(&descriptor) {
                Some(frame) => {
                    self.held[frame] = true;
                    frames.push(RxFrame {
                        handle: descriptor.addr,
                        len: descriptor.len,
                        checksum: self.checksum,
                        gso_bytes: 0,
                    });
                }
                None => self.rx_bad += 1,
            }
        }
        self.rx.give_back();
        if assembled {
            self.fill.publish();
        }
        self.counted.rx_frames += (frames.len() - before) as u64;
        self.wake_receiver();
    }

    fn bytes(&self, frame: &RxFrame) -> &[u8] {
        if Assembly::has(frame.handle) {
            return self.assembly.bytes(frame.handle, frame.len);
        }
        let index = self.frame_of(frame.handle);
        let held = self.held.get(index as usize) == Some(&true) && self.in_one_frame(frame.handle, frame.len);
        debug_assert!(held, "a frame that was not received or is released");
        if !held {
            return &[];
        }
        // SAFETY: the range lies within one receiving frame of the mapping, as checked here. The frame is held: the
        // kernel will not write it before `release`, which needs `&mut self`.
        unsafe { bytes_at(&self.memory, frame.handle, frame.len) }
    }

    fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        if Assembly::has(frame.handle) {
            return self.assembly.bytes_mut(frame.handle, frame.len);
        }
        let index = self.frame_of(frame.handle);
        if self.held.get(index as usize) != Some(&true) || !self.in_one_frame(frame.handle, frame.len) {
            return None;
        }
        // SAFETY: the range lies within one receiving frame of the mapping, as checked here. The frame is held, so the
        // kernel does not use it. No other slice of it exists, as the slice borrows `self`.
        Some(unsafe {
            std::slice::from_raw_parts_mut(self.memory.start().as_ptr().add(frame.handle as usize), frame.len as usize)
        })
    }

    fn release(&mut self, frames: &[RxFrame]) {
        for frame in frames {
            let held = if Assembly::has(frame.handle) {
                self.assembly.release(frame.handle)
            } else {
                let index = self.frame_of(frame.handle);
                let held = self.held.get_mut(index as usize).is_some_and(std::mem::take);
                if held {
                    // The ring has room for every receiving frame, so it is never full.
                    self.fill.push(index * u64::from(self.frame_bytes));
                }
                held
            };
            debug_assert!(held, "a frame that was not received or is released");
        }
        self.fill.publish();
    }

    fn reserve(&mut self) -> Option<&mut [u8]> {
        if self.reserved.is_none() {
            if self.free.is_empty() {
                self.reap();
            }
            // With more frames than descriptors the ring may be full.
            self.reserved = if self.tx.has_room() { self.free.pop() } else { None };
        }
        let start = self.reserved? as usize * self.frame_bytes as usize;
        // SAFETY: the range is a whole sending frame of the mapping. It is reserved, so the kernel does not use it: it
        // is not in the ring, or completed. No other slice of it exists, as the slice borrows `self`.
        Some(unsafe {
            std::slice::from_raw_parts_mut(self.memory.start().as_ptr().add(start), self.frame_bytes as usize)
        })
    }

    fn reserve_super(&mut self) -> Option<&mut [u8]> {
        self.packets.as_mut()?.reserve()
    }

    fn commit(&mut self, len: usize, offload: TxOffload) {
        if offload.gso_bytes != 0 {
            return self.commit_super(len, &[&[]; 3], offload);
        }
        debug_assert!(!offload.checksum_needed, "this port has no other offload");
        let Some(frame) = self.reserved.take() else { return };
        // A tag that a module has put on does not count, as on a device.
        let fits = len <= (self.mtu_bytes + self.header_bytes + TAG_BYTES) as usize && len <= self.frame_bytes as usize;
        debug_assert!(fits, "a frame longer than the MTU");
        let addr = u64::from(frame) * u64::from(self.frame_bytes);
        if !fits || !self.tx.push(libc::xdp_desc { addr, len: len as u32, options: 0 }) {
            self.counted.tx_dropped += 1;
            self.free.push(frame);
            return;
        }
        self.counted.tx_frames += 1;
    }

    fn commit_gathered(&mut self, header: usize, payload: Payload<'_>, offload: TxOffload) {
        self.commit_super(header, &payload, offload);
    }

    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        Some(self)
    }

    fn flush(&mut self) {
        // All sending frames are free, as many as there are for receiving: nothing waits for the kernel, whose words need not be
        // looked at then. Most turns find it so.
        if self.free.len() == self.held.len() && !self.packets.as_ref().is_some_and(SuperSender::waits) {
            return;
        }
        self.send_waiting();
        if let Some(outcome) = self.packets.as_mut().filter(|packets| packets.waits()).map(SuperSender::again) {
            self.count_super(outcome);
        }
        self.reap();
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn pending(&mut self) -> bool {
        self.wake_receiver();
        self.rx.readable() > 0
    }

    fn counters(&self) -> PortCounters {
        let mut counters = self.counted;
        // This is one system call, so do not use it for every packet. On failure only our own counts are returned.
        if let Ok(kernel) = get_option::<libc::xdp_statistics>(&self.socket, libc::XDP_STATISTICS) {
            counters.rx_dropped = kernel.rx_dropped + kernel.rx_ring_full;
            counters.tx_dropped += kernel.tx_invalid_descs;
        }
        counters.rx_dropped += self.rx_bad;
        counters
    }
}

impl Outgoing for XskPort {
    fn committed(&self) -> u32 {
        self.tx.position()
    }

    fn waiting(&self, since: u32) -> Range<usize> {
        let all = self.tx.unpublished();
        (all - self.tx.position().wrapping_sub(since).min(all)) as usize..all as usize
    }

    fn waiting_mut(&mut self, place: usize) -> Option<&mut [u8]> {
        let descriptor = self.tx.unpublished_entry(place as u32)?;
        let frame = self.frame_of(descriptor.addr);
        let ours = (u64::from(self.rx_frames)..2 * u64::from(self.rx_frames)).contains(&frame);
        if !ours || !self.in_one_frame(descriptor.addr, descriptor.len) {
            return None;
        }
        // SAFETY: the range lies within one sending frame of the mapping, as checked here. The kernel does not see the frame
        // before it is published. No other slice of it exists, as the slice borrows `self`.
        Some(unsafe {
            std::slice::from_raw_parts_mut(
                self.memory.start().as_ptr().add(descriptor.addr as usize),
                descriptor.len as usize,
            )
        })
    }

    fn take_back(&mut self, since: u32, numbers: &mut dyn Iterator<Item = usize>) {
        let (mut number, first, mut numbers) = (0, self.waiting(since).start, numbers.peekable());
        let Self { tx, free, counted, frame_shift, .. } = self;
        tx.retain_unpublished(first as u32, |descriptor| {
            number += 1;
            let goes = is_next(&mut numbers, number - 1);
            if goes {
                free.push((descriptor.addr >> *frame_shift) as u32);
                counted.tx_frames -= 1;
            }
            !goes
        });
    }
}
