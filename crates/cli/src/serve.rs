//! `towpath serve`: the service in the foreground.

use crate::daemon;
use std::process::ExitCode;
use towpath_service::options::Options;

/// Runs the service in the foreground until SIGTERM, SIGINT or `towpath stop`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath serve                                     for your own programs, inside this machine
  sudo towpath serve --interface eth1               on eth1, for root's programs
  sudo towpath serve --interface eth1 --interface eth2  on both, as the kernel's routes lead
  sudo towpath serve --interface 'eth*'             on all that match, now or later
  sudo towpath serve --interface default-route      on those of the default routes
  sudo towpath serve --interface eth1 --cores 2 --admit group:web
  towpath serve --config towpath.toml               with a configuration file

On an interface the kernel keeps everything that no Towpath program uses: ARP, ICMP, UDP, other ports. Towpath's own
outgoing connections use ports 49152-60999 there, which it adds to net.ipv4.ip_local_reserved_ports while it runs.")]
pub struct Arguments {
    #[command(flatten)]
    options: Options,
}

/// Becomes the service.
pub fn run(arguments: Arguments) -> ExitCode {
    daemon::exec(arguments.options.arguments())
}
