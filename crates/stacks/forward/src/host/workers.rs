//! The number of workers that the other kernel's stack reports.

use crate::message::ToHost;
use std::io;
use towpath_runtime::WorkerCount;

/// Most workers of a stack. The other kernel may report any number.
const MOST: u32 = 16;

/// The workers in an answer to [`crate::message::ToStack::Workers`].
pub fn worker_count(answer: Option<ToHost>) -> io::Result<WorkerCount> {
    match answer {
        Some(ToHost::Workers { running, most }) if (1..=MOST).contains(&most) && (1..=most).contains(&running) => {
            Ok(WorkerCount { running: running as usize, most: most as usize })
        }
        Some(ToHost::Failed { errno }) => Err(io::Error::from_raw_os_error(errno)),
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
        None => Err(io::Error::from_raw_os_error(libc::ENETDOWN)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_of_threads_that_cannot_be_are_no_answer() {
        for (running, most) in [(0, 1), (2, 1), (1, 17), (1, 0), (u32::MAX, u32::MAX)] {
            assert!(worker_count(Some(ToHost::Workers { running, most })).is_err(), "{running} of {most}");
        }
        assert_eq!(worker_count(None).unwrap_err().raw_os_error(), Some(libc::ENETDOWN));
        assert!(worker_count(Some(ToHost::Done)).is_err());
    }
}
