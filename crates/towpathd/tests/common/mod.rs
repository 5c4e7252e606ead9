//! A `towpathd` of the tests' own.
#![allow(dead_code)]

#[path = "../../../service/tests/common/client.rs"]
pub mod client;

pub use client::{Client, Scratch, until};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use towpath_service::api::{self, Status};

pub fn towpathd(scratch: &Scratch) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpathd"));
    command.arg("--socket").arg(scratch.socket()).env_remove("TOWPATH_SOCKET").stdin(Stdio::null());
    command
}

/// A running service. Dropping it kills the service.
pub struct Daemon(pub Child);

impl Daemon {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.args(["--ready-fd", "1"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut byte = [0];
        child.stdout.take().unwrap().read_exact(&mut byte).expect("a byte when it is ready");
        Self(child)
    }
    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
    }
    pub fn end(&mut self) -> i32 {
        let mut code = None;
        until("the service has ended", || {
            code = self.0.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code().unwrap_or(-1)
    }
    /// The process that serves.
    pub fn worker(&self) -> i32 {
        let id = self.0.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        children.split_whitespace().next().expect("a worker").parse().unwrap()
    }
    pub fn entries(&self, what: &str) -> usize {
        std::fs::read_dir(format!("/proc/{}/{what}", self.worker())).unwrap().count()
    }
    pub fn regions(&self) -> usize {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.worker())).unwrap();
        maps.lines().filter(|line| line.contains("memfd:towpath-region")).count()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn status(socket: &Path) -> Status {
    api::ask(socket, api::Command::Status).unwrap()
}

pub fn error_of(output: &Output) -> (i32, String) {
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
