//! A sender's and a receiver's namespace with `towpath-relay` between them.

use super::lab::{CLIENT_CPU, Process, SERVER_CPU, ip, wait};
use serde_json::Value;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Address of the receiver.
pub const RECEIVER: &str = "10.78.0.2";

/// Who stands where.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The sender and, where it is measured, Towpath's service: CPU 0.
    Sender,
    /// The receiver, always plain Linux: CPU 1.
    Receiver,
    /// The relay: CPU 1.
    Relay,
}

/// The namespaces and a directory for logs and sockets.
pub struct Wire {
    names: [String; 3],
    /// Private directory.
    pub dir: PathBuf,
}

impl Wire {
    /// Makes it; needs root and iproute2.
    pub fn new() -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(io::Error::other("this benchmark makes network namespaces: run it as root"));
        }
        let id = std::process::id();
        let dir = std::env::temp_dir().join(format!("towpath-wire-{id}"));
        std::fs::create_dir_all(&dir)?;
        let wire = Self { names: ["s", "r", "w"].map(|place| format!("tpw{place}-{id}")), dir };
        wire.build()?;
        Ok(wire)
    }

    fn build(&self) -> io::Result<()> {
        let [_, _, relay] = &self.names;
        for name in &self.names {
            ip(&format!("netns add {name}"))?;
        }
        for (n, name) in self.names[..2].iter().enumerate() {
            let (own, wire) = (format!("10.78.0.{}", n + 1), format!("wire{n}"));
            ip(&format!("link add eth1 netns {name} type veth peer name {wire} netns {relay}"))?;
            ip(&format!("-n {relay} link set {wire} up"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} addr add {own}/24 dev eth1"))?;
            ip(&format!("-n {name} link set eth1 up"))?;
            ip(&format!("-n {name} route replace 10.78.0.0/24 dev eth1 src {own} congctl cubic"))?;
        }
        // No run shall begin with the window that an earlier one has left for this destination.
        self.shell(Place::Sender, "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save")?;
        // The relay's ends are wires, not hosts.
        self.shell(Place::Relay, "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6")?;
        Ok(())
    }

    fn shell(&self, place: Place, text: &str) -> io::Result<String> {
        let output = self.command(place, &["sh", "-c", text]).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!("cannot set up the namespaces: {text}")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A command at one place, on that place's CPU.
    pub fn command<S: AsRef<OsStr>>(&self, place: Place, words: &[S]) -> Command {
        let cpu = if place == Place::Sender { SERVER_CPU } else { CLIENT_CPU };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[place as usize], "taskset", "-c", &cpu.to_string()]);
        command.args(words).current_dir(&self.dir).stdin(Stdio::null());
        command
    }

    /// Starts a background process and waits until its output contains `ready`.
    pub fn start(&self, command: Command, log: &str, ready: &str) -> io::Result<Process> {
        Process::start(command, &self.dir.join(log), |text| text.contains(ready))
    }

    /// Starts `towpath serve` at the sender, with a send ring that is no limit here.
    pub fn serve(&self) -> io::Result<(Process, PathBuf)> {
        let socket = self.dir.join("towpath.sock");
        let exe = std::env::current_exe()?;
        let mut command = self.command(Place::Sender, &[exe.as_os_str(), "serve".as_ref()]);
        command.args(["--interface", "eth1", "--cores", "1", "--send-buffer", "1MiB", "--socket"]).arg(&socket);
        let mut process = Process::start(command, &self.dir.join("service.log"), |_| true)?;
        wait(&self.dir.join("service.log"), &mut process, || socket.exists())?;
        Ok((process, socket))
    }

    /// Segments that the sender's kernel has sent again since the namespace was made.
    pub fn retransmitted(&self) -> io::Result<u64> {
        let text = self.shell(Place::Sender, "cat /proc/net/snmp")?;
        let mut lines = text.lines().filter(|line| line.starts_with("Tcp:")).map(str::split_whitespace);
        let (names, values) = (lines.next(), lines.next());
        let pair =
            names.zip(values).and_then(|(names, values)| names.zip(values).find(|(name, _)| *name == "RetransSegs"));
        pair.and_then(|(_, value)| value.parse().ok())
            .ok_or_else(|| io::Error::other("no RetransSegs in /proc/net/snmp"))
    }

    /// The last JSON object in a log.
    pub fn last_json(&self, log: &str) -> io::Result<Value> {
        let text = std::fs::read_to_string(self.dir.join(log))?;
        let line = text.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
        serde_json::from_str(line).map_err(|_| io::Error::other(format!("no report in {log}:\n{text}")))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
