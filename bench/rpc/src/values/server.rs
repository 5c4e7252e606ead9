//! The Redis-like server: each event loop reads, changes the value and sends it back.

use super::feedback::{self, Answered};
use super::{modify, poller, stamp};
use crate::sys;
use std::io;
use std::net::SocketAddrV4;
use std::path::PathBuf;

/// How a server divides its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Architecture {
    /// Redis-like: one thread per event loop reads, processes and sends.
    Loops,
    /// Netpoll-like: pollers receive, worker threads process and send.
    Poller,
}

/// What to serve.
#[derive(clap::Args)]
pub struct Options {
    /// Address to listen on, such as 10.77.0.1:9000
    listen: SocketAddrV4,
    /// Who does what
    #[arg(long, value_enum, default_value = "loops")]
    architecture: Architecture,
    /// Event loops
    #[arg(long, default_value_t = 4)]
    loops: usize,
    /// Worker threads of `poller` [default: as many as loops]
    #[arg(long)]
    workers: Option<usize>,
    /// Bytes of a value
    #[arg(long, default_value_t = 1024)]
    bytes: usize,
    /// The datagram socket to say to how it does
    #[arg(long)]
    feedback: Option<PathBuf>,
    /// Each event loop polls its card itself for so many µs before it sleeps (`EPIOCSPARAMS`, preferred to interrupts)
    #[arg(long)]
    busy_poll_us: Option<u32>,
}

/// Serves until killed.
pub fn run(options: &Options) -> io::Result<()> {
    if options.loops == 0 || options.workers == Some(0) || options.bytes < super::STAMP {
        return Err(io::Error::other("there must be a loop and a worker, and a value has at least 8 bytes"));
    }
    sys::raise_limit();
    let mut loops = Vec::new();
    for _ in 0..options.loops {
        let epoll = sys::epoll()?;
        if let Some(us) = options.busy_poll_us {
            let failed = |e: io::Error| io::Error::new(e.kind(), format!("busy polling: EPIOCSPARAMS: {e}"));
            sys::busy_poll(epoll, us).map_err(failed)?;
        }
        loops.push(epoll);
    }
    start(options, &loops)?;
    let listener = sys::listen(options.listen)?;
    println!("ready");
    let accepting = sys::epoll()?;
    sys::watch(accepting, libc::EPOLL_CTL_ADD, listener, libc::EPOLLIN, 0)?;
    let (mut events, mut next, mut queues) = ([sys::Event { events: 0, u64: 0 }; 1], 0, Vec::new());
    loop {
        sys::wait(accepting, &mut events, -1)?;
        while let Some(fd) = sys::accept(listener)? {
            // A loop can poll one of the card's queues: whoever polls gets the connections of one.
            let place = if options.busy_poll_us.is_some() { place(&mut queues, sys::napi(fd)?) } else { next };
            sys::watch(loops[place % loops.len()], libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, fd as u64)?;
            next += 1;
        }
    }
}

/// The place of a queue in the order in which they were seen.
fn place(queues: &mut Vec<u32>, queue: u32) -> usize {
    queues.iter().position(|known| *known == queue).unwrap_or_else(|| {
        queues.push(queue);
        queues.len() - 1
    })
}

fn start(options: &Options, loops: &[i32]) -> io::Result<()> {
    let bytes = options.bytes;
    match options.architecture {
        Architecture::Loops => {
            let answered = feedback::start(options.feedback.clone(), loops.len())?;
            for (&epoll, answered) in loops.iter().zip(answered) {
                std::thread::spawn(move || ended(Connections::new(epoll, bytes).serve(&answered)));
            }
        }
        Architecture::Poller => {
            let workers = options.workers.unwrap_or(loops.len());
            let answered = feedback::start(options.feedback.clone(), workers)?;
            let workers = poller::workers(answered);
            for &epoll in loops {
                let workers = workers.clone();
                std::thread::spawn(move || ended(poller::poll(Connections::new(epoll, bytes), &workers)));
            }
        }
    }
    Ok(())
}

/// A loop ends only if it cannot go on; then nobody may think that it serves.
fn ended(result: io::Result<()>) {
    if let Err(error) = result {
        eprintln!("towpath-rpc: {error}");
        std::process::exit(1);
    }
}

/// The connections of one event loop, by descriptor: bytes of a value that is not complete yet.
pub struct Connections {
    epoll: i32,
    bytes: usize,
    partial: Vec<Vec<u8>>,
    events: Vec<sys::Event>,
    buffer: Vec<u8>,
}

impl Connections {
    /// None yet.
    pub fn new(epoll: i32, bytes: usize) -> Self {
        let events = vec![sys::Event { events: 0, u64: 0 }; 256];
        Self { epoll, bytes, partial: Vec::new(), events, buffer: vec![0; 65536] }
    }

    /// Waits, and hands `each` the complete values of each connection, one after the other; or `None` at the connection's end. `each`
    /// closes it then.
    pub fn turn(&mut self, mut each: impl FnMut(i32, Option<&mut [u8]>)) -> io::Result<()> {
        let ready = sys::wait(self.epoll, &mut self.events, -1)?;
        for event in &self.events[..ready] {
            let fd = event.u64 as i32;
            let index = fd as usize;
            if self.partial.len() <= index {
                self.partial.resize_with(index + 1, Vec::new);
            }
            match sys::read(fd, &mut self.buffer) {
                Ok(None) => {}
                Ok(Some(0)) | Err(_) => {
                    self.partial[index] = Vec::new();
                    sys::watch(self.epoll, libc::EPOLL_CTL_DEL, fd, 0, 0)?;
                    each(fd, None);
                }
                Ok(Some(n)) => {
                    let partial = &mut self.partial[index];
                    if partial.is_empty() {
                        let whole = n - n % self.bytes;
                        self.buffer[..whole].chunks_exact_mut(self.bytes).for_each(|value| each(fd, Some(value)));
                        partial.extend_from_slice(&self.buffer[whole..n]);
                    } else {
                        partial.extend_from_slice(&self.buffer[..n]);
                        let whole = partial.len() - partial.len() % self.bytes;
                        partial[..whole].chunks_exact_mut(self.bytes).for_each(|value| each(fd, Some(value)));
                        partial.drain(..whole);
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads, processes and sends until it cannot go on.
    fn serve(mut self, answered: &Answered) -> io::Result<()> {
        let mut stamps = Vec::with_capacity(256);
        loop {
            self.turn(|fd, value| match value {
                Some(value) => {
                    stamps.push(stamp(value));
                    modify(value);
                    // A client that has gone is noticed when it is read from.
                    let _ = sys::write_all(fd, value);
                }
                None => sys::close(fd),
            })?;
            answered.note(&stamps);
            stamps.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_a_queue_have_the_same_loop() {
        let mut queues = Vec::new();
        let places: Vec<usize> = [9, 4, 9, 7, 4].into_iter().map(|queue| place(&mut queues, queue)).collect();
        assert_eq!(places, [0, 1, 0, 2, 1]);
    }
}
