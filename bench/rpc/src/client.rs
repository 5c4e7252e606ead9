//! The echo client: `connections` × `depth` requests outstanding, latency of each in a histogram.

use crate::sys;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

/// A value's key in memcached, and how long a server may take to listen.
const KEY: &str = "towpath";
const START: Duration = Duration::from_secs(5);

/// Arguments of the client.
#[derive(clap::Args)]
pub struct Options {
    /// The server, such as 10.77.0.1:9000.
    pub server: SocketAddrV4,
    /// Connections.
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    /// Requests outstanding on each connection.
    #[arg(long, default_value_t = 1)]
    pub depth: usize,
    /// Bytes of a request and of its reply.
    #[arg(long, default_value_t = 64)]
    pub bytes: usize,
    /// Seconds to measure.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Seconds before measuring.
    #[arg(long, default_value_t = 0.3)]
    warm_up_seconds: f64,
    /// Ask for events again and again instead of sleeping.
    #[arg(long)]
    spin: bool,
    /// The server is memcached: a request asks for a value of `bytes` bytes, which is set first.
    #[arg(long)]
    memcached: bool,
}

/// What goes to the server again and again, and how long its reply is.
struct Exchange {
    /// One request more than are outstanding on a connection, so that a write may begin within one.
    requests: Vec<u8>,
    request_bytes: usize,
    reply_bytes: usize,
}

impl Exchange {
    fn new(options: &Options) -> io::Result<Self> {
        let (request, reply_bytes) = if options.memcached {
            (format!("get {KEY}\r\n").into_bytes(), value_in_memcached(options.server, options.bytes)?)
        } else {
            (vec![b'x'; options.bytes], options.bytes)
        };
        Ok(Self { requests: request.repeat(options.depth + 1), request_bytes: request.len(), reply_bytes })
    }

    /// What is next to be written when this many bytes are unsent.
    fn next(&self, unsent: usize) -> &[u8] {
        let begun = (self.request_bytes - unsent % self.request_bytes) % self.request_bytes;
        &self.requests[begun..][..unsent.min(self.requests.len() - begun)]
    }
}

/// Sets the value, and returns the length of a reply that has it.
fn value_in_memcached(server: SocketAddrV4, bytes: usize) -> io::Result<usize> {
    let give_up = Instant::now() + START;
    let mut stream = loop {
        match TcpStream::connect(server) {
            // memcached does not say when it listens.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < give_up => {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => break other?,
        }
    };
    let (value, mut answer) = ("v".repeat(bytes), [0; 8]);
    stream.write_all(format!("set {KEY} 0 0 {bytes}\r\n{value}\r\n").as_bytes())?;
    stream.read_exact(&mut answer)?;
    if answer != *b"STORED\r\n" {
        return Err(io::Error::other(format!("memcached: {}", String::from_utf8_lossy(&answer).trim())));
    }
    Ok(format!("VALUE {KEY} 0 {bytes}\r\n{value}\r\nEND\r\n").len())
}

impl Options {
    /// How long one wait for replies may last.
    pub fn longest_wait(&self) -> Duration {
        Duration::from_millis(if self.spin { 0 } else { 100 })
    }
}

/// The client's report.
#[derive(Serialize)]
pub struct Report {
    /// Replies within the measured time.
    requests: u64,
    /// Replies including the warm-up.
    requests_total: u64,
    /// Measured time.
    seconds: f64,
    requests_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    max_us: f64,
}

struct EchoRequests {
    fd: i32,
    sent_at: VecDeque<Instant>,
    /// Bytes of a reply that is not complete yet.
    partial: usize,
    /// Bytes of requests that could not be written yet.
    unsent: usize,
    watching_writable: bool,
}

/// Runs the load.
pub fn run(options: &Options) -> io::Result<Report> {
    if options.connections == 0 || options.depth == 0 || options.bytes == 0 {
        return Err(io::Error::other("connections, depth and bytes must be at least 1"));
    }
    sys::raise_limit();
    let epoll = sys::epoll()?;
    let exchange = Exchange::new(options)?;
    let mut connections = Vec::with_capacity(options.connections);
    for index in 0..options.connections {
        let fd = sys::connect(options.server)?;
        sys::watch(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, index as u64)?;
        let sent_at = VecDeque::with_capacity(options.depth);
        connections.push(EchoRequests { fd, sent_at, partial: 0, unsent: 0, watching_writable: false });
    }
    for (index, connection) in connections.iter_mut().enumerate() {
        issue(epoll, index, connection, &exchange, options.depth)?;
    }
    drive(epoll, &mut connections, options, &exchange)
}

