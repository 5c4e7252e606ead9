//! A sender's and a receiver's network namespace with `towpath-impair` between them.

use crate::process::{Process, wait};
use crate::programs::{ScratchDir, ip, rpc, run_on, status_flow_groups, towpath};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use towpath_service::programs::find;

/// The sender's CPU.
const SENDER_CPU: usize = 0;
/// The CPU of the receiver and of the relay.
const RECEIVER_CPU: usize = 1;

/// Address of the receiver.
pub const RECEIVER: &str = "10.78.0.2";

/// A namespace of the path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// The sender and, where it is measured, Towpath's service: CPU 0.
    Sender,
    /// The receiver, always plain Linux: CPU 1.
    Receiver,
    /// The relay: CPU 1.
    Relay,
}

/// A service that runs on one of the hosts. It ends with this value.
pub struct Service {
    _process: Process,
    socket: PathBuf,
}

impl Service {
    /// Segments that it has sent again.
    pub fn retransmitted(&self) -> io::Result<u64> {
        let of = |group: &Value| group["tally"]["retransmits"].as_u64().or(group["retransmits"].as_u64());
        Ok(status_flow_groups(&self.socket)?.iter().filter_map(of).sum())
    }
}

/// The namespaces and a directory for logs and sockets. All of it goes with this value.
pub struct ImpairedPath {
    names: [String; 3],
    scratch: ScratchDir,
}

impl ImpairedPath {
    /// Makes it. Needs root and iproute2.
    pub fn new() -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(io::Error::other("this benchmark makes network namespaces: run it as root"));
        }
        let (id, scratch) = (std::process::id(), ScratchDir::new("wire")?);
        let path = Self { names: ["s", "r", "w"].map(|host| format!("tpw{host}-{id}")), scratch };
        path.build()?;
        Ok(path)
    }

    /// The private directory.
    pub fn dir(&self) -> &Path {
        &self.scratch.0
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
        // No run may begin with the window that an earlier one has left for this destination.
        self.shell(Host::Sender, "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save")?;
        // The relay's ends are wires, not hosts.
        self.shell(Host::Relay, "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6")?;
        Ok(())
    }

    fn shell(&self, host: Host, text: &str) -> io::Result<String> {
        let output = self.command(host, &["sh", "-c", text]).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!("cannot set up the namespaces: {text}")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A command on one host, on that host's CPU.
    pub fn command<S: AsRef<OsStr>>(&self, host: Host, words: &[S]) -> Command {
        let cpu = if host == Host::Sender { SENDER_CPU } else { RECEIVER_CPU };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host as usize], "taskset", "-c", &cpu.to_string()]);
        command.args(words).current_dir(self.dir()).stdin(Stdio::null());
        command
    }

    /// Starts a background process and waits until its output contains `ready`.
    pub fn start(&self, command: Command, log: &str, ready: &str) -> io::Result<Process> {
        Process::start(command, &self.dir().join(log), |text| text.contains(ready))
    }

    /// Starts the relay from sender to receiver.
    pub fn relay<S: AsRef<OsStr>>(&self, flags: &[S]) -> io::Result<Process> {
        let program = find("towpath-impair")?;
        let mut command = self.command(Host::Relay, &[program]);
        command.args(["--a", "wire0", "--b", "wire1", "--json", "--one-way"]).args(flags);
        self.start(command, "relay.log", "ready")
    }

    /// Sets the congestion control of the sender's kernel, and whether it uses ECN.
    pub fn set_kernel(&self, congestion: &str, ecn: bool) -> io::Result<()> {
        let sender = &self.names[Host::Sender as usize];
        ip(&format!("-n {sender} route replace 10.78.0.0/24 dev eth1 src 10.78.0.1 congctl {congestion}"))?;
        self.shell(Host::Sender, &format!("echo {} > /proc/sys/net/ipv4/tcp_ecn", u8::from(ecn))).map(drop)
    }

    /// Starts `towpath serve` there with these lines of configuration.
    pub fn serve(&self, host: Host, config: &str) -> io::Result<Service> {
        let file = |what: &str| self.dir().join(format!("towpath{}.{what}", host as usize));
        let (socket, log) = (file("sock"), file("log"));
        let _ = std::fs::remove_file(&socket);
        std::fs::write(file("toml"), config)?;
        let exe = towpath()?;
        let mut command = self.command(host, &[exe.as_os_str(), "serve".as_ref()]);
        command
            .args(["--interface", "eth1", "--cores", "1", "--config"])
            .arg(file("toml"))
            .arg("--socket")
            .arg(&socket);
        let mut process = Process::start(command, &log, |_| true)?;
        wait(&log, &mut process, || socket.exists())?;
        Ok(Service { _process: process, socket })
    }

    /// The load generator there, on a service if one is named.
    pub fn rpc(&self, host: Host, service: Option<&Service>, words: &[String]) -> io::Result<Command> {
        let mut all = match service {
            Some(service) => run_on(&service.socket)?,
            None => Vec::new(),
        };
        all.push(rpc()?.into());
        all.extend(words.iter().map(OsString::from));
        Ok(self.command(host, &all))
    }

    /// Segments that the sender's kernel has sent again since the namespace was made.
    pub fn retransmitted(&self) -> io::Result<u64> {
        let text = self.shell(Host::Sender, "cat /proc/net/snmp")?;
        let mut lines = text.lines().filter(|line| line.starts_with("Tcp:")).map(str::split_whitespace);
        let (names, values) = (lines.next(), lines.next());
        let pair =
            names.zip(values).and_then(|(names, values)| names.zip(values).find(|(name, _)| *name == "RetransSegs"));
        pair.and_then(|(_, value)| value.parse().ok())
            .ok_or_else(|| io::Error::other("no RetransSegs in /proc/net/snmp"))
    }

    /// The last JSON object in a log.
    pub fn last_json(&self, log: &str) -> io::Result<Value> {
        let text = std::fs::read_to_string(self.dir().join(log))?;
        let line = text.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
        serde_json::from_str(line).map_err(|_| io::Error::other(format!("no report in {log}:\n{text}")))
    }
}

impl Drop for ImpairedPath {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}
