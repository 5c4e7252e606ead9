//! Decides about each submission. All but those on accelerated descriptors stay as they are, for the kernel.
//!
//! An operation on an accelerated descriptor is carried out here. A NOP for the kernel replaces it, with the result if
//! that is known at once.

use super::abi::{self, Sqe, cancel, flag, op};
use super::operation::{self, Limit, Operation};
use super::pending::{self, Meant};
use super::{buffers, post, ring};
use crate::fd::close;
use crate::fd::table::{self, Descriptor};
use crate::lifecycle::pending as socket_pending;
use crate::lifecycle::{bind, connect, kernel_half, listen, shutdown, socket};
use crate::options::by_descriptor;
use crate::ready::epoll_ctl;
use libc::{c_int, c_void, epoll_event, sockaddr};
use towpath_hook::{Answer, outcome, real};

/// The decision about one submission.
enum Decision {
    /// The kernel carries it out.
    Leave,
    /// It has been carried out, with this result.
    Done(i32),
    /// It is being carried out and has no result yet.
    Waits,
}

use Decision::{Done, Leave, Waits};

/// The submissions of one `io_uring_enter`.
pub struct Batch {
    ring: u32,
    /// Does this kernel let a NOP have a result? `None`: not asked yet.
    injects: Option<bool>,
}

fn refuse(errno: c_int) -> Decision {
    Done(-errno)
}

/// The decision that follows from a call's answer. `None` leaves it to the kernel.
fn answered(answer: Answer<c_int>) -> Decision {
    answer.map_or(Leave, |answer| Done(answer.unwrap_or_else(|errno| -errno)))
}

impl Batch {
    /// For the ring of this number.
    pub fn of(ring: u32) -> Self {
        Self { ring, injects: None }
    }

    /// Looks at the entries; `put` replaces one.
    pub fn look(&mut self, entries: &[Sqe], put: &mut dyn FnMut(usize, Sqe)) {
        let mut at = 0;
        while let Some(entry) = entries.get(at) {
            if !links(entry) {
                self.look_at(entry, entry.flags & flag::IO_DRAIN != 0).into_iter().for_each(|instead| put(at, instead));
                at += 1;
                continue;
            }
            let last = entries[at..].iter().position(|entry| !links(entry)).map_or(entries.len() - 1, |last| at + last);
            self.look_at_chain(&entries[at..=last], &mut |place, instead| put(at + place, instead));
            at = last + 1;
        }
    }

    fn look_at(&mut self, entry: &Sqe, ordered: bool) -> Option<Sqe> {
        match self.judge(entry, ordered) {
            Leave
                if entry.flags & flag::BUFFER_SELECT != 0 && !buffers::leave_to_kernel(self.ring, entry.buf_index) =>
            {
                Some(self.with_result(entry, -libc::ENOBUFS, ordered))
            }
            Leave => None,
            Waits => Some(silent(entry)),
            Done(result) => Some(self.with_result(entry, result, ordered)),
        }
    }

    /// Looks at entries that are linked. The library carries out either all operations of a chain or none.
    fn look_at_chain(&mut self, entries: &[Sqe], put: &mut dyn FnMut(usize, Sqe)) {
        let begun = match (self.chain(entries), entries) {
            (Some(first), [entry, ..]) if entry.opcode == op::CONNECT => match connect_by(entry) {
                Some(Err(libc::EINPROGRESS)) => Some((first, None)),
                Some(outcome) => Some((first, Some(outcome.unwrap_or_else(|errno| -errno)))),
                None => None,
            },
            (first, _) => first.map(|first| (first, None)),
        };
        if let Some((first, result)) = begun {
            entries.iter().enumerate().for_each(|(at, entry)| put(at, silent(entry)));
            pending::carry_chain(first, result);
            return;
        }
        for (at, entry) in entries.iter().enumerate() {
            self.look_at(entry, true).into_iter().for_each(|instead| put(at, instead));
        }
    }

