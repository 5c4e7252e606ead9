//! The service's configuration: one TOML file. Every value has its unit, every default its reason.

use self::toml_error::{explain, line_at, line_of, line_of_entry};
use crate::admission::Admit;
use crate::fingerprint::hash;
use crate::policy::list::DefaultAction;
use crate::policy::{Entry, Namespaces};
use crate::units::{Bytes, Duration};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use towpath_tcp::slow::congestion::Algorithm;

mod check;
mod cores_setting;
mod difference;
mod firewall_setting;
mod joins;
mod one_or_more;
mod port_setting;
mod sandbox_setting;
mod selector;
pub mod stack_kind;
mod toml_error;
mod vlan_setting;

pub use check::PATTERN_PLACES;
pub use cores_setting::CoresSetting;
pub use difference::CHANGEABLE;
pub use firewall_setting::FirewallSetting;
pub use port_setting::PortSetting;
pub use sandbox_setting::SandboxSetting;
pub use selector::Selector;
pub use stack_kind::StackKind;
pub use vlan_setting::VlanSetting;

/// All keys. `Config::default()` serves the user that starts the service, on this machine only, with one core.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The stack: `"fast"` is Towpath's own TCP (the default), and `"kernel"` the sockets of this kernel. `"uml"` and
    /// `"qemu"` are those of a second kernel, `"remote"` those of another host.
    pub stack: StackKind,
    /// The network namespace to serve: its name (`ip netns`) or a path. Default: the one that the service is started
    /// in.
    pub netns: Option<String>,
    /// Other stacks, which rules of `policy` and `--stack` name. Each is a service of its own and has the keys of one.
    pub stacks: BTreeMap<String, Config>,
    /// The file that the configuration was read from.
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// SHA-256 of that file's text.
    #[serde(skip)]
    pub hash: Option<String>,
    /// Keys that have other values in that text than in force ([`Config::with_changeable_of`]).
    #[serde(skip)]
    pub waiting: Vec<&'static str>,
    /// The namespaces beside that of the stack whose table this is ([`Config::of_stack`]). `None`: it is the first table.
    #[serde(skip)]
    pub of: Option<Namespaces>,
    /// Measure connections over the stack and over the programs' own kernel, and leave to the kernel those that do not
    /// gain.
    pub auto: bool,
    /// The TAP device that is a guest's network (`"uml"`, `"qemu"`). Without one it has only its loopback device.
    pub guest_tap: Option<String>,
    /// Address and prefix length of the guest's network device: `10.0.0.2/24`.
    pub guest_address: Option<String>,
    /// The guest's router.
    pub guest_gateway: Option<String>,
    /// The kernel of a guest of QEMU. Default: this host's.
    pub guest_kernel: Option<PathBuf>,
    /// The guest's memory, without the rings.
    pub guest_memory: Bytes,
    /// The address of the stack `"remote"`: `unix:PATH`, `tcp:HOST:PORT` or `rdma:HOST:PORT`.
    pub remote: Option<String>,
    /// The token that authenticates and encrypts `tcp:`, a file that both sides have a copy of. `towpath kernel-stack
    /// --make-token` makes one.
    pub token: Option<PathBuf>,
    /// Carry `tcp:` without a token, and `rdma:`, which has none, in the clear? A host that reaches the port is believed,
    /// and one on the way reads and changes everything. For closed networks. Default: no.
    pub trust_network: bool,
    /// The guest stands by: until its clients are moved, this kernel serves them, with `guest_address` on this device.
    pub standby: Option<String>,
    /// The registration socket. The default depends on the user that starts the service; see [`crate::paths`].
    pub socket: Option<PathBuf>,
    /// The network interfaces to serve: `"eth1"`, or a list `["eth1", "eth2"]` of up to 16. `"eth*"` is a pattern, and
    /// `"default-route"` those of the default routes: 8 of them at a time, which may come and go. Default: none. An interface
    /// needs root, and connections within this machine need none. The kernel's routes choose among several.
    #[serde(deserialize_with = "one_or_more::read")]
    pub interface: Vec<String>,
    /// The VLAN of the interface to serve, 1 to 4,094; 0 = untagged frames (the default). Of several interfaces a list.
    pub vlan: VlanSetting,
    /// How frames of an interface come to the stack: `"packet"` sockets, `"xdp"` in the driver, `"xdp-generic"`, or what
    /// suits the interface (`"auto"`, the default).
    pub port: PortSetting,
    /// `"respect"`: the kernel's firewall judges the first SYN of every connection over the interface. Default: respect,
    /// because nobody expects less. `"own"`: the policy alone judges them.
    pub firewall: FirewallSetting,
    /// CPU cores that the stack may use, 1 to 16, or a range in which the service chooses (`"1-4"`, `"auto"`). With an
    /// interface at most one per receive queue. Default 1: a second core helps only once the first is busy.
    pub cores: CoresSetting,
    /// CPUs to pin the stack's threads to, one per core. Default none: the scheduler knows better which CPU is idle.
    pub cpus: Vec<usize>,
    /// Other users that may use the service: `"user:alice"`, `"group:web"`, `"uid:1000"`, `"all"`. Default: none but
    /// the service's own user and root, because a stack sees its users' data.
    pub admit: Vec<Admit>,
    /// Rules and limits: `"deny connect user www-data port 25"`, `"limit program nginx rate 1gbit"`. The first rule
    /// that matches decides. Default: none.
    pub policy: Vec<Entry>,
    /// The action where no rule of `policy` matches: `"allow"`, `"deny"` or `"kernel"`. Default: allow.
    pub policy_default: DefaultAction,
    /// Most client processes of one user. Default 256: each has a region and a thread in the service.
    pub clients_per_user: u32,
    /// Socket slots of one client, a power of two from 16 to 65,536; half of them are for accepted connections. Default
    /// 16,384: more than most programs need, and only slots in use take memory.
    pub sockets_per_client: u32,
    /// Send ring of each connection at first, a power of two from 4KiB to 16MiB. Default 128KiB: the product of 10 Gbit/s and
    /// 100 µs. The rings of some ten busy connections then fit in a second-level cache.
    pub send_buffer: Bytes,
    /// Receive ring of each connection at first, with the same limits and default.
    pub receive_buffer: Bytes,
    /// How far a send ring grows whose network could carry more, with the same limits. Default:
    /// `send_buffer`, so it does not. Only the fast stack's rings grow.
    pub send_buffer_max: Option<Bytes>,
    /// The same of receive rings: the largest window that is offered.
    pub receive_buffer_max: Option<Bytes>,
    /// After this time without data an open connection gives back what its rings hold; 0 = never.
    /// Default 10s: far longer than a pause between two requests. Only the fast stack's connections do so.
    pub idle_memory: Duration,
    /// Most connections of all clients together. Default 65,536. Each takes 448 bytes at first and 0.9 KiB when it is opened, all
    /// together 75 MiB.
    pub max_connections: u32,
    /// How long a thread looks for work before it sleeps. Default 20us, twice the cost of a wake-up: that is never more
    /// than three times as expensive as the best choice in hindsight.
    pub spin: Duration,
    /// Longest delay of an acknowledgement. Default 1ms. That is longer than a program of this machine takes to answer.
    /// It is far below a peer's shortest time-out (Linux: 200 ms) and the 500 ms of RFC 9293.
    pub delayed_ack: Duration,
    /// Duration of TIME_WAIT. Default 60s, as Linux; RFC 9293 says 4 minutes.
    pub time_wait: Duration,
    /// Congestion control of connections that choose none (`TCP_CONGESTION`), by Linux's name. Default: cubic, as
    /// Linux.
    pub congestion: String,
    /// Offer and accept timestamps (RFC 7323). Default: on, as Linux. They measure round trips and
    /// reveal old duplicates.
    pub timestamps: bool,
    /// Offer and accept selective acknowledgements (RFC 2018). Default on, as Linux.
    pub sack: bool,
    /// Offer and accept window scaling (RFC 7323). Default on, as Linux: without it no window is larger than 64 KiB.
    pub window_scaling: bool,
    /// ECN as Linux's `tcp_ecn`: 0 never, 1 requested and accepted, 2 accepted. Default 2, as Linux: there are still
    /// networks that drop a SYN which asks.
    pub ecn: u8,
    /// Answer SYNs with cookies (RFC 4987 §3.6) where a listener's backlog is full? Default true, as Linux's
    /// `tcp_syncookies`.
    pub syn_cookies: bool,
    /// Largest MSS to announce and to use, bytes; 0 = what the route's MTU allows (the default).
    pub mss_clamp: u16,
    /// Join connections between programs of this host directly, ring to ring. Default: true, because it costs a
    /// fraction. False lets every byte go through the protocol, for example to test it.
    pub direct: bool,
    /// `"on"`: what serves gives up all privileges, files and system calls that it does not need. `"off"`: it keeps what
    /// the service was started with. Default: on. Off is for the search for an error, and `towpath status` warns of it.
    pub sandbox: SandboxSetting,
    /// The service ends after this time without a client. Default: never. `towpath run` starts it with 30s.
    pub idle_exit: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            stack: StackKind::Fast,
            netns: None,
            stacks: BTreeMap::new(),
            file: None,
            hash: None,
            waiting: Vec::new(),
            of: None,
            auto: false,
            guest_tap: None,
            guest_address: None,
            guest_gateway: None,
            guest_kernel: None,
            guest_memory: Bytes::from_kib(256 << 10),
            remote: None,
            token: None,
            trust_network: false,
            standby: None,
            socket: None,
            interface: Vec::new(),
            vlan: VlanSetting::default(),
            port: PortSetting::Auto,
            firewall: FirewallSetting::Respect,
            cores: CoresSetting::Fixed(1),
            cpus: Vec::new(),
            admit: Vec::new(),
            policy: Vec::new(),
            policy_default: DefaultAction::Allow,
            clients_per_user: 256,
            sockets_per_client: 16_384,
            send_buffer: Bytes::from_kib(128),
            receive_buffer: Bytes::from_kib(128),
            send_buffer_max: None,
            receive_buffer_max: None,
            idle_memory: Duration::from_secs(10),
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
            sandbox: SandboxSetting::On,
            idle_exit: None,
        }
    }
}

