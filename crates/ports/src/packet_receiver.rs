//! Receives the frames of an interface by a packet socket: super-segments whole, each by one copy.

use crate::mapping::Buffer;
use crate::packet_socket::{HEADER_BYTES, get};
use crate::{RxChecksum, RxFrame};
use std::cell::Cell;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use towpath_wire::ETHERNET_BYTES;

/// The largest frame: an IP packet of 64 KiB, and its Ethernet header.
const LARGEST: usize = 65_536 + ETHERNET_BYTES;
/// Bytes from one buffer to the next. An odd number of cache lines: the headers of all buffers fall into different sets.
const STRIDE: usize = 1027 * 64;
/// How many frames may be held: as many as one turn takes.
const PLACES: u16 = 64;
/// Most frames of one system call.
const BATCH: usize = 16;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the frame was made on this host, which has left out the checksum.
/// `VIRTIO_NET_HDR_F_DATA_VALID`: it was checked.
const SUM_IS_RIGHT: u8 = 1 | 2;

/// A packet socket with the buffers of its frames.
pub(crate) struct PacketReceiver {
    socket: OwnedFd,
    memory: Buffer,
    /// The buffer used last is used next.
    free: Vec<u16>,
    held: [bool; PLACES as usize],
    /// How many frames the next call asks for. The call that finds nothing more costs nearly as much as a frame.
    ask: usize,
    received: u64,
    bad: u64,
    /// Frames that the socket had no room for. Reading the counter resets it.
    dropped: Cell<u64>,
}

impl PacketReceiver {
    /// Uses a socket that receives.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let memory = Buffer::new(usize::from(PLACES) * STRIDE)?;
        let (free, held) = ((0..PLACES).rev().collect(), [false; PLACES as usize]);
        Ok(Self { socket, memory, free, held, ask: BATCH, received: 0, bad: 0, dropped: Cell::new(0) })
    }

    /// Appends up to `max` frames.
    pub fn receive(&mut self, frames: &mut Vec<RxFrame>, max: usize) {
        let until = frames.len() + max;
        loop {
            let asked = self.ask.min(until - frames.len()).min(self.free.len());
            if asked == 0 {
                return;
            }
            let got = self.receive_some(frames, asked);
            if got < asked {
                self.ask = (got + 1).min(BATCH);
                return;
            }
            self.ask = (2 * self.ask).min(BATCH);
        }
    }

    /// One call for so many. Returns how many came.
    fn receive_some(&mut self, frames: &mut Vec<RxFrame>, asked: usize) -> usize {
        // SAFETY: the structures consist of integers and pointers, for which zero is a valid value.
        let (mut headers, mut parts): ([libc::mmsghdr; BATCH], [libc::iovec; BATCH]) = unsafe { (zeroed(), zeroed()) };
        let places = &self.free[self.free.len() - asked..];
        let each = headers.iter_mut().zip(&mut parts).zip(places.iter().rev());
        for ((header, part), place) in each {
            let start = usize::from(*place) * STRIDE;
            let buffer = &mut self.memory[start..start + HEADER_BYTES + LARGEST];
            *part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (std::ptr::from_mut(part), 1);
        }
        // SAFETY: the first `asked` headers name one part each, which is a buffer of its own that nothing else uses: it is
        // free. Headers, parts and buffers outlive the call.
        let got = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                headers.as_mut_ptr(),
                asked as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        // An interface that went down is told once, as an error. It is no matter of a frame.
        let got = usize::try_from(got).unwrap_or(0);
        let mut bad = [0; BATCH];
        let mut bad_count = 0;
        for header in &headers[..got] {
            let Some(place) = self.free.pop() else { break };
            let start = usize::from(place) * STRIDE;
            let whole = header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            let Some(len) = (header.msg_len as usize).checked_sub(HEADER_BYTES).filter(|_| whole) else {
                bad[bad_count] = place;
                bad_count += 1;
                continue;
            };
            let is_right = self.memory[start] & SUM_IS_RIGHT != 0;
            let checksum = if is_right { RxChecksum::Valid } else { RxChecksum::Unknown };
            // `gso_type` and `gso_size`.
            let [kind, low, high] = [1, 4, 5].map(|at| self.memory[start + at]);
            let gso_bytes = if kind == 0 { 0 } else { u16::from_ne_bytes([low, high]) };
            self.held[usize::from(place)] = true;
            frames.push(RxFrame { handle: place.into(), len: len as u32, checksum, gso_bytes });
        }
        self.free.extend(&bad[..bad_count]);
        self.received += (got - bad_count) as u64;
        self.bad += bad_count as u64;
        got
    }

    /// The bytes of a frame that is held; empty if none is.
    pub fn bytes(&self, frame: &RxFrame) -> &[u8] {
        if self.held.get(frame.handle as usize) != Some(&true) {
            return &[];
        }
        let start = frame.handle as usize * STRIDE + HEADER_BYTES;
        self.memory.get(start..start + (frame.len as usize).min(LARGEST)).unwrap_or_default()
    }

    /// The same bytes, to be changed in their place.
    pub fn bytes_mut(&mut self, frame: &RxFrame) -> Option<&mut [u8]> {
        if self.held.get(frame.handle as usize) != Some(&true) {
            return None;
        }
        let start = frame.handle as usize * STRIDE + HEADER_BYTES;
        self.memory.get_mut(start..start + (frame.len as usize).min(LARGEST))
    }

    /// Gives buffers back.
    pub fn release(&mut self, frames: &[RxFrame]) {
        // The first frame's buffer is used first again.
        for frame in frames.iter().rev() {
            let held = self.held.get_mut(frame.handle as usize).is_some_and(std::mem::take);
            debug_assert!(held, "a frame that was not received or is released");
            if held {
                self.free.push(frame.handle as u16);
            }
        }
    }

    /// Are there frames to receive?
    pub fn pending(&self) -> bool {
        let mut waiting = [rustix::event::PollFd::new(&self.socket, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut waiting, Some(&now)), Ok(1..))
    }

    /// Frames that were received, and that were not. This is one system call.
    pub fn counters(&self) -> (u64, u64) {
        if let Ok(counted) = get::<libc::tpacket_stats>(&self.socket, libc::PACKET_STATISTICS) {
            self.dropped.set(self.dropped.get() + u64::from(counted.tp_drops));
        }
        (self.received, self.dropped.get() + self.bad)
    }
}

impl AsFd for PacketReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
