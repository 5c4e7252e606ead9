//! Echo and streaming over plain epoll sockets: the same binary runs over Linux's TCP and over Towpath's.

use clap::{Parser, Subcommand};
use std::net::SocketAddrV4;
use towpath_rpc::{bulk, client, files, flood, many, print, sends, server, short, turns, values, work};

/// Load generator for side-by-side benchmarks.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Echo server: sends back the bytes that it receives. Prints `ready` when it listens.
    Server(server::Options),
    /// Echo client: keeps `depth` requests of `bytes` outstanding on each connection; prints one JSON object.
    Client(client::Options),
    /// Echo client with a connection for each request; prints one JSON object.
    Short(short::Options),
    /// Opens very many connections, which take turns with requests. Prints `ready`; each line of standard input begins a
    /// window, whose report is one JSON object.
    Turns(turns::Options),
    /// Sends SYNs of forged sources out of an interface (root), until the time is up; prints one JSON object: how many.
    Flood(flood::Options),
    /// Takes one connection's bytes and prints one JSON object: how fast they came. Prints `ready` when it listens.
    Sink(bulk::Options),
    /// Sends as fast as it can until the other end has had enough.
    Source {
        /// Address of the sink.
        sink: SocketAddrV4,
    },
    /// Sends of one size on one connection; prints one JSON object: how fast they arrived and the cost of one.
    Sends(sends::Options),
    /// Sends a file by `sendfile`, again and again, on one connection; prints one JSON object: how fast it arrived and
    /// what that cost.
    SendFile(files::Options),
    /// Takes connections one after the other and drops their bytes. Prints `ready` when it listens.
    Drain {
        /// Address to listen on.
        listen: SocketAddrV4,
    },
    /// Takes requests in one direction and works for each. Prints `ready` when it listens.
    Worker(work::Options),
    /// Changes values of one size and sends them back, by event loops or by pollers and workers. Prints `ready` when it
    /// listens.
    ValuesServer(values::server::Options),
    /// Sends values in steps of load, closed or open loop; prints one JSON object.
    ValuesClient(values::client::Options),
    /// Many connections that send blocks when asked, until the other end has gone.
    Senders(many::Senders),
    /// Asks many connections to send without end and prints one JSON object: the bytes of each in each window.
    Share(many::Share),
    /// Asks many connections for a block at once, again and again, and prints one JSON object: how long that took.
    Incast(many::Incast),
}

fn main() {
    let result = match Arguments::parse().role {
        Role::Server(options) => server::run(&options),
        Role::Client(options) => client::run(&options).map(|report| print(&report)),
        Role::Short(options) => short::run(&options).map(|report| print(&report)),
        Role::Turns(options) => turns::run(&options),
        Role::Flood(options) => flood::run(&options).map(|report| print(&report)),
        Role::Sink(options) => bulk::sink(&options).map(|report| print(&report)),
        Role::Source { sink } => bulk::source(sink),
        Role::Sends(options) => sends::send(&options).map(|report| print(&report)),
        Role::SendFile(options) => files::send(&options).map(|report| print(&report)),
        Role::Drain { listen } => sends::drain(listen),
        Role::Worker(options) => work::serve(&options),
        Role::ValuesServer(options) => values::server::run(&options),
        Role::ValuesClient(options) => values::client::run(&options).map(|report| print(&report)),
        Role::Senders(options) => many::senders(&options),
        Role::Share(options) => many::share(&options).map(|report| print(&report)),
        Role::Incast(options) => many::incast(&options).map(|report| print(&report)),
    };
    if let Err(error) = result {
        eprintln!("towpath-rpc: {error}");
        std::process::exit(1);
    }
}
