//! What systemd is told of the service, or whoever else listens at `NOTIFY_SOCKET`. Without that variable nobody is told.

use sd_notify::{NotifyState, notify};
use std::time::Duration;
use towpath_broker::Notice;

/// Tells it. A service goes on that cannot.
pub fn tell(notice: Notice) {
    let state = match notice {
        Notice::Serving => NotifyState::Ready,
        Notice::Alive => NotifyState::Watchdog,
        Notice::Ending => NotifyState::Stopping,
    };
    if let Err(error) = notify(&[state]) {
        tracing::warn!(%error, "the service manager is not told of {notice:?}");
    }
}

/// Tells that a service without a broker serves, and from then on that it runs.
pub fn tell_for_good() {
    tell(Notice::Serving);
    if std::env::var_os("WATCHDOG_USEC").is_none() {
        return;
    }
    let beat = || loop {
        std::thread::sleep(BEAT);
        tell(Notice::Alive);
    };
    if let Err(error) = std::thread::Builder::new().name("watchdog".into()).spawn(beat) {
        tracing::warn!(%error, "the service manager is not told that the service runs");
    }
}

/// As often as a broker looks for its worker.
const BEAT: Duration = Duration::from_secs(5);
