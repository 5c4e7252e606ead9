//! The thread that waits for changes of the host's network.

use super::Known;
use super::netlink::{Changes, Netlink};
use crate::follow::{ASK_AT_MOST_EACH, ASK_EACH, Follower, Looked};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use std::io;
use std::sync::Arc;
use towpath_service::stack_factory::NetworkWatcher;

/// While an interface is not there, it is looked for as often.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// What may match a pattern by now is looked for after this time.
const LOOK_SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: ASK_AT_MOST_EACH.subsec_nanos() as i64 };
/// Nothing tells of some programs, so they are looked for as often.
const ASK_AGAIN: Timespec = Timespec { tv_sec: ASK_EACH.as_secs().cast_signed(), tv_nsec: 0 };

/// Notices changes of addresses, routes and neighbours.
pub struct Watcher {
    known: Arc<Known>,
    changes: Changes,
    netlink: Netlink,
    followers: Vec<Follower>,
}

impl Watcher {
    /// Subscribes to changes. Served interfaces are followed.
    pub fn new(known: Arc<Known>, followers: Vec<Follower>) -> io::Result<Self> {
        let mut watcher = Self { known, changes: Changes::subscribe()?, netlink: Netlink::connect()?, followers };
        // The addresses may have changed between their first reading and the subscription.
        watcher.known.refresh(&mut watcher.netlink)?;
        Ok(watcher)
    }
}

impl NetworkWatcher for Watcher {
    fn run(&mut self, stop: BorrowedFd<'_>, changed: &dyn Fn()) -> io::Result<()> {
        loop {
            let looked: Vec<Looked> = self.followers.iter_mut().map(Follower::look).collect();
            if looked.contains(&Looked::Reopened) {
                self.known.refresh(&mut self.netlink)?;
                changed();
            }
            let changes = self.changes.as_fd();
            let mut waiting = [PollFd::new(&changes, PollFlags::IN), PollFd::new(&stop, PollFlags::IN)];
            let wait = if looked.contains(&Looked::Resting) {
                Some(&LOOK_SOON)
            } else if looked.contains(&Looked::Gone) {
                Some(&LOOK_AGAIN)
            } else {
                self.followers.iter().any(Follower::must_ask).then_some(&ASK_AGAIN)
            };
            match poll(&mut waiting, wait) {
                Ok(0) => continue,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if !waiting[1].revents().is_empty() {
                return Ok(());
            }
            self.changes.drain();
            self.known.refresh(&mut self.netlink)?;
            changed();
        }
    }
}
