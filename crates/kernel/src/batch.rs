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

// SAFETY: the address is that of shared memory, which all threads may use.
unsafe impl Send for Operation<'_> {}

/// The memory of a list of operations, for the next.
pub fn emptied(mut operations: Vec<Operation<'_>>) -> Vec<Operation<'static>> {
    operations.clear();
    // Nothing is in it; collected in place it keeps its memory.
    operations.into_iter().map_while(|_| None).collect()
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
    /// Does it send?
    pub fn sends(&self) -> bool {
        self.sends
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
    /// What the operations of the last call returned, in their order.
    results: Vec<Result<usize, i32>>,
}

impl Batch {
    /// `None`: this kernel has no io_uring for us; then every call is made by itself.
    pub fn new() -> Option<Self> {
        let ring = IoUring::builder().setup_cqsize(2 * MOST as u32).build(MOST as u32);
        let ring =
            ring.inspect_err(|error| tracing::debug!(%error, "no io_uring: sockets are served one by one")).ok()?;
        Some(Self { ring, results: Vec::with_capacity(MOST) })
    }

    /// Makes the operations, at most [`MOST`]. False = this way works no more.
    pub fn run(&mut self, operations: &[Operation<'_>]) -> bool {
        self.results.clear();
        self.results.resize(operations.len().min(MOST), Err(libc::EAGAIN));
        let mut queued = 0;
        {
            let mut queue = self.ring.submission();
            for (number, operation) in operations.iter().take(MOST).enumerate() {
                // SAFETY: the memory is a part of a ring and the descriptor is open, both for longer than this call, which does not
                // return before every operation that the kernel has taken has ended. That the ring's bytes may change meanwhile is
                // the application's affair.
                if unsafe { queue.push(&operation.entry(number)) }.is_err() {
                    break;
                }
                queued += 1;
            }
        }
        self.wait(queued)
    }

    /// What operation `number` of the last call returned; `EAGAIN`, if it was not made.
    pub fn result(&self, number: usize) -> Result<usize, i32> {
        self.results.get(number).copied().unwrap_or(Err(libc::EAGAIN))
    }

    /// Has the kernel take what is queued, `queued` operations, and waits until all that it has taken have ended. False = it takes no
    /// more: what it has not taken it must not be asked for again.
    fn wait(&mut self, queued: usize) -> bool {
        let (mut ended, mut good) = (0, true);
        loop {
            let refused = self.ring.submission().len();
            let left = if good { queued - ended } else { (queued - ended).saturating_sub(refused) };
            if left == 0 {
                return good;
            }
            let asked = match good {
                true => self.ring.submit_and_wait(left),
                // None of them waits for anything, so they all end, whether we can sleep until then or not.
                // SAFETY: nothing is submitted, no argument is used.
                false => unsafe { self.ring.submitter().enter::<()>(0, left as u32, GETEVENTS, None) },
            };
            match asked {
                Err(error)
                    if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) && good =>
                {
                    // It cannot be: the ring is ours and the entries are sound.
                    tracing::error!(%error, "io_uring has failed; sockets are served one by one");
                    good = false;
                }
                Err(_) => std::thread::yield_now(),
                Ok(_) => {}
            }
            for completion in self.ring.completion() {
                let result = completion.result();
                if let Some(place) = self.results.get_mut(completion.user_data() as usize) {
                    *place = usize::try_from(result).map_err(|_| -result);
                }
                ended += 1;
            }
        }
    }
}

/// `IORING_ENTER_GETEVENTS`: wait for ends.
const GETEVENTS: u32 = 1;

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
            assert!(batch.run(&operations));
            (0..operations.len()).map(|number| batch.result(number)).collect::<Vec<_>>()
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

    #[test]
    fn a_list_of_operations_keeps_its_memory() {
        let operations: Vec<Operation<'static>> = Vec::with_capacity(MOST);
        let at = operations.as_ptr();
        let again = emptied(operations);
        assert!(again.is_empty() && again.capacity() == MOST && again.as_ptr() == at);
    }
}
