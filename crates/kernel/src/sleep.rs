//! When a group has nothing to do, and what comes due by time.

use crate::group::{ClientGroup, EVENTS};
use rustix::event::{Timespec, epoll};
use std::os::fd::{AsFd, OwnedFd};
use towpath_stack::crew::{Group, Rest};

/// How long what reserves a port is kept without a command for its slot, and a command without its reservation, µs.
pub const LOOSE_US: u64 = 2_000_000;
/// How soon a listener without room is looked at again, µs: applications that accept ring no door for it.
const CROWDED_US: u64 = 1000;

impl ClientGroup {
    /// Takes what the kernel has to tell, waiting for it for up to `timeout_us` (`None` = for ever).
    pub fn poll(&mut self, timeout_us: Option<u64>) {
        let timeout = timeout_us
            .map(|us| Timespec { tv_sec: (us / 1_000_000).min(3600) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 });
        if !self.events.is_empty() {
            return;
        }
        let mut events = [std::mem::MaybeUninit::uninit(); EVENTS];
        // An error is a signal, or would come again and again: then nothing has happened.
        if let Ok((events, _)) = epoll::wait(self.epoll.as_fd(), &mut events[..], timeout.as_ref()) {
            self.events.extend(events.iter().map(|event| (event.data.u64(), event.flags)));
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        let clients = self.clients.iter().flatten();
        let waiting = clients.clone().flat_map(|client| &client.own.waiting).map(|waiting| waiting.until_us).min();
        let loose = clients.clone().any(|client| !client.loose_sockets.is_empty());
        let loose = loose.then(|| towpath_stack::thread::now_us() + LOOSE_US);
        [self.crowded_at, self.rates.at, waiting, loose].into_iter().flatten().min()
    }

    /// What comes due by time; how much it was.
    pub fn due(&mut self, now: u64) -> usize {
        let mut work = 0;
        if self.crowded_at.is_some_and(|at| at <= now) {
            self.crowded_at = None;
            for (index, slot) in std::mem::take(&mut self.crowded) {
                self.look(index, slot);
                work += 1;
            }
        }
        work += self.rates_due(now);
        for client in self.clients.iter_mut().flatten() {
            client.expire_sockets(now, LOOSE_US);
        }
        self.give_up_waiting(now);
        self.forget_clients();
        work
    }

    /// A listener has no room for connections that the kernel has.
    pub fn crowded(&mut self, index: u32, slot: towpath_ring::Slot) {
        if !self.crowded.contains(&(index, slot)) {
            self.crowded.push((index, slot));
        }
        self.crowded_at.get_or_insert_with(|| towpath_stack::thread::now_us() + CROWDED_US);
    }
}

impl Group for ClientGroup {
    fn turn(&mut self, now_us: u64) -> usize {
        self.serve(now_us)
    }
    fn turned(&mut self, now_us: u64, took_us: u64, worked: bool) {
        self.counts.account.turned(now_us, took_us, worked);
    }
    fn panicked(&mut self) {
        self.counts.panics += 1;
    }
    fn arm(&mut self, now_us: u64) -> Rest {
        self.bell.arm();
        let mut pending = !self.again.is_empty() || !self.resets.is_empty() || !self.events.is_empty();
        for client in self.clients.iter().flatten() {
            let (doors, commands) = (client.shared.region.doors(0), client.shared.region.commands());
            doors.arm();
            commands.arm();
            pending |= !doors.is_empty(client.own.door_head) || !commands.is_empty(client.command_head);
        }
        // Requests ring the bell even while it is not armed, so that none is missed here.
        match pending {
            true => Rest::None,
            false => Rest::For(self.next_deadline().map(|at| at.saturating_sub(now_us))),
        }
    }
    fn disarm(&mut self, slept: bool) {
        self.counts.account.sleeps += u64::from(slept);
        self.bell.disarm();
        for client in self.clients.iter().flatten() {
            client.shared.region.doors(0).disarm();
            client.shared.region.commands().disarm();
        }
    }
    /// What the kernel has told is there in the next turn.
    fn wait(&mut self, timeout_us: Option<u64>) {
        self.poll(timeout_us);
    }
    fn set(&self) -> &OwnedFd {
        &self.epoll
    }
}
