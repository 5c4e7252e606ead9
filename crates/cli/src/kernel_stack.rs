//! `towpath kernel-stack`: a service of the kernel's own sockets, in the foreground.

use crate::{complain, daemon, exit};
use std::path::PathBuf;
use std::process::ExitCode;
use towpath_service::config::Config;
use towpath_service::config::stack_kind::{StackKind, stack_name};
use towpath_service::options::Options;
use towpath_service::paths;

/// The default send ring of a connection. A program that sends more than fits sleeps until a third is free. With 128
/// KiB the wake-ups cost more than the sends.
pub const SEND_BUFFER: &str = "1MiB";

/// Runs a service whose stack is this kernel's TCP, in this network namespace, until SIGTERM, SIGINT or `towpath stop`.
///
/// Programs use it through shared memory as they use Towpath's own stack. A send is a copy. This process has its own
/// core, and gives the kernel all waiting bytes in one call. The kernel's netfilter, tc, routes and congestion control
/// apply.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath kernel-stack                              for this network namespace
  towpath run --stack kernel -- redis-server        on it; starts one by itself if need be
  towpath status --stack kernel                     what it has carried
  sudo ip netns exec blue towpath kernel-stack --name blue
  towpath run --stack kernel=blue -- curl http://10.0.0.1/
                                                    a program here with the network of the namespace blue
  towpath kernel-stack --listen unix:/run/remote.sock  and, where the programs are,
  towpath kernel-stack --name remote --connect unix:/run/remote.sock
                                                    the same where no memory is shared: over a byte stream
  towpath kernel-stack --make-token FILE            a token for both sides of a stream over TCP, and then
  towpath kernel-stack --listen tcp:10.9.0.2:7000 --token FILE
                                                    encrypted, for services on other hosts that have the token

What it costs and what it does not have is in docs/guide/kernel-stack.md.")]
pub struct Arguments {
    /// Its name in `--stack kernel=NAME` [default: it is the one of its network namespace]
    #[arg(long, value_name = "NAME", value_parser = stack_name, conflicts_with = "socket")]
    name: Option<String>,
    /// In a kernel of its own, user-mode Linux, which is started for it (needs the package user-mode-linux; see
    /// --guest-tap)
    #[arg(long)]
    uml: bool,
    /// For services elsewhere, which connect to unix:PATH, tcp:HOST:PORT or rdma:HOST:PORT here (see --connect); no
    /// program is served directly
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["name", "uml", "qemu", "connect", "socket"])]
    listen: Option<String>,
    /// Make a token for --token in a new file, and end: a secret by which the two sides of a tcp address know each
    /// other. Copy it to both, readable by their user only
    #[arg(long, value_name = "FILE", exclusive = true)]
    make_token: Option<PathBuf>,
    /// With the sockets of the kernel of a `towpath kernel-stack --listen`
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["uml", "qemu"])]
    connect: Option<String>,
    /// In a kernel of its own, a guest of QEMU with the rings in a PCI device (needs the package qemu-system-x86 and a
    /// kernel)
    #[arg(long, conflicts_with = "uml")]
    qemu: bool,
    #[command(flatten)]
    options: Options,
}

/// Becomes the service.
pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { name, uml, qemu, listen, make_token, connect, mut options } = arguments;
    if let Some(file) = make_token {
        return daemon::exec(vec!["--make-token".into(), file.into()]);
    }
    if let Some(address) = listen {
        options.stack = Some(StackKind::Kernel);
        let listen = ["--listen".into(), address.into()];
        return daemon::exec(options.arguments().into_iter().chain(listen).collect());
    }
    options.remote = connect.or(options.remote);
    let kind = match &options.remote {
        _ if uml => StackKind::Uml,
        _ if qemu => StackKind::Qemu,
        Some(_) => StackKind::Remote,
        None => StackKind::Kernel,
    };
    options.stack = Some(kind);
    // A configuration file is the operator's choice, its defaults included.
    if kind == StackKind::Kernel && options.config.is_none() && options.send_buffer.is_none() {
        options.send_buffer = SEND_BUFFER.parse().ok();
    }
    let configured = || {
        let config = Config::load(options.config.as_deref()?).ok()?;
        name.clone().filter(|name| config.stacks.contains_key(name))
    };
    if let Some(name) = configured() {
        // The file has its kind, too. A guest's kind may differ from it.
        (options.stack, options.stack_name) = (Some(kind).filter(|kind| kind.is_guest()), Some(name));
    } else if name.is_some() {
        match paths::kernel_stack_socket(name.as_deref()) {
            Ok(socket) => options.socket = Some(socket),
            Err(error) => {
                complain(&error.to_string());
                return ExitCode::from(exit::NO_SERVICE);
            }
        }
    }
    daemon::exec(options.arguments())
}
