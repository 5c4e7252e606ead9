//! The service's command-line flags, for `towpathd` and `towpath serve`. A flag overrides the configuration file.

use crate::admission::Admit;
use crate::choice::StackKind;
use crate::config::{Config, ConfigError};
use crate::cores::Cores;
use crate::daemon::default_socket;
use crate::paths;
use crate::units::{Bytes, Duration};
use std::path::PathBuf;
use towpath_card::mirror::address::Address;

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
    /// Measure connections both ways, and leave to the kernel what does not gain?
    #[arg(long, value_name = "BOOL")]
    pub auto: Option<bool>,
    /// TAP device that is the network of --stack uml or qemu
    #[arg(long, alias = "uml-tap", value_name = "TAP")]
    pub card_tap: Option<String>,
    /// Address of --stack uml or qemu on it, e.g. 10.0.0.2/24
    #[arg(long, alias = "uml-address", value_name = "ADDRESS/BITS")]
    pub card_address: Option<String>,
    /// Router of --stack uml or qemu
    #[arg(long, alias = "uml-gateway", value_name = "ADDRESS")]
    pub card_gateway: Option<String>,
    /// Kernel of --stack qemu: boot/vmlinuz-RELEASE [default: one of this host's]
    #[arg(long, value_name = "FILE")]
    pub card_kernel: Option<PathBuf>,
    /// Where the other side of --stack far listens: unix:PATH, tcp:HOST:PORT or rdma:HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub far: Option<Address>,
    /// The network to it keeps everything secret and safe, and others out
    #[arg(long)]
    pub trust_network: bool,
    /// --stack uml stands by: this kernel serves, and has its address on this device, until `towpath move`
    #[arg(long, value_name = "DEVICE")]
    pub standby: Option<String>,
    /// Registration socket [default: /run/towpath/towpath.sock for root with --interface, else
    /// $XDG_RUNTIME_DIR/towpath/towpath.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Serve this network interface (root); without it only connections inside this machine
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
    /// Fast-path cores: 2, 1-4 (as many as pay off) or auto
    #[arg(long, value_name = "N")]
    pub cores: Option<Cores>,
    /// CPUs to pin the cores to, e.g. 2,3
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    pub cpus: Option<Vec<usize>>,
    /// Admit others: user:NAME, group:NAME, uid:N or all (may be repeated)
    #[arg(long, value_name = "WHO")]
    pub admit: Vec<Admit>,
    /// Send ring of each connection, e.g. 256KiB
    #[arg(long, value_name = "SIZE")]
    pub send_buffer: Option<Bytes>,
    /// Receive ring of each connection, e.g. 256KiB
    #[arg(long, value_name = "SIZE")]
    pub receive_buffer: Option<Bytes>,
    /// How long a core looks for work before it sleeps, e.g. 20us
    #[arg(long, value_name = "TIME")]
    pub spin: Option<Duration>,
    /// Join connections between programs of this host without the stack?
    #[arg(long, value_name = "BOOL")]
    pub direct: Option<bool>,
    /// End after so long without a client, e.g. 30s
    #[arg(long, value_name = "TIME")]
    pub idle_exit: Option<Duration>,
}

impl Options {
    /// The file, or the defaults, overridden by the flags.
    pub fn configuration(&self) -> Result<Config, ConfigError> {
        let mut config = match &self.config {
            Some(file) => Config::load(file)?,
            None => Config::default(),
        };
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
        config.card_tap = this.card_tap.or(config.card_tap);
        config.card_address = this.card_address.or(config.card_address);
        config.card_gateway = this.card_gateway.or(config.card_gateway);
        config.card_kernel = this.card_kernel.or(config.card_kernel);
        config.far = this.far.map(|far| far.to_string()).or(config.far);
        config.trust_network |= this.trust_network;
        config.standby = this.standby.or(config.standby);
        config.socket = this.socket.or(config.socket);
        config.interface = this.interface.or(config.interface);
        config.cores = this.cores.unwrap_or(config.cores);
        config.cpus = this.cpus.unwrap_or(config.cpus);
        config.admit.extend(this.admit);
        config.send_buffer = this.send_buffer.unwrap_or(config.send_buffer);
        config.receive_buffer = this.receive_buffer.unwrap_or(config.receive_buffer);
        config.spin = this.spin.unwrap_or(config.spin);
        config.direct = this.direct.unwrap_or(config.direct);
        config.idle_exit = this.idle_exit.or(config.idle_exit);
        config.checked()
    }
}
