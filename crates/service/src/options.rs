//! The service's command-line flags, for `towpathd` and `towpath serve`. A flag overrides the configuration file.

use crate::admission::Admit;
use crate::config::{Config, ConfigError, CoresSetting, FirewallSetting, SandboxSetting, StackKind};
use crate::default_socket::default_socket;
use crate::paths;
use crate::units::{Bytes, Duration};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Flags of the service.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Options {
    /// Configuration file (TOML); flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Be the stack of this name in the configuration file ([stacks.NAME])
    #[arg(long, value_name = "NAME", requires = "config")]
    pub stack_name: Option<String>,
    /// Network namespace to serve, a name (`ip netns`) or a path (root)
    #[arg(long, value_name = "NAME|PATH")]
    pub netns: Option<String>,
    /// The stack that serves [default: fast]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub stack: Option<StackKind>,
    /// Measure connections both ways, and leave to the kernel those that do not gain?
    #[arg(long, value_name = "BOOL")]
    pub auto: Option<bool>,
    /// TAP device that is the network of --stack uml or qemu
    #[arg(long, value_name = "TAP")]
    pub guest_tap: Option<String>,
    /// Address of --stack uml or qemu on it, e.g. 10.0.0.2/24
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub guest_address: Option<String>,
    /// Router of --stack uml or qemu
    #[arg(long, value_name = "ADDRESS")]
    pub guest_gateway: Option<String>,
    /// Kernel of --stack qemu: boot/vmlinuz-RELEASE [default: one of this host's]
    #[arg(long, value_name = "FILE")]
    pub guest_kernel: Option<PathBuf>,
    /// Address of --stack remote: unix:PATH, tcp:HOST:PORT or rdma:HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub remote: Option<String>,
    /// Authenticate and encrypt tcp with this token, of which both sides have a copy (see `towpath kernel-stack
    /// --make-token`)
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
    /// Carry tcp without a token, and rdma, in the clear: nothing is authenticated. A host that reaches the port is believed
    /// to be any user, root too; one on the way reads and changes all bytes. For closed networks only
    #[arg(long)]
    pub trust_network: bool,
    /// --stack uml or qemu stands by: this kernel serves, with the guest's address on this device, until `towpath move`
    #[arg(long, value_name = "DEVICE")]
    pub standby: Option<String>,
    /// Registration socket [default: /run/towpath/towpath.sock for root with --interface, else
    /// $XDG_RUNTIME_DIR/towpath/towpath.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Serve this network interface (root; may be repeated), those of a pattern ('eth*'), or those of the default routes
    /// (default-route); without it only connections within this machine
    #[arg(long, value_name = "IF")]
    pub interface: Vec<String>,
    /// Who judges the first SYNs of connections over the interface: respect, the kernel's firewall and the policy, or own,
    /// the policy alone
    #[arg(long, value_enum, value_name = "WHICH")]
    pub firewall: Option<FirewallSetting>,
    /// CPU cores that the stack may use: 2, 1-4 (as many as pay off) or auto
    #[arg(long, value_name = "N")]
    pub cores: Option<CoresSetting>,
    /// CPUs to pin the stack's threads to, e.g. 2,3
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    pub cpus: Option<Vec<usize>>,
    /// Admit others: user:NAME, group:NAME, uid:N or all (may be repeated)
    #[arg(long, value_name = "WHO")]
    pub admit: Vec<Admit>,
    /// Send ring of each connection at first, e.g. 256KiB
    #[arg(long, value_name = "SIZE")]
    pub send_buffer: Option<Bytes>,
    /// Receive ring of each connection at first, e.g. 256KiB
    #[arg(long, value_name = "SIZE")]
    pub receive_buffer: Option<Bytes>,
    /// How long a thread looks for work before it sleeps, e.g. 20us
    #[arg(long, value_name = "TIME")]
    pub spin: Option<Duration>,
    /// Join connections between programs of this host without the stack?
    #[arg(long, value_name = "BOOL")]
    pub direct: Option<bool>,
    /// Does the process that serves give up all that it does not need? Off only to find an error
    #[arg(long, value_enum, value_name = "WHICH")]
    pub sandbox: Option<SandboxSetting>,
    /// End after this time without a client, e.g. 30s
    #[arg(long, value_name = "TIME")]
    pub idle_exit: Option<Duration>,
}

impl Options {
    /// The configuration of the file, or the default one, overridden by the flags.
    pub fn configuration(&self) -> Result<Config, ConfigError> {
        self.over(match &self.config {
            Some(file) => Config::load(file)?,
            None => Config::default(),
        })
    }

    /// [`Options::configuration`], with this text as that of the file.
    pub fn configuration_of(&self, text: &str) -> Result<Config, ConfigError> {
        self.over(match &self.config {
            Some(file) => Config::of_text(file, text)?,
            None => Config::default(),
        })
    }

