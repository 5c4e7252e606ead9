//! A page for Prometheus, over HTTP. Every client gets the same page. A client that does not ask properly costs one of
//! a few connections, for two seconds.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most connections at a time. With one more, the oldest is closed.
const MOST: usize = 8;
/// Most bytes of a request.
const MOST_ASKED: usize = 4096;
/// A connection that lasts longer is closed.
const LONGEST: Duration = Duration::from_secs(2);

/// Where to listen: `ADDR:PORT`, or `PORT` of the loopback address.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let port = |text: &str| text.parse::<u16>().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    text.parse().or_else(|_| port(text)).map_err(|_| format!("{text:?} is neither ADDRESS:PORT nor PORT"))
}

/// The page that clients get.
#[derive(Clone, Default)]
pub struct Exporter(Arc<Mutex<String>>);

impl Exporter {
    /// Listens at this address, in a thread of its own, until the process ends.
    pub fn open(address: SocketAddr) -> Result<(Self, SocketAddr), String> {
        let failed = |error: io::Error| format!("metrics at {address}: {error}");
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        let exporter = Self::default();
        let page = exporter.clone();
        std::thread::Builder::new().name("metrics".into()).spawn(move || page.serve(&listener)).map_err(failed)?;
        Ok((exporter, at))
    }
    /// Replaces the page.
    pub fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
    fn page(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn serve(&self, listener: &TcpListener) {
        let mut connections: VecDeque<ScrapeConnection> = VecDeque::new();
        loop {
            wait(listener, &connections);
            let now = Instant::now();
            match listener.accept() {
                Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                    connections.truncate(MOST - 1);
                    connections.push_front(ScrapeConnection::new(stream, now + LONGEST));
                }
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    // Probably out of descriptors. Asking again at once would not help.
                    std::thread::sleep(Duration::from_millis(100));
                }
                _ => {}
            }
            connections.retain_mut(|connection| now < connection.until && connection.go_on(|| self.page()));
        }
    }
}

/// Waits until a socket is ready, or a connection has lasted too long.
fn wait(listener: &TcpListener, connections: &VecDeque<ScrapeConnection>) {
    let first = connections.iter().map(|connection| connection.until).min();
    let time = first.map(|until| until.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
    let time = time.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() });
    let of = |connection: &ScrapeConnection| if connection.answer.is_empty() { PollFlags::IN } else { PollFlags::OUT };
    let mut ready = vec![PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
    ready.extend(
        connections.iter().map(|connection| PollFd::from_borrowed_fd(connection.stream.as_fd(), of(connection))),
    );
    let _ = poll(&mut ready, time.as_ref());
}

struct ScrapeConnection {
    stream: TcpStream,
    until: Instant,
    asked: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
}

impl ScrapeConnection {
    fn new(stream: TcpStream, until: Instant) -> Self {
        Self { stream, until, asked: Vec::new(), answer: Vec::new(), sent: 0 }
    }

    /// Reads and writes as much as possible. False: the connection is over.
    fn go_on(&mut self, page: impl Fn() -> String) -> bool {
        if self.answer.is_empty() {
            let mut bytes = [0; 1024];
            match self.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(count) => self.asked.extend_from_slice(&bytes[..count]),
                Err(error) => return may_go_on(&error),
            }
            let whole = self.asked.windows(4).any(|end| end == b"\r\n\r\n");
            if !whole && self.asked.len() < MOST_ASKED {
                return true;
            }
            self.answer = if whole {
                answer(&self.asked, page)
            } else {
                response("431 Request Header Fields Too Large", "", true)
            };
        }
        match self.stream.write(&self.answer[self.sent..]) {
            Ok(count) => self.sent += count,
            Err(error) => return may_go_on(&error),
        }
        self.sent < self.answer.len()
    }
}

fn may_go_on(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The response to a request whose head is whole (RFC 9112 §3).
fn answer(asked: &[u8], page: impl Fn() -> String) -> Vec<u8> {
    let line = asked.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else { return response("400 Bad Request", "", true) };
    if !version.starts_with(b"HTTP/1.") {
        return response("400 Bad Request", "", true);
    }
    let body = match method {
        b"GET" => true,
        b"HEAD" => false,
        _ => return response("405 Method Not Allowed", "", true),
    };
    match target.split(|byte| *byte == b'?').next() {
        Some(b"/metrics" | b"/") => response("200 OK", &page(), body),
        _ => response("404 Not Found", "", body),
    }
}

fn response(status: &str, page: &str, body: bool) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        page.len()
    );
    (head + if body { page } else { "" }).into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn open() -> (Exporter, SocketAddr) {
        let (exporter, at) = Exporter::open(address("0").unwrap()).unwrap();
        exporter.set("towpath_cores_reserved_cpus 2\n".into());
        (exporter, at)
    }
    fn ask(at: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(request).unwrap();
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
    const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

    #[test]
    fn a_scrape_gets_the_page_and_others_an_error() {
        let (_exporter, at) = open();
        assert!(at.ip().is_loopback(), "a port alone is one of the loopback address");
        let page = ask(at, GET);
        assert!(
            page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("\r\n\r\ntowpath_cores_reserved_cpus 2\n"),
            "{page}"
        );
        assert!(ask(at, b"HEAD / HTTP/1.1\r\n\r\n").ends_with("Content-Length: 30\r\nConnection: close\r\n\r\n"));
        for (request, status) in [
            (&b"GET /etc/passwd HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET\r\n\r\n", "400"),
            (b"\xff\xfe \x00 \x01\r\n\r\n", "400"),
            (&[b'A'; MOST_ASKED], "431"),
        ] {
            let answer = ask(at, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
    }

    #[test]
    fn those_who_hold_connections_and_say_nothing_keep_nobody_away() {
        let (_exporter, at) = open();
        let mut silent: Vec<TcpStream> = (0..3 * MOST).map(|_| TcpStream::connect(at).unwrap()).collect();
        assert!(ask(at, GET).contains("reserved_cpus 2"));
        // They are closed: at once if there are too many, the last of them after a time.
        for stream in &mut silent {
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
        }
        assert!(ask(at, GET).contains("reserved_cpus 2"));
    }

    #[test]
    fn an_address_is_one_or_a_port() {
        assert_eq!(address("9187").unwrap().to_string(), "127.0.0.1:9187");
        assert_eq!(address("[::1]:9187").unwrap().to_string(), "[::1]:9187");
        assert!(address("eth1").is_err() && address("70000").is_err());
    }

    #[test]
    fn fuzz_requests() {
        const WORDS: [&[u8]; 12] = [
            b"GET",
            b"HEAD",
            b"POST",
            b" ",
            b"/metrics",
            b"/",
            b"?x=",
            b"HTTP/1.1",
            b"HTTP/2",
            b"\r\n",
            b"\r",
            b"\xff\0",
        ];
        bolero::check!().with_type::<(Vec<u8>, Vec<u8>)>().with_iterations(10_000).for_each(|(words, noise)| {
            let words = words.iter().take(64).flat_map(|word| WORDS[usize::from(*word) % WORDS.len()]);
            let asked: Vec<u8> = words.chain(noise).copied().collect();
            let answer = String::from_utf8(answer(&asked, || "page\n".into())).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(["200", "400", "404", "405"].iter().any(|status| head.starts_with(&format!("HTTP/1.1 {status} "))));
            let whole = head.contains("Content-Length: 5") && asked.starts_with(b"GET ");
            assert_eq!(body, if whole { "page\n" } else { "" }, "{asked:?}");
        });
    }
}
