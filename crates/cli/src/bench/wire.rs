//! A sender's and a receiver's namespace with `towpath-relay` between them.

use super::lab::{CLIENT_CPU, Process, SERVER_CPU, ip, wait};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
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

/// A Towpath service.
pub struct Under {
    _process: Process,
    socket: PathBuf,
}

impl Under {
    /// Segments that it has sent again.
    pub fn retransmitted(&self) -> io::Result<u64> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["status", "--json", "--socket"]).arg(&self.socket);
        let output = command.stderr(Stdio::inherit()).output()?;
        let status: Value = serde_json::from_slice(&output.stdout).map_err(io::Error::other)?;
        let cores = status["cores"].as_array().ok_or_else(|| io::Error::other("towpath status names no cores"))?;
        Ok(cores.iter().filter_map(|core| core["tally"]["retransmits"].as_u64().or(core["retransmits"].as_u64())).sum())
    }
}

/// The namespaces for `towpath bench` of this name, which has a half that needs no root.
pub fn for_crowd(name: &str) -> io::Result<Wire> {
    if !rustix::process::geteuid().is_root() {
        return Err(io::Error::other(format!(
            "real flows need network namespaces: sudo towpath bench {name}; without root: towpath bench {name} --only simulated"
        )));
    }
    Wire::new()
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

    /// Starts the relay from sender to receiver.
    pub fn relay<S: AsRef<OsStr>>(&self, flags: &[S]) -> io::Result<Process> {
        let program = std::env::current_exe()?.with_file_name("towpath-relay");
        let mut command = self.command(Place::Relay, &[program]);
        command.args(["--a", "wire0", "--b", "wire1", "--json", "--one-way"]).args(flags);
        self.start(command, "relay.log", "ready")
    }

    /// What the sender's kernel uses.
    pub fn kernel(&self, congestion: &str, ecn: bool) -> io::Result<()> {
        let sender = &self.names[Place::Sender as usize];
        ip(&format!("-n {sender} route replace 10.78.0.0/24 dev eth1 src 10.78.0.1 congctl {congestion}"))?;
        self.shell(Place::Sender, &format!("echo {} > /proc/sys/net/ipv4/tcp_ecn", u8::from(ecn))).map(drop)
    }

    /// Starts `towpath serve` there with these lines of configuration.
    pub fn serve(&self, place: Place, config: &str) -> io::Result<Under> {
        let file = |what: &str| self.dir.join(format!("towpath{}.{what}", place as usize));
        let (socket, log) = (file("sock"), file("log"));
        let _ = std::fs::remove_file(&socket);
        std::fs::write(file("toml"), config)?;
        let exe = std::env::current_exe()?;
        let mut command = self.command(place, &[exe.as_os_str(), "serve".as_ref()]);
        command
            .args(["--interface", "eth1", "--cores", "1", "--config"])
            .arg(file("toml"))
            .arg("--socket")
            .arg(&socket);
        let mut process = Process::start(command, &log, |_| true)?;
        wait(&log, &mut process, || socket.exists())?;
        Ok(Under { _process: process, socket })
    }

    /// The load generator there, on Towpath if a service is named.
    pub fn rpc(&self, place: Place, under: Option<&Under>, words: &[String]) -> io::Result<Command> {
        let exe = std::env::current_exe()?;
        let mut all: Vec<OsString> = Vec::new();
        if let Some(Under { socket, .. }) = under {
            all.extend([
                exe.clone().into(),
                "run".into(),
                "--require".into(),
                "--socket".into(),
                socket.into(),
                "--".into(),
            ]);
        }
        all.push(exe.with_file_name("towpath-rpc").into());
        all.extend(words.iter().map(OsString::from));
        Ok(self.command(place, &all))
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
