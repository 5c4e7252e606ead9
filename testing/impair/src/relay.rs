//! Two interfaces, a lane for each direction, and the loop that sleeps until a frame arrives or is due.

use crate::device::{Device, DeviceCounters};
use crate::impairments::Impairments;
use crate::lane::{Counters, Lane};
use serde::Serialize;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

/// Counters of a relay.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Report {
    /// From interface A to interface B.
    pub a_to_b: Counters,
    /// From interface B to interface A.
    pub b_to_a: Counters,
    /// Counters of interface A's socket.
    pub a: DeviceCounters,
    /// Counters of interface B's socket.
    pub b: DeviceCounters,
}

/// The settings of a relay.
pub struct Setup<'a> {
    /// Interfaces A and B.
    pub interfaces: [&'a str; 2],
    /// From A to B, and from B to A.
    pub impairments: [Impairments; 2],
    /// Seed of both lanes.
    pub seed: u64,
}

/// The signal that woke the loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signal {
    None,
    Report,
    End,
}

/// Relays until SIGINT or SIGTERM. `ready` is called before the first frame, `on_report` at SIGUSR1 and at the end.
pub fn run(setup: &Setup<'_>, ready: impl FnOnce(), mut on_report: impl FnMut(&Report)) -> io::Result<()> {
    let signals = signals()?;
    let mut devices = [Device::open(setup.interfaces[0])?, Device::open(setup.interfaces[1])?];
    let [there, back] = setup.impairments;
    // Different seeds, so that the two directions are independent.
    let mut lanes = [Lane::new(there, setup.seed), Lane::new(back, !setup.seed)];
    fine_timers();
    let start = Instant::now();
    let now = || start.elapsed().as_nanos() as u64;
    ready();
    loop {
        let more = relay_once(&mut devices, &mut lanes, &now)?;
        let due = lanes.iter().filter_map(Lane::next_due).min();
        let wait_ns = if more { Some(0) } else { due.map(|due| due.saturating_sub(now())) };
        let signal = sleep(&devices, &signals, wait_ns)?;
        if signal != Signal::None {
            let [a, b] = &mut devices;
            let report =
                Report { a_to_b: lanes[0].counters(), b_to_a: lanes[1].counters(), a: a.counters(), b: b.counters() };
            on_report(&report);
        }
        if signal == Signal::End {
            return Ok(());
        }
    }
}

/// Receives arrived frames and sends those that are due. True = there may be more to receive.
fn relay_once(devices: &mut [Device; 2], lanes: &mut [Lane; 2], now: &impl Fn() -> u64) -> io::Result<bool> {
    let mut more = false;
    for (device, lane) in devices.iter_mut().zip(lanes.iter_mut()) {
        let at = now();
        more |= device.receive(|frame| lane.put(at, frame))?;
    }
    let at = now();
    let [a, b] = devices;
    for (device, lane) in [b, a].into_iter().zip(lanes.iter_mut()) {
        while let Some(frame) = lane.pop(at) {
            device.send(&frame);
        }
    }
    Ok(more)
}

/// Sleeps until a frame or a signal arrives, at most `wait_ns`; `None` = without limit.
fn sleep(devices: &[Device; 2], signals: &OwnedFd, wait_ns: Option<u64>) -> io::Result<Signal> {
    let fd = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [fd(devices[0].fd()), fd(devices[1].fd()), fd(signals.as_raw_fd())];
    let wait = wait_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    });
    let wait = wait.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `fds` and `wait` outlive the call; no signal mask is given.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, wait, std::ptr::null()) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(Signal::None) } else { Err(error) };
    }
    if fds[2].revents == 0 {
        return Ok(Signal::None);
    }
    // SAFETY: `signalfd_siginfo` is plain data, for which all zeros is valid.
    let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is writable and has the length given.
    let got = unsafe { libc::read(signals.as_raw_fd(), (&raw mut info).cast(), size_of_val(&info)) };
    match got {
        ..=0 => Ok(Signal::None),
        _ if info.ssi_signo == libc::SIGUSR1 as u32 => Ok(Signal::Report),
        _ => Ok(Signal::End),
    }
}

/// A descriptor for the signals that the loop handles.
fn signals() -> io::Result<OwnedFd> {
    // SAFETY: `sigemptyset` writes `set` before it is read, and it outlives the calls. Nothing else owns the new
    // descriptor.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1] {
            libc::sigaddset(&raw mut set, signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Lowers the timer slack: by default the kernel may wake a sleeper 50 µs late.
fn fine_timers() {
    // SAFETY: the arguments are integers; no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}
