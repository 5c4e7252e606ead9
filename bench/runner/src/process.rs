//! Background processes of a benchmark.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// How long a program may take until it is ready.
const START: Duration = Duration::from_secs(20);

/// A background process. It ends with this value.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts it with its output in `log`, and waits until `ready` accepts that output.
    pub fn start(command: Command, log: &Path, ready: impl Fn(&str) -> bool) -> io::Result<Self> {
        Self::start_within(START, command, log, ready)
    }

    /// The same with another limit of time.
    pub fn start_within(
        time: Duration,
        mut command: Command,
        log: &Path,
        ready: impl Fn(&str) -> bool,
    ) -> io::Result<Self> {
        let file = std::fs::File::create(log)?;
        let mut process = Self { child: command.stdout(file.try_clone()?).stderr(file).spawn()? };
        wait_within(time, log, &mut process, || std::fs::read_to_string(log).is_ok_and(|text| ready(&text)))?;
        Ok(process)
    }

    /// Waits until `ready` accepts the output in its log.
    pub fn wait_for(&mut self, time: Duration, log: &Path, mut ready: impl FnMut(&str) -> bool) -> io::Result<()> {
        wait_within(time, log, self, || std::fs::read_to_string(log).is_ok_and(|text| ready(&text)))
    }

    /// Writes to its standard input, which the command has made a pipe.
    pub fn tell(&mut self, text: &str) -> io::Result<()> {
        let input = self.child.stdin.as_mut().ok_or_else(|| io::Error::other("the program has no input"))?;
        input.write_all(text.as_bytes())
    }

    /// Waits until it ends by itself.
    pub fn wait_end(&mut self, seconds: f64) -> io::Result<()> {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > end {
                return Err(io::Error::other(format!("a program did not end within {seconds} s")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let end = Instant::now() + Duration::from_secs(5);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for `ready`, at most [`START`] and only while the process runs.
pub fn wait(log: &Path, process: &mut Process, ready: impl FnMut() -> bool) -> io::Result<()> {
    wait_within(START, log, process, ready)
}

fn wait_within(time: Duration, log: &Path, process: &mut Process, mut ready: impl FnMut() -> bool) -> io::Result<()> {
    let end = Instant::now() + time;
    while !ready() {
        if !matches!(process.child.try_wait(), Ok(None)) || Instant::now() > end {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            return Err(io::Error::other(format!("a program did not start:\n{text}")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
