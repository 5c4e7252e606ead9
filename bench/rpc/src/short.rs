//! A connection for each request: connects, sends, takes the answer, closes.

use crate::client::{self, Tally};
use crate::sys;
use serde::Serialize;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

/// Arguments of the client.
#[derive(clap::Args)]
pub struct Options {
    /// The server, such as 10.77.0.1:9000.
    server: SocketAddrV4,
    /// Connections at a time.
    #[arg(long, default_value_t = 1)]
    at_once: usize,
    /// Bytes of a request and of its reply.
    #[arg(long, default_value_t = 64)]
    bytes: usize,
    /// Seconds to measure.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Seconds before measuring.
    #[arg(long, default_value_t = 0.3)]
    warm_up_seconds: f64,
    /// The server's addresses in turn, from the first on. Each has the ports of its own, which last longer.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    addresses: u32,
    /// Ask for events again and again instead of sleeping.
    #[arg(long)]
    spin: bool,
}

/// The client's report. A request lasts from `connect` to the whole reply.
#[derive(Serialize)]
pub struct Report {
    #[serde(flatten)]
    requests: client::Report,
    /// From `connect` until the connection is established.
    connect_p50_us: f64,
    connect_p99_us: f64,
    connect_p999_us: f64,
}

/// A connection in use.
struct Short {
    fd: i32,
    began: Instant,
    connected: bool,
    /// Bytes of the reply that have come.
    received: usize,
}

fn begin(epoll: i32, options: &Options, number: &mut u32, index: usize) -> io::Result<Short> {
    *number = (*number + 1) % options.addresses;
    let address = Ipv4Addr::from_bits(options.server.ip().to_bits() + *number);
    let began = Instant::now();
    let fd = sys::begin_to_connect(SocketAddrV4::new(address, options.server.port()))?;
    sys::watch(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLOUT, index as u64)?;
    Ok(Short { fd, began, connected: false, received: 0 })
}

/// Runs the load.
pub fn run(options: &Options) -> io::Result<Report> {
    if options.at_once == 0 || options.bytes == 0 {
        return Err(io::Error::other("connections at a time and bytes must be at least 1"));
    }
    sys::raise_limit();
    let (epoll, request) = (sys::epoll()?, vec![b'x'; options.bytes]);
    let tally = || Tally::of_seconds(options.warm_up_seconds, options.seconds);
    let (mut requests, mut connects) = (tally()?, tally()?);
    let mut number = 0;
    let mut open: Vec<Short> =
        (0..options.at_once).map(|index| begin(epoll, options, &mut number, index)).collect::<io::Result<_>>()?;
    let mut events = vec![sys::Event { events: 0, u64: 0 }; 256];
    let mut buffer = vec![0; 65536];
    let wait_ms = if options.spin { 0 } else { 100 };
    loop {
        let ready = sys::wait(epoll, &mut events, wait_ms)?;
        let now = Instant::now();
        if now >= requests.end {
            let connects = connects.report(now);
            return Ok(Report {
                requests: requests.report(now),
                connect_p50_us: connects.p50_us,
                connect_p99_us: connects.p99_us,
                connect_p999_us: connects.p999_us,
            });
        }
        for event in &events[..ready] {
            let index = event.u64 as usize;
            let Some(short) = open.get_mut(index) else { continue };
            if !short.connected {
                sys::is_connected(short.fd)?;
                short.connected = true;
                connects.done(short.began, now);
                sys::watch(epoll, libc::EPOLL_CTL_MOD, short.fd, libc::EPOLLIN, index as u64)?;
                if sys::write(short.fd, &request)? != Some(request.len()) {
                    return Err(io::Error::other("no room for a whole request on a new connection: fewer --bytes"));
                }
                continue;
            }
            match sys::read(short.fd, &mut buffer)? {
                None => continue,
                Some(0) => return Err(io::Error::other("the server has closed a connection")),
                Some(n) => short.received += n,
            }
            if short.received >= options.bytes {
                sys::close(short.fd);
                requests.done(short.began, now);
                *short = begin(epoll, options, &mut number, index)?;
            }
        }
    }
}
