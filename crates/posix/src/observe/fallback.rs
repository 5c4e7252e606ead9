//! Fallbacks: sockets that were left to the kernel, and why. `towpath doctor` shows these counters. Without a report
//! (`TOWPATH_REPORT`) each count is one load; calls that move bytes count nothing here.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use libc::c_int;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use towpath_client::session::{Session, SessionError};
use towpath_client::socket::Socket;
use towpath_client::{process, session};
use towpath_hook::{exec, loaded, program};
use towpath_ring::report::{self, Call, Count, HookMethod, Record, Report};

static REPORT: AtomicPtr<Report> = AtomicPtr::new(core::ptr::null_mut());
/// This process's record; null = not made yet.
static RECORD: AtomicPtr<Record> = AtomicPtr::new(core::ptr::null_mut());
/// How this program is hooked, its command line, and why it is hooked so. Records of its children have it too.
static SELF: OnceLock<(HookMethod, Vec<u8>, &'static str)> = OnceLock::new();
/// The file behind descriptor 2 when the program began. A program may put a file of its own there, where nobody else
/// must write.
static STDERR: OnceLock<Option<(u64, u64)>> = OnceLock::new();
/// Why there is no session.
static NO_SESSION: AtomicU32 = AtomicU32::new(Count::ServiceGone as u32);

/// Called once when the library is loaded.
pub fn init() {
    let _ = STDERR.set(stderr());
    let Some(path) = std::env::var_os(report::VARIABLE) else { return };
    let Ok(memfd) = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return };
    let Ok(report) = Report::map(memfd.as_fd()) else { return };
    let _ = SELF.set(about());
    REPORT.store(Box::into_raw(Box::new(report)), Ordering::Release);
    record();
    // What is there now is no library that is loaded at run time.
    loaded::own_calls();
    // SAFETY: the function takes nothing, and the library is never unloaded.
    unsafe { libc::atexit(at_exit) };
}

/// In a forked child: the first count will make a record of its own.
pub fn forked() {
    RECORD.store(core::ptr::null_mut(), Ordering::Relaxed);
}

#[inline]
fn report() -> Option<&'static Report> {
    // SAFETY: the pointer is null or a leaked box, and never changes again.
    unsafe { REPORT.load(Ordering::Relaxed).as_ref() }
}

/// This process's record, made if there is none.
#[cold]
fn record() -> Option<&'static Record> {
    let known = RECORD.load(Ordering::Acquire);
    // SAFETY: the pointer is null or a record of the report, which is leaked.
    if let Some(record) = unsafe { known.as_ref() } {
        return Some(record);
    }
    let (way, line, why) = SELF.get()?;
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let record = report()?.enter(process::pid() as u32, parent as u32, *way, line, why.as_bytes())?;
    RECORD.store(core::ptr::from_ref(record).cast_mut(), Ordering::Release);
    Some(record)
}

/// Counts one more of these.
#[inline]
pub fn count(what: Count) {
    if report().is_some() {
        count_in_report(what);
    }
}

#[cold]
fn count_in_report(what: Count) {
    if let Some(record) = record() {
        record.count(what);
        look_at_libraries(record);
    }
}

/// Counts libraries that the program has loaded since and that make system calls of their own, and names the last one.
#[cold]
fn look_at_libraries(record: &Record) {
    if !SELF.get().is_some_and(|(way, ..)| *way == HookMethod::Preload) {
        return;
    }
    for library in loaded::own_calls() {
        record.count(Count::OwnCalls);
        let name = library.file_name().unwrap_or_default().to_string_lossy();
        record.say(format!("{name} makes system calls itself").as_bytes());
    }
}

extern "C" fn at_exit() {
    // SAFETY: the pointer is null or a record of the report, which is leaked.
    if let Some(record) = unsafe { RECORD.load(Ordering::Acquire).as_ref() } {
        look_at_libraries(record);
    }
}

/// Counts an option that is refused because the library does not know it.
#[inline]
pub fn refused_if(errno: c_int, call: Call, level: c_int, name: c_int) {
    if matches!(errno, libc::ENOPROTOOPT | libc::EOPNOTSUPP)
        && report().is_some()
        && let Some(record) = record()
    {
        record.refused(call, level, name);
    }
}

/// Counts a socket that is accelerated, by the stack or as a direct connection.
#[inline]
pub fn accelerated(socket: &Socket, [by_stack, direct]: [Count; 2]) {
    if report().is_some() {
        count_in_report(if socket.direct().is_some() { direct } else { by_stack });
    }
}

