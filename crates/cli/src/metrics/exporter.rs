//! A page of metrics, over HTTP. Every client gets the same page. A client that does not ask properly costs one of
//! a few connections, for two seconds.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most connections at a time. With one more, the oldest is closed.
const MOST: usize = 8;
/// Most bytes of a request.
const MOST_ASKED: usize = 4096;
/// A connection that lasts longer is closed.
const LONGEST: Duration = Duration::from_secs(2);

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `ADDR:PORT`, or `PORT` of the loopback address.
    Tcp(SocketAddr),
    /// `unix:PATH`.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => return Err("unix: needs a path".into()),
            Some(path) => return Ok(Self::Unix(path.into())),
            None => {}
        }
        let port = |text: &str| text.parse::<u16>().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        let address = text.parse().or_else(|_| port(text));
        address.map(Self::Tcp).map_err(|_| format!("{text:?} is neither ADDRESS:PORT, nor PORT, nor unix:PATH"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A format, as `Content-Type` names it.
#[derive(Clone, Copy)]
pub struct Format(pub &'static str);

/// Prometheus' own text format.
pub const PROMETHEUS: Format = Format("text/plain; version=0.0.4; charset=utf-8");
/// OpenMetrics.
pub const OPENMETRICS: Format = Format("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// A page that is replaced now and then.
#[derive(Clone, Default)]
pub struct Exporter(Arc<Mutex<String>>);

impl Exporter {
    /// Listens there, in a thread of its own, until the process ends.
    pub fn open(address: &Address) -> Result<Self, String> {
        let listener = Listener::open(address)?;
        Self::begin(listener)
    }
    fn begin(listener: Listener) -> Result<Self, String> {
        let exporter = Self::default();
        let page = exporter.clone();
        let serve = move || listener.serve(PROMETHEUS, || page.page());
        let started = std::thread::Builder::new().name("metrics".into()).spawn(serve);
        started.map(|_| exporter).map_err(|error| format!("metrics: {error}"))
    }
    /// Replaces the page.
    pub fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
    fn page(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Listens for those who ask for the page.
pub enum Listener {
    /// At an address.
    Tcp(TcpListener),
    /// At a path.
    Unix(UnixListener),
}

/// A connection.
trait Stream: Read + Write + AsFd {}
impl<T: Read + Write + AsFd> Stream for T {}

impl Listener {
    /// Listens there. A socket that nobody listens on any more is replaced.
    pub fn open(address: &Address) -> Result<Self, String> {
        let failed = |error: io::Error| format!("metrics at {address}: {error}");
        match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Self::Tcp(listener))
            }
            Address::Unix(path) => {
                let is_socket = path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
                let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
                if is_socket && UnixStream::connect(path).is_err_and(refused) {
                    std::fs::remove_file(path).map_err(failed)?;
                }
                let listener = UnixListener::bind(path).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Self::Unix(listener))
            }
        }
    }

    /// Where it listens, with the port that the kernel has chosen.
    pub fn place(&self, asked: &Address) -> String {
        match self {
            Self::Tcp(listener) => {
                let at = listener.local_addr().map_or_else(|_| asked.to_string(), |at| at.to_string());
                format!("http://{at}/metrics")
            }
            Self::Unix(_) => asked.to_string(),
        }
    }

    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
        })
    }

    /// Answers those who ask, until the process ends.
    pub fn serve(&self, format: Format, mut page: impl FnMut() -> String) -> ! {
        let mut connections: VecDeque<ScrapeConnection> = VecDeque::new();
        loop {
            self.wait(&connections);
            let now = Instant::now();
            match self.accept() {
                Ok(stream) => {
                    connections.truncate(MOST - 1);
                    connections.push_front(ScrapeConnection::new(stream, now + LONGEST));
                }
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    // Probably out of descriptors. Asking again at once would not help.
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(_) => {}
            }
            connections.retain_mut(|connection| now < connection.until && connection.go_on(format, &mut page));
        }
    }

    /// Waits until a socket is ready, or a connection has lasted too long.
    fn wait(&self, connections: &VecDeque<ScrapeConnection>) {
        let first = connections.iter().map(|connection| connection.until).min();
        let time = first.map(|until| until.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        let time = time.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() });
        let of =
            |connection: &ScrapeConnection| if connection.answer.is_empty() { PollFlags::IN } else { PollFlags::OUT };
        let listening = match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        };
        let mut ready = vec![PollFd::from_borrowed_fd(listening, PollFlags::IN)];
        ready.extend(
            connections.iter().map(|connection| PollFd::from_borrowed_fd(connection.stream.as_fd(), of(connection))),
        );
        let _ = poll(&mut ready, time.as_ref());
    }
}

struct ScrapeConnection {
    stream: Box<dyn Stream>,
    until: Instant,
    asked: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
}

impl ScrapeConnection {
    fn new(stream: Box<dyn Stream>, until: Instant) -> Self {
        Self { stream, until, asked: Vec::new(), answer: Vec::new(), sent: 0 }
    }

    /// Reads and writes as much as possible. False: the connection is over.
    fn go_on(&mut self, format: Format, page: impl FnMut() -> String) -> bool {
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
                answer(&self.asked, format, page)
            } else {
                response("431 Request Header Fields Too Large", PROMETHEUS, "", true)
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
fn answer(asked: &[u8], format: Format, mut page: impl FnMut() -> String) -> Vec<u8> {
    let line = asked.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else { return response("400 Bad Request", PROMETHEUS, "", true) };
    if !version.starts_with(b"HTTP/1.") {
        return response("400 Bad Request", PROMETHEUS, "", true);
    }
    let body = match method {
        b"GET" => true,
        b"HEAD" => false,
        _ => return response("405 Method Not Allowed", PROMETHEUS, "", true),
    };
    match target.split(|byte| *byte == b'?').next() {
        Some(b"/metrics" | b"/") => response("200 OK", format, &page(), body),
        _ => response("404 Not Found", PROMETHEUS, "", body),
    }
}

fn response(status: &str, Format(format): Format, page: &str, body: bool) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {format}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        page.len()
    );
    (head + if body { page } else { "" }).into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::TcpStream;

    fn open() -> (Exporter, SocketAddr) {
        let listener = Listener::open(&"0".parse().unwrap()).unwrap();
        let Listener::Tcp(listening) = &listener else { panic!("no TCP") };
        let at = listening.local_addr().unwrap();
        let exporter = Exporter::begin(listener).unwrap();
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
        let parsed = |text: &str| text.parse::<Address>();
        assert_eq!(parsed("9187").unwrap().to_string(), "127.0.0.1:9187");
        assert_eq!(parsed("[::1]:9187").unwrap().to_string(), "[::1]:9187");
        assert_eq!(parsed("unix:/run/m"), Ok(Address::Unix("/run/m".into())));
        assert!(parsed("70000").is_err() && parsed("unix:").is_err());
        assert_eq!(parsed("eth1").unwrap_err(), "\"eth1\" is neither ADDRESS:PORT, nor PORT, nor unix:PATH");
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
            let answer = String::from_utf8(answer(&asked, OPENMETRICS, || "page\n".into())).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(["200", "400", "404", "405"].iter().any(|status| head.starts_with(&format!("HTTP/1.1 {status} "))));
            let whole = head.contains("Content-Length: 5") && asked.starts_with(b"GET ");
            assert_eq!(body, if whole { "page\n" } else { "" }, "{asked:?}");
        });
    }
}
