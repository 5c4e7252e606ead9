//! Files that the stack sends itself. The program's `sendfile` names a part of an open file, and its bytes do not pass
//! through the ring. The service is shown each file once, and again after the file has changed.

use core::num::NonZeroU32;
use core::sync::atomic::Ordering;
use libc::c_int;
use std::sync::Mutex;
use towpath_client::command::{self, Failure};
use towpath_client::private::flag;
use towpath_client::session::{Session, ShownFile};
use towpath_client::socket::Socket;
use towpath_client::view::View;
use towpath_client::{sys, wait};
use towpath_ring::lines::app_flags;
use towpath_ring::sideband::{FILE_MOST, SidebandCommand};

/// Shorter parts go through the ring, because copying them costs less than a command.
const LEAST: u64 = 64 << 10;
/// Bytes that the first command asks the stack to send.
const FIRST: u32 = 4 << 20;
/// The fewest bytes that a command asks for, if there are as many.
const LOWEST: u32 = 256 << 10;
/// The next command asks for twice as much if the last was done in less time than this, ms.
const QUICK_MS: u32 = 250;
/// The next command asks for half as much if the last took longer than this, ms.
const SLOW_MS: u32 = 1000;
/// The most files that a process remembers having shown.
const MOST: usize = 32;

/// The attributes that tell one content of a file from another.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A file that has been shown.
#[derive(Clone, Copy)]
struct Known {
    /// Numbers of the session and of the process that has shown it. A forked child has a process number of its own.
    by: (u32, u32),
    identity: Identity,
    /// Its number; `None` = the service does not want it.
    file: Option<NonZeroU32>,
}

/// The most recently used first. A call that finds it locked sends through the ring, so neither a signal handler nor a
/// forked child waits for it.
static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// A regular file to send from.
pub struct Source {
    input: c_int,
    identity: Identity,
    file: NonZeroU32,
    /// The offset at which the call began.
    start: u64,
    /// Does the call move the file's own position?
    moves: bool,
}

impl Source {
    /// The file `input` from `offset` or its own position on, for up to `len` bytes. `None`: the stack of this
    /// connection does not take it.
    pub fn of(view: &View, input: c_int, offset: Option<i64>, len: usize) -> Option<Self> {
        if (len as u64) < LEAST || view.direct.is_some() || !view.is_established() || view.session.takes_no_files() {
            return None;
        }
        let identity = identity(input)?;
        let flags = sys::fcntl(input, libc::F_GETFL, 0).ok()?;
        if flags & libc::O_ACCMODE == libc::O_WRONLY || flags & libc::O_PATH != 0 {
            return None;
        }
        let start = match offset {
            Some(offset) => offset,
            None => sys::lseek(input, 0, libc::SEEK_CUR).ok()?,
        };
        let start = u64::try_from(start).ok()?;
        if identity.size.saturating_sub(start) < LEAST {
            return None;
        }
        let file = number(view.session, input, identity)?;
        Some(Self { input, identity, file, start, moves: offset.is_none() })
    }

    /// Tells the stack to send up to `left` bytes after the first `done` bytes of the call. Returns how many it will
    /// send. 0 = it is still sending the bytes of an earlier command. `None` = the rest is for the ring. Under
    /// `sending`.
    pub fn post(&self, view: &View, done: usize, left: usize) -> Option<usize> {
        let offset = self.start.checked_add(done as u64)?;
        let there = self.identity.size.saturating_sub(offset).min(left as u64);
        if there < LEAST {
            return None;
        }
        if view.is_sending_file() {
            return Some(0);
        }
        let most = window(view, there);
        let length = there.min(most.into()) as u32;
        let at = view.app.tx_tail.load(Ordering::Relaxed);
        // The stack counts them before it answers.
        view.private.flags.fetch_or(flag::FILE, Ordering::Relaxed);
        let posted = view.private.sent.load(Ordering::Relaxed);
        view.private.sent.store(posted.wrapping_add(length.into()), Ordering::Relaxed);
        let told = {
            let _commanding = view.private.commanding.lock()?;
            command::post(
                view.session,
                view.slot,
                &SidebandCommand::File { at, file: self.file.get(), offset, length }.command(),
            )
        };
        if let Err(failure) = told {
            if failure == Failure::Errno(libc::ETIMEDOUT) {
                // Nobody knows whether it will still send them, so the stream cannot go on.
                view.socket().mark_app(app_flags::ABORT | app_flags::CLOSED, true);
            }
            view.private.sent.store(posted, Ordering::Relaxed);
            forget(self.file);
            return None;
        }
        if self.moves {
            let _ = sys::lseek(self.input, (offset + u64::from(length)) as i64, libc::SEEK_SET);
        }
        Some(length as usize)
    }
}