/// Every key, for messages.
pub const KEYS: [&str; 44] = [
    "stack",
    "netns",
    "stacks",
    "auto",
    "guest_tap",
    "guest_address",
    "guest_gateway",
    "guest_kernel",
    "guest_memory",
    "remote",
    "token",
    "trust_network",
    "standby",
    "socket",
    "interface",
    "vlan",
    "port",
    "firewall",
    "cores",
    "cpus",
    "admit",
    "policy",
    "policy_default",
    "clients_per_user",
    "sockets_per_client",
    "send_buffer",
    "receive_buffer",
    "send_buffer_max",
    "receive_buffer_max",
    "idle_memory",
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
    "sandbox",
    "idle_exit",
];

/// Why a configuration cannot be used. Its text names the place and says what to write.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// Its path.
        file: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A line of the file is wrong.
    #[error("{}:{line}: {message}", file.display())]
    Line {
        /// Its path.
        file: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The key and the reason.
        message: String,
    },
    /// The value of a flag, or a combination of values, is wrong.
    #[error("{0}")]
    Value(String),
}

impl Config {
    /// Reads and checks a file.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|source| ConfigError::Read { file: file.into(), source })?;
        Self::of_text(file, &text)
    }

    /// [`Config::load`] for a file with this text.
    pub fn of_text(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let file_name = std::path::absolute(file).unwrap_or(file.into());
        Ok(Self { file: Some(file_name), hash: Some(hash(text)), ..Self::parse(file, text)? })
    }

    /// Reads and checks a text; `file` is for messages.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let at = |line, message| ConfigError::Line { file: file.into(), line, message };
        let config: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_at(text, span.start));
            let line = line_of_entry(text, line).unwrap_or(line);
            at(line, explain(text, line, error.message()))
        })?;
        let checked = config.check().and_then(|()| config.check_joins());
        checked.map_err(|(key, message)| at(line_of(text, key), format!("{key}: {message}")))?;
        Ok(config)
    }

    /// The configuration of another stack, by name. It takes `admit` from this one if its table has none, and the rules
    /// about joins that name it.
    pub fn of_stack(&self, name: &str) -> Result<Self, ConfigError> {
        let table = self.stacks.get(name).ok_or_else(|| {
            let file = self.file.as_deref().unwrap_or(Path::new("the configuration")).display();
            ConfigError::Value(format!("{file} has no [stacks.{name}]"))
        })?;
        let mut config = Self { file: self.file.clone(), hash: self.hash.clone(), ..table.clone() };
        if config.admit.is_empty() {
            config.admit.clone_from(&self.admit);
        }
        config.policy.extend(self.joins_about(name));
        config.of = Some(self.namespaces_beside(name));
        Ok(config)
    }

    /// The error of a value that only the stack could check. It names the line of the configuration file, if there is
    /// one.
    pub fn error_at(&self, key: &str, message: String) -> ConfigError {
        let text = self.file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        self.error_in(&text.unwrap_or_default(), key, message)
    }

    /// [`Config::error_at`] for a configuration whose file has this text.
    pub fn error_in(&self, text: &str, key: &str, message: String) -> ConfigError {
        let message = format!("{key}: {message}");
        let Some(file) = &self.file else { return ConfigError::Value(message) };
        match toml_error::line_that_sets(text, key) {
            Some(line) => ConfigError::Line { file: file.clone(), line, message },
            // A flag has set it.
            None => ConfigError::Value(message),
        }
    }

    /// [`Config::check`] for a configuration that flags have changed.
    pub fn checked(self) -> Result<Self, ConfigError> {
        let checked = self.check().and_then(|()| self.check_joins());
        checked.map_err(|(key, message)| ConfigError::Value(format!("{key}: {message}")))?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests;
