//! The libc calls, made through libc's own names so that a preloaded library sees them.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

/// An epoll event whose data is a connection's index.
pub type Event = libc::epoll_event;

/// Turns -1 into the error.
pub fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn address(of: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: of.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::from_bits(of.ip().to_bits())).to_be() },
        sin_zero: [0; 8],
    }
}

const ADDRESS_BYTES: u32 = size_of::<libc::sockaddr_in>() as u32;

fn stream() -> io::Result<i32> {
    // SAFETY: the call takes no pointers.
    check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) })
}

fn set(fd: i32, level: i32, option: i32) -> io::Result<()> {
    let one: libc::c_int = 1;
    // SAFETY: `one` outlives the call and has the length given.
    check(unsafe { libc::setsockopt(fd, level, option, (&raw const one).cast(), size_of_val(&one) as u32) }).map(drop)
}

fn nonblocking(fd: i32) -> io::Result<()> {
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
    // SAFETY: the call takes no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }).map(drop)
}

/// A non-blocking listener.
pub fn listen(at: SocketAddrV4) -> io::Result<i32> {
    let fd = stream()?;
    set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    let at = address(at);
    // SAFETY: `at` outlives the call and has the length given.
    check(unsafe { libc::bind(fd, (&raw const at).cast(), ADDRESS_BYTES) })?;
    // SAFETY: the calls take no pointers.
    unsafe {
        check(libc::listen(fd, 4096))?;
        check(libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK))?;
    }
    Ok(fd)
}

