//! Registration with the service, by the first call that needs it.

use crate::io::fault;
use crate::observe::{fallback, measure};
use crate::ready::service_death;
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::unix::ffi::OsStrExt;
use towpath_client::lock::Lock;
use towpath_client::session::{self, Session};
use towpath_client::sessions;
use towpath_client::stacks::{self, Absent, SocketPlace, WantedBy};
use towpath_client::sys::borrow;

/// Held while the process registers with the service.
static REGISTERING: Lock = Lock::new();
static TRIED: AtomicBool = AtomicBool::new(false);

/// The session. The first call registers with the service; if that fails, the answer is `None` for good. After the
/// service's end it is `None` until there is another.
pub fn start() -> Option<&'static Session> {
    if !TRIED.load(Ordering::Acquire) {
        let _registering = REGISTERING.lock()?;
        if !TRIED.load(Ordering::Acquire) {
            if let Some(path) = std::env::var_os("TOWPATH_SOCKET") {
                match sessions::open(path.as_bytes()) {
                    Ok(session) => registered(session),
                    Err(error) => {
                        fallback::no_session(Some(&error));
                        complain(&format!("{}: {error}", path.to_string_lossy()));
                    }
                }
            } else {
                fallback::no_session(None);
                complain("TOWPATH_SOCKET is not set");
            }
            TRIED.store(true, Ordering::Release);
        }
    }
    service_death::look();
    session::get().filter(|session| !session.is_dead())
}

/// The session whose stack serves the network namespace of a socket: `own`, or one of another stack. `None`: it is its
/// kernel's.
pub fn serving(own: &'static Session, fd: i32) -> Option<&'static Session> {
    serving_by(own, fd, WantedBy::Call).ok()
}

/// [`serving`], with the reason why there is none.
pub fn serving_by(own: &'static Session, fd: i32, by: WantedBy) -> Result<&'static Session, Absent> {
    if own.is_foreign(fd) { stacks::of_namespace(own, fd, by) } else { Ok(own) }
}

/// A process that has not registered yet never will: its sockets are the kernel's.
pub fn give_up() {
    if let Some(_registering) = REGISTERING.lock()
        && !TRIED.swap(true, Ordering::AcqRel)
    {
        fallback::no_session(None);
    }
}

/// The place of the socket behind a descriptor that has come from another process. This process joins that socket's
/// client, with its first session or one more. `None`: the socket cannot be used here.
pub fn adopt(fd: i32) -> Option<SocketPlace> {
    if !TRIED.load(Ordering::Acquire) {
        let _registering = REGISTERING.lock()?;
        if !TRIED.load(Ordering::Acquire) {
            let path = std::env::var_os("TOWPATH_SOCKET")?;
            registered(stacks::join(path.as_bytes(), fd)?);
            TRIED.store(true, Ordering::Release);
        }
    }
    let session = session::get().filter(|session| !session.is_dead())?;
    stacks::adopt(session, fd)
}

/// The process has a session.
pub fn registered(session: &Session) {
    measure::start(session);
    fault::install();
}

/// Must TCP sockets fail without the service, rather than be the kernel's?
pub fn required() -> bool {
    std::env::var_os("TOWPATH_REQUIRE").is_some_and(|value| value == "1")
}

/// The error if the service is required, and has died or never ran. Other reasons for a fallback give no error, so that
/// servers on kernel sockets stay reachable.
pub fn required_but_gone() -> Option<i32> {
    (required() && session::get().is_none_or(Session::is_dead)).then_some(libc::ENETDOWN)
}

fn complain(why: &str) {
    if required() {
        let line = format!("towpath: no service ({why}); TCP sockets fail because TOWPATH_REQUIRE=1\n");
        let _ = rustix::io::write(borrow(&libc::STDERR_FILENO), line.as_bytes());
    }
}
