//! The process between a service and systemd's journal. It takes what the service's processes write to standard error.
//!
//! The process that serves may send nothing to sockets of others, and the journal's takes fields from whoever can send to it
//! (`tracing-journald` does it so). So this one does, and it passes on only what a line may have. It has every line as soon as it is written: a
//! process that dies a moment later loses none.
//!
//! There are two pipes: one of the process that starts the others, and one of those that may fall. Whoever has an end of a pipe can
//! begin a line that another's ends, make its writes fail, and read from it (by `/proc/self/fd`, which no sandbox forbids). So who has
//! fallen does this to its own lines.

use super::record::Record;
use crate::descriptor_table;
use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::thread::CapabilitySet;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;
use std::time::Duration;

/// Where the journal takes lines with fields (systemd.io/JOURNAL_NATIVE_PROTOCOL).
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Its name among processes.
const NAME: &std::ffi::CStr = c"towpathd-log";
/// Bytes of the longest line.
const MOST: usize = 256 << 10;
/// Bytes that a pipe has at most.
const PIPE: usize = 64 << 10;

/// How long this process waits at its end for a journal that does not read, in pauses.
const PAUSES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);
/// The journal has received the last line. It then looks in `/proc` for whose it is.
const LOOK: Duration = Duration::from_millis(50);

/// Where processes write that may fall.
static APART: OnceLock<OwnedFd> = OnceLock::new();

/// From now on this process, and those that it forks, write to a relay on standard error. It needs a journal, and ends with
/// the last of them. The process must have one thread.
pub fn start() -> io::Result<()> {
    let journal = UnixDatagram::unbound()?;
    // It is there and takes lines. This one is none.
    journal.send_to(&[], JOURNAL)?;
    // Pipes, because whoever has an end of a socket can shut it down for all.
    let ((own, write), (others, apart)) = (pipe_with(PipeFlags::CLOEXEC)?, pipe_with(PipeFlags::CLOEXEC)?);
    for read in [&own, &others] {
        // Another reader may be first.
        rustix::io::ioctl_fionbio(read, true)?;
    }
    let main = std::process::id();
    // SAFETY: this process has one thread, so the child may do what it could.
    match unsafe { libc::fork() } {
        0 => {
            drop((write, apart));
            serve([Source::of(own, None), Source::of(others, Some(main))], &journal);
            std::process::exit(0);
        }
        ..0 => Err(io::Error::last_os_error()),
        _ => {
            becomes(libc::STDERR_FILENO, &write)?;
            let _ = APART.set(apart);
            Ok(())
        }
    }
}

/// This process, which may fall, writes from now on apart from the one that has started it. It has one thread.
pub fn apart() -> io::Result<()> {
    let Some(write) = APART.get() else { return Ok(()) };
    // The same stream, whose lines are the service's first process's to the journal.
    if super::leads_to_journal(io::stdout()) {
        becomes(libc::STDOUT_FILENO, write)?;
    }
    becomes(libc::STDERR_FILENO, write)
}

