//! The worker's life, as its broker sees it.

use crate::apart::{Apart, end_with};
use crate::pulse::{self, Pulse, Watch};
use crate::serve::{Served, serve};
use crate::{Broker, Notice, Privileges};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, WaitIdStatus};
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

/// After this many deaths within [`WITHIN`] the service ends.
const MOST_DEATHS: usize = 3;
/// See [`MOST_DEATHS`].
const WITHIN: Duration = Duration::from_secs(60);
/// The pause before the second worker; each later one is four times as long.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a worker may take to end when it is told to. It needs about a second.
const LONGEST_END: Duration = Duration::from_secs(10);
/// How often it is said that the broker runs.
const BEAT: Duration = Duration::from_secs(5);
/// Between two looks for the end of a process.
const TICK: Duration = Duration::from_millis(200);
/// The exit code of a program that has panicked.
const PANIC: i32 = 101;

/// How a worker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// By itself, with this exit code.
    Exit(i32),
    /// By a signal or a panic, or because it broke the protocol.
    Death,
}

/// Deaths of the last minute.
#[derive(Debug, Default)]
struct Deaths(VecDeque<Instant>);

impl Deaths {
    /// One more. Returns the pause before the next worker; `None`: there have been too many.
    fn one_more(&mut self, now: Instant) -> Option<Duration> {
        self.0.retain(|at| now.saturating_duration_since(*at) < WITHIN);
        self.0.push_back(now);
        let earlier = self.0.len() - 1;
        (earlier + 1 < MOST_DEATHS).then(|| PAUSE * 4u32.pow(earlier as u32))
    }
}

/// What a worker begins with.
#[derive(Debug)]
pub struct Beginning {
    /// Its way to the broker.
    pub broker: Broker,
    /// No worker before it has served.
    pub first: bool,
    /// [`Privileges::configuration_in_force`].
    pub configuration: Option<String>,
    /// It beats while the worker runs.
    pub pulse: Pulse,
}

/// Starts a worker, and another one when it has died. Returns the exit code of the last.
///
/// `worker` runs in the child process. The signals that end a service, and SIGHUP, are blocked in both processes. This
/// process gives them on to the worker. `inherit` says whether processes that are forked from now on have the memory that is
/// the workers' alone: no other process of the broker's has it.
pub fn supervise(
    privileges: &mut dyn Privileges,
    inherit: &dyn Fn(bool) -> io::Result<()>,
    worker: &dyn Fn(Beginning) -> u8,
) -> io::Result<u8> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let (mut served, mut deaths, mut apart) = (false, Deaths::default(), Apart::default());
    loop {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let (parent, pulse) = (std::process::id(), Pulse::new()?);
        inherit(true)?;
        // SAFETY: this process has one thread (no caller starts one before), so the child may do what it could.
        let child = match unsafe { libc::fork() } {
            0 => {
                drop((ours, signals));
                end_with(parent);
                let broker = Broker::new(theirs);
                let configuration = privileges.configuration_in_force();
                privileges.forget();
                std::process::exit(worker(Beginning { broker, first: !served, configuration, pulse }).into());
            }
            ..0 => return Err(io::Error::last_os_error()),
            child => child,
        };
        inherit(false)?;
        drop(theirs);
        let Some(child) = Pid::from_raw(child) else { return Err(io::ErrorKind::InvalidData.into()) };
        let process = rustix::process::pidfd_open(child, PidfdFlags::empty())?;
        let noticed = Instant::now();
        let mut one =
            Worker { child, process, socket: Some(ours), told: None, killed: false, pulse, watch: None, noticed };
        let ended = one.watch(&signals, privileges, &mut served, &mut apart)?;
        one.close(&mut apart, privileges);
        let told = one.told.is_some();
        let pause = match ended {
            // A worker that has never served has said why.
            Ended::Exit(code) if told || code == 0 || !served => return Ok(last(privileges, code)),
            // It may have died at the same time.
            Ended::Death if told => return Ok(last(privileges, i32::from(one.killed))),
            _ if !served => {
                tracing::error!("the service has died before it served anybody");
                return Ok(last(privileges, 1));
            }
            _ => deaths.one_more(Instant::now()),
        };
        let Some(pause) = pause else {
            tracing::error!(
                "the process that serves has died {MOST_DEATHS} times within a minute, so the service ends; programs \
                 use the kernel's TCP. The lines above say how it died"
            );
            return Ok(last(privileges, 1));
        };
        privileges.worker_ended(false);
        tracing::warn!("the process that serves is started again in {} ms", pause.as_millis());
        if wait_for_signal(&signals, pause) {
            return Ok(last(privileges, 0));
        }
    }
}

/// Gives everything back.
fn last(privileges: &mut dyn Privileges, code: i32) -> u8 {
    privileges.worker_ended(true);
    u8::try_from(code).unwrap_or(1)
}

/// Waits for a signal that ends the service. SIGHUP does not: the next worker begins with the configuration in force, and
/// there is nobody who could judge another.
fn wait_for_signal(signals: &SignalFd, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&time)) {
            Err(Errno::INTR) => {}
            Ok(1..) => match signals.read_signal() {
                Ok(Some(signal)) if !is_hangup(&signal) => return true,
                Ok(Some(_)) => tracing::warn!("SIGHUP: no process serves now; send it again when one does"),
                _ => {}
            },
            _ => return false,
        }
    }
}

