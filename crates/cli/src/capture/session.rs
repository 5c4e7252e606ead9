//! A running capture: takes frames out of the memory, puts them in the order of their times, and writes them.

use super::names::Names;
use super::output::Output;
use crate::complain;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};
use towpath_capture::pcapng::{Interface, Packet, Writer};
use towpath_capture::record::{DIRECT, Kind, Record};
use towpath_capture::tap::now_ns;
use towpath_capture::{Name, Reader};
use towpath_service::api::{Asked, Capturing};

/// Time between two looks into the memory.
const LOOK: Duration = Duration::from_millis(5);
/// How long a frame waits for those that other threads have seen before it, and for its connection's name.
const HOLD_NS: u64 = 20_000_000;
/// Most bytes of frames that wait.
const MOST_HELD: usize = 64 << 20;
/// From when on, and how often, progress is shown.
const PROGRESS: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(1);
/// Bytes that are written together.
const TOGETHER: usize = 64 << 10;

/// A capture that the service has begun.
pub struct Session<'a> {
    /// The conversation with the service.
    pub asked: Asked,
    /// The signals that end it.
    pub signals: &'a SignalFd,
    /// The filter, as the user wrote it.
    pub filter: String,
    /// Bytes of a frame that are kept.
    pub snap: u32,
    /// Most frames.
    pub count: Option<u64>,
}

/// The result of a capture.
#[derive(Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Captured {
    /// The stack.
    pub stack: String,
    /// Frames written.
    pub frames: u64,
    /// Frames that the filter has let through.
    pub matched: u64,
    /// Those of them that were lost.
    pub dropped: u64,
    /// Bytes of the frames written.
    pub bytes: u64,
}

impl Captured {
    /// For people.
    pub fn text(&self) -> String {
        let Self { frames, matched, dropped, .. } = self;
        let more = if *dropped > 0 { "; a larger --buffer, a filter or a smaller --snap keeps more" } else { "" };
        format!("{frames} frames written, {matched} let through by the filter, {dropped} dropped{more}\n")
    }
    /// For programs.
    pub fn json(&self) -> String {
        crate::json::line(self)
    }
}

/// The file, and what is to be written.
struct Sheet<'a> {
    writer: Writer<BufWriter<Output<'a>>>,
    names: Names,
    /// Frames that wait, in no order.
    held: Vec<Record>,
    held_bytes: usize,
    /// The interface of the frames of each port.
    ports: u32,
    count: Option<u64>,
    captured: Captured,
}

impl Session<'_> {
    /// Captures until a signal, the count or the time ends it, the reader of the file goes away, or the service.
    pub fn run(mut self, output: Output<'_>, time: Option<Duration>) -> io::Result<Captured> {
        let mut reader = Reader::new(self.asked.memory.as_fd())?;
        let mut sheet = self.sheet(output)?;
        let (begun, terminal, mut shown) = (Instant::now(), io::stderr().is_terminal(), 0);
        let result = loop {
            let over = time.is_some_and(|time| begun.elapsed() >= time) || self.over()?;
            sheet.take(&mut reader);
            let written = sheet.write(now_ns().saturating_sub(HOLD_NS));
            if over || written.is_err() || sheet.is_full() {
                break written;
            }
            let lasted = begun.elapsed();
            if lasted > PROGRESS && (lasted - PROGRESS).as_secs() / WINDOW.as_secs() >= shown {
                shown += 1;
                progress(terminal, shown, sheet.captured.frames, reader.counts().1);
            }
        };
        if terminal && shown > 0 {
            let _ = writeln!(io::stderr());
        }
        result.and_then(|()| self.finish(&mut reader, &mut sheet)).or_else(gone)?;
        (sheet.captured.matched, sheet.captured.dropped) = reader.counts();
        sheet.end().or_else(gone)?;
        Ok(sheet.captured)
    }

    fn sheet<'a>(&self, output: Output<'a>) -> io::Result<Sheet<'a>> {
        let Capturing { stack, ports } = &self.asked.answer;
        let out = BufWriter::with_capacity(TOGETHER, output);
        let mut writer = Writer::new(out, concat!("towpath ", env!("CARGO_PKG_VERSION")))?;
        let places = places(stack, ports);
        for (name, description) in &places {
            let (name, description) = (name.clone(), (*description).into());
            writer.interface(&Interface { name, description, filter: self.filter.clone(), snap: self.snap })?;
        }
        writer.flush()?;
        let captured = Captured { stack: stack.clone(), ..Captured::default() };
        let (names, held) = (Names::default(), Vec::new());
        Ok(Sheet { writer, names, held, held_bytes: 0, ports: places.len() as u32 - 1, count: self.count, captured })
    }

    /// Waits a moment. True: a signal came, or the service has ended the capture.
    fn over(&mut self) -> io::Result<bool> {
        let mut ready = [
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.asked.conversation.as_fd(), PollFlags::IN),
        ];
        let moment = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        match poll(&mut ready, Some(&moment)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let ended = !ready[1].revents().is_empty();
        if ended {
            complain("the service has ended the capture");
        }
        Ok(ended || !ready[0].revents().is_empty())
    }

    /// Has the service end the capture, and writes what it has left.
    fn finish(&mut self, reader: &mut Reader, sheet: &mut Sheet<'_>) -> io::Result<()> {
        let conversation = &mut self.asked.conversation;
        let _ = conversation.shutdown(Shutdown::Write);
        // The service closes it when no thread of the stack leaves frames any more.
        let _ = conversation.read(&mut [0; 1]);
        sheet.take(reader);
        sheet.write(u64::MAX)
    }
}

