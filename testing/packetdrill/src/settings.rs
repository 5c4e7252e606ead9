//! The settings of a script: `--name=value` lines and sysctls before its first event.

use crate::frame::{LOCAL, LOCAL_MAC};
use crate::script::{Action, Script, ScriptError};
use std::net::IpAddr;
use towpath_sim::NodeConfig;
use towpath_tcp::slow::congestion::Algorithm;

/// The settings of a run.
#[derive(Clone)]
pub struct Settings {
    /// The host.
    pub node: NodeConfig,
    /// MTU of the path in bytes.
    pub mtu: u16,
    /// Tolerance of the time of segments and returns in µs.
    pub tolerance_us: u64,
    /// Tick of our timestamps in µs, to check that they advance; 0 = they are not checked.
    pub tick_us: u32,
    /// Rules of Linux's own scripts. Several segments may make up one of the script's (TSO), PSH is ignored, and
    /// segments after the last event are allowed.
    pub linux: bool,
}

/// Settings of Linux's offloads, queues and caches, which have no counterpart here.
const NOT_OURS: &[&str] = &[
    "tcp_min_tso_segs",
    "tcp_tso_win_divisor",
    "tcp_notsent_lowat",
    "tcp_autocorking",
    "tcp_moderate_rcvbuf",
    "tcp_no_metrics_save",
    "tcp_fack",
    "tcp_early_retrans",
    "tcp_frto",
];

impl Default for Settings {
    fn default() -> Self {
        let mut node = NodeConfig::numbered(1, 1);
        (node.address, node.mac) = (IpAddr::from(LOCAL), LOCAL_MAC);
        // A short interval, so that time-outs come at the exact times of the RFCs.
        node.slow.control_interval_us = 1000;
        Self { node, mtu: 1500, tolerance_us: 4000, tick_us: 0, linux: false }
    }
}

impl Settings {
    /// The settings of a script. Commands after the first other event are refused.
    pub fn of(script: &Script, linux: bool) -> Result<Self, ScriptError> {
        let mut settings = Self { linux, ..Self::default() };
        for (line, name, value) in &script.options {
            settings.option(*line, name, value)?;
        }
        let is_command = |action: &Action| matches!(action, Action::Command(_));
        let first = script.events.iter().position(|e| !is_command(&e.action)).unwrap_or(script.events.len());
        for (i, event) in script.events.iter().enumerate() {
            if let Action::Command(text) = &event.action {
                settings.commands(event.line, text, i < first)?;
            }
        }
        Ok(settings)
    }

    fn option(&mut self, line: usize, name: &str, value: &str) -> Result<(), ScriptError> {
        let number = || value.parse::<u64>().map_err(|_| unsupported(line, format!("--{name}={value}")));
        match name {
            "tolerance_usecs" => self.tolerance_us = number()?,
            "tcp_ts_tick_usecs" => self.tick_us = number()? as u32,
            "mtu" => self.mtu = number()?.clamp(68, 9000) as u16,
            "delayed_ack_usecs" => self.node.fast.delayed_ack_us = number()?,
            "control_interval_usecs" => self.node.slow.control_interval_us = number()? as u32,
            "ip_version" if value == "ipv4" => {}
            _ => return Err(unsupported(line, format!("--{name}={value}"))),
        }
        Ok(())
    }

    /// Processes shell commands: sysctls of the stack, and the kernel's wrappers for them.
    fn commands(&mut self, line: usize, text: &str, before: bool) -> Result<(), ScriptError> {
        let joined = text.replace("\\\n", " ");
        for command in joined.split(['\n', ';']).map(str::trim).filter(|command| !command.is_empty()) {
            let words = words(command);
            let program = words[0].rsplit('/').next().unwrap_or("");
            match program {
                "true" | "sync" => {}
                _ if program.starts_with("sysctl_restore") => {}
                _ if !before => return Err(unsupported(line, format!("`{command}` in the course of a script"))),
                "defaults.sh" => self.defaults(),
                "sysctl" | "set_sysctls.py" => {
                    for word in words[1..].iter().filter(|word| !word.starts_with('-')) {
                        self.sysctl(line, word)?;
                    }
                }
                _ => return Err(unsupported(line, format!("`{command}`"))),
            }
        }
        Ok(())
    }

    /// The settings of the kernel's `defaults.sh`: large rings and short time-outs.
    fn defaults(&mut self) {
        self.node.rings = (4 << 20, 8 << 20);
        (self.node.slow.syn_retries, self.node.slow.synack_retries) = (5, 5);
        self.node.slow.timestamps = true;
    }

    fn sysctl(&mut self, line: usize, setting: &str) -> Result<(), ScriptError> {
        let wrong = || unsupported(line, format!("sysctl {setting}"));
        let (key, value) = setting.split_once('=').ok_or_else(wrong)?;
        let name = key.rsplit(['/', '.']).next().unwrap_or("");
        let last = value.split_whitespace().last().unwrap_or("");
        let number = last.parse::<u32>().map_err(|_| wrong());
        let small = || number.clone().and_then(|n| u8::try_from(n).map_err(|_| wrong()));
        let (slow, fast) = (&mut self.node.slow, &mut self.node.fast);
        match name {
            "tcp_timestamps" => slow.timestamps = number? != 0,
            "tcp_syn_retries" => slow.syn_retries = small()?,
            "tcp_synack_retries" => slow.synack_retries = small()?,
            "tcp_retries2" => slow.retries = small()?,
            "tcp_orphan_retries" => slow.orphan_retries = small()?,
            "tcp_fin_timeout" => slow.fin_wait_s = number?,
            "tcp_max_tw_buckets" => slow.time_wait_max = number? as usize,
            "tcp_challenge_ack_limit" => {
                (slow.replies_per_s, fast.challenge_acks_per_s) = (number.clone()?, number?);
            }
            "tcp_invalid_ratelimit" => {
                (slow.challenge_interval_ms, fast.challenge_interval_ms) = (number.clone()?, number?);
            }
            "tcp_retries1" => slow.route_retries = small()?,
            "tcp_ecn" => slow.ecn = small()?,
            "tcp_syncookies" => slow.syn_cookies = number? != 0,
            "tcp_sack" => slow.sack = number? != 0,
            "tcp_congestion_control" => slow.congestion = Algorithm::parse(last).ok_or_else(wrong)?,
            "somaxconn" => slow.somaxconn = number?,
            "tcp_rmem" => self.node.rings.1 = power_of_two(number?),
            "tcp_wmem" => self.node.rings.0 = power_of_two(number?),
            // This is always on.
            "tcp_slow_start_after_idle" if number == Ok(1) => {}
            _ if NOT_OURS.contains(&name) => {}
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

/// The largest ring that fits in the buffer.
fn power_of_two(bytes: u32) -> u32 {
    1 << bytes.max(1024).ilog2()
}

fn unsupported(line: usize, what: String) -> ScriptError {
    ScriptError::Unsupported { line, what }
}

/// The words of a command, with quoted ones joined.
fn words(command: &str) -> Vec<String> {
    let (mut list, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in command.chars() {
        match c {
            '"' | '\'' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => {
                if !word.is_empty() {
                    list.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() || list.is_empty() {
        list.push(word);
    }
    list
}
