//! The client: steps of load, closed or open loop, in several threads.

use super::load::{Arrivals, Load, Step};
use super::tally::{Report, Tally};
use super::{fill, is_answer, now_ns, seconds};
use crate::sys;
use serde::Serialize;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddrV4;
use std::ops::Range;
use std::time::Duration;

/// Most bytes outstanding on a connection. Both ends can write that much before either reads.
const OUTSTANDING: usize = 32 << 10;

/// Arguments of the client.
#[derive(clap::Args, Clone)]
pub struct Options {
    /// The server, such as 10.77.0.1:9000
    server: SocketAddrV4,
    /// Connections
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Threads that share them
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Bytes of a value
    #[arg(long, default_value_t = 1024)]
    bytes: usize,
    /// Steps of load, one after the other: idle@SECONDS, closed:CONNECTIONS@SECONDS, open:REQUESTS-PER-SECOND@SECONDS
    #[arg(long, value_delimiter = ',', default_value = "closed:64@2")]
    steps: Vec<Step>,
    /// Seconds at the beginning of each step that are not measured
    #[arg(long, default_value = "0.3", value_parser = seconds)]
    warm_up: Duration,
    /// Report windows of this many milliseconds as well
    #[arg(long)]
    window_ms: Option<u64>,
    /// Of the open loop's arrivals
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The client's report.
#[derive(Serialize)]
pub struct Outcome {
    /// When the first step began, by the clock that all processes share.
    begin_ns: u64,
    steps: Vec<Report>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    windows: Vec<Report>,
    /// Replies that were wrong.
    bad: u64,
}

/// When the steps begin and end, ns of [`now_ns`].
#[derive(Clone)]
struct Schedule {
    steps: Vec<(Step, u64, u64)>,
    warm_up_ns: u64,
    window_ns: Option<u64>,
    begin: u64,
}

impl Schedule {
    fn new(options: &Options, begin: u64) -> Self {
        let mut at = begin;
        let step = |step: &Step| {
            let from = at;
            at += step.time.as_nanos() as u64;
            (*step, from, at)
        };
        let steps = options.steps.iter().map(step).collect();
        let window_ns = options.window_ms.map(|ms| ms.max(1) * 1_000_000);
        Self { steps, warm_up_ns: options.warm_up.as_nanos() as u64, window_ns, begin }
    }
    fn end(&self) -> u64 {
        self.steps.last().map_or(self.begin, |(_, _, end)| *end)
    }
    /// When a step's measured part begins.
    fn measured_from(&self, index: usize) -> u64 {
        let (_, from, end) = self.steps[index];
        (from + self.warm_up_ns).min(end)
    }
}

/// Runs the load.
pub fn run(options: &Options) -> io::Result<Outcome> {
    if options.threads == 0 || options.connections < options.threads || options.bytes <= super::STAMP {
        return Err(io::Error::other("each thread needs a connection, and a value has more than 8 bytes"));
    }
    sys::raise_limit();
    sys::timer_slack(1)?;
    let mut threads = Vec::new();
    for thread in 0..options.threads {
        let count = options.connections / options.threads + usize::from(thread < options.connections % options.threads);
        threads.push(LoadThread::new(options, thread, count)?);
    }
    let schedule = Schedule::new(options, now_ns() + 10_000_000);
    let running: Vec<_> = threads
        .into_iter()
        .map(|client| {
            let schedule = schedule.clone();
            std::thread::spawn(move || client.run(&schedule))
        })
        .collect();
    let cpu = machine(&schedule)?;
    let (mut by_step, mut by_window, mut bad) = (Tally::new(3), Tally::new(2), 0);
    for thread in running {
        let done = thread.join().map_err(|_| io::Error::other("a thread of the client ended early"))??;
        by_step.add(&done.by_step)?;
        by_window.add(&done.by_window)?;
        bad += done.bad;
    }
    let (steps, windows) = (steps(&schedule, &mut by_step, &cpu)?, windows(&schedule, &mut by_window)?);
    Ok(Outcome { begin_ns: schedule.begin, steps, windows, bad })
}

/// Busy time of the machine in the measured part of each step, µs.
fn machine(schedule: &Schedule) -> io::Result<Vec<f64>> {
    let mut busy = Vec::new();
    for (index, (_, _, end)) in schedule.steps.iter().enumerate() {
        sys::sleep_until(schedule.measured_from(index), now_ns);
        let before = sys::busy_us()?;
        sys::sleep_until(*end, now_ns);
        busy.push(sys::busy_us()? - before);
    }
    Ok(busy)
}

fn steps(schedule: &Schedule, tally: &mut Tally, cpu: &[f64]) -> io::Result<Vec<Report>> {
    let mut reports = Vec::new();
    for (index, (step, _, end)) in schedule.steps.iter().enumerate() {
        let from = schedule.measured_from(index);
        let at_s = (from - schedule.begin) as f64 / 1e9;
        let mut report = tally.report(index, (index, step.name()), at_s, (end - from) as f64 / 1e9)?;
        if report.requests > 0 {
            report.cpu_us_per_request = Some(cpu[index] / report.requests as f64);
        }
        reports.push(report);
    }
    Ok(reports)
}

fn windows(schedule: &Schedule, tally: &mut Tally) -> io::Result<Vec<Report>> {
    let Some(window) = schedule.window_ns else { return Ok(Vec::new()) };
    let mut reports = Vec::new();
    for index in 0..(schedule.end() - schedule.begin) / window {
        let at = schedule.begin + index * window;
        let step = schedule.steps.iter().position(|(_, _, end)| at < *end).unwrap_or(0);
        let name = schedule.steps[step].0.name();
        let at_s = (at - schedule.begin) as f64 / 1e9;
        reports.push(tally.report(index as usize, (step, name), at_s, window as f64 / 1e9)?);
    }
    Ok(reports)
}

/// A request on its way.
struct Request {
    /// When it was due. Its latency counts from then.
    due: u64,
    step: usize,
    number: u8,
}

struct ValueConnection {
    fd: i32,
    outstanding: VecDeque<Request>,
    partial: Vec<u8>,
    number: u8,
}

/// One thread of the client.
struct LoadThread {
    thread: usize,
    threads: usize,
    bytes: usize,
    epoll: i32,
    connections: Vec<ValueConnection>,
    arrivals: Arrivals,
    request: Vec<u8>,
    /// The connection that has the next request of an open loop.
    next: usize,
    by_step: Tally,
    by_window: Tally,
    bad: u64,
}

impl LoadThread {
    fn new(options: &Options, thread: usize, count: usize) -> io::Result<Self> {
        let epoll = sys::epoll()?;
        let mut connections = Vec::with_capacity(count);
        for index in 0..count {
            let fd = sys::connect(options.server)?;
            sys::watch(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, index as u64)?;
            connections.push(ValueConnection { fd, outstanding: VecDeque::new(), partial: Vec::new(), number: 0 });
        }
        Ok(Self {
            thread,
            threads: options.threads,
            bytes: options.bytes,
            epoll,
            connections,
            arrivals: Arrivals::new(options.seed + thread as u64),
            request: vec![0; options.bytes],
            next: 0,
            by_step: Tally::new(3),
            by_window: Tally::new(2),
            bad: 0,
        })
    }

