//! When a group may sleep, and work that is due by time.

use crate::group::{ClientGroup, EVENTS, LOOSE_US};
use rustix::event::{Timespec, epoll};
use std::os::fd::{AsFd, OwnedFd};
use towpath_runtime::workers::{Group, Idle};

/// How soon a listener without room is retried, µs. Applications that accept do not notify the stack.
const LISTENER_RETRY_US: u64 = 1000;

impl ClientGroup {
    /// Takes the kernel's events, and waits for them for up to `timeout_us` (`None`: without limit).
    pub fn poll(&mut self, timeout_us: Option<u64>) {
        let timeout = timeout_us
            .map(|us| Timespec { tv_sec: (us / 1_000_000).min(3600) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 });
        if !self.events.is_empty() {
            return;
        }
        let mut events = [std::mem::MaybeUninit::uninit(); EVENTS];
        // An error is a signal, or would repeat. Either way nothing has happened.
        if let Ok((events, _)) = epoll::wait(self.epoll.as_fd(), &mut events[..], timeout.as_ref()) {
            self.events.extend(events.iter().map(|event| (event.data.u64(), event.flags)));
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        let clients = self.clients.iter().flatten();
        let waiting =
            clients.clone().flat_map(|client| &client.own.pending_commands).map(|waiting| waiting.until_us).min();
        let loose = clients.clone().any(|client| !client.loose_reservations.is_empty());
        let loose = loose.then(|| towpath_runtime::thread::now_us() + LOOSE_US);
        [self.retry_listeners_at, self.rates.at, waiting, loose, self.orphans_until()].into_iter().flatten().min()
    }

    /// Does what is due by time. Returns how much work there was.
    pub fn due(&mut self, now: u64) -> usize {
        let mut work = 0;
        if self.retry_listeners_at.is_some_and(|at| at <= now) {
            self.retry_listeners_at = None;
            for (index, slot) in std::mem::take(&mut self.full_listeners) {
                self.serve_slot(index, slot);
                work += 1;
            }
        }
        work += self.rates_due(now);
        for client in self.clients.iter_mut().flatten() {
            client.expire_reservations(now, LOOSE_US);
        }
        self.give_up_waiting(now);
        self.forget_clients(now);
        work
    }

    /// Schedules a retry for a listener that has no room for a connection in the kernel.
    pub fn retry_listener(&mut self, index: u32, slot: towpath_ring::Slot) {
        if !self.full_listeners.contains(&(index, slot)) {
            self.full_listeners.push((index, slot));
        }
        self.retry_listeners_at.get_or_insert_with(|| towpath_runtime::thread::now_us() + LISTENER_RETRY_US);
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
    fn arm(&mut self, now_us: u64) -> Idle {
        self.doorbell.arm();
        let mut pending = !self.next_turn.is_empty() || !self.resets.is_empty() || !self.events.is_empty();
        for client in self.clients.iter().flatten() {
            let (data, commands) = (client.shared.region.data_queue(0), client.shared.region.commands());
            data.arm();
            commands.arm();
            pending |= !data.is_empty(client.own.data_head) || !commands.is_empty(client.command_head);
        }
        // Requests notify even while the doorbell is not armed, so none is missed here.
        match pending {
            true => Idle::No,
            false => Idle::For(self.next_deadline().map(|at| at.saturating_sub(now_us))),
        }
    }
    fn disarm(&mut self, slept: bool) {
        self.counts.account.sleeps += u64::from(slept);
        self.doorbell.disarm();
        for client in self.clients.iter().flatten() {
            client.shared.region.data_queue(0).disarm();
            client.shared.region.commands().disarm();
        }
    }
    /// The events are served in the next turn.
    fn wait(&mut self, timeout_us: Option<u64>) {
        self.poll(timeout_us);
    }
    fn set(&self) -> &OwnedFd {
        &self.epoll
    }
}
