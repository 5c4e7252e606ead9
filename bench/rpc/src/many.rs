//! Many connections into one host. It measures each connection's share when all send as fast as they can. It also
//! measures how long the host waits when it asks all of them for a block at once.
//!
//! The host listens and the senders connect. A connection sends one block for each byte that it is sent.

use crate::sys;
use clap::Args;
use serde::Serialize;
use std::io;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

/// Arguments of the senders.
#[derive(Args)]
pub struct Senders {
    /// Address of the host that asks.
    host: SocketAddrV4,
    /// Connections.
    #[arg(long, default_value_t = 50)]
    connections: usize,
    /// Bytes of a block; 0 = without end.
    #[arg(long, default_value_t = 0)]
    bytes: u64,
}

/// Arguments of the host that measures shares.
#[derive(Args)]
pub struct Share {
    /// Address to listen on.
    listen: SocketAddrV4,
    /// Connections that are waited for.
    #[arg(long, default_value_t = 50)]
    connections: usize,
    /// Length of a window.
    #[arg(long, default_value_t = 1.0)]
    window_seconds: f64,
    /// Windows that are measured.
    #[arg(long, default_value_t = 5)]
    windows: usize,
    /// Seconds before that; in the first half of them the connections begin, one after the other.
    #[arg(long, default_value_t = 2.0)]
    warm_up_seconds: f64,
}

/// Arguments of the host that asks for blocks.
#[derive(Args)]
pub struct Incast {
    /// Address to listen on.
    listen: SocketAddrV4,
    /// Connections that are waited for.
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Bytes of a block, as the senders have it.
    #[arg(long, default_value_t = 65_536)]
    bytes: u64,
    /// Requests.
    #[arg(long, default_value_t = 50)]
    rounds: usize,
    /// Pause between an answer and the next request, ms.
    #[arg(long, default_value_t = 5)]
    pause_ms: u64,
}

/// Bytes of each connection in each window.
#[derive(Serialize)]
pub struct Shares {
    windows: Vec<Vec<u64>>,
    seconds: f64,
}

/// How long each request took until all blocks were there.
#[derive(Serialize)]
pub struct Waits {
    took_us: Vec<f64>,
}

const BLOCK: usize = 64 << 10;

/// Connections of one process, watched for reading.
struct ConnectionSet {
    epoll: i32,
    fds: Vec<i32>,
    events: Vec<sys::Event>,
    buffer: Vec<u8>,
}

impl ConnectionSet {
    fn new() -> io::Result<Self> {
        sys::raise_limit();
        let events = vec![sys::Event { events: 0, u64: 0 }; 256];
        Ok(Self { epoll: sys::epoll()?, fds: Vec::new(), events, buffer: vec![7; BLOCK] })
    }

    fn add(&mut self, fd: i32) -> io::Result<()> {
        sys::watch(self.epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, self.fds.len() as u64)?;
        self.fds.push(fd);
        Ok(())
    }