/// A reader of the file that has gone away ends a capture, too.
fn gone(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}

/// Name and description of each interface of the file, the last for frames that are of no port.
fn places(stack: &str, ports: &[String]) -> Vec<(String, &'static str)> {
    if stack != "fast" {
        return vec![("kernel".into(), "the kernel's frames of the kernel stack's connections")];
    }
    let port = |(number, name): (usize, &String)| {
        let description = if number == 0 {
            "the stack's connections within this host"
        } else {
            "sent and received by the fast stack"
        };
        (name.clone(), description)
    };
    let direct = ("direct".into(), "made from the bytes of direct connections");
    ports.iter().enumerate().map(port).chain([direct]).collect()
}

fn progress(terminal: bool, nth: u64, frames: u64, dropped: u64) {
    if terminal {
        let _ = write!(io::stderr(), "\r{frames} frames, {dropped} dropped; ctrl-C ends it ");
    } else if nth == 1 {
        complain(&format!("{frames} frames, {dropped} dropped so far; SIGINT or SIGTERM ends it"));
    }
}

impl Sheet<'_> {
    /// Takes what the service has left.
    fn take(&mut self, reader: &mut Reader) {
        for ring in 0..reader.rings() {
            while self.held_bytes < MOST_HELD
                && let Some(record) = reader.next(ring)
            {
                match record.header.kind {
                    Kind::Name => Name::decode(&record.bytes).into_iter().for_each(|name| self.names.told(name)),
                    Kind::Frame { .. } => {
                        self.held_bytes += record.bytes.len() + size_of::<Record>();
                        self.held.push(record);
                    }
                }
            }
        }
    }

    /// Writes the frames that were seen before `due_ns`, in the order of their times. If too many wait, all of them.
    fn write(&mut self, due_ns: u64) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        self.held.sort_by_key(|record| record.header.time_ns);
        let all = self.held_bytes >= MOST_HELD;
        let due = if all { self.held.len() } else { self.held.partition_point(|r| r.header.time_ns <= due_ns) };
        for record in self.held.drain(..due) {
            self.held_bytes -= record.bytes.len() + size_of::<Record>();
            if self.count.is_some_and(|count| self.captured.frames >= count) {
                continue;
            }
            let Record { header, bytes } = record;
            let Kind::Frame { outgoing } = header.kind else { continue };
            // The last interface is for frames that no port has.
            let interface = u32::from(header.place).min(self.ports);
            let within = header.place == DIRECT || header.place == 0;
            let comment = self.names.comment(&header, &bytes);
            self.captured.frames += 1;
            self.captured.bytes += bytes.len() as u64;
            let (time_ns, length) = (header.time_ns, header.length);
            let outgoing = Some(outgoing).filter(|_| !within);
            self.writer.packet(&Packet { interface, time_ns, outgoing, length, bytes, comment })?;
        }
        // A viewer shows what is there.
        self.writer.flush()
    }

    fn is_full(&self) -> bool {
        self.count.is_some_and(|count| self.captured.frames >= count)
    }

    /// The counts, once for all interfaces.
    fn end(&mut self) -> io::Result<()> {
        let Captured { matched, dropped, .. } = self.captured;
        self.writer.statistics(0, now_ns(), matched, dropped)?;
        self.writer.flush()
    }
}