    fn run(mut self, schedule: &Schedule) -> io::Result<Self> {
        sys::timer_slack(1)?;
        let mut events = vec![sys::Event { events: 0, u64: 0 }; 256];
        let mut buffer = vec![0; 65536];
        sys::sleep_until(schedule.begin, now_ns);
        for (index, (step, from, end)) in schedule.steps.iter().enumerate() {
            let load = step.part(self.thread, self.threads);
            self.begin(index, load)?;
            let mut due = *from;
            loop {
                let now = now_ns();
                if now >= *end {
                    break;
                }
                let mut wake = *end;
                if let Load::Open(rate) = load {
                    due = self.issue_due(index, due, now, rate)?;
                    wake = wake.min(due.max(now));
                }
                let time = Duration::from_nanos(wake.saturating_sub(now_ns()));
                let ready = sys::wait_for(self.epoll, &mut events, time)?;
                for event in &events[..ready] {
                    self.receive(event.u64 as usize, (index, load), schedule, &mut buffer)?;
                }
            }
            if let Load::Open(rate) = load {
                self.count_unanswered(index, due, schedule.measured_from(index)..*end, rate)?;
            }
        }
        Ok(self)
    }

    /// An open loop's requests that were due in `measured` and have no reply at its end. They are those that were sent,
    /// and from `due` on those for which there was no room yet. Without them a stack that stalls until the end would
    /// look fast.
    fn count_unanswered(&mut self, step: usize, mut due: u64, measured: Range<u64>, rate: f64) -> io::Result<()> {
        for request in self.connections.iter().flat_map(|connection| &connection.outstanding) {
            if request.step == step && measured.contains(&request.due) {
                self.by_step.record_unanswered(step, measured.end - request.due)?;
            }
        }
        while due < measured.end {
            if measured.contains(&due) {
                self.by_step.record_unanswered(step, measured.end - due)?;
            }
            due += self.arrivals.next_ns(rate);
        }
        Ok(())
    }

    /// A step of a closed loop begins: connections that have nothing outstanding send.
    fn begin(&mut self, step: usize, load: Load) -> io::Result<()> {
        let Load::Closed(active) = load else { return Ok(()) };
        for index in 0..self.connections.len().min(active) {
            if self.connections[index].outstanding.is_empty() {
                self.send(index, step, now_ns())?;
            }
        }
        Ok(())
    }

    /// Sends the due requests, on each connection in turn, and returns when the next one is due. A request without room
    /// on any connection stays due.
    fn issue_due(&mut self, step: usize, mut due: u64, now: u64, rate: f64) -> io::Result<u64> {
        let most = (OUTSTANDING / self.bytes).max(1);
        while due <= now {
            let count = self.connections.len();
            let free = (0..count).map(|n| (self.next + n) % count);
            let Some(index) = free.into_iter().find(|&index| self.connections[index].outstanding.len() < most) else {
                // Until a reply comes, or the time is over.
                return Ok(due);
            };
            self.next = (index + 1) % count;
            self.send(index, step, due)?;
            due += self.arrivals.next_ns(rate);
        }
        Ok(due)
    }

