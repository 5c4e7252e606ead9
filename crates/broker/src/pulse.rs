//! Whether the worker still runs. Its pulse is a counter in memory that it shares with the broker. A worker whose pulse
//! stands still for a minute is ended, and replaced like one that has died.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::Pid;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(5);
/// A worker hangs if its pulse has stood still for so many looks.
const MOST_LOOKS: u32 = 12;

/// The threads that a worker waits for. It says so before, as it cannot later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    /// Nothing.
    None,
    /// Its main thread.
    Main,
    /// A thread of its stack.
    Stack,
}

/// The shared memory, which is never unmapped.
#[derive(Clone, Copy, Debug)]
pub struct Pulse(&'static Words);

#[derive(Debug)]
struct Words {
    beats: AtomicU32,
    step: AtomicU32,
}

impl Pulse {
    /// Of a worker that is forked after this.
    pub fn new() -> io::Result<Self> {
        let (bytes, rights) = (size_of::<Words>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: new memory overlaps nothing.
        let words = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, rights, MapFlags::SHARED)? };
        // SAFETY: the memory is large enough, aligned to a page, all zeros, which are valid words, and never unmapped.
        Ok(Self(unsafe { &*words.cast::<Words>() }))
    }
    /// The worker: all of its threads have answered.
    pub fn beat(self) {
        self.0.step.store(Step::None as u32, Ordering::Relaxed);
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }
    /// The worker: it waits for this now.
    pub fn waits_for(self, step: Step) {
        self.0.step.store(step as u32, Ordering::Relaxed);
    }
    fn beats(self) -> u32 {
        self.0.beats.load(Ordering::Relaxed)
    }
    /// In words.
    fn waited_for(self) -> &'static str {
        match self.0.step.load(Ordering::Relaxed) {
            step if step == Step::Main as u32 => "its main thread hangs",
            step if step == Step::Stack as u32 => "a thread of its stack hangs",
            _ => "the thread that asks the others does not run",
        }
    }
}

/// The broker's look at a pulse.
#[derive(Debug)]
pub struct Watch {
    pulse: Pulse,
    beats: u32,
    /// Looks at which the pulse stood still.
    still: u32,
    looked: Instant,
}

impl Watch {
    /// Begins.
    pub fn new(pulse: Pulse, now: Instant) -> Self {
        Self { pulse, beats: pulse.beats(), still: 0, looked: now }
    }
    /// Time until the next look.
    pub fn left(&self, now: Instant) -> Duration {
        LOOK.saturating_sub(now.saturating_duration_since(self.looked))
    }
    /// Looks, if it is time. Returns why the worker hangs, if it does. `paused`: somebody keeps it from running.
    ///
    /// Looks are counted, and not time. So a machine that was suspended, or a service that was stopped as a whole, has
    /// lost one look.
    pub fn look(&mut self, now: Instant, paused: impl FnOnce() -> bool) -> Option<&'static str> {
        if self.left(now) > Duration::ZERO {
            return None;
        }
        self.looked = now;
        let beats = self.pulse.beats();
        if beats != self.beats || paused() {
            (self.beats, self.still) = (beats, 0);
            return None;
        }
        self.still += 1;
        (self.still >= MOST_LOOKS).then(|| self.pulse.waited_for())
    }
    /// How long a pulse may stand still.
    pub fn limit() -> Duration {
        LOOK * MOST_LOOKS
    }
}

/// Is the process stopped, or under a debugger?
pub fn is_paused(process: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).unwrap_or_default();
    says_paused(&status)
}

fn says_paused(status: &str) -> bool {
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    of("State:").starts_with(['T', 't']) || !matches!(of("TracerPid:"), "" | "0")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_worker_hangs_if_its_pulse_stands_still_for_a_minute_of_looks() {
        let (pulse, mut now) = (Pulse::new().unwrap(), Instant::now());
        let mut watch = Watch::new(pulse, now);
        let mut look = |watch: &mut Watch, after: Duration, paused: bool| {
            now += after;
            watch.look(now, || paused)
        };
        // Many looks at a time, or one after an hour, are one look.
        for _ in 0..100 {
            assert_eq!(look(&mut watch, Duration::from_millis(1), false), None);
        }
        for _ in 1..MOST_LOOKS {
            assert_eq!(look(&mut watch, Duration::from_secs(3600), false), None);
        }
        pulse.beat();
        assert_eq!(look(&mut watch, LOOK, false), None, "it runs");
        for _ in 1..MOST_LOOKS {
            assert_eq!(look(&mut watch, LOOK, false), None);
        }
        assert_eq!(look(&mut watch, LOOK, true), None, "it is stopped");
        pulse.waits_for(Step::Stack);
        let ends: Vec<_> = (0..MOST_LOOKS).map(|_| look(&mut watch, LOOK, false)).collect();
        assert!(ends[..ends.len() - 1].iter().all(Option::is_none));
        assert_eq!(ends[ends.len() - 1], Some("a thread of its stack hangs"));
        assert_eq!(Watch::limit(), Duration::from_secs(60));
    }

    #[test]
    fn a_worker_says_what_it_waits_for_until_its_next_beat() {
        let pulse = Pulse::new().unwrap();
        assert_eq!(pulse.beats(), 0);
        for (step, words) in [(Step::Main, "its main thread hangs"), (Step::Stack, "a thread of its stack hangs")] {
            pulse.waits_for(step);
            assert_eq!(pulse.waited_for(), words);
        }
        pulse.beat();
        assert_eq!((pulse.beats(), pulse.waited_for()), (1, "the thread that asks the others does not run"));
        pulse.beat();
        assert_eq!(pulse.beats(), 2);
    }

    #[test]
    fn a_pulse_that_beat_before_the_first_look_is_not_counted_as_a_beat_since() {
        let (pulse, now) = (Pulse::new().unwrap(), Instant::now());
        pulse.beat();
        let mut watch = Watch::new(pulse, now);
        assert_eq!((watch.left(now), watch.left(now + LOOK / 5)), (LOOK, LOOK / 5 * 4));
        assert_eq!(watch.left(now + LOOK * 2), Duration::ZERO);
        let ends = (1..=MOST_LOOKS).map(|look| watch.look(now + LOOK * look, || false).is_some());
        assert!(ends.eq((1..=MOST_LOOKS).map(|look| look == MOST_LOOKS)));
    }

    #[test]
    fn a_process_that_is_stopped_is_seen_to_be() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = Pid::from_raw(child.id().cast_signed()).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
        let stopped = rustix::process::WaitOptions::UNTRACED;
        assert!(rustix::process::waitpid(Some(process), stopped).unwrap().unwrap().1.stopped());
        let paused = is_paused(process);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(paused);
    }

    #[test]
    fn a_stopped_or_traced_process_is_paused() {
        let status = |state: &str, tracer: &str| format!("Name:\tx\nState:\t{state}\nTgid:\t1\nTracerPid:\t{tracer}\n");
        assert!(says_paused(&status("T (stopped)", "0")));
        assert!(says_paused(&status("t (tracing stop)", "7")));
        assert!(says_paused(&status("S (sleeping)", "7")));
        assert!(!says_paused(&status("S (sleeping)", "0")) && !says_paused(""));
        assert!(!is_paused(rustix::process::getpid()));
    }
}
