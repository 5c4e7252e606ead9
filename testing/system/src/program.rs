//! Programs in the background, which end with their guard, and finished ones with their output.

use crate::wait::in_vain_at;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How a program ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; -1 if ended by a signal or by the time limit.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Finished {
    /// Returns standard output. Panics with the whole output unless the exit code is 0.
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "failed:\n--- out\n{}\n--- err\n{}", self.out, self.err);
        self.out
    }
}

/// A program to start: command line, environment, directory, user, and a prefix such as a namespace.
#[derive(Clone, Debug)]
pub struct Program {
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: Option<PathBuf>,
}

impl Program {
    /// From arguments. `args[0]` is looked up in PATH unless it is a path.
    pub fn new<S: AsRef<OsStr>>(args: &[S]) -> Self {
        Self { args: args.iter().map(|a| a.as_ref().to_owned()).collect(), env: Vec::new(), dir: None }
    }
    /// From a line that is split at spaces, without quoting.
    pub fn line(line: &str) -> Self {
        Self::new(&line.split_whitespace().collect::<Vec<_>>())
    }
    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }
    /// Sets an environment variable.
    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.into(), value.as_ref().to_owned()));
        self
    }
    /// Sets the directory.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }
    /// Puts another command line before it, for example `ip netns exec NAME`.
    pub fn under<S: AsRef<OsStr>>(mut self, prefix: &[S]) -> Self {
        let mut args: Vec<OsString> = prefix.iter().map(|a| a.as_ref().to_owned()).collect();
        args.append(&mut self.args);
        self.args = args;
        self
    }
    /// Sets the user and the group to `id`, without supplementary groups.
    pub fn user(self, id: u32) -> Self {
        let id = id.to_string();
        self.under(&["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"])
    }
    fn command(&self) -> Command {
        let mut command = Command::new(&self.args[0]);
        command.args(&self.args[1..]).envs(self.env.iter().map(|(k, v)| (k, v))).stdin(Stdio::null());
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command
    }
    /// Runs it to its end, for `seconds` at most, or for as long as a busy machine may need.
    pub fn run(&self, seconds: u64) -> Finished {
        let mut child = self
            .command()
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("{:?}: {e}", self.args[0]));
        let out = reader(child.stdout.take());
        let err = reader(child.stderr.take());
        let (begun, end) = (Instant::now(), in_vain_at(seconds));
        let code = loop {
            if let Some(status) = child.try_wait().expect("wait") {
                break status.code().unwrap_or(-1);
            }
            if Instant::now() >= end {
                // Its children are killed too, because they would keep the pipes open.
                let group = rustix::process::Pid::from_child(&child);
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                let _ = child.wait();
                let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
                let took = begun.elapsed().as_secs();
                panic!("{:?} did not end within {took} s:\n--- out\n{out}\n--- err\n{err}", self.args);
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        while !(out.is_finished() && err.is_finished()) {
            let took = begun.elapsed().as_secs();
            assert!(
                Instant::now() < end,
                "{:?} has left processes that hold its output open after {took} s",
                self.args
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        Finished { code, out: out.join().unwrap_or_default(), err: err.join().unwrap_or_default() }
    }
    /// Starts it in the background, with its output in `log`. The guard ends it (SIGTERM, then SIGKILL).
    pub fn start(&self, log: impl Into<PathBuf>) -> Running {
        let log = log.into();
        let file = std::fs::File::create(&log).expect("log file");
        let child = self
            .command()
            .stdout(file.try_clone().expect("log file"))
            .stderr(file)
            .spawn()
            .unwrap_or_else(|e| panic!("{:?}: {e}", self.args[0]));
        Running { child, log, name: self.args.join(OsStr::new(" ")) }
    }
}

fn reader(stream: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A program in the background.
pub struct Running {
    child: Child,
    log: PathBuf,
    name: OsString,
}

impl Running {
    /// The process id of the outermost command.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }
    /// The process id of the service's worker: the child that runs the same program. Without one, of the service.
    pub fn worker(&self) -> i32 {
        let id = self.pid();
        let program = |id: i32| std::fs::read_link(format!("/proc/{id}/exe")).ok();
        // Another child of a service writes to the journal.
        let logs =
            |id: i32| std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name.contains("-log"));
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let mut children = children.split_whitespace().filter_map(|child| child.parse().ok());
        children
            .find(|child| !logs(*child) && program(*child).is_some_and(|theirs| Some(theirs) == program(id)))
            .unwrap_or(id)
    }
    /// Its output so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
    /// Does it still run?
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so the process id is still its own.
        unsafe { libc::kill(self.pid(), signal) };
    }
    /// Waits until its output contains `text`. Panics after `seconds`, or after as long as a busy machine may need.
    pub fn wait_for(&mut self, text: &str, seconds: u64) {
        let (begun, end) = (Instant::now(), in_vain_at(seconds));
        loop {
            let output = self.output();
            if output.contains(text) {
                return;
            }
            // Asked before the output is read, so that the last output of a program that ends is not missed.
            let alive = self.alive();
            assert!(alive || self.output().contains(text), "{:?} has ended:\n{}", self.name, self.output());
            let took = begun.elapsed().as_secs();
            assert!(Instant::now() < end, "{:?}: no {text:?} within {took} s:\n{output}", self.name);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    /// Ends it and waits for its end.
    pub fn stop(&mut self) {
        if self.alive() {
            self.signal(libc::SIGTERM);
            let end = Instant::now() + Duration::from_secs(30);
            while self.alive() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
    /// Waits until it ends by itself. Panics after `seconds`, or after as long as a busy machine may need.
    pub fn wait_end(&mut self, seconds: u64) {
        let (begun, end) = (Instant::now(), in_vain_at(seconds));
        while self.alive() {
            let took = begun.elapsed().as_secs();
            assert!(Instant::now() < end, "{:?} still runs after {took} s:\n{}", self.name, self.output());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        if std::thread::panicking() {
            eprintln!("--- output of {:?}\n{}", self.name, self.output());
        }
    }
}