    fn over(&self, mut config: Config) -> Result<Config, ConfigError> {
        let this = self.clone();
        if let Some(name) = &this.stack_name {
            let home = match &config.socket {
                Some(socket) => socket.clone(),
                None => default_socket(&config).map_err(|why| ConfigError::Value(why.to_string()))?,
            };
            config = config.of_stack(name)?;
            config.socket.get_or_insert_with(|| paths::stack_socket(&home, name));
        }
        config.netns = this.netns.or(config.netns);
        config.stack = this.stack.unwrap_or(config.stack);
        config.auto = this.auto.unwrap_or(config.auto);
        config.guest_tap = this.guest_tap.or(config.guest_tap);
        config.guest_address = this.guest_address.or(config.guest_address);
        config.guest_gateway = this.guest_gateway.or(config.guest_gateway);
        config.guest_kernel = this.guest_kernel.or(config.guest_kernel);
        config.remote = this.remote.or(config.remote);
        config.token = this.token.or(config.token);
        config.trust_network |= this.trust_network;
        config.standby = this.standby.or(config.standby);
        config.socket = this.socket.or(config.socket);
        if !this.interface.is_empty() {
            config.interface = this.interface;
        }
        config.firewall = this.firewall.unwrap_or(config.firewall);
        config.cores = this.cores.unwrap_or(config.cores);
        config.cpus = this.cpus.unwrap_or(config.cpus);
        config.admit.extend(this.admit);
        config.send_buffer = this.send_buffer.unwrap_or(config.send_buffer);
        config.receive_buffer = this.receive_buffer.unwrap_or(config.receive_buffer);
        config.spin = this.spin.unwrap_or(config.spin);
        config.direct = this.direct.unwrap_or(config.direct);
        config.sandbox = this.sandbox.unwrap_or(config.sandbox);
        config.idle_exit = this.idle_exit.or(config.idle_exit);
        config.checked()
    }

    /// The command line that gives these options to `towpathd`.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut line = Line::default();
        line.path("--config", self.config.as_deref());
        line.text("--stack-name", self.stack_name.as_ref());
        line.text("--netns", self.netns.as_ref());
        line.text("--stack", self.stack.map(StackKind::name));
        line.text("--auto", self.auto);
        line.text("--guest-tap", self.guest_tap.as_ref());
        line.text("--guest-address", self.guest_address.as_ref());
        line.text("--guest-gateway", self.guest_gateway.as_ref());
        line.path("--guest-kernel", self.guest_kernel.as_deref());
        line.text("--remote", self.remote.as_ref());
        line.path("--token", self.token.as_deref());
        if self.trust_network {
            line.0.push("--trust-network".into());
        }
        line.text("--standby", self.standby.as_ref());
        line.path("--socket", self.socket.as_deref());
        self.interface.iter().for_each(|interface| line.text("--interface", Some(interface)));
        line.text("--firewall", self.firewall);
        line.text("--cores", self.cores);
        let cpus = self.cpus.as_ref().map(|cpus| cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(","));
        line.text("--cpus", cpus);
        self.admit.iter().for_each(|admit| line.text("--admit", Some(admit)));
        line.text("--send-buffer", self.send_buffer);
        line.text("--receive-buffer", self.receive_buffer);
        line.text("--spin", self.spin);
        line.text("--direct", self.direct);
        line.text("--sandbox", self.sandbox);
        line.text("--idle-exit", self.idle_exit);
        line.0
    }
}

/// A command line under construction.
#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn text(&mut self, flag: &str, value: Option<impl ToString>) {
        // One word for both, so that no value is taken for a flag.
        self.0.extend(value.map(|value| format!("{flag}={}", value.to_string()).into()));
    }
    fn path(&mut self, flag: &str, value: Option<&Path>) {
        let Some(value) = value else { return };
        let mut word = OsString::from(format!("{flag}="));
        word.push(value);
        self.0.push(word);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn options_become_the_command_line_that_they_came_from() {
        let given = "--config=a b.toml|--stack-name=red|--netns=blue|--stack=qemu|--auto=true|--guest-tap=tap0|\
            --guest-address=10.0.0.2/24|--guest-gateway=10.0.0.1|--guest-kernel=/boot/vmlinuz|--remote=unix:/run/remote.sock|\
            --token=/etc/a token|--trust-network|--standby=tap0|--socket=/run/a.sock|--interface=eth1|--interface=eth2|--firewall=own|--cores=1-4|--cpus=2,3|--admit=uid:7|\
            --admit=group:web|--send-buffer=256KiB|--receive-buffer=1MiB|--spin=20us|--direct=false|--sandbox=off|--idle-exit=30s";
        let given: Vec<&str> = given.split('|').collect();
        let options = Arguments::try_parse_from([&["towpathd"], &given[..]].concat()).unwrap().options;
        assert_eq!(options.arguments(), given);
        assert!(Options::default().arguments().is_empty());
        let flags = <Arguments as clap::CommandFactory>::command();
        let flags = flags.get_arguments().filter(|argument| argument.get_long() != Some("help")).count();
        assert_eq!(given.len() - 2, flags, "every flag, two of them twice");
    }
}
