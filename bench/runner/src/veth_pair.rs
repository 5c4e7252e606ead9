//! Two network namespaces joined by a veth, and the commands of a benchmark on their CPUs.

use crate::process::{Process, wait};
use crate::programs::{ScratchDir, ip, towpath};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Address of the server side.
pub const SERVER: &str = "10.77.0.1";
/// Address of the client side.
pub const CLIENT: &str = "10.77.0.2";
/// The server side's CPU.
pub const SERVER_CPU: usize = 0;
/// The client side's CPU.
pub const CLIENT_CPU: usize = 1;

/// Which side of the veth.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Server, CPU 0.
    Server,
    /// Client, CPU 1, always plain Linux.
    Client,
}

/// The namespaces and a directory for logs and sockets. All of it goes with this value.
pub struct VethPair {
    server: String,
    client: String,
    scratch: ScratchDir,
    /// The service's configuration, if not the default one.
    config: Option<PathBuf>,
    /// The object of a module that services have.
    module: Option<PathBuf>,
}

impl VethPair {
    /// Services have this `port` from now on.
    pub fn with_port(self, port: Option<&str>) -> io::Result<Self> {
        match port {
            Some(port) => self.with_config(&format!("port = {port:?}\n")),
            None => Ok(self),
        }
    }

    /// Services have these lines of configuration from now on.
    pub fn with_config(mut self, lines: &str) -> io::Result<Self> {
        let file = self.dir().join("towpath.toml");
        std::fs::write(&file, lines)?;
        self.config = Some(file);
        Ok(self)
    }

    /// Services have the module of this object from now on.
    pub fn with_module(mut self, object: PathBuf) -> Self {
        self.module = Some(object);
        self
    }

    /// Makes it; needs root, iproute2 and two CPUs.
    pub fn new() -> io::Result<Self> {
        Self::with_queues(1)
    }

