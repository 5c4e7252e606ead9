//! The service's configuration: one flat TOML file, every value with its unit, every default with its reason.

use self::complaint::{explain, line_of};
use crate::admission::Admit;
use crate::choice::StackKind;
use crate::cores::Cores;
use crate::policy::Entry;
use crate::policy::list::Default as PolicyDefault;
use crate::units::{Bytes, Duration};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use towpath_tcp::slow::congestion::Algorithm;

mod check;
mod complaint;

/// What can be configured. `Config::default()` serves the user who starts it, in memory only, with one core.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The stack that serves: `"fast"`, Towpath's own TCP (the default), or `"kernel"`, the sockets of the kernel and the network
    /// namespace that the service runs in.
    pub stack: StackKind,
    /// The network namespace that the service serves: its name (`ip netns`) or a path. Default the one that it is started in.
    pub netns: Option<String>,
    /// Other stacks, which rules of `policy` and `--stack` name: each has the keys of a service, and is one of its own.
    pub stacks: BTreeMap<String, Config>,
    /// The file that all this stands in.
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// Measure programs' connections both ways, on the stack and on the programs' own kernel, and leave to the kernel what does not gain.
    pub auto: bool,
    /// The TAP device that is the wire of a stack with a kernel of its own (`"uml"`, `"qemu"`); none: it has only its loopback device.
    #[serde(alias = "uml_tap")]
    pub card_tap: Option<String>,
    /// Address and prefix length of its network card: `10.0.0.2/24`.
    #[serde(alias = "uml_address")]
    pub card_address: Option<String>,
    /// Its router.
    #[serde(alias = "uml_gateway")]
    pub card_gateway: Option<String>,
    /// The kernel of a guest of QEMU; none: this host's.
    pub card_kernel: Option<PathBuf>,
    /// Its kernel's memory.
    #[serde(alias = "uml_memory")]
    pub card_memory: Bytes,
    /// Where the other side of the stack `"far"` listens: `unix:PATH`, `tcp:HOST:PORT` or `rdma:HOST:PORT`.
    pub far: Option<String>,
    /// May `far` be on another machine? Nothing on the way is encrypted, and nobody is asked who he is. Default no.
    pub trust_network: bool,
    /// It stands by: this kernel serves, with `card_address` on this device, until everybody is moved.
    pub standby: Option<String>,
    /// The registration socket. Default: see [`crate::paths`]; it depends on who starts the service.
    pub socket: Option<PathBuf>,
    /// The network interface to serve. Default: none, because an interface needs root, and connections between programs
    /// of this machine need no interface.
    pub interface: Option<String>,
    /// The VLAN of the interface that is served, 1 to 4,094; 0 = untagged frames (the default).
    pub vlan: u16,
    /// Fast-path cores, 1 to 16, with an interface at most as many as it has queues, which are dealt out to the cores; or the range in
    /// which the service chooses (`"1-4"`, `"auto"`). Default 1: a second core helps only once the first is busy.
    pub cores: Cores,
    /// CPUs to pin the cores to, one per core. Default none: the scheduler knows better than we do which CPU is idle.
    pub cpus: Vec<usize>,
    /// Who else may use the service: `"user:alice"`, `"group:web"`, `"uid:1000"`, `"all"`. Default nobody but the
    /// service's own user and root, because a stack sees its users' data.
    pub admit: Vec<Admit>,
    /// Who may connect and listen to what, and what an application may take: `"deny connect user www-data port 25"`,
    /// `"limit program nginx rate 1gbit"`; the first rule that matches decides. Default none.
    pub policy: Vec<Entry>,
    /// What happens where no rule of `policy` matches: `"allow"`, `"deny"` or `"kernel"`. Default allow.
    pub policy_default: PolicyDefault,
    /// Client processes that one user may have. Default 256: each has a region and a thread in the service.
    pub clients_per_user: u32,
    /// Socket slots of one client process, a power of two from 16 to 65,536. Default 16,384: half of
    /// them for accepted connections, more than most programs have; memory is taken only for slots in use.
    pub sockets_per_client: u32,
    /// Send ring of each connection, a power of two from 4KiB to 16MiB. Default 128KiB: the product of 10 Gbit/s and
    /// 100 µs, and the rings of some ten busy connections still fit in a second-level cache.
    pub send_buffer: Bytes,
    /// Receive ring of each connection, likewise.
    pub receive_buffer: Bytes,
    /// Connections of all clients together. Default 65,536: at some 1.2 KiB each, taken as they come, 75 MiB when
    /// all are there.
    pub max_connections: u32,
    /// How long a core looks for work before it sleeps. Default 20us: waking a sleeper costs about 10 µs, and waiting for
    /// twice the cost of a wake-up is never more than three times as expensive as the best choice in hindsight.
    pub spin: Duration,
    /// Longest time an acknowledgement may wait for company. Default 1ms: longer than a program
    /// of this machine takes to answer, far below any peer's shortest time-out (Linux: 200 ms) and the 500 ms of RFC 9293.
    pub delayed_ack: Duration,
    /// How long a closed connection's addresses are kept out of use. Default 60s, as Linux; RFC 9293 says 4 minutes.
    pub time_wait: Duration,
    /// Congestion control of connections that choose none (`TCP_CONGESTION`), by Linux's name. Default cubic, as Linux.
    pub congestion: String,
    /// Offer and accept timestamps (RFC 7323). Default on, as Linux: round trips are measured and old duplicates told apart.
    pub timestamps: bool,
    /// Offer and accept selective acknowledgements (RFC 2018). Default on, as Linux.
    pub sack: bool,
    /// Offer and accept window scaling (RFC 7323). Default on, as Linux: without it no window is larger than 64 KiB.
    pub window_scaling: bool,
    /// ECN as Linux's `tcp_ecn`: 0 never, 1 requested and accepted, 2 accepted. Default 2, as Linux: there are still
    /// networks that drop a SYN which asks.
    pub ecn: u8,
    /// Answer SYNs with cookies (RFC 4987 §3.6) where a listener's backlog is full? Default true, as Linux's `tcp_syncookies`.
    pub syn_cookies: bool,
    /// Largest MSS to announce and to use, bytes; 0 = what the route's MTU allows (the default).
    pub mss_clamp: u16,
    /// Join connections between programs of this host ring to ring, without the stack. Default true: it costs a fraction. False
    /// where every byte shall go through the protocol, as for tests of it.
    pub direct: bool,
    /// The service ends when it has had no client for so long. Default never; `towpath run` starts it with 30s.
    pub idle_exit: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            stack: StackKind::Fast,
            netns: None,
            stacks: BTreeMap::new(),
            file: None,
            auto: false,
            card_tap: None,
            card_address: None,
            card_gateway: None,
            card_kernel: None,
            card_memory: Bytes::from_kib(256 << 10),
            far: None,
            trust_network: false,
            standby: None,
            socket: None,
            interface: None,
            vlan: 0,
            cores: Cores::Fixed(1),
            cpus: Vec::new(),
            admit: Vec::new(),
            policy: Vec::new(),
            policy_default: PolicyDefault::Allow,
            clients_per_user: 256,
            sockets_per_client: 16_384,
            send_buffer: Bytes::from_kib(128),
            receive_buffer: Bytes::from_kib(128),
            max_connections: 65_536,
            spin: Duration::from_micros(20),
            delayed_ack: Duration::from_micros(1_000),
            time_wait: Duration::from_secs(60),
            congestion: Algorithm::default().to_string(),
            timestamps: true,
            sack: true,
            window_scaling: true,
            ecn: 2,
            syn_cookies: true,
            mss_clamp: 0,
            direct: true,
            idle_exit: None,
        }
    }
}