    /// The first operation of a chain that the library can carry out: all are on accelerated sockets, or on the socket
    /// that the first connects.
    fn chain(&self, entries: &[Sqe]) -> Option<Operation> {
        let connects = entries.first().filter(|entry| entry.opcode == op::CONNECT).map(|entry| entry.fd);
        let mut chain: Vec<Operation> = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            if entry.flags & (flag::IO_DRAIN | flag::FIXED_FILE) != 0 {
                return None;
            }
            if entry.opcode == op::LINK_TIMEOUT {
                let before = chain.last_mut().filter(|before| before.limit.is_none())?;
                before.limit = Some(Limit::of(entry)?);
                continue;
            }
            let is_ours = match connects {
                Some(fd) => {
                    entry.fd == fd && matches!(table::get(fd), Descriptor::Slot { .. } | Descriptor::Pending(_))
                }
                None => matches!(table::get(entry.fd), Descriptor::Slot { .. }),
            };
            let carried = is_ours && is_by_number(entry) && (entry.opcode != op::CONNECT || at == 0);
            chain.push(Operation::of(self.ring, entry).ok().filter(|_| carried || entry.opcode == op::NOP)?);
        }
        chain.iter().any(|operation| operation.opcode != op::NOP).then_some(())?;
        chain.into_iter().rev().reduce(|next, mut operation| {
            operation.next = Some(Box::new(next));
            operation
        })
    }

    /// `ordered`: the entry is linked or drained, so its operation must keep its place in an order that only the kernel
    /// knows.
    fn judge(&self, entry: &Sqe, ordered: bool) -> Decision {
        match entry.opcode {
            op::POLL_REMOVE => self.remove_poll(entry),
            op::ASYNC_CANCEL => self.cancel(entry),
            // Sockets in the table of fixed files belong to the kernel.
            op::SOCKET if entry.file_index == 0 && entry.op_flags == 0 && !ordered => {
                answered(socket::socket(entry.fd, entry.off as c_int, entry.len as c_int))
            }
            op::FILES_UPDATE => match operation::numbers(entry.addr, entry.len.min(1 << 15)) {
                Ok(fds) if fds.iter().any(|fd| is_ours(*fd)) => refuse(libc::EBADF),
                _ => Leave,
            },
            op::PROVIDE_BUFFERS => {
                buffers::provided(self.ring, entry.buf_index);
                Leave
            }
            op::SPLICE | op::TEE if is_ours(entry.file_index) && is_by_number(entry) => refuse(libc::EINVAL),
            _ if names_descriptor(entry.opcode) && is_by_number(entry) => self.on_descriptor(entry, ordered),
            _ => Leave,
        }
    }

    fn on_descriptor(&self, entry: &Sqe, ordered: bool) -> Decision {
        let kind = table::get(entry.fd);
        match (kind, entry.opcode) {
            (Descriptor::Kernel, _) => Leave,
            (Descriptor::Internal, _) => refuse(libc::EBADF),
            (Descriptor::Epoll(_), op::EPOLL_WAIT) => refuse(libc::EINVAL),
            (Descriptor::Epoll(_), op::EPOLL_CTL | op::POLL_ADD | op::CLOSE)
            | (Descriptor::Pending(_), op::CONNECT | op::BIND | op::LISTEN | op::CLOSE | op::URING_CMD)
            | (Descriptor::Ring(_), op::CLOSE)
            | (Descriptor::Slot { .. }, _)
                if ordered =>
            {
                refuse(libc::EOPNOTSUPP)
            }
            (Descriptor::Epoll(_), op::EPOLL_CTL) => {
                let event = entry.addr as *mut epoll_event;
                // SAFETY: `control` accepts any address for the event.
                answered(unsafe { epoll_ctl::control(entry.fd, entry.len as c_int, entry.off as c_int, event) })
            }
            (Descriptor::Slot { .. } | Descriptor::Pending(_) | Descriptor::Epoll(_), op::CLOSE) => close(entry.fd),
            // The ring is locked while its entries are looked at.
            (Descriptor::Ring(_), op::CLOSE) => refuse(libc::EOPNOTSUPP),
            (Descriptor::Slot { .. }, op::SHUTDOWN) => answered(shutdown::shutdown(entry.fd, entry.len as c_int)),
            (Descriptor::Slot { .. } | Descriptor::Pending(_), op::LISTEN) => {
                answered(listen::listen(entry.fd, entry.len as c_int))
            }
            (Descriptor::Slot { .. } | Descriptor::Pending(_), op::BIND) => answered(
                // SAFETY: `bind` accepts any address.
                unsafe { bind::bind(entry.fd, entry.addr as *const sockaddr, entry.off as u32) },
            ),
            (Descriptor::Slot { .. } | Descriptor::Pending(_), op::URING_CMD) => option(entry),
            (Descriptor::Slot { .. } | Descriptor::Pending(_), op::CONNECT) => match connect_by(entry) {
                Some(Err(libc::EINPROGRESS)) => self.carry(entry),
                answer => answered(answer),
            },
            (Descriptor::Slot { .. }, _) | (Descriptor::Epoll(_), op::POLL_ADD) => self.carry(entry),
            // The service of a listener has gone, and the operation is the kernel's: so is the listener.
            (Descriptor::Pending(pending), op::ACCEPT | op::POLL_ADD) if kernel_half::listens(entry.fd) => {
                socket_pending::leave(entry.fd, pending);
                Leave
            }
            _ => Leave,
        }
    }

    fn carry(&self, entry: &Sqe) -> Decision {
        let Some(target) = pending::target(entry.fd) else { return refuse(libc::EBADF) };
        match Operation::of(self.ring, entry) {
            Ok(operation) => pending::carry(target, operation).map_or(Waits, Done),
            Err(errno) => refuse(errno),
        }
    }

    fn meant(&self, user_data: Option<u64>) -> Meant {
        Meant { ring: self.ring, user_data, fd: None, opcode: None, all: false, polls: false }
    }

    fn remove_poll(&self, entry: &Sqe) -> Decision {
        use abi::poll::{ADD_MULTI, UPDATE_EVENTS, UPDATE_USER_DATA};
        let meant = Meant { polls: true, ..self.meant(Some(entry.addr)) };
        if entry.len & !(ADD_MULTI | UPDATE_EVENTS | UPDATE_USER_DATA) != 0 {
            return Leave;
        }
        let done = if entry.len & (UPDATE_EVENTS | UPDATE_USER_DATA) == 0 {
            pending::cancel(&meant) > 0
        } else {
            let events = (entry.len & UPDATE_EVENTS != 0).then_some((entry.op_flags, entry.len & ADD_MULTI != 0));
            let user_data = (entry.len & UPDATE_USER_DATA != 0).then_some(entry.off);
            pending::change(&meant, events, user_data)
        };
        if done { Done(0) } else { Leave }
    }

    fn cancel(&self, entry: &Sqe) -> Decision {
        match cancel_of(self.ring, entry.op_flags, entry.addr, entry.fd, entry.len as u8) {
            Some(ended) => Done(ended),
            None => Leave,
        }
    }

    fn with_result(&mut self, entry: &Sqe, result: i32, ordered: bool) -> Sqe {
        if *self.injects.get_or_insert_with(post::injects) {
            let kept = entry.flags & !(flag::FIXED_FILE | flag::BUFFER_SELECT | flag::ASYNC);
            return Sqe {
                opcode: op::NOP,
                flags: kept,
                fd: -1,
                len: result as u32,
                op_flags: abi::NOP_INJECT_RESULT,
                user_data: entry.user_data,
                ..Sqe::default()
            };
        }
        if ordered {
            // The chain must end here. The kernel completes an unknown opcode with EINVAL and cancels the rest.
            return Sqe { opcode: op::NONE, flags: entry.flags, user_data: entry.user_data, ..Sqe::default() };
        }
        if result < 0 || entry.flags & flag::CQE_SKIP_SUCCESS == 0 {
            post::post(ring::ring(self.ring).own(), entry.user_data, result, 0);
        }
        silent(entry)
    }
}

