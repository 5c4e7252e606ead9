//! An operation on an accelerated descriptor: what it asks for, and one attempt at it that never waits.

use super::abi::{self, Sqe, flag, op};
use super::{buffers, post};
use crate::fd::close;
use crate::io::{copy, message, receive, send, user};
use crate::lifecycle::{accept, connect, shutdown};
use crate::ready::readiness::{self, ERR, HUP, IN, OUT, PRI, RDHUP};
use crate::ready::{hints, instance, nested};
use core::sync::atomic::Ordering;
use core::time::Duration;
use libc::{c_int, iovec, msghdr, sockaddr, socklen_t, timespec};
use towpath_client::session;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_hook::{Answer, outcome, real};

/// The bits of a poll mask that name events.
const EVENTS: u32 = 0xffff;
/// The only flag of `preadv2` that a socket takes.
const RWF_NOWAIT: u32 = 8;

/// The object that an operation works on.
#[derive(Clone, Copy)]
pub enum Target {
    /// A socket in a slot.
    Socket(Socket),
    /// An epoll instance.
    Epoll(u32),
}

impl Target {
    /// A key that no other target has.
    pub fn key(&self) -> u64 {
        match self {
            Self::Socket(socket) => u64::from(socket.generation) << 32 | u64::from(socket.number()),
            Self::Epoll(id) => 1 << 31 | u64::from(*id),
        }
    }
}

/// The direction of an operation. Operations of one direction on one socket go in the order of their submission.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Takes from the socket.
    In,
    /// Puts into the socket.
    Out,
    /// Neither: it waits for no other operation.
    Any,
}

/// The outcome of one attempt.
pub enum Progress {
    /// Nothing yet: it has to wait.
    Waits,
    /// The only result, or the last one.
    Done(i32),
    /// A result after which more may come (multishot).
    More(i32),
    /// Bytes received into a provided buffer, the completion flags that name it, and whether more may come (multishot).
    Filled(i32, u32, bool),
}

/// An operation that the library carries out for the kernel.
pub struct Operation {
    /// The number of the ring that it was submitted to.
    pub ring: u32,
    pub user_data: u64,
    pub opcode: u8,
    /// Success posts no completion (IOSQE_CQE_SKIP_SUCCESS).
    pub quiet: bool,
    /// The descriptor number that the program gave.
    pub fd: c_int,
    /// The timeout linked to it (LINK_TIMEOUT).
    pub limit: Option<Limit>,
    /// The operation linked to it, which begins after this one has succeeded.
    pub next: Option<Box<Operation>>,
    /// With IOSQE_IO_HARDLINK `next` begins even if this one has failed.
    pub hard: bool,
    /// The result of the second completion of a zero-copy send: the memory is no longer in use.
    pub notice: Option<i32>,
    work: Work,
}

/// A LINK_TIMEOUT: the time after which the operation before it is cancelled.
pub struct Limit {
    pub user_data: u64,
    time: Duration,
    absolute: bool,
    /// When it cancels the operation (CLOCK_MONOTONIC). Known once the operation has begun.
    pub due: Option<Duration>,
}

impl Limit {
    /// The LINK_TIMEOUT in an entry. `None`: the entry is none, or names another clock than CLOCK_MONOTONIC.
    pub fn of(entry: &Sqe) -> Option<Self> {
        if entry.opcode != op::LINK_TIMEOUT || entry.len != 1 || entry.op_flags & !abi::TIMEOUT_ABS != 0 {
            return None;
        }
        // SAFETY: `user::read` accepts any address, and any bytes are a valid `timespec`.
        let time = sys::duration_of(&unsafe { user::read(entry.addr as *const timespec) }.ok()?)?;
        let absolute = entry.op_flags & abi::TIMEOUT_ABS != 0;
        Some(Self { user_data: entry.user_data, time, absolute, due: None })
    }

    /// The operation begins at `now`.
    pub fn begin(&mut self, now: Duration) {
        self.due = Some(if self.absolute { self.time } else { now.saturating_add(self.time) });
    }
}

enum Work {
    Poll {
        events: u32,
        multishot: bool,
        told: Option<(u32, [u32; 4])>,
    },
    Receive(Buffers),
    /// Receives into a provided buffer, which is chosen once there is something to receive.
    Select {
        group: u16,
        most: usize,
        flags: c_int,
        multishot: bool,
        begun: bool,
    },
    Send(Buffers),
    Accept {
        addr: *mut sockaddr,
        len: *mut socklen_t,
        flags: c_int,
        multishot: bool,
    },
    Connect,
    Shutdown(c_int),
    Close,
    Nothing,
}

