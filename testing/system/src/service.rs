//! A `towpath serve` or `towpathd` of the test's own, on a socket and in a network namespace of its own.

use crate::namespace::own_network;
use crate::program::{Program, Running};
use crate::{Lab, Scratch, bin};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A running service.
pub struct Service {
    /// Its registration socket.
    pub socket: PathBuf,
    /// The process.
    pub running: Running,
    /// Its directory, which has its logs.
    pub scratch: Scratch,
}

impl Service {
    /// An embedded service: no interface, does not end when idle, and the stack carries all connections.
    pub fn embedded() -> Self {
        Self::start(|program| program.arg("--direct").arg("false"))
    }
    /// An embedded service with the default settings: programs of this host are joined directly.
    pub fn direct() -> Self {
        Self::start(|program| program)
    }
    /// The kernel stack, in the test's network namespace.
    pub fn kernel() -> Self {
        Self::start(|program| program.arg("--stack").arg("kernel"))
    }
    /// The kernel stack in a second kernel, which is reached over its loopback device only.
    pub fn second_kernel() -> Self {
        Self::uml(|program| program)
    }
    /// The kernel stack in a second kernel; `complete` completes the command line.
    pub fn uml(complete: impl FnOnce(Program) -> Program) -> Self {
        crate::require_program("linux.uml", "user-mode-linux");
        let mut service = Self::start(|program| complete(program.arg("--stack").arg("uml")));
        // Two kernels take long to start on a busy machine.
        service.running.wait_for("stack=\"uml\"", 90);
        service
    }
    /// The kernel stack in a guest of QEMU.
    pub fn qemu(complete: impl FnOnce(Program) -> Program) -> Self {
        crate::require_guest();
        let mut service = Self::start(|program| complete(program.arg("--stack").arg("qemu")));
        // The guest's processor is emulated, which is slow.
        service.running.wait_for("stack=\"qemu\"", 300);
        service
    }
    /// A service on `eth1` of a laboratory's server side, which admits every user.
    pub fn on_interface(lab: &Lab) -> Self {
        Self::start(|program| Self::with_interface(lab, program))
    }
    /// [`Service::on_interface`] with this `port` in its configuration.
    pub fn on_interface_by(lab: &Lab, port: &str) -> Self {
        let scratch = Scratch::new("service");
        let (socket, file) = (scratch.path("towpath.sock"), scratch.path("towpath.toml"));
        std::fs::write(&file, format!("port = {port:?}\n")).expect("the configuration");
        let complete = |program: Program| Self::with_interface(lab, program.arg("--config").arg(&file));
        let running = Self::begin(&scratch, &socket, complete);
        Self { socket, running, scratch }
    }
    /// [`Service::on_interface`] after the end of this one, at the same socket.
    pub fn on_interface_again(&mut self, lab: &Lab) {
        self.start_again(|program| Self::with_interface(lab, program));
    }
    fn with_interface(lab: &Lab, program: Program) -> Program {
        lab.on_server(program.arg("--interface").arg("eth1").arg("--admit").arg("all"))
    }
    /// `towpath serve`; `complete` completes the command line.
    pub fn start(complete: impl FnOnce(Program) -> Program) -> Self {
        let scratch = Scratch::new("service");
        let socket = scratch.path("towpath.sock");
        let running = Self::begin(&scratch, &socket, complete);
        Self { socket, running, scratch }
    }
    /// Another service at the same socket, after this one has ended.
    pub fn start_again(&mut self, complete: impl FnOnce(Program) -> Program) {
        let _ = std::fs::remove_file(&self.socket);
        self.running = Self::begin(&self.scratch, &self.socket, complete);
    }
    fn begin(scratch: &Scratch, socket: &Path, complete: impl FnOnce(Program) -> Program) -> Running {
        own_network();
        let program = Program::new(&[bin("towpath")]).arg("serve").arg("--socket").arg(socket);
        let mut running = complete(program).start(scratch.path("service.log"));
        // Its socket is there earlier. On a busy machine programs do not wait as long as it may take from then on.
        running.wait_for("serving version=", 300);
        assert!(socket.exists(), "it serves elsewhere:\n{}", running.output());
        running
    }
    /// `towpath run -- LINE` against this service, which must accelerate the program (`--require`).
    pub fn accelerated(&self, line: &str) -> Program {
        let words: Vec<&str> = line.split_whitespace().collect();
        Program::new(&words).under(&[
            bin("towpath").as_os_str(),
            "run".as_ref(),
            "--require".as_ref(),
            "--socket".as_ref(),
            self.socket.as_os_str(),
            "--".as_ref(),
        ])
    }
    /// `towpath status --json`.
    pub fn status(&self) -> Value {
        self.json("status")
    }
    /// `towpath sockets -a --json`.
    pub fn sockets(&self) -> Value {
        self.json("sockets")
    }
    fn json(&self, command: &str) -> Value {
        let mut program = Program::new(&[bin("towpath")]).arg(command).arg("--json").arg("--socket").arg(&self.socket);
        if command == "sockets" {
            program = program.arg("-a");
        }
        // On a machine that is loaded the service may take longer than the command waits.
        let mut answer = program.run(20);
        for _ in 0..5 {
            if answer.code == 0 || !answer.err.contains("does not answer") {
                break;
            }
            answer = program.run(20);
        }
        let out = answer.ok();
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{command}: {e}\n{out}"))
    }
    /// A counter of a kernel stack, such as `sends` or `received_bytes`, summed over its workers.
    pub fn stage(&self, name: &str) -> u64 {
        let status = self.status();
        let groups = status["flow_groups"].as_array().expect("flow groups");
        groups.iter().map(|group| group["stages"][name].as_u64().expect("a count of the stack")).sum()
    }
    /// TCP payload segments that the fast path has handled so far, in all flow groups (protocol stage).
    pub fn segments(&self) -> u64 {
        let status = self.status();
        let groups = status["flow_groups"].as_array().expect("flow groups");
        groups.iter().map(|group| group["stages"]["protocol"].as_u64().expect("protocol stage counter")).sum()
    }
}