/// Cancels the operations that the flags of an ASYNC_CANCEL select. `None`: the library has none of them, so the kernel
/// is asked.
pub fn cancel_of(ring: u32, flags: u32, user_data: u64, fd: c_int, opcode: u8) -> Option<i32> {
    if flags & (cancel::FD_FIXED | cancel::ANY) == cancel::FD_FIXED {
        return None;
    }
    let all = flags & (cancel::ALL | cancel::ANY) != 0;
    let by_fd = flags & cancel::FD != 0;
    let by_data = flags & cancel::USERDATA != 0 || flags & (cancel::FD | cancel::ANY | cancel::OP) == 0;
    let meant = Meant {
        ring,
        user_data: by_data.then_some(user_data),
        fd: by_fd.then_some(fd),
        opcode: (flags & cancel::OP != 0).then_some(opcode),
        all,
        polls: false,
    };
    match pending::cancel(&meant) {
        0 => None,
        // The kernel's own operations are selected too.
        _ if flags & cancel::ANY != 0 => None,
        ended if all => Some(ended as i32),
        _ => Some(0),
    }
}

/// Is the next entry linked to this one?
fn links(entry: &Sqe) -> bool {
    entry.flags & (flag::IO_LINK | flag::IO_HARDLINK) != 0
}

/// A NOP that posts no completion.
fn silent(entry: &Sqe) -> Sqe {
    let (opcode, flags) = (op::NOP, flag::CQE_SKIP_SUCCESS);
    Sqe { opcode, flags, fd: -1, user_data: entry.user_data, ..Sqe::default() }
}

