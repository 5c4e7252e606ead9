//! `select`, by way of `poll`.

use crate::fd::table::{self, Descriptor};
use crate::io::user;
use crate::ready::poll;
use crate::ready::service_death;
use core::time::Duration;
use libc::{c_int, fd_set, pollfd, sigset_t};
use towpath_client::sys::Sys;
use towpath_hook::Answer;

/// The `poll` bits that make a descriptor readable, writable, or exceptional: Linux's `POLLIN_SET` and so on.
const READ: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR;
const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR;
const EXCEPT: i16 = libc::POLLPRI;

/// The number of bits in an `fd_set`.
const FD_SETSIZE: c_int = libc::FD_SETSIZE as c_int;

/// The bits of one set. Programs may pass sets longer than FD_SETSIZE, so `count` says how many there are.
#[derive(Clone, Copy)]
struct Bits(*mut u64);

impl Bits {
    fn get(self, fd: c_int) -> bool {
        // SAFETY: the caller of `select` gives sets of at least `count` bits, in whole words.
        !self.0.is_null() && unsafe { self.0.add(fd as usize / 64).read_unaligned() } & 1 << (fd % 64) != 0
    }

    fn set(self, fd: c_int, on: bool) {
        if !self.0.is_null() {
            // SAFETY: the caller of `select` gives sets of at least `count` bits, in whole words.
            unsafe {
                let word = self.0.add(fd as usize / 64);
                let bit = 1 << (fd % 64);
                let old = word.read_unaligned();
                word.write_unaligned(if on { old | bit } else { old & !bit });
            }
        }
    }
}

/// `select` and `pselect`. `timeout` `None` = no limit.
///
/// # Safety
/// The contract of `pselect`: each set is null or has `count` bits, in whole words, as far as the kernel
/// looks. `mask` is null or valid.
pub unsafe fn select(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Answer<c_int> {
    service_death::look();
    let sets = sets.map(|set| Bits(set.cast()));
    let named = |fd: &c_int| sets.iter().any(|set| set.get(*fd));
    let count = if count > FD_SETSIZE { count.min(table_size()) } else { count };
    for set in &sets {
        let bytes = (count.max(0) as usize).div_ceil(64) * 8;
        // SAFETY: `is_there` accepts any address.
        if !set.0.is_null() && unsafe { user::is_there(set.0.cast::<u8>(), bytes) }.is_err() {
            return None;
        }
    }
    let ours = |fd: &c_int| named(fd) && matches!(table::get(*fd), Descriptor::Slot { .. } | Descriptor::Epoll(_));
    if !(0..count).any(|fd| ours(&fd)) {
        return None;
    }
    Some(run(count, sets, named, timeout, mask))
}

/// How many bits of a longer set the kernel looks at. Programs often call `select(getdtablesize(), ...)` on ordinary
/// sets, whose memory ends before that.
fn table_size() -> c_int {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
    size.and_then(|size| size.trim().parse().ok()).unwrap_or(FD_SETSIZE).max(FD_SETSIZE)
}

fn run(
    count: c_int,
    sets: [Bits; 3],
    named: impl Fn(&c_int) -> bool,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Sys<c_int> {
    let masks = [READ, WRITE, EXCEPT];
    let asks = [libc::POLLIN | libc::POLLRDNORM, libc::POLLOUT | libc::POLLWRNORM, libc::POLLPRI];
    let mut fds: Vec<pollfd> = (0..count)
        .filter(&named)
        .map(|fd| {
            let events = (0..3).filter(|i| sets[*i].get(fd)).fold(0, |events, i| events | asks[i]);
            pollfd { fd, events, revents: 0 }
        })
        .collect();
    poll::run(&mut fds, timeout, mask)?;
    if fds.iter().any(|p| p.revents & libc::POLLNVAL != 0) {
        return Err(libc::EBADF);
    }
    let mut found = 0;
    for entry in &fds {
        for (set, mask) in sets.iter().zip(masks) {
            if set.get(entry.fd) {
                let on = entry.revents & mask != 0;
                set.set(entry.fd, on);
                found += c_int::from(on);
            }
        }
    }
    Ok(found)
}