/// Counts replies and their latencies from the end of the warm-up on.
pub struct Tally {
    histogram: Histogram<u64>,
    requests: u64,
    requests_total: u64,
    measure_from: Instant,
    /// When to end.
    pub end: Instant,
}

impl Tally {
    /// From now on.
    pub fn new(options: &Options) -> io::Result<Self> {
        Self::of_seconds(options.warm_up_seconds, options.seconds)
    }

    /// From now on, with a warm-up of this length.
    pub fn of_seconds(warm_up: f64, measured: f64) -> io::Result<Self> {
        let histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).map_err(io::Error::other)?;
        let measure_from = Instant::now() + Duration::from_secs_f64(warm_up);
        let end = measure_from + Duration::from_secs_f64(measured);
        Ok(Self { histogram, requests: 0, requests_total: 0, measure_from, end })
    }

    /// Something has been done that began at this time.
    pub fn done(&mut self, began: Instant, now: Instant) {
        self.requests_total += 1;
        if now >= self.measure_from {
            self.requests += 1;
            self.histogram.saturating_record((now - began).as_nanos() as u64);
        }
    }

    /// The oldest `complete` requests have been answered.
    pub fn answered(&mut self, sent_at: &mut VecDeque<Instant>, complete: usize, now: Instant) {
        sent_at.drain(..complete.min(sent_at.len())).for_each(|sent_at| self.done(sent_at, now));
    }

    /// The client's report.
    pub fn report(&self, now: Instant) -> Report {
        let seconds = (now - self.measure_from).as_secs_f64();
        let at = |quantile: f64| self.histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Report {
            requests: self.requests,
            requests_total: self.requests_total,
            seconds,
            requests_per_s: self.requests as f64 / seconds,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.histogram.max() as f64 / 1000.0,
        }
    }
}

fn drive(epoll: i32, connections: &mut [EchoRequests], options: &Options, exchange: &Exchange) -> io::Result<Report> {
    let mut events = vec![sys::Event { events: 0, u64: 0 }; 256];
    let mut buffer = vec![0; 65536];
    let mut tally = Tally::new(options)?;
    let mut now = Instant::now();
    while now < tally.end {
        let ready = sys::wait(epoll, &mut events, options.longest_wait().as_millis() as i32)?;
        now = Instant::now();
        for event in &events[..ready] {
            let index = event.u64 as usize;
            let connection = &mut connections[index];
            if event.events as i32 & libc::EPOLLOUT != 0 {
                issue(epoll, index, connection, exchange, 0)?;
            }
            let Some(n) = sys::read(connection.fd, &mut buffer)? else { continue };
            if n == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed a connection"));
            }
            now = Instant::now();
            let bytes = connection.partial + n;
            let complete = bytes / exchange.reply_bytes;
            connection.partial = bytes % exchange.reply_bytes;
            tally.answered(&mut connection.sent_at, complete, now);
            issue(epoll, index, connection, exchange, complete)?;
        }
    }
    Ok(tally.report(now))
}

/// Sends `count` more requests, as far as there is room.
fn issue(epoll: i32, index: usize, connection: &mut EchoRequests, exchange: &Exchange, count: usize) -> io::Result<()> {
    let now = Instant::now();
    connection.sent_at.extend(std::iter::repeat_n(now, count));
    connection.unsent += count * exchange.request_bytes;
    while connection.unsent > 0 {
        match sys::write(connection.fd, exchange.next(connection.unsent))? {
            Some(n) => connection.unsent -= n,
            None => break,
        }
    }
    let blocked = connection.unsent > 0;
    if blocked != connection.watching_writable {
        connection.watching_writable = blocked;
        let events = if blocked { libc::EPOLLIN | libc::EPOLLOUT } else { libc::EPOLLIN };
        sys::watch(epoll, libc::EPOLL_CTL_MOD, connection.fd, events, index as u64)?;
    }
    Ok(())
}