/// Is it a descriptor that the kernel must not use, because an accelerated socket or the library itself is behind it?
pub fn is_ours(fd: c_int) -> bool {
    matches!(table::get(fd), Descriptor::Slot { .. } | Descriptor::Internal)
}

/// Is the descriptor in the process's table rather than in the table of fixed files?
fn is_by_number(entry: &Sqe) -> bool {
    match entry.opcode {
        op::CLOSE => entry.file_index == 0,
        _ => entry.flags & flag::FIXED_FILE == 0,
    }
}

/// Is `fd` the descriptor that an operation of this opcode works on?
fn names_descriptor(opcode: u8) -> bool {
    matches!(
        opcode,
        op::READV..=op::POLL_ADD
            | op::SYNC_FILE_RANGE..=op::RECVMSG
            | op::ACCEPT
            | op::CONNECT
            | op::FALLOCATE
            | op::CLOSE
            | op::READ..=op::FADVISE
            | op::SEND
            | op::RECV
            | op::EPOLL_CTL
            | op::SPLICE
            | op::TEE
            | op::SHUTDOWN
            | op::URING_CMD..=op::READ_MULTISHOT
            | op::FTRUNCATE..=op::WRITEV_FIXED
    )
}

fn connect_by(entry: &Sqe) -> Answer<c_int> {
    // SAFETY: `begin` accepts any address.
    unsafe { connect::begin(entry.fd, entry.addr as *const sockaddr, entry.off as u32) }
}

fn close(fd: c_int) -> Decision {
    // SAFETY: `close` takes a number and no memory.
    answered(close::close(fd).or_else(|| Some(outcome(unsafe { real::close(fd) }))))
}

/// `getsockopt` and `setsockopt` through a ring (SOCKET_URING_OP_*).
fn option(entry: &Sqe) -> Decision {
    const GET: u32 = 2;
    const SET: u32 = 3;
    let (level, name) = (entry.addr as u32 as c_int, (entry.addr >> 32) as c_int);
    let (value, mut len) = (entry.addr3, entry.file_index as u32);
    // SAFETY: the program gives memory as for the kernel; a bad address is EFAULT. `len` outlives the call.
    unsafe {
        match entry.off as u32 {
            GET => answered(
                by_descriptor::getsockopt(entry.fd, level, name, value as *mut c_void, &raw mut len)
                    .map(|got| got.map(|_| len as c_int)),
            ),
            SET => answered(by_descriptor::setsockopt(entry.fd, level, name, value as *const c_void, len)),
            _ if matches!(table::get(entry.fd), Descriptor::Slot { .. }) => refuse(libc::EOPNOTSUPP),
            _ => Leave,
        }
    }
}
