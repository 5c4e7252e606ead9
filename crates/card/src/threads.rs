//! How many threads the stack in the other kernel has.

use crate::message::FromCard;
use std::io;
use towpath_stack::Cores;

/// Most threads that a stack has: what another kernel says may be anything.
const MOST: u32 = 16;

/// What the other kernel has answered to [`crate::message::ToCard::Cores`].
pub fn answered(answer: Option<FromCard>) -> io::Result<Cores> {
    match answer {
        Some(FromCard::Cores { running, most }) if (1..=MOST).contains(&most) && (1..=most).contains(&running) => {
            Ok(Cores { running: running as usize, most: most as usize })
        }
        Some(FromCard::Failed { errno }) => Err(io::Error::from_raw_os_error(errno)),
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
        None => Err(io::Error::from_raw_os_error(libc::ENETDOWN)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::mirror::far::{FarConfig, serve};
    use crate::mirror::near::Near;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::sync::Arc;
    use towpath_kernel::KernelConfig;
    use towpath_link::stream::Stream;
    use towpath_ring::Geometry;
    use towpath_stack::Stack;
    use towpath_stack::guard::Open;

    #[test]
    fn a_far_stack_has_as_many_threads_as_the_near_side_says() {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let config = FarConfig { kernel: KernelConfig { cores: 3, spin_us: 0, cpus: Vec::new() }, may_run: false };
        let far = std::thread::spawn(move || drop(serve(Arc::new(Stream::new(b).unwrap()), &config)));
        let geometry = Geometry { slots: 16, app_slots: 8, ..Geometry::DEFAULT };
        let near = Near::start(Arc::new(Stream::new(a).unwrap()), geometry, Box::new(Open)).unwrap();
        assert_eq!(near.cores(), Cores { running: 3, most: 3 });
        let groups = || near.status().threads.iter().map(|thread| thread.groups.len()).collect::<Vec<_>>();
        for (running, expected) in [(1, [3, 0, 0]), (2, [2, 1, 0]), (3, [1, 1, 1])] {
            near.set_cores(running).unwrap();
            assert_eq!((near.cores().running, groups()), (running, expected.to_vec()));
        }
        for wrong in [0, 4, usize::MAX] {
            assert_eq!(near.set_cores(wrong).unwrap_err().raw_os_error(), Some(libc::EINVAL), "{wrong}");
        }
        assert_eq!(near.cores().running, 3, "as before");
        drop(near);
        far.join().unwrap();
    }

    #[test]
    fn numbers_of_threads_that_cannot_be_are_no_answer() {
        for (running, most) in [(0, 1), (2, 1), (1, 17), (1, 0), (u32::MAX, u32::MAX)] {
            assert!(answered(Some(FromCard::Cores { running, most })).is_err(), "{running} of {most}");
        }
        assert_eq!(answered(None).unwrap_err().raw_os_error(), Some(libc::ENETDOWN));
        assert!(answered(Some(FromCard::Done)).is_err());
    }
}
