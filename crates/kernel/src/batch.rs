//! Sends and receives of many sockets in one system call, by io_uring. None of them waits: each is done or refused when the call
//! returns.

use io_uring::{IoUring, opcode, types};
use rustix::fd::{AsRawFd, BorrowedFd};
use std::marker::PhantomData;
use towpath_ring::ByteRing;

/// Most operations of one call.
pub const MOST: usize = 256;
/// Fewer are made one by one: each costs as much then, and the call itself nothing.
pub const LEAST: usize = 4;

/// One operation, on one of the two parts of a ring that wraps.
pub struct Operation<'a> {
    fd: i32,
    base: *mut u8,
    len: u32,
    sends: bool,
    of: PhantomData<&'a ByteRing<'a>>,
}

impl<'a> Operation<'a> {
    /// Sends the first of the `len` bytes of the ring at position `at`.
    pub fn send(fd: BorrowedFd<'a>, ring: ByteRing<'a>, at: u32, len: u32) -> Self {
        let [(base, len), _] = ring.spans(at, len);
        Self { fd: fd.as_raw_fd(), base, len: len as u32, sends: true, of: PhantomData }
    }
    /// Receives up to `len` bytes to position `at` of the ring.
    pub fn receive(fd: BorrowedFd<'a>, ring: ByteRing<'a>, at: u32, len: u32) -> Self {
        let [(base, len), _] = ring.spans(at, len);
        Self { fd: fd.as_raw_fd(), base, len: len as u32, sends: false, of: PhantomData }
    }
    /// Bytes asked for.
    pub fn len(&self) -> u32 {
        self.len
    }
    fn entry(&self, number: usize) -> io_uring::squeue::Entry {
        let fd = types::Fd(self.fd);
        let flags = libc::MSG_DONTWAIT;
        let entry = if self.sends {
            opcode::Send::new(fd, self.base, self.len).flags(flags | libc::MSG_NOSIGNAL).build()
        } else {
            opcode::Recv::new(fd, self.base, self.len).flags(flags).build()
        };
        entry.user_data(number as u64)
    }
}

/// The way to the kernel.
pub struct Batch {
    ring: IoUring,
}

impl Batch {
    /// `None`: this kernel has no io_uring for us; then every call is made by itself.
    pub fn new() -> Option<Self> {
        let ring = IoUring::builder().setup_cqsize(2 * MOST as u32).build(MOST as u32);
        let ring =
            ring.inspect_err(|error| tracing::debug!(%error, "no io_uring: sockets are served one by one")).ok()?;
        Some(Self { ring })
    }

    /// Makes the operations, at most [`MOST`]; what each of them returned, in their order, and whether this way still works.
    /// Operations that were not made have returned `EAGAIN`.
    pub fn run(&mut self, operations: &[Operation<'_>]) -> (Vec<Result<usize, i32>>, bool) {
        let mut results = vec![Err(libc::EAGAIN); operations.len()];
        let mut queued = 0;
        {
            let mut queue = self.ring.submission();
            for (number, operation) in operations.iter().take(MOST).enumerate() {
                // SAFETY: the memory is a part of a ring and the descriptor is open, both for longer than this call, which does not
                // return before every operation has ended. That the ring's bytes may change meanwhile is the application's affair.
                if unsafe { queue.push(&operation.entry(number)) }.is_err() {
                    break;
                }
                queued += 1;
            }
        }
        let mut ended = 0;
        while ended < queued {
            if let Err(error) = self.ring.submit_and_wait(queued - ended)
                && !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
            {
                // It cannot be: the ring is ours and the entries are sound.
                tracing::error!(%error, "io_uring has failed; sockets are served one by one");
                return (results, false);
            }
            for completion in self.ring.completion() {
                let result = completion.result();
                if let Some(place) = results.get_mut(completion.user_data() as usize) {
                    *place = usize::try_from(result).map_err(|_| -result);
                }
                ended += 1;
            }
        }
        (results, true)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;
    use towpath_ring::{Geometry, Region};

    #[test]
    fn many_sends_and_receives_are_one_call() {
        let geometry = Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, contexts: 1, cores: 1 };
        let (region, _memfd) = Region::create(geometry).unwrap();
        let Some(mut batch) = Batch::new() else {
            panic!("this kernel has no io_uring: boot one that has, 5.6 or later")
        };
        let pairs: Vec<_> = (0..16)
            .map(|_| socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap())
            .collect();
        let slots: Vec<_> = (0..16).map(|raw| region.slot(raw).unwrap()).collect();
        for slot in &slots {
            region.tx(*slot).write(4090, &[slot.raw() as u8; 12]);
        }
        let run = |batch: &mut Batch, sends: bool| {
            let operations: Vec<_> = pairs
                .iter()
                .zip(&slots)
                .map(|((one, other), slot)| match sends {
                    // The end of the ring comes first.
                    true => Operation::send(one.as_fd(), region.tx(*slot), 4090, 12),
                    false => Operation::receive(other.as_fd(), region.rx(*slot), 0, 100),
                })
                .collect();
            batch.run(&operations).0
        };
        assert!(run(&mut batch, false).iter().all(|result| *result == Err(libc::EAGAIN)), "nothing waits");
        assert!(run(&mut batch, true).iter().all(|result| *result == Ok(6)));
        assert!(run(&mut batch, false).iter().all(|result| *result == Ok(6)));
        for slot in &slots {
            let mut got = [0; 6];
            region.rx(*slot).read(0, &mut got);
            assert_eq!(got, [slot.raw() as u8; 6]);
        }
    }
}