/// The program's memory that is to be filled or sent. The vectors are copied, because the program's need not outlive
/// the submission.
struct Buffers {
    iov: Vec<iovec>,
    /// The bytes moved so far, of `total`.
    done: usize,
    total: usize,
    /// The operation's MSG_* flags.
    flags: c_int,
    /// The program's message header, which a receive completes; null = none.
    header: *mut msghdr,
}

impl Buffers {
    fn new(iov: Vec<iovec>, flags: c_int) -> Sys<Self> {
        let total = copy::total(&iov, flags)?;
        Ok(Self { iov, done: 0, total, flags, header: core::ptr::null_mut() })
    }

    fn one(entry: &Sqe, flags: c_int) -> Sys<Self> {
        Self::new(vec![iovec { iov_base: entry.addr as *mut _, iov_len: entry.len as usize }], flags)
    }

    fn vectors(entry: &Sqe, flags: c_int) -> Sys<Self> {
        // SAFETY: `vectors` accepts any address. The slice is copied before the program runs again.
        Self::new(unsafe { message::vectors(entry.addr as *const iovec, entry.len as usize) }?.to_vec(), flags)
    }

    fn message(entry: &Sqe, flags: c_int, receives: bool) -> Sys<Self> {
        let header = entry.addr as *mut msghdr;
        // SAFETY: `message` accepts any address. The vectors are copied before the program runs again.
        let (_, iov) = unsafe { message::message(header) }?;
        let mut buffers = Self::new(iov.to_vec(), flags)?;
        if receives {
            buffers.header = header;
        }
        Ok(buffers)
    }

    /// `bytes` more have been moved.
    fn advance(&mut self, bytes: usize) {
        self.done += bytes;
        let mut left = bytes;
        self.iov.retain_mut(|vector| {
            let here = left.min(vector.iov_len);
            left -= here;
            vector.iov_base = vector.iov_base.wrapping_byte_add(here);
            vector.iov_len -= here;
            vector.iov_len > 0
        });
    }

    /// Judges the outcome of one call: done, or to be tried again.
    fn progress(&mut self, moved: Sys<usize>) -> Progress {
        let waits_for_all = self.flags & libc::MSG_WAITALL != 0 && self.flags & libc::MSG_PEEK == 0;
        match moved {
            Err(libc::EAGAIN) if self.flags & libc::MSG_DONTWAIT == 0 => return Progress::Waits,
            Err(errno) if self.done == 0 => return Progress::Done(-errno),
            Err(_) => {}
            Ok(moved) => {
                self.advance(moved);
                if waits_for_all && moved > 0 && self.done < self.total && self.flags & libc::MSG_DONTWAIT == 0 {
                    return Progress::Waits;
                }
            }
        }
        Progress::Done(self.done as i32)
    }

    /// The flags of one attempt, which never waits.
    fn attempt(&self) -> c_int {
        self.flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT
    }
}