/// Every key, for messages.
pub const KEYS: [&str; 37] = [
    "stack",
    "netns",
    "stacks",
    "auto",
    "card_tap",
    "card_address",
    "card_gateway",
    "card_kernel",
    "card_memory",
    "far",
    "trust_network",
    "standby",
    "socket",
    "interface",
    "vlan",
    "cores",
    "cpus",
    "admit",
    "policy",
    "policy_default",
    "clients_per_user",
    "sockets_per_client",
    "send_buffer",
    "receive_buffer",
    "max_connections",
    "spin",
    "delayed_ack",
    "time_wait",
    "congestion",
    "timestamps",
    "sack",
    "window_scaling",
    "ecn",
    "syn_cookies",
    "mss_clamp",
    "direct",
    "idle_exit",
];

/// Why a configuration cannot be used. Its text names the place and says what to write.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// Which file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something in the file is wrong.
    #[error("{}:{line}: {message}", file.display())]
    Line {
        /// Which file.
        file: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Key and complaint.
        message: String,
    },
    /// A value from a command-line flag, or the combination, is wrong.
    #[error("{0}")]
    Value(String),
}

impl Config {
    /// Reads and checks a file.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|source| ConfigError::Read { file: file.into(), source })?;
        let file_name = std::path::absolute(file).unwrap_or(file.into());
        Ok(Self { file: Some(file_name), ..Self::parse(file, &text)? })
    }

    /// Reads and checks a text; `file` is for messages.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let at = |line, message| ConfigError::Line { file: file.into(), line, message };
        let config: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            at(line, explain(text, line, error.message()))
        })?;
        config.check().map_err(|(key, message)| at(line_of(text, key), format!("{key}: {message}")))?;
        Ok(config)
    }

    /// The configuration of the other stack of this name, with what its table leaves to this one.
    pub fn of_stack(&self, name: &str) -> Result<Self, ConfigError> {
        let table = self.stacks.get(name).ok_or_else(|| {
            let file = self.file.as_deref().unwrap_or(Path::new("the configuration")).display();
            ConfigError::Value(format!("{file} has no [stacks.{name}]"))
        })?;
        let mut config = Self { file: self.file.clone(), ..table.clone() };
        if config.admit.is_empty() {
            config.admit.clone_from(&self.admit);
        }
        Ok(config)
    }

    /// [`Config::check`] for a configuration that flags have changed.
    pub fn checked(self) -> Result<Self, ConfigError> {
        self.check().map_err(|(key, message)| ConfigError::Value(format!("{key}: {message}")))?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests;
