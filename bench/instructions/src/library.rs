//! An echo server of one connection whose every request is exactly: `epoll_wait` (ready already), `read`, `write`.

use std::io;
use std::net::Ipv4Addr;

/// The result, or the error.
pub fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Listens, accepts one connection, echoes until its end; the number of requests counted.
pub fn run(address: Ipv4Addr, port: u16, requests: u64) -> io::Result<u64> {
    let (connection, epoll) = accept_one(address, port)?;
    let mut counted = 0;
    let mut buffer = [0_u8; 4096];
    while counted < requests {
        wait_readable(connection)?;
        match library_turn(epoll, connection, &mut buffer) {
            0 => break,
            n if n < 0 => return Err(io::Error::last_os_error()),
            _ => counted += 1,
        }
    }
    Ok(counted)
}

/// Accepts one connection. Returns it with an epoll instance for it.
pub fn accept_one(address: Ipv4Addr, port: u16) -> io::Result<(i32, i32)> {
    let at = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: address.to_bits().to_be() },
        sin_zero: [0; 8],
    };
    // SAFETY: plain calls; `at`, `event` and `one` outlive them and have the lengths given.
    unsafe {
        let listener = check(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0))?;
        check(libc::bind(listener, (&raw const at).cast(), size_of_val(&at) as u32))?;
        check(libc::listen(listener, 16))?;
        println!("ready");
        let connection = check(libc::accept(listener, std::ptr::null_mut(), std::ptr::null_mut()))?;
        let one: libc::c_int = 1;
        let one_bytes = size_of_val(&one) as u32;
        check(libc::setsockopt(connection, libc::IPPROTO_TCP, libc::TCP_NODELAY, (&raw const one).cast(), one_bytes))?;
        check(libc::fcntl(connection, libc::F_SETFL, libc::O_NONBLOCK))?;
        let epoll = check(libc::epoll_create1(0))?;
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        check(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, connection, &raw mut event))?;
        Ok((connection, epoll))
    }
}

/// Waits outside the counted function until a whole request is there.
fn wait_readable(connection: i32) -> io::Result<()> {
    let mut poll = libc::pollfd { fd: connection, events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is to one valid entry, which outlives the call.
    check(unsafe { libc::poll(&raw mut poll, 1, 10_000) }).map(drop)
}

/// The counted function: the socket calls of one request. Bytes echoed, 0 at the end, -1 for an error.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn library_turn(epoll: i32, connection: i32, buffer: &mut [u8; 4096]) -> isize {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: the event and the buffer are valid for the calls.
    unsafe {
        if libc::epoll_wait(epoll, &raw mut event, 1, 0) != 1 {
            return -1;
        }
        let n = libc::read(connection, buffer.as_mut_ptr().cast(), buffer.len());
        if n <= 0 { n } else { libc::write(connection, buffer.as_ptr().cast(), n as usize) }
    }
}
