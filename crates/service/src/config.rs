//! The service's configuration: one flat TOML file, every value with its unit, every default with its reason.

use crate::admission::Admit;
use crate::choice::{StackKind, stack_name};
use crate::policy::list::Default as PolicyDefault;
use crate::policy::{Entry, Policy};
use crate::units::{Bytes, Duration};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use towpath_card::mirror::address::Address;
use towpath_ring::command::MAX_STACKS;
use towpath_tcp::slow::congestion::Algorithm;

/// What `--stack` understands without a configuration.
const RESERVED: [&str; 3] = ["fast", "kernel", "home"];

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
    /// Where the other side of the stack `"far"` listens: `unix:PATH` or `tcp:HOST:PORT`.
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
    /// Fast-path cores, 1 to 16; with an interface at most as many as it has queues, which are dealt out to the cores.
    /// Default 1: a second core helps only once the first is busy.
    pub cores: usize,
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
            cores: 1,
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

    /// Checks what no single type can: ranges and combinations. On error: the key and what is wrong with it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.stack != StackKind::Fast && self.interface.is_some() {
            return Err(("interface", "the kernel stack serves its whole network namespace; name none".into()));
        }
        if self.auto && !matches!(self.stack, StackKind::Fast | StackKind::Kernel) {
            return Err(("auto", "the other kernel has a network of its own; nothing can go either way".into()));
        }
        self.check_card()?;
        self.check_stacks()?;
        self.check_far()?;
        in_range("vlan", self.vlan.into(), 0, 4094)?;
        in_range("cores", self.cores as u64, 1, 16)?;
        if !self.cpus.is_empty() && self.cpus.len() != self.cores {
            let (cpus, cores) = (self.cpus.len(), self.cores);
            return Err(("cpus", format!("{cpus} named for {cores} cores; name one CPU per core, or none")));
        }
        in_range("clients_per_user", self.clients_per_user.into(), 1, 65_536)?;
        in_range("max_connections", self.max_connections.into(), 16, 1 << 20)?;
        in_range("sockets_per_client", self.sockets_per_client.into(), 16, 65_536)?;
        if !self.sockets_per_client.is_power_of_two() {
            let n = self.sockets_per_client;
            return Err(("sockets_per_client", format!("{n} is not a power of two; write {}", n.next_power_of_two())));
        }
        ring_size("send_buffer", self.send_buffer)?;
        ring_size("receive_buffer", self.receive_buffer)?;
        time_in_range("spin", self.spin, Duration::from_micros(0), Duration::from_secs(1))?;
        time_in_range("delayed_ack", self.delayed_ack, Duration::from_micros(0), Duration::from_micros(500_000))?;
        time_in_range("time_wait", self.time_wait, Duration::from_micros(0), Duration::from_secs(240))?;
        in_range("ecn", self.ecn.into(), 0, 2)?;
        if self.mss_clamp != 0 {
            in_range("mss_clamp", self.mss_clamp.into(), 88, 65_495)?;
        }
        if Algorithm::parse(&self.congestion).is_none() {
            let names: Vec<&str> = Algorithm::NAMED.iter().map(|algorithm| algorithm.name()).collect();
            let known = names.join(", ");
            return Err((
                "congestion",
                format!("{:?} is not known; there are {known} and constant:RATE", self.congestion),
            ));
        }
        Ok(())
    }

    fn check_stacks(&self) -> Result<(), (&'static str, String)> {
        if self.stacks.len() > MAX_STACKS {
            return Err(("stacks", format!("{} are too many; {MAX_STACKS} is the most", self.stacks.len())));
        }
        for (name, table) in &self.stacks {
            stack_name(name).map_err(|why| ("stacks", why))?;
            if RESERVED.contains(&name.as_str()) {
                return Err(("stacks", format!("{name:?} is what `--stack` calls another; choose another name")));
            }
            if !table.stacks.is_empty() {
                return Err(("stacks", format!("{name}: a stack in a stack is none; name it in [stacks]")));
            }
            table.check().map_err(|(key, message)| (key, format!("{message} (stacks.{name})")))?;
        }
        let names = self.stacks.keys().cloned().collect();
        let policy = Policy::with_stacks(self.policy.clone(), self.policy_default, names);
        policy.map(drop).map_err(|why| ("policy", why))
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

    fn check_card(&self) -> Result<(), (&'static str, String)> {
        let words = [
            ("card_tap", &self.card_tap),
            ("card_address", &self.card_address),
            ("card_gateway", &self.card_gateway),
            ("standby", &self.standby),
        ];
        for (key, word) in words.iter().filter_map(|(key, word)| Some((*key, word.as_ref()?))) {
            if word.is_empty() || !word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:/@".contains(c)) {
                return Err((key, format!("{word:?} is none")));
            }
        }
        if self.standby.is_some() && self.card_address.is_none() {
            return Err(("standby", "there is no card_address that could move".into()));
        }
        let (low, high) = (Bytes::from_kib(64 << 10), Bytes::from_kib(16 << 20));
        if self.card_memory < low || self.card_memory > high {
            return Err(("card_memory", format!("{} is outside {low} to {high}", self.card_memory)));
        }
        Ok(())
    }

    fn check_far(&self) -> Result<(), (&'static str, String)> {
        match &self.far {
            Some(far) => far.parse::<Address>().map(drop).map_err(|why| ("far", why)),
            None if self.stack == StackKind::Far => {
                Err(("far", "the stack \"far\" needs the address of its other side".into()))
            }
            None => Ok(()),
        }
    }

    /// [`Config::check`] for a configuration that flags have changed.
    pub fn checked(self) -> Result<Self, ConfigError> {
        self.check().map_err(|(key, message)| ConfigError::Value(format!("{key}: {message}")))?;
        Ok(self)
    }
}

