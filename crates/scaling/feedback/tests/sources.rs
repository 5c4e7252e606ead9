//! Servers that answer, and servers that do not. In every case the outcome is there at once.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};
use towpath_feedback::{Feedback, Reading, Server};
use towpath_scaling::Outcome;

/// A server on a thread of its own that answers each connection in this way, and its address.
fn server(answer: impl Fn(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || listener.incoming().flatten().for_each(&answer));
    address
}

/// A server that is never asked.
struct NoService;

impl Server for NoService {
    fn ask(&mut self) -> Result<Reading, String> {
        Err("none".into())
    }
}

fn feedback(source: &str) -> Feedback {
    Feedback::open(&[source.parse().unwrap()], || Box::new(NoService)).unwrap()
}

/// Waits for an outcome.
fn said(feedback: &mut Feedback) -> Outcome {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(outcome) = now(feedback) {
            return outcome;
        }
        assert!(Instant::now() < until, "nothing is said: {:?}", feedback.heard());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The outcome now. It must be there at once, in one of several attempts: a machine may stall once, but a wait occurs
/// each time.
fn now(feedback: &mut Feedback) -> Option<Outcome> {
    for _ in 0..5 {
        let begun = Instant::now();
        let outcome = feedback.now();
        if begun.elapsed() < Duration::from_secs(1) {
            return outcome;
        }
    }
    panic!("it has waited");
}

/// Equal but for rounding: rates differ in the last digits from run to run.
fn same(value: f64, expected: f64) -> bool {
    (value - expected).abs() < 1e-6 * expected
}

/// Waits for a problem.
fn problem(source: &str) -> String {
    let mut feedback = feedback(source);
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        assert_eq!(now(&mut feedback), None);
        if let Some(problem) = feedback.heard()[0].problem.clone() {
            return problem;
        }
        assert!(Instant::now() < until, "nothing is wrong");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server that answers the n-th line of a connection in this way.
fn lines(answer: impl Fn(usize, &str) -> String + Send + 'static) -> String {
    server(move |mut stream| {
        let reader = BufReader::new(stream.try_clone().unwrap());
        for (nth, line) in reader.lines().map_while(Result::ok).enumerate() {
            if stream.write_all(answer(nth, &line).as_bytes()).is_err() {
                return;
            }
        }
    })
}

#[test]
fn redis_is_asked_for_calls_and_times() {
    let asked = std::sync::atomic::AtomicU64::new(0);
    let address = lines(move |_, line| match line {
        "commandstats" => {
            let times = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let (calls, us) = (1_000_000 * times, 50_000_000 * times);
            let info = format!("# Commandstats\r\ncmdstat_get:calls={calls},usec={us},usec_per_call=50.00\r\n");
            format!("${}\r\n{info}\r\n", info.len())
        }
        "HISTOGRAM" => "-ERR unknown subcommand\r\n".into(),
        _ => String::new(),
    });
    let outcome = said(&mut feedback(&format!("redis://{address}")));
    assert!(outcome.throughput > 0.0 && outcome.throughput < 1e7, "a million calls between two questions: {outcome:?}");
    assert!(same(outcome.latency_us, 50.0) && outcome.p99_us == 0.0, "{outcome:?}");
}

#[test]
fn memcached_is_asked_for_gets_and_sets() {
    let address = lines(|nth, _| format!("STAT cmd_get {}\r\nSTAT cmd_set {}\r\nEND\r\n", 900 * nth, 100 * nth));
    let outcome = said(&mut feedback(&format!("memcached://{address}")));
    assert!(outcome.throughput > 0.0 && outcome.throughput < 1e4, "a thousand between two questions: {outcome:?}");
}

/// A page for every connection.
fn web(head: &'static str, page: impl Fn(u64) -> String + Send + 'static) -> String {
    let asked = std::sync::atomic::AtomicU64::new(0);
    server(move |mut stream| {
        let mut request = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        while request.read_line(&mut line).is_ok_and(|len| len > 2) {
            line.clear();
        }
        let page = page(asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let _ = stream.write_all(format!("{head}\r\n\r\n{page}").as_bytes());
    })
}

#[test]
fn a_page_for_prometheus_is_read() {
    let address = web("HTTP/1.0 200 OK\r\nContent-Type: text/plain", |nth| {
        format!("wait_seconds_sum {}\nwait_seconds_count {}\n", 0.02 * nth as f64, 100 * nth)
    });
    let outcome = said(&mut feedback(&format!("http://{address}/metrics#name=wait_seconds")));
    assert!(outcome.throughput > 0.0 && outcome.throughput < 1e3, "{outcome:?}");
    assert_eq!(outcome.latency_us.round(), 200.0);
}

#[test]
fn whatever_a_server_does_nobody_waits_for_it_and_it_is_named() {
    let hangs = server(std::mem::forget);
    assert!(!problem(&format!("memcached://{hangs}")).is_empty());
    let closes = server(drop);
    assert!(!problem(&format!("redis://{closes}")).is_empty());
    let floods = server(|mut stream| {
        let zeros = [b'0'; 65_536];
        while stream.write_all(&zeros).is_ok() {}
    });
    assert!(problem(&format!("redis://{floods}")).contains("no end"), "a line without an end");
    let endless = server(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n");
        while stream.write_all(b"requests_total 1\n").is_ok() {}
    });
    let said = problem(&format!("http://{endless}/#name=requests_total"));
    assert!(said.contains("too much") || said.contains("timed out"), "a page without an end: {said}");
    let refuses = lines(|_, _| "-NOAUTH Authentication \x1b[31mrequired.\r\n".into());
    assert_eq!(problem(&format!("redis://{refuses}")), "NOAUTH Authentication  [31mrequired.", "as plain text");
    let absent = web("HTTP/1.0 404 Not Found", |_| String::new());
    assert!(problem(&format!("http://{absent}/metrics#name=requests_total")).contains("404"));
    let other = web("HTTP/1.1 200 OK", |_| "something_else 1\n".into());
    assert!(problem(&format!("http://{other}/metrics#name=requests_total")).contains("no metric requests_total"));
    // A client has the port, so that nobody listens there.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let unused = client.local_addr().unwrap();
    assert!(problem(&format!("memcached://{unused}")).contains("refused"));
}

#[test]
fn a_server_that_lies_says_nothing() {
    let lies = ["NaN", "-1", "1e300", "", "x"];
    for lie in lies {
        let address = web("HTTP/1.0 200 OK", move |_| format!("# TYPE ops gauge\nops {lie}\nops{{a=\"b\"}} 3\n"));
        let mut feedback = feedback(&format!("http://{address}/metrics#name=ops"));
        let outcome = said_or_none(&mut feedback);
        assert!(outcome.is_none_or(|outcome| outcome.throughput == 3.0), "{lie}: {outcome:?}");
    }
}

/// The outcome after the time of two questions.
fn said_or_none(feedback: &mut Feedback) -> Option<Outcome> {
    (0..30).find_map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        now(feedback)
    })
}

#[test]
fn lines_of_applications_are_heard_and_a_flood_of_them_takes_no_time() {
    let path = std::env::temp_dir().join(format!("towpath-feedback-{}", std::process::id()));
    let mut feedback = feedback(&format!("unix:{}", path.display()));
    assert_eq!(now(&mut feedback), None);
    let application = UnixDatagram::unbound().unwrap();
    for line in ["thr=10 lat_us=5", "nonsense", "thr=20 lat_us=7"] {
        application.send_to(line.as_bytes(), &path).unwrap();
    }
    assert_eq!(now(&mut feedback), Some(Outcome { throughput: 20.0, latency_us: 7.0, p99_us: 0.0 }));
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (theirs, to) = (std::sync::Arc::clone(&ended), path.clone());
    let flood = std::thread::spawn(move || {
        while !theirs.load(std::sync::atomic::Ordering::Relaxed) {
            let _ = application.send_to(b"thr=1", &to);
        }
    });
    for _ in 0..20 {
        assert!(now(&mut feedback).is_some());
    }
    drop(feedback);
    ended.store(true, std::sync::atomic::Ordering::Relaxed);
    flood.join().unwrap();
    assert!(!path.exists(), "the socket goes with who made it");
}
