//! Sends and receives of many sockets in one system call, by io_uring. No operation waits: each is done or refused
//! when the call returns.

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, types};
use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};
use towpath_ring::{ByteRing, Slot};

/// Most operations of one call.
pub const MOST: usize = 256;
/// Fewer operations are made one by one: io_uring saves nothing then.
pub const LEAST: usize = 4;

/// One operation, on the first contiguous part of a span of a ring.
pub struct Operation<'a> {
    fd: i32,
    base: *mut u8,
    len: u32,
    sends: bool,
    of: PhantomData<&'a ByteRing<'a>>,
}

// SAFETY: the address points into a shared mapping, which every thread may access; the descriptor is a number.
unsafe impl Send for Operation<'_> {}

/// Empties a list of operations and returns its memory for the next call.
pub fn emptied(mut operations: Vec<Operation<'_>>) -> Vec<Operation<'static>> {
    operations.clear();
    // The list is empty, and collecting in place reuses its allocation.
    operations.into_iter().map_while(|_| None).collect()
}

impl<'a> Operation<'a> {
    /// Sends the first bytes of the `len` bytes at position `at` of the ring.
    pub fn send(fd: BorrowedFd<'a>, ring: ByteRing<'a>, at: u32, len: u32) -> Self {
        let [(base, len), ..] = ring.spans(at, len);
        Self { fd: fd.as_raw_fd(), base, len: len as u32, sends: true, of: PhantomData }
    }
    /// Receives up to `len` bytes to position `at` of the ring.
    pub fn receive(fd: BorrowedFd<'a>, ring: ByteRing<'a>, at: u32, len: u32) -> Self {
        let [(base, len), ..] = ring.spans(at, len);
        Self { fd: fd.as_raw_fd(), base, len: len as u32, sends: false, of: PhantomData }
    }
    /// Bytes requested.
    pub fn len(&self) -> u32 {
        self.len
    }
    /// True for a send.
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

/// Results of the calls that the batch has made for a slot.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchedResults {
    /// Result of the send.
    pub sent: Option<Result<usize, i32>>,
    /// Bytes requested by the receive, and its result.
    pub received: Option<(u32, Result<usize, i32>)>,
}

/// Lists of one turn, kept to reuse their memory.
#[derive(Default)]
pub struct BatchLists {
    pub operations: Vec<Operation<'static>>,
    /// For each operation: client, slot, whether it sends, bytes requested.
    pub owners: Vec<(u32, Slot, bool, u32)>,
}

/// A ring that can send and receive on sockets, and nothing else: it goes past a filter of system calls.
fn restricted() -> io::Result<IoUring> {
    let ring = IoUring::builder().setup_cqsize(2 * MOST as u32).setup_r_disabled().build(MOST as u32)?;
    let mut only = [Restriction::sqe_op(opcode::Send::CODE), Restriction::sqe_op(opcode::Recv::CODE)];
    ring.submitter().register_restrictions(&mut only)?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

/// Rings that were made by [`prepare_rings`]. `None`: each is made when it is needed.
static PREPARED: Mutex<Option<Vec<IoUring>>> = Mutex::new(None);

/// Makes the rings of groups that start later, when this process may make none any more.
pub fn prepare_rings(groups: usize) {
    let rings = (0..groups).map_while(|_| restricted().ok()).collect();
    *PREPARED.lock().unwrap_or_else(PoisonError::into_inner) = Some(rings);
}

/// The io_uring instance.
pub struct Batch {
    ring: IoUring,
    /// Results of the last call's operations, in order.
    results: Vec<Result<usize, i32>>,
}

impl Batch {
    /// `None` if this kernel has no io_uring for us. Then every call is made by itself.
    pub fn new() -> Option<Self> {
        let ring = match &mut *PREPARED.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(prepared) => prepared.pop().ok_or_else(|| io::ErrorKind::PermissionDenied.into()),
            None => restricted(),
        };
        let ring =
            ring.inspect_err(|error| tracing::debug!(%error, "no io_uring: sockets are served one by one")).ok()?;
        Some(Self { ring, results: Vec::with_capacity(MOST) })
    }

    /// Makes the operations, at most [`MOST`]. False if io_uring has failed and must not be used again.
    pub fn run(&mut self, operations: &[Operation<'_>]) -> bool {
        self.results.clear();
        self.results.resize(operations.len().min(MOST), Err(libc::EAGAIN));
        let mut queued = 0;
        {
            let mut queue = self.ring.submission();
            for (number, operation) in operations.iter().take(MOST).enumerate() {
                // SAFETY: the memory is part of a mapped ring and the descriptor is open. Both outlive this call,
                // which returns only after every operation that the kernel took has ended. The kernel tolerates that
                // the application changes the ring's bytes meanwhile.
                if unsafe { queue.push(&operation.entry(number)) }.is_err() {
                    break;
                }
                queued += 1;
            }
        }
        self.wait(queued)
    }

    /// Result of operation `number` of the last call; `EAGAIN` if it was not made.
    pub fn result(&self, number: usize) -> Result<usize, i32> {
        self.results.get(number).copied().unwrap_or(Err(libc::EAGAIN))
    }

    /// Submits the `queued` operations and waits until those that the kernel took have ended. False if the kernel
    /// takes no more; the rest must not be submitted again.
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
                // No operation waits for anything, so all end even if this thread cannot sleep until then.
                // SAFETY: nothing is submitted, and the argument is null.
                false => unsafe { self.ring.submitter().enter::<()>(0, left as u32, GETEVENTS, None) },
            };
            match asked {
                Err(error)
                    if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) && good =>
                {
                    // Not expected: the ring is ours and its entries are sound.
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

/// `IORING_ENTER_GETEVENTS`: wait for completions.
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
        let geometry =
            Geometry { slots: 16, app_slots: 8, tx_bytes: 4096, rx_bytes: 4096, contexts: 1, ..Geometry::DEFAULT };
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
                    // The bytes up to the end of the ring come first.
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
    fn a_ring_opens_no_file_and_registers_nothing() {
        let mut ring = restricted().unwrap();
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), c"/etc/passwd".as_ptr()).build();
        // SAFETY: the path is a literal, which lives on.
        unsafe { ring.submission().push(&open).unwrap() };
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().unwrap().result(), -libc::EACCES);
        assert!(ring.submitter().register_files(&[0]).is_err());
    }

    #[test]
    fn a_list_of_operations_keeps_its_memory() {
        let operations: Vec<Operation<'static>> = Vec::with_capacity(MOST);
        let at = operations.as_ptr();
        let again = emptied(operations);
        assert!(again.is_empty() && again.capacity() == MOST && again.as_ptr() == at);
    }
}
