//! The Redis-like server: each event loop reads, changes the value and sends it back.

use super::connections::Connections;
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

/// Arguments of the server.
#[derive(clap::Args)]
pub struct Options {
    /// Address to listen on, such as 10.77.0.1:9000
    listen: SocketAddrV4,
    /// How the threads share the work
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
    /// Each event loop polls its network device for this many µs before it sleeps (`EPIOCSPARAMS`, preferred to
    /// interrupts)
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
            // A loop can poll one of the device's queues, so it gets the connections of one queue.
            let place = if options.busy_poll_us.is_some() { place(&mut queues, sys::napi(fd)?) } else { next };
            sys::watch(loops[place % loops.len()], libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, fd as u64)?;
            next += 1;
        }
    }
}

/// The index of a queue, in the order in which queues were seen.
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
                std::thread::spawn(move || ended(serve(Connections::new(epoll, bytes), &answered)));
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

/// A loop ends only if it cannot go on. Then the process ends, so that it does not seem to serve.
fn ended(result: io::Result<()>) {
    if let Err(error) = result {
        eprintln!("towpath-rpc: {error}");
        std::process::exit(1);
    }
}

/// Reads, processes and sends until it cannot go on.
fn serve(mut connections: Connections, answered: &Answered) -> io::Result<()> {
    let mut stamps = Vec::with_capacity(256);
    loop {
        connections.turn(|fd, value| match value {
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
