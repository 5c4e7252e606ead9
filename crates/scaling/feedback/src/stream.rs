//! A conversation with a server, limited in time and bytes.

use crate::endpoint::Endpoint;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The time that a server has for one question and its whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Most that is read for one question.
const MOST: usize = 4 << 20;
/// Most of a host's addresses that are tried.
const ADDRESSES: usize = 4;

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A stream with limits: a deadline, and the bytes that may still be read.
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
    /// Connects.
    pub(crate) fn open(endpoint: &Endpoint) -> io::Result<Self> {
        let stream = match endpoint {
            Endpoint::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
            Endpoint::Tcp(host, port) => Stream::Tcp(connect(host, *port)?),
        };
        let wait = Some(ANSWER_TIMEOUT);
        match &stream {
            Stream::Tcp(stream) => stream.set_write_timeout(wait)?,
            Stream::Unix(stream) => stream.set_write_timeout(wait)?,
        }
        Ok(Self(BufReader::with_capacity(64 << 10, Bounded { stream, until: Instant::now(), left: 0 })))
    }

    /// Sends a question. Reads from now on are of its answer.
    pub(crate) fn ask(&mut self, question: &[u8]) -> io::Result<&mut impl BufRead> {
        let bounded = self.0.get_mut();
        (bounded.until, bounded.left) = (Instant::now() + ANSWER_TIMEOUT, MOST);
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
        match TcpStream::connect_timeout(&address, ANSWER_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The next line without its newline. It must not be longer than `most` bytes.
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
