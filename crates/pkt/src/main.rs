//! `towpath-pkt`: runs scripts by hand.

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs packetdrill scripts against Towpath's TCP, in virtual time (an hour takes milliseconds).
#[derive(Parser)]
#[command(after_help = "\
A script is a list of events, one a line, each with its moment:

  0   socket(..., SOCK_STREAM, IPPROTO_TCP) = 3    a call of the application and what it returns
  +0  bind(3, ..., ...) = 0                        +T: T seconds after the event before
  +0  listen(3, 1) = 0
  +.1 < S 0:0(0) win 65535 <mss 1460>              < the peer sends this
  +0  > S. 0:0(0) ack 1 <mss 1460>                 > the stack must send this, now, and nothing else
  +.1 < . 1:1(0) ack 1 win 65535
  +0...0.2 accept(3, ..., ...) = 4                 a call that blocks: begins at +0, returns at +0.2
  +0  %{ assert tcpi_state == TCP_ESTABLISHED }%   the connection's state

Flags: S F R P . (ACK) U E (ECE) W (CWR), - for none. Numbers are relative to both ends' first; 'win' is the header field.
<...> = any options, none written = none. T~U: a range of time, *: any time. [ect0], [ce], [tos 0x10], [ttl 64] before the flags;
33001>8080 before them names another connection. Lines --tolerance_usecs=N, --mtu=N, --tcp_ts_tick_usecs=N,
--delayed_ack_usecs=N, --control_interval_usecs=N and `sysctl -q net.ipv4.NAME=VALUE` come first.

The scripts in tests/pkt are examples. Exit status: 0 all passed, 1 one failed, 2 one could not be run.")]
struct Arguments {
    /// Scripts
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print what happens, with its moment
    #[arg(short, long)]
    verbose: bool,
    /// By packetdrill's looser rules, as for Linux's own scripts
    #[arg(long)]
    linux: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut status = 0;
    for path in &arguments.files {
        let name = path.display();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("{name}: {error}");
                status = 2;
                continue;
            }
        };
        let report = if arguments.linux { towpath_pkt::run_linux(&text) } else { towpath_pkt::run(&text) };
        if arguments.verbose {
            report.trace.iter().for_each(|line| println!("  {line}"));
        }
        match report.result {
            Ok(()) => println!("{name}: passed"),
            Err(trouble) => {
                eprintln!("{name}: {trouble}");
                let failed = matches!(trouble, towpath_pkt::Trouble::Failed { .. });
                status = status.max(if failed { 1 } else { 2 });
            }
        }
    }
    ExitCode::from(status)
}
