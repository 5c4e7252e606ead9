//! One connection, a file by `sendfile` again and again: how fast it arrives, and the sender's CPU time.

use clap::Args;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of the sender.
#[derive(Args)]
pub struct Options {
    /// Address of the drain.
    drain: SocketAddrV4,
    /// The file.
    file: PathBuf,
    /// Seconds of sending.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
}

/// The sender's report.
#[derive(Serialize)]
pub struct Report {
    /// Bytes of the file that were sent.
    bytes: u64,
    /// From the first call until the other end had all of it.
    seconds: f64,
    /// Payload per second in that time.
    bytes_per_s: f64,
    /// CPU time of all threads of this process in that time, ns.
    cpu_ns: u64,
}

/// Sends the whole file until the time is up, then waits until all has arrived.
pub fn send(options: &Options) -> io::Result<Report> {
    let file = File::open(&options.file)?;
    let size = file.metadata()?.len();
    let mut stream = TcpStream::connect(options.drain)?;
    let (start, cpu) = (Instant::now(), cpu_ns());
    let end = start + Duration::from_secs_f64(options.seconds);
    let mut bytes = 0;
    while Instant::now() < end {
        let mut at: libc::off_t = 0;
        while (at as u64) < size {
            let left = (size - at as u64) as usize;
            // SAFETY: both descriptors are open, and `at` is writable.
            let sent = unsafe { libc::sendfile(stream.as_raw_fd(), file.as_raw_fd(), &raw mut at, left) };
            match sent {
                -1 => return Err(io::Error::last_os_error()),
                0 => return Err(io::Error::other("the file has become shorter")),
                sent => bytes += sent as u64,
            }
        }
    }
    stream.shutdown(Shutdown::Write)?;
    if stream.read(&mut [0])? != 0 {
        return Err(io::Error::other("the drain has said something"));
    }
    let (seconds, cpu_ns) = (start.elapsed().as_secs_f64(), cpu_ns() - cpu);
    Ok(Report { bytes, seconds, bytes_per_s: bytes as f64 / seconds, cpu_ns })
}

/// CPU time of this process, those threads too that a library may have started in it.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
