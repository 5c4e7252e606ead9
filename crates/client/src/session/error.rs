//! Why a process has no session.

use std::fmt;
use std::io::{self, ErrorKind};
use towpath_ring::MapError;
use towpath_ring::report::Count;

/// The remedy where library and service speak different contracts.
const ONE_VERSION: &str = "install one version of both, and start the service and the program again";

/// Why a process could not register with the service.
#[derive(Debug)]
pub enum SessionError {
    /// Nobody answers at the service's socket.
    Unreachable(io::Error),
    /// The service has answered with this errno.
    Refused(i32),
    /// Library and service do not speak the same version.
    Version(io::Error),
    /// The service ended while it was asked.
    Gone(io::Error),
    /// The region does not fit into this process's memory.
    Memory(io::Error),
    /// Something else in this process failed, such as its limit of descriptors.
    Process(io::Error),
}

impl SessionError {
    /// The error of a step in this process.
    pub(crate) fn errno(errno: i32) -> Self {
        Self::Process(io::Error::from_raw_os_error(errno))
    }

    /// The error of a conversation with the service.
    pub(crate) fn conversation(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidData => Self::Version(error),
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Self::Gone(error),
            _ => Self::Process(error),
        }
    }

    /// The reason that `towpath doctor` shows.
    pub fn reason(&self) -> Count {
        match self {
            Self::Unreachable(error) => match error.kind() {
                ErrorKind::PermissionDenied => Count::NotAdmitted,
                ErrorKind::WouldBlock => Count::ServiceFull,
                _ => Count::ServiceAbsent,
            },
            Self::Refused(libc::EPERM | libc::EACCES) => Count::NotAdmitted,
            Self::Refused(libc::EUSERS | libc::ENFILE | libc::EMFILE | libc::EAGAIN | libc::ENOMEM) => {
                Count::ServiceFull
            }
            Self::Refused(libc::EPROTO) | Self::Version(_) => Count::WrongVersion,
            Self::Refused(_) => Count::ServiceRefused,
            Self::Gone(_) => Count::ServiceGone,
            Self::Memory(_) => Count::NoMemory,
            Self::Process(error) => match error.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => Count::NoDescriptor,
                Some(libc::ENOMEM | libc::ENOBUFS) => Count::NoMemory,
                _ => Count::ServiceRefused,
            },
        }
    }
}

impl From<MapError> for SessionError {
    fn from(error: MapError) -> Self {
        match error {
            MapError::Io(error) => Self::Memory(error),
            other => Self::Version(other.into()),
        }
    }
}

impl From<SessionError> for io::Error {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Refused(errno) => Self::from_raw_os_error(errno),
            SessionError::Unreachable(error)
            | SessionError::Version(error)
            | SessionError::Gone(error)
            | SessionError::Memory(error)
            | SessionError::Process(error) => error,
        }
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "nobody answers there: {error}"),
            Self::Refused(libc::EPROTO) => write!(f, "library and service do not fit together; {ONE_VERSION}"),
            Self::Refused(errno) => {
                write!(f, "the service refuses: {}; its log says why", io::Error::from_raw_os_error(*errno))
            }
            Self::Version(error) => write!(f, "library and service are of different versions: {error}; {ONE_VERSION}"),
            Self::Gone(error) => write!(f, "the service has gone: {error}"),
            // A program that has called `mlockall` is asked for as much of its limit as the region is long.
            Self::Memory(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                write!(f, "the program locks its memory, and its limit is below the region's size; raise `ulimit -l`")
            }
            Self::Memory(error) if error.raw_os_error() == Some(libc::EFBIG) => {
                write!(f, "the program may make no file as long as its region; raise `ulimit -f`")
            }
            Self::Memory(error) => write!(
                f,
                "no memory for the region: {error}; raise `ulimit -v`, or lower `sockets_per_client`, `send_buffer_max` and \
                 `receive_buffer_max` of the service"
            ),
            Self::Process(error) => write!(f, "this process cannot register: {error}"),
        }
    }
}

impl std::error::Error for SessionError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_version_is_called_one() {
        let os = io::Error::from_raw_os_error;
        let reasons = [
            (SessionError::from(MapError::Io(os(libc::ENOMEM))), Count::NoMemory),
            (SessionError::from(MapError::Io(os(libc::EFBIG))), Count::NoMemory),
            (SessionError::from(MapError::Format("of another version")), Count::WrongVersion),
            (SessionError::conversation(ErrorKind::UnexpectedEof.into()), Count::ServiceGone),
            (SessionError::conversation(os(libc::ECONNRESET)), Count::ServiceGone),
            (SessionError::conversation(os(libc::EMFILE)), Count::NoDescriptor),
            (SessionError::conversation(ErrorKind::InvalidData.into()), Count::WrongVersion),
            (SessionError::errno(libc::EMFILE), Count::NoDescriptor),
            (SessionError::Process(ErrorKind::WouldBlock.into()), Count::ServiceRefused),
            (SessionError::Refused(libc::EPROTO), Count::WrongVersion),
            (SessionError::Refused(libc::EUSERS), Count::ServiceFull),
            (SessionError::Refused(libc::EIO), Count::ServiceRefused),
            (SessionError::Unreachable(os(libc::ENOENT)), Count::ServiceAbsent),
            (SessionError::Unreachable(os(libc::EACCES)), Count::NotAdmitted),
        ];
        for (error, reason) in reasons {
            assert_eq!(error.reason(), reason, "{error}");
        }
    }

    #[test]
    fn callers_that_know_only_numbers_get_the_kernels() {
        let number = |error: SessionError| io::Error::from(error).raw_os_error();
        assert_eq!(number(SessionError::Refused(libc::EUSERS)), Some(libc::EUSERS));
        assert_eq!(number(MapError::Io(io::Error::from_raw_os_error(libc::ENOMEM)).into()), Some(libc::ENOMEM));
    }
}