/// How many of the `there` bytes of a file the stack is told to send. Each time costs a command and a wake-up, so a
/// fast connection is told much at a time. A slow one is told little, so that a waiting thread sees progress. Under
/// `sending`, when nothing is on its way.
fn window(view: &View, there: u64) -> u32 {
    // Low half: the bytes of the last command. High half: its time, if there was more to send then.
    let word = &view.private.read;
    let (last, told_ms) = (word.load(Ordering::Relaxed) as u32, (word.load(Ordering::Relaxed) >> 32) as u32);
    let now_ms = (sys::clock(libc::CLOCK_MONOTONIC_COARSE).as_millis() as u32).max(1);
    let window = match (last, now_ms.wrapping_sub(told_ms)) {
        (0, _) => FIRST,
        (last, ..QUICK_MS) if told_ms != 0 => (2 * last).min(FILE_MOST),
        (last, SLOW_MS..) if told_ms != 0 => (last / 2).max(LOWEST),
        (last, _) => last,
    };
    let more = if there > window.into() { now_ms } else { 0 };
    word.store(u64::from(more) << 32 | u64::from(window), Ordering::Relaxed);
    // `SO_SNDBUF` limits the bytes on their way.
    match view.session.region.options(view.slot).send_buffer.load(Ordering::Relaxed) {
        0 => window,
        bytes => window.min(bytes.max(LEAST as u32)),
    }
}

/// A blocking call returns when the kernel has all bytes, as on Linux. Afterwards the program may change the file.
pub fn settle(socket: &Socket) {
    if socket.has(flag::NONBLOCK) || !socket.view().is_sending_file() {
        return;
    }
    socket.want_room();
    let deadline = wait::deadline(socket.private().send_timeout_us.load(Ordering::Relaxed));
    // An interruption needs no answer here: the bytes are on their way and count as sent.
    let _ = wait::until(socket, deadline, || socket.send_closed() || !socket.view().is_sending_file());
}

/// `None`: it is not a regular file, or its attributes cannot be had.
fn identity(input: c_int) -> Option<Identity> {
    let stat = rustix::fs::fstat(sys::borrow(&input)).ok()?;
    let regular = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    regular.then_some(Identity {
        device: stat.st_dev,
        inode: stat.st_ino,
        size: stat.st_size as u64,
        modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
        changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
    })
}

/// The number of a file, by which the stack knows it.
fn number(session: &Session, input: c_int, identity: Identity) -> Option<NonZeroU32> {
    let by = (session.number, session.process());
    let mut known = KNOWN.try_lock().ok()?;
    if let Some(at) = known.iter().position(|one| one.by == by && one.identity == identity) {
        known[..=at].rotate_right(1);
        return known[0].file;
    }
    known.retain(|one| one.by.0 != by.0 || one.by == by);
    // Replaces an older content of the same file, else the least recently used file.
    let same = |one: &Known| (one.identity.device, one.identity.inode) == (identity.device, identity.inode);
    let old = known.iter().position(same).or_else(|| if known.len() < MOST { None } else { Some(MOST - 1) });
    let replaces = old.and_then(|at| known.remove(at).file);
    let file = match session.show_file(input, replaces)? {
        ShownFile::Number(file) => Some(file),
        ShownFile::Unwanted => None,
    };
    known.insert(0, Known { by, identity, file });
    file
}

/// Forgets a file that the stack does not know.
fn forget(file: NonZeroU32) {
    if let Ok(mut known) = KNOWN.try_lock() {
        known.retain(|one| one.file != Some(file));
    }
}
