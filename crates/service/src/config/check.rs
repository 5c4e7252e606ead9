//! Checks of ranges and combinations, which no single type can make.

use super::stack_kind::{StackKind, stack_name};
use super::{Config, FirewallSetting, Selector};
use crate::policy::{Entry, Policy};
use crate::units::{Bytes, Duration};
use std::net::IpAddr;
use towpath_ring::command::MAX_STACKS;
use towpath_tcp::slow::congestion::Algorithm;

/// Most interfaces of one service. The steering program has as many places.
const MOST_INTERFACES: usize = 16;
/// How many of them are for what patterns choose, if there is one.
pub const PATTERN_PLACES: usize = 8;
/// Names that `--stack` understands without a configuration.
const RESERVED: [&str; 3] = ["fast", "kernel", "home"];

impl Config {
    /// Checks ranges and combinations. On error: the key and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.stack != StackKind::Fast && !self.interface.is_empty() {
            return Err(("interface", "the kernel stack serves its whole network namespace; name none".into()));
        }
        if self.auto && !matches!(self.stack, StackKind::Fast | StackKind::Kernel) {
            return Err(("auto", "the other kernel has a network of its own; nothing can go either way".into()));
        }
        self.check_interfaces()?;
        self.check_firewall().map_err(|why| ("firewall", why.into()))?;
        self.check_guest()?;
        self.check_stacks()?;
        self.check_remote()?;
        self.cores.check().map_err(|why| ("cores", why))?;
        if self.cores.is_chosen() && !matches!(self.stack, StackKind::Fast | StackKind::Kernel) {
            return Err((
                "cores",
                "the cores of the other kernel are not the service's to choose; write a number".into(),
            ));
        }
        let (cpus, cores) = (self.cpus.len(), self.cores.most(0, self.cpus.len()));
        if !self.cpus.is_empty() && cpus != cores {
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
        self.check_growth("send_buffer_max", self.send_buffer_max, self.send_buffer)?;
        self.check_growth("receive_buffer_max", self.receive_buffer_max, self.receive_buffer)?;
        self.check_idle_memory()?;
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

    fn check_growth(&self, key: &'static str, most: Option<Bytes>, first: Bytes) -> Result<(), (&'static str, String)> {
        let Some(most) = most else { return Ok(()) };
        ring_size(key, most)?;
        if most.get() < first.get() {
            return Err((key, format!("{most} is less than the ring has at first, {first}")));
        }
        if self.stack != StackKind::Fast && most != first {
            return Err((
                key,
                "only the fast stack's rings grow; leave it out, or write the size that they have".into(),
            ));
        }
        Ok(())
    }

    fn check_idle_memory(&self) -> Result<(), (&'static str, String)> {
        let (key, time) = ("idle_memory", self.idle_memory);
        if time == Duration::from_micros(0) {
            return Ok(());
        }
        if self.stack != StackKind::Fast && time != Self::default().idle_memory {
            return Err((key, "only the fast stack's connections give memory back; leave it out".into()));
        }
        time_in_range(key, time, Duration::from_micros(100_000), Duration::from_secs(3600))
    }

    fn check_interfaces(&self) -> Result<(), (&'static str, String)> {
        let names = &self.interface;
        if names.len() > MOST_INTERFACES {
            return Err(("interface", format!("{} are too many; {MOST_INTERFACES} is the most", names.len())));
        }
        if let Some(name) = names.iter().enumerate().find_map(|(at, name)| names[..at].contains(name).then_some(name)) {
            let why = format!("{name:?} is named twice; for several of its VLANs name the kernel's device of each");
            return Err(("interface", why));
        }
        let patterns = names.iter().filter(|name| Selector::is_open(name)).count();
        for name in names {
            Selector::parse(name).map_err(|why| ("interface", why))?;
        }
        if patterns > 0 && self.vlan.tags() {
            return Err(("vlan", "interfaces that a pattern chooses have no VLAN each; name the interfaces".into()));
        }
        if patterns > PATTERN_PLACES {
            let why = format!("{patterns} patterns are too many; {PATTERN_PLACES} is the most, with a place each");
            return Err(("interface", why));
        }
        if patterns > 0 && names.len() - patterns + PATTERN_PLACES > MOST_INTERFACES {
            let most = MOST_INTERFACES - PATTERN_PLACES;
            return Err((
                "interface",
                format!(
                    "a pattern has {PATTERN_PLACES} of the {MOST_INTERFACES} places; name {most} at most beside it"
                ),
            ));
        }
        self.vlan.check(names.len()).map_err(|why| ("vlan", why))?;
        if self.vlan.tags() && self.port == super::PortSetting::Packet {
            return Err((
                "port",
                "packet sockets serve no VLAN; use \"xdp\", or serve the kernel's device of the VLAN".into(),
            ));
        }
        Ok(())
    }

    fn check_firewall(&self) -> Result<(), &'static str> {
        if self.firewall == FirewallSetting::Respect {
            return Ok(());
        }
        if self.stack != StackKind::Fast {
            return Err("\"own\" is the fast stack's: a kernel's connections pass its firewall; leave it out");
        }
        if self.interface.is_empty() {
            return Err("\"own\" without an interface does nothing; name one with `interface`, or leave it out");
        }
        if self.vlan.tags() {
            return Err(
                "\"own\" serves no VLAN by its tag; serve the kernel's device of the VLAN, or write \"respect\"",
            );
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
        // Rules about joins are checked with all tables.
        let rules = self.policy.iter().filter(|entry| !matches!(entry, Entry::Join(_))).cloned().collect();
        let policy = Policy::with_stacks(rules, self.policy_default, names);
        policy.map(drop).map_err(|why| ("policy", why))
    }

    fn check_guest(&self) -> Result<(), (&'static str, String)> {
        let words = [
            ("guest_tap", &self.guest_tap),
            ("guest_address", &self.guest_address),
            ("guest_gateway", &self.guest_gateway),
            ("standby", &self.standby),
        ];
        for (key, word) in words.iter().filter_map(|(key, word)| Some((*key, word.as_ref()?))) {
            if word.is_empty() || !word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:/@".contains(c)) {
                return Err((key, format!("{word:?} is none")));
            }
        }
        if self.standby.is_some() && self.guest_address.is_none() {
            return Err(("standby", "there is no guest_address that could move; name one".into()));
        }
        let is_network = |text: &str| {
            text.split_once('/').is_some_and(|(address, bits)| {
                let most = address.parse::<IpAddr>().map_or(0, |ip| if ip.is_ipv4() { 32 } else { 128 });
                most > 0 && bits.parse().is_ok_and(|bits: u32| (1..=most).contains(&bits))
            })
        };
        if let Some(address) = &self.guest_address {
            if !is_network(address) {
                return Err((
                    "guest_address",
                    format!("{address:?} is no address with its prefix length; write one such as \"10.0.0.2/24\""),
                ));
            }
            if self.guest_tap.is_none() {
                let why = "the guest has no network device that could have it; name its TAP device with guest_tap \
                           (`ip tuntap add tap0 mode tap` makes one)";
                return Err(("guest_address", why.into()));
            }
        }
        if let Some(gateway) = &self.guest_gateway {
            if gateway.parse::<IpAddr>().is_err() {
                return Err(("guest_gateway", format!("{gateway:?} is no address; write one such as \"10.0.0.1\"")));
            }
            if self.guest_address.is_none() {
                let why = "a router is of no use without an address; name one with guest_address";
                return Err(("guest_gateway", why.into()));
            }
        }
        // A guest of QEMU unpacks this binary and its libraries in its memory.
        let least_mib = if self.stack == StackKind::Qemu { 128 } else { 64 };
        let (low, high) = (Bytes::from_kib(least_mib << 10), Bytes::from_kib(16 << 20));
        if self.guest_memory < low || self.guest_memory > high {
            return Err(("guest_memory", format!("{} is outside {low} to {high}", self.guest_memory)));
        }
        Ok(())
    }

    fn check_remote(&self) -> Result<(), (&'static str, String)> {
        if self.remote.is_none() && self.stack == StackKind::Remote {
            return Err(("remote", "the stack \"remote\" needs the address of its other side".into()));
        }
        if self.token.is_some() && self.trust_network {
            let why = "a token is there so that the network need not be trusted; leave one of the two out";
            return Err(("trust_network", why.into()));
        }
        Ok(())
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