/// Counts a socket that is not TCP.
pub fn not_tcp(domain: c_int, kind: c_int) {
    if report().is_none() {
        return;
    }
    count_in_report(match (domain, kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)) {
        (libc::AF_UNIX, _) => Count::Unix,
        (libc::AF_NETLINK, _) => Count::Netlink,
        (libc::AF_PACKET, _) | (libc::AF_INET | libc::AF_INET6, libc::SOCK_RAW) => Count::Raw,
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM) => Count::Udp,
        _ => Count::OtherProtocol,
    });
}

/// Notes why the program could not register; `None` = nobody has told it where the service is.
pub fn no_session(error: Option<&SessionError>) {
    let why = error.map_or(Count::NoVariable, SessionError::reason);
    NO_SESSION.store(why as u32, Ordering::Relaxed);
}

/// The program waits for accelerated sockets by system calls of its own, and the kernel is made to tell of them. The
/// process says so once.
#[cold]
pub fn waits_itself() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    if let Some(record) = record() {
        record.count(Count::OwnCalls);
        record.say(b"it waits for sockets by system calls of its own");
    }
    if STDERR.get() == Some(&stderr()) {
        let line = b"towpath: this program waits for sockets by system calls of its own; --hook inject is faster\n";
        let _ = rustix::io::write(towpath_client::sys::borrow(&libc::STDERR_FILENO), line);
    }
}

/// The service is gone, and a listener goes on as the kernel's. The first process of the client says so.
pub fn service_is_gone(session: &Session) {
    count(Count::ServiceGone);
    if session.header().said_gone.swap(1, Ordering::Relaxed) == 0 && STDERR.get() == Some(&stderr()) {
        let line = b"towpath: the service is gone; listeners go on with the kernel alone\n";
        let _ = rustix::io::write(towpath_client::sys::borrow(&libc::STDERR_FILENO), line);
    }
}

/// There is a service again after this session's. The first process of the client says so, if one has said the other.
pub fn service_is_back(lost: &Session) {
    let header = lost.header();
    if header.said_gone.load(Ordering::Relaxed) != 0
        && header.said_back.swap(1, Ordering::Relaxed) == 0
        && STDERR.get() == Some(&stderr())
    {
        let line = b"towpath: the service is there again; listeners have joined it\n";
        let _ = rustix::io::write(towpath_client::sys::borrow(&libc::STDERR_FILENO), line);
    }
}

/// The file behind descriptor 2; `None` if there is none.
fn stderr() -> Option<(u64, u64)> {
    let file = rustix::fs::fstat(towpath_client::sys::borrow(&libc::STDERR_FILENO)).ok()?;
    Some((file.st_dev, file.st_ino))
}

/// Why there is no session.
pub fn why_no_session() -> Count {
    if session::get().is_some() {
        return Count::ServiceGone;
    }
    Count::ALL.get(NO_SESSION.load(Ordering::Relaxed) as usize).copied().unwrap_or(Count::ServiceGone)
}

/// How this program is hooked, its command line, and why it is hooked so.
fn about() -> (HookMethod, Vec<u8>, &'static str) {
    let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let words: Vec<&[u8]> = line.strip_suffix(b"\0").unwrap_or(&line).split(|byte| *byte == 0).collect();
    let loaded = std::env::current_exe().is_ok_and(|exe| exe.file_name() == Some(OsStr::new(exec::LOADER)));
    match words.as_slice() {
        [_loader, path, own @ ..] if loaded => {
            let why = match program::method_for(Path::new(OsStr::from_bytes(path))) {
                program::HookMethod::Inject(why) | program::HookMethod::Either(why) => why,
                _ => "--hook inject",
            };
            (HookMethod::Inject, own.join(&b' '), why)
        }
        words => (HookMethod::Preload, words.join(&b' '), ""),
    }
}

/// Counts a program that this one executes and that is not hooked.
pub fn left_alone(path: &CStr, why: &str) {
    let Some(report) = report().filter(|_| Path::new(OsStr::from_bytes(path.to_bytes())).exists()) else { return };
    // The program will have this process number, even if a `vfork` child executes it.
    let pid = towpath_client::sys::getpid();
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    report.enter(pid as u32, parent as u32, HookMethod::None, path.to_bytes(), why.as_bytes());
}
