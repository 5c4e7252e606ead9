//! A running capture: looks into the memory again and again, and has what is there written.

use super::output::Output;
use crate::complain;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};
use towpath_capture::pcapng::{Interface, Writer};
use towpath_capture::tap::now_ns;
use towpath_capture::{Reader, Sheet};
use towpath_service::api::{Asked, Capturing};

/// Time between two looks into the memory.
const LOOK: Duration = Duration::from_millis(5);
/// How long a frame waits for those that other threads have seen before it, and for its connection's name.
const HOLD_NS: u64 = 20_000_000;
/// From when on, and how often, progress is shown.
const PROGRESS: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(1);

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
                progress(terminal, shown, sheet.written().0, reader.counts().1);
            }
        };
        if terminal && shown > 0 {
            let _ = writeln!(io::stderr());
        }
        result.and_then(|()| self.finish(&mut reader, &mut sheet)).or_else(gone)?;
        let ((frames, bytes), (matched, dropped)) = (sheet.written(), reader.counts());
        sheet.end(now_ns(), matched, dropped).or_else(gone)?;
        Ok(Captured { stack: self.asked.answer.stack, frames, matched, dropped, bytes })
    }

    fn sheet<'a>(&self, output: Output<'a>) -> io::Result<Sheet<Output<'a>>> {
        let Capturing { stack, ports } = &self.asked.answer;
        let mut writer = Writer::new(output, concat!("towpath ", env!("CARGO_PKG_VERSION")))?;
        let places = places(stack, ports);
        for (name, description) in &places {
            let (name, description) = (name.clone(), (*description).into());
            writer.interface(&Interface { name, description, filter: self.filter.clone(), snap: self.snap })?;
        }
        writer.flush()?;
        Ok(Sheet::new(writer, places.len(), self.count))
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
    fn finish(&mut self, reader: &mut Reader, sheet: &mut Sheet<Output<'_>>) -> io::Result<()> {
        let conversation = &mut self.asked.conversation;
        let _ = conversation.shutdown(Shutdown::Write);
        // The service closes it when no thread of the stack leaves frames any more.
        let _ = conversation.read(&mut [0; 1]);
        while sheet.take(reader) {
            sheet.write(u64::MAX)?;
        }
        Ok(())
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