    fn send(&mut self, index: usize, step: usize, due: u64) -> io::Result<()> {
        let connection = &mut self.connections[index];
        connection.number = connection.number.wrapping_add(1);
        fill(&mut self.request, now_ns(), connection.number);
        connection.outstanding.push_back(Request { due, step, number: connection.number });
        sys::write_all(connection.fd, &self.request)
    }

    fn receive(
        &mut self,
        index: usize,
        (step, load): (usize, Load),
        schedule: &Schedule,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        let connection = &mut self.connections[index];
        let Some(n) = sys::read(connection.fd, buffer)? else { return Ok(()) };
        if n == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed a connection"));
        }
        connection.partial.extend_from_slice(&buffer[..n]);
        let now = now_ns();
        let whole = connection.partial.len() - connection.partial.len() % self.bytes;
        for value in connection.partial[..whole].chunks_exact(self.bytes) {
            let Some(request) = connection.outstanding.pop_front() else {
                return Err(io::Error::other("a reply to nothing"));
            };
            self.bad += u64::from(!is_answer(value, request.number));
            let latency = now.saturating_sub(request.due);
            let measured = schedule.measured_from(step)..schedule.steps[step].2;
            if request.step == step && measured.contains(&now) {
                self.by_step.record(step, latency)?;
            } else if request.step == step && matches!(load, Load::Open(_)) && measured.contains(&request.due) {
                // It was due in time, and its reply was not.
                self.by_step.record_unanswered(step, measured.end.saturating_sub(request.due))?;
            }
            if let Some(window) = schedule.window_ns {
                self.by_window.record((now.saturating_sub(schedule.begin) / window) as usize, latency)?;
            }
        }
        connection.partial.drain(..whole);
        let again = matches!(load, Load::Closed(active) if index < active);
        if again && connection.outstanding.is_empty() {
            self.send(index, step, now_ns())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;
    use std::io::{Read, Write};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn a_step_is_measured_from_its_warm_up_on_and_a_window_belongs_to_the_step_it_begins_in() {
        let line = "c 10.0.0.1:1 --steps idle@1,open:100@2 --warm-up 0.5 --window-ms 500";
        let Line { options } = Line::parse_from(line.split(' '));
        let schedule = Schedule::new(&options, 1000);
        assert_eq!(schedule.measured_from(1), 1000 + 1_500_000_000);
        assert_eq!(schedule.end(), 1000 + 3_000_000_000);
        let mut tally = Tally::new(2);
        tally.record(5, 40_000).unwrap();
        let windows = windows(&schedule, &mut tally).unwrap();
        assert_eq!(windows.iter().map(|window| window.step).collect::<Vec<_>>(), [0, 0, 1, 1, 1, 1]);
        assert_eq!((windows[5].requests, windows[5].requests_per_s), (1, 2.0));
        let steps = steps(&schedule, &mut Tally::new(2), &[0.0, 5.0]).unwrap();
        assert_eq!((steps[1].seconds, steps[1].cpu_us_per_request), (1.5, None), "no request, no price");
    }

    /// Runs an open loop of 100 requests/s for 0.6 s on one connection with room for one request. Each byte that the
    /// server gets goes back after `stall`, which happens once.
    fn open_loop_over_a_server_that_stalls(stall: Duration) -> Report {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut buffer, mut stall) = (vec![0; OUTSTANDING], Some(stall));
            while let Ok(n @ 1..) = stream.read(&mut buffer) {
                std::thread::sleep(stall.take().unwrap_or_default());
                buffer[..n].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                if stream.write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
        });
        let line = format!("c {address} --connections 1 --bytes {OUTSTANDING} --steps open:100@0.6 --warm-up 0");
        let mut outcome = run(&Line::parse_from(line.split(' ')).options).unwrap();
        drop(server);
        outcome.steps.remove(0)
    }

    #[test]
    fn all_requests_that_were_due_in_a_stall_have_waited_for_its_end() {
        let report = open_loop_over_a_server_that_stalls(Duration::from_millis(400));
        // One request was on its way in the stall, and about 40 were due in it. A client that counts from when it sends
        // would see one slow request in 60. Half of these 40 have waited for 200 ms or more.
        let all = report.requests + report.unanswered;
        assert!(all > 30, "{all} requests");
        assert!(report.p50_us > 20_000.0, "p50 {} µs", report.p50_us);
    }

    #[test]
    fn requests_that_are_never_answered_are_counted_with_the_time_that_they_have_waited() {
        let report = open_loop_over_a_server_that_stalls(Duration::from_secs(5));
        assert_eq!(report.requests, 0);
        assert!(report.unanswered > 30, "{} unanswered", report.unanswered);
        assert!(report.p50_us > 100_000.0, "p50 {} µs", report.p50_us);
    }
}