    /// Listens until this many connections have come. Prints `ready` when it listens.
    fn gather(at: SocketAddrV4, connections: usize) -> io::Result<Self> {
        let mut set = Self::new()?;
        let listener = sys::listen(at)?;
        println!("ready");
        while set.fds.len() < connections {
            match sys::accept(listener)? {
                Some(fd) => set.add(fd)?,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Ok(set)
    }

    /// Sends a connection a byte.
    fn ask(&self, index: usize) -> io::Result<()> {
        sys::write(self.fds[index], b"?")?.ok_or_else(|| io::Error::other("no room for a request")).map(drop)
    }

    /// Waits until `until` at most and reads once from each ready connection. `got` gets the connection and the bytes.
    fn read(&mut self, until: Instant, mut got: impl FnMut(usize, u64)) -> io::Result<()> {
        let wait = until.saturating_duration_since(Instant::now()).as_millis().min(1000) as i32;
        let ready = sys::wait(self.epoll, &mut self.events, wait)?;
        for event in &self.events[..ready] {
            let index = event.u64 as usize;
            match sys::read(self.fds[index], &mut self.buffer)? {
                Some(0) => return Err(io::Error::other("a sender has ended before its time")),
                Some(n) => got(index, n as u64),
                None => {}
            }
        }
        Ok(())
    }
}

/// Measures the bytes of each connection.
pub fn share(options: &Share) -> io::Result<Shares> {
    let mut set = ConnectionSet::gather(options.listen, options.connections)?;
    let step = Duration::from_secs_f64(options.warm_up_seconds / 2.0 / options.connections.max(1) as f64);
    let start = Instant::now();
    for index in 0..options.connections {
        set.ask(index)?;
        let next = start + step * (index as u32 + 1);
        while Instant::now() < next {
            set.read(next, |_, _| {})?;
        }
    }
    let mut end = start + Duration::from_secs_f64(options.warm_up_seconds);
    let mut windows = Vec::new();
    let measured = end;
    for window in 0..=options.windows {
        let mut bytes = vec![0; options.connections];
        while Instant::now() < end {
            set.read(end, |index, n| bytes[index] += n)?;
        }
        end += Duration::from_secs_f64(options.window_seconds);
        // The first is the warm-up.
        if window > 0 {
            windows.push(bytes);
        }
    }
    Ok(Shares { windows, seconds: measured.elapsed().as_secs_f64() })
}

/// Measures how long blocks take that are asked for at once.
pub fn incast(options: &Incast) -> io::Result<Waits> {
    let mut set = ConnectionSet::gather(options.listen, options.connections)?;
    let mut took_us = Vec::new();
    // The first request finds slow start everywhere; it is not counted.
    for round in 0..=options.rounds {
        std::thread::sleep(Duration::from_millis(options.pause_ms));
        let (start, mut left) = (Instant::now(), options.bytes * options.connections as u64);
        for index in 0..options.connections {
            set.ask(index)?;
        }
        let limit = start + Duration::from_secs(30);
        while left > 0 {
            set.read(limit, |_, n| left = left.saturating_sub(n))?;
            if Instant::now() > limit {
                return Err(io::Error::other(format!("{left} bytes are still missing after 30 s")));
            }
        }
        if round > 0 {
            took_us.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok(Waits { took_us })
}

/// Connects and sends a block for each byte that comes, until the host has gone.
pub fn senders(options: &Senders) -> io::Result<()> {
    let mut set = ConnectionSet::new()?;
    for _ in 0..options.connections {
        set.add(sys::connect(options.host)?)?;
    }
    let mut left = vec![0u64; options.connections];
    let (mut request, block) = ([0; 64], if options.bytes == 0 { u64::MAX } else { options.bytes });
    loop {
        let ready = sys::wait(set.epoll, &mut set.events, -1)?;
        for event in &set.events[..ready] {
            let (index, fd) = (event.u64 as usize, set.fds[event.u64 as usize]);
            let waited = left[index] > 0;
            if event.events as i32 & !libc::EPOLLOUT != 0 {
                match sys::read(fd, &mut request) {
                    Ok(Some(0)) | Err(_) => return Ok(()),
                    Ok(n) => left[index] = left[index].saturating_add(block.saturating_mul(n.unwrap_or(0) as u64)),
                }
            }
            while left[index] > 0 {
                let part = left[index].min(BLOCK as u64) as usize;
                match sys::write(fd, &set.buffer[..part]) {
                    Ok(Some(n)) => left[index] -= n as u64,
                    Ok(None) => break,
                    Err(_) => return Ok(()),
                }
            }
            let waits = left[index] > 0;
            if waits != waited {
                let events = if waits { libc::EPOLLIN | libc::EPOLLOUT } else { libc::EPOLLIN };
                sys::watch(set.epoll, libc::EPOLL_CTL_MOD, fd, events, event.u64)?;
            }
        }
    }
}
