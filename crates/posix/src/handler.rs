//! The caught calls. A call on a descriptor that concerns the library goes to the file that implements it.

use crate::fd::table::{self, Descriptor, Target};
use crate::fd::{close, fclose, fcntl, ioctl, passing, streams, unshared};
use crate::io::{aio, fault, message, receive, send, splice, urgent, user, vectors};
use crate::lifecycle::{accept, address, bind, connect, leaving, listen, registration, shutdown, socket};
use crate::observe::fallback;
use crate::observe::measure::{self, Direction};
use crate::options::by_descriptor;
use crate::ready::{epoll_ctl, epoll_wait, past, poll, select};
use crate::{at_fork, uring, wiring};
use core::sync::atomic::Ordering;
use core::time::Duration;
use libc::{
    FILE, c_char, c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, loff_t, mmsghdr, msghdr, nfds_t,
    off_t, pollfd, pthread_t, sigaction, sighandler_t, sigset_t, size_t, sockaddr as sockaddr_t, socklen_t, ssize_t,
    timespec, timeval,
};
use towpath_client::private::flag;
use towpath_client::{cancel, locked, single_threaded, sys};
use towpath_hook::{Answer, Handler, exec, kept_for_brk, lock_in_future, outcome, real};
use towpath_ring::lines::state;

/// The library's answers to the caught calls.
pub struct Posix;

impl Posix {
    /// Sets the functions that lower layers call.
    pub(crate) fn wire() {
        let streams = streams::Calls { read: Self::read, write: Self::write, close: close::close };
        wiring::install(streams);
    }
}

fn count(result: Result<usize, i32>) -> Answer<ssize_t> {
    Some(result.map(|n| n as ssize_t))
}

/// A call that moves bytes: `$ours` on an accelerated socket, else the kernel's. On a measured descriptor either is
/// counted.
macro_rules! moves {
    ($fd:expr, $direction:ident, $real:expr, |$socket:ident| $ours:expr) => {
        match table::target($fd) {
            Target::Ours($socket) => looked($fd, $ours),
            Target::Measured => observed($fd, Direction::$direction, || match table::socket($fd) {
                Some($socket) => $ours,
                // SAFETY: `$real` has the arguments of the program's call, whose contract the caller keeps.
                None => Some(outcome(unsafe { $real })),
            }),
            Target::Other => None,
        }
    };
}

/// A program that gets EAGAIN may have been told of this socket by the kernel.
#[inline(always)]
fn looked(fd: c_int, answer: Answer<ssize_t>) -> Answer<ssize_t> {
    if answer == Some(Err(libc::EAGAIN)) {
        past::look(fd);
    }
    answer
}

/// Makes a call on a descriptor whose calls take the path of measured ones.
#[cold]
#[inline(never)]
fn observed(fd: c_int, direction: Direction, call: impl FnOnce() -> Answer<ssize_t>) -> Answer<ssize_t> {
    let answer = if measure::is_on() { measure::during(fd, direction, call) } else { call() };
    if table::is_diverted(fd) {
        past::called(fd);
    } else if !measure::is_on() {
        // It has been diverted before.
        table::unmeasure(fd);
    }
    answer
}

fn milliseconds(timeout_ms: c_int) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