/// A standard stream leads there from now on.
fn becomes(stream: libc::c_int, write: &OwnedFd) -> io::Result<()> {
    // SAFETY: a standard stream is nobody's to close, and this leaves it open.
    let done = unsafe { libc::dup2(write.as_raw_fd(), stream) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A pipe.
struct Source {
    /// `None`: nobody can write any more.
    from: Option<OwnedFd>,
    /// What no line has ended yet.
    text: Vec<u8>,
    /// The process that does not write there, whatever a line says.
    no_line_of: Option<u32>,
}

impl Source {
    fn of(from: OwnedFd, no_line_of: Option<u32>) -> Self {
        Self { from: Some(from), text: Vec::new(), no_line_of }
    }

    /// Reads a part. What it ends is returned.
    fn read(&mut self, part: &mut [u8]) -> Vec<Record> {
        let Some(from) = &self.from else { return Vec::new() };
        match rustix::io::read(from, &mut *part) {
            Ok(length) if length > 0 => {
                self.text.extend_from_slice(&part[..length]);
                let lines = lines(&mut self.text);
                lines.iter().filter_map(|line| self.record(line)).collect()
            }
            Err(Errno::INTR | Errno::AGAIN) => Vec::new(),
            _ => {
                self.from = None;
                let last = std::mem::take(&mut self.text);
                self.record(&last).into_iter().collect()
            }
        }
    }

    /// A record is one line, because JSON has no line feeds inside. Processes that write at once do not mix lines of up to PIPE_BUF.
    fn record(&self, line: &[u8]) -> Option<Record> {
        let text = String::from_utf8_lossy(line);
        let record = Record::of_line(line);
        let record = record.or_else(|| (!text.trim().is_empty()).then(|| Record::of_text(text.trim_end())))?;
        Some(match self.no_line_of {
            Some(process) => record.not_of(process),
            None => record,
        })
    }
}

/// Passes everything on until nobody can write any more.
fn serve(mut sources: [Source; 2], journal: &UnixDatagram) {
    let _ = rustix::thread::set_name(NAME);
    // The service manager tells all processes to end, and the last lines are still to come.
    let mut ends = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(|signal| ends.add(signal));
    let _ = ends.thread_block();
    // Whoever waits for the end of a pipe must not wait for this process.
    let kept = sources.iter().filter_map(|source| source.from.as_ref()).map(AsFd::as_fd);
    let _ = descriptor_table::separate(&kept.chain([journal.as_fd()]).collect::<Vec<_>>());
    let _ = towpath_sandbox::privileges::keep_only(CapabilitySet::empty());
    let mut part = vec![0; PIPE];
    loop {
        let open = sources.iter().filter_map(|source| source.from.as_ref());
        let mut waiting: Vec<_> = open.map(|from| PollFd::new(from, PollFlags::IN)).collect();
        if waiting.is_empty() {
            break;
        }
        match poll(&mut waiting, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => break,
        }
        let ready: Vec<bool> = waiting.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (source, ready) in sources.iter_mut().filter(|source| source.from.is_some()).zip(ready) {
            if ready {
                source.read(&mut part).iter().for_each(|record| send(journal, record));
            }
        }
    }
    until_received(journal);
}

/// The journal knows the unit of a line by the process that sends it, if that is still there.
fn until_received(journal: &UnixDatagram) {
    for _ in 0..PAUSES {
        let mut unread: libc::c_int = 0;
        // SAFETY: the kernel writes an int there.
        let done = unsafe { libc::ioctl(journal.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
        if done != 0 || unread == 0 {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    std::thread::sleep(LOOK);
}

/// Takes the lines that are whole. One without an end counts as whole when it is too long.
fn lines(text: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let end = text.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
    let end = end.or_else(|| (text.len() > MOST).then_some(text.len())).unwrap_or(0);
    let whole: Vec<u8> = text.drain(..end).collect();
    whole.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// A journal that is started again takes lines from its stream, which systemd has kept.
fn send(journal: &UnixDatagram, record: &Record) {
    if journal.send_to(&record.of_journal(), JOURNAL).is_err() {
        let _ = io::stderr().write_all(record.line().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_are_whole_however_they_come() {
        let mut text = b"{\"a\":1}\nplain\nbeg".to_vec();
        let whole = |text: &mut Vec<u8>| -> Vec<String> {
            lines(text)
                .iter()
                .map(|line| String::from_utf8_lossy(line).into_owned())
                .filter(|line| !line.is_empty())
                .collect()
        };
        assert_eq!(whole(&mut text), ["{\"a\":1}", "plain"]);
        assert!(whole(&mut text).is_empty() && text == b"beg");
        text.extend_from_slice(b"un\n");
        assert_eq!(whole(&mut text), ["begun"]);
        let mut endless = vec![b'x'; MOST + 1];
        assert_eq!((whole(&mut endless).len(), endless.len()), (1, 0));
    }

    #[test]
    fn who_has_fallen_spoils_and_forges_no_line_of_the_process_that_has_started_it() {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let ((own, main), (others, fallen)) = (pipe(), pipe());
        let (mut own, mut others) = (Source::of(own, None), Source::of(others, Some(7)));
        let line = b"{\"priority\":3,\"text\":\"it died\",\"fields\":{\"SYSLOG_PID\":\"7\"}}\n";
        rustix::io::write(&fallen, &[b'x'; 4000]).unwrap();
        rustix::io::write(&main, line).unwrap();
        let mut part = vec![0; PIPE];
        assert!(others.read(&mut part).is_empty(), "it has not ended its line");
        let shown = |record: &Record| String::from_utf8_lossy(&record.of_journal()).into_owned();
        let said = own.read(&mut part);
        assert!(said.len() == 1 && shown(&said[0]).contains("it died") && shown(&said[0]).contains("SYSLOG_PID"));
        rustix::io::write(&fallen, &[b"\n", &line[..]].concat()).unwrap();
        let said: Vec<String> = others.read(&mut part).iter().map(shown).collect();
        assert!(said.len() == 2 && said[1].contains("it died") && !said[1].contains("SYSLOG_PID"), "{said:?}");
        // What has no end yet has one when nobody writes any more.
        rustix::io::write(&fallen, b"last").unwrap();
        drop(fallen);
        assert!(others.read(&mut part).is_empty());
        let last = others.read(&mut part);
        assert!(last.len() == 1 && shown(&last[0]).contains("last") && others.from.is_none());
    }
}