/// The MSG_* flags of a read or write. A position other than the current one is ESPIPE: sockets do not seek.
fn at_no_position(entry: &Sqe) -> Sys<c_int> {
    match entry.op_flags {
        _ if entry.off != 0 && entry.off != u64::MAX => Err(libc::ESPIPE),
        0 => Ok(0),
        RWF_NOWAIT => Ok(libc::MSG_DONTWAIT),
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// The MSG_* flags of a `send` or `recv`.
fn at_once(entry: &Sqe) -> Sys<c_int> {
    // Multishot and bundles without provided buffers are refused. Fixed buffers are used by their addresses.
    let mut known = abi::RECVSEND_POLL_FIRST;
    if is_zero_copy(entry.opcode) {
        known |= abi::RECVSEND_FIXED_BUF | abi::SEND_ZC_REPORT_USAGE;
        // The second completion needs a flag (CQE_F_NOTIF), which this kernel cannot post.
        if !post::passes_flags() {
            return Err(libc::EOPNOTSUPP);
        }
    }
    if entry.ioprio & !known != 0 { Err(libc::EINVAL) } else { Ok(entry.op_flags as c_int) }
}

/// Does it post two completions: sent, and memory no longer in use?
fn is_zero_copy(opcode: u8) -> bool {
    matches!(opcode, op::SEND_ZC | op::SENDMSG_ZC)
}

impl Operation {
    /// The operation that an entry asks for. The error is the errno of its completion.
    pub fn of(ring: u32, entry: &Sqe) -> Sys<Self> {
        let work = match entry.opcode {
            op::READ | op::READ_MULTISHOT | op::RECV if entry.flags & flag::BUFFER_SELECT != 0 => Work::select(entry)?,
            _ if entry.flags & flag::BUFFER_SELECT != 0 => return Err(libc::EOPNOTSUPP),
            op::POLL_ADD => Work::poll(entry)?,
            op::READ | op::READ_FIXED => Work::Receive(Buffers::one(entry, at_no_position(entry)?)?),
            op::READV => Work::Receive(Buffers::vectors(entry, at_no_position(entry)?)?),
            op::RECV => Work::Receive(Buffers::one(entry, at_once(entry)?)?),
            op::RECVMSG => Work::Receive(Buffers::message(entry, at_once(entry)?, true)?),
            op::WRITE | op::WRITE_FIXED => Work::Send(Buffers::one(entry, at_no_position(entry)?)?),
            op::WRITEV => Work::Send(Buffers::vectors(entry, at_no_position(entry)?)?),
            op::SEND => Work::Send(Buffers::one(entry, at_once(entry)?)?),
            op::SENDMSG => Work::Send(Buffers::message(entry, at_once(entry)?, false)?),
            op::SEND_ZC => Work::Send(Buffers::one(entry, at_once(entry)?)?),
            op::SENDMSG_ZC => Work::Send(Buffers::message(entry, at_once(entry)?, false)?),
            op::ACCEPT => Work::accept(entry)?,
            op::CONNECT => Work::Connect,
            op::SHUTDOWN => Work::Shutdown(entry.len as c_int),
            op::CLOSE => Work::Close,
            op::NOP => Work::Nothing,
            _ => return Err(libc::EOPNOTSUPP),
        };
        let quiet = entry.flags & flag::CQE_SKIP_SUCCESS != 0;
        let hard = entry.flags & flag::IO_HARDLINK != 0;
        let reports = entry.ioprio & abi::SEND_ZC_REPORT_USAGE != 0;
        let notice = is_zero_copy(entry.opcode).then_some(if reports { abi::NOTIF_COPIED } else { 0 });
        let (user_data, opcode, fd) = (entry.user_data, entry.opcode, entry.fd);
        Ok(Self { ring, user_data, opcode, quiet, fd, limit: None, next: None, hard, notice, work })
    }

    /// Does this result break the chain? A short transfer does, where Linux lets it.
    pub fn has_failed(&self, result: i32) -> bool {
        let whole = match &self.work {
            Work::Receive(buffers) | Work::Send(buffers) => {
                let by_position = !matches!(
                    self.opcode,
                    op::RECV | op::RECVMSG | op::SEND | op::SENDMSG | op::SEND_ZC | op::SENDMSG_ZC
                );
                (by_position || buffers.flags & libc::MSG_WAITALL != 0).then_some(buffers.total)
            }
            _ => None,
        };
        result < 0 || whole.is_some_and(|whole| (result as usize) < whole)
    }

    /// The direction, in which operations keep the order of their submission.
    pub fn way(&self) -> Way {
        match &self.work {
            Work::Receive(_) | Work::Select { .. } | Work::Accept { .. } => Way::In,
            Work::Send(_) => Way::Out,
            _ => Way::Any,
        }
    }

    /// Is it a poll?
    pub fn is_poll(&self) -> bool {
        matches!(self.work, Work::Poll { .. })
    }

    /// A poll gets another event mask, and may become multishot.
    pub fn change_events(&mut self, changed: u32, several: bool) {
        if let Work::Poll { events, multishot, told } = &mut self.work {
            *events = poll_events(changed);
            *multishot |= several;
            *told = None;
        }
    }

    /// The readiness events after which the next attempt is worthwhile.
    pub fn events(&self) -> u32 {
        match &self.work {
            Work::Poll { events, .. } => *events,
            Work::Receive(buffers) if buffers.flags & libc::MSG_OOB != 0 => PRI | RDHUP,
            Work::Receive(_) | Work::Select { .. } => IN | RDHUP,
            Work::Accept { .. } => IN,
            Work::Send(_) | Work::Connect => OUT,
            Work::Shutdown(_) | Work::Close | Work::Nothing => 0,
        }
    }

    /// Makes one attempt; never waits. `half`: a descriptor of the library's own for a listener's kernel half.
    pub fn attempt(&mut self, target: &Target, half: Option<c_int>) -> Progress {
        let fd = half.unwrap_or(self.fd);
        match (&mut self.work, target) {
            (Work::Poll { events, multishot, told }, _) => {
                let (found, words) = match target {
                    // The words are read before the events: a change in between is reported twice rather than never.
                    Target::Socket(socket) if socket.kernel_half() => {
                        let [mut first, rest @ ..] = socket.view().words();
                        first = first.wrapping_add(hints::times(socket).load(Ordering::Relaxed));
                        let found = readiness::events_for(socket, *events) | hints::kernel_events(fd, *events);
                        (found, [first, rest[0], rest[1], rest[2]])
                    }
                    Target::Socket(socket) => {
                        let words = socket.view().words();
                        (readiness::events_for(socket, *events), words)
                    }
                    Target::Epoll(id) => (readable(*id) & *events, [0; 4]),
                };
                if found == 0 {
                    *told = None;
                    return Progress::Waits;
                }
                if !*multishot {
                    return Progress::Done(found as i32);
                }
                let now = Some((found, words));
                if now == *told && matches!(target, Target::Socket(_)) && found & (ERR | HUP) == 0 {
                    return Progress::Waits;
                }
                *told = now;
                Progress::More(found as i32)
            }
            (Work::Receive(buffers), Target::Socket(socket)) => {
                if buffers.total == 0 && matches!(self.opcode, op::READ | op::READV | op::READ_FIXED) {
                    return Progress::Done(0);
                }
                // SAFETY: `receive` accepts any address of the program and checks it.
                let moved = unsafe { receive::receive(socket, &buffers.iov, buffers.attempt()) };
                let header = buffers.header;
                let flags = buffers.flags & libc::MSG_OOB;
                match buffers.progress(moved) {
                    Progress::Done(done) if done >= 0 && !header.is_null() => {
                        // SAFETY: `received` accepts any address.
                        let written = unsafe { message::received(socket, header, flags) };
                        Progress::Done(written.map_or_else(|errno| -errno, |()| done))
                    }
                    other => other,
                }
            }
            (Work::Select { group, most, flags, multishot, begun }, Target::Socket(socket)) => {
                // An empty group is an error at the first attempt, and later only once there is something to receive.
                if core::mem::replace(begun, true) && readiness::events_for(socket, IN | RDHUP) == 0 {
                    return Progress::Waits;
                }
                let (vector, named) = match buffers::next(self.ring, *group, *most) {
                    Ok(next) => next,
                    Err(errno) => return Progress::Done(-errno),
                };
                // SAFETY: `receive` accepts any address of the program and checks it.
                match unsafe { receive::receive(socket, &[vector], *flags | libc::MSG_DONTWAIT) } {
                    Ok(0) => Progress::Done(0),
                    Ok(moved) => {
                        buffers::taken(self.ring, *group);
                        Progress::Filled(moved as i32, named, *multishot)
                    }
                    Err(libc::EAGAIN) if *flags & libc::MSG_DONTWAIT == 0 => Progress::Waits,
                    Err(errno) => Progress::Done(-errno),
                }
            }
            (Work::Send(buffers), Target::Socket(socket)) => {
                let flags = buffers.attempt() | libc::MSG_NOSIGNAL;
                // SAFETY: `send` accepts any address of the program and checks it.
                let moved = unsafe { send::send(socket, &buffers.iov, flags) };
                buffers.progress(moved)
            }
            (Work::Accept { addr, len, flags, multishot }, Target::Socket(socket)) => {
                let (dont_wait, flags) = (*flags & libc::MSG_DONTWAIT != 0, *flags & !libc::MSG_DONTWAIT);
                let accepted = if socket.kernel_half() && socket.is_gone() {
                    accept_alone(fd, *addr, *len, flags)
                } else {
                    // SAFETY: `attempt` accepts any addresses for the peer's address.
                    unsafe { accept::attempt(fd, socket, *addr, *len, flags) }
                };
                match accepted {
                    Ok(fd) if *multishot => Progress::More(fd),
                    Ok(fd) => Progress::Done(fd),
                    Err(libc::EAGAIN) if !dont_wait => Progress::Waits,
                    Err(errno) => Progress::Done(-errno),
                }
            }
            (Work::Connect, Target::Socket(socket)) => match connect::outcome_if_any(socket) {
                None => Progress::Waits,
                Some(outcome) => Progress::Done(outcome.map_or_else(|errno| -errno, |_| 0)),
            },
            (Work::Shutdown(how), Target::Socket(_)) => done(shutdown::shutdown(self.fd, *how)),
            // SAFETY: `close` takes a number and no memory.
            (Work::Close, _) => done(close::close(self.fd).or_else(|| Some(outcome(unsafe { real::close(self.fd) })))),
            (Work::Nothing, _) => Progress::Done(0),
            (_, Target::Epoll(_)) => Progress::Done(-libc::EINVAL),
        }
    }
}

/// Accepts on the kernel half of a listener whose service has died. The listener may be a blocking one by now.
fn accept_alone(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> Sys<c_int> {
    if !hints::kernel_is_ready(fd) {
        return Err(libc::EAGAIN);
    }
    // SAFETY: the kernel checks the addresses.
    outcome(unsafe { real::accept4(fd, addr, len, flags) })
}

/// The result of a call that has been carried out here.
fn done(answer: Answer<c_int>) -> Progress {
    Progress::Done(answer.unwrap_or(Err(libc::EBADF)).unwrap_or_else(|errno| -errno))
}

/// The events that a poll reports. Linux reports the end of the peer's data even if nobody asked for it.
fn poll_events(asked: u32) -> u32 {
    asked & EVENTS | RDHUP
}

/// The poll events of an epoll instance.
fn readable(id: u32) -> u32 {
    let ready = session::get().is_some() && nested::is_ready(id);
    if ready && instance::descriptor(id) >= 0 { (libc::POLLIN | libc::POLLRDNORM) as u32 } else { 0 }
}

impl Work {
    fn poll(entry: &Sqe) -> Sys<Self> {
        if entry.len & !(abi::poll::ADD_MULTI | abi::poll::ADD_LEVEL) != 0 {
            return Err(libc::EINVAL);
        }
        let multishot = entry.len & abi::poll::ADD_MULTI != 0;
        Ok(Self::Poll { events: poll_events(entry.op_flags), multishot, told: None })
    }

    fn select(entry: &Sqe) -> Sys<Self> {
        let (flags, multishot) = match entry.opcode {
            op::RECV if entry.ioprio & !(abi::RECVSEND_POLL_FIRST | abi::RECV_MULTISHOT) != 0 => {
                return Err(libc::EINVAL);
            }
            op::RECV => (entry.op_flags as c_int, entry.ioprio & abi::RECV_MULTISHOT != 0),
            op::READ => (at_no_position(entry)?, false),
            _ => (at_no_position(entry)?, true),
        };
        if multishot && flags & libc::MSG_WAITALL != 0 {
            return Err(libc::EINVAL);
        }
        // The completion must name the buffer in its flags, which this kernel cannot post.
        if !post::passes_flags() {
            return Err(libc::EOPNOTSUPP);
        }
        let flags = flags & !libc::MSG_WAITALL;
        Ok(Self::Select { group: entry.buf_index, most: entry.len as usize, flags, multishot, begun: false })
    }

    fn accept(entry: &Sqe) -> Sys<Self> {
        use abi::accept::{DONTWAIT, MULTISHOT, POLL_FIRST};
        let flags = entry.op_flags as c_int;
        // Accepting into the table of fixed files is not carried out here.
        if entry.ioprio & !(MULTISHOT | DONTWAIT | POLL_FIRST) != 0
            || entry.file_index != 0
            || flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0
        {
            return Err(libc::EINVAL);
        }
        let dont_wait = if entry.ioprio & DONTWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
        let multishot = entry.ioprio & MULTISHOT != 0;
        let (addr, len) = (entry.addr as *mut sockaddr, entry.off as *mut socklen_t);
        Ok(Self::Accept { addr, len, flags: flags | dont_wait, multishot })
    }
}

/// Reads an array of descriptors from the program's memory.
pub fn numbers(from: u64, count: u32) -> Sys<Vec<c_int>> {
    (0..count as usize)
        // SAFETY: `user::read` accepts any address, and any bytes are a valid number.
        .map(|at| unsafe { user::read((from as *const c_int).wrapping_add(at)) })
        .collect()
}