fn in_range(key: &'static str, value: u64, low: u64, high: u64) -> Result<(), (&'static str, String)> {
    if (low..=high).contains(&value) { Ok(()) } else { Err((key, format!("{value} is outside {low} to {high}"))) }
}

fn time_in_range(
    key: &'static str,
    value: Duration,
    low: Duration,
    high: Duration,
) -> Result<(), (&'static str, String)> {
    if (low..=high).contains(&value) { Ok(()) } else { Err((key, format!("{value} is outside {low} to {high}"))) }
}

fn ring_size(key: &'static str, size: Bytes) -> Result<(), (&'static str, String)> {
    let (low, high) = (Bytes::from_kib(4), Bytes::from_kib(16 << 10));
    if size < low || size > high {
        return Err((key, format!("{size} is outside {low} to {high}")));
    }
    if !size.get().is_power_of_two() {
        let above = size.get().next_power_of_two();
        let (below, above) = (Bytes::new(above / 2), Bytes::new(above));
        return Err((key, format!("{size} is not a power of two; the nearest are {below} and {above}")));
    }
    Ok(())
}

/// The TOML reader's complaint in our words: the key, and for an unknown one the nearest known.
fn explain(text: &str, line: usize, message: &str) -> String {
    let written = text.lines().nth(line - 1).unwrap_or("");
    let key = written.split('=').next().unwrap_or("").trim();
    if message.starts_with("unknown field") {
        let key = message.split('`').nth(1).unwrap_or(key);
        return match nearest(key) {
            Some(known) => format!("unknown key {key:?}; did you mean {known:?}?"),
            None => format!("unknown key {key:?}; the keys are {}", KEYS.join(", ")),
        };
    }
    if written.contains('=') && KEYS.contains(&key) { format!("{key}: {message}") } else { message.to_owned() }
}

/// The line that sets `key`, or 1.
fn line_of(text: &str, key: &str) -> usize {
    let sets = |line: &str| line.split_once('=').is_some_and(|(left, _)| left.trim() == key);
    text.lines().position(sets).map_or(1, |at| at + 1)
}