/// A non-blocking connection; connects blocking, trying again for two seconds while refused.
pub fn connect(to: SocketAddrV4) -> io::Result<i32> {
    let target = address(to);
    for attempt in 0.. {
        let fd = stream()?;
        // SAFETY: `target` outlives the call and has the length given.
        match check(unsafe { libc::connect(fd, (&raw const target).cast(), ADDRESS_BYTES) }) {
            Ok(_) => return nonblocking(fd).map(|()| fd),
            Err(error) if attempt < 40 && error.kind() == io::ErrorKind::ConnectionRefused => {
                close(fd);
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => return Err(error),
        }
    }
    unreachable!("the loop returns")
}

/// A non-blocking socket that has begun to connect. It becomes writable when it has, or cannot.
pub fn begin_to_connect(to: SocketAddrV4) -> io::Result<i32> {
    let (fd, target) = (stream()?, address(to));
    nonblocking(fd)?;
    // SAFETY: `target` outlives the call and has the length given.
    match check(unsafe { libc::connect(fd, (&raw const target).cast(), ADDRESS_BYTES) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(fd),
    }
}

/// Has it connected? Asked when it is writable; otherwise the reason.
pub fn is_connected(fd: i32) -> io::Result<()> {
    let (mut error, mut length): (libc::c_int, _) = (0, size_of::<libc::c_int>() as u32);
    // SAFETY: `error` outlives the call and has the length given.
    check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut length) })?;
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// The next accepted connection, non-blocking, or none.
pub fn accept(listener: i32) -> io::Result<Option<i32>> {
    // SAFETY: no address is asked for.
    match check(unsafe { libc::accept(listener, std::ptr::null_mut(), std::ptr::null_mut()) }) {
        Ok(fd) => nonblocking(fd).map(|()| Some(fd)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Bytes read; `None` if there is nothing now.
pub fn read(fd: i32, into: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: the buffer is valid for its length.
    would_block(unsafe { libc::read(fd, into.as_mut_ptr().cast(), into.len()) })
}

/// Bytes written; `None` if there is no room now.
pub fn write(fd: i32, from: &[u8]) -> io::Result<Option<usize>> {
    // SAFETY: the buffer is valid for its length.
    would_block(unsafe { libc::write(fd, from.as_ptr().cast(), from.len()) })
}

fn would_block(result: isize) -> io::Result<Option<usize>> {
    if result >= 0 {
        return Ok(Some(result as usize));
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) }
}

/// Closes.
pub fn close(fd: i32) {
    // SAFETY: the call takes no pointers.
    unsafe { libc::close(fd) };
}

/// A new epoll set.
pub fn epoll() -> io::Result<i32> {
    // SAFETY: the call takes no pointers.
    check(unsafe { libc::epoll_create1(0) })
}

/// Adds or changes (`libc::EPOLL_CTL_*`) the events of `fd`.
pub fn watch(epoll: i32, operation: i32, fd: i32, events: i32, data: u64) -> io::Result<()> {
    let mut event = Event { events: events as u32, u64: data };
    // SAFETY: `event` outlives the call.
    check(unsafe { libc::epoll_ctl(epoll, operation, fd, &raw mut event) }).map(drop)
}

/// Waits for events, at most `timeout_ms`.
pub fn wait(epoll: i32, events: &mut [Event], timeout_ms: i32) -> io::Result<usize> {
    // SAFETY: the buffer is valid for its length.
    match check(unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), events.len() as i32, timeout_ms) }) {
        Ok(n) => Ok(n as usize),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

/// Raises the limit of open descriptors to the hard limit.
pub fn raise_limit() {
    // SAFETY: plain data, valid for the calls.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Writes all of it, waiting for room.
pub fn write_all(fd: i32, mut from: &[u8]) -> io::Result<()> {
    while !from.is_empty() {
        match write(fd, from)? {
            Some(n) => from = &from[n..],
            None => {
                let mut room = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
                // SAFETY: the pointer is to one valid entry, which outlives the call.
                check(unsafe { libc::poll(&raw mut room, 1, -1) })?;
            }
        }
    }
    Ok(())
}

/// Waits for events, at most this long, to the nanosecond.
pub fn wait_for(epoll: i32, events: &mut [Event], time: Duration) -> io::Result<usize> {
    let time = timespec(time);
    let count = events.len() as i32;
    // SAFETY: the buffer is valid for its length; no signals are named.
    match check(unsafe { libc::epoll_pwait2(epoll, events.as_mut_ptr(), count, &raw const time, std::ptr::null()) }) {
        Ok(n) => Ok(n as usize),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs() as libc::time_t, tv_nsec: time.subsec_nanos().into() }
}

/// The clock that all processes of a machine share.
pub fn monotonic() -> Duration {
    let mut now = timespec(Duration::ZERO);
    // SAFETY: `now` is valid for the call, which cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Sleeps until `now` reaches this time.
pub fn sleep_until(at: u64, now: fn() -> u64) {
    while let Some(left) = at.checked_sub(now()).filter(|left| *left > 0) {
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// Limits how late this thread's timers may be, in ns.
pub fn timer_slack(ns: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ns, 0, 0, 0) }).map(drop)
}

/// A wait on this epoll instance polls the network device for this many µs before it sleeps. The device's interrupts
/// are deferred meanwhile.
pub fn busy_poll(epoll: i32, us: u32) -> io::Result<()> {
    #[repr(C)]
    struct Parameters {
        usecs: u32,
        budget: u16,
        prefer: u8,
        pad: u8,
    }
    // A driver takes this many packets in an interrupt. More needs a capability.
    let parameters = Parameters { usecs: us, budget: 64, prefer: 1, pad: 0 };
    // _IOW(EPOLL_IOC_TYPE, 0x01, struct epoll_params) of linux/eventpoll.h
    const EPIOCSPARAMS: libc::c_ulong = 0x4008_8a01;
    // SAFETY: the kernel reads `parameters`, which outlives the call.
    check(unsafe { libc::ioctl(epoll, EPIOCSPARAMS, &raw const parameters) }).map(drop)
}

/// The device's queue (NAPI instance) of a connection's packets. 0: none.
pub fn napi(fd: i32) -> io::Result<u32> {
    let (mut id, mut length) = (0u32, size_of::<u32>() as libc::socklen_t);
    let option = libc::SO_INCOMING_NAPI_ID;
    // SAFETY: `id` and `length` are valid for the call, and `length` is that of `id`.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut id).cast(), &raw mut length) };
    check(result).map(|_| id)
}

/// Busy time of all CPUs since boot in µs, with interrupts.
pub fn busy_us() -> io::Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let fields: Vec<f64> = text.split_whitespace().skip(1).take(8).filter_map(|field| field.parse().ok()).collect();
    // SAFETY: the call takes no pointers.
    let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    // user, nice, system, irq, softirq; not idle, iowait, steal.
    let ticks: f64 = [0, 1, 2, 5, 6].iter().filter_map(|&field| fields.get(field)).sum();
    Ok(ticks * 1e6 / hertz)
}