// Each method has the contract of the libc function of its name ([`Handler`]).
impl Handler for Posix {
    fn init() {
        Self::wire();
        at_fork::init();
        fallback::init();
        let left_alone = fallback::left_alone;
        exec::watch(exec::Watcher { executing: passing::executing, copied: passing::unseen_copy, left_alone });
        passing::inherit();
    }
    fn forking() {
        at_fork::before();
    }
    fn forked() {
        at_fork::in_child();
    }
    fn sharing_memory() {
        single_threaded::has_hidden_threads();
    }
    fn is_accelerated(fd: c_int) -> bool {
        aio::is_accelerated(fd)
    }
    unsafe fn io_uring_setup(entries: c_uint, params: *mut c_void) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of the system call.
        unsafe { uring::set_up(entries, params) }
    }
    fn io_uring_unseen() -> Answer<c_int> {
        uring::unseen()
    }
    unsafe fn io_uring_enter(fd: c_int, submit: c_uint) -> Answer<c_int> {
        uring::enter(fd, submit)
    }
    unsafe fn io_uring_register(fd: c_int, op: c_uint, arg: *mut c_void, count: c_uint) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of the system call.
        unsafe { uring::register(fd, op, arg, count) }
    }
    unsafe fn io_submit(context: c_ulong, count: c_long, requests: *const *const c_void) -> Answer<c_long> {
        // SAFETY: the caller keeps the contract of `io_submit`.
        unsafe { aio::submit(context, count, requests) }
    }

    unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Answer<c_int> {
        socket::socket(domain, kind, protocol)
    }
    unsafe fn bind(fd: c_int, addr: *const sockaddr_t, len: socklen_t) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `bind`: `addr` has `len` readable bytes.
        unsafe { bind::bind(fd, addr, len) }
    }
    unsafe fn listen(fd: c_int, backlog: c_int) -> Answer<c_int> {
        listen::listen(fd, backlog)
    }
    unsafe fn accept(fd: c_int, addr: *mut sockaddr_t, len: *mut socklen_t) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `accept`: `addr` and `len` are null or name room for an address.
        let accepted = unsafe { accept::accept(fd, addr, len, 0) };
        past::called(fd);
        accepted
    }
    unsafe fn accept4(fd: c_int, addr: *mut sockaddr_t, len: *mut socklen_t, flags: c_int) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `accept4`: `addr` and `len` are null or name room for an address.
        let accepted = unsafe { accept::accept(fd, addr, len, flags) };
        past::called(fd);
        accepted
    }
    unsafe fn connect(fd: c_int, addr: *const sockaddr_t, len: socklen_t) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `connect`: `addr` has `len` readable bytes.
        unsafe { connect::connect(fd, addr, len) }
    }

    unsafe fn shutdown(fd: c_int, how: c_int) -> Answer<c_int> {
        shutdown::shutdown(fd, how)
    }

    unsafe fn getsockname(fd: c_int, addr: *mut sockaddr_t, len: *mut socklen_t) -> Answer<c_int> {
        let socket = table::socket(fd).filter(|socket| !socket.kernel_half())?;
        let local = address::local(&socket);
        // SAFETY: the caller keeps the contract of `getsockname`: `len` is null or valid, `addr` null or `*len` bytes
        // of room.
        Some(unsafe { address::write(socket.has(flag::SIX), local, addr, len) }.map(|()| 0))
    }
    unsafe fn getpeername(fd: c_int, addr: *mut sockaddr_t, len: *mut socklen_t) -> Answer<c_int> {
        let socket = table::socket(fd).filter(|socket| !socket.kernel_half())?;
        if socket.state() != state::ESTABLISHED {
            return Some(Err(libc::ENOTCONN));
        }
        let info = socket.info();
        let remote = (towpath_ring::address::load(&info.remote_addr), info.ports.load(Ordering::Relaxed) as u16);
        // SAFETY: the caller keeps the contract of `getpeername`: `len` is null or valid, `addr` null or `*len` bytes
        // of room.
        Some(unsafe { address::write(socket.has(flag::SIX), remote, addr, len) }.map(|()| 0))
    }
    unsafe fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `getsockopt`.
        unsafe { by_descriptor::getsockopt(fd, level, name, value, len) }
    }
    unsafe fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `setsockopt`.
        unsafe { by_descriptor::setsockopt(fd, level, name, value, len) }
    }

    unsafe fn fcntl(fd: c_int, cmd: c_int, arg: c_long) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `fcntl`.
        unsafe { fcntl::fcntl(fd, cmd, arg) }
    }
    unsafe fn ioctl(fd: c_int, request: c_ulong, arg: c_long) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `ioctl`.
        unsafe { ioctl::ioctl(fd, request, arg) }
    }

    unsafe fn sockatmark(fd: c_int) -> Answer<c_int> {
        let socket = table::socket(fd)?;
        Some(Ok(urgent::at_mark(&socket.view()).into()))
    }

    #[inline(always)]
    unsafe fn read(fd: c_int, buf: *mut c_void, len: size_t) -> Answer<ssize_t> {
        moves!(fd, Receive, real::read(fd, buf, len), |socket| {
            // SAFETY: the caller keeps the contract of `read`: `buf` has `len` writable bytes.
            if len == 0 { Some(Ok(0)) } else { count(unsafe { receive::receive_into(&socket, buf, len, 0) }) }
        })
    }
    unsafe fn readv(fd: c_int, iov: *const iovec, vectors: c_int) -> Answer<ssize_t> {
        // SAFETY: the caller keeps the contract of `readv`.
        moves!(fd, Receive, real::readv(fd, iov, vectors), |socket| count(unsafe {
            vectors::read(&socket, iov, vectors, 0)
        }))
    }
    unsafe fn preadv2(fd: c_int, iov: *const iovec, vectors: c_int, offset: off_t, flags: c_int) -> Answer<ssize_t> {
        let socket = table::socket(fd)?;
        // SAFETY: the caller keeps the contract of `preadv2`.
        count(
            vectors::at_no_position(offset, flags)
                .and_then(|flags| unsafe { vectors::read(&socket, iov, vectors, flags) }),
        )
    }
    #[inline(always)]
    unsafe fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> Answer<ssize_t> {
        // SAFETY: the caller keeps the contract of `recv`: `buf` has `len` writable bytes.
        moves!(fd, Receive, real::recv(fd, buf, len, flags), |socket| count(unsafe {
            receive::receive_into(&socket, buf, len, flags)
        }))
    }
    unsafe fn recvfrom(
        fd: c_int,
        buf: *mut c_void,
        len: size_t,
        flags: c_int,
        addr: *mut sockaddr_t,
        alen: *mut socklen_t,
    ) -> Answer<ssize_t> {
        moves!(fd, Receive, real::recvfrom(fd, buf, len, flags, addr, alen), |socket| {
            // SAFETY: the caller keeps the contract of `recvfrom`: `buf` has `len` writable bytes.
            let received = unsafe { receive::receive(&socket, &[iovec { iov_base: buf, iov_len: len }], flags) };
            // A connected stream socket names no sender.
            count(received.and_then(|received| {
                if addr.is_null() {
                    return Ok(received);
                }
                // SAFETY: `user::write` accepts any address of the program.
                unsafe { user::write(alen, 0) }.map(|()| received)
            }))
        })
    }
    unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> Answer<ssize_t> {
        // SAFETY: the caller keeps the contract of `recvmsg`: `msg` is null or valid, and so are its vectors.
        let answer = moves!(fd, Receive, real::recvmsg(fd, msg, flags), |socket| Some(unsafe {
            message::receive_message(&socket, msg, flags)
        }));
        // SAFETY: the caller keeps the contract of `recvmsg`.
        answer.or_else(|| unsafe { passing::receive(fd, msg, flags) })
    }
    unsafe fn recvmmsg(
        fd: c_int,
        msgs: *mut mmsghdr,
        messages: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> Answer<c_int> {
        let Some(socket) = table::socket(fd) else {
            // SAFETY: the caller keeps the contract of `recvmmsg`.
            return unsafe { passing::receive_many(fd, msgs, messages, flags, timeout) };
        };
        // SAFETY: the caller keeps the contract of `recvmmsg`: `msgs` has `messages` entries, `timeout` is null or
        // valid.
        Some(unsafe { message::receive_messages(&socket, msgs, messages, flags, timeout) })
    }

    #[inline(always)]
    unsafe fn write(fd: c_int, buf: *const c_void, len: size_t) -> Answer<ssize_t> {
        // SAFETY: the caller keeps the contract of `write`: `buf` has `len` readable bytes.
        moves!(fd, Send, real::write(fd, buf, len), |socket| count(unsafe { send::send_from(&socket, buf, len, 0) }))
    }
    unsafe fn writev(fd: c_int, iov: *const iovec, vectors: c_int) -> Answer<ssize_t> {
        // SAFETY: the caller keeps the contract of `writev`.
        moves!(fd, Send, real::writev(fd, iov, vectors), |socket| count(unsafe {
            vectors::write(&socket, iov, vectors, 0)
        }))
    }
    unsafe fn pwritev2(fd: c_int, iov: *const iovec, vectors: c_int, offset: off_t, flags: c_int) -> Answer<ssize_t> {
        let socket = table::socket(fd)?;
        // SAFETY: the caller keeps the contract of `pwritev2`.
        count(
            vectors::at_no_position(offset, flags)
                .and_then(|flags| unsafe { vectors::write(&socket, iov, vectors, flags) }),
        )
    }
    #[inline(always)]
    unsafe fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> Answer<ssize_t> {
        // SAFETY: the caller keeps the contract of `send`: `buf` has `len` readable bytes.
        moves!(fd, Send, real::send(fd, buf, len, flags), |socket| count(unsafe {
            send::send_from(&socket, buf, len, flags)
        }))
    }
    unsafe fn sendto(
        fd: c_int,
        buf: *const c_void,
        len: size_t,
        flags: c_int,
        addr: *const sockaddr_t,
        alen: socklen_t,
    ) -> Answer<ssize_t> {
        if addr.is_null() {
            let iov = [iovec { iov_base: buf.cast_mut(), iov_len: len }];
            // SAFETY: the caller keeps the contract of `sendto`: `buf` has `len` readable bytes.
            return moves!(fd, Send, real::sendto(fd, buf, len, flags, addr, alen), |socket| count(unsafe {
                send::send(&socket, &iov, flags)
            }));
        }
        let kind = table::get(fd);
        if kind == Descriptor::Kernel {
            return None;
        }
        if flags & libc::MSG_FASTOPEN != 0 {
            // SAFETY: the caller keeps the contract of `sendto`.
            match unsafe { connect::fast_open(fd, kind, addr, alen) } {
                Some(Ok(_)) => {}
                other => return other.map(|refused| refused.map(|_| 0)),
            }
        }
        let socket = table::socket(fd)?;
        // SAFETY: the caller keeps the contract of `sendto`.
        if let Err(errno) = unsafe { message::ignored(addr, alen) } {
            return Some(Err(errno));
        }
        // SAFETY: the caller keeps the contract of `sendto`: `buf` has `len` readable bytes.
        count(unsafe {
            send::send(&socket, &[iovec { iov_base: buf.cast_mut(), iov_len: len }], flags & !libc::MSG_FASTOPEN)
        })
    }
    unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> Answer<ssize_t> {
        // SAFETY: the caller keeps the contract of `sendmsg`: `msg` is null or valid, and so are its vectors.
        let answer = moves!(fd, Send, real::sendmsg(fd, msg, flags), |socket| Some(unsafe {
            message::send_message(&socket, msg, flags)
        }));
        if answer.is_none() {
            // SAFETY: `send` accepts any addresses.
            unsafe { passing::send(msg) };
        }
        answer
    }
    unsafe fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, messages: c_uint, flags: c_int) -> Answer<c_int> {
        let Some(socket) = table::socket(fd) else {
            // SAFETY: the caller keeps the contract of `sendmmsg`.
            unsafe { passing::send_many(msgs, messages) };
            return None;
        };
        // SAFETY: the caller keeps the contract of `sendmmsg`: `msgs` has `messages` entries.
        Some(unsafe { message::send_messages(&socket, msgs, messages, flags) })
    }
    unsafe fn sendfile(out: c_int, input: c_int, offset: *mut off_t, len: size_t) -> Answer<ssize_t> {
        // SAFETY: the caller keeps the contract of `sendfile`: `offset` is null or valid.
        moves!(out, Send, real::sendfile(out, input, offset, len), |socket| Some(unsafe {
            message::send_file(&socket, input, offset, len)
        }))
    }
    unsafe fn splice(
        input: c_int,
        in_offset: *mut loff_t,
        out: c_int,
        out_offset: *mut loff_t,
        len: size_t,
        flags: c_uint,
    ) -> Answer<ssize_t> {
        splice::splice((input, !in_offset.is_null()), (out, !out_offset.is_null()), len, flags)
    }

    unsafe fn sigaction(signal: c_int, new: *const sigaction, old: *mut sigaction) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `sigaction`.
        unsafe { fault::action(signal, new, old) }
    }
    unsafe fn signal(signal: c_int, handler: sighandler_t) -> Answer<sighandler_t> {
        fault::handler(signal, handler)
    }

    unsafe fn pthread_cancel(thread: pthread_t) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `pthread_cancel`.
        unsafe { cancel::cancel(thread) }
    }

    unsafe fn fdopen(fd: c_int, mode: *const c_char) -> Answer<*mut FILE> {
        // SAFETY: the caller keeps the contract of `fdopen`.
        unsafe { streams::fdopen(fd, mode) }
    }
    unsafe fn fileno(stream: *mut FILE) -> Answer<c_int> {
        streams::fileno(stream)
    }

    unsafe fn poll(fds: *mut pollfd, n: nfds_t, timeout_ms: c_int) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `poll`: `fds` has `n` entries.
        unsafe { poll::poll(fds, n, milliseconds(timeout_ms), core::ptr::null()) }
    }
    unsafe fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `ppoll`: null or valid.
        match unsafe { timeout.as_ref() } {
            // SAFETY: the caller keeps the contract of `ppoll`: `fds` has `n` entries, `mask` is null or valid.
            None => unsafe { poll::poll(fds, n, None, mask) },
            // The kernel refuses an invalid time.
            // SAFETY: the caller keeps the contract of `ppoll`: `fds` has `n` entries, `mask` is null or valid.
            Some(time) => unsafe { poll::poll(fds, n, Some(sys::duration_of(time)?), mask) },
        }
    }
    unsafe fn select(
        n: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `select`: null or valid, and not shared during the call.
        let time = unsafe { timeout.as_mut() };
        let limit = match &time {
            None => None,
            Some(time) => {
                // Unlike elsewhere, `tv_usec` may be more than a second.
                let seconds = time.tv_sec.checked_add(time.tv_usec.div_euclid(1_000_000))?;
                let valid = time.tv_sec >= 0 && time.tv_usec >= 0;
                let nanoseconds = if valid { time.tv_usec.rem_euclid(1_000_000) * 1000 } else { -1 };
                Some(sys::duration_of(&timespec { tv_sec: seconds, tv_nsec: nanoseconds })?)
            }
        };
        let start = std::time::Instant::now();
        // SAFETY: the caller keeps the contract of `select`: sets of at least `n` bits or null.
        let found = unsafe { select::select(n, [read, write, except], limit, core::ptr::null()) }?;
        if let (Some(time), Some(limit)) = (time, limit) {
            // Linux stores the remaining time.
            let left = limit.saturating_sub(start.elapsed());
            *time = timeval { tv_sec: left.as_secs() as _, tv_usec: left.subsec_micros() as _ };
        }
        Some(found)
    }
    unsafe fn pselect(
        n: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `pselect`: null or valid.
        let limit = match unsafe { timeout.as_ref() } {
            None => None,
            Some(time) => Some(sys::duration_of(time)?),
        };
        // SAFETY: the caller keeps the contract of `pselect`: sets of at least `n` bits or null.
        unsafe { select::select(n, [read, write, except], limit, mask) }
    }

    unsafe fn epoll_create(size: c_int) -> Answer<c_int> {
        // SAFETY: integers only.
        Some(outcome(unsafe { real::epoll_create(size) }).inspect(|fd| epoll_ctl::created(*fd)))
    }
    unsafe fn epoll_create1(flags: c_int) -> Answer<c_int> {
        // SAFETY: integers only.
        Some(outcome(unsafe { real::epoll_create1(flags) }).inspect(|fd| epoll_ctl::created(*fd)))
    }
    unsafe fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `epoll_ctl`: `event` is null or valid.
        unsafe { epoll_ctl::control(epfd, op, fd, event) }
    }
    #[inline(always)]
    unsafe fn epoll_wait(epfd: c_int, events: *mut epoll_event, n: c_int, timeout_ms: c_int) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `epoll_wait`: `events` has room for `n`.
        unsafe { epoll_wait::epoll_wait(epfd, events, n, || milliseconds(timeout_ms), core::ptr::null()) }
    }
    unsafe fn epoll_pwait(
        epfd: c_int,
        events: *mut epoll_event,
        n: c_int,
        timeout_ms: c_int,
        mask: *const sigset_t,
    ) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `epoll_pwait`: `events` has room for `n`, `mask` is null or valid.
        unsafe { epoll_wait::epoll_pwait(epfd, events, n, milliseconds(timeout_ms), mask) }
    }
    unsafe fn epoll_pwait2(
        epfd: c_int,
        events: *mut epoll_event,
        n: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `epoll_pwait2`: null or valid.
        let limit = match unsafe { timeout.as_ref() } {
            None => None,
            Some(time) => Some(sys::duration_of(time)?),
        };
        // SAFETY: the caller keeps the contract of `epoll_pwait2`: `events` has room for `n`, `mask` is null or valid.
        unsafe { epoll_wait::epoll_pwait(epfd, events, n, limit, mask) }
    }

    unsafe fn close(fd: c_int) -> Answer<c_int> {
        close::close(fd)
    }
    unsafe fn dup(fd: c_int) -> Answer<c_int> {
        // SAFETY: integers only.
        close::duplicate(fd, || unsafe { real::dup(fd) })
    }
    unsafe fn dup2(fd: c_int, new: c_int) -> Answer<c_int> {
        // SAFETY: integers only.
        close::duplicate_over(fd, new, || unsafe { real::dup2(fd, new) })
    }
    unsafe fn dup3(fd: c_int, new: c_int, flags: c_int) -> Answer<c_int> {
        // SAFETY: integers only.
        close::duplicate_over(fd, new, || unsafe { real::dup3(fd, new, flags) })
    }
    unsafe fn close_range(first: c_uint, last: c_uint, flags: c_int) -> Answer<c_int> {
        close::close_range(first, last, flags as c_uint)
    }
    unsafe fn closefrom(first: c_int) -> Answer<()> {
        close::close_range(first.max(0) as c_uint, c_uint::MAX, 0).map(|_| Ok(()))
    }
    unsafe fn chroot(_path: *const c_char) -> Answer<c_int> {
        // The service's socket may not be below the new root.
        registration::start();
        None
    }
    unsafe fn unshare(flags: c_int) -> Answer<c_int> {
        if flags & libc::CLONE_FILES != 0 { unshared::refused() } else { None }
    }
    unsafe fn prctl(option: c_int, _mode: c_ulong, filter: c_ulong, _c: c_ulong, _d: c_ulong) -> Answer<c_int> {
        leaving::controlled(option, filter);
        None
    }
    unsafe fn pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> Answer<c_int> {
        // SAFETY: integers only.
        Some(outcome(unsafe { real::pidfd_getfd(pidfd, fd, flags) }).inspect(|new| close::taken(*new)))
    }
    unsafe fn mlockall(flags: c_int) -> Answer<c_int> {
        // The space kept for an injected program's `brk` is no memory of its own yet.
        let locked = locked::lock_all(flags, kept_for_brk());
        Some(locked.inspect(|_| lock_in_future(flags & libc::MCL_FUTURE != 0)))
    }
    unsafe fn munlockall() -> Answer<c_int> {
        lock_in_future(false);
        None
    }
    unsafe fn fclose(stream: *mut FILE) -> Answer<c_int> {
        // SAFETY: the caller keeps the contract of `fclose`: an open stream.
        unsafe { fclose::fclose(stream) };
        None
    }
}
