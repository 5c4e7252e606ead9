//! Very many connections that take turns: a few requests are outstanding at a time, each on the next connection.

use crate::client::{Report, Tally};
use crate::sys;
use clap::Args;
use std::io::{self, BufRead};
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

/// Arguments of the client.
#[derive(Args)]
pub struct Options {
    /// The server, such as 10.77.0.1:9000.
    server: SocketAddrV4,
    /// Connections.
    #[arg(long, default_value_t = 1000)]
    connections: usize,
    /// Requests outstanding at a time.
    #[arg(long, default_value_t = 8)]
    at_once: usize,
    /// Bytes of a request and of its reply.
    #[arg(long, default_value_t = 64)]
    bytes: usize,
    /// Measured seconds of one window.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Seconds before that.
    #[arg(long, default_value_t = 0.1)]
    warm_up_seconds: f64,
}

/// A reply that has not come in this time never comes.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);

struct Turns {
    epoll: i32,
    fds: Vec<i32>,
    /// What has come of the reply on each connection.
    received: Vec<usize>,
    /// When each connection's request left. `None`: it has none outstanding.
    sent_at: Vec<Option<Instant>>,
    request: Vec<u8>,
    /// The connection whose turn is next. It goes on in the next window.
    next: usize,
    outstanding: usize,
}

/// Opens all connections and has a request answered on each. Then it prints `ready`. Each line of standard input begins
/// a window, whose report is one JSON object. It ends with its input.
pub fn run(options: &Options) -> io::Result<()> {
    if options.connections == 0 || options.bytes == 0 || !(1..=options.connections).contains(&options.at_once) {
        return Err(io::Error::other(
            "at least one connection, byte and request, and no more requests than connections",
        ));
    }
    sys::raise_limit();
    let mut turns = Turns {
        epoll: sys::epoll()?,
        fds: Vec::with_capacity(options.connections),
        received: vec![0; options.connections],
        sent_at: vec![None; options.connections],
        request: vec![b'x'; options.bytes],
        next: 0,
        outstanding: 0,
    };
    turns.open(options)?;
    println!("ready");
    for line in io::stdin().lock().lines() {
        line?;
        let mut tally = Tally::of_seconds(options.warm_up_seconds, options.seconds)?;
        turns.window(options.at_once, |began, now| {
            if now < tally.end {
                tally.done(began, now);
            }
            now < tally.end
        })?;
        let report: Report = tally.report(tally.end);
        crate::print(&report);
    }
    Ok(())
}

impl Turns {
    /// Opens all connections, some at a time, and has a request answered on each.
    fn open(&mut self, options: &Options) -> io::Result<()> {
        let mut events = vec![sys::Event { events: 0, u64: 0 }; 256];
        let mut buffer = vec![0; 65536];
        let (mut done, mut newest) = (0, Instant::now());
        while done < options.connections {
            while self.fds.len() < options.connections && self.fds.len() - done < options.at_once {
                let (fd, index) = (sys::begin_to_connect(options.server)?, self.fds.len());
                sys::watch(self.epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLOUT, index as u64)?;
                self.fds.push(fd);
            }
            let ready = sys::wait(self.epoll, &mut events, 100)?;
            self.heard(&mut newest, ready)?;
            for event in &events[..ready] {
                let index = event.u64 as usize;
                if self.sent_at[index].is_none() {
                    sys::is_connected(self.fds[index])?;
                    sys::watch(self.epoll, libc::EPOLL_CTL_MOD, self.fds[index], libc::EPOLLIN, index as u64)?;
                    self.send(index)?;
                } else if self.reply(index, &mut buffer)?.is_some() {
                    done += 1;
                }
            }
        }
        Ok(())
    }

    /// Fails if nothing has come for long.
    fn heard(&self, newest: &mut Instant, ready: usize) -> io::Result<()> {
        if ready > 0 {
            *newest = Instant::now();
        } else if newest.elapsed() > LONGEST_SILENCE {
            return Err(io::Error::other(format!("{} replies did not come", self.outstanding)));
        }
        Ok(())
    }

    /// Reads from a connection. When the reply is whole, it says when its request left.
    fn reply(&mut self, index: usize, buffer: &mut [u8]) -> io::Result<Option<Instant>> {
        match sys::read(self.fds[index], buffer)? {
            None => return Ok(None),
            Some(0) => return Err(io::Error::other("the server has closed a connection")),
            Some(n) => self.received[index] += n,
        }
        if self.received[index] < self.request.len() {
            return Ok(None);
        }
        self.received[index] = 0;
        let began = self.sent_at[index].take();
        self.outstanding -= usize::from(began.is_some());
        Ok(began)
    }

    /// Keeps requests outstanding for as long as `answered` wants more, and waits for the last of them. It is told when
    /// each request left, and when its reply was there.
    fn window(&mut self, at_once: usize, mut answered: impl FnMut(Instant, Instant) -> bool) -> io::Result<()> {
        let mut events = vec![sys::Event { events: 0, u64: 0 }; 256];
        let mut buffer = vec![0; 65536];
        for _ in 0..at_once {
            self.ask()?;
        }
        let mut newest = Instant::now();
        while self.outstanding > 0 {
            let ready = sys::wait(self.epoll, &mut events, 100)?;
            self.heard(&mut newest, ready)?;
            let now = Instant::now();
            for event in &events[..ready] {
                let Some(began) = self.reply(event.u64 as usize, &mut buffer)? else { continue };
                if answered(began, now) {
                    self.ask()?;
                }
            }
        }
        Ok(())
    }

    /// A request on the connection whose turn it is. One that still waits for a reply is passed over. There are as many
    /// connections as requests at least, so that one is free.
    fn ask(&mut self) -> io::Result<()> {
        while self.sent_at[self.next].is_some() {
            self.next = (self.next + 1) % self.fds.len();
        }
        let index = self.next;
        self.next = (index + 1) % self.fds.len();
        self.send(index)
    }

    fn send(&mut self, index: usize) -> io::Result<()> {
        self.sent_at[index] = Some(Instant::now());
        if sys::write(self.fds[index], &self.request)? != Some(self.request.len()) {
            return Err(io::Error::other("no room for a whole request: fewer --bytes"));
        }
        self.outstanding += 1;
        Ok(())
    }
}
