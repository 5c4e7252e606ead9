//! The `towpath-packetdrill` command, which runs scripts.
#![forbid(unsafe_code)]

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs packetdrill scripts against Towpath's TCP, in virtual time (an hour takes milliseconds).
#[derive(Parser)]
#[command(after_help = "\
A script is a list of events, one per line, each with its time:

  0   socket(..., SOCK_STREAM, IPPROTO_TCP) = 3    a call of the application and its result
  +0  bind(3, ..., ...) = 0                        +T: T seconds after the previous event
  +0  listen(3, 1) = 0
  +.1 < S 0:0(0) win 65535 <mss 1460>              < a segment from the peer
  +0  > S. 0:0(0) ack 1 <mss 1460>                 > a segment that the stack must send now, and no other
  +.1 < . 1:1(0) ack 1 win 65535
  +0...0.2 accept(3, ..., ...) = 4                 a call that blocks: begins at +0, returns at +0.2
  +0  %{ assert tcpi_state == TCP_ESTABLISHED }%   the connection's state

Flags: S F R P . (ACK) U E (ECE) W (CWR), - for none. Numbers are relative to each end's first. 'win' is the header field.
<...> = any options; nothing = no options. T~U: a range of time; *: any time. [ect0], [ce], [tos 0x10] or [ttl 64] may precede the
flags, and 33001>8080 names another connection. Lines --tolerance_usecs=N, --mtu=N, --tcp_ts_tick_usecs=N,
--delayed_ack_usecs=N, --control_interval_usecs=N and `sysctl -q net.ipv4.NAME=VALUE` come first.

The scripts in testing/packetdrill/scripts are examples. Exit status: 0 all passed, 1 one failed, 2 one could not be run.")]
struct Arguments {
    /// Scripts
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print all events, with their times
    #[arg(short, long)]
    verbose: bool,
    /// Apply packetdrill's looser rules, for Linux's own scripts
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
        let report =
            if arguments.linux { towpath_packetdrill::run_linux(&text) } else { towpath_packetdrill::run(&text) };
        if arguments.verbose {
            report.trace.iter().for_each(|line| println!("  {line}"));
        }
        match report.result {
            Ok(()) => println!("{name}: passed"),
            Err(error) => {
                eprintln!("{name}: {error}");
                let failed = matches!(error, towpath_packetdrill::ScriptError::Failed { .. });
                status = status.max(if failed { 1 } else { 2 });
            }
        }
    }
    ExitCode::from(status)
}
