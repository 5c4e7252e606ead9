//! One connection in one direction, as fast as it goes.

use clap::Args;
use serde::Serialize;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Arguments of the sink.
#[derive(Args)]
pub struct Options {
    /// Address to listen on.
    listen: SocketAddrV4,
    /// Measured seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds after the first byte that are not measured.
    #[arg(long, default_value_t = 1.0)]
    warm_up_seconds: f64,
}

/// The sink's report.
#[derive(Serialize)]
pub struct Report {
    /// Payload in the measured time.
    bytes: u64,
    /// Length of the measured time.
    seconds: f64,
    /// Longest time without a byte in it, ms.
    longest_stall_ms: f64,
}

/// Takes one connection and reads until the time is up.
pub fn sink(options: &Options) -> io::Result<Report> {
    let listener = TcpListener::bind(options.listen)?;
    println!("ready");
    let (mut stream, _) = listener.accept()?;
    let mut buffer = vec![0; 256 << 10];
    if stream.read(&mut buffer)? == 0 {
        return Err(io::Error::other("the source has sent nothing"));
    }
    let start = Instant::now() + Duration::from_secs_f64(options.warm_up_seconds);
    let end = start + Duration::from_secs_f64(options.seconds);
    let (mut bytes, mut stall, mut newest) = (0, Duration::ZERO, start);
    loop {
        let wait = end.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(wait))?;
        let n = match stream.read(&mut buffer) {
            Ok(0) => return Err(io::Error::other("the source has ended before its time")),
            Ok(n) => n as u64,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        if now >= start && now < end {
            bytes += n;
            stall = stall.max(now.saturating_duration_since(newest));
            newest = now;
        }
    }
    stall = stall.max(end.saturating_duration_since(newest));
    Ok(Report { bytes, seconds: options.seconds, longest_stall_ms: stall.as_secs_f64() * 1e3 })
}

/// Connects and sends until the sink resets the connection.
pub fn source(sink: SocketAddrV4) -> io::Result<()> {
    let mut stream = TcpStream::connect(sink)?;
    let buffer = vec![7; 64 << 10];
    loop {
        match stream.write_all(&buffer) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
