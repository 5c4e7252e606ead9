//! The echo server and its client once more, by the native API instead of sockets: over Towpath only.

use clap::{Parser, Subcommand};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};
use towpath_native::{Connection, Event, Listener, Readiness, Stack};
use towpath_rpc::client::{Options, Report, Tally};

const LISTENER: u64 = u64::MAX;
const LIMIT: Duration = Duration::from_secs(10);

/// `None` instead of the error that there is nothing to do now.
fn ready<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Serves until killed.
fn serve(at: SocketAddrV4) -> io::Result<()> {
    let mut stack = Stack::open()?;
    let mut listener = Listener::bind(&stack, at.into(), 4096)?;
    listener.set_nodelay(true);
    stack.watch(&listener, LISTENER)?;
    println!("ready");
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = [Event::default(); 256];
    loop {
        let count = stack.wait(&mut events, None)?;
        for event in &events[..count] {
            if event.token == LISTENER {
                while let Some((connection, _)) = ready(listener.accept())? {
                    stack.watch(&connection, connections.len() as u64)?;
                    connections.push(Some(connection));
                }
                continue;
            }
            let Some(place) = connections.get_mut(event.token as usize) else { continue };
            if let Some(connection) = place
                && !echo(connection).unwrap_or(false)
            {
                *place = None;
            }
        }
    }
}

/// Sends back received bytes, as far as there is room. False: the connection has ended.
fn echo(connection: &mut Connection) -> io::Result<bool> {
    let (mut receiver, mut sender) = connection.split();
    loop {
        let Some(received) = ready(receiver.received())? else { return Ok(true) };
        if received.is_empty() {
            return Ok(false);
        }
        let Some(mut room) = ready(sender.reserve(received.len()))? else { return Ok(true) };
        room.put_received(&received);
        receiver.consume(room.commit());
    }
}

struct Client {
    connection: Connection,
    sent_at: VecDeque<Instant>,
    /// Bytes of a reply that is not complete yet.
    partial: usize,
    /// Bytes of requests that there was no room for yet.
    unsent: usize,
}

impl Client {
    /// Sends `count` more requests, as far as there is room.
    fn issue(&mut self, options: &Options, count: usize, now: Instant) -> io::Result<()> {
        self.sent_at.extend(std::iter::repeat_n(now, count));
        self.unsent += count * options.bytes;
        while self.unsent > 0 {
            let Some(mut room) = ready(self.connection.reserve(self.unsent))? else { break };
            const REQUEST: [u8; 4096] = [b'x'; 4096];
            let mut left = room.len();
            while left > 0 {
                left -= room.put(&REQUEST[..left.min(REQUEST.len())]);
            }
            self.unsent -= room.commit();
        }
        Ok(())
    }
}

/// Runs the load.
fn load(options: &Options) -> io::Result<Report> {
    let mut stack = Stack::open()?;
    let mut clients = Vec::with_capacity(options.connections);
    for token in 0..options.connections as u64 {
        let mut connection = Connection::connect(&stack, options.server.into())?;
        connection.wait(Readiness::WRITABLE, Some(LIMIT))?;
        if !connection.is_established()? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        connection.set_nodelay(true);
        stack.watch(&connection, token)?;
        clients.push(Client { connection, sent_at: VecDeque::with_capacity(options.depth), partial: 0, unsent: 0 });
    }
    let mut events = [Event::default(); 256];
    let mut tally = Tally::new(options)?;
    let mut now = Instant::now();
    for client in &mut clients {
        client.issue(options, options.depth, now)?;
    }
    while now < tally.end {
        let count = stack.wait(&mut events, Some(options.longest_wait()))?;
        now = Instant::now();
        for event in &events[..count] {
            let client = &mut clients[event.token as usize];
            if event.readiness.is_writable() {
                client.issue(options, 0, now)?;
            }
            let Some(received) = ready(client.connection.received())?.map(|received| received.len()) else { continue };
            if received == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed a connection"));
            }
            client.connection.consume(received);
            now = Instant::now();
            let bytes = client.partial + received;
            client.partial = bytes % options.bytes;
            tally.answered(&mut client.sent_at, bytes / options.bytes, now);
            client.issue(options, bytes / options.bytes, now)?;
        }
    }
    Ok(tally.report(now))
}

/// The echo server and client by Towpath's native API.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Echo server: sends back the bytes that it receives. Prints `ready` when it listens.
    Server {
        /// Address to listen on.
        listen: SocketAddrV4,
    },
    /// Echo client: keeps `depth` requests of `bytes` outstanding on each connection; prints one JSON object.
    Client(Options),
}

fn main() {
    let result = match Arguments::parse().role {
        Role::Server { listen } => serve(listen),
        Role::Client(options) => load(&options).map(|report| towpath_rpc::print(&report)),
    };
    if let Err(error) = result {
        eprintln!("towpath-rpc-native: {error}");
        std::process::exit(1);
    }
}
