//! A conversation with a server, with an end in time and a bound in bytes.

use crate::address::Endpoint;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// So long a server has for all that one question takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// Most that is read for one question.
pub(crate) const MOST: usize = 4 << 20;
/// Most of a host's addresses that are tried.
const ADDRESSES: usize = 4;

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What is left of time and bytes.
struct Bounded {
    stream: Stream,
    until: Instant,
    left: usize,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let time = self.until.saturating_duration_since(Instant::now());
        if time.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        if self.left == 0 {
            return Err(io::Error::new(ErrorKind::InvalidData, "it says too much"));
        }
        let part = buffer.len().min(self.left);
        let buffer = &mut buffer[..part];
        let read = match &mut self.stream {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(time)).and_then(|()| stream.read(buffer))?,
            Stream::Unix(stream) => stream.set_read_timeout(Some(time)).and_then(|()| stream.read(buffer))?,
        };
        self.left -= read;
        Ok(read)
    }
}

/// A conversation with a server.
pub(crate) struct Conversation(BufReader<Bounded>);

impl Conversation {
    /// With whoever is there.
    pub(crate) fn open(endpoint: &Endpoint) -> io::Result<Self> {
        let stream = match endpoint {
            Endpoint::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
            Endpoint::Tcp(host, port) => Stream::Tcp(connect(host, *port)?),
        };
        let wait = Some(PATIENCE);
        match &stream {
            Stream::Tcp(stream) => stream.set_write_timeout(wait)?,
            Stream::Unix(stream) => stream.set_write_timeout(wait)?,
        }
        Ok(Self(BufReader::with_capacity(64 << 10, Bounded { stream, until: Instant::now(), left: 0 })))
    }

    /// Asks, and what is read from now on is the answer.
    pub(crate) fn ask(&mut self, question: &[u8]) -> io::Result<&mut impl BufRead> {
        let bounded = self.0.get_mut();
        (bounded.until, bounded.left) = (Instant::now() + PATIENCE, MOST);
        match &mut bounded.stream {
            Stream::Tcp(stream) => stream.write_all(question)?,
            Stream::Unix(stream) => stream.write_all(question)?,
        }
        Ok(&mut self.0)
    }
}

fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()?.take(ADDRESSES) {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The next line, without its end, if it has no more than `most` bytes.
pub(crate) fn line(from: &mut impl BufRead, most: u64) -> io::Result<String> {
    let mut line = Vec::new();
    from.take(most).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(io::Error::new(ErrorKind::InvalidData, "a line has no end"));
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| io::Error::new(ErrorKind::InvalidData, "a line is no text"))
}