/// Is it SIGHUP, which ends no service?
pub fn is_hangup(signal: &siginfo) -> bool {
    signal.ssi_signo.cast_signed() == libc::SIGHUP
}

struct Worker {
    child: Pid,
    process: OwnedFd,
    /// `None`: it has closed its end.
    socket: Option<OwnedFd>,
    /// When it was told to end.
    told: Option<Instant>,
    /// The broker has killed it.
    killed: bool,
    pulse: Pulse,
    /// `None`: it does not serve yet, and what it does takes as long as it takes.
    watch: Option<Watch>,
    /// When it was last said that the broker runs.
    noticed: Instant,
}

impl Worker {
    /// Serves it until it has ended.
    fn watch(
        &mut self,
        signals: &SignalFd,
        privileges: &mut dyn Privileges,
        served: &mut bool,
        apart: &mut Apart,
    ) -> io::Result<Ended> {
        loop {
            let timeout = self.idle_time(apart, Instant::now(), *served);
            let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
            let mut waiting = vec![PollFd::new(&self.process, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
            waiting.extend(self.socket.iter().chain(apart.waiting()).map(|socket| PollFd::new(socket, PollFlags::IN)));
            match poll(&mut waiting, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<bool> = waiting.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[1]
                && let Ok(Some(signal)) = signals.read_signal()
            {
                if !is_hangup(&signal) && self.told.is_none() {
                    self.told = Some(Instant::now());
                    privileges.notice(Notice::Ending);
                }
                if let Some(signal) = rustix::process::Signal::from_named_raw(signal.ssi_signo.cast_signed()) {
                    let _ = rustix::process::pidfd_send_signal(&self.process, signal);
                }
            }
            if ready[0] {
                return self.ending();
            }
            if self.is_overdue(Instant::now()) {
                tracing::error!("the process that serves does not end; it is killed");
                self.killed = self.kill();
            }
            let now = Instant::now();
            // Also while a worker does not serve yet, and as often at most.
            if *served && now.saturating_duration_since(self.noticed) >= BEAT {
                privileges.notice(Notice::Alive);
                self.noticed = now;
            }
            self.look(now);
            apart.hear();
            if let Some(socket) = &self.socket
                && ready[2]
            {
                match serve(socket, privileges, apart) {
                    Ok(Served::Answered) => {}
                    Ok(Served::Serving) => {
                        if !std::mem::replace(served, true) {
                            privileges.notice(Notice::Serving);
                        }
                        self.watch = Some(Watch::new(self.pulse, Instant::now()));
                    }
                    Ok(Served::Ended) => self.close(apart, privileges),
                    Err(error) => {
                        tracing::error!(%error, "the process that serves sends what it never would; it is ended");
                        self.killed = self.kill();
                        self.close(apart, privileges);
                    }
                }
            }
        }
    }

    fn close(&mut self, apart: &mut Apart, privileges: &mut dyn Privileges) {
        if let Some(socket) = self.socket.take() {
            apart.close(socket, &mut || privileges.forget());
        }
    }

    /// How long nothing need be looked at unless something happens. While another process works, its end is looked for.
    fn idle_time(&self, apart: &mut Apart, now: Instant, served: bool) -> Option<Duration> {
        if self.told.is_some() || !apart.is_empty() {
            return Some(TICK);
        }
        let look = self.watch.as_ref().map(|watch| watch.left(now));
        let beat = served.then(|| BEAT.saturating_sub(now.saturating_duration_since(self.noticed)));
        // A little later it is time for it.
        look.into_iter().chain(beat).min().map(|left| left + Duration::from_micros(1))
    }

    /// It was told to end, and has not.
    fn is_overdue(&self, now: Instant) -> bool {
        self.told.is_some_and(|at| now.saturating_duration_since(at) > LONGEST_END) && !self.killed
    }

    /// Ends it if it hangs. One that is told to end has less time for that.
    fn look(&mut self, now: Instant) {
        let Some(watch) = self.watch.as_mut().filter(|_| self.told.is_none() && !self.killed) else { return };
        if let Some(why) = watch.look(now, || pulse::is_paused(self.child)) {
            let seconds = Watch::limit().as_secs();
            tracing::error!("the process that serves has not run for {seconds} s: {why}; it is ended");
            self.killed = self.kill();
        }
    }

    fn kill(&self) -> bool {
        rustix::process::pidfd_send_signal(&self.process, rustix::process::Signal::KILL).is_ok()
    }

    /// It has ended, with its descriptors closed.
    fn ending(&self) -> io::Result<Ended> {
        let status: Option<WaitIdStatus> = rustix::process::waitid(WaitId::Pid(self.child), WaitIdOptions::EXITED)?;
        let code = status.as_ref().and_then(WaitIdStatus::exit_status);
        Ok(match code {
            Some(PANIC) => {
                tracing::error!("the process that serves has panicked");
                Ended::Death
            }
            Some(code) if !self.killed => Ended::Exit(code),
            _ => {
                let signal = status.as_ref().and_then(WaitIdStatus::terminating_signal);
                tracing::error!(signal, "the process that serves has died");
                Ended::Death
            }
        })
    }
}

#[cfg(test)]
mod tests;
