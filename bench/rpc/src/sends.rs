//! One connection, many sends of one size: how fast the bytes arrive, and the sender's CPU time per send.

use clap::Args;
use serde::Serialize;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Arguments of the sender.
#[derive(Args)]
pub struct Options {
    /// Address of the drain.
    drain: SocketAddrV4,
    /// Bytes of one send.
    #[arg(long, default_value_t = 64)]
    bytes: usize,
    /// Seconds of sending.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Set `TCP_NODELAY`.
    #[arg(long)]
    nodelay: bool,
}

/// The sender's report.
#[derive(Serialize)]
pub struct Report {
    /// Sends made.
    sends: u64,
    /// From the first send until the other end had all of it.
    seconds: f64,
    /// Payload per second in that time.
    bytes_per_s: f64,
    /// CPU time of the sending thread per send, ns.
    cpu_ns_per_send: f64,
}

/// Sends until the time is up, then waits until all has arrived.
pub fn send(options: &Options) -> io::Result<Report> {
    let mut stream = TcpStream::connect(options.drain)?;
    stream.set_nodelay(options.nodelay)?;
    let buffer = vec![7; options.bytes.max(1)];
    let (start, cpu) = (Instant::now(), cpu_ns());
    let end = start + Duration::from_secs_f64(options.seconds);
    // The clock costs as much as some sends of a few bytes.
    let between_looks = (64 << 10) / buffer.len() + 1;
    let mut sends = 0u64;
    while Instant::now() < end {
        for _ in 0..between_looks {
            stream.write_all(&buffer)?;
        }
        sends += between_looks as u64;
    }
    let cpu_ns_per_send = (cpu_ns() - cpu) as f64 / sends as f64;
    stream.shutdown(Shutdown::Write)?;
    if stream.read(&mut [0])? != 0 {
        return Err(io::Error::other("the drain has said something"));
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Report { sends, seconds, bytes_per_s: sends as f64 * buffer.len() as f64 / seconds, cpu_ns_per_send })
}

/// CPU time of this thread.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Takes connections, one after the other, and drops their bytes. Prints `ready` when it listens.
pub fn drain(listen: SocketAddrV4) -> io::Result<()> {
    let listener = TcpListener::bind(listen)?;
    println!("ready");
    loop {
        let (stream, _) = listener.accept()?;
        let most = 16 << 20;
        // SAFETY: with MSG_TRUNC the kernel copies nothing.
        while unsafe { libc::recv(stream.as_raw_fd(), std::ptr::null_mut(), most, libc::MSG_TRUNC) } > 0 {}
    }
}
