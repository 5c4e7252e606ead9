//! System calls that move bytes between rings and sockets, and those that no crate offers. None of them waits.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::io;
use std::mem::MaybeUninit;
use towpath_ring::ByteRing;

/// Linux's level for options and control messages of kTLS.
pub const SOL_TLS: i32 = 282;
const TLS_SET_RECORD_TYPE: i32 = 1;

/// Bytes of `TCP_INFO` that Linux 6.7 and later fill.
pub const TCP_INFO_BYTES: usize = 248;

fn checked(result: isize) -> Result<usize, i32> {
    usize::try_from(result).map_err(|_| last_error())
}

/// The errno of the last system call.
pub fn last_error() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// The `len` bytes of the ring at position `at`, as the kernel takes them.
fn spans(ring: &ByteRing<'_>, at: u32, len: u32) -> ([libc::iovec; 2], usize) {
    // The rings of a kernel stack do not grow, so there are two pieces at most.
    let [first, second, _] = ring.spans(at, len);
    let iovec = |(base, len): (*mut u8, usize)| libc::iovec { iov_base: base.cast(), iov_len: len };
    ([iovec(first), iovec(second)], if second.1 == 0 { 1 } else { 2 })
}

fn message(spans: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all zeros is a message without address, data and control data.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = spans.as_mut_ptr();
    message.msg_iovlen = spans.len() as _;
    message
}

/// Sends the `len` bytes of the ring at position `at`, or the first of them. An error is the errno.
pub fn send(fd: BorrowedFd<'_>, ring: &ByteRing<'_>, at: u32, len: u32, flags: i32) -> Result<usize, i32> {
    let (mut spans, count) = spans(ring, at, len);
    let message = message(&mut spans[..count]);
    // SAFETY: the spans lie inside the ring, and its mapping outlives the call. The application may change the bytes
    // meanwhile; the kernel only copies them.
    checked(unsafe {
        libc::sendmsg(fd.as_raw_fd(), &raw const message, flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    })
}

/// Sends up to `len` bytes of a file from `offset`, and advances it. 0 means that the file ends there.
pub fn send_file(fd: BorrowedFd<'_>, file: BorrowedFd<'_>, offset: &mut u64, len: u32) -> Result<usize, i32> {
    // The socket does not wait, and SIGPIPE is ignored, as in every Rust program.
    rustix::fs::sendfile(fd, file, Some(offset), len as usize).map_err(rustix::io::Errno::raw_os_error)
}

/// Sends the `len` bytes of the ring at position `at` as a TLS record of type `kind` (`TLS_SET_RECORD_TYPE`).
pub fn send_record(fd: BorrowedFd<'_>, ring: &ByteRing<'_>, at: u32, len: u32, kind: u8) -> Result<usize, i32> {
    let (mut spans, count) = spans(ring, at, len);
    let mut message = message(&mut spans[..count]);
    // A control message of one byte, with room to spare.
    let mut control = [0u64; 4];
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: the buffer has 32 bytes, room for a header and one byte (24 bytes), which are written within it. The
    // spans lie inside the ring, and its mapping outlives the call.
    checked(unsafe {
        message.msg_controllen = libc::CMSG_SPACE(1) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = SOL_TLS;
        (*header).cmsg_type = TLS_SET_RECORD_TYPE;
        (*header).cmsg_len = libc::CMSG_LEN(1) as _;
        libc::CMSG_DATA(header).write(kind);
        libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    })
}

/// Receives up to `len` bytes to position `at` of the ring. 0 means the end of the stream; an error is the errno.
pub fn receive(fd: BorrowedFd<'_>, ring: &ByteRing<'_>, at: u32, len: u32) -> Result<usize, i32> {
    let (mut spans, count) = spans(ring, at, len);
    let mut message = message(&mut spans[..count]);
    // SAFETY: the spans lie inside the ring, and its mapping outlives the call. Only those bytes are written.
    checked(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) })
}

/// `setsockopt` with an int. A value that the kernel refuses changes nothing.
pub fn set(fd: impl AsFd, level: i32, name: i32, value: i32) {
    set_bytes(fd, level, name, &value.to_ne_bytes());
}

/// `setsockopt` with any bytes. True on success.
pub fn set_bytes(fd: impl AsFd, level: i32, name: i32, value: &[u8]) -> bool {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: `value` is `value.len()` readable bytes.
    unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), value.len() as libc::socklen_t) == 0 }
}

/// `SO_ATTACH_FILTER`: the socket sees only packets that the program passes.
pub fn attach_filter(fd: impl AsFd, program: &[libc::sock_filter]) {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let (fd, len) = (fd.as_fd().as_raw_fd(), size_of_val(&filter) as libc::socklen_t);
    // SAFETY: `filter` describes `program`, which the kernel copies before the call returns.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const filter).cast(), len) };
}

/// `getsockopt`: fills `value`, and returns how many bytes of it.
pub fn get(fd: impl AsFd, level: i32, name: i32, value: &mut [u8]) -> Option<usize> {
    let mut len = value.len() as libc::socklen_t;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: `value` is `len` writable bytes.
    let result = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len) };
    (result == 0).then_some((len as usize).min(value.len()))
}

/// `getsockopt` of an int.
pub fn get_int(fd: impl AsFd, level: i32, name: i32) -> Option<i32> {
    let mut value = [0; 4];
    (get(fd, level, name, &mut value)? == 4).then(|| i32::from_ne_bytes(value))
}

/// Takes the socket's pending error.
pub fn take_error(fd: impl AsFd) -> i32 {
    get_int(fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0)
}

/// Makes a later `close` send a reset.
pub fn abort_on_close(fd: impl AsFd) {
    let linger = [1i32, 0];
    set_bytes(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger.map(i32::to_ne_bytes).concat());
}

/// An ioctl that returns an int: `SIOCATMARK`, `SIOCOUTQ`.
pub fn ioctl_int(fd: impl AsFd, request: libc::Ioctl) -> Option<i32> {
    let mut value: libc::c_int = 0;
    // SAFETY: these requests write one int.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, &raw mut value) };
    (result == 0).then_some(value)
}

/// Takes an entry from the socket's error queue: its errno.
pub fn soft_error(fd: BorrowedFd<'_>) -> Option<i32> {
    // `struct sock_extended_err` begins with the errno. No other control message is expected.
    let mut control = [0u64; 64];
    let mut message = message(&mut []);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the control buffer is aligned and has the given length; no data is asked for.
    let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    if got < 0 {
        return None;
    }
    // SAFETY: the kernel has filled the control buffer; the macros stay within `msg_controllen`.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (!header.is_null()).then(|| libc::CMSG_DATA(header).cast::<i32>().read_unaligned())
    }
}
