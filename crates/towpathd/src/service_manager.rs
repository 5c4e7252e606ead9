//! Tells systemd, or whoever else listens at `NOTIFY_SOCKET`, that the service serves, runs and ends (sd_notify(3)).

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use towpath_broker::Notice;

/// As often as a broker says that it runs.
const BEAT: Duration = Duration::from_secs(5);

/// Tells it, and waits for nobody: a service goes on that cannot.
pub fn tell(notice: Notice) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    match send(&socket, notice) {
        // The next beat says the same.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock && notice == Notice::Alive => {}
        Err(error) => tracing::warn!(%error, "the service manager is not told of {notice:?}"),
        Ok(()) => {}
    }
}

fn send(to: &OsStr, notice: Notice) -> io::Result<()> {
    let text: &[u8] = match notice {
        Notice::Serving => b"READY=1\n",
        Notice::Alive => b"WATCHDOG=1\n",
        Notice::Ending => b"STOPPING=1\n",
    };
    let address = match to.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        path => SocketAddrUnix::new(path)?,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    sendto(socket, text, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &address)?;
    Ok(())
}

/// Tells that a service without a broker serves, and from then on that it runs.
pub fn tell_for_good() {
    tell(Notice::Serving);
    if std::env::var_os("WATCHDOG_USEC").is_none() {
        return;
    }
    let beat = || {
        loop {
            std::thread::sleep(BEAT);
            tell(Notice::Alive);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("watchdog".into()).spawn(beat) {
        tracing::warn!(%error, "the service manager is not told that the service runs");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_service_manager_that_does_not_read_holds_nobody_up() {
        let path = std::env::temp_dir().join(format!("towpath-notify-{}", std::process::id()));
        let listener = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), Notice::Serving).unwrap();
        let mut text = [0; 32];
        let length = listener.recv(&mut text).unwrap();
        assert_eq!(&text[..length], b"READY=1\n");
        // More than any queue takes.
        let refused = (0..100_000).find_map(|_| send(path.as_os_str(), Notice::Alive).err());
        assert_eq!(refused.unwrap().kind(), io::ErrorKind::WouldBlock);
        std::fs::remove_file(&path).unwrap();
        assert!(send(path.as_os_str(), Notice::Ending).is_err());
    }
}
