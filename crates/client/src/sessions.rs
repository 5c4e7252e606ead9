//! The sessions of the process: the first, more, and the end of those whose services have gone.

use crate::session::{self, SESSIONS, STARTING, Session, SessionError, call, coarse_ms};
use crate::{callbacks, context, descriptor_reserve, direct};
use core::sync::atomic::Ordering;
use towpath_ring::layout::OFFSET_BITS;

/// After its service's end a session is kept so long, for threads that are in a call on one of its sockets.
const LINGER_MS: u64 = 2000;

/// Gives up the sessions whose services have gone and whose last sockets are closed. Their numbers are free then, and
/// their memory and descriptors go. False: some sessions whose services have gone are kept. The caller holds
/// `STARTING`.
pub(crate) fn sweep() -> bool {
    let now_ms = coarse_ms();
    let mut swept = true;
    for session in session::all().filter(|session| session.is_dead()) {
        let is_own = session::get().is_some_and(|own| core::ptr::eq(own, session));
        let lingers = now_ms.saturating_sub(session.died_ms.load(Ordering::Relaxed)) < LINGER_MS;
        if is_own || lingers || (callbacks::get().is_session_open)(session.number) {
            swept = false;
            continue;
        }
        (callbacks::get().forget_session)(session.number);
        context::forget_session(session.number);
        direct::forget_session(session);
        session::set_numbered(session.number, core::ptr::null_mut());
        session.retire();
    }
    swept
}

/// Adds a session under a free number, if there is one. The caller holds `STARTING`.
pub(crate) fn add(make: impl FnOnce() -> Option<Session>) -> Option<&'static Session> {
    sweep();
    let number = (0..SESSIONS as u32).find(|number| session::numbered(*number).is_none())?;
    let mut session = make()?;
    (session.number, session.tag) = (number, number << OFFSET_BITS);
    let session = Box::into_raw(Box::new(session));
    session::set_numbered(number, session);
    session::numbered(number)
}

/// The process's own session. Registers with the service at `path` if there is none yet.
pub fn open(path: &[u8]) -> Result<&'static Session, SessionError> {
    let _starting = STARTING.lock().ok_or_else(|| SessionError::Process(std::io::ErrorKind::WouldBlock.into()))?;
    match session::get() {
        Some(session) if session.is_dead() => {
            Err(SessionError::Gone(std::io::Error::from_raw_os_error(libc::ENETDOWN)))
        }
        Some(session) => Ok(session),
        None => register(path),
    }
}

/// Registers. The caller holds `STARTING`.
fn register(path: &[u8]) -> Result<&'static Session, SessionError> {
    let session = Session::register(path, call(path)?, 0)?;
    install(session).ok_or_else(|| SessionError::errno(libc::ENOSPC))
}

/// Makes a session the process's own. The caller holds `STARTING`.
pub(crate) fn install(session: Session) -> Option<&'static Session> {
    let session = add(move || {
        let mut session = session;
        session.can_subscribe = true;
        Some(session)
    })?;
    session::set_own(session);
    descriptor_reserve::fill(session.control());
    Some(session)
}