    /// The same with this many queues on both ends of the veth.
    pub fn with_queues(queues: usize) -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(io::Error::other("the side-by-side benchmarks make network namespaces: run them as root"));
        }
        // A benchmark may have several at a time.
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let (id, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let scratch = ScratchDir::new(&format!("bench{number}"))?;
        let (server, client) = (format!("tpbs{number}-{id}"), format!("tpbc{number}-{id}"));
        let pair = Self { server, client, scratch, config: None, module: None };
        pair.build(queues)?;
        Ok(pair)
    }

    fn build(&self, queues: usize) -> io::Result<()> {
        let (server, client) = (&self.server, &self.client);
        ip(&format!("netns add {server}"))?;
        ip(&format!("netns add {client}"))?;
        let queues = format!("numrxqueues {queues} numtxqueues {queues}");
        ip(&format!("link add eth1 netns {server} {queues} type veth peer name eth1 netns {client} {queues}"))?;
        for (name, address) in [(server, SERVER), (client, CLIENT)] {
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} addr add {address}/24 dev eth1"))?;
            ip(&format!("-n {name} link set eth1 up"))?;
            // BBR's pacing would dominate if it is the machine's default. A route asks for cubic without touching the
            // host.
            ip(&format!("-n {name} route replace 10.77.0.0/24 dev eth1 src {address} congctl cubic"))?;
        }
        self.receive_on(Side::Server, Some(SERVER_CPU))?;
        self.receive_on(Side::Client, Some(CLIENT_CPU))
    }

    /// Places a side's receive work on a CPU. `None`: on the CPU that sends the packets.
    pub fn receive_on(&self, side: Side, cpu: Option<usize>) -> io::Result<()> {
        self.receive_by(side, 1, &format!("{:x}", cpu.map_or(0, |cpu| 1 << cpu)))
    }

    /// Places the receive work of a side's first queues on the CPUs of a mask.
    pub fn receive_by(&self, side: Side, queues: usize, mask: &str) -> io::Result<()> {
        (0..queues)
            .try_for_each(|queue| self.write(side, &format!("/sys/class/net/eth1/queues/rx-{queue}/rps_cpus"), mask))
    }

    /// Writes a value into a file of a side's kernel.
    pub fn write(&self, side: Side, path: &str, value: &str) -> io::Result<()> {
        let words = ["sh", "-c", r#"echo "$1" > "$0""#, path, value];
        let output = self.command_on(side, None, &words).output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("cannot set up the namespace's kernel: {value} into {path}: {}", said.trim())))
    }

    fn name(&self, side: Side) -> &str {
        match side {
            Side::Server => &self.server,
            Side::Client => &self.client,
        }
    }

    /// The private directory.
    pub fn dir(&self) -> &Path {
        &self.scratch.0
    }

    /// A side's network namespace.
    pub fn namespace(&self, side: Side) -> PathBuf {
        Path::new("/run/netns").join(self.name(side))
    }

    /// The text of a file of a side's kernel.
    pub fn read(&self, side: Side, path: &str) -> io::Result<String> {
        let output = self.command_on(side, None, &["cat", path]).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A command on one side, on that side's CPU.
    pub fn command<S: AsRef<OsStr>>(&self, side: Side, words: &[S]) -> Command {
        let cpu = match side {
            Side::Server => SERVER_CPU,
            Side::Client => CLIENT_CPU,
        };
        self.command_on(side, Some(cpu), words)
    }

    /// A command on one side, on this CPU or on all.
    pub fn command_on<S: AsRef<OsStr>>(&self, side: Side, cpu: Option<usize>, words: &[S]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name(side)]);
        if let Some(cpu) = cpu {
            command.args(["taskset", "-c", &cpu.to_string()]);
        }
        command.args(words).current_dir(self.dir()).stdin(Stdio::null());
        command
    }

    /// A command on one side, on the CPUs of a list.
    pub fn command_among<S: AsRef<OsStr>>(&self, side: Side, cpus: &str, words: &[S]) -> Command {
        let mut command = self.command_on(side, None, &["taskset", "-c", cpus]);
        command.args(words);
        command
    }

    /// A command on one side that sees the machine's control groups, which `ip netns exec` hides with the rest of /sys.
    pub fn with_groups<S: AsRef<OsStr>>(&self, side: Side, words: &[S]) -> Command {
        let mount = r#"mount --make-rprivate / && mkdir -p "$0" && mount --rbind /sys/fs/cgroup "$0" && umount -l /sys &&
            mount -t sysfs sysfs /sys && mount --rbind "$0" /sys/fs/cgroup && umount -l "$0" && exec "$@""#;
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.namespace(side).display()))
            .args(["unshare", "--mount", "sh", "-c", mount]);
        command.arg(self.dir().join("groups")).args(words).current_dir(self.dir()).stdin(Stdio::null());
        command
    }

    /// Starts a background process and waits until its output contains `ready`.
    pub fn start(&self, command: Command, log: &str, ready: &str) -> io::Result<Process> {
        Process::start(command, &self.dir().join(log), |text| text.contains(ready))
    }

    /// Starts `towpath serve` on the server side's interface.
    pub fn serve(&self) -> io::Result<(Process, PathBuf)> {
        let exe = towpath()?;
        let words = [exe.as_os_str(), "serve".as_ref(), "--interface".as_ref(), "eth1".as_ref(), "--cores".as_ref()];
        let mut command = self.command(Side::Server, &words);
        command.arg("1").args(self.configuration());
        self.serving_frames(command)
    }

    /// Starts `towpath serve` on the server side's interface and these CPUs, with a number or a range of cores.
    pub fn serve_cores(&self, cpus: &str, cores: &str) -> io::Result<(Process, PathBuf)> {
        self.serve_with(cpus, &["--cores", cores])
    }

    /// The same with so many cores as there are CPUs in `pinned`, each on its own. The service's other threads are on `cpus`.
    pub fn serve_pinned(&self, cpus: &str, pinned: &[u32]) -> io::Result<(Process, PathBuf)> {
        let list: Vec<String> = pinned.iter().map(u32::to_string).collect();
        self.serve_with(cpus, &["--cores", &pinned.len().to_string(), "--cpus", &list.join(",")])
    }

    fn serve_with(&self, cpus: &str, arguments: &[&str]) -> io::Result<(Process, PathBuf)> {
        let exe = towpath()?;
        let words = [exe.as_os_str(), "serve".as_ref(), "--interface".as_ref(), "eth1".as_ref()];
        let mut command = self.command_among(Side::Server, cpus, &words);
        command.args(arguments).args(self.configuration());
        self.serving_frames(command)
    }

    /// Starts a service whose stack has frames of its own, and adds the module.
    fn serving_frames(&self, command: Command) -> io::Result<(Process, PathBuf)> {
        let (service, socket) = self.serving("service", command)?;
        if let Some(object) = &self.module {
            let exe = towpath()?;
            let words = [exe.as_os_str(), "module".as_ref(), "--socket".as_ref(), socket.as_os_str()];
            let output = self.command(Side::Server, &words).args(["add", "measured"]).arg(object).output()?;
            if !output.status.success() {
                return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
            }
        }
        Ok((service, socket))
    }

    /// Starts `towpath kernel-stack` on the server side's network, on this CPU or on all.
    pub fn kernel_stack(&self, name: &str, cpu: Option<usize>) -> io::Result<(Process, PathBuf)> {
        let exe = towpath()?;
        self.serving(name, self.command_on(Side::Server, cpu, &[exe.as_os_str(), "kernel-stack".as_ref()]))
    }

    fn configuration(&self) -> impl Iterator<Item = &OsStr> {
        self.config.iter().flat_map(|file| ["--config".as_ref(), file.as_os_str()])
    }

    fn serving(&self, name: &str, mut command: Command) -> io::Result<(Process, PathBuf)> {
        let socket = self.dir().join(format!("{name}.sock"));
        command.arg("--socket").arg(&socket);
        let path = self.dir().join(format!("{name}.log"));
        let mut process = Process::start(command, &path, |_| true)?;
        wait(&path, &mut process, || socket.exists())?;
        Ok((process, socket))
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        let _ = ip(&format!("netns del {}", self.server));
        let _ = ip(&format!("netns del {}", self.client));
    }
}
