//! `splice` between accelerated sockets and pipes. Bytes go between the ring and the pipe without a copy in the
//! program.

use crate::fd::table;
use crate::io::hand_over::calls;
use crate::io::{receive, send, urgent};
use core::sync::atomic::Ordering;
use libc::{c_int, c_uint, iovec, size_t, ssize_t};
use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::sys::{self, Sys};
use towpath_client::wait;
use towpath_hook::{Answer, outcome, real};
use towpath_ring::lines::state;

const KNOWN: c_uint = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

/// `splice`. Each end is a descriptor and whether the program named an offset for it.
pub fn splice(input: (c_int, bool), out: (c_int, bool), len: size_t, flags: c_uint) -> Answer<ssize_t> {
    let (from, to) = (table::socket(input.0), table::socket(out.0));
    if from.is_none() && to.is_none() {
        return None;
    }
    Some(moved(input, from, out, to, len, flags).map(|count| count as ssize_t))
}

fn moved(
    (input, in_offset): (c_int, bool),
    from: Option<Socket>,
    (out, out_offset): (c_int, bool),
    to: Option<Socket>,
    len: size_t,
    flags: c_uint,
) -> Sys<usize> {
    if flags & !KNOWN != 0 {
        return Err(libc::EINVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    let mode = |fd| sys::fcntl(fd, libc::F_GETFL, 0).map(|flags| flags & libc::O_ACCMODE);
    match (from, to) {
        (Some(from), None) => {
            if mode(out)? == libc::O_RDONLY {
                return Err(libc::EBADF);
            }
            if in_offset || out_offset || !sys::is_pipe(out) || is_socket(out) {
                return Err(if out_offset && sys::is_pipe(out) { libc::ESPIPE } else { libc::EINVAL });
            }
            calls::into_pipe(&from, out, len, || unread(out), || into_pipe(&from, out, len, flags))
        }
        (None, Some(to)) => {
            if mode(input)? == libc::O_WRONLY {
                return Err(libc::EBADF);
            }
            if in_offset || out_offset || !sys::is_pipe(input) || is_socket(input) {
                return Err(if in_offset && sys::is_pipe(input) { libc::ESPIPE } else { libc::EINVAL });
            }
            calls::out_of_pipe(&to, input, len, || out_of_pipe(&to, input, len, flags))
        }
        _ => Err(libc::EINVAL),
    }
}

/// Is it a socket? `is_pipe` does not tell, because neither pipes nor sockets have positions.
fn is_socket(fd: c_int) -> bool {
    table::get(fd) != table::Descriptor::Kernel
        || sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, libc::SO_TYPE, 0).is_ok()
}

/// The outcome of one attempt to move bytes into a pipe.
enum Step {
    /// So many bytes have gone.
    Moved(usize),
    /// The stream has ended.
    Ended,
    /// There is nothing to move yet.
    Nothing,
}

fn into_pipe(socket: &Socket, pipe: c_int, len: usize, flags: c_uint) -> Sys<usize> {
    if socket.state() == state::LISTENING {
        return Err(libc::ENOTCONN);
    }
    // SPLICE_F_NONBLOCK concerns the pipe only. The socket's own mode says whether to wait for bytes.
    let nonblock = socket.has(flag::NONBLOCK);
    let deadline = wait::deadline(socket.private().receive_timeout_us.load(Ordering::Relaxed));
    loop {
        match step(socket, pipe, len, flags)? {
            Step::Moved(count) => return Ok(count),
            Step::Ended => return Ok(0),
            Step::Nothing if nonblock => return Err(libc::EAGAIN),
            Step::Nothing => {
                wait::until(socket, deadline, || {
                    let view = socket.view();
                    view.receive_closed() || urgent::readable(&view) > 0 || view.error().is_some()
                })?;
            }
        }
    }
}

fn step(socket: &Socket, pipe: c_int, len: usize, flags: c_uint) -> Sys<Step> {
    let view = &socket.view();
    let end = view.end();
    let _receiving = socket.private().receiving.lock().ok_or(libc::EAGAIN)?;
    let unread = if view.is_gone() { 0 } else { view.readable() as usize };
    if unread == 0 {
        return receive::without_data(socket, end, 0, false)
            .map_or(Ok(Step::Nothing), |ended| ended.map(|_| Step::Ended));
    }
    if flags & libc::SPLICE_F_NONBLOCK != 0 {
        let mut room = [libc::pollfd { fd: pipe, events: libc::POLLOUT, revents: 0 }];
        if sys::ppoll(&mut room, Some(core::time::Duration::ZERO), core::ptr::null())? == 0 {
            return Err(libc::EAGAIN);
        }
    }
    let (head, mark) = (view.app.rx_head.load(Ordering::Relaxed), urgent::ahead(view));
    let count = len.min(unread).min(taken_at_once(pipe)?);
    let (skip, count) = match mark {
        Some(ahead) => {
            let stop = urgent::stop(view, ahead, count, unread as u32);
            (stop.skip, stop.count)
        }
        None => (0, count),
    };
    let spans = view.receive_ring().spans(head.wrapping_add(skip), count as u32);
    let iov = spans.map(|(base, len)| iovec { iov_base: base.cast(), iov_len: len });
    // SAFETY: the spans are in the ring. The kernel only reads them, and it may read bytes that the other side changes.
    let written = outcome(unsafe { real::writev(pipe, iov.as_ptr(), iov.len() as c_int) })? as u32;
    view.consume(written + skip);
    if let Some(ahead) = mark {
        urgent::moved(view, ahead, written + skip);
    }
    Ok(Step::Moved(written as usize))
}

/// The bytes that a pipe with room takes without waiting. An empty pipe takes as many as it can hold.
fn taken_at_once(pipe: c_int) -> Sys<usize> {
    if unread(pipe)? != 0 {
        return Ok(libc::PIPE_BUF);
    }
    Ok((sys::fcntl(pipe, libc::F_GETPIPE_SZ, 0)? as usize).max(libc::PIPE_BUF))
}

fn unread(pipe: c_int) -> Sys<usize> {
    let mut unread: c_int = 0;
    // SAFETY: FIONREAD stores an integer, and there is room for it.
    outcome(unsafe { real::ioctl(pipe, libc::FIONREAD, (&raw mut unread) as _) })?;
    Ok(unread.max(0) as usize)
}

fn out_of_pipe(socket: &Socket, pipe: c_int, len: usize, flags: c_uint) -> Sys<usize> {
    let mut waiting = [libc::pollfd { fd: pipe, events: libc::POLLIN, revents: 0 }];
    let nonblock = flags & libc::SPLICE_F_NONBLOCK != 0 || sys::fcntl(pipe, libc::F_GETFL, 0)? & libc::O_NONBLOCK != 0;
    let limit = if nonblock { Some(core::time::Duration::ZERO) } else { None };
    if sys::ppoll(&mut waiting, limit, core::ptr::null())? == 0 {
        return Err(libc::EAGAIN);
    }
    // Never more than the pipe holds, so that reading it does not wait. At least 1, to find its end.
    let more = if flags & libc::SPLICE_F_MORE != 0 { libc::MSG_MORE } else { 0 };
    send::from_file(socket, pipe, None, len.min(unread(pipe)?.max(1)), more)
}