/// The known key that `key` is most likely meant to be: at most a third of its letters wrong.
fn nearest(key: &str) -> Option<&'static str> {
    let (distance, known) = KEYS.iter().map(|known| (edits(key, known), *known)).min()?;
    (distance <= known.len().max(3) / 3).then_some(known)
}

/// Levenshtein distance in bytes.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("towpath.toml"), text).map_err(|e| e.to_string())
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parse("").unwrap(), Config::default());
        assert_eq!(Config::default().check(), Ok(()));
    }

    #[test]
    fn every_key_is_read() {
        let text = r#"
            stack = "fast"
            auto = true
            card_tap = "tap0"
            card_address = "10.0.0.2/24"
            card_gateway = "10.0.0.1"
            card_kernel = "/boot/vmlinuz-6.1"
            card_memory = "512MiB"
            far = "unix:/run/far.sock"
            trust_network = true
            standby = "tap0"
            socket = "/run/towpath/towpath.sock"
            interface = "eth1"
            vlan = 7
            cores = 2
            cpus = [2, 3]
            admit = ["uid:1000", "all"]
            policy = ["deny connect port 25", "limit program nginx rate 1gbit"]
            policy_default = "deny"
            clients_per_user = 8
            sockets_per_client = 1024
            send_buffer = "256KiB"
            receive_buffer = "1MiB"
            max_connections = 1000000
            spin = "50us"
            delayed_ack = "10ms"
            time_wait = "30s"
            congestion = "constant:10m"
            timestamps = false
            sack = false
            window_scaling = false
            ecn = 1
            syn_cookies = false
            mss_clamp = 1200
            direct = false
            idle_exit = "5min"
            netns = "blue"
            stacks = {}
        "#;
        let config = parse(text).unwrap();
        assert_eq!(config.cpus, [2, 3]);
        assert_eq!(config.admit, [Admit::Uid(1000), Admit::All]);
        assert_eq!(config.receive_buffer.get(), 1 << 20);
        assert_eq!(config.idle_exit, Some(Duration::from_secs(300)));
        assert_eq!((config.timestamps, config.sack, config.window_scaling, config.ecn), (false, false, false, 1));
        assert_eq!((config.syn_cookies, config.mss_clamp, config.direct), (false, 1200, false));
        // The list of keys for messages is the list of fields.
        for key in KEYS {
            assert!(line_of(text, key) > 1, "{key}");
        }
    }

    #[test]
    fn golden_errors() {
        let cases = [
            ("spin = 20\n", "towpath.toml:1: spin: 20 has no unit; write \"20us\", \"20ms\" or \"20s\""),
            ("cores = 1\nspin = \"20\"\n", "towpath.toml:2: spin: 20 has no unit; write \"20us\", \"20ms\" or \"20s\""),
            ("\n\nspinn = \"20us\"\n", "towpath.toml:3: unknown key \"spinn\"; did you mean \"spin\"?"),
            (
                "receive-buffer = \"1MiB\"\n",
                "towpath.toml:1: unknown key \"receive-buffer\"; did you mean \"receive_buffer\"?",
            ),
            ("vlan = 4095\n", "towpath.toml:1: vlan: 4095 is outside 0 to 4094"),
            ("cores = 17\n", "towpath.toml:1: cores: 17 is outside 1 to 16"),
            ("cores = 2\ncpus = [1]\n", "towpath.toml:2: cpus: 1 named for 2 cores; name one CPU per core, or none"),
            (
                "# rings\nsend_buffer = \"100KiB\"\n",
                "towpath.toml:2: send_buffer: 100KiB is not a power of two; the nearest are 64KiB and 128KiB",
            ),
            ("receive_buffer = \"1KiB\"\n", "towpath.toml:1: receive_buffer: 1KiB is outside 4KiB to 16MiB"),
            (
                "sockets_per_client = 1000\n",
                "towpath.toml:1: sockets_per_client: 1000 is not a power of two; write 1024",
            ),
            (
                "admit = [\"alice\"]\n",
                "towpath.toml:1: admit: \"alice\" names nobody; write \"user:alice\", \"group:alice\", \"uid:1000\" or \"all\"",
            ),
            (
                "congestion = \"vegas\"\n",
                "towpath.toml:1: congestion: \"vegas\" is not known; there are reno, cubic, dctcp, dctcp-rate, timely, bbr and \
                 constant:RATE",
            ),
            (
                "stack = \"uml\"\nauto = true\n",
                "towpath.toml:2: auto: the other kernel has a network of its own; nothing can go either way",
            ),
            ("ecn = 3\n", "towpath.toml:1: ecn: 3 is outside 0 to 2"),
            ("mss_clamp = 10\n", "towpath.toml:1: mss_clamp: 10 is outside 88 to 65495"),
            ("time_wait = \"1h\"\n", "towpath.toml:1: time_wait: 1h is outside 0us to 4min"),
        ];
        for (text, error) in cases {
            assert_eq!(parse(text).unwrap_err(), error, "for {text:?}");
        }
        let far = parse("colour = 1\n").unwrap_err();
        assert!(
            far.starts_with("towpath.toml:1: unknown key \"colour\"; the keys are stack, netns, stacks, auto, card_tap, card_address, card_gateway, card_kernel, card_memory, far, trust_network, standby, socket, interface"),
            "{far}"
        );
        let broken = parse("cores = \n").unwrap_err();
        assert!(broken.starts_with("towpath.toml:1: "), "{broken}");
    }

    #[test]
    fn the_documentation_has_every_key_with_its_default() {
        let page = include_str!("../../../docs/configuration.md");
        let mut defaults = String::new();
        for key in KEYS {
            let row = page.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
            let default = row.unwrap_or_else(|| panic!("no row for {key}")).split('|').nth(2).unwrap().trim();
            if let Some(value) = default.strip_prefix('`') {
                defaults += &format!("{key} = {}\n", value.trim_end_matches('`'));
            }
        }
        assert_eq!(parse(&defaults).unwrap(), Config::default());
        assert!(defaults.lines().count() >= 11, "{defaults}");
        // The example is one.
        let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        parse(example).unwrap();
    }

    #[test]
    fn other_stacks_have_tables_of_their_own() {
        let text = "admit = [\"all\"]\npolicy = [\"stack blue all\"]\n[stacks.blue]\nstack = \"kernel\"\nnetns = \"blue\"\n\
                    [stacks.red]\nadmit = [\"uid:7\"]\n";
        let config = parse(text).unwrap();
        let blue = config.of_stack("blue").unwrap();
        assert_eq!(
            (blue.stack, blue.netns.as_deref(), blue.admit),
            (StackKind::Kernel, Some("blue"), vec![Admit::All])
        );
        assert!(blue.policy.is_empty(), "the policy is the file's own");
        assert_eq!(config.of_stack("red").unwrap().admit, [Admit::Uid(7)]);
        let error = config.of_stack("green").unwrap_err().to_string();
        assert_eq!(error, "the configuration has no [stacks.green]");
        for (text, why) in [
            (
                "policy = [\"stack blue all\"]\n",
                "towpath.toml:1: policy: there is no stack \"blue\"; the configuration names none",
            ),
            ("[stacks.kernel]\n", "\"kernel\" is what `--stack` calls another"),
            ("[stacks.\"a b\"]\n", "\"a b\" is no name for a stack"),
            ("[stacks.a.stacks.b]\n", "a stack in a stack is none"),
            ("[stacks.a]\ncores = 0\n", "towpath.toml:2: cores: 0 is outside 1 to 16 (stacks.a)"),
            ("[stacks.a]\ncolour = 1\n", "unknown key \"colour\""),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Config::load(Path::new("/nonexistent/towpath.toml")).unwrap_err().to_string();
        assert_eq!(error, "/nonexistent/towpath.toml: No such file or directory (os error 2)");
    }
}
